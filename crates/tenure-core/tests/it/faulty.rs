//! The engine `memory:` behind a line on which answers get lost, come late or turn into failures.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::BoxStream;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::queue::{
    ItemId, ItemView, Push, Pushed, QueueCapability, QueueEngine, QueueStats, Settle, SettleAnswer, Take,
    Taken, Which,
};
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, DynEngine, DynQueueEngine, Engine, Finding, ReleaseAnswer,
    ReleaseRequest, RenewAnswer, RenewRequest, Wake, WithdrawAnswer, WithdrawRequest,
};
use tenure_core::memory::Store;
use tenure_core::model::claim::{Claim, ClaimId, Keep, Name};
use tenure_core::model::inspect::View;
use tenure_core::model::token::Token;
use tenure_core::{Error, Result, Settings, Tenure};

/// What happens to the requests of one client.
#[derive(Default)]
pub(crate) struct Faults {
    /// How many claims the store has carried out.
    pub(crate) claims: AtomicUsize,
    /// How often somebody has looked at a name.
    pub(crate) looks: AtomicUsize,
    /// How many settlements have reached the store.
    pub(crate) settlements: AtomicUsize,
    /// The next claims are carried out, and answered with this.
    pub(crate) claimed: Plan,
    /// The next takes are carried out, and answered with this.
    pub(crate) taken: Plan,
    /// The next pushes are carried out, and answered with this.
    pub(crate) pushed: Plan,
    /// The next renewals are carried out, and answered with this.
    pub(crate) unrenewed: Plan,
    /// The next values are answered with this, and not kept.
    pub(crate) unpublished: Plan,
    /// The next settlements are answered with this, and not carried out.
    pub(crate) unsettled: Plan,
    /// Claims take so long.
    pub(crate) claim_delay: Mutex<Duration>,
    /// Looks are answered after so long.
    pub(crate) look_delay: Mutex<Duration>,
    /// Releases take so long.
    pub(crate) release_delay: Mutex<Duration>,
    /// The next take is carried out after so long, and never answered.
    pub(crate) late_take: Mutex<Option<Duration>>,
}

/// An answer in place of the right one, and for how many requests.
#[derive(Default)]
pub(crate) struct Plan(Mutex<(usize, Option<Error>)>);

impl Plan {
    pub(crate) fn set(&self, count: usize, error: Error) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (count, Some(error));
    }

    fn next<T>(&self, answer: Result<T>) -> Result<T> {
        let mut plan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (plan.0.checked_sub(1), plan.1.clone()) {
            (Some(left), Some(error)) => {
                plan.0 = left;
                Err(error)
            }
            _ => answer,
        }
    }

    fn is_due(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 > 0
    }
}

/// Connects with a store, over a line with such faults.
pub(crate) fn connect(store: &Arc<Store>, faults: &Arc<Faults>, answer_timeout: Duration) -> Tenure {
    let (inner, faults) = (store.clone().connector(), faults.clone());
    let connect = inner.around(|inner| Faulty { inner, faults });
    let settings = Settings::new().answer_timeout(answer_timeout);
    pollster::block_on(Tenure::connect_with(connect, settings)).expect("connects")
}

struct Faulty {
    inner: Arc<dyn DynEngine>,
    faults: Arc<Faults>,
}

/// Lets time pass on the client's own thread.
async fn pause(period: Duration) {
    let mut timer = SystemClock.timer().expect("a timer");
    let until = SystemClock.now() + period;
    std::future::poll_fn(|cx| timer.poll_until(until, cx)).await;
}

impl Faulty {
    fn queues(&self) -> &dyn DynQueueEngine {
        self.inner.queues().expect("it has queues")
    }
}

impl Engine for Faulty {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capability(&self) -> &Capability {
        self.inner.capability()
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        let count = claims.len();
        claims
            .iter()
            .for_each(|claim| tracing::info!(target: "an_engine", resource = %claim.resource, "asking"));
        let answers = self.inner.claim(claims).await;
        self.faults.claims.fetch_add(count, Ordering::Relaxed);
        let delay = *self.faults.claim_delay.lock().unwrap_or_else(PoisonError::into_inner);
        if !delay.is_zero() {
            pause(delay).await;
        }
        answers.into_iter().map(|answer| self.faults.claimed.next(answer)).collect()
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let answers = self.inner.renew(renewals).await;
        answers.into_iter().map(|answer| self.faults.unrenewed.next(answer)).collect()
    }

