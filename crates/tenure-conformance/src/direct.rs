//! An engine that a check drives by itself: no renewals but those that it asks for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::queue::{Push, Pushed, Rules, Settle, SettleAnswer, Settlement, Take, Taken};
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, Connect, DynEngine, DynQueueEngine, ReleaseAnswer, ReleaseRequest,
    RenewAnswer, RenewRequest, WithdrawAnswer, WithdrawRequest,
};
use tenure_core::model::claim::{
    CAPACITY_MAX, Claim, ClientId, Grant, HoldLimits, Keep, Kind, Terms, Waiting,
};
use tenure_core::model::inspect::View;
use tenure_core::model::step::{Release, Withdraw};
use tenure_core::{Busy, ClaimId, Label, Name, Result, Token};
use tokio::sync::oneshot;

use crate::stage::{LONG, within};

/// A connected engine on a thread of its own. Dropping it ends that client as the death of its process would.
pub(crate) struct Direct {
    client: ClientId,
    patience: Duration,
    capability: Capability,
    engine: Option<Arc<dyn DynEngine>>,
    runtime: tokio::runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Direct {
    pub(crate) async fn connect(connect: Connect, patience: Duration) -> Direct {
        let client = ClientId::new(SystemClock.random());
        let (ready, connected) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime starts").block_on(async move {
                let engine = connect.open(client).await.expect("an engine connects");
                let mut stream = engine.wakes();
                ready.send((engine, tokio::runtime::Handle::current())).ok();
                // Wakes are taken and thrown away: a check asks by heartbeats.
                let drain = async {
                    while stream.next().await.is_some() {}
                    std::future::pending::<()>().await;
                };
                futures_util::future::select(std::pin::pin!(drain), stopped).await;
            });
        });
        let (engine, runtime) = connected.await.expect("an engine connects");
        let capability = engine.capability().clone();
        let (engine, stop, thread) = (Some(engine), Some(stop), Some(thread));
        Direct { client, patience, capability, engine, runtime, stop, thread }
    }

    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    pub(crate) fn capability(&self) -> &Capability {
        &self.capability
    }

    /// Returns on how many shards these resources are.
    pub(crate) fn shards(&self, resources: impl Iterator<Item = Name>) -> u32 {
        let engine = self.engine.as_ref().expect("it is connected");
        let shards: BTreeSet<_> = resources.map(|resource| engine.shard(&resource)).collect();
        shards.len() as u32
    }

    /// Makes a claim with a new id that does not wait.
    pub(crate) fn trying(&self, resource: &Name, terms: &Terms) -> Claim {
        Claim {
            resource: resource.clone(),
            id: claim_id(),
            client: self.client,
            terms: Arc::new(terms.clone()),
            wait: false,
            floor: Token::ZERO,
            floor_forced: false,
            may_be_known: false,
        }
    }

    /// Makes a claim with a new id that waits.
    pub(crate) fn waiting(&self, resource: &Name, terms: &Terms) -> Claim {
        Claim { wait: true, ..self.trying(resource, terms) }
    }

    /// Sends one claim.
    pub(crate) async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer> {
        one(self.claim_all(vec![claim.clone()]).await)
    }

    /// Sends a batch of claims.
    pub(crate) async fn claim_all(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        self.ask("a claim", async move |engine| engine.claim(claims).await).await
    }

    /// Sends a claim that must be granted.
    #[track_caller]
    pub(crate) fn grant(&self, claim: &Claim) -> impl Future<Output = Grant> {
        let at = std::panic::Location::caller();
        async move { granted(self.claim(claim).await, at) }
    }

    /// Sends a claim that must be queued.
    #[track_caller]
    pub(crate) fn enqueue(&self, claim: &Claim) -> impl Future<Output = Waiting> {
        let at = std::panic::Location::caller();
        async move {
            match self.claim(claim).await {
                Ok(ClaimAnswer::Waiting(waiting, _)) => waiting,
                other => panic!("the claim at {at} does not wait: {other:?}"),
            }
        }
    }

    /// Sends a claim that must be refused.
    #[track_caller]
    pub(crate) fn refuse(&self, claim: &Claim) -> impl Future<Output = Busy> {
        let at = std::panic::Location::caller();
        async move {
            match self.claim(claim).await {
                Ok(ClaimAnswer::Busy(busy)) => busy,
                other => panic!("the claim at {at} is not refused: {other:?}"),
            }
        }
    }

    /// Takes the resource with a new claim for as long as the check runs, and lets it go: the token.
    pub(crate) async fn token_of(&self, resource: &Name, terms: &Terms) -> Token {
        let claim = self.trying(resource, terms);
        let token = self.grant(&claim).await.token;
        self.release(&claim).await;
        token
    }

    /// Renews a hold.
    pub(crate) async fn renew(&self, claim: &Claim) -> RenewAnswer {
        self.renew_as(claim, false).await
    }

    /// Sends a waiter's heartbeat.
    pub(crate) async fn heartbeat(&self, claim: &Claim) -> RenewAnswer {
        self.renew_as(claim, true).await
    }

    async fn renew_as(&self, claim: &Claim, is_waiter: bool) -> RenewAnswer {
        let request = RenewRequest { resource: claim.resource.clone(), claim: claim.id, is_waiter };
        let answers = self.ask("a renewal", async move |engine| engine.renew(vec![request]).await).await;
        one(answers).expect("a renewal is answered")
    }

    /// Sends heartbeats until a waiter is granted.
    pub(crate) async fn served(&self, claim: &Claim, what: &str) -> Grant {
        let beat = async {
            loop {
                match self.heartbeat(claim).await {
                    RenewAnswer::Granted(grant) => return grant,
                    RenewAnswer::Waiting(..) => crate::stage::pause(Duration::from_millis(5)).await,
                    other => panic!("a waiter's heartbeat was answered {other:?}: {what}"),
                }
            }
        };
        within(self.patience, what, beat).await
    }

    /// Asserts that a waiter goes on waiting.
    pub(crate) async fn assert_waits(&self, claim: &Claim, what: &str) {
        let answer = self.heartbeat(claim).await;
        assert!(matches!(answer, RenewAnswer::Waiting(..)), "it must still wait, {what}: {answer:?}");
    }

    /// Releases a claim that was answered.
    pub(crate) async fn release(&self, claim: &Claim) -> ReleaseAnswer {
        let release = Release { claim: claim.id, maybe_in_flight: false, is_unused: false };
        self.release_as(&claim.resource, release).await
    }

    /// Releases a claim, saying what is known about its copies.
    pub(crate) async fn release_as(&self, resource: &Name, release: Release) -> ReleaseAnswer {
        let request = ReleaseRequest { resource: resource.clone(), release };
        let answers = self.ask("a release", async move |engine| engine.release(vec![request]).await).await;
        one(answers).expect("a release is answered")
    }

    /// Withdraws a claim, if it is this client's.
    pub(crate) async fn withdraw(&self, claim: &Claim) -> WithdrawAnswer {
        let withdraw = Withdraw { claim: claim.id, client: self.client };
        let request = WithdrawRequest { resource: claim.resource.clone(), withdraw };
        let answers =
            self.ask("a withdrawal", async move |engine| engine.withdraw(vec![request]).await).await;
        one(answers).expect("a withdrawal is answered")
    }

    pub(crate) async fn publish(&self, claim: &Claim, bytes: &[u8], keep: Keep) -> bool {
        let (resource, claim, bytes) = (claim.resource.clone(), claim.id, bytes.into());
        let published =
            self.ask("a value", async move |engine| engine.publish(resource, claim, bytes, keep).await);
        published.await.expect("a value is answered")
    }

    pub(crate) async fn break_hold(&self, resource: &Name, token: Token, at_once: bool) -> BreakAnswer {
        let resource = resource.clone();
        let broken =
            self.ask("a break", async move |engine| engine.break_hold(resource, token, at_once).await);
        broken.await.expect("a break is answered")
    }

    pub(crate) async fn resize(&self, resource: &Name, capacity: u32) {
        let resource = resource.clone();
        let resized = self.ask("a new capacity", async move |engine| engine.resize(resource, capacity).await);
        resized.await.expect("a new capacity is answered");
    }

    /// Returns what is known of one resource.
    pub(crate) async fn view(&self, resource: &Name) -> Option<View> {
        let page = self.inspect(resource.as_str(), None, 128).await;
        page.into_iter().find(|view| view.resource == *resource)
    }

    pub(crate) async fn inspect(&self, prefix: &str, after: Option<Name>, most: usize) -> Vec<View> {
        let prefix = prefix.to_owned();
        let page = self.ask("an inspection", async move |engine| engine.inspect(prefix, after, most).await);
        page.await.expect("an inspection is answered")
    }

    /// Has the engine's queues do something.
    pub(crate) async fn on_queues<T: Send + 'static>(
        &self,
        ask: impl for<'a> FnOnce(&'a dyn DynQueueEngine) -> BoxFuture<'a, T> + Send + 'static,
    ) -> T {
        self.ask("what is asked of a queue", async move |engine| {
            ask(engine.queues().expect("the engine has queues")).await
        })
        .await
    }

    /// Puts items in line in one call.
    pub(crate) async fn push(&self, pushes: Vec<Push>) -> Vec<Pushed> {
        let pushed = self.on_queues(|queues| queues.push(pushes)).await;
        pushed.into_iter().map(|pushed| pushed.expect("a push is answered")).collect()
    }

    /// Takes up to `most` items that nobody renews.
    pub(crate) async fn take(&self, queue: &Name, rules: &Arc<Rules>, most: usize) -> Taken {
        let claims = (0..most).map(|_| claim_id()).collect();
        let (queue, client, rules) = (queue.clone(), self.client, rules.clone());
        let take = Take { queue, client, claims, rules, floor: Token::ZERO };
        let taken = self.on_queues(|queues| queues.take(vec![take])).await;
        one(taken).expect("a take is answered")
    }

    /// Renews a delivery.
    pub(crate) async fn renew_delivery(&self, queue: &Name, claim: ClaimId) -> RenewAnswer {
        let request = RenewRequest { resource: queue.clone(), claim, is_waiter: false };
        one(self.on_queues(|queues| queues.renew(vec![request])).await).expect("a renewal is answered")
    }

    /// Ends a delivery.
    pub(crate) async fn settle(&self, queue: &Name, claim: ClaimId, settlement: Settlement) -> SettleAnswer {
        let settle = Settle { queue: queue.clone(), claim, settlement };
        one(self.on_queues(|queues| queues.settle(vec![settle])).await).expect("a settlement is answered")
    }

    async fn ask<T, F>(&self, what: &str, ask: impl FnOnce(Arc<dyn DynEngine>) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let engine = self.engine.clone().expect("an engine is there until it is dropped");
        let answer = self.runtime.spawn(ask(engine));
        match within(self.patience, &format!("{what} is answered"), answer).await {
            Ok(answer) => answer,
            Err(ended) => std::panic::resume_unwind(ended.into_panic()),
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.engine = None;
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the engine's thread panicked");
        }
    }
}

