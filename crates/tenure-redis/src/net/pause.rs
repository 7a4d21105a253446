//! Waiting between two attempts.

use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock};

/// The first delay: a dropped connection is usually back within it.
const FIRST: Duration = Duration::from_millis(10);
/// The longest delay: a server that is back is noticed within this.
const LONGEST: Duration = Duration::from_secs(1);

/// Waits before repetition number `attempt` (0 is the first).
///
/// The length is spread between half of the delay and all of it, so that a server that comes back is not met by
/// all of its clients at once.
pub(crate) async fn before(attempt: u32) {
    sleep(delay(attempt, LONGEST, SystemClock.random())).await;
}

/// As `before`, and never longer than `longest`.
pub async fn briefly(attempt: u32, longest: Duration) {
    sleep(delay(attempt, longest, SystemClock.random())).await;
}

/// Waits.
pub async fn sleep(period: Duration) {
    #[allow(
        clippy::disallowed_methods,
        reason = "connections live on real networks; nothing here is a deadline of a lease"
    )]
    tokio::time::sleep(period).await;
}

fn delay(attempt: u32, longest: Duration, random: u64) -> Duration {
    let whole = FIRST.saturating_mul(1 << attempt.min(10)).min(longest);
    whole / 2 + (whole / 2).mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    // page: docs/concepts/backoff.md "| a client reconnects to Redis | 10 ms | 1 s |"
    #[test]
    fn delays_double_from_10_ms_to_1_s() {
        let most = |attempt| delay(attempt, LONGEST, u64::MAX).as_micros().div_ceil(1000);
        let most: Vec<_> = (0..9).map(most).collect();
        assert_eq!(most, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    }

    #[test]
    fn delays_grow_to_a_bound_and_never_vanish() {
        for attempt in 0..40 {
            for random in [0, u64::MAX / 2, u64::MAX] {
                let delay = delay(attempt, LONGEST, random);
                assert!(delay >= FIRST / 2 && delay <= LONGEST, "{attempt}: {delay:?}");
            }
        }
        assert!(delay(9, LONGEST, 0) > delay(0, LONGEST, u64::MAX));
    }
}
