//! What checks are written with: clients, names, periods, and waiting that ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::future::poll_immediate;
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::engine::Capability;
use tenure_core::{ClaimId, ErrorKind, Name, Settings, Tenure};

use crate::Setup;
use crate::actor::Actor;
use crate::direct::Direct;
use crate::form::{Held, Lock, Wait};

/// A ttl that does not end while a check runs.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// A ttl whose end a check waits for: several times what a busy machine may be late.
pub(crate) const SHORT: Duration = Duration::from_millis(400);
/// How often a check looks again for what makes no event.
const LOOK: Duration = Duration::from_millis(5);

/// What every check has at hand.
impl dyn Setup {
    /// Connects a new client.
    pub(crate) async fn client(&self) -> Tenure {
        let connected = Tenure::connect_with(self.connector(), Settings::default());
        self.within("a client connects", connected).await.expect("a client connects")
    }

    /// Connects a new client whose engine the check drives by itself.
    pub(crate) async fn direct(&self) -> Direct {
        let connected = Direct::connect(self.connector(), self.patience());
        self.within("an engine connects", connected).await
    }

    /// Starts a second party: a process, where the engine reaches that far.
    pub(crate) async fn actor(&self) -> Actor {
        Actor::start(self, self.capability().await.reach).await
    }

    /// Returns what the engine can do.
    pub(crate) async fn capability(&self) -> Capability {
        self.client().await.capability().clone()
    }

    /// Returns a ttl that the engine takes, of at least `wanted`.
    pub(crate) async fn ttl(&self, wanted: Duration) -> Duration {
        ttl_of(&self.capability().await, wanted)
    }

    /// Returns how often processes take turns in a check that wants `many` rounds: fewer where each of them has to wait
    /// for a heartbeat, which takes seconds.
    pub(crate) async fn rounds(&self, many: usize) -> usize {
        if self.capability().await.tells_waiters { many } else { (many / 6).max(3) }
    }

    /// Whether the engine can do what a check is about; if not, the skip is noted.
    pub(crate) async fn can(&self, check: &str, what: &str, can: impl FnOnce(&Capability) -> bool) -> bool {
        let can = can(&self.capability().await);
        if !can {
            note_skip(&format!("{check}: the engine has no {what}"));
        }
        can
    }

    /// Waits for something that must come.
    pub(crate) async fn within<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        within(self.patience(), what, work).await
    }

    /// Looks again and again until something has come true that makes no event.
    pub(crate) async fn eventually(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        let until = now() + self.patience();
        while !is_so().await {
            assert!(now() < until, "never came true: {what}");
            pause(LOOK).await;
        }
    }

    /// Queues for what is held, and returns when the engine has told the place, or tells others of a waiter.
    pub(crate) async fn queue(&self, lock: impl Into<Lock>) -> Pin<Box<Wait>> {
        let mut waiting = Box::pin(lock.into().acquire());
        // Of others that were dropped just now, some may not have left yet: ours is one that was not there before.
        let before = match &*waiting {
            Wait::Acquire(_) => Vec::new(),
            Wait::Other(whose, _) => claims_waiting(&whose.client, &whose.name).await,
        };
        assert!(poll_immediate(&mut waiting).await.is_none(), "a claim is not granted in no time");
        self.eventually("a waiter has its place", async || match &*waiting {
            Wait::Acquire(acquire) => acquire.place().is_some(),
            Wait::Other(whose, _) => {
                let now = claims_waiting(&whose.client, &whose.name).await;
                now.iter().any(|claim| !before.contains(claim))
            }
        })
        .await;
        waiting
    }

    /// Takes what must be free or come free.
    pub(crate) async fn take(&self, lock: impl Into<Lock>) -> Held {
        self.within("the claim is granted", lock.into().acquire()).await.expect("the claim is granted")
    }

    /// Tries a lock once.
    pub(crate) async fn try_take(&self, lock: impl Into<Lock>) -> Option<Held> {
        let lock = lock.into();
        self.within("a try is answered", lock.try_acquire()).await.expect("a try is answered")
    }

    /// Asserts that nobody holds or waits, once what is under way has arrived, and that the name is free; the
    /// same of all names that begin with it.
    pub(crate) async fn assert_nothing_is_left(&self, name: &str) {
        let client = self.client().await;
        self.eventually(&format!("nothing of {name:?} is left"), async || {
            client.inspect(name).await.expect("an inspection is answered").is_empty()
        })
        .await;
        // A request that its sender has dropped may arrive even now, and is taken back then.
        let mut lease = None;
        self.eventually("what is left by all is free", async || {
            let tried = self.within("a try is answered", client.mutex(name).try_acquire()).await;
            lease = match tried {
                // It has just arrived, and is of another kind.
                Err(error) if error.kind() == ErrorKind::Conflict => None,
                tried => tried.expect("a try is answered"),
            };
            lease.is_some()
        })
        .await;
        let lease = lease.expect("it was granted");
        self.within("a release", lease.release()).await.expect("a release is answered");
    }
}

