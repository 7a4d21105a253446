//! The engine: the verbs of the contract, each in a transaction.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, DynQueueEngine, Engine, Finding, Incarnation, ReleaseAnswer,
    ReleaseRequest, RenewAnswer, RenewRequest, Wake, WithdrawAnswer, WithdrawRequest, claim_answer,
};
use tenure_core::model::claim::{Claim, ClaimId, Keep, Name, Waiting};
use tenure_core::model::inspect::View;
use tenure_core::model::step::{Break, Command, Publish, Release, Resize};
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, Result};
use tokio::task::AbortHandle;

use crate::database::Database;
use crate::fault::Fault;
use crate::locks::purge::{Purged, purge, sweep};
use crate::locks::renew::renew;
use crate::locks::transaction::{run_command, run_commands};
use crate::locks::waiters::Waiters;
use crate::locks::{observe, plain};
use crate::pause::pause;
use crate::queues::{QueueDatabase, Queued, Queues};

/// How often each client removes idle rows.
const PURGE_PERIOD: Duration = Duration::from_secs(60);

/// An engine on a SQL database.
pub struct Hosted<D: Database> {
    database: Arc<D>,
    queues: Option<Arc<dyn Queues>>,
    /// Those that wait, where nobody can notify them.
    waiters: Option<Arc<Waiters>>,
    tasks: Vec<AbortHandle>,
}

impl<D: Database> Hosted<D> {
    /// Makes the engine of a database whose tables are there. It has no queues. On a tokio runtime. `purges`: idle
    /// rows are removed.
    pub fn new(database: D, purges: bool) -> Hosted<D> {
        Hosted::start(Arc::new(database), None, purges)
    }

    /// As [`Hosted::new`], with queues. Their tables are made when the first queue is used.
    pub fn with_queues(database: D, purges: bool) -> Hosted<D>
    where
        D: QueueDatabase,
    {
        let database = Arc::new(database);
        let queues = Arc::new(Queued::new(database.clone()));
        Hosted::start(database, Some(queues), purges)
    }

    fn start(database: Arc<D>, queues: Option<Arc<dyn Queues>>, purges: bool) -> Hosted<D> {
        let waiters = (!database.hears()).then(Arc::<Waiters>::default);
        let purging = purges.then(|| tokio::spawn(keep_purging(database.clone(), queues.clone())));
        let looking = waiters.clone().map(|waiters| tokio::spawn(waiters.keep_looking(database.clone())));
        let tasks = purging.into_iter().chain(looking).map(|task| task.abort_handle()).collect();
        Hosted { database, queues, waiters, tasks }
    }

    /// Notes where claims stand, or that they stand nowhere.
    fn note<'a>(&self, stand: impl Iterator<Item = (ClaimId, Option<&'a Waiting>)>) {
        let Some(waiters) = &self.waiters else { return };
        for (claim, waiting) in stand {
            match waiting {
                Some(waiting) => waiters.stands(claim, waiting.position),
                None => waiters.remove(claim),
            }
        }
    }

    /// Returns the database.
    pub fn database(&self) -> &Arc<D> {
        &self.database
    }

    async fn submit<R, C: Command, A>(
        &self,
        operation: &'static str,
        requests: &[R],
        part: impl Fn(&R) -> (&Name, &C),
        answer: impl Fn(&R, C::Answer, Incarnation) -> Result<A>,
    ) -> Vec<Result<A>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let batch: Vec<_> = requests.iter().map(&part).collect();
        let done = run_commands(&*self.database, &batch).await;
        let answers = requests.iter().zip(done).map(|(request, done)| {
            let done = done.map_err(|fault| fault.to_error(operation))?;
            answer(request, done.transition.answer, done.incarnation)
        });
        answers.collect()
    }

    async fn submit_one<C: Command>(
        &self,
        operation: &'static str,
        resource: &Name,
        command: &C,
    ) -> Result<C::Answer> {
        self.ask(operation, run_command(&*self.database, resource, command)).await
    }

    async fn ask<A>(
        &self,
        operation: &'static str,
        asked: impl Future<Output = Result<A, Fault>>,
    ) -> Result<A> {
        asked.await.map_err(|fault| fault.to_error(operation))
    }
}

async fn keep_purging<D: Database>(database: Arc<D>, queues: Option<Arc<dyn Queues>>) {
    loop {
        // All clients of a fleet begin at another moment.
        pause(PURGE_PERIOD.mul_f64(0.5 + fastrand::f64())).await;
        match purge(&*database).await {
            Ok(Purged { count: 0, .. }) => {}
            Ok(Purged { count, .. }) => {
                tracing::debug!(engine = D::ENGINE, count, "idle resources are forgotten");
            }
            Err(fault) => {
                tracing::debug!(engine = D::ENGINE, ?fault, "idle resources cannot be forgotten now")
            }
        }
        if let Some(queues) = &queues
            && let Err(fault) = queues.forget().await
        {
            tracing::debug!(engine = D::ENGINE, ?fault, "what queues remember cannot be forgotten now");
        }
    }
}

