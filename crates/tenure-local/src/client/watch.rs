//! Watching for deaths: each waiter's client watches the client ahead of it, the head's watches the holders'.
//!
//! A task per watched client waits for the processes that its file names, and then checks the file's lock: the lock
//! decides. If it is free, the task ends what the dead client held or waited for in every resource for which it was
//! watched, and finds out which clients the own claims depend on next. Processes that share the life of a client are
//! found when the ones known so far have died.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::select_all;
use rustix::process::{Pid, PidfdFlags};
use tenure_core::engine::Wake;
use tenure_core::model::claim::{ClaimId, ClientId, Name};
use tenure_core::model::step::Vanish;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::client::job::Worker;
use crate::client::liveness;
use crate::client::wake::Inbox;

/// How long to wait before another check of a client whose known processes are dead, but whose lock is held: a
/// process that shares its life has yet to write its pid, or never will.
const UNKNOWN_SHARER_PERIOD: Duration = Duration::from_millis(100);

/// Why a death matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A claim waits.
    Waits,
    /// A resource is observed. What stands for the claim is the observer's own.
    Observes,
    /// Items of a queue are waited for. What stands for the claim is the queue's own.
    Consumes,
}

/// What a claim or an observer depends on.
struct For {
    reason: Reason,
    name: Name,
    clients: Vec<ClientId>,
}

/// The deaths that one client waits for.
pub(crate) struct Watcher {
    worker: Weak<Worker>,
    inbox: Arc<Inbox>,
    runtime: Handle,
    /// How many claims are watched for, so that the common case, none, costs no lock.
    count: AtomicUsize,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    claims: HashMap<ClaimId, For>,
    /// What stands for a queue.
    queues: HashMap<Name, ClaimId>,
    clients: HashMap<ClientId, (AbortHandle, HashSet<ClaimId>)>,
}

impl Watcher {
    /// Makes one whose tasks run on the current runtime.
    pub(crate) fn new(worker: &Arc<Worker>, inbox: Arc<Inbox>) -> Arc<Watcher> {
        Arc::new(Watcher {
            worker: Arc::downgrade(worker),
            inbox,
            runtime: Handle::current(),
            count: AtomicUsize::new(0),
            watched: Mutex::default(),
        })
    }

    /// Watches these clients, and no others, for a claim.
    pub(crate) fn watch(self: &Arc<Self>, reason: Reason, name: &Name, claim: ClaimId, clients: &[ClientId]) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(&mut watched, reason, name, claim, clients.to_vec());
    }

    /// Watches these clients for a queue too. Those before stay: news of a client that takes may come before the answer
    /// of the take that makes this one wait.
    pub(crate) fn watch_consumers(self: &Arc<Self>, queue: &Name, clients: &[ClientId]) {
        let Some(worker) = self.worker.upgrade() else { return };
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let claim = *watched.queues.entry(queue.clone()).or_insert_with(|| {
            let (high, low) = (worker.store.clock.random(), worker.store.clock.random());
            ClaimId::new(u128::from(high) << 64 | u128::from(low))
        });
        let mut clients = clients.to_vec();
        if let Some(before) = watched.claims.get(&claim) {
            let others = before.clients.iter().filter(|client| !clients.contains(client));
            clients.extend(others.copied().collect::<Vec<_>>());
        }
        self.set(&mut watched, Reason::Consumes, queue, claim, clients);
    }

    /// Stops watching for a queue.
    pub(crate) fn forget_consumers(&self, queue: &Name) {
        let claim = self.watched.lock().unwrap_or_else(PoisonError::into_inner).queues.remove(queue);
        if let Some(claim) = claim {
            self.forget(claim);
        }
    }

    fn set(
        self: &Arc<Self>,
        watched: &mut Watched,
        reason: Reason,
        name: &Name,
        claim: ClaimId,
        clients: Vec<ClientId>,
    ) {
        let Some(worker) = self.worker.upgrade() else { return };
        // Those of this process die with it, or are closed by it: their file then says so at the next heartbeat.
        let clients: Vec<_> = clients.into_iter().filter(|client| !worker.store.is_here(*client)).collect();
        let now = For { reason, name: name.clone(), clients: clients.clone() };
        let before = watched.claims.insert(claim, now).map(|before| before.clients).unwrap_or_default();
        for client in before.iter().filter(|client| !clients.contains(client)) {
            watched.leave(*client, claim);
        }
        for client in clients {
            let (_, claims) = watched.clients.entry(client).or_insert_with(|| {
                let task = self.runtime.spawn(wait_for_death(self.clone(), client));
                (task.abort_handle(), HashSet::new())
            });
            claims.insert(claim);
        }
        self.count.store(watched.claims.len(), Ordering::Relaxed);
    }

    /// Stops watching for a claim that does not wait any more.
    pub(crate) fn forget(&self, claim: ClaimId) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        for client in watched.claims.remove(&claim).map(|gone| gone.clients).unwrap_or_default() {
            watched.leave(client, claim);
        }
        self.count.store(watched.claims.len(), Ordering::Relaxed);
    }

    /// Stops watching.
    pub(crate) fn stop(&self) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.claims.clear();
        watched.queues.clear();
        for (_, (task, _)) in watched.clients.drain() {
            task.abort();
        }
    }

    /// Stops to watch a dead client; says for which claims it was watched.
    fn take(&self, client: ClientId) -> Vec<(Reason, Name, ClaimId)> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let claims = watched.clients.remove(&client).map(|(_, claims)| claims).unwrap_or_default();
        let mut found = Vec::new();
        for claim in claims {
            if let Some(watched) = watched.claims.get_mut(&claim) {
                watched.clients.retain(|other| *other != client);
                found.push((watched.reason, watched.name.clone(), claim));
            }
        }
        found
    }
}

