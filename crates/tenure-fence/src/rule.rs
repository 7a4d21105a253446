//! The rule, as a pure function. Every other form of it is compared with this one.
//!
//! An access is refused if a *conflicting* access of a *later* grant has been seen. Two writes conflict, and so
//! do a write and a read; two reads do not. Later is a larger token, or the same token from another claim: a
//! store that lost its memory and its time may have given a token twice, and then the second holder is
//! refused. The same access again is accepted, since a holder writes more than once and may repeat what it got
//! no answer for.
//!
//! A read leaves its mark as well. Without it a writer that was paused before the reader's grant could change
//! what the reader is reading. (Rejected: to compare reads with writes and forget them, which is cheaper and
//! protects the order of writes only.)

use std::fmt;
use std::str::FromStr;

use tenure_core::{ClaimId, Error, ErrorKind, Lease, Token, mutant};

/// The longest key, in bytes: a name of 255 and a slot.
pub const KEY_BYTES_MAX: usize = 300;

/// The number of the text form of a [`Fence`]. Other numbers are refused.
const FORMAT: &str = "1";

/// Returns the key of one slot of a slot pool: `name#slot`.
///
/// Each slot has a holder of its own. Under one key for all, the newest holder would fence the others.
///
/// # Examples
/// ```
/// assert_eq!(tenure_fence::slot_key("worker-ids", 3), "worker-ids#3");
/// ```
pub fn slot_key(name: &str, slot: u32) -> String {
    format!("{name}#{slot}")
}

/// Whose access it is: the token and the claim of a lease.
///
/// Made from a [`Lease`] by [`From`], or with [`Mark::new`] and [`Mark::parse`] from what a lease's user sent.
/// Its text form is `token/claim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    token: Token,
    claim: ClaimId,
}

impl Mark {
    /// Nothing: below every grant's.
    const NONE: Mark = Mark { token: Token::ZERO, claim: ClaimId::new(0) };

    /// Makes a mark. With the token zero, which no grant has, it is always refused.
    pub const fn new(token: Token, claim: ClaimId) -> Mark {
        Mark { token, claim }
    }

    /// Reads a token in decimal and a claim in 32 hexadecimal digits, as headers and environments carry them.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else, and for the token zero.
    pub fn parse(token: &str, claim: &str) -> Result<Mark, Error> {
        let invalid = |message: String, hint| {
            Err(Error::new(ErrorKind::Invalid, "read a mark", message).with_hint(hint))
        };
        let number = token.parse::<u64>().ok();
        let Some(number) = number.filter(|number| *number > 0 && !token.starts_with('+')) else {
            return invalid(
                format!("{token:?} is not a token"),
                "a token is a decimal number from 1 to 18446744073709551615",
            );
        };
        let is_claim = claim.len() == 32 && claim.bytes().all(|byte| byte.is_ascii_hexdigit());
        match claim.parse() {
            Ok(claim) if is_claim => Ok(Mark::new(Token::new(number), claim)),
            _ => invalid(format!("{claim:?} is not a claim"), "a claim id has 32 hexadecimal digits"),
        }
    }

    /// Returns the token.
    pub const fn token(self) -> Token {
        self.token
    }

    /// Returns the claim.
    pub const fn claim(self) -> ClaimId {
        self.claim
    }

    /// Whether it has not been overtaken by one that was seen.
    fn is_current(self, seen: Mark) -> bool {
        let is_same = if mutant!("fence-by-token-alone") { self.token == seen.token } else { self == seen };
        self.token > seen.token || is_same || mutant!("fence-takes-everything")
    }
}

impl From<&Lease> for Mark {
    fn from(lease: &Lease) -> Mark {
        Mark::new(lease.token(), lease.claim())
    }
}

impl From<&tenure_core::face::blocking::Lease> for Mark {
    fn from(lease: &tenure_core::face::blocking::Lease) -> Mark {
        Mark::new(lease.token(), lease.claim())
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.token, self.claim)
    }
}

impl FromStr for Mark {
    type Err = Error;

    fn from_str(text: &str) -> Result<Mark, Error> {
        let (token, claim) = text.split_once('/').unwrap_or((text, ""));
        Mark::parse(token, claim)
    }
}

/// The refusal of an access whose lease is over: a later grant has been here.
///
/// Stop the work. Give [`Stale::max`] to `Tenure::raise_floor` if you claim again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stale {
    /// The largest token that has been seen.
    pub max: Token,
}

