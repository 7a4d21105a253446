//! A connected client, from which every primitive is named.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::client::connection::{Connection, NewClient, Shared};
use crate::client::settings::Settings;
use crate::client::thread;
use crate::clock::{Clock, SystemClock};
use crate::counts::Counts;
use crate::engine::queue::QueueCapability;
use crate::engine::{BreakAnswer, Capability, Connect, DynEngine, Finding};
use crate::error::{Error, ErrorKind, Result};
use crate::face::all_of::{AllOf, LockRequest};
use crate::face::any_of::AnyOf;
use crate::face::election::Election;
use crate::face::mutex::Mutex;
use crate::face::observer::Observer;
use crate::face::queue::Queue;
use crate::face::rw_lock::RwLock;
use crate::face::semaphore::Semaphore;
use crate::face::single_flight::SingleFlight;
use crate::face::slot_pool::SlotPool;
use crate::model::claim::{CAPACITY_MAX, Label, Name};
use crate::model::inspect::View;
use crate::model::token::Token;

/// How long a migration may take: it waits for whoever uses the tables, and an operator waits for it.
const MIGRATION_MAX: Duration = Duration::from_secs(60);

/// A client of an engine. Cloning is cheap and shares the connection.
///
/// One thread of its own (`tenure-io`) does all sending, renewing and waking, so leases stay held while the
/// caller's runtime is blocked, and every future works on any runtime. When the last clone and the last lease
/// are gone, the thread finishes the releases that are under way and ends.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("tenure-example").await?;
/// // `tenure` is from `tenure::connect("redis://127.0.0.1").await?`, say.
/// let done = tenure.mutex("nightly-report").run(async |lease| format!("under {}", lease.token())).await?;
/// let permit = tenure.semaphore("scrapers", 8).acquire().await?;
/// let slot = tenure.slot_pool("worker-ids", 16).acquire().await?;
/// assert_eq!(slot.number(), 0);
/// # drop((done, permit));
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # use std::sync::Arc;
/// # use tenure_core::{Error, Settings, Tenure, Token, clock::SystemClock, engine::Connect};
/// # async fn f(engine: impl Fn() -> Connect, token: Token) -> Result<(), Error> {
/// # let (connect, settings, clock) = (engine(), Settings::new(), Arc::new(SystemClock));
/// let tenure = Tenure::start(connect, clock, settings).await?;
/// # let (connect, settings, clock) = (engine(), Settings::new(), Arc::new(SystemClock));
/// let tenure = Tenure::start_here(connect, clock, settings).await?;
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
/// let any = tenure.any([tenure.mutex("a").into(), tenure.mutex("b").into()]);
/// # let detached = lock.acquire().await?.detach()?;
/// let lease = tenure.attach(&detached).await?;
/// let claims = tenure.detached();
/// let has_queues = tenure.queue_capability().is_some();
/// let engine = tenure.engine();
/// let capability = tenure.capability();
/// let label = tenure.label();
/// tenure.turned().await?;
/// tenure.raise_floor("billing/4711", token)?;
/// let view = tenure.view("billing/4711").await?;
/// let mut changes = tenure.observe("billing/4711")?;
/// let answer = tenure.break_hold("billing/4711", token, false).await?;
/// tenure.resize("scrapers", 16).await?;
/// let findings = tenure.check().await?;
/// let views = tenure.inspect("billing/").await?;
/// let each = tenure.inspect_each("billing/").await?;
/// let mut pages = tenure.inspect_pages("billing/");
/// let queues = tenure.queues("").await?;
/// let each = tenure.queues_each("").await?;
/// let made = tenure.migrate().await?;
/// let removed = tenure.purge().await?;
/// let tie = tenure.share_life(std::process::id())?;
/// let counts = tenure.counts();
/// let dropped = tenure.events_dropped();
/// while let Some(view) = changes.next().await { println!("{:?}", view?); }
/// tenure.close().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Tenure {
    pub(crate) connection: Arc<Connection>,
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure").field("engine", &self.connection.engine()).finish_non_exhaustive()
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
        thread::start(connect, NewClient::new(clock, settings), ready)?;
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
        tokio::spawn(thread::serve(connect, NewClient::new(clock, settings), ready));
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
        Election::new(&self.connection, name)
    }

    /// Names a value that one process at a time loads for all.
    ///
    /// `let price = tenure.single_flight("price/4711");`
    pub fn single_flight(&self, key: &str) -> SingleFlight {
        SingleFlight::new(self.connection.clone(), key)
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
        Queue::new(self.connection.clone(), name)
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

    /// Names several of which one is taken: the first that is free.
    ///
    /// `let any = tenure.any([tenure.mutex("a").into(), tenure.mutex("b").into()]);`
    pub fn any(&self, wanted: impl IntoIterator<Item = LockRequest>) -> AnyOf {
        AnyOf::new(self.connection.clone(), wanted.into_iter().collect())
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

    /// Waits until the thread of this client has had a turn: it renews leases and carries requests, so a program in which it stands still
    /// is not well, whatever the store does.
    ///
    /// `tenure.turned().await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if the thread has ended.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    ///
    /// # Cost
    /// The store is asked nothing.
    pub async fn turned(&self) -> Result<()> {
        self.shared().turned().await
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
        self.connection.shared.view(Name::new(name)?).await
    }

    /// Follows one resource: its present view first, then each later one.
    ///
    /// `let mut changes = tenure.observe("billing/4711")?;`
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name.
    pub fn observe(&self, name: &str) -> Result<Observer> {
        Ok(Observer::new(&self.connection, Name::new(name)?))
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
    /// the engine needs nothing. Engines that can do it by themselves do so when they connect. It may wait for others who use the tables,
    /// for a minute at most.
    ///
    /// `let made = tenure.migrate().await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the store does not let this user; [`ErrorKind::Unavailable`] if the outcome is
    /// unknown.
    pub async fn migrate(&self) -> Result<Option<String>> {
        let migrated = self
            .connection
            .shared
            .on_thread_within(MIGRATION_MAX, None, async move |engine| engine.migrate().await);
        migrated.await
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
        if Arc::strong_count(&self.connection) > 1 && !shared.has_ended() {
            shared.answered().await;
        }
        drop(self);
        loop {
            let ended = shared.ended.notified();
            if !shared.is_closing() || shared.has_ended() {
                return;
            }
            ended.await;
        }
    }

    /// Returns what this client has counted, if it [counts](Settings::counts); nothing but zeros if not.
    ///
    /// `let counts = tenure.counts();`
    ///
    /// # Cost
    /// No round trip. It looks at each lease and each waiter of the client: a tenth of a second for a million, in turns, so that others
    /// are held up for a tenth of a millisecond at most.
    pub fn counts(&self) -> Counts {
        self.shared().counts()
    }

    /// Returns how many events of the client's own thread, and lines that engines have logged on it, were dropped, since a listener or a
    /// log was too slow for them.
    ///
    /// `let dropped = tenure.events_dropped();`
    pub fn events_dropped(&self) -> u64 {
        self.shared().teller.dropped()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.connection.shared
    }
}
