//! The same verbs for programs without an async runtime.
//!
//! Everything here is a [`Blocking`] around the type of the async face that has the same name, and its methods do what
//! those do, with the same errors. They block the calling thread and must not be called inside an async task. Where the
//! engine's work is short and local (`local:`, `memory:`), claims and releases are made on the calling thread itself.
//!
//! # Examples
//! ```
//! # use std::time::Duration;
//! # fn main() -> tenure_core::Result<()> {
//! // In a program: `tenure::blocking::connect("local:")?`.
//! # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-example"))?;
//! let tenure = tenure_core::blocking::Tenure::from(tenure);
//!
//! let billing = tenure.mutex("billing/4711").ttl(Duration::from_secs(30));
//! let paid = billing.run(|lease| format!("paid under {}", lease.token()))?;
//! if let Some(lease) = billing.try_acquire()? {
//!     lease.release()?;
//! }
//! let slot = tenure.slot_pool("worker-ids", 16).acquire_within(Duration::from_secs(5))?;
//! assert_eq!(slot.number(), 0);
//!
//! let mails = tenure.queue("mails");
//! mails.push("hello").send()?;
//! let sent = mails.run(|delivery| if delivery.payload().is_empty() { Err("empty") } else { Ok(()) })?;
//! assert_eq!(sent, Ok(()));
//!
//! let term = tenure.election("scheduler").campaign()?;
//! term.publish(b"10.0.0.7:8080")?;
//! # drop(paid);
//! # Ok(()) }
//! ```

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use pollster::block_on;
use tracing::Span;

use crate::client::settings::Settings;
use crate::clock::Clock;
use crate::engine::{Connect, ReleaseAnswer};
use crate::error::{Error, Result};
use crate::face::all_of::LockRequest;
use crate::face::{
    all_of, any_of, election, lease, mutex, rw_lock, semaphore, single_flight, slot_pool, tenure,
};
use crate::model::claim::{ClaimId, Terms};
use sealed::{Configured, Held, Lock, Primitive, Releasable};

mod detached;
mod queue;

pub use queue::{Delivery, Push, Queue};

/// The blocking face of a client, of a primitive with all its settings, or of what a primitive gives.
///
/// No example of its own: [`Tenure`], [`Mutex`] and the others are it, and each has one.
#[derive(Clone)]
pub struct Blocking<P>(P);

