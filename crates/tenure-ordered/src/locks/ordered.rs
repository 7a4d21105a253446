//! The engine: the verbs of the contract, on lines of claims.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use tenure_core::Result;
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, DynQueueEngine, Engine, Finding, ReleaseAnswer, ReleaseRequest,
    RenewAnswer, RenewRequest, Wake, WithdrawAnswer, WithdrawRequest,
};
use tenure_core::model::claim::{Claim, ClaimId, Keep, Name};
use tenure_core::model::inspect::View;
use tenure_core::model::token::Token;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::locks::observe::observe;
use crate::locks::own::{Own, Owned};
use crate::locks::sweep::{Changing, sweep};
use crate::store::{Leaving, SessionId, Store};

/// An engine on an ordered store.
pub struct Ordered<S: Store> {
    shared: Arc<Shared<S>>,
    sweeping: AbortHandle,
}

pub(crate) struct Shared<S: Store> {
    pub(crate) store: S,
    owned: Mutex<Owned>,
    /// There is something to sweep.
    busy: Arc<Notify>,
}

impl<S: Store> Shared<S> {
    pub(crate) fn owned(&self) -> MutexGuard<'_, Owned> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim has ended: its id is not used again, and nothing is watched for it.
    pub(crate) fn end(&self, claim: ClaimId, now: Instant) -> Option<Own> {
        let own = self.owned().end(claim, now);
        // Not before: a heartbeat that is answered meanwhile watches for what it finds there.
        self.store.unwatch(claim);
        own
    }

    /// A session has ended, and with it all that was entered in it.
    pub(crate) fn died(&self, session_id: SessionId, now: Instant) {
        let gone = self.owned().died(session_id, now);
        gone.into_iter().for_each(|claim| self.store.unwatch(claim));
    }

    /// Has the sweeper run again when a call has ended, or was dropped: what it has left to sweep is known only then.
    pub(crate) fn changing(&self) -> Changing<'_> {
        Changing(&self.busy)
    }

    /// Returns what is notified when there is something to sweep, if there is nothing now.
    pub(crate) fn is_idle_or_due(&self) -> Option<Arc<Notify>> {
        self.owned().is_idle().then(|| self.busy.clone())
    }

    /// Lets claims leave, now or later: also if the caller is dropped meanwhile.
    pub(crate) async fn withdraw(&self, leaving: Vec<Leaving>) {
        if leaving.is_empty() {
            return;
        }
        let mut unfinished = Unfinished { shared: self, leaving };
        let answers = self.store.leave(unfinished.leaving.clone()).await;
        let mut answers = answers.into_iter();
        // What is left in it is tried again.
        unfinished.leaving.retain(|_| answers.next().is_none_or(|answer| answer.is_err()));
    }

    pub(crate) async fn heartbeats(
        &self,
        lives: HashSet<SessionId>,
    ) -> BTreeMap<SessionId, Result<Option<Instant>>> {
        let beat = |session_id| async move { (session_id, self.store.heartbeat(session_id).await) };
        join_all(lives.into_iter().map(beat)).await.into_iter().collect()
    }
}

/// Claims on their way out of their lines. Those that are still in it when it is dropped leave later.
pub(crate) struct Unfinished<'a, S: Store> {
    pub(crate) shared: &'a Shared<S>,
    pub(crate) leaving: Vec<Leaving>,
}

impl<S: Store> Drop for Unfinished<'_, S> {
    fn drop(&mut self) {
        let mut owned = self.shared.owned();
        self.leaving.drain(..).for_each(|leaving| owned.leave_later(leaving));
    }
}

/// Returns this machine's time.
pub(crate) fn now() -> Instant {
    SystemClock.now()
}

impl<S: Store> Ordered<S> {
    /// Makes the engine of a store. On a tokio runtime.
    pub fn new(store: S) -> Ordered<S> {
        let shared = Arc::new(Shared { store, owned: Mutex::default(), busy: Arc::default() });
        let sweeping = tokio::spawn(sweep(Arc::downgrade(&shared))).abort_handle();
        Ordered { shared, sweeping }
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.shared.store
    }
}

impl<S: Store> Drop for Ordered<S> {
    fn drop(&mut self) {
        self.sweeping.abort();
    }
}

impl<S: Store> std::fmt::Debug for Ordered<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ordered").field("engine", &S::ENGINE).finish_non_exhaustive()
    }
}

impl<S: Store> Engine for Ordered<S> {
    fn name(&self) -> &'static str {
        S::ENGINE
    }

    fn capability(&self) -> &Capability {
        self.shared.store.capability()
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        self.shared.claim_all(&claims).await
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        self.shared.renew_all(&renewals).await
    }

    async fn adopt(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        self.shared.adopt_all(&renewals).await
    }

    async fn release(&self, releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        self.shared.release_all(&releases).await
    }

    async fn withdraw(&self, withdrawals: Vec<WithdrawRequest>) -> Vec<Result<WithdrawAnswer>> {
        self.shared.withdraw_all(&withdrawals).await
    }

    async fn publish(&self, _: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        let holds = |own: &&mut Own| own.granted_at.is_some() && !own.is_broken && own.ends_at > now();
        let mine = self.shared.owned().get_mut(claim).filter(holds).map(|own| {
            own.has_value = true;
            own.mine.clone()
        });
        let Some(mine) = mine else { return Ok(false) };
        self.shared.store.publish(mine, bytes, keep).await
    }

    async fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> Result<Vec<View>> {
        self.shared.page(&prefix, after, most).await
    }

    async fn view(&self, resource: Name) -> Result<Option<View>> {
        self.shared.view(&resource).await
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        observe(self.shared.clone(), resource)
    }

    async fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        self.shared.break_hold(&resource, token, at_once).await
    }

    async fn resize(&self, resource: Name, capacity: u32) -> Result<()> {
        self.shared.resize(&resource, capacity).await
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        self.shared.store.wakes().stream()
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        self.shared.store.queues()
    }

    async fn check(&self) -> Vec<Finding> {
        self.shared.store.check().await
    }
}
