//! The only source of time, waiting and randomness.
//!
//! Two times never meet. [`Timestamp`] is a *store's* time: tokens and the ends of holds are computed from it, by
//! the store. [`Instant`] is *this machine's* time since its boot: deadlines are computed from it, by the client,
//! from the moment a request was sent. The two are never compared, so clocks need not agree. The system's clock is
//! `CLOCK_BOOTTIME`: it goes on while the machine sleeps, so that a laptop or a paused virtual machine wakes up
//! knowing that its leases are lost (`CLOCK_MONOTONIC` would not).

use std::fmt;
use std::ops::{Add, Sub};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A moment on a store's clock, in microseconds since 1970 as that store sees it.
///
/// No example: it is made by stores, and told to users as a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Wraps microseconds since 1970.
    pub const fn from_micros(micros: u64) -> Timestamp {
        Timestamp(micros)
    }

    /// Returns the microseconds since 1970.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Returns how long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, period: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(period.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// A moment on this machine's clock, in nanoseconds since its boot, sleep included.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("instant-example").await?;
/// # let lease = tenure.mutex("billing/4711").acquire().await?;
/// use std::time::Duration;
/// use tenure_core::clock::{Clock, SystemClock};
///
/// // How long is left, on this machine's clock.
/// let left = lease.deadline().since(SystemClock.now());
/// assert!(left <= Duration::from_secs(30));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The moment that never comes.
    pub const NEVER: Instant = Instant(u64::MAX);

    /// Wraps nanoseconds since the boot.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Returns the nanoseconds since the boot.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Returns how long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, period: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(period.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, period: Duration) -> Instant {
        Instant(self.0.saturating_sub(u64::try_from(period.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Where time, waiting and randomness come from.
///
/// # Examples
/// ```
/// use tenure_core::clock::{Clock, SystemClock};
///
/// let began = SystemClock.now();
/// println!("it took {:?}", SystemClock.now().since(began));
/// ```
pub trait Clock: Send + Sync + 'static {
    /// Returns the time of this machine.
    fn now(&self) -> Instant;

    /// Returns the time of day, which may be wrong and may step. Only tokens and people use it.
    fn time_of_day(&self) -> Timestamp;

    /// Returns 64 random bits.
    fn random(&self) -> u64;

    /// Makes something to wait with. It must be used on the thread of a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// What the system says when it has no more timers (file descriptors).
    fn timer(&self) -> std::io::Result<Box<dyn Timer>>;
}

/// Waits for a moment of its [`Clock`].
///
/// No example: [`Clock::timer`] makes it, and the thread of a client polls it.
pub trait Timer: Send {
    /// Returns ready once `at` has come. A later call may name another moment.
    fn poll_until(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()>;
}

/// The clocks and the randomness of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        let now = clock_gettime(if mutant!("wall-clock") { ClockId::Realtime } else { ClockId::Boottime });
        Instant(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    fn time_of_day(&self) -> Timestamp {
        let now = clock_gettime(ClockId::Realtime);
        Timestamp(now.tv_sec.max(0) as u64 * 1_000_000 + now.tv_nsec as u64 / 1000)
    }

    fn random(&self) -> u64 {
        // Seeded per thread from the process's random hasher keys; ids need to be unique, not secret.
        fastrand::u64(..)
    }

    fn timer(&self) -> std::io::Result<Box<dyn Timer>> {
        // CLOCK_BOOTTIME, so that the first thing that happens after a suspend is the loss of what ended.
        let clock = if mutant!("wall-clock") { TimerfdClockId::Realtime } else { TimerfdClockId::Boottime };
        let fd = timerfd_create(clock, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[allow(deprecated, reason = "an OwnedFd inside stays open for as long as it is registered")]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Box::new(SystemTimer { fd, armed: Instant::NEVER }))
    }
}

struct SystemTimer {
    fd: AsyncFd<OwnedFd>,
    /// When the timer fires. It is set anew only for an earlier moment: firing early costs one more poll, and a
    /// system call for each change of plan would cost more.
    armed: Instant,
}

impl SystemTimer {
    fn arm(&mut self, at: Instant) {
        let value = Timespec {
            tv_sec: i64::try_from(at.0 / 1_000_000_000).unwrap_or(i64::MAX),
            // Zero would disarm it, and a moment in the past fires at once.
            tv_nsec: ((at.0 % 1_000_000_000).max(1)) as i64,
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)
            .expect("a timer descriptor that is open takes any moment");
        self.armed = at;
    }
}

impl Timer for SystemTimer {
    fn poll_until(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if SystemClock.now() >= at {
            return Poll::Ready(());
        }
        if at < self.armed {
            self.arm(at);
        }
        loop {
            let Poll::Ready(ready) = self.fd.poll_read_ready(cx) else { return Poll::Pending };
            let mut count = [0; 8];
            if rustix::io::read(self.fd.get_ref(), &mut count).is_ok() {
                self.armed = Instant::NEVER;
            }
            if let Ok(mut ready) = ready {
                ready.clear_ready();
            }
            if SystemClock.now() >= at {
                return Poll::Ready(());
            }
            if self.armed == Instant::NEVER {
                self.arm(at);
            }
        }
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after boot", Duration::from_nanos(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_machine_counts_from_its_boot_and_not_from_the_time_of_day() {
        let since_boot = || {
            let now = clock_gettime(ClockId::Boottime);
            Instant(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
        };
        let (before, now, after) = (since_boot(), SystemClock.now(), since_boot());
        assert!(before <= now && now <= after, "{now}, between {before} and {after}");
    }
}