/// A client of an engine (see [`tenure::Tenure`]).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-tenure"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let billing = tenure.mutex("billing/4711");
/// let leader = tenure.election("scheduler").leader()?;
/// # Ok(()) }
/// ```
pub type Tenure = Blocking<tenure::Tenure>;
/// A lock with one holder at a time (see [`mutex::Mutex`]).
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-mutex"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let billing = tenure.mutex("billing/4711").ttl(Duration::from_secs(30));
/// let paid = billing.run(|lease| format!("paid under {}", lease.token()))?;
/// # Ok(()) }
/// ```
pub type Mutex = Blocking<mutex::Mutex>;
/// A lock that many readers hold together, or one writer alone (see [`rw_lock::RwLock`]).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-rwlock"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let catalog = tenure.rw_lock("catalog");
/// catalog.read().run(|_lease| println!("listed"))?;
/// catalog.write().run(|lease| println!("rebuilt under {}", lease.token()))?;
/// # Ok(()) }
/// ```
pub type RwLock = Blocking<rw_lock::RwLock>;
/// The side of readers (see [`rw_lock::ReadLock`]).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-readlock"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let reader = tenure.rw_lock("catalog").read();
/// let (one, other) = (reader.acquire()?, reader.acquire()?);
/// # Ok(()) }
/// ```
pub type ReadLock = Blocking<rw_lock::ReadLock>;
/// The side of writers (see [`rw_lock::WriteLock`]).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-writelock"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let writer = tenure.rw_lock("catalog").write();
/// let lease = writer.acquire()?;
/// assert!(writer.try_acquire()?.is_none());
/// # Ok(()) }
/// ```
pub type WriteLock = Blocking<rw_lock::WriteLock>;
/// So many units at a time (see [`semaphore::Semaphore`]).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-semaphore"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let scrapers = tenure.semaphore("scrapers", 8);
/// let heavy = scrapers.weight(3).acquire()?;
/// heavy.release()?;
/// # Ok(()) }
/// ```
pub type Semaphore = Blocking<semaphore::Semaphore>;
/// Numbered units (see [`slot_pool::SlotPool`]).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-slotpool"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let slot = tenure.slot_pool("worker-ids", 16).acquire()?;
/// println!("worker {}", slot.number());
/// # Ok(()) }
/// ```
pub type SlotPool = Blocking<slot_pool::SlotPool>;
/// Several at once, all or nothing (see [`all_of::AllOf`]).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-allof"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let both = tenure.all([tenure.mutex("a").into(), tenure.semaphore("b", 4).into()]);
/// both.run(|_leases| println!("both are held"))?;
/// # Ok(()) }
/// ```
pub type AllOf = Blocking<all_of::AllOf>;
/// One of several, the first that is free (see [`any_of::AnyOf`]).
pub type AnyOf = Blocking<any_of::AnyOf>;
/// One leader at a time (see [`election::Election`]).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-election"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let scheduler = tenure.election("scheduler");
/// let done = scheduler.run(|term| format!("led under {}", term.token()))?;
/// # Ok(()) }
/// ```
pub type Election = Blocking<election::Election>;
/// The leaders of an election: an iterator that waits for the next change (see [`election::Leaders::next`]).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-leaders"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let scheduler = tenure.election("scheduler");
/// let term = scheduler.campaign()?;
/// let mut leaders = scheduler.changes()?;
/// let leader = leaders.next().expect("the client is open")?;
/// assert_eq!(leader.map(|leader| leader.token), Some(term.token()));
/// # Ok(()) }
/// ```
pub type Leaders = Blocking<election::Leaders>;
/// One process loads a value, the others get it (see [`single_flight::SingleFlight`]).
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-singleflight"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let price = tenure.single_flight("price/4711").fresh(Duration::from_secs(60));
/// let found = price.get_or_refresh(|_lease| Ok::<_, tenure_core::Error>(b"17.50".to_vec()))?;
/// # Ok(()) }
/// ```
pub type SingleFlight = Blocking<single_flight::SingleFlight>;
/// Something held (see [`lease::Lease`], to which it derefs).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-lease"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let lease = tenure.mutex("billing/4711").acquire()?;
/// // Before each step that others see:
/// assert!(!lease.is_lost());
/// lease.release()?;
/// # Ok(()) }
/// ```
pub type Lease = Blocking<lease::Lease>;
/// A numbered unit that is held (see [`slot_pool::Slot`], to which it derefs).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-slot"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let slot = tenure.slot_pool("worker-ids", 16).acquire()?;
/// assert!(slot.number() < 16 && !slot.is_lost());
/// slot.release()?;
/// # Ok(()) }
/// ```
pub type Slot = Blocking<slot_pool::Slot>;
/// Several leases (see [`all_of::Leases`], to which it derefs).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-leases"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let leases = tenure.all([tenure.mutex("a").into(), tenure.semaphore("b", 4).into()]).acquire()?;
/// leases.release()?;
/// # Ok(()) }
/// ```
pub type Leases = Blocking<all_of::Leases>;
/// The time in which one candidate leads (see [`election::Term`], to which it derefs).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-term"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let term = tenure.election("scheduler").campaign()?;
/// term.publish(b"10.0.0.7:8080")?;
/// term.resign()?;
/// # Ok(()) }
/// ```
pub type Term = Blocking<election::Term>;

impl<P> From<P> for Blocking<P> {
    /// Takes it over with all its settings.
    fn from(inner: P) -> Blocking<P> {
        Blocking(inner)
    }
}

impl<P: fmt::Debug> fmt::Debug for Blocking<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What is held derefs to the async one. A primitive does not: a verb that is missing here would be a future there.
impl<H: Held> Deref for Blocking<H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.0
    }
}

