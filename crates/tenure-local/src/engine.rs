//! The engine: the verbs of the contract, each a job in a transaction.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use tenure_core::clock::Clock;
use tenure_core::engine::queue::QueueCapability;
use tenure_core::engine::{
    Adopts, BlockingEngine, BreakAnswer, Capability, ClaimAnswer, DynQueueEngine, Engine, Finding, Reach,
    ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, Severity, Wake, WithdrawAnswer,
    WithdrawRequest, adopts_elsewhere, claim_answer, renew_answer,
};
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Keep, Name};
use tenure_core::model::inspect::View;
use tenure_core::model::step::{Break, Command, Publish, Renew, RenewOwn, Resize, Vanish};
use tenure_core::model::token::Token;
use tenure_core::testing::failpoint;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

use crate::client::job::{BATCH_MAX, Worker};
use crate::client::liveness::Life;
use crate::client::wake::{self, Inbox};
use crate::client::watch::{Reason, Watcher};
use crate::config::Config;
use crate::doctor::check;
use crate::error::{Failure, Fault, system_error};
use crate::locks::observe::{Observers, observe, without_the_dead};
use crate::locks::resource::{Done, Watchful};
use crate::place::directory::Setup;
use crate::place::fork::{ClosedOnFork, is_forked};
use crate::store::{Store, Transaction};

pub(crate) const ENGINE: &str = "local";
/// Why no client can renew what another has claimed.
pub(crate) const BOUND: &str = "what a process holds ends with that process, at once";
/// How many rounds of dead holders one claim waits out: each ends all that are dead at that moment, so a second one
/// is rare, and the heartbeat finds the rest.
const DEAD_ROUNDS_MAX: usize = 64;
/// How many records one transaction reads for a page.
const PAGE_MAX: usize = 64;
/// How long the disk may take for what a queue writes. It is synced, for which a busy disk takes seconds.
const DISK_MAX: Duration = Duration::from_secs(30);

/// A client of the `local` engine.
///
/// No example: it comes from `Config`, and is used by the client that connects with it.
pub struct Local {
    pub(crate) client: ClientId,
    capability: Capability,
    pub(crate) queue_capability: QueueCapability,
    pub(crate) worker: Arc<Worker>,
    inbox: Arc<Inbox>,
    observers: Arc<Observers>,
    pub(crate) watcher: Arc<Watcher>,
    listener: AbortHandle,
    life: Life,
}

