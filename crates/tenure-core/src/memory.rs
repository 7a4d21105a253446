//! The engine `memory:`: the model itself, inside one process. For tests, and for programs that want the same
//! primitives within themselves.
//!
//! Clients that name the same store contend with each other. What is held is gone with the process.

mod queues;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio::sync::{mpsc, watch};

use crate::client::settings::Settings;
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::engine::queue::QueueCapability;
use crate::engine::{
    BlockingEngine, BreakAnswer, Capability, ClaimAnswer, Connect, DynQueueEngine, Engine, Finding,
    Incarnation, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, Shard, Wake, WithdrawAnswer,
    WithdrawRequest, claim_answer, renew_answer,
};
use crate::error::{Error, ErrorKind, Result};
use crate::face::tenure::Tenure;
use crate::model::claim::{Claim, ClaimId, ClientId, Keep, Name};
use crate::model::inspect::{View, inspect, shows_the_same};
use crate::model::queue::record::PlainQueue;
use crate::model::record::PlainRecord;
use crate::model::step::{
    Break, Command, Publish, Release, Renew, Resize, Settle, Withdraw, Woken, forget_at, step,
};
use crate::model::token::Token;

/// The engine's one word.
const NAME: &str = "memory";

/// Connects with the store of this name in this process, on the clock of this machine.
///
/// # Errors
/// As [`Tenure::start`].
pub async fn connect(store: &str) -> Result<Tenure> {
    Tenure::connect_with(Store::named(store).connector(), Settings::default()).await
}