impl<P: Lock> From<Blocking<P>> for LockRequest {
    fn from(primitive: Blocking<P>) -> LockRequest {
        primitive.0.as_request()
    }
}

impl<P: Lock> From<&Blocking<P>> for LockRequest {
    fn from(primitive: &Blocking<P>) -> LockRequest {
        primitive.0.as_request()
    }
}

impl From<Slot> for Lease {
    /// Takes the slot for a lease like others; [`lease::Lease::slot`] still returns its number.
    fn from(slot: Slot) -> Lease {
        Blocking(slot.0.into())
    }
}

/// What the verbs below need of the types that have them. No other code has a use for it, so it has no public name.
mod sealed {
    use super::{ClaimId, Duration, Error, LockRequest, ReleaseAnswer, Result, Span, Terms};

    /// What is taken by the four verbs.
    pub trait Primitive {
        /// What its users are given.
        type Held: Releasable;
        /// Takes it if it is free and has no waiters.
        fn try_take(&self) -> Result<Option<Self::Held>>;
        /// Waits for it; without a time for ever.
        fn take(&self, wait: Option<Duration>) -> Result<Self::Held>;
    }

    /// What can be one of several.
    pub trait Lock {
        /// The same as one of several.
        fn as_request(&self) -> LockRequest;
    }

    /// What has the settings of all claims.
    pub trait Configured {
        /// The terms of its claims.
        fn terms(&mut self) -> &mut Terms;
        /// Gives its one claim an id.
        fn set_claim(&mut self, id: ClaimId);
    }

    /// What is held, and kept in the background.
    pub trait Held {}

    /// What is held, and released by [`super::Blocking::release`].
    pub trait Releasable: Held {
        /// The error of its loss, once it is lost.
        fn loss(&self) -> Option<Error>;
        /// Releases it.
        fn release(self) -> Result<ReleaseAnswer>;
        /// In which the work is done.
        fn span(&self) -> Span;
    }
}

/// Whose units are taken by one claim: what it gives, and of which lease that is made how.
macro_rules! primitives {
    ($($primitive:ty => $held:ty, $of:expr;)*) => {
        $(impl Primitive for $primitive {
            type Held = $held;

            fn try_take(&self) -> Result<Option<$held>> {
                self.claimant.try_acquire_blocking($of)
            }

            fn take(&self, wait: Option<Duration>) -> Result<$held> {
                self.claimant.acquire(wait, $of).block()
            }
        }

        impl Lock for $primitive {
            fn as_request(&self) -> LockRequest {
                self.into()
            }
        })*
    };
}

primitives! {
    mutex::Mutex => lease::Lease, Ok;
    rw_lock::ReadLock => lease::Lease, Ok;
    rw_lock::WriteLock => lease::Lease, Ok;
    semaphore::Semaphore => lease::Lease, Ok;
    slot_pool::SlotPool => slot_pool::Slot, slot_pool::Slot::new;
}

impl Primitive for all_of::AllOf {
    type Held = all_of::Leases;

    fn try_take(&self) -> Result<Option<all_of::Leases>> {
        block_on(self.try_acquire())
    }

    fn take(&self, wait: Option<Duration>) -> Result<all_of::Leases> {
        match wait {
            Some(wait) => block_on(self.acquire_within(wait)),
            None => block_on(self.acquire()),
        }
    }
}

impl Primitive for any_of::AnyOf {
    type Held = lease::Lease;

    fn try_take(&self) -> Result<Option<lease::Lease>> {
        block_on(self.try_acquire())
    }

    fn take(&self, wait: Option<Duration>) -> Result<lease::Lease> {
        match wait {
            Some(wait) => block_on(self.acquire_within(wait)),
            None => block_on(self.acquire()),
        }
    }
}

macro_rules! configured {
    ($($primitive:ty)*) => {
        $(impl Configured for $primitive {
            fn terms(&mut self) -> &mut Terms {
                self.claimant.terms()
            }

            fn set_claim(&mut self, id: ClaimId) {
                self.claimant.set_claim(id);
            }
        })*
    };
}