#[track_caller]
fn one<T>(mut answers: Vec<T>) -> T {
    assert_eq!(answers.len(), 1, "one answer for one request");
    answers.remove(0)
}

fn granted(answer: Result<ClaimAnswer>, at: &std::panic::Location<'_>) -> Grant {
    match answer {
        Ok(ClaimAnswer::Granted(grant)) => grant,
        other => panic!("the claim at {at} is not granted: {other:?}"),
    }
}

/// Makes a claim id.
pub(crate) fn claim_id() -> ClaimId {
    ClaimId::new(u128::from(SystemClock.random()) << 64 | u128::from(SystemClock.random()))
}

/// Terms of any kind, with a ttl that outlives the check.
pub(crate) fn terms(kind: Kind, capacity: u32, weight: u32) -> Terms {
    Terms {
        kind,
        capacity,
        weight,
        ttl: LONG,
        limits: HoldLimits::default(),
        label: Label::new("here", std::process::id(), "conformance", "direct"),
        unless_fresh: false,
    }
}

/// The terms of a mutex, with a ttl that outlives the check.
pub(crate) fn mutex() -> Terms {
    terms(Kind::Mutex, 1, 1)
}

/// The terms of a reader or a writer, with a ttl that outlives the check.
pub(crate) fn rw_lock(is_writer: bool) -> Terms {
    terms(Kind::RwLock, CAPACITY_MAX, if is_writer { CAPACITY_MAX } else { 1 })
}
