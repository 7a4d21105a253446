//! What lies between a client and the store: it delays, loses, doubles and reorders, and a server may hang.
//!
//! What a client has sent goes on without it: a call that is given up may still be carried out, however late.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure_core::engine::queue::{
    ItemId, ItemView, Push, Pushed, QueueCapability, QueueEngine, QueueStats, Settle, SettleAnswer, Take,
    Taken, Which,
};
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, Connect, DynEngine, DynQueueEngine, Engine, Finding, ReleaseAnswer,
    ReleaseRequest, RenewAnswer, RenewRequest, Shard, Wake,
};
use tenure_core::model::claim::{Claim, ClaimId, Keep, Name};
use tenure_core::model::inspect::View;
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, Result};
use tokio::sync::{mpsc, oneshot};

use super::time::NodeClock;
use super::{Memory, World};

/// How many servers the store has.
pub(crate) const SHARDS: u16 = 2;

/// What a call fails with that may have been carried out.
pub(crate) const BROKEN: &str = "the connection broke";

/// What kind of thing a message carries. What is of one kind may have a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verb {
    Claim,
    Renew,
    Heartbeat,
    Release,
    Publish,
    Break,
    Look,
    Push,
    Take,
    Deliveries,
    Settle,
}

impl Verb {
    /// Whether it may be carried out twice. A claim, a take or a push is not, on any connection of ours: a second copy is
    /// one that its client has sent, and knows of.
    fn bears_copies(self) -> bool {
        matches!(self, Verb::Renew | Verb::Heartbeat | Verb::Release | Verb::Deliveries | Verb::Settle)
    }
}

/// How the network is in one world.
pub(crate) struct Weather {
    /// Messages that get lost, in a hundred.
    pub(crate) lost: u8,
    /// Messages that are late by up to 3 s, in a hundred.
    pub(crate) late: u8,
    /// Calls that are carried out and answered by a failure, in a hundred.
    pub(crate) failed: u8,
    /// How many calls of a verb a client has under way to a shard.
    pub(crate) calls_max: usize,
    /// Whether they arrive in the order in which they were sent.
    pub(crate) keeps_call_order: bool,
}

/// The machine of a client: what it is connected by, and whether it is still there.
pub(crate) struct Wire {
    pub(crate) world: Arc<World>,
    pub(crate) clock: Arc<NodeClock>,
    /// The machine is gone: nothing arrives there, and nothing comes from there.
    is_dead: std::sync::atomic::AtomicBool,
    /// When the last message of a connection arrives: one does not overtake another there.
    arrivals: Mutex<HashMap<(Verb, Shard), u64>>,
    /// How many calls its client waits for.
    under_way: Mutex<HashMap<(Verb, Shard), usize>>,
    /// Claims whose last renewal failed when the faults had stopped.
    failed: Mutex<HashSet<ClaimId>>,
    /// Claims that the store may know of: sent so many times, and neither granted nor over as far as the client knows. It must
    /// withdraw them.
    open: Mutex<HashMap<ClaimId, usize>>,
}

/// A call for which a client waits, until this is dropped.
struct UnderWay(Arc<Wire>, (Verb, Shard));

impl UnderWay {
    fn begin(wire: &Arc<Wire>, verb: Verb, shard: Shard) -> UnderWay {
        // Each consumer group asks for itself.
        let most = match verb {
            Verb::Take => usize::MAX,
            Verb::Push | Verb::Settle => 1,
            _ => wire.world.weather.calls_max,
        };
        let mut under_way = wire.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let count = under_way.entry((verb, shard)).or_insert(0);
        *count += 1;
        if *count > most {
            wire.world.time.fail(format!("{count} calls of {verb:?} are under way to {shard:?}"));
        }
        drop(under_way);
        UnderWay(wire.clone(), (verb, shard))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut under_way = self.0.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.entry(self.1).and_modify(|count| *count -= 1);
    }
}

impl Wire {
    pub(crate) fn new(world: &Arc<World>, clock: &Arc<NodeClock>) -> Arc<Wire> {
        Arc::new(Wire {
            world: world.clone(),
            clock: clock.clone(),
            is_dead: Default::default(),
            arrivals: Mutex::default(),
            under_way: Mutex::default(),
            failed: Mutex::default(),
            open: Mutex::default(),
        })
    }