configured! { mutex::Mutex rw_lock::RwLock semaphore::Semaphore slot_pool::SlotPool }

impl Held for lease::Lease {}
impl Held for slot_pool::Slot {}
impl Held for all_of::Leases {}
impl Held for election::Term {}

impl Releasable for lease::Lease {
    fn loss(&self) -> Option<Error> {
        self.is_lost().then(|| block_on(self.lost()))
    }

    fn release(self) -> Result<ReleaseAnswer> {
        self.release_blocking()
    }

    fn span(&self) -> Span {
        lease::Lease::span(self)
    }
}

impl Releasable for slot_pool::Slot {
    fn loss(&self) -> Option<Error> {
        Releasable::loss(&**self)
    }

    fn release(self) -> Result<ReleaseAnswer> {
        lease::Lease::from(self).release_blocking()
    }

    fn span(&self) -> Span {
        lease::Lease::span(self)
    }
}

impl Releasable for all_of::Leases {
    fn loss(&self) -> Option<Error> {
        self.is_lost().then(|| block_on(self.lost()))
    }

    fn release(self) -> Result<ReleaseAnswer> {
        block_on(self.release())
    }

    /// Each of them has one, beside the others.
    fn span(&self) -> Span {
        Span::none()
    }
}

/// The four verbs of all primitives. Their errors are those of the async ones.
impl<P: Primitive> Blocking<P> {
    /// Takes it if it is free and has no waiters; none if not.
    ///
    /// # Errors
    /// As [`mutex::Mutex::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Blocking<P::Held>>> {
        Ok(self.0.try_take()?.map(Blocking))
    }

    /// Waits until it can be granted, and takes it. Waits for ever.
    ///
    /// # Errors
    /// As [`mutex::Mutex::acquire`].
    pub fn acquire(&self) -> Result<Blocking<P::Held>> {
        self.0.take(None).map(Blocking)
    }

    /// Waits for it up to `wait`. Zero does not queue.
    ///
    /// # Errors
    /// As [`mutex::Mutex::acquire_within`].
    pub fn acquire_within(&self, wait: Duration) -> Result<Blocking<P::Held>> {
        self.0.take(Some(wait)).map(Blocking)
    }

    /// Takes it, does the work and releases. A thread cannot be dropped: long work checks [`lease::Lease::is_lost`]
    /// and stops by itself; it is not started anew.
    ///
    /// # Errors
    /// Those of [`Self::acquire`], and [`Lost`](crate::ErrorKind::Lost) if it was lost before the work was done.
    pub fn run<T>(&self, work: impl FnOnce(&P::Held) -> T) -> Result<T> {
        let held = self.0.take(None)?;
        let done = held.span().in_scope(|| work(&held));
        if let Some(lost) = held.loss() {
            return Err(lost);
        }
        // The work is done. A release that fails goes on in the background, and the hold ends by itself.
        if let Err(error) = held.release() {
            tracing::debug!(%error, "release after the work goes on in the background");
        }
        Ok(done)
    }
}

impl<H: Releasable> Blocking<H> {
    /// Releases it and waits for the engine's answer.
    ///
    /// # Errors
    /// As [`lease::Lease::release`].
    pub fn release(self) -> Result<ReleaseAnswer> {
        self.0.release()
    }
}

/// The settings of all primitives.
impl<P: Configured> Blocking<P> {
    /// Sets how long a hold lives without renewal (see [`mutex::Mutex::ttl`]).
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.terms().ttl = ttl;
        self
    }

    /// Ends every lease this long after its grant (see [`mutex::Mutex::max_hold`]).
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.0.terms().limits.max_hold = Some(max_hold);
        self
    }

    /// Keeps others out until this long after the grant (see [`mutex::Mutex::min_hold`]).
    #[must_use]
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.0.terms().limits.min_hold = min_hold;
        self
    }

    /// Keeps others out for this long after the holder vanished (see [`mutex::Mutex::lock_delay`]).
    #[must_use]
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.0.terms().limits.lock_delay = lock_delay;
        self
    }

    /// Adds a free text to the label that others are shown (see [`mutex::Mutex::label`]).
    #[must_use]
    pub fn label(mut self, text: &str) -> Self {
        let terms = self.0.terms();
        terms.label = terms.label.with_text(text);
        self
    }
}

