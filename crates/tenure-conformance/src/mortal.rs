//! An engine whose client can die at a chosen moment.
//!
//! In a process of its own the client dies by SIGKILL. A client that shares the process of the check has its
//! connection cut instead: nothing that it sends arrives any more, and nothing is answered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use tenure_core::engine::queue::{
    ItemId, ItemView, Push, Pushed, QueueCapability, QueueEngine, QueueLine, QueueStats, Settle,
    SettleAnswer, Take, Taken, Which,
};
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, Connect, DynEngine, DynQueueEngine, Engine, Finding, ReleaseAnswer,
    ReleaseRequest, RenewAnswer, RenewRequest, Shard, Wake, WithdrawAnswer, WithdrawRequest,
};
use tenure_core::model::claim::{Claim, Keep};
use tenure_core::model::inspect::View;
use tenure_core::testing::failpoint;
use tenure_core::{ClaimId, Name, Result, Token};

/// The places at which the life of every client can end: around each call of its engine.
pub(crate) const PLACES: &[&str] =
    &["claim.before", "claim.after", "renew.before", "renew.after", "release.before", "release.after"];

/// The life of one client.
pub(crate) struct Life {
    is_process: bool,
    is_cut: AtomicBool,
    /// Where to die, and how many more passes of that place to survive.
    plan: Mutex<Option<(String, u32)>>,
    /// How often each place was passed.
    passes: Mutex<BTreeMap<String, u32>>,
}

impl Life {
    /// The life of a client in the process of the check.
    pub(crate) fn of_thread() -> Arc<Life> {
        Arc::new(Life {
            is_process: false,
            is_cut: AtomicBool::new(false),
            plan: Mutex::new(None),
            passes: Mutex::default(),
        })
    }

    /// The life of this process, which ends at the engine's failpoints too.
    pub(crate) fn of_process() -> Arc<Life> {
        static LIFE: OnceLock<Arc<Life>> = OnceLock::new();
        let life = LIFE.get_or_init(|| {
            Arc::new(Life {
                is_process: true,
                is_cut: AtomicBool::new(false),
                plan: Mutex::new(None),
                passes: Mutex::default(),
            })
        });
        failpoint::set(|place| {
            Life::of_process().pass(place);
        });
        life.clone()
    }

    /// Ends this life when it passes `place` for the `passes`th time from now.
    pub(crate) fn die_at(&self, place: &str, passes: u32) {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some((place.to_owned(), passes));
    }

    /// Ends this life now.
    pub(crate) fn cut(&self) {
        if self.is_process {
            let killed =
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            unreachable!("a process that has killed itself does not go on: {killed:?}");
        }
        self.is_cut.store(true, Ordering::Release);
    }

    /// Lets what is sent from now on arrive again.
    pub(crate) fn mend(&self) {
        self.is_cut.store(false, Ordering::Release);
    }

    /// Returns how often it has passed `place` since it was asked last.
    pub(crate) fn take_passes(&self, place: &str) -> u32 {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner).remove(place).unwrap_or(0)
    }

    /// Passes a place. Returns whether this life is over.
    fn pass(&self, place: &str) -> bool {
        *self.passes.lock().unwrap_or_else(PoisonError::into_inner).entry(place.to_owned()).or_default() += 1;
        let is_end = {
            let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *plan {
                Some((planned, passes)) if planned == place => {
                    *passes = passes.saturating_sub(1);
                    *passes == 0
                }
                _ => false,
            }
        };
        if is_end {
            self.cut();
        }
        self.is_cut.load(Ordering::Acquire)
    }

    /// Makes a client's engine end with this life.
    pub(crate) fn connector(self: &Arc<Life>, connect: Connect) -> Connect {
        let life = self.clone();
        connect.around(|engine| Mortal { engine, life })
    }
}

struct Mortal {
    engine: Arc<dyn DynEngine>,
    life: Arc<Life>,
}

impl Mortal {
    /// Makes a call, if the client lives, and answers it, if it still does.
    async fn call<'a, T>(
        &'a self,
        before: &'static str,
        after: &'static str,
        call: impl FnOnce(&'a dyn DynEngine) -> BoxFuture<'a, T> + Send,
    ) -> T {
        if self.life.pass(before) {
            return std::future::pending().await;
        }
        let answer = call(&*self.engine).await;
        if self.life.pass(after) {
            return std::future::pending().await;
        }
        answer
    }
}

impl Engine for Mortal {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn capability(&self) -> &Capability {
        self.engine.capability()
    }

    fn shard(&self, resource: &Name) -> Shard {
        self.engine.shard(resource)
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        self.call("claim.before", "claim.after", |engine| engine.claim(claims)).await
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        self.call("renew.before", "renew.after", |engine| engine.renew(renewals)).await
    }