/// A command that is about to be carried out, and what a test may change of it.
///
/// No example: for tests of clients on a store that fails.
#[derive(Debug)]
pub enum Verb<'a> {
    /// A claim.
    Claim(&'a Claim),
    /// A renewal.
    Renew(ClaimId),
    /// A release.
    Release(&'a mut Release),
    /// A withdrawal.
    Withdraw(&'a mut Withdraw),
    /// A publication.
    Publish(&'a mut Publish),
    /// A break.
    Break(&'a mut Break),
    /// Another capacity.
    Resize(u32),
}

/// What a test may do to a store's work, to see its checks fail.
///
/// No example: for tests of clients on a store that fails.
pub trait Flaw: Send + Sync + 'static {
    /// Changes what is about to be done.
    fn before(&self, record: &mut PlainRecord, verb: Verb<'_>) {
        let _ = (record, verb);
    }

    /// Changes what was done.
    fn after(&self, record: &mut PlainRecord, wakes: &mut Vec<Woken>) {
        let _ = (record, wakes);
    }

    /// Which of the store's servers a resource or a queue is on.
    fn shard(&self, resource: &Name) -> Shard {
        let _ = resource;
        Shard::default()
    }

    /// Whether a verb is never answered: "claim", "renew", "heartbeat", "release", "push", "take" or "settle". A call that asks
    /// for one such thing answers nothing at all.
    fn hangs(&self, verb: &'static str, resource: &Name) -> bool {
        let _ = (verb, resource);
        false
    }

    /// How long the store says that its queues may take to answer.
    fn answer_max(&self) -> Duration {
        Duration::ZERO
    }
}

/// The records that clients share.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// use tenure_core::memory::Store;
/// use tenure_core::{Settings, Tenure};
///
/// // Whoever names it shares it.
/// let engine = Store::named("store-example").connector();
/// let tenure = Tenure::connect_with(engine, Settings::new()).await?;
/// # drop(tenure);
/// # Ok(()) }) }
/// ```
pub struct Store {
    clock: Arc<dyn Clock>,
    /// What is added to the clock, so that tokens look like times of day.
    epoch: Duration,
    incarnation: AtomicU64,
    flaw: Option<Arc<dyn Flaw>>,
    state: Mutex<State>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    /// The clock may: then it is not enough to keep the tokens growing.
    may_go_back: bool,
    records: BTreeMap<Name, PlainRecord>,
    /// When to check whether an idle record may be forgotten.
    idle: BTreeSet<(Timestamp, Name)>,
    inboxes: HashMap<ClientId, mpsc::UnboundedSender<Wake>>,
    observers: HashMap<Name, watch::Sender<()>>,
    queues: BTreeMap<Name, PlainQueue>,
}

/// What a store remembered at one moment.
///
/// No example: for tests of clients on a store that fails.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    records: BTreeMap<Name, PlainRecord>,
    queues: BTreeMap<Name, PlainQueue>,
}

impl Store {
    /// Makes a store of its own, on a clock that may be virtual.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Store> {
        Store::with_flaw(clock, None)
    }

    /// As [`Store::new`], on a clock that may be set back by less than an hour.
    pub fn on_wall_clock(clock: Arc<dyn Clock>) -> Arc<Store> {
        let store = Store::new(clock);
        store.state().may_go_back = true;
        store
    }

    /// Makes a store that does not keep its promises, for tests of tests.
    pub fn with_flaw(clock: Arc<dyn Clock>, flaw: Option<Arc<dyn Flaw>>) -> Arc<Store> {
        let since_boot = Duration::from_nanos(clock.now().nanos());
        let epoch = Duration::from_micros(clock.time_of_day().micros()).saturating_sub(since_boot);
        let incarnation = AtomicU64::new(clock.random());
        Arc::new(Store { clock, epoch, incarnation, flaw, state: Mutex::default() })
    }

    /// Returns the store of this name in this process. It lives as long as it is in use.
    pub fn named(name: &str) -> Arc<Store> {
        static STORES: OnceLock<Mutex<HashMap<String, Weak<Store>>>> = OnceLock::new();
        let stores = STORES.get_or_init(Mutex::default);
        let mut stores = stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return store;
        }
        let store = Store::new(Arc::new(SystemClock));
        stores.insert(name.to_owned(), Arc::downgrade(&store));
        store
    }

    /// Returns what connects a client with this store.
    pub fn connector(self: Arc<Store>) -> Connect {
        Connect::new(NAME, async move |client| {
            let (sender, inbox) = mpsc::unbounded_channel();
            self.state().inboxes.insert(client, sender);
            let answer_max = self.flaw.as_ref().map_or(Duration::ZERO, |flaw| flaw.answer_max());
            Ok(Arc::new(Memory {
                store: self,
                client,
                inbox: Mutex::new(Some(inbox)),
                capability: Capability::of_step(),
                queues: QueueCapability { answer_max, ..QueueCapability::of_step() },
            }))
        })
    }

    /// Returns how many records are kept, for tests that look for leaks.
    pub fn records(&self) -> usize {
        self.state().records.len()
    }

    /// Returns how many records may still be needed, for tests that look for leaks.
    pub fn records_in_use(&self) -> usize {
        let now = self.now();
        let mut state = self.state();
        let may_go_back = state.may_go_back;
        let is_used = |record: &mut PlainRecord| {
            let Ok(_) = step(record, &Settle, now);
            let Ok(forget_at) = forget_at(record, !may_go_back, now);
            forget_at.is_none_or(|at| at > now)
        };
        state.records.values_mut().filter_map(|record| is_used(record).then_some(())).count()
    }

    /// Whether an item of a queue is handed out under this claim, for tests that compare what clients believe.
    pub fn is_delivered(&self, queue: &Name, claim: ClaimId) -> bool {
        let now = self.now();
        self.state().queues.get(queue).is_some_and(|queue| queue.is_handed_out(claim, now))
    }

    /// Returns what the store remembers now.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state();
        Snapshot { records: state.records.clone(), queues: state.queues.clone() }
    }

    /// Ends the store and starts it again, with what it remembered once or with nothing: what a server without
    /// durability does. Its clients learn that it may have forgotten.
    pub fn restart(&self, remembers: Option<Snapshot>) {
        self.incarnation.store(self.clock.random(), Ordering::Relaxed);
        let Snapshot { records, queues } = remembers.unwrap_or_default();
        let now = self.now();
        let mut state = self.state();
        (state.records, state.queues) = (records, queues);
        state.idle = state.records.keys().map(|resource| (now, resource.clone())).collect();
        let clients: BTreeSet<ClientId> = state.inboxes.keys().copied().collect();
        clients.into_iter().for_each(|client| state.send(client, Wake::RenewAll));
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Relaxed))
    }

    /// Returns how many observers follow a resource, for tests that look for leaks.
    pub fn observers(&self) -> usize {
        self.state().observers.values().map(watch::Sender::receiver_count).sum()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        let since_boot = Duration::from_nanos(self.clock.now().nanos());
        Timestamp::default() + self.epoch + since_boot
    }

    /// Carries out a command, which a flaw may see as a verb before.
    fn step<C: Command + Clone>(
        &self,
        resource: &Name,
        command: &C,
        verb: impl FnOnce(&mut C) -> Verb<'_>,
    ) -> C::Answer {
        let now = self.now();
        let mut state = self.state();
        let mut record = state.records.remove(resource).unwrap_or_default();
        let transition = match &self.flaw {
            None => step(&mut record, command, now),
            Some(flaw) => {
                let mut command = command.clone();
                flaw.before(&mut record, verb(&mut command));
                step(&mut record, &command, now).map(|mut transition| {
                    flaw.after(&mut record, &mut transition.wakes);
                    transition
                })
            }
        };
        let Ok(transition) = transition;
        state.keep(resource, record, now);
        state.forget_idle(now);
        for woken in transition.wakes {
            let wake = match woken.grant {
                Some(grant) => Wake::Granted { claim: woken.claim, grant, incarnation: self.incarnation() },
                None => Wake::Look(woken.claim),
            };
            state.send(woken.client, wake);
        }
        if let Some(observers) = state.observers.get(resource) {
            observers.send_replace(());
        }
        transition.answer
    }

    /// Answers a call, unless it hangs.
    async fn answer<R, A>(
        &self,
        requests: &[R],
        about: fn(&R) -> (&'static str, &Name),
        answer: impl Fn(&R) -> Result<A>,
    ) -> Vec<Result<A>> {
        let hangs = |flaw: &Arc<dyn Flaw>| {
            requests.iter().any(|request| {
                let (verb, resource) = about(request);
                flaw.hangs(verb, resource)
            })
        };
        if self.flaw.as_ref().is_some_and(hangs) {
            return std::future::pending().await;
        }
        requests.iter().map(answer).collect()
    }

    /// Reads one resource, at once. `None` if it is idle.
    pub fn view(&self, resource: &Name) -> Option<View> {
        let record = self.state().records.get(resource).cloned()?;
        let Ok(view) = inspect(resource, &record, self.now());
        view
    }
}

