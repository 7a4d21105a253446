//! Fences in Redis, 7.0 or newer, for your own Lua script. Works with every client; depends on none.
//!
//! A script is Redis's one way to decide and write in one step: `MULTI` carries out what follows a check
//! whatever the check says. Put [`FUNCTION`] before your script and call it first:
//!
//! ```lua
//! local max = tenure_fence(KEYS[1], ARGV[1], ARGV[2], 'write')
//! if max then return max end
//! redis.call('SET', KEYS[2], ARGV[3])
//! return false
//! ```
//!
//! The answer is nil if the write was accepted, else the largest token that was seen, as text ([`stale`] reads
//! it). A script is not rolled back: check first, then write.
//!
//! From Rust, with any client:
//!
//! ```
//! use tenure_fence::Mark;
//! use tenure_fence::redis::{CHECK, arguments, arguments_of_read, script, stale};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mark = Mark::parse("1790000000000000", "00000000000000000000000000000007")?;
//! let write = script(
//!     "local max = tenure_fence(KEYS[1], ARGV[1], ARGV[2], 'write')
//!      if max then return max end
//!      redis.call('SET', KEYS[2], ARGV[3])
//!      return false",
//! );
//! // EVAL write 2 {billing}:fence {billing} TOKEN CLAIM VALUE; or the check alone, before expensive work:
//! let look = [CHECK.to_owned()].into_iter().chain(arguments_of_read("{billing}:fence", mark));
//! # assert_eq!((look.count(), write.is_empty(), arguments("f", mark)[4].as_str()), (6, false, "write"));
//! // The server's answer is nil, or the largest token that was seen.
//! stale(None)?;
//! assert!(stale(Some("1790000000000001")).is_err());
//! # Ok(()) }
//! ```
//!
//! The fence's key and the written one must be in one hash slot of a cluster: `{billing}` and
//! `{billing}:fence`. The key has no expiry. It must outlive every late write, so a server that evicts keys
//! (`maxmemory-policy allkeys-*`) or forgets them at a restart is no place for it.

use tenure_core::Token;

use crate::rule::{Mark, Stale};

/// The Lua function `tenure_fence(key, token, claim, access)`, for the head of your own script.
///
/// `access` is `'write'` or `'read'`. It returns `false` if the access is accepted, and has kept its mark then;
/// else the largest token that was seen, as text. Tokens are compared exactly up to 2^64 - 1. What is no token,
/// no claim or no fence raises an error: the script ends there and has written nothing.
pub const FUNCTION: &str = include_str!("fence.lua");

/// The check alone, as a script: `KEYS[1]` the key, `ARGV` token, claim, `write` or `read`. Nil if accepted,
/// else the largest token.
///
/// Alone it is for a look before expensive work; the write that follows is not part of its step.
pub const CHECK: &str = concat!(include_str!("fence.lua"), include_str!("fence_check.lua"));

/// Returns a script of yours behind [`FUNCTION`]. Make it once, so that its SHA-1 and the server's cache stay.
pub fn script(body: &str) -> String {
    format!("{FUNCTION}{body}")
}

/// Returns what follows the script in `EVAL`, or its SHA-1 in `EVALSHA`, for [`CHECK`] with a write: the number
/// of keys, the key, the token, the claim, `write`. Further arguments of your own come after it as `ARGV[4]`
/// and so on.
pub fn arguments(key: &str, mark: impl Into<Mark>) -> [String; 5] {
    arguments_of(key, mark.into(), "write")
}

/// As [`arguments`], for a read.
pub fn arguments_of_read(key: &str, mark: impl Into<Mark>) -> [String; 5] {
    arguments_of(key, mark.into(), "read")
}

fn arguments_of(key: &str, mark: Mark, access: &str) -> [String; 5] {
    ["1".to_owned(), key.to_owned(), mark.token().to_string(), mark.claim().to_string(), access.to_owned()]
}

/// Reads the answer of [`CHECK`]: nil is accepted, a text the largest token. A text that is no token came from
/// somewhere else, and counts as a refusal at [`Token::ZERO`].
///
/// # Errors
/// [`Stale`] if the access was refused.
pub fn stale(answer: Option<&str>) -> Result<(), Stale> {
    match answer {
        None => Ok(()),
        Some(max) => Err(Stale::new(max.parse().map_or(Token::ZERO, Token::new))),
    }
}