/// Returns which claims wait for a name.
async fn claims_waiting(client: &Tenure, name: &str) -> Vec<ClaimId> {
    let view = client.view(name).await.expect("a look is answered");
    view.map_or_else(Vec::new, |view| view.waiters.iter().map(|waiter| waiter.claim).collect())
}

/// Returns how many claims wait for a name.
pub(crate) async fn waiters(client: &Tenure, name: &str) -> u32 {
    let view = client.view(name).await.expect("a look is answered");
    view.map_or(0, |view| view.waiting)
}

/// Returns a ttl that an engine takes, of at least `wanted`.
pub(crate) fn ttl_of(capability: &Capability, wanted: Duration) -> Duration {
    let grain = capability.ttl_grain.max(Duration::from_millis(1)).as_millis();
    let millis = wanted.max(capability.ttl_min).as_millis().div_ceil(grain) * grain;
    Duration::from_millis(millis as u64).min(capability.ttl_max)
}

/// Returns a name that no other check uses, even if it shares the store.
pub(crate) fn name(stem: &str) -> String {
    format!("{stem}-{:016x}", SystemClock.random())
}

/// As [`name`], for an engine that a check drives by itself.
pub(crate) fn resource(stem: &str) -> Name {
    Name::new(&name(stem)).expect("a short stem makes a good name")
}

/// Returns this machine's time, the same in all its processes.
pub(crate) fn now() -> Instant {
    SystemClock.now()
}

/// Asserts that at least `period` has passed since `start`, but for what clocks differ.
#[track_caller]
pub(crate) fn assert_passed(start: Instant, period: Duration, what: &str) {
    let passed = now().since(start);
    let least = period.saturating_sub(period / 100 + Duration::from_millis(2));
    assert!(passed >= least, "too early: {what} after {passed:?}, not before {period:?}");
}

/// Lets time pass.
pub(crate) async fn pause(period: Duration) {
    #[allow(clippy::disallowed_methods, reason = "a check waits for the end of a period of the real store")]
    let timer = {
        let _context = timers().enter();
        tokio::time::sleep(period)
    };
    timer.await;
}

/// Waits for something that must come within a period.
pub(crate) async fn within<T>(patience: Duration, what: &str, work: impl Future<Output = T>) -> T {
    let bounded = {
        let _context = timers().enter();
        tokio::time::timeout(patience, work)
    };
    match bounded.await {
        Ok(done) => done,
        Err(_) => panic!("not within {patience:?}: {what}"),
    }
}

/// Runs timers for whatever executor a check runs on.
fn timers() -> &'static tokio::runtime::Handle {
    static TIMERS: OnceLock<tokio::runtime::Handle> = OnceLock::new();
    TIMERS.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime without I/O needs nothing that could be missing");
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        handle
    })
}

/// Notes that a check does not apply: on standard error, past the capture of the test harness, and in the file
/// that the environment names.
fn note_skip(why: &str) {
    use std::io::Write;
    let line = format!("skipped {why}\n");
    // Nobody may be listening, and then nobody counts.
    std::io::stderr().write_all(line.as_bytes()).ok();
    if let Some(path) = std::env::var_os("TENURE_CONFORMANCE_SKIPS") {
        let file = std::fs::File::options().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the skip is counted");
    }
}
