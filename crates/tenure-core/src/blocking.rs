//! The same verbs for programs without an async runtime.
//!
//! They block the calling thread and must not be called inside an async task. Where the engine's work is short
//! and local (`local:`, `memory:`), claims and releases are made on the calling thread itself.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::{Connect, ReleaseAnswer};
use crate::error::Result;
use crate::lease::Asked;
use crate::{client, lease, mutex};

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

/// A lock with one holder at a time (see [`mutex::Mutex`], whose settings it shares).
#[derive(Clone)]
pub struct Mutex(mutex::Mutex);

impl From<mutex::Mutex> for Mutex {
    /// Takes over a mutex with all its settings.
    fn from(mutex: mutex::Mutex) -> Mutex {
        Mutex(mutex)
    }
}

impl Mutex {
    /// Sets how long a hold lives without renewal (see [`mutex::Mutex::ttl`]).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Mutex {
        Mutex(self.0.ttl(ttl))
    }

    /// Takes the lock if it is free and nobody waits for it; none if it is not.
    ///
    /// # Errors
    /// As [`mutex::Mutex::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Lease>> {
        Ok(match self.0.ask(Some(Duration::ZERO)).block()? {
            Asked::Lease(lease) => Some(Lease(lease)),
            Asked::Busy(..) => None,
            Asked::Fresh(_) => return Err(lease::unasked_value()),
        })
    }

    /// Waits until the lock is free, then takes it.
    ///
    /// # Errors
    /// As [`mutex::Mutex::acquire`].
    pub fn acquire(&self) -> Result<Lease> {
        self.0.acquire().block().map(Lease)
    }

    /// Waits up to `wait` for the lock. Zero does not queue.
    ///
    /// # Errors
    /// As [`mutex::Mutex::acquire_within`].
    pub fn acquire_within(&self, wait: Duration) -> Result<Lease> {
        self.0.acquire_within(wait).block().map(Lease)
    }

    /// Takes the lock, does the work and releases the lock. A thread cannot be dropped: long work looks at
    /// [`lease::Lease::is_lost`] and stops by itself.
    ///
    /// # Errors
    /// Those of [`Mutex::acquire`], and [`crate::ErrorKind::Lost`] if the lease was lost before the work was
    /// done.
    pub fn run<T>(&self, work: impl FnOnce(&lease::Lease) -> T) -> Result<T> {
        let lease = self.acquire()?;
        let done = work(&lease.0);
        if lease.0.is_lost() {
            return Err(pollster::block_on(lease.0.lost()));
        }
        // The work is done. A release that fails goes on in the background, and the hold ends by itself.
        if let Err(error) = lease.release() {
            tracing::debug!(%error, "release after the work goes on in the background");
        }
        Ok(done)
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

impl std::ops::Deref for Lease {
    type Target = lease::Lease;

    fn deref(&self) -> &lease::Lease {
        &self.0
    }
}
