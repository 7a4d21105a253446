//! The thread that does a process's store work, and the batches in which it does it.
//!
//! Whatever arrived while the last transaction ran goes into the next one, up to [`BATCH_MAX`] commands: this is
//! where the throughput of many tasks comes from. If the transaction fails, each job is done alone, so that one
//! that cannot be stored takes no other down. A panic is an answer (`Internal`) like any other.
//!
//! One thread serves all clients of a process on one directory. It starts with the first job, since a program
//! that is alone and makes only blocking calls needs none, and ends with the last client.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tenure_core::clock::Clock;
use tenure_core::error::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::error::{Failure, Fault, forked_error};
use crate::locks::sweep::Sweep;
use crate::place::directory::{Directory, Setup};
use crate::place::fork::is_forked;
use crate::place::room::Identity;
use crate::store::{Purpose, Store, Transaction};

/// How many commands one transaction takes. `benches/local.rs`: from 32 on, a larger batch gains nothing, and
/// one of 128 holds the gate for 0.12 ms.
pub(crate) const BATCH_MAX: usize = 128;

/// The stores that this process has open: LMDB allows one environment per file and process.
static WORKERS: Mutex<BTreeMap<Identity, Weak<Worker>>> = Mutex::new(BTreeMap::new());

/// A store and its thread.
pub(crate) struct Worker {
    pub(crate) store: Arc<Store>,
    sender: Sender<Box<dyn Job>>,
    /// The other end, until the thread has it.
    jobs: Mutex<Option<Jobs>>,
    /// The worker of the queues, from the first use of one: its commits wait for the disk, and locks must not.
    queues: Mutex<Option<Arc<Worker>>>,
    queue_map_bytes: usize,
}

/// The thread's end of the channel.
type Jobs = Receiver<Box<dyn Job>>;

/// Something for the thread to do.
trait Job: Send {
    /// What it is called in an error.
    fn operation(&self) -> &'static str;
    /// How many commands it has.
    fn commands(&self) -> usize;
    /// Does it. It may be done again, if the transaction failed.
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Failure>;
    /// Answers, after the commit.
    fn end(self: Box<Self>, store: &Store, result: Result<()>);
}

/// A job in closures: `run` inside the transaction, then `follow` outside of it, on the same thread.
struct Task<T, U, Run, Follow> {
    operation: &'static str,
    commands: usize,
    run: Run,
    follow: Follow,
    done: Option<T>,
    reply: oneshot::Sender<Result<U>>,
}

impl<T, U, Run, Follow> Job for Task<T, U, Run, Follow>
where
    T: Send,
    U: Send,
    Run: FnMut(&mut Transaction<'_>) -> Result<T, Failure> + Send,
    Follow: FnOnce(&Store, T) -> Result<U> + Send,
{
    fn operation(&self) -> &'static str {
        self.operation
    }

    fn commands(&self) -> usize {
        self.commands
    }

    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Failure> {
        self.done = Some((self.run)(transaction)?);
        Ok(())
    }

    fn end(self: Box<Self>, store: &Store, result: Result<()>) {
        let Task { follow, done, reply, .. } = *self;
        let answer = match (result, done) {
            (Ok(()), Some(done)) => follow(store, done),
            (Ok(()), None) => Err(gone(self.operation)),
            (Err(error), _) => Err(error),
        };
        // The caller may have stopped waiting.
        drop(reply.send(answer));
    }
}