impl Watched {
    fn leave(&mut self, client: ClientId, claim: ClaimId) {
        if let Some((task, claims)) = self.clients.get_mut(&client) {
            claims.remove(&claim);
            if claims.is_empty() {
                task.abort();
                self.clients.remove(&client);
            }
        }
    }
}

async fn wait_for_death(watcher: Arc<Watcher>, client: ClientId) {
    // What has fired once is dead, even while its parent has not yet waited for it.
    let mut dead = HashSet::new();
    loop {
        let Some(worker) = watcher.worker.upgrade() else { return };
        let pids = match liveness::pids(&worker.store.directory, client) {
            Ok(None) => break,
            Ok(Some(pids)) => pids,
            Err(_) => Vec::new(),
        };
        let clock = worker.store.clock.clone();
        drop(worker);
        let processes: Vec<_> = pids
            .into_iter()
            .filter(|pid| !dead.contains(pid))
            .filter_map(|pid| Some((pid, open_process(pid)?)))
            .collect();
        if processes.is_empty() {
            let at = clock.now() + UNKNOWN_SHARER_PERIOD;
            let Ok(mut timer) = clock.timer() else { return };
            poll_fn(|cx| timer.poll_until(at, cx)).await;
            continue;
        }
        let ends = processes.iter().map(|(pid, process)| {
            Box::pin(async move {
                // An error would come again at once, so it counts as an end too.
                drop(process.readable().await);
                *pid
            })
        });
        let (pid, _, _) = select_all(ends).await;
        dead.insert(pid);
    }
    reap(&watcher, client).await;
}

/// Opens a descriptor that becomes readable when the process ends. `None` if it has ended, or cannot be watched.
fn open_process(pid: u32) -> Option<AsyncFd<OwnedFd>> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let process = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    #[allow(deprecated, reason = "an OwnedFd inside stays open for as long as it is registered")]
    AsyncFd::with_interest(process, Interest::READABLE).ok()
}

/// Ends what a dead client held or waited for where it was watched.
async fn reap(watcher: &Arc<Watcher>, client: ClientId) {
    let Some(worker) = watcher.worker.upgrade() else { return };
    let (consumes, claims): (Vec<_>, Vec<_>) =
        watcher.take(client).into_iter().partition(|(reason, ..)| *reason == Reason::Consumes);
    for (_, queue, _) in consumes {
        // The next take then finds it dead.
        watcher.inbox.put(Wake::Queue(queue));
    }
    let names: HashSet<_> = claims.iter().map(|(_, name, _)| name.clone()).collect();
    if names.is_empty() {
        return;
    }
    // An observer is rung by the change itself.
    let waits = claims.into_iter().filter(|(reason, ..)| *reason == Reason::Waits);
    let waits: Arc<[_]> = waits.map(|(_, name, claim)| (name, claim)).collect();
    let (run, commands) = (waits.clone(), names.len());
    let next = worker.submit(
        "wait",
        commands,
        move |transaction| {
            let mut woken = Vec::new();
            for name in &names {
                woken.extend(transaction.step(name, &Vanish(client))?.woken);
            }
            let next = run.iter().filter(|(_, claim)| !woken.contains(claim)).map(|(name, claim)| {
                let clients = transaction.waits_for(name, *claim)?;
                Ok((name.clone(), *claim, clients))
            });
            next.collect()
        },
        move |_, next: Vec<_>| Ok(next),
    );
    match next.await {
        Ok(next) => {
            for (name, claim, clients) in next {
                if clients.is_empty() {
                    // It does not wait any more, and the process that ended its wait may have died before its
                    // notification.
                    watcher.inbox.put(Wake::Look(claim));
                } else {
                    watcher.watch(Reason::Waits, &name, claim, &clients);
                }
            }
        }
        // The store cannot be reached now; the heartbeats find the death too.
        Err(_) => {
            for (_, claim) in &*waits {
                watcher.inbox.put(Wake::Look(*claim));
            }
        }
    }
}
