//! What a user holds, and the way to it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::join_all;
use tracing::Span;

use crate::client::connection::Connection;
use crate::client::lease_state::LeaseState;
use crate::client::ledger::{AcquireRequest, Bond, ClaimOutcome, Key, Ledger, Now, QueuePosition};
use crate::client::trace::{self, SharedSpan};
use crate::clock::Instant;
use crate::counts::{Loss, Verb};
use crate::engine::{DynEngine, ReleaseAnswer};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::model::claim::{Busy, ClaimId, Keep, Name, Published, VALUE_BYTES_MAX};
use crate::model::token::Token;

/// Something held: kept alive in the background until it is released, dropped or lost.
///
/// A lease can be lost at any time: the store may be unreachable for longer than the ttl, an operator may break
/// it, the machine may sleep. Stop the work when [`Lease::lost`] says so, and hand [`Lease::token`] to whatever
/// the work writes to, so that a write that comes too late is refused.
///
/// Dropping a lease releases it in the background, without a runtime.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("lease-example").await?;
/// # let write = |_token| ();
/// let lease = tenure.mutex("billing/4711").acquire().await?;
/// for _page in 0..3 {
///     if lease.is_lost() {
///         return Err(lease.lost().await);
///     }
///     write(lease.token());
/// }
/// lease.release().await?;
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # async fn f(tenure: tenure_core::Tenure, lock: tenure_core::Mutex) -> tenure_core::Result<()> {
/// # let acquire = lock.acquire();
/// # let mut acquire = acquire;
/// let first = acquire.answered().await;
/// let place = acquire.place();
/// let id = acquire.detach();
/// # let acquire = lock.acquire();
/// # let lease = acquire.await?;
/// let token = lease.token();
/// let name = lease.resource();
/// let claim = lease.claim();
/// let slot = lease.slot();
/// let left = lease.expires_in();
/// let ttl = lease.ttl();
/// let deadline = lease.deadline();
/// let is_lost = lease.is_lost();
/// let is_confirmed = lease.is_confirmed();
/// let why = lease.loss_reason();
/// let error = lease.lost().await;
/// let span = lease.span();
/// let detached = lease.detach()?;
/// # let Some(lease) = tenure.attach(&detached).await? else { return Ok(()) };
/// lease.release().await?;
/// # Ok(()) }
/// ```
pub struct Lease {
    connection: Arc<Connection>,
    state: Arc<LeaseState>,
    key: Key,
    use_made: Use,
    is_released: bool,
    /// In which the work is done, and noted what becomes of the hold.
    span: Option<SharedSpan>,
}

/// Whether its user may have worked under a lease. One that was only held for a moment does not count for `min_hold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Used,
    Unused,
}

impl Lease {
    fn new(
        connection: Arc<Connection>,
        state: Arc<LeaseState>,
        key: Key,
        use_made: Use,
        span: Option<SharedSpan>,
    ) -> Lease {
        let lease = Lease { connection, state, key, use_made, is_released: false, span };
        if let Some(span) = &lease.span {
            let unkept = lease.connection.shared.with_ledger(|ledger, _| ledger.keep_span(key, span.clone()));
            if unkept.is_some() {
                // It was lost on its way here.
                let reason = lease.loss_reason().unwrap_or(LossReason::NotRenewed);
                trace::note_lost(span, Loss::of(reason, Duration::ZERO));
            }
        }
        lease
    }

    /// The lease of a hold that was detached.
    pub(crate) fn attached(connection: Arc<Connection>, state: Arc<LeaseState>, key: Key) -> Lease {
        let span = trace::hold(connection.engine(), &state, None);
        Lease::new(connection, state, key, Use::Used, span)
    }

    /// Lets it go without a release, unless it is lost. Returns how much of its `max_hold` is left.
    pub(crate) fn depart(mut self) -> Result<(Arc<LeaseState>, Option<Duration>)> {
        let key = self.key;
        match self.connection.shared.update_ledger(|ledger, now| ledger.depart(now, key)) {
            Ok(max_hold_left) => {
                self.is_released = true;
                Ok((self.state.clone(), max_hold_left))
            }
            Err(reason) => Err(self.lost_error(reason)),
        }
    }

    /// The lease of a delivery, whose end its delivery sees to.
    pub(crate) fn of_delivery(
        connection: Arc<Connection>,
        state: Arc<LeaseState>,
        key: Key,
        span: Option<SharedSpan>,
    ) -> Lease {
        let mut lease = Lease::new(connection, state, key, Use::Used, span);
        lease.is_released = true;
        lease
    }