impl Worker {
    /// Opens the store of a configuration, or joins the one that this process has open. The setup's lock is
    /// held until the caller drops it.
    pub(crate) fn open(config: &Config, clock: Arc<dyn Clock>) -> Result<(Arc<Worker>, Setup)> {
        if is_forked() {
            return Err(forked_error("connect"));
        }
        let (directory, setup) = Directory::open(config, &*clock)?;
        let identity = directory.room.identity().map_err(|source| {
            crate::error::system_error("connect", "look at", &directory.room.path, source)
        })?;
        if let Some(worker) = find(identity, &directory)? {
            return Ok((worker, setup));
        }
        // Meanwhile the setup's lock keeps others of this process from opening the same one. The list is not
        // locked: clients of other directories need not wait.
        let store = Arc::new(Store::open(Arc::new(directory), clock, config, &setup)?);
        let worker = Arc::new(Worker::new(store, config.queue_map_bytes));
        let mut workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|_, worker| worker.strong_count() > 0);
        workers.insert(identity, Arc::downgrade(&worker));
        Ok((worker, setup))
    }

    fn new(store: Arc<Store>, queue_map_bytes: usize) -> Worker {
        let (sender, jobs) = channel();
        Worker { store, sender, jobs: Mutex::new(Some(jobs)), queues: Mutex::default(), queue_map_bytes }
    }

    /// Returns the worker of the queues, if a queue has been used.
    pub(crate) fn open_queues(&self) -> Option<Arc<Worker>> {
        // The thread that opens it holds the lock for long, and there is nothing to return until then.
        self.queues.try_lock().ok()?.clone()
    }

    /// Returns the worker of the queues; opens their store at the first use.
    pub(crate) async fn queues(self: &Arc<Self>, operation: &'static str) -> Result<Arc<Worker>> {
        if is_forked() {
            return Err(forked_error(operation));
        }
        if let Some(queues) = self.open_queues() {
            return Ok(queues);
        }
        let (reply, answer) = oneshot::channel();
        let worker = self.clone();
        let open = move || {
            let mut queues = worker.queues.lock().unwrap_or_else(PoisonError::into_inner);
            let opened = match &*queues {
                Some(queues) => Ok(queues.clone()),
                None => worker.store.open_queues(worker.queue_map_bytes).map(|store| {
                    let opened = Arc::new(Worker::new(Arc::new(store), worker.queue_map_bytes));
                    queues.insert(opened).clone()
                }),
            };
            drop(queues);
            // The caller may have stopped waiting.
            drop(reply.send(opened));
        };
        // Files are locked and synced, which may take long: not on the thread of timers and losses.
        spawn("tenure-open", open)?;
        answer.await.unwrap_or_else(|_| Err(gone(operation)))
    }

    /// Does something in a transaction, and then something more outside of it.
    pub(crate) async fn submit<T: Send + 'static, U: Send + 'static>(
        &self,
        operation: &'static str,
        commands: usize,
        run: impl FnMut(&mut Transaction<'_>) -> Result<T, Failure> + Send + 'static,
        follow: impl FnOnce(&Store, T) -> Result<U> + Send + 'static,
    ) -> Result<U> {
        let answer = self.post(operation, commands, run, follow)?;
        answer.await.unwrap_or_else(|_| Err(gone(operation)))
    }

    /// As [`Worker::submit`], but the answer may be dropped.
    pub(crate) fn post<T: Send + 'static, U: Send + 'static>(
        &self,
        operation: &'static str,
        commands: usize,
        run: impl FnMut(&mut Transaction<'_>) -> Result<T, Failure> + Send + 'static,
        follow: impl FnOnce(&Store, T) -> Result<U> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<U>>> {
        if is_forked() {
            return Err(forked_error(operation));
        }
        self.start_thread()?;
        let (reply, answer) = oneshot::channel();
        let task = Task { operation, commands, run, follow, done: None, reply };
        self.sender.send(Box::new(task)).map_err(|_| gone(operation))?;
        Ok(answer)
    }

    /// Starts the thread, unless it runs.
    pub(crate) fn start_thread(&self) -> Result<()> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(receiver) = jobs.take() else { return Ok(()) };
        let store = self.store.clone();
        spawn("tenure-store", move || serve(&store, &receiver))
    }
}

fn spawn(name: &str, thread: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(thread);
    started.map(drop).map_err(|source| {
        Error::new(ErrorKind::Unavailable, "start", "cannot start a thread").with_source(source)
    })
}

/// Finds the store that this process has open in a directory.
fn find(identity: Identity, directory: &Directory) -> Result<Option<Arc<Worker>>> {
    let workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
    let open: Vec<_> =
        workers.iter().filter_map(|(identity, worker)| Some((*identity, worker.upgrade()?))).collect();
    // One may be the last to be let go of here, which takes a while.
    drop(workers);
    let mut found = None;
    for (other, worker) in open {
        if other == identity {
            found = Some(worker);
        } else if worker.store.directory.room.path == directory.room.path {
            return Err(Fault::Removed.to_error("connect", &directory.room.path));
        }
    }
    Ok(found)
}

/// The error of a caller whose job was lost with the thread.
fn gone(operation: &'static str) -> Error {
    Error::new(ErrorKind::Internal, operation, "the thread of the store panicked or has ended")
        .with_hint("report it, with the panic message that came before")
}

fn serve(store: &Store, receiver: &Jobs) {
    let mut sweep = None;
    while let Some(first) = next(store, receiver, &mut sweep) {
        let mut commands = first.commands();
        let mut batch = vec![first];
        while commands < BATCH_MAX
            && let Ok(next) = receiver.try_recv()
        {
            commands += next.commands();
            batch.push(next);
        }
        // What was not expected to panic takes its batch down, and no more: a dropped reply is an answer.
        drop(catch_unwind(AssertUnwindSafe(|| run_batch(store, batch))));
    }
}

/// Waits for the next job, and sweeps while there is none. Returns `None` when the last client is gone.
fn next(store: &Store, receiver: &Jobs, sweep: &mut Option<Sweep>) -> Option<Box<dyn Job>> {
    while !sweep.as_ref().is_some_and(Sweep::is_done) {
        match receiver.try_recv() {
            Ok(job) => return Some(job),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {
                let step = || match sweep.take() {
                    Some(sweep) => sweep.step(store),
                    // What the dead had of a queue is found by the next take.
                    None if store.purpose == Purpose::Queues => Sweep::Done,
                    None => Sweep::begin(store),
                };
                *sweep = Some(catch_unwind(AssertUnwindSafe(step)).unwrap_or(Sweep::Done));
            }
        }
    }
    receiver.recv().ok()
}

fn run_batch(store: &Store, mut batch: Vec<Box<dyn Job>>) {
    let done = store.transact(|transaction| batch.iter_mut().try_for_each(|job| job.run(transaction)));
    match done {
        Ok(((), refused)) => {
            for job in batch {
                end(store, job, Ok(()));
            }
            // What cannot be reaped now is found dead again by a client that waits for it.
            drop(store.reap(refused));
        }
        Err(Fault::Failed(_)) if batch.len() > 1 => {
            for job in batch {
                run_batch(store, vec![job]);
            }
        }
        Err(fault) => {
            let fault = store.fault(fault);
            for job in batch {
                let error = fault.to_error(job.operation(), &store.room.path);
                end(store, job, Err(error));
            }
        }
    }
}

fn end(store: &Store, job: Box<dyn Job>, result: Result<()>) {
    // A panic drops the reply, and the caller learns of it by that.
    drop(catch_unwind(AssertUnwindSafe(|| job.end(store, result))));
}