impl Blocking<tenure::Tenure> {
    /// Connects with an engine (see [`tenure::Tenure::start`]).
    ///
    /// # Errors
    /// As there.
    pub fn start(connect: Connect, clock: Arc<dyn Clock>, settings: Settings) -> Result<Tenure> {
        block_on(tenure::Tenure::start(connect, clock, settings)).map(Blocking)
    }

    /// Names a mutex.
    pub fn mutex(&self, name: &str) -> Mutex {
        Blocking(self.0.mutex(name))
    }

    /// Names a read-write lock.
    pub fn rw_lock(&self, name: &str) -> RwLock {
        Blocking(self.0.rw_lock(name))
    }

    /// Names a semaphore of so many units.
    pub fn semaphore(&self, name: &str, capacity: u32) -> Semaphore {
        Blocking(self.0.semaphore(name, capacity))
    }

    /// Names a pool of so many slots.
    pub fn slot_pool(&self, name: &str, slots: u32) -> SlotPool {
        Blocking(self.0.slot_pool(name, slots))
    }

    /// Names several at once: all of them are taken, or none.
    pub fn all(&self, wanted: impl IntoIterator<Item = LockRequest>) -> AllOf {
        Blocking(self.0.all(wanted))
    }

    /// Names several of which one is taken: the first that is free.
    pub fn any(&self, wanted: impl IntoIterator<Item = LockRequest>) -> AnyOf {
        Blocking(self.0.any(wanted))
    }

    /// Names a queue.
    pub fn queue(&self, name: &str) -> Queue {
        Blocking(self.0.queue(name))
    }

    /// Names an election.
    pub fn election(&self, name: &str) -> Election {
        Blocking(self.0.election(name))
    }

    /// Names a value that one process at a time loads for all.
    pub fn single_flight(&self, key: &str) -> SingleFlight {
        Blocking(self.0.single_flight(key))
    }

    /// Returns the same client for async use.
    pub fn as_async(&self) -> &tenure::Tenure {
        &self.0
    }
}

impl Blocking<rw_lock::RwLock> {
    /// Names the side of readers, which share it.
    pub fn read(&self) -> ReadLock {
        Blocking(self.0.read())
    }

    /// Names the side of writers, each of which is alone.
    pub fn write(&self) -> WriteLock {
        Blocking(self.0.write())
    }
}

impl Blocking<semaphore::Semaphore> {
    /// Sets how many units are taken at once (see [`semaphore::Semaphore::weight`]).
    #[must_use]
    pub fn weight(self, weight: u32) -> Semaphore {
        Blocking(self.0.weight(weight))
    }
}

impl Blocking<slot_pool::SlotPool> {
    /// Names so many slots of it that are taken all or none (see [`slot_pool::SlotPool::several`]).
    pub fn several(&self, slots: u32) -> AllOf {
        Blocking(self.0.several(slots))
    }
}