    /// Returns the span of the hold, to have work shown below it; one that nobody sees, if no subscriber of `tracing` wants spans of the
    /// target `tenure_core::trace` at the level `debug`. What `run` is given to do is done in it.
    ///
    /// `let span = lease.span();`
    pub fn span(&self) -> Span {
        self.span.as_deref().cloned().unwrap_or_else(Span::none)
    }

    /// The same, if there is one.
    pub(crate) fn shared_span(&self) -> Option<&SharedSpan> {
        self.span.as_ref()
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Returns the fencing token: larger than that of every earlier grant of the resource.
    ///
    /// `let token = lease.token();`
    pub fn token(&self) -> Token {
        self.state.token()
    }

    /// Returns the name of the resource.
    ///
    /// `let name = lease.resource();`
    pub fn resource(&self) -> &Name {
        self.state.resource()
    }

    /// Returns the id of the claim, which with the token identifies this hold to a fenced resource.
    ///
    /// `let claim = lease.claim();`
    pub fn claim(&self) -> ClaimId {
        self.state.claim()
    }

    /// Returns the number of the slot, for a slot pool; none for other kinds.
    ///
    /// `let slot = lease.slot();`
    pub fn slot(&self) -> Option<u32> {
        self.state.slot()
    }

    /// Returns how long the lease lasts if nothing more is heard from the engine; zero if it is lost.
    ///
    /// `let left = lease.expires_in();`
    pub fn expires_in(&self) -> Duration {
        self.state.deadline().since(self.connection.shared.clock.now())
    }

    /// Returns how long the lease lives after each renewal at most: the ttl that was asked for, or less where the store gives up a client
    /// that is silent for less time, as ZooKeeper does when its session ends.
    ///
    /// `let ttl = lease.ttl();`
    pub fn ttl(&self) -> Duration {
        self.state.terms().ttl.min(self.connection.shared.engine.capability().silence_max)
    }

    /// Returns the last deadline that the lease had, on the clock of this machine, even if it is lost already.
    ///
    /// `let deadline = lease.deadline();`
    pub fn deadline(&self) -> Instant {
        self.state.last_deadline()
    }

    /// Whether the lease is lost. Compares with the deadline: no I/O, no lock. Once true it stays true.
    ///
    /// `let is_lost = lease.is_lost();`
    pub fn is_lost(&self) -> bool {
        if mutant!("loss-only-from-the-thread") {
            return self.state.deadline() == Instant::from_nanos(0);
        }
        self.state.is_over(self.connection.shared.clock.now())
    }

    /// Whether the engine has heard of this client since the grant. A lease that was handed over may be used before that, and ends after the
    /// confirm window (5 s, or the ttl if that is less) if its first renewal does not arrive.
    ///
    /// `let is_confirmed = lease.is_confirmed();`
    pub fn is_confirmed(&self) -> bool {
        self.connection.shared.with_ledger(|ledger, _| ledger.is_confirmed(self.key))
    }

    /// Returns why the lease is lost, or `None` if it is held.
    ///
    /// `let why = lease.loss_reason();`
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.connection.shared.update_ledger(|ledger, now| ledger.loss(now, self.key))
    }

    /// Waits until the lease is lost, at the latest at its deadline, even if the engine cannot be reached. The error says
    /// why: [`Error::loss_reason`].
    ///
    /// `let error = lease.lost().await;`
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
    pub async fn lost(&self) -> Error {
        self.state.ended().await;
        // Without a reason it was given back by the client itself, for a set that begins again: its user never sees
        // it.
        self.lost_error(self.loss_reason().unwrap_or(LossReason::NotRenewed))
    }

    pub(crate) fn lost_error(&self, reason: LossReason) -> Error {
        Error::lost(reason).with_resource(self.resource()).with_engine(self.connection.shared.engine.name())
    }

    /// Sets the value of the resource; it goes with the hold, or is kept for a while.
    pub(crate) async fn publish(&self, bytes: Arc<[u8]>, keep: Keep) -> Result<()> {
        let shared = &self.connection.shared;
        check_value(&bytes, self.resource())?;
        let (name, claim) = (self.resource().clone(), self.claim());
        let publish = async move |engine: Arc<dyn DynEngine>| engine.publish(name, claim, bytes, keep).await;
        match shared.on_thread(Some(self.resource()), publish).await? {
            true => Ok(()),
            false => Err(self.lost_error(self.loss_reason().unwrap_or(LossReason::Ended))),
        }
    }