impl Local {
    /// Connects a client. It must be called on a tokio runtime, which serves the client from then on.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the place cannot be trusted, is used from another container or by another
    /// version, or this process was forked from one that has clients; [`ErrorKind::Unavailable`] if it cannot be
    /// written or another process blocks it; [`ErrorKind::Internal`] if it is damaged.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub async fn connect(config: Config, client: ClientId, clock: Arc<dyn Clock>) -> Result<Local> {
        // Files are opened and locked here: the client's thread has nothing else to do before it is connected.
        let (worker, setup) = Worker::open(&config, clock)?;
        let (life, bell) = begin(&worker, client, &setup)?;
        drop(setup);
        // Others may have died and left something behind, which the thread sweeps when it has nothing to do.
        if crate::client::liveness::clients(&worker.store.directory).len() > 1 {
            worker.start_thread()?;
        }
        #[allow(deprecated, reason = "the descriptor inside stays open for as long as it is registered")]
        let bell = AsyncFd::with_interest(ClosedOnFork::new(bell), Interest::READABLE).map_err(|source| {
            system_error("connect", "listen in", &worker.store.directory.room.path, source)
        })?;
        worker.store.add_client(client);
        let inbox = Arc::new(Inbox::new());
        let observers = Arc::new(Observers::default());
        let watcher = Watcher::new(&worker, inbox.clone());
        let listener = wake::listen(bell, inbox.clone(), observers.clone(), watcher.clone());
        let listener = tokio::spawn(listener).abort_handle();
        let mut capability = Capability::of_step();
        capability.reach = Reach::Machine;
        capability.notices_death = true;
        capability.adopts = Adopts::SameClient;
        capability.adopts_reason = BOUND;
        capability.batch_max = BATCH_MAX;
        let mut queue_capability = QueueCapability::of_step();
        queue_capability.is_durable = true;
        queue_capability.answer_max = DISK_MAX;
        queue_capability.batch_max = BATCH_MAX;
        queue_capability.adopts = Adopts::SameClient;
        queue_capability.adopts_reason = BOUND;
        Ok(Local { client, capability, queue_capability, worker, inbox, observers, watcher, listener, life })
    }

    /// Counts the rows of the store, so that a test can see that nothing is left behind.
    ///
    /// # Errors
    /// If the store cannot be reached.
    #[doc(hidden)]
    pub fn rows(&self) -> Result<u64> {
        let store = &self.worker.store;
        let rows = store.read(|transaction| Ok(transaction.rows().len(transaction.reader())?));
        rows.map_err(|fault| fault.to_error("look", &store.directory.room.path))
    }

    /// Does one command per request in one transaction; `answer` sees each request with what became of it.
    async fn submit<R, A, B>(
        &self,
        operation: &'static str,
        requests: Vec<R>,
        name: fn(&R) -> &Name,
        run: fn(&mut Transaction<'_>, &R) -> Result<Done<A>, Failure>,
        answer: impl Fn(&Store, &R, Done<A>) -> Result<B> + Send + 'static,
    ) -> Vec<Result<B>>
    where
        R: Send + Sync + 'static,
        A: Send + 'static,
        B: Send + 'static,
    {
        let requests: Arc<[R]> = requests.into();
        let (all, follow) = (requests.clone(), requests.clone());
        let answers = self.worker.submit(
            operation,
            requests.len(),
            move |transaction| all.iter().map(|request| run(transaction, request)).collect(),
            move |store, done: Vec<Done<A>>| {
                let answers = follow.iter().zip(done).map(|(request, done)| {
                    let again = |transaction: &mut Transaction<'_>| run(transaction, request);
                    answer(store, request, past_the_dead(store, name(request), again, done))
                });
                Ok(answers.collect::<Vec<_>>())
            },
        );
        match answers.await {
            Ok(answers) => answers,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Does one command.
    async fn submit_one<C: Watchful<Answer: Send> + Send + 'static>(
        &self,
        operation: &'static str,
        name: Name,
        command: C,
    ) -> Result<C::Answer> {
        let done = self.worker.submit(
            operation,
            1,
            move |transaction| transaction.step(&name, &command),
            move |_, done| Ok(done.answer),
        );
        done.await
    }

    /// Does one command on the caller's thread.
    fn run_command<C: Watchful>(
        &self,
        operation: &'static str,
        name: &Name,
        command: &C,
    ) -> Result<Done<C::Answer>> {
        let store = &*self.worker.store;
        let failed = |fault: Fault| fault.to_error(operation, &store.directory.room.path);
        let run = |transaction: &mut Transaction<'_>| transaction.step(name, command);
        let (done, refused) = store.transact(run).map_err(failed)?;
        if !refused.is_empty() {
            // What cannot be reaped now is found dead again by a client that waits for it.
            drop(store.reap(refused));
        }
        Ok(past_the_dead(store, name, run, done))
    }

    /// Watches the clients that a waiting claim depends on, and none for one that does not wait.
    fn watch(&self, name: &Name, claim: ClaimId, waits_for: Option<&[ClientId]>) {
        match waits_for {
            Some(clients) => self.watcher.watch(Reason::Waits, name, claim, clients),
            None => self.watcher.forget(claim),
        }
    }
}

/// Makes a client known to others: its life first, so that it is not taken for dead.
fn begin(worker: &Worker, client: ClientId, _setup: &Setup) -> Result<(Life, OwnedFd)> {
    let directory = &worker.store.directory;
    let failed =
        |what| move |source: std::io::Error| system_error("connect", what, &directory.room.path, source);
    let life = Life::begin(directory, client).map_err(failed("write to"))?;
    failpoint::pass("local.before_listen");
    let bell = wake::bind(directory, client).map_err(failed("make a socket in"))?;
    Ok((life, bell))
}

/// Carries out a claim. Answers `None` if another client has claimed under its id, which a user gave it.
fn enter(
    transaction: &mut Transaction<'_>,
    claim: &Claim,
) -> Result<Done<Option<<Claim as Command>::Answer>>, Failure> {
    let mut before = Vec::new();
    if claim.may_be_known {
        let Done { answer, depends_on, woken } =
            transaction.step(&claim.resource, &RenewOwn(claim.id, claim.client))?;
        if answer.is_none() {
            return Ok(Done { answer: None, depends_on, woken });
        }
        before = woken;
    }
    let Done { answer, depends_on, woken } = transaction.step(&claim.resource, claim)?;
    before.extend(woken);
    Ok(Done { answer: Some(answer), depends_on, woken: before })
}

fn elsewhere() -> Error {
    adopts_elsewhere("claim", BOUND)
}

/// Ends what dead clients hold that a claim waits for or was refused for, and asks again.
fn past_the_dead<A>(
    store: &Store,
    name: &Name,
    run: impl Fn(&mut Transaction<'_>) -> Result<Done<A>, Failure>,
    mut done: Done<A>,
) -> Done<A> {
    for _ in 0..DEAD_ROUNDS_MAX {
        let dead: Vec<_> = done.depends_on.iter().copied().filter(|client| store.is_dead(*client)).collect();
        if dead.is_empty() {
            break;
        }
        let again = store.transact(|transaction| {
            for client in &dead {
                transaction.step(name, &Vanish(*client))?;
            }
            run(transaction)
        });
        // If the store cannot be reached now, the first answer is still true.
        let Ok((again, refused)) = again else { break };
        drop(store.reap(refused));
        done = again;
    }
    done
}

impl Engine for Local {
    fn name(&self) -> &'static str {
        ENGINE
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        let ids: Vec<_> = claims.iter().map(|claim| (claim.resource.clone(), claim.id)).collect();
        let answers = self
            .submit(
                "claim",
                claims,
                |claim| &claim.resource,
                enter,
                |store, claim, done| {
                    let answer = done.answer.ok_or_else(elsewhere)?;
                    Ok((claim_answer(claim, answer, store.incarnation)?, done.depends_on))
                },
            )
            .await;
        let answers = ids.iter().zip(answers).map(|((name, id), answer)| {
            let (answer, depends_on) = answer?;
            let is_waiting = matches!(answer, ClaimAnswer::Waiting(..));
            self.watch(name, *id, is_waiting.then_some(&*depends_on));
            Ok(answer)
        });
        answers.collect()
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let ids: Vec<_> = renewals.iter().map(|renewal| (renewal.resource.clone(), renewal.claim)).collect();
        let answers = self
            .submit(
                "renew",
                renewals,
                |renewal| &renewal.resource,
                |transaction, renewal| transaction.step(&renewal.resource, &Renew(renewal.claim)),
                |store, renewal, done| {
                    Ok((renew_answer(renewal, done.answer, store.incarnation), done.depends_on))
                },
            )
            .await;
        let answers = ids.iter().zip(answers).map(|((name, id), answer)| {
            let (answer, depends_on) = answer?;
            let is_waiting = matches!(answer, RenewAnswer::Waiting(..));
            self.watch(name, *id, is_waiting.then_some(&*depends_on));
            Ok(answer)
        });
        answers.collect()
    }

    async fn adopt(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let ids: Vec<_> = renewals.iter().map(|renewal| (renewal.resource.clone(), renewal.claim)).collect();
        let asked = renewals.into_iter().map(|renewal| (self.client, renewal)).collect();
        let answers = self
            .submit(
                "renew",
                asked,
                |(_, renewal): &(ClientId, RenewRequest)| &renewal.resource,
                |transaction, (client, renewal)| {
                    transaction.step(&renewal.resource, &RenewOwn(renewal.claim, *client))
                },
                |store, (_, renewal), done| {
                    let answer = done.answer.map(|renewed| renew_answer(renewal, renewed, store.incarnation));
                    Ok((answer, done.depends_on))
                },
            )
            .await;
        let answers = ids.iter().zip(answers).map(|((name, id), answer)| {
            let (answer, depends_on) = answer?;
            let answer = answer.ok_or_else(|| adopts_elsewhere("renew", BOUND))?;
            let is_waiting = matches!(answer, RenewAnswer::Waiting(..));
            self.watch(name, *id, is_waiting.then_some(&*depends_on));
            Ok(answer)
        });
        answers.collect()
    }

    async fn release(&self, releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        for release in &releases {
            self.watcher.forget(release.release.claim);
        }
        self.submit(
            "release",
            releases,
            |release| &release.resource,
            |transaction, release| transaction.step(&release.resource, &release.release),
            |_, _, done| Ok(done.answer),
        )
        .await
    }

    async fn withdraw(&self, withdrawals: Vec<WithdrawRequest>) -> Vec<Result<WithdrawAnswer>> {
        let claims: Vec<ClaimId> = withdrawals.iter().map(|one| one.withdraw.claim).collect();
        let answers = self
            .submit(
                "withdraw",
                withdrawals,
                |withdrawal| &withdrawal.resource,
                |transaction, withdrawal| transaction.step(&withdrawal.resource, &withdrawal.withdraw),
                |_, _, done| Ok(done.answer),
            )
            .await;
        for (claim, answer) in claims.into_iter().zip(&answers) {
            if !matches!(answer, Ok(WithdrawAnswer::InUse)) {
                self.watcher.forget(claim);
            }
        }
        answers
    }

    async fn publish(&self, resource: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        self.submit_one("publish", resource, Publish { claim, bytes, keep }).await
    }

    async fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> Result<Vec<View>> {
        let failed = |store: &Store, fault: Fault| fault.to_error("inspect", &store.directory.room.path);
        self.worker
            .submit(
                "inspect",
                BATCH_MAX,
                |_| Ok(()),
                move |store, ()| inspect(store, &prefix, after, most).map_err(|fault| failed(store, fault)),
            )
            .await
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        observe(&self.worker, &self.observers, &self.watcher, self.client, resource)
    }

    async fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        self.submit_one("break", resource, Break { token, at_once }).await
    }

    async fn resize(&self, resource: Name, capacity: u32) -> Result<()> {
        let resized = self.submit_one("resize", resource, Resize(capacity)).await?;
        resized.map_err(|why| Error::new(ErrorKind::Invalid, "resize", why))
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        self.inbox.read()
    }

    async fn check(&self) -> Vec<Finding> {
        let findings = self.worker.submit("check", BATCH_MAX, |_| Ok(()), |store, ()| Ok(check(store)));
        findings.await.unwrap_or_else(|error| {
            let hint = error.hint().map(str::to_owned);
            vec![Finding { severity: Severity::Bad, what: "store", found: error.to_string(), hint }]
        })
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        Some(self)
    }

    fn blocking(&self) -> Option<&dyn BlockingEngine> {
        Some(self)
    }

    fn share_life(&self, pid: u32) -> Result<Option<OwnedFd>> {
        let boot = &self.worker.store.directory.room.path;
        self.life
            .share(pid)
            .map(Some)
            .map_err(|source| system_error("share a life", "write to", boot, source))
    }
}

