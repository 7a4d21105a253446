//! The same verbs for programs without an async runtime.
//!
//! They block the calling thread and must not be called inside an async task. Where the engine's work is short
//! and local (`local:`, `memory:`), claims and releases are made on the calling thread itself.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::client;
use crate::clock::Clock;
use crate::engine::{Connect, ReleaseAnswer};
use crate::error::{Error, Result};
use crate::face::all_of::LockRequest;
use crate::face::{all_of, election, lease, mutex, rw_lock, semaphore, single_flight, slot_pool};

/// A type around that of the async face, made from one with all its settings.
macro_rules! wrapper {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name($inner);

        impl From<$inner> for $name {
            /// Takes it over with all its settings.
            fn from(inner: $inner) -> $name {
                $name(inner)
            }
        }
    };
}

mod queue;

pub use queue::{Delivery, Push, Queue};

/// A client of an engine (see [`client::Tenure`]).
#[derive(Clone)]
pub struct Tenure(client::Tenure);

impl Tenure {
    /// Connects with an engine (see [`client::Tenure::start`]).
    ///
    /// # Errors
    /// As there.
    pub fn start(connect: Connect, clock: Arc<dyn Clock>, settings: client::Settings) -> Result<Tenure> {
        pollster::block_on(client::Tenure::start(connect, clock, settings)).map(Tenure)
    }

    /// Names a mutex.
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex(self.0.mutex(name))
    }

    /// Names a read-write lock.
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock(self.0.rw_lock(name))
    }

    /// Names a semaphore of so many units.
    pub fn semaphore(&self, name: &str, capacity: u32) -> Semaphore {
        Semaphore(self.0.semaphore(name, capacity))
    }

    /// Names a pool of so many slots.
    pub fn slot_pool(&self, name: &str, slots: u32) -> SlotPool {
        SlotPool(self.0.slot_pool(name, slots))
    }

    /// Names several at once: all of them are taken, or none.
    pub fn all(&self, wanted: impl IntoIterator<Item = LockRequest>) -> AllOf {
        AllOf(self.0.all(wanted))
    }

    /// Names a queue.
    pub fn queue(&self, name: &str) -> Queue {
        Queue::from(self.0.queue(name))
    }

    /// Names an election.
    pub fn election(&self, name: &str) -> Election {
        Election(self.0.election(name))
    }

    /// Names a value that one process at a time loads for all.
    pub fn single_flight(&self, key: &str) -> SingleFlight {
        SingleFlight(self.0.single_flight(key))
    }

    /// Returns the same client for async use.
    pub fn as_async(&self) -> &client::Tenure {
        &self.0
    }
}

impl From<client::Tenure> for Tenure {
    fn from(tenure: client::Tenure) -> Tenure {
        Tenure(tenure)
    }
}

/// Lets a primitive be one of several.
macro_rules! wanted {
    ($name:ident) => {
        impl From<$name> for LockRequest {
            fn from(primitive: $name) -> LockRequest {
                primitive.0.into()
            }
        }

        impl From<&$name> for LockRequest {
            fn from(primitive: &$name) -> LockRequest {
                (&primitive.0).into()
            }
        }
    };
}

/// The settings of all primitives.
macro_rules! settings {
    () => {
        /// Sets how long a hold lives without renewal (see [`mutex::Mutex::ttl`]).
        #[must_use]
        pub fn ttl(self, ttl: Duration) -> Self {
            Self(self.0.ttl(ttl))
        }

        /// Ends every lease this long after its grant (see [`mutex::Mutex::max_hold`]).
        #[must_use]
        pub fn max_hold(self, max_hold: Duration) -> Self {
            Self(self.0.max_hold(max_hold))
        }

        /// Keeps others out until this long after the grant (see [`mutex::Mutex::min_hold`]).
        #[must_use]
        pub fn min_hold(self, min_hold: Duration) -> Self {
            Self(self.0.min_hold(min_hold))
        }

        /// Keeps others out for this long after the holder vanished (see [`mutex::Mutex::lock_delay`]).
        #[must_use]
        pub fn lock_delay(self, lock_delay: Duration) -> Self {
            Self(self.0.lock_delay(lock_delay))
        }

        /// Adds a free text to the label that others are shown (see [`mutex::Mutex::label`]).
        #[must_use]
        pub fn label(self, text: &str) -> Self {
            Self(self.0.label(text))
        }
    };
}

