//! The times of this machine, as deadlines and people need them.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use tenure::Instant;

/// Returns the time on the clock of all deadlines, which goes on while the machine sleeps.
pub(crate) fn now() -> Instant {
    let now = clock_gettime(ClockId::Boottime);
    Instant::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Returns the time of day, for people.
pub(crate) fn time_of_day() -> SystemTime {
    let now = clock_gettime(ClockId::Realtime);
    SystemTime::UNIX_EPOCH + Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec as u32)
}

/// Waits, on a thread on which nothing else has to be done. A signal that is caught does not shorten it.
pub(crate) fn rest(time: Duration) {
    let until = now() + time;
    loop {
        let left = until.since(now());
        if left.is_zero() {
            return;
        }
        let left =
            rustix::time::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // It ends early at a signal, and has no other error.
        let _ = rustix::thread::nanosleep(&left);
    }
}
