//! What the users' threads and the client's own thread share.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tracing::Level;

use crate::client::alarm::Alarms;
use crate::client::batch::Following;
use crate::client::floors::Floors;
use crate::client::ledger::{Gauges, Identity, Ledger, Notices, Now};
use crate::client::queue_client::QueueClient;
use crate::client::scopes::Scopes;
use crate::client::settings::Settings;
use crate::client::teller::{Teller, Telling};
use crate::clock::{Clock, Instant, Timer};
use crate::counts::{CallEnd, Counts, Primitive, Verb};
use crate::engine::{DynEngine, Shard};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Happened, is_wanted};
use crate::model::claim::{ClientId, Label, Name, Terms};
use crate::model::inspect::View;
use crate::model::token::Token;

/// How many timers are kept: as many as calls of queues are under way at a time. Each is a file descriptor.
const TIMERS_MAX: usize = 8;

/// Keeps the client's thread running.
pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
}

impl Connection {
    /// Returns the engine's one word.
    pub(crate) fn engine(&self) -> &'static str {
        self.shared.engine.name()
    }
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
    /// Tells what happens.
    pub(crate) teller: Arc<Teller>,
    /// Which names are counted together. `None`: nothing is counted.
    scopes: Option<StdMutex<Scopes>>,
    floors: StdMutex<Floors>,
    /// See [`Shared::kept`].
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
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
        let (result, notices) = self.use_ledger(work);
        self.tell(notices);
        result
    }

    /// Uses the ledger, and wakes whom that concerns. What is left of the notices is told last.
    fn use_ledger<T>(&self, work: impl FnOnce(&mut Ledger, &Now<'_>) -> T) -> (T, Notices) {
        let random = || self.clock.random();
        let time_of_day = || self.clock.time_of_day();
        let now = Now { at: self.clock.now(), random: &random, time_of_day: &time_of_day };
        let (result, mut notices) = {
            let mut ledger = self.ledger();
            (work(&mut ledger, &now), ledger.take_notices())
        };
        notices.wake();
        (result, notices)
    }

    fn tell(&self, notices: Notices) {
        notices.uncollected.iter().for_each(|lease| self.return_uncollected(lease));
        if !notices.happened.is_empty() {
            self.teller.tell(notices.happened);
        }
    }

    /// Uses the ledger from a user's thread, and pokes the client's thread if there is something new for it.
    pub(crate) fn update_ledger<T>(&self, work: impl FnOnce(&mut Ledger, &Now<'_>) -> T) -> T {
        let ((result, is_news), notices) = self.use_ledger(|ledger, now| {
            let result = work(ledger, now);
            let is_sooner = ledger.next_due().nanos() < self.sleeps_until.load(Ordering::Relaxed);
            (result, ledger.take_news() || is_sooner)
        });
        if is_news {
            self.poke();
        }
        // Last: a listener that blocks must not keep back what is to be sent.
        self.tell(notices);
        result
    }

    /// Returns what a primitive keeps for all tasks of this client. The client does not know what it is.
    pub(crate) fn kept<T: Any + Default + Send + Sync>(&self) -> &T {
        let kept = self.kept.get_or_init(|| Box::new(T::default()));
        kept.downcast_ref().expect("one primitive alone keeps something")
    }

    /// Reads one resource. `None` if it is idle.
    pub(crate) async fn view(self: &Arc<Shared>, name: Name) -> Result<Option<View>> {
        let about = name.clone();
        self.on_thread(Some(&about), async move |engine| engine.view(name).await).await
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

    /// Whether the client's thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// The thread has ended: nothing more will be answered.
    pub(crate) fn close(&self) {
        let error = Error::new(ErrorKind::Internal, "use the client", "its thread has ended");
        // Not under the lock: a waker may run anything.
        drop(self.with_ledger(|ledger, now| ledger.close(now, error)));
        self.has_ended.store(true, Ordering::Release);
        self.queue_client.close();
        self.ended.notify_waiters();
    }

    /// Returns the scope in which a name is counted. Asked when something is named, so that its use need not ask.
    pub(crate) fn scope(&self, primitive: Primitive, name: Option<&Name>) -> u16 {
        let Some(scopes) = &self.scopes else { return 0 };
        // A panic elsewhere cannot leave it half-changed. The ledger is locked within, never the other way round.
        let mut scopes = scopes.lock().unwrap_or_else(PoisonError::into_inner);
        scopes.scope(primitive, name, |scope| self.ledger().begin_scope(scope))
    }

    /// Copies what was counted. The lock is held for one turn of entries at a time.
    pub(crate) fn counts(&self) -> Counts {
        let (mut gauges, mut next) = (Gauges::default(), self.scopes.as_ref().map(|_| 0));
        while let Some(from) = next {
            let now = self.clock.now();
            next = self.ledger().look_over(now, from, &mut gauges);
        }
        let mut counts = self.ledger().counts();
        gauges.enter(&mut counts);
        if let Some(scopes) = &self.scopes {
            (counts.labels, counts.folded) = scopes.lock().unwrap_or_else(PoisonError::into_inner).usage();
        }
        counts.events_dropped = self.teller.dropped();
        counts.fold();
        counts
    }

    /// Notes a call of the engine, if anybody wants to know.
    pub(crate) fn called(&self, verb: Verb, items: usize, sent: Instant, outcome: CallEnd) {
        if self.is_watched() {
            self.with_ledger(|ledger, now| ledger.called(verb, items, now.at.since(sent), outcome));
        }
    }

    /// Whether calls and wakes are wanted, as a number or an event.
    pub(crate) fn is_watched(&self) -> bool {
        self.scopes.is_some() || is_wanted(self.teller.has_listener(), Level::TRACE)
    }

    /// Notes a call of one request, of which `answer` came.
    pub(crate) fn called_for<T>(&self, verb: Verb, sent: Instant, answer: &Result<Result<T>>) {
        let outcome = match answer {
            Ok(answer) => CallEnd::of(std::iter::once(answer)),
            Err(_) => CallEnd::Timeout,
        };
        self.called(verb, 1, sent, outcome);
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
    pub(crate) async fn answered(self: &Arc<Shared>) {
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

    /// Waits until the client's thread has had a turn.
    pub(crate) async fn turned(&self) -> Result<()> {
        // One that has ended runs nothing more.
        let turned = self.runtime.spawn(async {}).await;
        turned.map_err(|_| Error::new(ErrorKind::Internal, "use the client", "its thread has ended"))
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
        self.on_thread_within(self.settings.answer_timeout, resource, ask).await
    }

    /// The same for what may take longer than an answer.
    pub(crate) async fn on_thread_within<T, F>(
        self: &Arc<Shared>,
        patience: Duration,
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
        if shared.has_ended() {
            return Err(gone());
        }
        let asked = self.runtime.spawn(async move {
            let sent = shared.clock.now();
            let answer = shared.within(patience, ask(shared.engine.clone())).await;
            shared.called_for(Verb::Other, sent, &answer);
            answer?
        });
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
        answered.ok_or_else(|| no_answer("ask", patience))
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

/// A client that is not connected yet.
pub(crate) struct NewClient {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) client: ClientId,
    pub(crate) teller: Arc<Teller>,
    settings: Settings,
}

impl NewClient {
    pub(crate) fn new(clock: Arc<dyn Clock>, settings: Settings) -> NewClient {
        let client = ClientId::new(clock.random());
        let teller = Arc::new(Teller::new(settings.listener.clone()));
        NewClient { clock, client, teller, settings }
    }

    /// Returns the state of the client, which is connected now.
    pub(crate) fn shared(self, engine: Arc<dyn DynEngine>, runtime: tokio::runtime::Handle) -> Arc<Shared> {
        let NewClient { clock, client, teller, settings } = self;
        let label = Label::new(&host(), std::process::id(), &program(), &settings.label);
        let identity =
            Identity {
                client,
                engine: engine.name(),
                has_listener: settings.listener.is_some(),
                is_counting: settings.is_counting(),
                since: clock.now(),
                answer_timeout: settings.answer_timeout,
                silence_max: engine.capability().silence_max,
                following: Following {
                    calls_max: engine.capability().calls_max,
                    is_ordered: engine.capability().keeps_call_order,
                },
                shard_of: {
                    let engine = engine.clone();
                    Box::new(move |resource| {
                        if mutant!("one-line-for-all-shards") { Shard(0) } else { engine.shard(resource) }
                    })
                },
            };
        let terms = Arc::new(Terms::of_mutex(label));
        Arc::new(Shared {
            engine,
            clock,
            client,
            last_terms: StdMutex::new(terms.clone()),
            terms,
            ended: Notify::new(),
            has_ended: AtomicBool::new(false),
            ledger: StdMutex::new(Ledger::new(identity)),
            teller,
            scopes: settings
                .is_counting()
                .then(|| StdMutex::new(Scopes::new(settings.scopes.clone(), settings.scopes_max))),
            settings,
            floors: StdMutex::default(),
            kept: OnceLock::new(),
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

impl Shared {
    /// Says once that the hold of a dead client lasts longer than the ttl that was asked for.
    pub(crate) fn report_coarse_ttl(&self, resource: &Name, ttl: Duration) {
        let capability = self.engine.capability();
        let (grain, reason) = (capability.ttl_grain, capability.ttl_grain_reason);
        if ttl < grain && !self.has_reported_coarse_ttl.swap(true, Ordering::Relaxed) {
            let resource = resource.clone();
            self.told(Level::WARN, || Event::Coarse { resource, ttl, grain, reason });
        }
    }

    /// Tells an event that the ledger knows nothing of. The caller holds no lock.
    fn told(&self, level: Level, event: impl FnOnce() -> Event) {
        if is_wanted(self.teller.has_listener(), level) {
            let happened = Happened { engine: self.engine.name(), scope: None, event: event() };
            self.teller.tell(vec![Telling { happened, span: None }]);
        }
    }
}

/// What is given up after `patience` fails with this.
pub(crate) fn no_answer(verb: &'static str, patience: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, verb, format!("no answer within {patience:?}"))
        .with_hint("is the store running and reachable? try `tenure doctor`")
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
