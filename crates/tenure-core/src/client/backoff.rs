//! How long to wait before a failed request is repeated.

use std::time::Duration;

/// The first delay: a dropped connection is usually back within it.
const FIRST: Duration = Duration::from_millis(10);
/// The longest delay: a store that is back is noticed within this.
const LONGEST: Duration = Duration::from_millis(500);

/// Returns the delay before repetition number `attempt` (0 is the first), between half of it and all of it.
///
/// `random` spreads the clients, so that a store that comes back is not met by all of them at once.
pub(crate) fn delay(attempt: u8, random: u64) -> Duration {
    let whole = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
    whole / 2 + (whole / 2).mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    // page: docs/concepts/backoff.md "| at most | 10 ms | 20 ms | 40 ms | 80 ms | 160 ms | 320 ms | 500 ms |"
    // page: docs/concepts/backoff.md "| at least | 5 ms | 10 ms | 20 ms | 40 ms | 80 ms | 160 ms | 250 ms |"
    #[test]
    fn delays_are_those_of_the_page() {
        let delays = |random| (0..8).map(|attempt| delay(attempt, random).as_micros()).collect::<Vec<_>>();
        assert_eq!(delays(0), [5000, 10_000, 20_000, 40_000, 80_000, 160_000, 250_000, 250_000]);
        let most: Vec<_> = delays(u64::MAX).iter().map(|micros| micros.div_ceil(1000)).collect();
        assert_eq!(most, [10, 20, 40, 80, 160, 320, 500, 500]);
    }

    #[test]
    fn delays_grow_to_a_bound_and_never_vanish() {
        for attempt in 0..=u8::MAX {
            for random in [0, u64::MAX / 2, u64::MAX] {
                let delay = delay(attempt, random);
                assert!(delay >= FIRST / 2 && delay <= LONGEST, "{attempt}: {delay:?}");
            }
        }
        assert!(delay(9, u64::MAX) > delay(0, u64::MAX));
    }
}
