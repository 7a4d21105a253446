//! One holder at a time.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::{Name, Terms};
use crate::client::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Acquire, Asked, Asking, Lease, unasked_value, until_lost};
use crate::ledger::Wish;

/// A lock with one holder at a time, by name.
///
/// # Guarantees
/// Claims are granted in the order in which the engine received them. Each grant's token is larger than every
/// earlier one. A lease is kept alive in the background; if that fails for a ttl, it is lost by a local
/// deadline before the engine grants the mutex to anybody else. What an engine cannot promise (a failover, a
/// stepped clock) is on its page; the token is the answer to it.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("mutex-example").await?;
/// let billing = tenure.mutex("billing/4711").ttl(std::time::Duration::from_secs(30));
/// let paid = billing.run(async |lease| format!("paid under {}", lease.token())).await?;
/// # assert!(paid.starts_with("paid under 1"));
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    connection: Arc<Connection>,
    name: Result<Name>,
    terms: Arc<Terms>,
}

impl Mutex {
    pub(crate) fn new(connection: Arc<Connection>, name: &str) -> Mutex {
        let terms = connection.shared.terms.clone();
        Mutex { connection, name: Name::new(name), terms }
    }

    /// Sets how long a hold lives without renewal (default 30 s; 100 ms to 24 h). Renewals are sent every
    /// third of it. More: slower to notice a dead holder. Less: sooner lost when the store is slow.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Mutex {
        Arc::make_mut(&mut self.terms).ttl = ttl;
        self
    }

    /// Ends every lease this long after its grant, renewed or not (default: never).
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Mutex {
        Arc::make_mut(&mut self.terms).limits.max_hold = Some(max_hold);
        self
    }

    /// Keeps the mutex from others until this long after the grant, even if it is released sooner (default:
    /// not at all). A fleet in which everybody tries does the work once per period; if the holder vanishes,
    /// another may try at once.
    #[must_use]
    pub fn min_hold(mut self, min_hold: Duration) -> Mutex {
        Arc::make_mut(&mut self.terms).limits.min_hold = min_hold;
        self
    }

    /// Keeps the mutex from others for this long after its holder vanished (default: not at all), for
    /// resources that cannot check tokens.
    #[must_use]
    pub fn lock_delay(mut self, lock_delay: Duration) -> Mutex {
        Arc::make_mut(&mut self.terms).limits.lock_delay = lock_delay;
        self
    }

    /// Adds a free text to the label that others are shown (default: none). Too long a text is cut.
    #[must_use]
    pub fn label(mut self, text: &str) -> Mutex {
        let label = self.terms.label.with_text(text);
        Arc::make_mut(&mut self.terms).label = label;
        self
    }

    /// Takes the lock if it is free and nobody waits for it; none if it is not.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer within the answer timeout (default 2 s);
    /// [`ErrorKind::Conflict`] if the name is in use with another kind or capacity;
    /// [`ErrorKind::Invalid`] for a bad name or setting; [`ErrorKind::Unsupported`] if the engine cannot do it.
    ///
    /// # Cancel safety
    /// Dropping the future releases what it may have been granted, in the background.
    ///
    /// # Cost
    /// One round trip.
    pub async fn try_acquire(&self) -> Result<Option<Lease>> {
        Ok(match self.ask(Some(Duration::ZERO)).await? {
            Asked::Lease(lease) => Some(lease),
            Asked::Busy(..) => None,
            Asked::Fresh(_) => return Err(unasked_value()),
        })
    }

    /// Waits until the lock is free, then takes it. Waits for ever.
    ///
    /// Waiters are served in the order in which the engine received their claims.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`], and [`ErrorKind::Unavailable`] if the engine stays silent for so long that
    /// the place in the queue is gone (15 s, or the ttl if that is less, but not less than the answer timeout).
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the claim and loses the place in the queue. If the grant was already on
    /// its way, it is released in the background; if that fails, it ends after its ttl.
    ///
    /// # Cost
    /// One round trip when free; one more message when woken; while waiting, a heartbeat every third of
    /// the confirm window (5 s, or the ttl if that is less).
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.ask(None))
    }

    /// Waits up to `wait` for the lock. Zero does not queue.
    ///
    /// # Errors
    /// As [`Mutex::acquire`], and [`ErrorKind::Timeout`] if the wait was over first; then nothing is held.
    ///
    /// # Cancel safety
    /// As [`Mutex::acquire`].
    pub fn acquire_within(&self, wait: Duration) -> Acquire {
        Acquire::new(self.ask(Some(wait)))
    }

    /// Takes the lock, does the work and releases the lock. If the lease is lost, the work is dropped.
    ///
    /// # Errors
    /// Those of [`Mutex::acquire`], and [`ErrorKind::Lost`] if the lease was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock in the background.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T> {
        let lease = self.acquire().await?;
        let done = until_lost(&lease, work(&lease)).await?;
        // The work is done. A release that fails goes on in the background, and the hold ends by itself.
        if let Err(error) = lease.release().await {
            tracing::debug!(%error, "release after the work goes on in the background");
        }
        Ok(done)
    }

    /// Lets a fresh value answer as well.
    pub(crate) fn unless_fresh(mut self) -> Mutex {
        Arc::make_mut(&mut self.terms).unless_fresh = true;
        self
    }

    pub(crate) fn ask(&self, wait: Option<Duration>) -> Asking {
        Asking::new(self.connection.clone(), self.wish(wait))
    }

    fn wish(&self, wait: Option<Duration>) -> Result<Wish> {
        let resource = self.name.clone()?;
        self.connection.shared.check_process()?;
        let engine = &self.connection.shared.engine;
        self.terms.check().map_err(|error| error.with_resource(&resource))?;
        let capability = engine.capability();
        let limits = &self.terms.limits;
        let unsupported = if !capability.kinds.contains(&self.terms.kind) {
            Some("this kind of resource")
        } else if !(capability.has_rests || limits.min_hold.is_zero() && limits.lock_delay.is_zero()) {
            Some("min_hold and lock_delay: its units cannot rest")
        } else if self.terms.ttl < capability.ttl_min || self.terms.ttl > capability.ttl_max {
            Some("this ttl")
        } else {
            None
        };
        if let Some(what) = unsupported {
            return Err(Error::new(ErrorKind::Unsupported, "claim", format!("it cannot do {what}"))
                .with_resource(&resource)
                .with_engine(engine.name()));
        }
        let floor = self.connection.shared.floor(&resource);
        Ok(Wish { resource, terms: self.connection.shared.share(&self.terms), wait, floor })
    }
}
