//! Random accesses by several holders, delivered late, twice and in any order, and what must become of them.

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use tenure_core::{ClaimId, Token};
use tenure_fence::{Fence, Mark, Stale};

/// The keys that are used. The second tells whether keys are kept apart.
pub(crate) const KEYS: [&str; 2] = ["billing/4711", "pool#3"];

/// One access as it arrives.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) key: &'static str,
    pub(crate) mark: Mark,
    pub(crate) is_read: bool,
}

/// Where tokens begin: small ones, microseconds of these years, and those that a double cannot tell apart.
const FIRST_TOKENS: [u64; 4] = [1, 1_763_735_220_000_000, (1 << 53) - 2, i64::MAX as u64 - 40];

/// Holders with increasing tokens, some of which were given twice; each access arrives any number of times, at
/// any time.
pub(crate) fn accesses() -> impl Strategy<Value = Vec<Access>> {
    let one = (0..2usize, 0..12u64, 0..8u8, any::<bool>());
    (0..FIRST_TOKENS.len(), vec(one, 1..40)).prop_map(|(first, list)| {
        let access = |(key, holder, twin, is_read): (usize, u64, u8, bool)| {
            let token = Token::new(FIRST_TOKENS[first] + holder * 3);
            // One in eight is by a claim that was given a token which another has.
            let claim = ClaimId::new(u128::from(holder) << 64 | u128::from(twin == 0));
            Access { key: KEYS[key], mark: Mark::new(token, claim), is_read }
        };
        list.into_iter().map(access).collect()
    })
}

/// What the rule says to each.
pub(crate) fn expected(accesses: &[Access]) -> Vec<Result<(), Stale>> {
    let mut fences = [Fence::default(); 2];
    let mut answers = Vec::new();
    for Access { key, mark, is_read } in accesses {
        let fence = &mut fences[usize::from(*key == KEYS[1])];
        answers.push(if *is_read { fence.check_read(*mark) } else { fence.check(*mark) });
    }
    answers
}

/// A mark of a test.
pub(crate) fn mark(token: u64) -> Mark {
    Mark::new(Token::new(token), ClaimId::new(token.into()))
}