impl BlockingEngine for Local {
    fn claim(&self, claim: &Claim) -> Result<ClaimAnswer> {
        let done = self.run_command("claim", &claim.resource, claim)?;
        let incarnation = self.worker.store.incarnation;
        let answer = claim_answer(claim, done.answer, incarnation)?;
        let is_waiting = matches!(answer, ClaimAnswer::Waiting(..));
        self.watch(&claim.resource, claim.id, is_waiting.then_some(&*done.depends_on));
        Ok(answer)
    }

    fn release(&self, release: &ReleaseRequest) -> Result<ReleaseAnswer> {
        self.watcher.forget(release.release.claim);
        Ok(self.run_command("release", &release.resource, &release.release)?.answer)
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = &self.worker.store.directory.place;
        f.debug_struct("Local").field("client", &self.client).field("place", place).finish_non_exhaustive()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if !is_forked() {
            self.listener.abort();
            self.watcher.stop();
            self.worker.store.remove_client(self.client);
            if let Some(queues) = self.worker.open_queues() {
                queues.store.forget_announced(self.client);
            }
        }
    }
}

/// Lists what living clients hold or wait for.
fn inspect(store: &Store, prefix: &str, mut after: Option<Name>, most: usize) -> Result<Vec<View>, Fault> {
    let most = most.min(PAGE_MAX);
    let mut views = Vec::new();
    while views.is_empty() && most > 0 {
        let found = store.read(|transaction| {
            let names = transaction.names(prefix, after.as_ref(), most)?;
            names
                .into_iter()
                .map(|name| transaction.view(&name).map(|seen| (name, seen)))
                .collect::<Result<Vec<_>, _>>()
        })?;
        let Some((last, _)) = found.last() else { break };
        after = Some(last.clone());
        // Few clients hold many names, and each check of one costs three system calls.
        let clients: HashSet<_> =
            found.iter().flat_map(|(_, seen)| seen.holders.iter().chain(&seen.waiters)).copied().collect();
        let dead: HashSet<_> = clients.into_iter().filter(|client| store.is_dead(*client)).collect();
        for (name, mut seen) in found {
            if seen.holders.iter().chain(&seen.waiters).any(|client| dead.contains(client)) {
                seen = without_the_dead(store, &name, seen)?;
            }
            views.extend(seen.view);
        }
    }
    Ok(views)
}