    /// Whether the renewals of these claims fail although the faults have stopped: at times, and not twice in a row. A lease bears that.
    fn is_troubled(&self, claims: &[ClaimId]) -> bool {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let had_failed = claims.iter().filter(|claim| failed.remove(claim)).count() > 0;
        let is_calm = self.world.time.now() > self.world.calm_at();
        let fails = is_calm && !had_failed && self.world.time.random(|random| random.u8(..4)) == 0;
        failed.extend(claims.iter().filter(|_| fails));
        fails
    }

    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<ClaimId, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client has ended. What it asked for is its own, or over, or was given back.
    pub(crate) fn check_withdrawn(&self) {
        if let Some(claim) = self.open().keys().next() {
            self.world.time.fail(format!("claim {claim} came to nothing, and was not withdrawn"));
        }
    }

    pub(crate) fn die(&self) {
        self.is_dead.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn is_dead(&self) -> bool {
        self.is_dead.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn delay(&self) -> Duration {
        let (is_late, is_slow) = (self.world.chance(self.world.weather.late), self.world.chance(20));
        let most = match (is_late, is_slow) {
            (true, _) => 3_000_000,
            (_, true) => 100_000,
            _ => 500,
        };
        Duration::from_micros(self.world.time.random(|random| random.u64(50..=most)))
    }

    /// A message goes to the store. False: it gets lost.
    async fn to_store(&self, verb: Verb, shard: Shard) -> bool {
        let time = &self.world.time;
        if self.is_dead() || self.world.chance(self.world.weather.lost) {
            return false;
        }
        let mut at = time.now() + self.delay().as_nanos() as u64;
        at = at.max(self.world.hung_until(shard));
        if self.world.weather.calls_max > 1 && self.world.weather.keeps_call_order {
            let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            let last = arrivals.entry((verb, shard)).or_insert(0);
            at = at.max(*last);
            *last = at;
        }
        time.sleep(Duration::from_nanos(at - time.now())).await;
        true
    }

    /// A message goes to the client. False: it gets lost. One that comes while the machine stands still is found when it goes on.
    async fn to_client(&self) -> bool {
        if self.world.chance(self.world.weather.lost) {
            return false;
        }
        let time = &self.world.time;
        time.sleep(self.delay()).await;
        while self.clock.paused_until() > time.now() {
            time.sleep(Duration::from_nanos(self.clock.paused_until() - time.now())).await;
        }
        !self.is_dead()
    }

    /// Sends a request, lets the store carry it out, and returns the answer, if there ever is one.
    async fn call<A, F>(
        self: &Arc<Wire>,
        verb: Verb,
        about: Vec<Name>,
        shard: Shard,
        carry_out: impl Fn() -> F + Send + Sync + 'static,
    ) -> A
    where
        A: Send + 'static,
        F: Future<Output = A> + Send + 'static,
    {
        let (sender, answer) = oneshot::channel();
        let (wire, carry_out) = (self.clone(), Arc::new(carry_out));
        let run = move || {
            let (wire, carry_out, about) = (wire.clone(), carry_out.clone(), about.clone());
            async move {
                wire.world.check(&about);
                let answer = carry_out().await;
                wire.world.note(verb as u64);
                wire.world.check(&about);
                answer
            }
        };
        if verb.bears_copies() && self.world.chance(5) {
            let (wire, run) = (self.clone(), run.clone());
            tokio::spawn(async move {
                if wire.to_store(verb, shard).await {
                    run().await;
                }
            });
        }
        let wire = self.clone();
        tokio::spawn(async move {
            if wire.to_store(verb, shard).await {
                let answer = run().await;
                if wire.to_client().await {
                    // The client may have given the call up.
                    sender.send(answer).ok();
                }
            }
        });
        match answer.await {
            Ok(answer) => answer,
            // Nothing comes any more. The client gives up by itself.
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether a call is to fail after it was carried out, or before.
    fn failure(&self) -> Option<Error> {
        let is_failed = self.world.chance(self.world.weather.failed);
        is_failed.then(|| Error::new(ErrorKind::Unavailable, "ask", BROKEN))
    }

    fn fail_some<T>(&self, answers: Vec<Result<T>>) -> Vec<Result<T>> {
        match self.failure() {
            Some(error) => answers.iter().map(|_| Err(error.clone())).collect(),
            None => answers,
        }
    }
}

/// The engine of one client: the store, at the other end of its wire.
pub(crate) struct Remote {
    wire: Arc<Wire>,
    store: Arc<dyn DynEngine>,
    capability: Capability,
    wakes: Mutex<Option<mpsc::UnboundedReceiver<Wake>>>,
}

/// Returns what connects a client with the store of its world.
pub(crate) fn connector(wire: Arc<Wire>) -> Connect {
    wire.world.store.clone().connector().around(move |store| {
        let mut capability = store.capability().clone();
        capability.calls_max = wire.world.weather.calls_max;
        capability.keeps_call_order = wire.world.weather.keeps_call_order;
        // As any engine says whose store may forget: what is left then is its clock, and that may be set back.
        capability.needs_floor = wire.world.memory == Memory::Forgets;
        let (sender, wakes) = mpsc::unbounded_channel();
        let mut news = store.wakes();
        let relay = wire.clone();
        tokio::spawn(async move {
            while let Some(wake) = news.next().await {
                let (wire, sender) = (relay.clone(), sender.clone());
                tokio::spawn(async move {
                    if wire.to_client().await {
                        if let Wake::Granted { claim, .. } = &wake {
                            wire.open().remove(claim);
                        }
                        // The client may have ended.
                        sender.send(wake).ok();
                    }
                });
            }
        });
        Remote { wire, store, capability, wakes: Mutex::new(Some(wakes)) }
    })
}

impl Remote {
    /// A batch: its requests are of one shard, and are carried out at one moment.
    async fn batch<R, A, F>(
        &self,
        verb: Verb,
        requests: Vec<R>,
        about: fn(&R) -> &Name,
        carry_out: impl Fn(Arc<dyn DynEngine>, Vec<R>) -> F + Send + Sync + 'static,
    ) -> Vec<Result<A>>
    where
        R: Clone + Send + Sync + 'static,
        A: Send + 'static,
        F: Future<Output = Vec<Result<A>>> + Send + 'static,
    {
        let shard =
            requests.first().map_or_else(Shard::default, |request| self.wire.world.shard(about(request)));
        let names = requests.iter().map(|request| about(request).clone()).collect();
        let store = self.store.clone();
        let run = move || carry_out(store.clone(), requests.clone());
        let _under_way = UnderWay::begin(&self.wire, verb, shard);
        let answers = self.wire.call(verb, names, shard, run).await;
        self.wire.fail_some(answers)
    }

    async fn one<A, F>(
        &self,
        verb: Verb,
        resource: Name,
        carry_out: impl Fn(Arc<dyn DynEngine>) -> F + Send + Sync + 'static,
    ) -> Result<A>
    where
        A: Send + 'static,
        F: Future<Output = Result<A>> + Send + 'static,
    {
        let (shard, store) = (self.wire.world.shard(&resource), self.store.clone());
        let run = move || carry_out(store.clone());
        let answer = self.wire.call(verb, vec![resource], shard, run).await;
        self.wire.failure().map_or(answer, Err)
    }
}

impl Engine for Remote {
    fn name(&self) -> &'static str {
        "simulation"
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn shard(&self, resource: &Name) -> Shard {
        self.wire.world.shard(resource)
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        let ids: Vec<ClaimId> = claims.iter().map(|claim| claim.id).collect();
        ids.iter().for_each(|id| *self.wire.open().entry(*id).or_default() += 1);
        let world = self.wire.world.clone();
        let claim = move |store: Arc<dyn DynEngine>, claims: Vec<Claim>| {
            let world = world.clone();
            async move {
                world.note_asked(&claims);
                store.claim(claims).await
            }
        };
        let mut answers = self.batch(Verb::Claim, claims, |claim| &claim.resource, claim).await;
        for (id, answer) in ids.iter().zip(&mut answers) {
            // A script that fails has done a part, and that is no network's error.
            if answer.is_err() && self.wire.world.chance(50) {
                *answer = Err(Error::new(ErrorKind::Internal, "claim", BROKEN));
            }
            let mut open = self.wire.open();
            match answer {
                Ok(ClaimAnswer::Granted(_) | ClaimAnswer::Finished) => {
                    open.remove(id);
                }
                Ok(ClaimAnswer::Busy(_) | ClaimAnswer::Fresh(_)) if open.get(id) == Some(&1) => {
                    open.remove(id);
                }
                _ => {}
            }
        }
        answers
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let is_waiter = renewals.first().is_some_and(|request| request.is_waiter);
        assert!(
            renewals.iter().all(|request| request.is_waiter == is_waiter),
            "what is held and who waits are asked for in calls of their own"
        );
        let verb = if is_waiter { Verb::Heartbeat } else { Verb::Renew };
        let ids: Vec<ClaimId> = renewals.iter().map(|renewal| renewal.claim).collect();
        let renew = async move |store: Arc<dyn DynEngine>, renewals| store.renew(renewals).await;
        let mut answers = self.batch(verb, renewals, |renewal| &renewal.resource, renew).await;
        if self.wire.is_troubled(&ids) {
            answers.fill_with(|| Err(Error::new(ErrorKind::Unavailable, "renew", BROKEN)));
        }
        for (id, answer) in ids.iter().zip(&answers) {
            let mut open = self.wire.open();
            let is_settled = match answer {
                Ok(RenewAnswer::Granted(_) | RenewAnswer::Renewed { .. }) => true,
                // A copy that is still under way would be granted.
                Ok(RenewAnswer::Lost) => open.get(id) == Some(&1),
                _ => false,
            };
            if is_settled {
                open.remove(id);
            }
        }
        answers
    }

    async fn release(&self, releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        let world = self.wire.world.clone();
        self.wire.open().retain(|claim, _| releases.iter().all(|request| request.release.claim != *claim));
        let release = move |store: Arc<dyn DynEngine>, releases: Vec<ReleaseRequest>| {
            let world = world.clone();
            async move {
                let claims: Vec<ClaimId> = releases.iter().map(|request| request.release.claim).collect();
                let answers = store.release(releases).await;
                world.beliefs().released.extend(claims);
                answers
            }
        };
        self.batch(Verb::Release, releases, |release| &release.resource, release).await
    }

    async fn publish(&self, resource: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        let name = resource.clone();
        let publish = move |store: Arc<dyn DynEngine>| {
            let (name, bytes) = (name.clone(), bytes.clone());
            async move { store.publish(name, claim, bytes, keep).await }
        };
        self.one(Verb::Publish, resource, publish).await
    }

    async fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> Result<Vec<View>> {
        let name = Name::new(&prefix).unwrap_or_else(|_| self.wire.world.resource(0));
        let inspect = move |store: Arc<dyn DynEngine>| {
            let (prefix, after) = (prefix.clone(), after.clone());
            async move { store.inspect(prefix, after, most).await }
        };
        self.one(Verb::Look, name, inspect).await
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        self.store.observe(resource)
    }

    async fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        let name = resource.clone();
        let break_hold = move |store: Arc<dyn DynEngine>| {
            let name = name.clone();
            async move { store.break_hold(name, token, at_once).await }
        };
        self.one(Verb::Break, resource, break_hold).await
    }

    async fn resize(&self, resource: Name, capacity: u32) -> Result<()> {
        self.store.resize(resource, capacity).await
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        let wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner).take();
        stream::unfold(wakes, |wakes| async move {
            let mut wakes = wakes?;
            wakes.recv().await.map(|wake| (wake, Some(wakes)))
        })
        .boxed()
    }

    async fn check(&self) -> Vec<Finding> {
        self.store.check().await
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        Some(self)
    }
}

/// The queues of the store.
fn queues(store: &dyn DynEngine) -> &dyn DynQueueEngine {
    store.queues().expect("the store has queues")
}

impl QueueEngine for Remote {
    fn capability(&self) -> &QueueCapability {
        queues(&*self.store).capability()
    }

    async fn push(&self, pushes: Vec<Push>) -> Vec<Result<Pushed>> {
        let push = async move |store: Arc<dyn DynEngine>, pushes| queues(&*store).push(pushes).await;
        self.batch(Verb::Push, pushes, |push| &push.queue, push).await
    }

    async fn take(&self, takes: Vec<Take>) -> Vec<Result<Taken>> {
        let take = async move |store: Arc<dyn DynEngine>, takes| queues(&*store).take(takes).await;
        self.batch(Verb::Take, takes, |take| &take.queue, take).await
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let renew = async move |store: Arc<dyn DynEngine>, renewals| queues(&*store).renew(renewals).await;
        self.batch(Verb::Deliveries, renewals, |renewal| &renewal.resource, renew).await
    }

    async fn settle(&self, settlements: Vec<Settle>) -> Vec<Result<SettleAnswer>> {
        let settle =
            async move |store: Arc<dyn DynEngine>, settlements| queues(&*store).settle(settlements).await;
        self.batch(Verb::Settle, settlements, |settle| &settle.queue, settle).await
    }

    async fn queues(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> Result<Vec<(Name, QueueStats)>> {
        queues(&*self.store).queues(prefix, after, most).await
    }

    async fn stats(&self, queue: Name) -> Result<QueueStats> {
        let name = queue.clone();
        let stats = move |store: Arc<dyn DynEngine>| {
            let name = name.clone();
            async move { queues(&*store).stats(name).await }
        };
        self.one(Verb::Look, queue, stats).await
    }

    async fn items(
        &self,
        queue: Name,
        which: Which,
        after: Option<ItemId>,
        most: usize,
    ) -> Result<Vec<ItemView>> {
        queues(&*self.store).items(queue, which, after, most).await
    }

    async fn replay(&self, queue: Name, item: Option<ItemId>, most: usize) -> Result<usize> {
        queues(&*self.store).replay(queue, item, most).await
    }

    async fn purge(&self, queue: Name, which: Which, item: Option<ItemId>, most: usize) -> Result<usize> {
        queues(&*self.store).purge(queue, which, item, most).await
    }
}