/// The four verbs of all primitives. `$units` is what is taken, in words; `$held` what its users are given: an
/// `$inner`, which `$of` makes of a lease.
macro_rules! verbs {
    ($units:literal, $held:ident, $inner:ty, $of:expr) => {
        #[doc = concat!("Takes ", $units, " if free and nobody waits; none if not.")]
        ///
        /// # Errors
        /// As [`mutex::Mutex::try_acquire`].
        pub fn try_acquire(&self) -> Result<Option<$held>> {
            Ok(self.0.claimant.try_acquire_blocking($of)?.map($held))
        }

        #[doc = concat!("Waits until ", $units, " can be granted, and takes it. Waits for ever.")]
        ///
        /// # Errors
        /// As [`mutex::Mutex::acquire`].
        pub fn acquire(&self) -> Result<$held> {
            self.0.acquire().block().map($held)
        }

        #[doc = concat!("Waits up to `wait` for ", $units, ". Zero does not queue.")]
        ///
        /// # Errors
        /// As [`mutex::Mutex::acquire_within`].
        pub fn acquire_within(&self, wait: Duration) -> Result<$held> {
            self.0.acquire_within(wait).block().map($held)
        }

        #[doc = concat!("Takes ", $units, ", does the work and releases. A thread cannot be dropped: long work looks")]
        /// at [`lease::Lease::is_lost`] and stops by itself; it is not started anew.
        ///
        /// # Errors
        /// Those of [`Self::acquire`], and [`Lost`](crate::ErrorKind::Lost) if the lease was lost before the work was done.
        pub fn run<T>(&self, work: impl FnOnce(&$inner) -> T) -> Result<T> {
            let held = self.acquire()?;
            let done = work(&held.0);
            if held.is_lost() {
                return Err(pollster::block_on(held.lost()));
            }
            // The work is done. A release that fails goes on in the background, and the hold ends by itself.
            if let Err(error) = held.release() {
                tracing::debug!(%error, "release after the work goes on in the background");
            }
            Ok(done)
        }
    };
}

wrapper!(
    /// A lock with one holder at a time (see [`mutex::Mutex`]).
    Mutex,
    mutex::Mutex
);

wanted!(Mutex);

impl Mutex {
    settings!();
    verbs!("the lock", Lease, lease::Lease, Ok);
}

wrapper!(
    /// A lock that many readers hold together, or one writer alone (see [`rw_lock::RwLock`]).
    RwLock,
    rw_lock::RwLock
);

impl RwLock {
    settings!();

    /// Names the side of readers, who share.
    pub fn read(&self) -> ReadLock {
        ReadLock(self.0.read())
    }

    /// Names the side of writers, each of whom is alone.
    pub fn write(&self) -> WriteLock {
        WriteLock(self.0.write())
    }
}

wrapper!(
    /// The side of readers (see [`rw_lock::ReadLock`]).
    ReadLock,
    rw_lock::ReadLock
);

wanted!(ReadLock);

impl ReadLock {
    verbs!("the lock for reading", Lease, lease::Lease, Ok);
}

wrapper!(
    /// The side of writers (see [`rw_lock::WriteLock`]).
    WriteLock,
    rw_lock::WriteLock
);

wanted!(WriteLock);

impl WriteLock {
    verbs!("the lock for writing", Lease, lease::Lease, Ok);
}

wrapper!(
    /// So many units at a time (see [`semaphore::Semaphore`]).
    Semaphore,
    semaphore::Semaphore
);

wanted!(Semaphore);

impl Semaphore {
    /// Sets how many units are taken at once (see [`semaphore::Semaphore::weight`]).
    #[must_use]
    pub fn weight(self, weight: u32) -> Semaphore {
        Semaphore(self.0.weight(weight))
    }

    settings!();
    verbs!("its weight in units", Lease, lease::Lease, Ok);
}