impl State {
    fn keep(&mut self, resource: &Name, record: PlainRecord, now: Timestamp) {
        let Ok(forget_at) = forget_at(&record, !self.may_go_back, now);
        match forget_at {
            Some(at) if at <= now => return,
            Some(at) => drop(self.idle.insert((at, resource.clone()))),
            None if record == PlainRecord::default() => return,
            None => {}
        }
        self.records.insert(resource.clone(), record);
    }

    /// Forgets what has been idle for long enough; two checks for each step keep up with what steps leave.
    fn forget_idle(&mut self, now: Timestamp) {
        for _ in 0..2 {
            let Some((at, resource)) = self.idle.pop_first() else { return };
            if at > now {
                self.idle.insert((at, resource));
                return;
            }
            if let Some(record) = self.records.remove(&resource) {
                self.keep(&resource, record, now);
            }
        }
    }

    fn send(&self, client: ClientId, wake: Wake) {
        if let Some(inbox) = self.inboxes.get(&client) {
            // A client that is gone has nothing to be woken for.
            inbox.send(wake).ok();
        }
    }
}

/// A client's view of a [`Store`].
struct Memory {
    store: Arc<Store>,
    client: ClientId,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Wake>>>,
    capability: Capability,
    queues: QueueCapability,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.store.state().inboxes.remove(&self.client);
    }
}

