//! The clocks of a world. Its time is that of a paused runtime: it moves on when nothing is left to be done.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::clock::{Clock, Instant, Timer, Timestamp};
use tokio::time::{Sleep, sleep_until};

/// What every clock of a world that is right shows as the time of day when the world begins, in microseconds.
const EPOCH: u64 = 1_800_000_000_000_000;

/// The time of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time(tokio::time::Instant);

impl Time {
    /// Begins a world, on its runtime.
    pub(crate) fn begin() -> Time {
        Time(tokio::time::Instant::now())
    }

    /// Returns the nanoseconds since the world began.
    pub(crate) fn now(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    pub(crate) async fn until(self, moment: u64) {
        tokio::time::sleep_until(self.0 + Duration::from_nanos(moment)).await;
    }

    pub(crate) async fn sleep(self, period: Duration) {
        self.until(self.now() + period.as_nanos() as u64).await;
    }

    /// Returns the time of day by a clock that is so many millionths too fast and so many microseconds ahead.
    pub(crate) fn of_day(self, rate: i64, ahead: i64) -> u64 {
        let micros = (self.now() / 1000) as i64;
        (EPOCH as i64 + micros + micros / 1000 * rate / 1000 + ahead) as u64
    }
}

/// The clocks of a client's machine, which may stand still with it.
pub(crate) struct ClientClock {
    pub(crate) time: Time,
    /// How much faster than the world's time it runs, in millionths.
    rate: i64,
    /// How far the time of day is ahead, in microseconds.
    ahead: AtomicI64,
    paused_until: AtomicU64,
    random: Mutex<fastrand::Rng>,
}

impl ClientClock {
    pub(crate) fn new(time: Time, rate: i64, seed: u64) -> Arc<ClientClock> {
        Arc::new(ClientClock {
            time,
            rate,
            ahead: AtomicI64::new(0),
            paused_until: AtomicU64::new(0),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
        })
    }

    /// Stops the machine. What it waits for comes when it goes on.
    pub(crate) fn pause(&self, period: Duration) {
        self.paused_until.fetch_max(self.time.now() + period.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn paused_until(&self) -> u64 {
        self.paused_until.load(Ordering::Relaxed)
    }

    /// Sets the time of day, in microseconds ahead of what is right.
    pub(crate) fn set_ahead(&self, micros: i64) {
        self.ahead.store(micros, Ordering::Relaxed);
    }

    fn shown(&self) -> u64 {
        let now = self.time.now() as i64;
        (3_600_000_000_000 + now + now / 1_000_000 * self.rate) as u64
    }

    /// Returns how much of the world's time passes while so much passes here.
    pub(crate) fn in_world(&self, period: Duration) -> Duration {
        period.mul_f64(1.0 / (1.0 + self.rate as f64 / 1e6))
    }

    pub(crate) async fn sleep(self: &Arc<Self>, period: Duration) {
        let until = self.now() + period;
        let mut timer = ClientTimer { clock: Shared(self.clone()), sleep: None };
        poll_fn(|cx| timer.poll_until(until, cx)).await;
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.shown())
    }
}

/// What a world gives to a client as its clock.
#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Arc<ClientClock>);

impl Clock for Shared {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn time_of_day(&self) -> Timestamp {
        Timestamp::from_micros(self.0.time.of_day(self.0.rate, self.0.ahead.load(Ordering::Relaxed)))
    }

    fn random(&self) -> u64 {
        self.0.random.lock().unwrap_or_else(PoisonError::into_inner).u64(..)
    }

    fn timer(&self) -> std::io::Result<Box<dyn Timer>> {
        Ok(Box::new(ClientTimer { clock: self.clone(), sleep: None }))
    }
}

struct ClientTimer {
    clock: Shared,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer for ClientTimer {
    fn poll_until(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let clock = &self.clock.0;
        loop {
            let (now, missing) = (clock.time.now(), at.since(clock.now()));
            let until = match () {
                () if at == Instant::NEVER => return Poll::Pending,
                () if missing.is_zero() => clock.paused_until(),
                () => (now + clock.in_world(missing).as_nanos() as u64 + 1).max(clock.paused_until()),
            };
            if until <= now {
                return Poll::Ready(());
            }
            let moment = clock.time.0 + Duration::from_nanos(until);
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(moment)));
            if sleep.deadline() != moment || sleep.is_elapsed() {
                sleep.as_mut().reset(moment);
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
