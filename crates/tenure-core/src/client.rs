//! A connected client, from which every primitive is named.

mod alarm;
pub(crate) mod backoff;
pub(crate) mod floors;
pub(crate) mod lease_state;
pub(crate) mod ledger;
mod listing;
pub(crate) mod queue_client;
mod renewal;
mod settings;
mod thread;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::task::AtomicWaker;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::client::alarm::Alarms;
use crate::client::floors::Floors;
use crate::client::ledger::{Identity, Ledger, Now};
use crate::client::queue_client::QueueClient;
pub use crate::client::settings::Settings;
use crate::clock::{Clock, Instant, SystemClock, Timer};
use crate::engine::queue::QueueCapability;
use crate::engine::{BreakAnswer, Capability, Connect, DynEngine, Finding};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::face::all_of::{AllOf, LockRequest};
use crate::face::election::Election;
use crate::face::mutex::Mutex;
use crate::face::queue::Queue;
use crate::face::rw_lock::RwLock;
use crate::face::semaphore::Semaphore;
use crate::face::single_flight::{Flights, SingleFlight};
use crate::face::slot_pool::SlotPool;
use crate::model::claim::{CAPACITY_MAX, ClientId, Label, Name, Terms};
use crate::model::inspect::View;
use crate::model::token::Token;

/// How many timers are kept: as many as calls of queues are under way at a time. Each is a file descriptor.
const TIMERS_MAX: usize = 8;

/// A client of an engine. Cloning is cheap and shares the connection.
///
/// One thread of its own (`tenure-io`) does all sending, renewing and waking, so leases stay held while the
/// caller's runtime is blocked, and every future works on any runtime. When the last clone and the last lease
/// are gone, the thread finishes the releases that are under way and ends.
///
/// # Examples
/// Each method in a line:
/// ```no_run
/// # use std::sync::Arc;
/// # use tenure_core::{Error, Settings, Tenure, Token, clock::SystemClock, engine::Connect};
/// # async fn f(engine: impl Fn() -> Connect, token: Token) -> Result<(), Error> {
/// # let (connect, settings, clock) = (engine(), Settings::new(), Arc::new(SystemClock));
/// let tenure = Tenure::start(connect, clock, settings).await?;
/// # let (connect, settings) = (engine(), Settings::new());
/// let tenure = Tenure::connect_with(connect, settings).await?;
/// # let connect = engine();
/// let tenure = Tenure::new(connect).await?;
/// let lock = tenure.mutex("billing/4711");
/// let catalog = tenure.rw_lock("catalog");
/// let scrapers = tenure.semaphore("scrapers", 8);
/// let pool = tenure.slot_pool("worker-ids", 16);
/// let election = tenure.election("scheduler");
/// let price = tenure.single_flight("price/4711");
/// let queue = tenure.queue("refunds");
/// let set = tenure.all([tenure.mutex("a").into(), tenure.mutex("b").into()]);
/// let has_queues = tenure.queue_capability().is_some();
/// let engine = tenure.engine();
/// let capability = tenure.capability();
/// let label = tenure.label();
/// tenure.raise_floor("billing/4711", token)?;
/// let view = tenure.view("billing/4711").await?;
/// let mut changes = tenure.observe("billing/4711")?;
/// let answer = tenure.break_hold("billing/4711", token, false).await?;
/// tenure.resize("scrapers", 16).await?;
/// let findings = tenure.check().await?;
/// let views = tenure.inspect("billing/").await?;
/// let each = tenure.inspect_each("billing/").await?;
/// let queues = tenure.queues("").await?;
/// let each = tenure.queues_each("").await?;
/// let made = tenure.migrate().await?;
/// let removed = tenure.purge().await?;
/// let tie = tenure.share_life(std::process::id())?;
/// while let Some(view) = changes.next().await { println!("{:?}", view?); }
/// tenure.close().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Tenure {
    pub(crate) connection: Arc<Connection>,
}

/// Keeps the client's thread running.
pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Release);
        self.shared.poke();
    }
}