impl Stale {
    /// Makes a refusal from the largest token that a store answered with.
    pub const fn new(max: Token) -> Stale {
        Stale { max }
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lease is over: token {} has been seen", self.max)
    }
}

impl std::error::Error for Stale {}

/// [`ErrorKind::Lost`]: its user should do the same as if the client had told it first.
impl From<Stale> for Error {
    fn from(stale: Stale) -> Error {
        Error::new(ErrorKind::Lost, "write", stale.to_string())
            .with_hint("stop the work; claim again if it is still to be done")
            .with_source(stale)
    }
}

/// What one fenced resource keeps: the marks of the largest accepted write and of the largest accepted read.
///
/// Put it beside what it protects, under the same lock, and store it together with that. Its text form is
/// `1 WRITE READ` with the two marks; `1` is the number of the format.
///
/// # Examples
/// ```
/// use tenure_fence::{Fence, Mark, Stale};
///
/// struct Account { balance: i64, fence: Fence }
///
/// fn set(account: &mut Account, mark: Mark, balance: i64) -> Result<(), Stale> {
///     account.fence.check(mark)?;
///     account.balance = balance;
///     Ok(())
/// }
/// # let mut account = Account { balance: 0, fence: Fence::default() };
/// # let mark = |number| Mark::new(tenure_core::Token::new(number), tenure_core::ClaimId::new(number.into()));
/// # assert_eq!(set(&mut account, mark(2), 20), Ok(()));
/// # assert_eq!(set(&mut account, mark(1), 10).unwrap_err().max.get(), 2);
/// # assert_eq!(account.balance, 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    write: Mark,
    read: Mark,
}

impl Default for Fence {
    fn default() -> Fence {
        Fence { write: Mark::NONE, read: Mark::NONE }
    }
}

impl Fence {
    /// Accepts a write, unless a write or a read of a later grant has been accepted.
    ///
    /// # Errors
    /// [`Stale`] if it is refused. Nothing has changed then.
    pub fn check(&mut self, mark: impl Into<Mark>) -> Result<(), Stale> {
        let mark = mark.into();
        if mark.token == Token::ZERO || !mark.is_current(self.write) || !mark.is_current(self.read) {
            return Err(Stale::new(self.max()));
        }
        self.write = mark;
        Ok(())
    }

    /// Accepts a read under a lock that readers share, unless a write of a later grant has been accepted.
    ///
    /// # Errors
    /// [`Stale`] if it is refused. Nothing has changed then.
    pub fn check_read(&mut self, mark: impl Into<Mark>) -> Result<(), Stale> {
        let mark = mark.into();
        if mark.token == Token::ZERO || !mark.is_current(self.write) {
            return Err(Stale::new(self.max()));
        }
        if mark.token > self.read.token {
            self.read = mark;
        }
        Ok(())
    }

    /// Returns the largest token that has been accepted, zero if none has.
    pub fn max(&self) -> Token {
        self.write.token.max(self.read.token)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FORMAT} {} {}", self.write, self.read)
    }
}

impl FromStr for Fence {
    type Err = Error;

    fn from_str(text: &str) -> Result<Fence, Error> {
        let parts: Vec<&str> = text.split(' ').collect();
        let none = Mark::NONE.to_string();
        let mark = |text: &str| if text == none { Ok(Mark::NONE) } else { text.parse::<Mark>() };
        match parts[..] {
            [FORMAT, write, read] => Ok(Fence { write: mark(write)?, read: mark(read)? }),
            _ => {
                Err(Error::new(ErrorKind::Internal, "read a fence", format!("{text:?} is none of format 1"))
                    .with_hint("another version of tenure may have written it, or it is damaged"))
            }
        }
    }
}