    /// Releases the lease and waits for the engine's answer.
    ///
    /// `lease.release().await?;`
    ///
    /// A lease that is lost already is not an error: the answer says so.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time. The release goes on in the background
    /// until the hold ends by itself.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the background.
    ///
    /// # Cost
    /// One round trip.
    pub async fn release(mut self) -> Result<ReleaseAnswer> {
        self.is_released = true;
        let key = self.key;
        if let Some(answer) =
            self.connection.shared.update_ledger(|ledger, now| ledger.release(now, key, false))
        {
            return Ok(answer);
        }
        Releasing { connection: self.connection.clone(), key, is_done: false }.await
    }

    /// Binds leases of one client together: when one is lost, all are. Gives them back if one is lost already.
    pub(crate) fn bind(
        connection: &Connection,
        mut leases: Vec<Lease>,
    ) -> std::result::Result<(Vec<Lease>, Arc<Bond>), Vec<Lease>> {
        let keys = leases.iter().map(|lease| lease.key).collect();
        match connection.shared.update_ledger(|ledger, now| ledger.bind(now, keys)) {
            Some(bond) => {
                leases.iter_mut().for_each(|lease| lease.use_made = Use::Used);
                Ok((leases, bond))
            }
            None => Err(leases),
        }
    }

    /// Releases leases of one client in the background, in one batch.
    pub(crate) fn drop_all(connection: &Connection, leases: &mut [Lease]) {
        if !leases.is_empty() {
            connection.shared.update_ledger(|ledger, now| {
                for lease in leases {
                    lease.start_release(ledger, now, true);
                }
            });
        }
    }

    /// Releases leases of one client in one batch, and waits for all answers, in the same order.
    ///
    /// Dropped at any moment, it leaves the releases to the background.
    pub(crate) async fn release_all(
        connection: &Arc<Connection>,
        mut leases: Vec<Lease>,
    ) -> Vec<Result<ReleaseAnswer>> {
        let started: Vec<_> = connection.shared.update_ledger(|ledger, now| {
            leases.iter_mut().map(|lease| (lease.key, lease.start_release(ledger, now, false))).collect()
        });
        let releasing = started.into_iter().map(|(key, answer)| async move {
            match answer {
                Some(answer) => Ok(answer),
                None => Releasing { connection: connection.clone(), key, is_done: false }.await,
            }
        });
        join_all(releasing).await
    }

    /// Begins the release. Returns the answer if there is nothing to send.
    fn start_release(
        &mut self,
        ledger: &mut Ledger,
        now: &Now<'_>,
        is_unawaited: bool,
    ) -> Option<ReleaseAnswer> {
        self.is_released = true;
        match self.use_made {
            Use::Used => ledger.release(now, self.key, is_unawaited),
            Use::Unused => ledger.give_back(now, self.key, is_unawaited),
        }
    }