    async fn adopt(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        self.call("renew.before", "renew.after", |engine| engine.adopt(renewals)).await
    }

    async fn release(&self, releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        self.call("release.before", "release.after", |engine| engine.release(releases)).await
    }

    async fn withdraw(&self, withdrawals: Vec<WithdrawRequest>) -> Vec<Result<WithdrawAnswer>> {
        self.call("release.before", "release.after", |engine| engine.withdraw(withdrawals)).await
    }

    async fn publish(&self, resource: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        self.call("publish.before", "publish.after", move |engine| {
            engine.publish(resource, claim, bytes, keep)
        })
        .await
    }

    async fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> Result<Vec<View>> {
        self.call("inspect.before", "inspect.after", move |engine| engine.inspect(prefix, after, most)).await
    }

    fn inspect_all(&self, prefix: String) -> BoxStream<'_, Result<Vec<Result<View>>>> {
        let list = self.call("inspect.before", "inspect.after", move |engine| {
            engine.inspect_all(prefix).try_concat().boxed()
        });
        stream::once(list).boxed()
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        self.engine.observe(resource)
    }

    async fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        self.call("break.before", "break.after", move |engine| engine.break_hold(resource, token, at_once))
            .await
    }

    async fn resize(&self, resource: Name, capacity: u32) -> Result<()> {
        self.call("resize.before", "resize.after", move |engine| engine.resize(resource, capacity)).await
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        let life = self.life.clone();
        let is_alive = move |_: &Wake| std::future::ready(!life.is_cut.load(Ordering::Acquire));
        self.engine.wakes().filter(is_alive).boxed()
    }

    async fn check(&self) -> Vec<Finding> {
        self.engine.check().await
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        self.engine.queues().is_some().then_some(self)
    }
}

impl Mortal {
    /// As [`Mortal::call`], of the engine's queues.
    async fn call_queues<'a, T>(
        &'a self,
        before: &'static str,
        after: &'static str,
        call: impl FnOnce(&'a dyn DynQueueEngine) -> BoxFuture<'a, T> + Send,
    ) -> T {
        self.call(before, after, |engine| call(engine.queues().expect("this engine has queues"))).await
    }
}

impl QueueEngine for Mortal {
    fn capability(&self) -> &QueueCapability {
        self.engine.queues().expect("this engine has queues").capability()
    }

    async fn push(&self, pushes: Vec<Push>) -> Vec<Result<Pushed>> {
        self.call_queues("push.before", "push.after", |queues| queues.push(pushes)).await
    }

    async fn take(&self, takes: Vec<Take>) -> Vec<Result<Taken>> {
        self.call_queues("take.before", "take.after", |queues| queues.take(takes)).await
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        self.call_queues("renew.before", "renew.after", |queues| queues.renew(renewals)).await
    }

    async fn adopt(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        self.call_queues("renew.before", "renew.after", |queues| queues.adopt(renewals)).await
    }

    async fn settle(&self, settlements: Vec<Settle>) -> Vec<Result<SettleAnswer>> {
        self.call_queues("settle.before", "settle.after", |queues| queues.settle(settlements)).await
    }

    async fn queues(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> Result<Vec<(Name, QueueStats)>> {
        self.call_queues("queues.before", "queues.after", move |queues| queues.queues(prefix, after, most))
            .await
    }

    fn queues_all(&self, prefix: String) -> BoxStream<'_, Result<Vec<QueueLine>>> {
        let list = self.call_queues("queues.before", "queues.after", move |queues| {
            queues.queues_all(prefix).try_concat().boxed()
        });
        stream::once(list).boxed()
    }

    async fn stats(&self, queue: Name) -> Result<QueueStats> {
        self.call_queues("stats.before", "stats.after", |queues| queues.stats(queue)).await
    }

    async fn items(
        &self,
        queue: Name,
        which: Which,
        after: Option<ItemId>,
        most: usize,
    ) -> Result<Vec<ItemView>> {
        self.call_queues("items.before", "items.after", move |queues| queues.items(queue, which, after, most))
            .await
    }

    async fn replay(&self, queue: Name, item: Option<ItemId>, most: usize) -> Result<usize> {
        self.call_queues("replay.before", "replay.after", move |queues| queues.replay(queue, item, most))
            .await
    }

    async fn purge(&self, queue: Name, which: Which, item: Option<ItemId>, most: usize) -> Result<usize> {
        self.call_queues("purge.before", "purge.after", move |queues| queues.purge(queue, which, item, most))
            .await
    }
}