    async fn release(&self, releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        let delay = *self.faults.release_delay.lock().unwrap_or_else(PoisonError::into_inner);
        if !delay.is_zero() {
            pause(delay).await;
        }
        self.inner.release(releases).await
    }

    async fn withdraw(&self, withdrawals: Vec<WithdrawRequest>) -> Vec<Result<WithdrawAnswer>> {
        self.inner.withdraw(withdrawals).await
    }

    async fn publish(&self, resource: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        if self.faults.unpublished.is_due() {
            return self.faults.unpublished.next(Ok(false));
        }
        self.inner.publish(resource, claim, bytes, keep).await
    }

    async fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> Result<Vec<View>> {
        let views = self.inner.inspect(prefix, after, most).await;
        self.faults.looks.fetch_add(1, Ordering::Relaxed);
        let delay = *self.faults.look_delay.lock().unwrap_or_else(PoisonError::into_inner);
        if !delay.is_zero() {
            pause(delay).await;
        }
        views
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        self.inner.observe(resource)
    }

    async fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        self.inner.break_hold(resource, token, at_once).await
    }

    async fn resize(&self, resource: Name, capacity: u32) -> Result<()> {
        self.inner.resize(resource, capacity).await
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        self.inner.wakes()
    }

    async fn check(&self) -> Vec<Finding> {
        self.inner.check().await
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        Some(self)
    }
}

impl QueueEngine for Faulty {
    fn capability(&self) -> &QueueCapability {
        Faulty::queues(self).capability()
    }

    async fn push(&self, pushes: Vec<Push>) -> Vec<Result<Pushed>> {
        let answers = Faulty::queues(self).push(pushes).await;
        answers.into_iter().map(|answer| self.faults.pushed.next(answer)).collect()
    }

    async fn take(&self, takes: Vec<Take>) -> Vec<Result<Taken>> {
        let late = self.faults.late_take.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(delay) = late {
            let inner = self.inner.clone();
            tokio::spawn(async move {
                pause(delay).await;
                drop(inner.queues().expect("it has queues").take(takes).await);
            });
            return std::future::pending().await;
        }
        let answers = Faulty::queues(self).take(takes).await;
        answers.into_iter().map(|answer| self.faults.taken.next(answer)).collect()
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        Faulty::queues(self).renew(renewals).await
    }

    async fn settle(&self, settlements: Vec<Settle>) -> Vec<Result<SettleAnswer>> {
        self.faults.settlements.fetch_add(settlements.len(), Ordering::Relaxed);
        let mut answers = Vec::new();
        for settle in settlements {
            let answer = match self.faults.unsettled.is_due() {
                true => self.faults.unsettled.next(Ok(SettleAnswer::Lost)),
                false => Faulty::queues(self).settle(vec![settle]).await.remove(0),
            };
            answers.push(answer);
        }
        answers
    }

    async fn queues(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> Result<Vec<(Name, QueueStats)>> {
        Faulty::queues(self).queues(prefix, after, most).await
    }

    async fn stats(&self, queue: Name) -> Result<QueueStats> {
        Faulty::queues(self).stats(queue).await
    }

    async fn items(
        &self,
        queue: Name,
        which: Which,
        after: Option<ItemId>,
        most: usize,
    ) -> Result<Vec<ItemView>> {
        Faulty::queues(self).items(queue, which, after, most).await
    }

    async fn replay(&self, queue: Name, item: Option<ItemId>, most: usize) -> Result<usize> {
        Faulty::queues(self).replay(queue, item, most).await
    }

    async fn purge(&self, queue: Name, which: Which, item: Option<ItemId>, most: usize) -> Result<usize> {
        Faulty::queues(self).purge(queue, which, item, most).await
    }
}
