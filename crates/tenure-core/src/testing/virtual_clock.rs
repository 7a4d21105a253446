//! A clock that a test moves.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::{Clock, Instant, Timer, Timestamp};

/// A clock that stands until it is moved, with randomness from a seed.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tenure_core::testing::virtual_clock::VirtualClock;
/// use tenure_core::{Settings, Tenure, memory::Store};
///
/// let clock = Arc::new(VirtualClock::new(7));
/// let engine = Store::new(clock.clone()).connector();
/// let tenure = Tenure::start(engine, clock.clone(), Settings::new()).await?;
/// let lease = tenure.mutex("billing/4711").max_hold(Duration::from_secs(60)).acquire().await?;
/// clock.advance(Duration::from_secs(61));
/// assert!(lease.is_lost());
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
pub struct VirtualClock(Arc<Mutex<State>>);

struct State {
    now: Instant,
    time_of_day: Timestamp,
    random: fastrand::Rng,
    /// The tasks that wait, and for which moment. A timer has at most one place.
    sleepers: Vec<(u64, Instant, Waker)>,
    next_timer: u64,
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl VirtualClock {
    /// Makes a clock that shows one hour after boot, and a fixed day.
    pub fn new(seed: u64) -> VirtualClock {
        VirtualClock(Arc::new(Mutex::new(State {
            now: Instant::default() + Duration::from_secs(3600),
            time_of_day: Timestamp::from_micros(1_800_000_000_000_000),
            random: fastrand::Rng::with_seed(seed),
            sleepers: Vec::new(),
            next_timer: 0,
        })))
    }

    /// Moves the clock forward, as time passes or as the machine wakes from a suspend, and wakes the tasks that
    /// waited for a moment up to then.
    pub fn advance(&self, period: Duration) {
        let woken: Vec<Waker> = {
            let mut state = self.lock();
            state.now = state.now + period;
            state.time_of_day = state.time_of_day + period;
            let now = state.now;
            let (due, later) = std::mem::take(&mut state.sleepers).into_iter().partition(|s| s.1 <= now);
            state.sleepers = later;
            due.into_iter().map(|(_, _, waker)| waker).collect()
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Returns the next moment for which a timer waits.
    pub fn next_timer(&self) -> Option<Instant> {
        self.lock().sleepers.iter().map(|sleeper| sleeper.1).min()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        self.lock().now
    }

    fn time_of_day(&self) -> Timestamp {
        self.lock().time_of_day
    }

    fn random(&self) -> u64 {
        self.lock().random.u64(..)
    }

    fn timer(&self) -> std::io::Result<Box<dyn Timer>> {
        let mut state = self.lock();
        state.next_timer += 1;
        Ok(Box::new(VirtualTimer { clock: self.clone(), id: state.next_timer }))
    }
}

struct VirtualTimer {
    clock: VirtualClock,
    id: u64,
}

impl Timer for VirtualTimer {
    fn poll_until(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.clock.lock();
        state.sleepers.retain(|sleeper| sleeper.0 != self.id);
        if state.now >= at {
            return Poll::Ready(());
        }
        if at != Instant::NEVER {
            state.sleepers.push((self.id, at, cx.waker().clone()));
        }
        Poll::Pending
    }
}

impl Drop for VirtualTimer {
    fn drop(&mut self) {
        self.clock.lock().sleepers.retain(|sleeper| sleeper.0 != self.id);
    }
}
