//! Durations at the edge: whole milliseconds, and no moments, since the clocks of two machines differ.

use std::time::Duration;

use tenure_core::clock::{Clock, Instant, SystemClock};

/// A duration as it is sent; rounded down, so that a deadline is never later than it is.
pub(crate) fn millis(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX)
}

/// How long it is until a deadline, and until the holder should renew: thrice before its end.
pub(crate) fn left(deadline: Instant) -> (u64, u64) {
    let left = millis(deadline.since(SystemClock.now()));
    (left, left / 3)
}