/// What the users' threads and the client's own thread share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn DynEngine>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    pub(crate) client: ClientId,
    /// What a primitive starts from.
    pub(crate) terms: Arc<Terms>,
    /// The terms that were used last.
    last_terms: StdMutex<Arc<Terms>>,
    /// Notified when the thread has ended.
    pub(crate) ended: Notify,
    has_ended: AtomicBool,
    ledger: StdMutex<Ledger>,
    floors: StdMutex<Floors>,
    /// What is loaded once for all of this client's tasks.
    pub(crate) flights: Flights,
    /// What is asked of queues.
    pub(crate) queue_client: QueueClient,
    /// The process whose thread this is.
    pid: u32,
    pub(crate) runtime: tokio::runtime::Handle,
    alarms: Alarms,
    /// Timers that are not in use.
    timers: StdMutex<Vec<Box<dyn Timer>>>,
    is_closing: AtomicBool,
    /// Whether the event that a ttl is shorter than the engine counts has been emitted.
    has_reported_coarse_ttl: AtomicBool,
    is_poked: AtomicBool,
    waker: AtomicWaker,
    /// Until when the thread sleeps, in nanoseconds: a caller that needs it sooner pokes it.
    sleeps_until: AtomicU64,
}

impl Shared {
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // A panic inside the ledger ends the client's thread, and that closes the ledger.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the ledger from the client's own thread. Notices go out when the lock is free again, so that a waker may
    /// run anything, and no woken task has to wait for the lock.
    pub(crate) fn with_ledger<T>(&self, work: impl FnOnce(&mut Ledger, &Now<'_>) -> T) -> T {
        let random = || self.clock.random();
        let now = Now { at: self.clock.now(), random: &random };
        let (result, mut notices) = {
            let mut ledger = self.ledger();
            (work(&mut ledger, &now), ledger.take_notices())
        };
        let uncollected = std::mem::take(&mut notices.uncollected);
        notices.send();
        uncollected.iter().for_each(|lease| self.return_uncollected(lease));
        result
    }

    /// Uses the ledger from a user's thread, and pokes the client's thread if there is something new for it.
    pub(crate) fn update_ledger<T>(&self, work: impl FnOnce(&mut Ledger, &Now<'_>) -> T) -> T {
        let (result, is_news) = self.with_ledger(|ledger, now| {
            let result = work(ledger, now);
            let is_sooner = ledger.next_due().nanos() < self.sleeps_until.load(Ordering::Relaxed);
            (result, ledger.take_news() || is_sooner)
        });
        if is_news {
            self.poke();
        }
        result
    }

    pub(crate) fn poke(&self) {
        if !self.is_poked.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Ready if the client's thread has been poked.
    pub(crate) fn poll_news(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_poked.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        self.waker.register(cx.waker());
        if self.is_poked.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Notes until when the client's thread is going to sleep.
    pub(crate) fn note_sleep(&self) -> Instant {
        let ledger = self.ledger();
        let next = ledger.next_due();
        self.sleeps_until.store(next.nanos(), Ordering::Relaxed);
        next
    }

    /// A fork copies the client but not its thread: a request made there would never be sent.
    pub(crate) fn check_process(&self) -> Result<()> {
        if std::process::id() == self.pid {
            return Ok(());
        }
        let message = "this process was forked from the one that connected the client";
        Err(Error::new(ErrorKind::Unsupported, "claim", message)
            .with_engine(self.engine.name())
            .with_hint("connect after the fork"))
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// The thread has ended: nothing more will be answered.
    pub(crate) fn close(&self) {
        let error = Error::new(ErrorKind::Internal, "use the client", "its thread has ended");
        self.with_ledger(|ledger, now| ledger.close(now, error));
        self.has_ended.store(true, Ordering::Release);
        self.ended.notify_waiters();
    }

    /// Returns terms like these, the same object for all callers in a row: a million leases with an object each would
    /// cost more memory than all the rest of them.
    pub(crate) fn share(&self, terms: &Arc<Terms>) -> Arc<Terms> {
        let mut last = self.last_terms.lock().unwrap_or_else(PoisonError::into_inner);
        if **last != **terms {
            *last = terms.clone();
        }
        last.clone()
    }

    pub(crate) fn floor(&self, resource: &Name) -> Token {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner).get(resource)
    }

    pub(crate) fn raise_floor(&self, resource: &Name, token: Token) {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner).raise(resource, token);
    }

    /// Lets time pass, whatever runtime the caller is on.
    ///
    /// # Errors
    /// The client's thread has ended, or the system has no more timers.
    pub(crate) async fn pause(&self, period: Duration) -> Result<()> {
        let until = self.clock.now() + period;
        let rung = self.alarms.set(&self.clock, &self.runtime, until).await;
        rung.map_err(|_| Error::new(ErrorKind::Unsupported, "wait", "cannot make a timer"))
    }

    /// Waits until the releases and settlements that have begun by now are answered, but no longer than the answer timeout.
    async fn answered(self: &Arc<Shared>) {
        let shared = self.clone();
        let waiting = self.runtime.spawn(async move {
            let mut begun = shared.ledger().releases_begun();
            let answered = async {
                std::future::poll_fn(|cx| {
                    let is_done = shared.ledger().poll_answered(&mut begun, cx.waker());
                    if is_done { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                shared.queue_client.settled().await;
            };
            // What is not answered goes on in the background.
            shared.in_time(answered).await.ok();
        });
        // It fails if the thread has ended: then nothing is answered any more.
        waiting.await.ok();
    }

    /// Runs one request on the client's thread, bounded by the answer timeout. `resource`: what it is about, if it is about one.
    pub(crate) async fn on_thread<T, F>(
        self: &Arc<Shared>,
        resource: Option<&Name>,
        ask: impl FnOnce(Arc<dyn DynEngine>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send,
    {
        let shared = self.clone();
        let engine = shared.engine.name();
        let gone = || Error::new(ErrorKind::Internal, "use the client", "its thread has ended");
        if shared.has_ended.load(Ordering::Acquire) {
            return Err(gone());
        }
        let asked = self.runtime.spawn(async move { shared.in_time(ask(shared.engine.clone())).await? });
        asked.await.map_err(|_| gone())?.map_err(|error| error.named(engine, resource))
    }

    /// Waits for an answer, on the client's thread, for no longer than the answer timeout.
    pub(crate) async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Result<T> {
        self.within(self.settings.answer_timeout, answer).await
    }

    /// Waits for an answer, on the client's thread, for no longer than this.
    pub(crate) async fn within<T>(&self, patience: Duration, answer: impl Future<Output = T>) -> Result<T> {
        let until = self.clock.now() + patience;
        let Ok(mut timer) = self.lend_timer() else { return Ok(answer.await) };
        let timeout = std::future::poll_fn(|cx| timer.poll_until(until, cx));
        let answered = match select(std::pin::pin!(answer), std::pin::pin!(timeout)).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        };
        self.keep_timer(timer);
        answered.ok_or_else(|| {
            let message = format!("no answer within {patience:?}");
            Error::new(ErrorKind::Unavailable, "ask", message)
                .with_hint("is the store running and reachable? try `tenure doctor`")
        })
    }

    fn timers(&self) -> MutexGuard<'_, Vec<Box<dyn Timer>>> {
        // A panic elsewhere cannot leave it half-changed.
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lend_timer(&self) -> std::io::Result<Box<dyn Timer>> {
        let kept = self.timers().pop();
        kept.map_or_else(|| self.clock.timer(), Ok)
    }

    /// Keeps a timer for the next answer: to make one takes five system calls, and to set one again mostly none.
    fn keep_timer(&self, mut timer: Box<dyn Timer>) {
        let nobody = &mut Context::from_waker(Waker::noop());
        // It waits for nothing now, and says so to a clock that is moved by hand.
        if timer.poll_until(Instant::NEVER, nobody).is_pending() {
            let mut timers = self.timers();
            if timers.len() < TIMERS_MAX {
                timers.push(timer);
            }
        }
    }
}

impl Shared {
    /// Returns what makes the state of a client, once it is connected.
    fn maker(
        clock: Arc<dyn Clock>,
        client: ClientId,
        settings: Settings,
    ) -> impl FnOnce(Arc<dyn DynEngine>, tokio::runtime::Handle) -> Arc<Shared> + Send {
        let label = Label::new(&host(), std::process::id(), &program(), &settings.label);
        move |engine: Arc<dyn DynEngine>, runtime| {
            let identity = Identity {
                client,
                engine: engine.name(),
                answer_timeout: settings.answer_timeout,
                silence_max: engine.capability().silence_max,
                calls_max: engine.capability().calls_max,
                shard_of: {
                    let engine = engine.clone();
                    Box::new(move |resource| engine.shard(resource))
                },
            };
            let terms = Arc::new(Terms::of_mutex(label));
            Arc::new(Shared {
                engine,
                clock,
                settings,
                client,
                last_terms: StdMutex::new(terms.clone()),
                terms,
                ended: Notify::new(),
                has_ended: AtomicBool::new(false),
                ledger: StdMutex::new(Ledger::new(identity)),
                floors: StdMutex::default(),
                flights: Flights::default(),
                queue_client: QueueClient::default(),
                pid: std::process::id(),
                runtime,
                alarms: Alarms::default(),
                timers: StdMutex::default(),
                has_reported_coarse_ttl: AtomicBool::new(false),
                is_closing: AtomicBool::new(false),
                is_poked: AtomicBool::new(false),
                waker: AtomicWaker::new(),
                sleeps_until: AtomicU64::new(0),
            })
        }
    }

    /// Says once that the hold of a dead client lasts longer than the ttl that was asked for.
    pub(crate) fn report_coarse_ttl(&self, resource: &Name, ttl: Duration) {
        let capability = self.engine.capability();
        let (grain, reason) = (capability.ttl_grain, capability.ttl_grain_reason);
        if ttl < grain && !self.has_reported_coarse_ttl.swap(true, Ordering::Relaxed) {
            Event::Coarse { resource, ttl, grain, reason }.emit(self.engine.name());
        }
    }
}

impl Tenure {
    /// Connects with an engine, on a clock. Most programs call `tenure::connect(url)` instead.
    ///
    /// `let tenure = Tenure::start(connect, clock, settings).await?;`
    ///
    /// # Errors
    /// Those of the engine; [`ErrorKind::Invalid`] for a setting out of range; [`ErrorKind::Unsupported`] if this process can
    /// have no more threads or files.
    pub async fn start(connect: Connect, clock: Arc<dyn Clock>, settings: Settings) -> Result<Tenure> {
        settings.check()?;
        let (ready, connected) = oneshot::channel();
        let client = ClientId::new(clock.random());
        let make_shared = Shared::maker(clock.clone(), client, settings);
        thread::start(clock, connect, client, make_shared, ready)?;
        Tenure::connected(connected).await
    }

    /// As [`Tenure::start`], but the client works as a task of the tokio runtime on which this is called, in place of
    /// a thread of its own. For simulations: all clients of a world run on one thread, on a clock that the test
    /// moves.
    ///
    /// `let tenure = Tenure::start_here(connect, clock, settings).await?;`
    ///
    /// # Errors
    /// As [`Tenure::start`].
    pub async fn start_here(connect: Connect, clock: Arc<dyn Clock>, settings: Settings) -> Result<Tenure> {
        settings.check()?;
        let (ready, connected) = oneshot::channel();
        let client = ClientId::new(clock.random());
        let make_shared = Shared::maker(clock.clone(), client, settings);
        tokio::spawn(thread::serve(clock, connect, client, make_shared, ready));
        Tenure::connected(connected).await
    }

    async fn connected(connected: oneshot::Receiver<Result<Arc<Shared>>>) -> Result<Tenure> {
        let ended = |_| Error::new(ErrorKind::Internal, "connect", "the client's thread has ended");
        Ok(Tenure { connection: Arc::new(Connection { shared: connected.await.map_err(ended)?? }) })
    }

    /// Connects with an engine that was set up in the program: by its settings as parts in place of a URL, or with what the program
    /// has already, such as a pool of connections.
    ///
    /// `let tenure = Tenure::new(connect).await?;`
    ///
    /// # Errors
    /// As [`Tenure::start`].
    pub async fn new(engine: impl Into<Connect>) -> Result<Tenure> {
        Tenure::connect_with(engine.into(), Settings::default()).await
    }

    /// Connects with an engine, on the clock of this machine.
    ///
    /// `let tenure = Tenure::connect_with(connect, settings).await?;`
    ///
    /// # Errors
    /// As [`Tenure::start`].
    pub async fn connect_with(connect: Connect, settings: Settings) -> Result<Tenure> {
        Tenure::start(connect, Arc::new(SystemClock), settings).await
    }

    /// Names a mutex: one holder at a time.
    ///
    /// `let lock = tenure.mutex("billing/4711");`
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex::new(self.connection.clone(), name)
    }

    /// Names an election: one leader at a time, which every client can look up.
    ///
    /// `let election = tenure.election("scheduler");`
    pub fn election(&self, name: &str) -> Election {
        Election::new(self.clone(), name)
    }

    /// Names a value that one process at a time loads for all.
    ///
    /// `let price = tenure.single_flight("price/4711");`
    pub fn single_flight(&self, key: &str) -> SingleFlight {
        SingleFlight::new(self.clone(), key)
    }

    /// Names a read-write lock: many readers or one writer.
    ///
    /// `let catalog = tenure.rw_lock("catalog");`
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock::new(self.connection.clone(), name)
    }

    /// Names a semaphore of so many units (1 to 1 048 576): holders weigh no more than that together.
    ///
    /// `let scrapers = tenure.semaphore("scrapers", 8);`
    pub fn semaphore(&self, name: &str, capacity: u32) -> Semaphore {
        Semaphore::new(self.connection.clone(), name, capacity)
    }

    /// Names a pool of so many slots (1 to 1 048 576): each holder has a number that no other has.
    ///
    /// `let pool = tenure.slot_pool("worker-ids", 16);`
    pub fn slot_pool(&self, name: &str, slots: u32) -> SlotPool {
        SlotPool::new(self.connection.clone(), name, slots)
    }

    /// Names a queue: first in, first out within each group.
    ///
    /// `let queue = tenure.queue("refunds");`
    pub fn queue(&self, name: &str) -> Queue {
        Queue::new(self.clone(), name)
    }

    /// Returns what the engine's queues can do, or `None` if it has no queues.
    ///
    /// `let has_queues = tenure.queue_capability().is_some();`
    pub fn queue_capability(&self) -> Option<&QueueCapability> {
        self.shared().engine.queues().map(|queues| queues.capability())
    }

    /// Names several at once: all of them are taken, or none.
    ///
    /// `let set = tenure.all([tenure.mutex("a").into(), tenure.mutex("b").into()]);`
    pub fn all(&self, wanted: impl IntoIterator<Item = LockRequest>) -> AllOf {
        AllOf::new(self.connection.clone(), wanted.into_iter().collect())
    }

    /// Returns the one word by which the engine goes.
    ///
    /// `let engine = tenure.engine();`
    pub fn engine(&self) -> &'static str {
        self.shared().engine.name()
    }

    /// Returns what the engine can do.
    ///
    /// `let capability = tenure.capability();`
    pub fn capability(&self) -> &Capability {
        self.shared().engine.capability()
    }

    /// Returns the label that this client's holds bear by default.
    ///
    /// `let label = tenure.label();`
    pub fn label(&self) -> &Label {
        &self.shared().terms.label
    }

    /// Raises the floor of a resource: its next grant gets a larger token. For a token that the protected
    /// resource has seen and this client has not.
    ///
    /// `tenure.raise_floor("billing/4711", token)?;`
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name.
    pub fn raise_floor(&self, name: &str, token: Token) -> Result<()> {
        self.shared().raise_floor(&Name::new(name)?, token);
        Ok(())
    }

    /// Reads the state of one resource: its holders and its waiters. `None` if it is idle.
    ///
    /// `let view = tenure.view("billing/4711").await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name; [`ErrorKind::Unavailable`] if the engine does not answer in time.
    ///
    /// # Cost
    /// One round trip.
    pub async fn view(&self, name: &str) -> Result<Option<View>> {
        let name = Name::new(name)?;
        let about = name.clone();
        self.connection.shared.on_thread(Some(&about), async move |engine| engine.view(name).await).await
    }

    /// Follows one resource: its present view first, then each later one.
    ///
    /// `let mut changes = tenure.observe("billing/4711")?;`
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name.
    pub fn observe(&self, name: &str) -> Result<Observer> {
        let name = Name::new(name)?;
        // Small: what a slow reader has not taken yet, the engine keeps down to the latest.
        let (sender, views) = mpsc::channel(1);
        let shared = self.connection.shared.clone();
        self.shared().runtime.spawn(async move {
            let mut changes = shared.engine.observe(name.clone());
            // A reader that is gone ends this at once, not at the next change, which may never come.
            let mut is_gone = std::pin::pin!(sender.closed());
            while let Either::Left((Some(view), _)) = select(changes.next(), &mut is_gone).await {
                let view = view.map_err(|error| error.named(shared.engine.name(), Some(&name)));
                if sender.send(view).await.is_err() {
                    return;
                }
            }
        });
        Ok(Observer { views, _connection: self.connection.clone() })
    }

    /// Ends a hold, for an operator. The holder learns of it at its next renewal, and its units rest until the hold
    /// would have ended, so that its work can stop; `at_once` frees them now, and then two may work. Units that
    /// rest already are freed by `at_once` only: the answer says which it was.
    ///
    /// `let answer = tenure.break_hold("billing/4711", token, false).await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name; [`ErrorKind::Unavailable`] if the outcome is unknown.
    pub async fn break_hold(&self, name: &str, token: Token, at_once: bool) -> Result<BreakAnswer> {
        let name = Name::new(name)?;
        let about = name.clone();
        let ask = async move |engine: Arc<dyn DynEngine>| engine.break_hold(name, token, at_once).await;
        self.connection.shared.on_thread(Some(&about), ask).await
    }

    /// Changes the capacity of a semaphore or a slot pool that is in use, for an operator.
    ///
    /// `tenure.resize("scrapers", 16).await?;`
    ///
    /// More units go to the waiters. With fewer, no holder loses its own: no claim is granted before enough units
    /// came free. From then on, a claim that names the old capacity is a [`ErrorKind::Conflict`]. A resource without
    /// holders and waiters has no capacity: nothing changes, and the next claim sets it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name, a capacity that is not 1 to 1 048 576, or a mutex or read-write lock;
    /// [`ErrorKind::Unavailable`] if the outcome is unknown.
    ///
    /// # Cost
    /// One round trip.
    pub async fn resize(&self, name: &str, capacity: u32) -> Result<()> {
        let name = Name::new(name)?;
        if capacity == 0 || capacity > CAPACITY_MAX {
            let error = format!("a capacity of {capacity} is out of range");
            return Err(Error::new(ErrorKind::Invalid, "resize", error)
                .with_hint(format!("a capacity is 1 to {CAPACITY_MAX}")));
        }
        let about = name.clone();
        let ask = async move |engine: Arc<dyn DynEngine>| engine.resize(name, capacity).await;
        self.connection.shared.on_thread(Some(&about), ask).await
    }

    /// Looks whether the engine's store can be trusted.
    ///
    /// `let findings = tenure.check().await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time.
    pub async fn check(&self) -> Result<Vec<Finding>> {
        self.connection.shared.on_thread(None, async move |engine| Ok(engine.check().await)).await
    }

    /// Makes what the store must have before the first claim, such as tables, and says what there is then. `None` if
    /// the engine needs nothing. Engines that can do it by themselves do so when they connect.
    ///
    /// `let made = tenure.migrate().await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the store does not let this user; [`ErrorKind::Unavailable`] if the outcome is
    /// unknown.
    pub async fn migrate(&self) -> Result<Option<String>> {
        self.connection.shared.on_thread(None, async move |engine| engine.migrate().await).await
    }

    /// Removes what idle resources left behind and nothing needs any more, and says of how many. `None` if nothing
    /// stays behind in this engine for longer than it is needed. Engines do this by themselves unless their settings
    /// say otherwise.
    ///
    /// `let removed = tenure.purge().await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the outcome is unknown; it may be repeated.
    pub async fn purge(&self) -> Result<Option<usize>> {
        self.connection.shared.on_thread(None, async move |engine| engine.purge().await).await
    }

    /// Lets the process `pid` share this client's life (see [`Engine::share_life`](crate::engine::Engine::share_life)).
    ///
    /// `let tie = tenure.share_life(std::process::id())?;`
    ///
    /// # Errors
    /// What the system says.
    pub fn share_life(&self, pid: u32) -> Result<Option<std::os::fd::OwnedFd>> {
        let shared = self.shared().engine.share_life(pid);
        shared.map_err(|error| error.named(self.engine(), None))
    }

    /// Waits until the releases and settlements that have begun are answered, for no longer than the answer timeout
    /// (default 2 s), and ends the client. Leases and clones that are still there keep it running; what they begin later is
    /// not waited for.
    ///
    /// `tenure.close().await;`
    pub async fn close(self) {
        let shared = self.connection.shared.clone();
        // The last one need not: the thread does not end before they are answered.
        if Arc::strong_count(&self.connection) > 1 && !shared.has_ended.load(Ordering::Acquire) {
            shared.answered().await;
        }
        drop(self);
        loop {
            let ended = shared.ended.notified();
            if !shared.is_closing() || shared.has_ended.load(Ordering::Acquire) {
                return;
            }
            ended.await;
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.connection.shared
    }
}

/// The later views of a resource (see [`Tenure::observe`]).
pub struct Observer {
    views: mpsc::Receiver<Result<Option<View>>>,
    _connection: Arc<Connection>,
}

impl Observer {
    /// Waits for the next view; none for a resource that is idle. The end means that the client is closed.
    ///
    /// `while let Some(view) = changes.next().await { println!("{:?}", view?); }`
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping it.
    pub async fn next(&mut self) -> Option<Result<Option<View>>> {
        self.views.recv().await
    }
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
