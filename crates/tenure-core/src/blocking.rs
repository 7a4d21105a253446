//! The same verbs for programs without an async runtime.
//!
//! They block the calling thread and must not be called inside an async task. Where the engine's work is short
//! and local (`local:`, `memory:`), claims and releases are made on the calling thread itself.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::{Connect, ReleaseAnswer};
use crate::error::Result;
use crate::{client, lease, mutex, rw_lock, semaphore, slot_pool};

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

impl ReadLock {
    verbs!("the lock for reading", Lease, lease::Lease, Ok);
}

wrapper!(
    /// The side of writers (see [`rw_lock::WriteLock`]).
    WriteLock,
    rw_lock::WriteLock
);

impl WriteLock {
    verbs!("the lock for writing", Lease, lease::Lease, Ok);
}

wrapper!(
    /// So many units at a time (see [`semaphore::Semaphore`]).
    Semaphore,
    semaphore::Semaphore
);

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

impl SlotPool {
    settings!();
    verbs!("a slot", Slot, slot_pool::Slot, slot_pool::Slot::new);
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