/// What a key must be, where it is written into a line.
pub(crate) fn check_key(key: &str) -> Result<(), Error> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX || key.chars().any(char::is_control) {
        return Err(Error::new(ErrorKind::Invalid, "check a fence", format!("{key:?} is not a key"))
            .with_hint(format!("a key has 1 to {KEY_BYTES_MAX} bytes of UTF-8 without control characters")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(token: u64, claim: u128) -> Mark {
        Mark::new(Token::new(token), ClaimId::new(claim))
    }

    const STALE_AT_7: Result<(), Stale> = Err(Stale { max: Token::new(7) });

    #[test]
    fn a_late_write_is_refused_and_a_repeated_one_accepted() {
        let mut fence = Fence::default();
        assert_eq!(fence.check(mark(5, 1)), Ok(()));
        assert_eq!(fence.check(mark(7, 2)), Ok(()));
        assert_eq!(fence.check(mark(7, 2)), Ok(()));
        assert_eq!(fence.check(mark(5, 1)), STALE_AT_7);
        assert_eq!(fence.check(mark(6, 3)), STALE_AT_7);
    }

    #[test]
    fn a_token_that_was_given_twice_is_good_for_one_claim() {
        let mut fence = Fence::default();
        assert_eq!(fence.check(mark(7, 1)), Ok(()));
        assert_eq!(fence.check(mark(7, 2)), STALE_AT_7);
        assert_eq!(fence.check_read(mark(7, 2)), STALE_AT_7);
        assert_eq!(fence.check(mark(7, 1)), Ok(()));
    }

    #[test]
    fn readers_do_not_fence_readers() {
        let mut fence = Fence::default();
        for token in [5, 7, 6, 4, 7] {
            assert_eq!(fence.check_read(mark(token, token.into())), Ok(()), "{token}");
        }
        assert_eq!(fence.max(), Token::new(7));
    }

    #[test]
    fn a_writer_fences_all_earlier_readers_and_writers() {
        let mut fence = Fence::default();
        assert_eq!(fence.check_read(mark(3, 3)), Ok(()));
        assert_eq!(fence.check(mark(7, 7)), Ok(()));
        assert_eq!(fence.check_read(mark(3, 3)), STALE_AT_7);
        assert_eq!(fence.check(mark(6, 6)), STALE_AT_7);
        assert_eq!(fence.check_read(mark(8, 8)), Ok(()));
    }

    #[test]
    fn a_reader_fences_earlier_writers() {
        let mut fence = Fence::default();
        assert_eq!(fence.check(mark(5, 5)), Ok(()));
        assert_eq!(fence.check_read(mark(7, 7)), Ok(()));
        assert_eq!(fence.check(mark(5, 5)), STALE_AT_7);
        assert_eq!(fence.check_read(mark(6, 6)), Ok(()), "a reader that shares the lock with the other");
    }

    #[test]
    fn a_writer_reads_under_its_own_lease() {
        let mut fence = Fence::default();
        for _ in 0..2 {
            assert_eq!(fence.check_read(mark(7, 7)), Ok(()));
            assert_eq!(fence.check(mark(7, 7)), Ok(()));
        }
    }

    #[test]
    fn the_token_zero_is_always_refused() {
        let mut fence = Fence::default();
        assert_eq!(fence.check(mark(0, 0)), Err(Stale::new(Token::ZERO)));
        assert_eq!(fence.check_read(mark(0, 0)), Err(Stale::new(Token::ZERO)));
    }

    #[test]
    fn texts_are_read_back() {
        let mut fence = Fence::default();
        assert_eq!(fence.to_string().parse::<Fence>().unwrap(), fence);
        fence.check(mark(u64::MAX, u128::MAX)).unwrap();
        let text = fence.to_string();
        assert_eq!(
            text,
            "1 18446744073709551615/ffffffffffffffffffffffffffffffff 0/00000000000000000000000000000000"
        );
        assert_eq!(text.parse::<Fence>().unwrap(), fence);
        assert_eq!(mark(17, 3).to_string().parse::<Mark>().unwrap(), mark(17, 3));
    }

    #[test]
    fn what_is_no_mark_and_no_fence_is_refused() {
        let claim = "0000000000000000000000000000000a";
        for token in ["", "0", "-1", "+1", " 1", "1e3", "18446744073709551616"] {
            assert_eq!(Mark::parse(token, claim).unwrap_err().kind(), ErrorKind::Invalid, "{token:?}");
        }
        for claim in ["", "a", "+000000000000000000000000000000a", "0000000000000000000000000000000g"] {
            assert_eq!(Mark::parse("1", claim).unwrap_err().kind(), ErrorKind::Invalid, "{claim:?}");
        }
        for text in ["", "1", "2 1/a 0/0", "1 5 6", "1  "] {
            assert!(text.parse::<Fence>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_refusal_is_a_lost_lease() {
        let error = Error::from(Stale::new(Token::new(7)));
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert_eq!(error.to_string(), "write: the lease is over: token 7 has been seen");
    }
}