wrapper!(
    /// Numbered units (see [`slot_pool::SlotPool`]).
    SlotPool,
    slot_pool::SlotPool
);

wanted!(SlotPool);

impl SlotPool {
    settings!();
    verbs!("a slot", Slot, slot_pool::Slot, slot_pool::Slot::new);
}

wrapper!(
    /// Several at once, all or nothing (see [`all_of::AllOf`]).
    AllOf,
    all_of::AllOf
);

impl AllOf {
    /// Takes all if all are free and nobody waits for any; none if not, and then it holds nothing.
    ///
    /// # Errors
    /// As [`all_of::AllOf::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Leases>> {
        Ok(pollster::block_on(self.0.try_acquire())?.map(Leases))
    }

    /// Waits until all can be granted, and takes them. Waits for ever.
    ///
    /// # Errors
    /// As [`all_of::AllOf::acquire`].
    pub fn acquire(&self) -> Result<Leases> {
        pollster::block_on(self.0.acquire()).map(Leases)
    }

    /// Waits up to `wait` for all together. Zero does not queue.
    ///
    /// # Errors
    /// As [`all_of::AllOf::acquire_within`].
    pub fn acquire_within(&self, wait: Duration) -> Result<Leases> {
        pollster::block_on(self.0.acquire_within(wait)).map(Leases)
    }

    /// Takes all, does the work and releases all. A thread cannot be dropped: long work looks at
    /// [`all_of::Leases::is_lost`] and stops by itself; it is not started anew.
    ///
    /// # Errors
    /// Those of [`Self::acquire`], and [`Lost`](crate::ErrorKind::Lost) if a lease was lost before the work was done.
    pub fn run<T>(&self, work: impl FnOnce(&all_of::Leases) -> T) -> Result<T> {
        pollster::block_on(self.0.run(async |leases| work(leases)))
    }
}

/// Several leases (see [`all_of::Leases`], to which it derefs).
#[derive(Debug)]
pub struct Leases(all_of::Leases);

impl Leases {
    /// Releases all leases and waits for the engine's answers.
    ///
    /// # Errors
    /// As [`all_of::Leases::release`].
    pub fn release(self) -> Result<ReleaseAnswer> {
        pollster::block_on(self.0.release())
    }
}

impl Deref for Leases {
    type Target = all_of::Leases;

    fn deref(&self) -> &all_of::Leases {
        &self.0
    }
}

wrapper!(
    /// One leader at a time (see [`election::Election`]).
    Election,
    election::Election
);

impl Election {
    /// Sets how long a term lives without renewal (see [`election::Election::ttl`]).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// Adds a free text to the label by which the leader is shown (see [`election::Election::label`]).
    #[must_use]
    pub fn label(self, text: &str) -> Self {
        Self(self.0.label(text))
    }

    /// Waits until this candidate leads. Waits for ever.
    ///
    /// # Errors
    /// As [`election::Election::campaign`].
    pub fn campaign(&self) -> Result<Term> {
        pollster::block_on(self.0.campaign()).map(Term)
    }

    /// Leads if nobody does and nobody campaigns; none otherwise.
    ///
    /// # Errors
    /// As [`election::Election::try_campaign`].
    pub fn try_campaign(&self) -> Result<Option<Term>> {
        Ok(pollster::block_on(self.0.try_campaign())?.map(Term))
    }