impl Engine for Memory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn shard(&self, resource: &Name) -> Shard {
        self.store.flaw.as_ref().map_or_else(Shard::default, |flaw| flaw.shard(resource))
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        self.store
            .answer(
                &claims,
                |claim: &Claim| ("claim", &claim.resource),
                |claim| BlockingEngine::claim(self, claim),
            )
            .await
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let renew = |request: &RenewRequest| {
            let renew = Renew(request.claim);
            let renewed = self.store.step(&request.resource, &renew, |renew| Verb::Renew(renew.0));
            Ok(renew_answer(request, renewed, self.store.incarnation()))
        };
        self.store
            .answer(
                &renewals,
                |request: &RenewRequest| {
                    (if request.is_waiter { "heartbeat" } else { "renew" }, &request.resource)
                },
                renew,
            )
            .await
    }

    async fn release(&self, releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        self.store
            .answer(
                &releases,
                |request: &ReleaseRequest| ("release", &request.resource),
                |release| BlockingEngine::release(self, release),
            )
            .await
    }

    async fn withdraw(&self, withdrawals: Vec<WithdrawRequest>) -> Vec<Result<WithdrawAnswer>> {
        let withdraw = |request: &WithdrawRequest| {
            Ok(self.store.step(&request.resource, &request.withdraw, |withdraw| Verb::Withdraw(withdraw)))
        };
        self.store
            .answer(&withdrawals, |request: &WithdrawRequest| ("release", &request.resource), withdraw)
            .await
    }

    async fn publish(&self, resource: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        Ok(self.store.step(&resource, &Publish { claim, bytes, keep }, |publish| Verb::Publish(publish)))
    }

    async fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> Result<Vec<View>> {
        let now = self.store.now();
        let state = self.store.state();
        let views = state
            .records
            .iter()
            .filter(|(name, _)| name.as_str().starts_with(&prefix) && after.as_ref() < Some(name))
            .filter_map(|(name, record)| {
                let Ok(view) = inspect(name, record, now);
                view
            });
        Ok(views.take(most).collect())
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        let store = self.store.clone();
        let changed = store.state().observers.entry(resource.clone()).or_default().subscribe();
        let first = None;
        let views = stream::unfold((store, changed, first), move |(store, mut changed, last)| {
            let resource = resource.clone();
            async move {
                let mut timer = store.clock.timer().ok()?;
                loop {
                    changed.mark_unchanged();
                    let view = store.view(&resource);
                    let is_seen = last
                        .as_ref()
                        .is_some_and(|last: &Option<View>| shows_the_same(last.as_ref(), view.as_ref()));
                    if !is_seen {
                        return Some((Ok(view.clone()), (store, changed, Some(view))));
                    }
                    // What ends by itself makes no event.
                    let ends = view.iter().flat_map(|view| view.holds.iter().map(|hold| hold.ends_in));
                    let ends_in = ends.min().unwrap_or(Duration::MAX);
                    let at = store.clock.now() + ends_in + Duration::from_millis(1);
                    let ended = std::future::poll_fn(|cx| timer.poll_until(at, cx));
                    let change = std::pin::pin!(changed.changed());
                    futures_util::future::select(change, std::pin::pin!(ended)).await;
                }
            }
        });
        views.boxed()
    }

    async fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        Ok(self.store.step(&resource, &Break { token, at_once }, |hold| Verb::Break(hold)))
    }

    async fn resize(&self, resource: Name, capacity: u32) -> Result<()> {
        let resized = self.store.step(&resource, &Resize(capacity), |resize| Verb::Resize(resize.0));
        resized.map_err(|why| Error::new(ErrorKind::Invalid, "resize", why))
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
        match inbox {
            Some(inbox) => {
                stream::unfold(inbox, |mut inbox| async move { inbox.recv().await.map(|wake| (wake, inbox)) })
                    .boxed()
            }
            None => stream::empty().boxed(),
        }
    }

    async fn check(&self) -> Vec<Finding> {
        vec![Finding::good("store", format!("{} records in this process", self.store.records()))]
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        Some(self)
    }

    fn blocking(&self) -> Option<&dyn BlockingEngine> {
        Some(self)
    }
}

impl BlockingEngine for Memory {
    fn claim(&self, claim: &Claim) -> Result<ClaimAnswer> {
        let answer = self.store.step(&claim.resource, claim, |claim| Verb::Claim(claim));
        claim_answer(claim, answer, self.store.incarnation())
    }

    fn release(&self, release: &ReleaseRequest) -> Result<ReleaseAnswer> {
        Ok(self.store.step(&release.resource, &release.release, |release| Verb::Release(release)))
    }
}