    /// As [`Lease::release`], on the caller's own thread where the engine can.
    pub(crate) fn release_blocking(mut self) -> Result<ReleaseAnswer> {
        let shared = self.connection.shared.clone();
        let Some(engine) = shared.engine.blocking() else { return pollster::block_on(self.release()) };
        self.is_released = true;
        let key = self.key;
        let Some((sent, request)) = shared.update_ledger(|ledger, now| ledger.release_inline(now, key))
        else {
            return Ok(ReleaseAnswer::AlreadyLost);
        };
        let answer = engine.release(&request);
        let released = shared.update_ledger(|ledger, now| {
            ledger.called_inline(Verb::Release, now, sent, &answer);
            ledger.on_release(now, sent, answer);
            ledger.poll_release(key, None)
        });
        match released {
            Some(answer) => answer,
            None => {
                pollster::block_on(Releasing { connection: self.connection.clone(), key, is_done: false })
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_released && !mutant!("dropped-leases-renewed") {
            let connection = self.connection.clone();
            connection.shared.update_ledger(|ledger, now| self.start_release(ledger, now, true));
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("resource", self.resource())
            .field("token", &self.token())
            .field("slot", &self.slot())
            .finish_non_exhaustive()
    }
}

/// Waits for the answer to a release.
struct Releasing {
    connection: Arc<Connection>,
    key: Key,
    is_done: bool,
}

impl Future for Releasing {
    type Output = Result<ReleaseAnswer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let key = self.key;
        match self.connection.shared.update_ledger(|ledger, _| ledger.poll_release(key, Some(cx.waker()))) {
            Some(answer) => {
                self.is_done = true;
                Poll::Ready(answer)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        if !self.is_done {
            let key = self.key;
            self.connection.shared.update_ledger(|ledger, _| ledger.stop_awaiting(key));
        }
    }
}

/// How acquire ended, if not in an error.
pub(crate) enum Acquired {
    Lease(Lease),
    Busy(Name, Box<Busy>),
    /// Only for a claim that a fresh value answers as well. With when the store was asked.
    Fresh(Published, Instant),
}

/// Asks for a lease. Nothing is sent before the first poll; dropping it withdraws the claim.
pub(crate) struct AcquireFuture {
    connection: Arc<Connection>,
    state: AcquireState,
    use_made: Use,
    span: Option<SharedSpan>,
    /// Whether the span says at which place the claim queues.
    has_position: bool,
}

enum AcquireState {
    New(Option<Result<AcquireRequest>>),
    Claimed(Key),
    Done,
}

impl AcquireFuture {
    pub(crate) fn new(connection: Arc<Connection>, request: Result<AcquireRequest>) -> AcquireFuture {
        let state = AcquireState::New(Some(request));
        AcquireFuture { connection, state, use_made: Use::Used, span: None, has_position: false }
    }

    /// Asks for several of one client, whose claims are sent together. Their leases count as unused until they
    /// are bound.
    pub(crate) fn together(
        connection: &Arc<Connection>,
        mut requests: Vec<AcquireRequest>,
    ) -> Vec<AcquireFuture> {
        let spans: Vec<_> = requests.iter_mut().map(|request| begin_span(connection, request)).collect();
        let keys: Vec<Key> = connection.shared.update_ledger(|ledger, now| {
            requests.into_iter().map(|request| ledger.submit(now, request)).collect()
        });
        keys.into_iter()
            .zip(spans)
            .map(|(key, span)| {
                let (state, connection) = (AcquireState::Claimed(key), connection.clone());
                AcquireFuture { connection, state, use_made: Use::Unused, span, has_position: false }
            })
            .collect()
    }

    /// Asks on the caller's own thread where the engine can, and blocks until it is decided.
    pub(crate) fn block(mut self) -> Result<Acquired> {
        let shared = self.connection.shared.clone();
        // An id that was given may be in use, which the ledger finds when it enters the claim.
        let is_given = matches!(&self.state, AcquireState::New(Some(Ok(request))) if request.claim.is_some());
        if let Some(engine) = shared.engine.blocking().filter(|_| !is_given)
            && let AcquireState::New(request) = &mut self.state
        {
            let mut request = request.take().expect("a new request is there")?;
            self.span = begin_span(&self.connection, &mut request);
            let (key, sent, claim) = shared.update_ledger(|ledger, now| ledger.submit_inline(now, request));
            self.state = AcquireState::Claimed(key);
            let answer = engine.claim(&claim);
            let acquired = shared.update_ledger(|ledger, now| {
                ledger.called_inline(Verb::Claim, now, sent, &answer);
                ledger.on_claim(now, sent, answer);
                ledger.poll(now, key, None)
            });
            if let Some(acquired) = acquired {
                self.state = AcquireState::Done;
                return self.acquired(key, acquired?);
            }
        }
        pollster::block_on(self)
    }

    fn acquired(&self, key: Key, acquired: ClaimOutcome) -> Result<Acquired> {
        let shared = &self.connection.shared;
        let needs_floor = shared.engine.capability().needs_floor;
        match acquired {
            ClaimOutcome::Lease(state) => {
                if needs_floor {
                    shared.raise_floor(state.resource(), state.token());
                }
                let span = trace::hold(self.connection.engine(), &state, self.span.as_deref());
                Ok(Acquired::Lease(Lease::new(self.connection.clone(), state, key, self.use_made, span)))
            }
            ClaimOutcome::Busy(resource, busy) => {
                if needs_floor {
                    shared.raise_floor(&resource, busy.last_token);
                }
                Ok(Acquired::Busy(resource, busy))
            }
            ClaimOutcome::Fresh(value, sent) => Ok(Acquired::Fresh(value, sent)),
        }
    }

    /// Binds held leases to this claim: they go back if it fails, or is granted and not polled any more.
    pub(crate) fn stake(&self, leases: &[Lease]) {
        if let AcquireState::Claimed(on) = self.state {
            let keys = leases.iter().map(|lease| lease.key).collect();
            self.connection.shared.update_ledger(|ledger, _| ledger.stake(on, keys));
        }
    }

    /// Waits for the first answer of the engine. Returns none if the claim is in its queue then.
    pub(crate) async fn answered(&mut self) -> Option<Result<Acquired>> {
        poll_fn(|cx| match Pin::new(&mut *self).poll(cx) {
            Poll::Ready(acquired) => Poll::Ready(Some(acquired)),
            Poll::Pending if self.is_queued() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    fn is_queued(&self) -> bool {
        match self.state {
            AcquireState::Claimed(key) => {
                self.connection.shared.update_ledger(|ledger, _| ledger.is_queued(key))
            }
            _ => false,
        }
    }

    /// Notes the first place in the queue, if anybody follows.
    fn note_position(&mut self, key: Key) {
        let Some(span) = self.span.as_ref().filter(|_| !self.has_position) else { return };
        let place = self.connection.shared.with_ledger(|ledger, _| ledger.place(key));
        if let Some(place) = place {
            trace::note_position(span, place.position);
            self.has_position = true;
        }
    }

    fn place(&self) -> Option<QueuePosition> {
        match self.state {
            AcquireState::Claimed(key) => self.connection.shared.update_ledger(|ledger, _| ledger.place(key)),
            _ => None,
        }
    }
}

/// Begins the span of a claim in the present one, and gives it to the request.
fn begin_span(connection: &Connection, request: &mut AcquireRequest) -> Option<SharedSpan> {
    request.span = trace::acquire(connection.engine(), &request.resource, request.terms.kind);
    request.span.clone()
}

impl Future for AcquireFuture {
    type Output = Result<Acquired>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.connection.shared.clone();
        let key = match &mut self.state {
            AcquireState::New(request) => match request.take().expect("a new request is there") {
                Ok(mut request) => {
                    self.span = begin_span(&self.connection, &mut request);
                    let key = shared.update_ledger(|ledger, now| ledger.submit(now, request));
                    self.state = AcquireState::Claimed(key);
                    key
                }
                Err(error) => {
                    self.state = AcquireState::Done;
                    return Poll::Ready(Err(error));
                }
            },
            AcquireState::Claimed(key) => *key,
            AcquireState::Done => panic!("a future was polled after it was ready"),
        };
        match shared.update_ledger(|ledger, now| ledger.poll(now, key, Some(cx.waker()))) {
            Some(acquired) => {
                self.state = AcquireState::Done;
                Poll::Ready(acquired.and_then(|acquired| self.acquired(key, acquired)))
            }
            None => {
                self.note_position(key);
                Poll::Pending
            }
        }
    }
}

impl Drop for AcquireFuture {
    fn drop(&mut self) {
        if let AcquireState::Claimed(key) = self.state {
            self.connection.shared.update_ledger(|ledger, now| ledger.cancel(now, key));
        }
    }
}

/// A wait for a lease, or for a slot.
///
/// Nothing is sent before the first poll. Dropping it withdraws the claim and loses the place in the queue; if
/// the grant was on its way, it is released in the background, and if that fails it ends after its ttl.
///
/// It must be polled when it is woken. A grant whose future is not polled for one ttl is given back, so that no
/// waiter stands behind a future that is forgotten in a `select!` or on an executor that stands; its next poll claims
/// anew, at the end of the queue.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("acquire-example").await?;
/// use tenure_core::Acquire;
///
/// let mut waiting: Acquire = tenure.mutex("billing/4711").acquire();
/// // The first answer of the engine: the lease, or nothing if it waits in the queue.
/// let lease = match waiting.answered().await {
///     Some(lease) => lease?,
///     None => {
///         println!("place {:?}", waiting.place());
///         waiting.await?
///     }
/// };
/// lease.release().await?;
/// # Ok(()) }) }
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquire<T = Lease> {
    acquire: AcquireFuture,
    /// Makes of the lease what the primitive gives its users.
    held: fn(Lease) -> Result<T>,
    /// The same of a fresh value, for a claim that accepts one.
    fresh: fn(Published) -> Result<T>,
}

impl<T> fmt::Debug for Acquire<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("engine", &self.acquire.connection.engine()).finish_non_exhaustive()
    }
}

impl<T> Acquire<T> {
    pub(crate) fn new(acquire: AcquireFuture, held: fn(Lease) -> Result<T>) -> Acquire<T> {
        Acquire { acquire, held, fresh: |_| Err(unasked_value()) }
    }

    /// Has a fresh value answer as well.
    pub(crate) fn or_fresh(self, fresh: fn(Published) -> Result<T>) -> Acquire<T> {
        Acquire { fresh, ..self }
    }

    /// Waits for the same, but makes something else of the lease.
    pub(crate) fn with<U>(self, held: fn(Lease) -> Result<U>) -> Acquire<U> {
        Acquire::new(self.acquire, held)
    }

    /// Returns the place in the queue, once the engine has answered with it.
    ///
    /// `let place = acquire.place();`
    pub fn place(&self) -> Option<QueuePosition> {
        self.acquire.place()
    }

    /// Waits for the engine's first answer only. `None`: the claim is in the queue, and this future goes on waiting for it.
    ///
    /// `let first = acquire.answered().await;`
    ///
    /// # Errors
    /// Those of the wait itself.
    ///
    /// # Panics
    /// If it has been answered before, as a future that is polled after it was ready.
    pub async fn answered(&mut self) -> Option<Result<T>> {
        let acquired = self.acquire.answered().await?;
        let (connection, held, fresh) = (&self.acquire.connection, self.held, self.fresh);
        Some(acquired.and_then(|acquired| decided(connection, acquired, held, fresh)))
    }

    /// Lets go of the wait without withdrawing the claim. Returns its id, if anything was asked for.
    ///
    /// `let id = acquire.detach();`
    ///
    /// Nobody keeps its place any more, and the engine does so for as long as for any silent waiter (15 s, or the ttl if that is less);
    /// a grant that comes meanwhile goes back after the confirm window (5 s, or the ttl if that is less). Until then, a claim with the
    /// same [`claim_id`](crate::Mutex::claim_id) has the place, in any client where `tenure.capability().adopts` is
    /// [`AnyClient`](crate::engine::Adopts::AnyClient).
    pub fn detach(mut self) -> Option<ClaimId> {
        match std::mem::replace(&mut self.acquire.state, AcquireState::Done) {
            AcquireState::Claimed(key) => {
                let shared = &self.acquire.connection.shared;
                shared.update_ledger(|ledger, now| ledger.depart_early(now, key))
            }
            _ => None,
        }
    }

    pub(crate) fn block(self) -> Result<T> {
        let connection = self.acquire.connection.clone();
        let acquired = self.acquire.block()?;
        decided(&connection, acquired, self.held, self.fresh)
    }
}

impl<T> Future for Acquire<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.acquire).poll(cx).map(|acquired| {
            acquired.and_then(|acquired| decided(&self.acquire.connection, acquired, self.held, self.fresh))
        })
    }
}

/// Refuses a value that is too large to be published.
pub(crate) fn check_value(bytes: &[u8], resource: &Name) -> Result<()> {
    if bytes.len() <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let message = format!("the value has {} bytes", bytes.len());
    Err(Error::new(ErrorKind::Invalid, "publish", message)
        .with_resource(resource)
        .with_hint(format!("a value has up to {VALUE_BYTES_MAX} bytes; publish where the data lies")))
}

/// A fresh value answers only claims that accept one.
pub(crate) fn unasked_value() -> Error {
    Error::new(ErrorKind::Internal, "claim", "a value answered a claim that did not ask for one")
}

/// Only a claim that does not wait is refused as busy: then its wait was over at once.
fn decided<T>(
    connection: &Connection,
    acquired: Acquired,
    held: fn(Lease) -> Result<T>,
    fresh: fn(Published) -> Result<T>,
) -> Result<T> {
    match acquired {
        Acquired::Lease(lease) => held(lease),
        Acquired::Busy(resource, busy) => Err(timeout(connection, &resource, *busy)),
        Acquired::Fresh(value, _) => fresh(value),
    }
}

/// Makes the error of a wait that is over, with the claims that were in the way.
pub(crate) fn timeout(connection: &Connection, resource: &Name, busy: Busy) -> Error {
    let message = match &busy.holder {
        Some(label) if busy.is_resting => format!("it rests after {label}"),
        Some(label) => format!("held by {label} for {:.1?}", busy.held_for),
        None => format!("{} wait for it", busy.waiting),
    };
    Error::new(ErrorKind::Timeout, "claim", message)
        .with_resource(resource)
        .with_engine(connection.shared.engine.name())
        .with_busy(busy)
}