    /// Campaigns and does the work of a leader, and does so again if the term was lost when the work came to its
    /// end. A thread cannot be dropped: the work looks at [`lease::Lease::is_lost`] and stops by itself.
    ///
    /// # Errors
    /// Those of [`Self::campaign`], but not [`Unavailable`](crate::ErrorKind::Unavailable) once it has led.
    pub fn run<T>(&self, mut work: impl FnMut(&election::Term) -> T) -> Result<T> {
        let mut has_led = false;
        loop {
            let term = pollster::block_on(self.0.campaign_on(has_led)).map(Term)?;
            has_led = true;
            let done = work(&term);
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

    /// Returns who leads; none if nobody does.
    ///
    /// # Errors
    /// As [`election::Election::leader`].
    pub fn leader(&self) -> Result<Option<election::Leader>> {
        pollster::block_on(self.0.leader())
    }

    /// Follows who leads (see [`election::Election::changes`]).
    ///
    /// # Errors
    /// As there.
    pub fn changes(&self) -> Result<Leaders> {
        self.0.changes().map(Leaders)
    }
}

/// The time in which one candidate leads (see [`election::Term`], to which it derefs).
#[derive(Debug)]
pub struct Term(election::Term);

impl Term {
    /// Publishes a value for everybody to see (see [`election::Term::publish`]).
    ///
    /// # Errors
    /// As there.
    pub fn publish(&self, value: &[u8]) -> Result<()> {
        pollster::block_on(self.0.publish(value))
    }

    /// Ends the term; the next candidate leads.
    ///
    /// # Errors
    /// As [`lease::Lease::release`].
    pub fn resign(self) -> Result<ReleaseAnswer> {
        pollster::block_on(self.0.resign())
    }
}

impl Deref for Term {
    type Target = election::Term;

    fn deref(&self) -> &election::Term {
        &self.0
    }
}

/// The leaders of an election, one after the other: an iterator that waits for the next change (see
/// [`election::Leaders::next`]).
pub struct Leaders(election::Leaders);

impl Iterator for Leaders {
    type Item = Result<Option<election::Leader>>;

    fn next(&mut self) -> Option<Self::Item> {
        pollster::block_on(self.0.next())
    }
}

wrapper!(
    /// One process loads a value, the others get it (see [`single_flight::SingleFlight`]).
    SingleFlight,
    single_flight::SingleFlight
);

impl SingleFlight {
    /// Sets for how long a value is fresh (see [`single_flight::SingleFlight::fresh`]).
    #[must_use]
    pub fn fresh(self, fresh: Duration) -> Self {
        Self(self.0.fresh(fresh))
    }

    /// Serves a value that is no longer fresh while another loads (see [`single_flight::SingleFlight::serve_stale`]).
    #[must_use]
    pub fn serve_stale(self, stale: Duration) -> Self {
        Self(self.0.serve_stale(stale))
    }

    /// Sets how long a loader that is not heard of blocks the others (see [`single_flight::SingleFlight::ttl`]).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// Returns the value if it is fresh; otherwise loads it on this thread, or waits for who does, or returns the
    /// stale one. A thread cannot be dropped: what a load returns after its lease was lost is not published.
    ///
    /// # Errors
    /// As [`single_flight::SingleFlight::get_or_refresh`].
    pub fn get_or_refresh<E: From<Error>>(
        &self,
        load: impl FnOnce(&lease::Lease) -> Result<Vec<u8>, E>,
    ) -> Result<single_flight::Fetched, E> {
        pollster::block_on(self.0.get_or_refresh(async |lease| load(lease)))
    }
}

/// Something held (see [`lease::Lease`], to which it derefs).
#[derive(Debug)]
pub struct Lease(lease::Lease);

impl Lease {
    /// Releases the lease and waits for the engine's answer.
    ///
    /// # Errors
    /// As [`lease::Lease::release`].
    pub fn release(self) -> Result<ReleaseAnswer> {
        self.0.release_blocking()
    }
}

impl Deref for Lease {
    type Target = lease::Lease;

    fn deref(&self) -> &lease::Lease {
        &self.0
    }
}

/// A numbered unit that is held (see [`slot_pool::Slot`], to which it derefs).
#[derive(Debug)]
pub struct Slot(slot_pool::Slot);

impl Slot {
    /// Releases the slot and waits for the engine's answer.
    ///
    /// # Errors
    /// As [`lease::Lease::release`].
    pub fn release(self) -> Result<ReleaseAnswer> {
        Lease::from(self).release()
    }
}

impl Deref for Slot {
    type Target = slot_pool::Slot;

    fn deref(&self) -> &slot_pool::Slot {
        &self.0
    }
}

impl From<Slot> for Lease {
    /// Takes the slot for a lease like others; [`lease::Lease::slot`] still tells its number.
    fn from(slot: Slot) -> Lease {
        Lease(slot.0.into())
    }
}
