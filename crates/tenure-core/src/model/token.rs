//! Fencing tokens: how the next one is computed, and why it never goes back.
//!
//! A token is the larger of *the last one plus one* and *the store's clock in microseconds* and *the client's
//! floor plus one*. The clock part means that no immortal counter key is needed: a record may be forgotten and
//! the next token is still larger, as long as the clock did not go back. The floor part repairs the case in
//! which both the record and the clock were lost. Source: hybrid logical clocks (Kulkarni et al., 2014).

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// How far a client's floor may lie ahead of the store's clock before a claim is refused.
///
/// One hour: more than any honest clock difference, and little enough that one wrong clock cannot poison the
/// tokens of a resource for days.
pub const FLOOR_AHEAD_MAX: Duration = Duration::from_secs(3600);

/// The fencing number of a grant: larger for each later grant of a resource.
///
/// Hand it to whatever the lease protects; the resource refuses a token smaller than the largest it has seen.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("token-example").await?;
/// # let lock = tenure.mutex("billing/4711");
/// let earlier = lock.run(async |lease| lease.token()).await?;
/// let later = lock.run(async |lease| lease.token()).await?;
/// assert!(later > earlier);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token(u64);

impl Token {
    /// The token below every grant's.
    pub const ZERO: Token = Token(0);

    /// Wraps a number that came from [`Token::get`].
    pub const fn new(number: u64) -> Token {
        Token(number)
    }

    /// Returns the number, as it is stored and sent.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Computes the token of the next grant.
    pub fn next(last: Token, now: Timestamp, floor: Token) -> Token {
        let floor = if mutant!("floor-ignored") { Token::ZERO } else { floor };
        Token((last.0.saturating_add(1)).max(now.micros()).max(floor.0.saturating_add(1)))
    }

    /// Whether this token, as a client's floor, lies too far ahead of the store's clock to be honest.
    pub fn is_ahead_of(self, now: Timestamp) -> bool {
        self.0 > (now + FLOOR_AHEAD_MAX).micros()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