impl<D: Database> Drop for Hosted<D> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl<D: Database> std::fmt::Debug for Hosted<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosted").field("engine", &D::ENGINE).finish_non_exhaustive()
    }
}

impl<D: Database> Engine for Hosted<D> {
    fn name(&self) -> &'static str {
        D::ENGINE
    }

    fn close(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.database.close();
    }

    fn capability(&self) -> &Capability {
        self.database.capability()
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        let answered = match plain::claim(&*self.database, &claims).await {
            Ok(answered) => answered,
            Err(fault) => {
                return vec![Err(fault.to_error("claim")); claims.len()];
            }
        };
        let rest: Vec<Claim> =
            claims.iter().filter(|claim| !answered.contains_key(&claim.id)).cloned().collect();
        let answers = self.submit("claim", &rest, |claim| (&claim.resource, claim), claim_answer);
        let mut answers = answers.await.into_iter();
        // An id may be there twice, if its caller has given it twice.
        let answer = |claim: &Claim| match answered.get(&claim.id) {
            Some(answer) => Some(Ok(answer.clone())),
            None => answers.next(),
        };
        let answers: Vec<Result<ClaimAnswer>> = claims.iter().filter_map(answer).collect();
        self.note(claims.iter().zip(&answers).map(|(claim, answer)| match answer {
            Ok(ClaimAnswer::Waiting(waiting, _)) => (claim.id, Some(waiting)),
            _ => (claim.id, None),
        }));
        claims.iter().for_each(|claim| self.database.inbox().wake_if_rung(claim.id));
        answers
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let answers = renew(&*self.database, &renewals).await;
        self.note(renewals.iter().zip(&answers).filter_map(|(renewal, answer)| match answer {
            Ok(RenewAnswer::Waiting(waiting, _)) => Some((renewal.claim, Some(waiting))),
            Ok(_) if renewal.is_waiter => Some((renewal.claim, None)),
            _ => None,
        }));
        answers.into_iter().map(|answer| answer.map_err(|fault| fault.to_error("renew"))).collect()
    }

    async fn release(&self, releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        self.note(releases.iter().map(|one| (one.release.claim, None)));
        let released = match plain::release(&*self.database, &releases).await {
            Ok(released) => released,
            Err(fault) => {
                return vec![Err(fault.to_error("release")); releases.len()];
            }
        };
        let rest: Vec<ReleaseRequest> = releases
            .iter()
            .filter_map(|one| match released.get(&one.release.claim) {
                Some(true) => None,
                None => Some(one.clone()),
                // It had ended by itself, and is remembered as `step` would have done.
                Some(false) => {
                    let release = Release { maybe_in_flight: true, ..one.release };
                    Some(ReleaseRequest { resource: one.resource.clone(), release })
                }
            })
            .collect();
        let answers =
            self.submit("release", &rest, |one| (&one.resource, &one.release), |_, answer, _| Ok(answer));
        let mut answers = answers.await.into_iter();
        let answer = |one: &ReleaseRequest| match released.get(&one.release.claim) {
            Some(true) => Some(Ok(ReleaseAnswer::Released)),
            _ => answers.next(),
        };
        releases.iter().filter_map(answer).collect()
    }

    async fn withdraw(&self, withdrawals: Vec<WithdrawRequest>) -> Vec<Result<WithdrawAnswer>> {
        self.note(withdrawals.iter().map(|one| (one.withdraw.claim, None)));
        self.submit("withdraw", &withdrawals, |one| (&one.resource, &one.withdraw), |_, answer, _| Ok(answer))
            .await
    }

    async fn publish(&self, resource: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        self.submit_one("publish", &resource, &Publish { claim, bytes, keep }).await
    }

    async fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> Result<Vec<View>> {
        self.ask("inspect", observe::page(&*self.database, &prefix, after.as_ref(), most)).await
    }

    async fn view(&self, resource: Name) -> Result<Option<View>> {
        self.ask("inspect", observe::view(&*self.database, &resource)).await
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        observe::observe(self.database.clone(), resource)
    }

    async fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        self.submit_one("break", &resource, &Break { token, at_once }).await
    }

    async fn resize(&self, resource: Name, capacity: u32) -> Result<()> {
        let resized = self.submit_one("resize", &resource, &Resize(capacity)).await?;
        resized.map_err(|why| Error::new(ErrorKind::Invalid, "resize", why))
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        let queues = self.queues.as_deref()?;
        Some(queues)
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        self.database.inbox().wakes()
    }

    async fn check(&self) -> Vec<Finding> {
        self.database.check().await
    }

    async fn migrate(&self) -> Result<Option<String>> {
        self.ask("migrate", self.database.migrate()).await
    }

    async fn purge(&self) -> Result<Option<usize>> {
        let mut count = 0;
        // A batch at a time: other clients' claims go on in between.
        loop {
            let purged = self.ask("purge", purge(&*self.database)).await?;
            count += purged.count;
            if !purged.is_more {
                break;
            }
        }
        self.ask("purge", sweep(&*self.database)).await?;
        if let Some(queues) = &self.queues {
            self.ask("purge", queues.forget()).await?;
        }
        Ok(Some(count))
    }
}
