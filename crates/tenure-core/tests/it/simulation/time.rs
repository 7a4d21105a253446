//! Time that passes only when nothing is left to be done: the machine on which all of a world runs.
//!
//! Every task of a world, those of the clients included, runs on one thread. When all of them wait, the time moves on to the next
//! moment for which one waits. So a minute costs what is done in it, and the same seed gives the same order of everything.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::clock::{Clock, Instant, Timer, Timestamp};

/// The time of a world, in nanoseconds, and who waits for which moment of it.
#[derive(Clone)]
pub(crate) struct Time(Arc<Mutex<State>>);

struct State {
    now: u64,
    /// By moment, and of one moment in the order in which they came.
    sleepers: BTreeMap<(u64, u64), Waker>,
    next_sleeper: u64,
    random: fastrand::Rng,
    /// Who drives the world, and is told when it is broken.
    driver: Option<Waker>,
    broken: Option<String>,
}

impl Time {
    pub(crate) fn new(seed: u64) -> Time {
        Time(Arc::new(Mutex::new(State {
            now: 3_600_000_000_000,
            sleepers: BTreeMap::new(),
            next_sleeper: 0,
            random: fastrand::Rng::with_seed(seed),
            driver: None,
            broken: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> u64 {
        self.state().now
    }

    /// Draws from the world's one source of randomness.
    pub(crate) fn random<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.state().random)
    }

    /// Ends the world, whoever has found that it is broken.
    pub(crate) fn fail(&self, why: String) {
        let mut state = self.state();
        state.broken.get_or_insert(why);
        if let Some(driver) = state.driver.take() {
            drop(state);
            driver.wake();
        }
    }

    /// Waits, outside of every node.
    pub(crate) async fn sleep(&self, period: Duration) {
        let until = self.now() + period.as_nanos() as u64;
        let mut place = None;
        poll_fn(|cx| self.poll_until(until, &mut place, cx)).await;
    }

    fn poll_until(&self, until: u64, place: &mut Option<(u64, u64)>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if let Some(place) = place.take() {
            state.sleepers.remove(&place);
        }
        if state.now >= until {
            return Poll::Ready(());
        }
        if until != u64::MAX {
            state.next_sleeper += 1;
            let at = (until, state.next_sleeper);
            state.sleepers.insert(at, cx.waker().clone());
            *place = Some(at);
        }
        Poll::Pending
    }

    /// Nothing can be done now: the next moment comes.
    fn go_on(&self) {
        let mut state = self.state();
        let Some((&(next, _), _)) = state.sleepers.first_key_value() else {
            drop(state);
            return self.fail("everything waits, and nothing will ever happen again".to_owned());
        };
        state.now = state.now.max(next);
        let later = state.sleepers.split_off(&(next, u64::MAX));
        let due = std::mem::replace(&mut state.sleepers, later);
        // Those who slept may be gone. Then nothing runs but the driver, and the next moment comes.
        let driver = state.driver.clone();
        drop(state);
        due.into_values().chain(driver).for_each(Waker::wake);
    }

    /// Runs a world to its end.
    ///
    /// # Panics
    /// The world is broken.
    pub(crate) fn run<T>(&self, world: impl Future<Output = T>) -> T {
        let time = self.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .on_thread_park(move || time.go_on())
            .build()
            .expect("a runtime without I/O");
        let mut world = pin!(world);
        runtime.block_on(poll_fn(|cx| {
            let mut state = self.state();
            state.driver = Some(cx.waker().clone());
            drop(state);
            let polled = world.as_mut().poll(cx);
            // After it: what the world finds at its very end is found as well.
            let broken = self.state().broken.take();
            if let Some(broken) = broken {
                panic!("{broken}");
            }
            polled
        }))
    }
}

/// The clock of one machine of a world: it may be fast or slow, show a wrong time of day, and stand still with its machine.
pub(crate) struct NodeClock {
    pub(crate) time: Time,
    /// How much faster than the world's time it runs, in millionths.
    rate: i64,
    /// What is added to what it shows, in nanoseconds.
    offset: AtomicI64,
    /// Until when its machine does nothing.
    paused_until: AtomicU64,
    random: Mutex<fastrand::Rng>,
}

impl NodeClock {
    pub(crate) fn new(time: &Time, rate: i64) -> Arc<NodeClock> {
        let seed = time.random(|random| random.u64(..));
        Arc::new(NodeClock {
            time: time.clone(),
            rate,
            offset: AtomicI64::new(0),
            paused_until: AtomicU64::new(0),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
        })
    }

    /// Stops the machine. What it waits for comes when it goes on.
    pub(crate) fn pause(&self, period: Duration) {
        self.paused_until.fetch_max(self.time.now() + period.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Sets the clock forward or back, in nanoseconds.
    pub(crate) fn step(&self, nanos: i64) {
        self.offset.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn paused_until(&self) -> u64 {
        self.paused_until.load(Ordering::Relaxed)
    }

    /// Lets time pass on this machine.
    pub(crate) async fn sleep(self: &Arc<NodeClock>, period: Duration) {
        let until = self.now() + period;
        let mut timer = NodeTimer { clock: self.clone(), place: None };
        poll_fn(|cx| timer.poll_until(until, cx)).await;
    }

    /// Draws how late the machine notices that a moment has come: mostly at once, and sometimes it is busy.
    fn lateness(&self) -> u64 {
        self.time.random(|random| if random.u8(..8) == 0 { random.u64(..20_000_000) } else { 0 })
    }

    fn shown(&self, now: u64) -> u64 {
        let now = now as i64;
        (now + now / 1_000_000 * self.rate + self.offset.load(Ordering::Relaxed)).max(0) as u64
    }

    /// Returns a moment of the world's time at which the clock has come to this, or a little before it.
    fn until(&self, shown: u64) -> u64 {
        let missing = shown.saturating_sub(self.shown(self.time.now()));
        self.time.now() + missing.saturating_sub(missing / 1_000_000 * self.rate.max(0) as u64).max(1)
    }
}

/// What a world gives to a client as its clock.
#[derive(Clone)]
pub(crate) struct SharedClock(pub(crate) Arc<NodeClock>);

impl Clock for SharedClock {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn time_of_day(&self) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000 + self.0.now().nanos() / 1000)
    }

    fn random(&self) -> u64 {
        self.0.random.lock().unwrap_or_else(PoisonError::into_inner).u64(..)
    }

    fn timer(&self) -> std::io::Result<Box<dyn Timer>> {
        Ok(Box::new(NodeTimer { clock: self.0.clone(), place: None }))
    }
}

impl NodeClock {
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.shown(self.time.now()))
    }
}

struct NodeTimer {
    clock: Arc<NodeClock>,
    place: Option<(u64, u64)>,
}

impl Timer for NodeTimer {
    fn poll_until(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let clock = &self.clock;
        let is_due = clock.now() >= at;
        let until = match () {
            _ if at == Instant::NEVER => u64::MAX,
            _ if is_due => clock.paused_until(),
            _ => clock.until(at.nanos()).max(clock.paused_until()) + clock.lateness(),
        };
        clock.time.poll_until(until, &mut self.place, cx)
    }
}

impl Drop for NodeTimer {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.clock.time.state().sleepers.remove(&place);
        }
    }
}