impl Blocking<election::Election> {
    /// Sets how long a term lives without renewal (see [`election::Election::ttl`]).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Blocking(self.0.ttl(ttl))
    }

    /// Adds a free text to the label by which the leader is shown (see [`election::Election::label`]).
    #[must_use]
    pub fn label(self, text: &str) -> Self {
        Blocking(self.0.label(text))
    }

    /// Waits until this candidate leads. Waits for ever.
    ///
    /// # Errors
    /// As [`election::Election::campaign`].
    pub fn campaign(&self) -> Result<Term> {
        block_on(self.0.campaign()).map(Blocking)
    }

    /// Leads if there is no leader and no other candidate; none otherwise.
    ///
    /// # Errors
    /// As [`election::Election::try_campaign`].
    pub fn try_campaign(&self) -> Result<Option<Term>> {
        Ok(block_on(self.0.try_campaign())?.map(Blocking))
    }

    /// Campaigns and does the work of a leader, and does so again if the term was lost when the work came to its end.
    /// A thread cannot be dropped: the work checks [`lease::Lease::is_lost`] and stops by itself.
    ///
    /// # Errors
    /// Those of [`Self::campaign`], but not [`Unavailable`](crate::ErrorKind::Unavailable) once it has led.
    pub fn run<T>(&self, mut work: impl FnMut(&election::Term) -> T) -> Result<T> {
        let mut has_led = false;
        loop {
            let term = block_on(self.0.campaign_on(has_led)).map(Blocking)?;
            has_led = true;
            let done = lease::Lease::span(&term).in_scope(|| work(&term));
            if term.is_lost() {
                continue;
            }
            // The work is done. A release that fails goes on in the background, and the term ends by itself.
            if let Err(error) = term.resign() {
                tracing::debug!(%error, "resigning after the work goes on in the background");
            }
            return Ok(done);
        }
    }

    /// Returns the leader; none if there is none.
    ///
    /// # Errors
    /// As [`election::Election::leader`].
    pub fn leader(&self) -> Result<Option<election::Leader>> {
        block_on(self.0.leader())
    }

    /// Follows the leader (see [`election::Election::changes`]).
    ///
    /// # Errors
    /// As there.
    pub fn changes(&self) -> Result<Leaders> {
        self.0.changes().map(Blocking)
    }
}

impl Blocking<election::Term> {
    /// Publishes a value that every client can read (see [`election::Term::publish`]).
    ///
    /// # Errors
    /// As there.
    pub fn publish(&self, value: &[u8]) -> Result<()> {
        block_on(self.0.publish(value))
    }

    /// Ends the term; the next candidate leads.
    ///
    /// # Errors
    /// As [`lease::Lease::release`].
    pub fn resign(self) -> Result<ReleaseAnswer> {
        block_on(self.0.resign())
    }
}

impl Iterator for Leaders {
    type Item = Result<Option<election::Leader>>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next())
    }
}

impl Blocking<single_flight::SingleFlight> {
    /// Sets for how long a value is fresh (see [`single_flight::SingleFlight::fresh`]).
    #[must_use]
    pub fn fresh(self, fresh: Duration) -> Self {
        Blocking(self.0.fresh(fresh))
    }

    /// Serves a value that is no longer fresh while another loads (see [`single_flight::SingleFlight::serve_stale`]).
    #[must_use]
    pub fn serve_stale(self, stale: Duration) -> Self {
        Blocking(self.0.serve_stale(stale))
    }

    /// Sets how long a loader that is not heard of blocks the others (see [`single_flight::SingleFlight::ttl`]).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Blocking(self.0.ttl(ttl))
    }

    /// Returns the value if it is fresh; otherwise loads it on this thread, or waits for the loader, or returns the
    /// stale one. A thread cannot be dropped: what a load returns after its lease was lost is not published.
    ///
    /// # Errors
    /// As [`single_flight::SingleFlight::get_or_refresh`].
    pub fn get_or_refresh<E: From<Error>>(
        &self,
        load: impl FnOnce(&lease::Lease) -> Result<Vec<u8>, E>,
    ) -> Result<single_flight::Fetched, E> {
        block_on(self.0.get_or_refresh(async |lease| load(lease)))
    }

    /// Loads the value on this thread although there may be a fresh one, after whoever loads meanwhile.
    ///
    /// # Errors
    /// As [`single_flight::SingleFlight::refresh`].
    pub fn refresh<E: From<Error>>(
        &self,
        load: impl FnOnce(&lease::Lease) -> Result<Vec<u8>, E>,
    ) -> Result<single_flight::Fetched, E> {
        block_on(self.0.refresh(async |lease| load(lease)))
    }

    /// Drops the value, after a load that is under way.
    ///
    /// # Errors
    /// As [`single_flight::SingleFlight::forget`].
    pub fn forget(&self) -> Result<()> {
        block_on(self.0.forget())
    }
}
