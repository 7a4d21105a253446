//! Numbered units.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::client::connection::Connection;
use crate::counts::Primitive;
use crate::engine::ReleaseAnswer;
use crate::error::{Error, ErrorKind, Result};
use crate::face::all_of::{AllOf, LockRequest, SEVERAL_MAX};
use crate::face::claimant::{Claimant, claim_id, debug, finish, labelled, settings, until_lost, verbs};
use crate::face::lease::{Acquire, Lease};
use crate::model::claim::Kind;

/// Slots 0 to n - 1 by name, each with one holder at a time: worker ids, shards, ports, licences.
///
/// Everybody must name it with the same number of slots while it is in use (else
/// [`Conflict`](crate::ErrorKind::Conflict)); [`Tenure::resize`](crate::Tenure::resize) changes it in use, and then a
/// slot that is held already may have a larger number for a while.
///
/// # Guarantees
/// No slot has two holders, as a [`Mutex`](crate::Mutex) has not. Claims are granted in the order in which the
/// engine received them. Tokens grow with each grant of the pool, so also with each grant of a slot: a
/// resource that keeps the largest token **for each slot** refuses a former holder of that slot.
/// [`SlotPool::lock_delay`] is a quarantine: the slot of a holder that vanished is not granted for so long.
///
/// # Engines
/// Where the capability says so (`slot_order`), the slot that has been free longest is given, so that a
/// number is not reused sooner than necessary.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("slot-pool-example").await?;
/// let slot: tenure_core::Slot = tenure.slot_pool("worker-ids", 16).acquire().await?;
/// println!("worker {}", slot.number());
/// # assert!(slot.number() < 16);
/// slot.release().await?;
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # async fn f(pool: tenure_core::SlotPool, work: impl Fn(u32)) -> tenure_core::Result<()> {
/// let worked = pool.run(async |slot| work(slot.number())).await?;
/// let three_slots = pool.several(3).acquire().await?;
/// # let slot = pool.acquire().await?;
/// let number = slot.number();
/// slot.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SlotPool {
    pub(crate) claimant: Claimant,
}

debug!(SlotPool);

impl SlotPool {
    pub(crate) fn new(connection: Arc<Connection>, name: &str, slots: u32) -> SlotPool {
        SlotPool {
            claimant: Claimant::new(connection, name, Primitive::SlotPool).of_kind(Kind::SlotPool, slots),
        }
    }

    settings!("the slot");
    labelled!();
    claim_id!();
    verbs!("a slot", Slot, Slot::new);

    /// Names so many slots of it that are taken all or none, and released in one step.
    ///
    /// `let three_slots = pool.several(3).acquire().await?;`
    ///
    /// The verbs of the set say what goes wrong: 0, more than the pool has, or more than 128 are [`Invalid`](crate::ErrorKind::Invalid).
    ///
    /// # Guarantees
    /// Nobody ever holds a part for ever while it waits for the rest: who waits for several slots of a pool does so one after the other, in
    /// the order in which they came, and then has one place in the queue, as somebody who wants a single slot has. Slots that become free are
    /// kept for it until it has all.
    ///
    /// Whoever gathers slots holds a mutex meanwhile, of the pool's name and `/several`: use that name for nothing else. So a pool's name has 247
    /// bytes at most here.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// # let tenure = tenure_core::memory::connect("slot-pool-several-example").await?;
    /// let leases = tenure.slot_pool("worker-ids", 16).several(3).acquire().await?;
    /// let ids: Vec<u32> = leases.iter().filter_map(|lease| lease.slot()).collect();
    /// # assert_eq!(ids.len(), 3);
    /// leases.release().await?;
    /// # Ok(()) }) }
    /// ```
    pub fn several(&self, slots: u32) -> AllOf {
        // One too many is refused as more would be.
        let slots = (slots as usize).min(SEVERAL_MAX + 1);
        let wanted = std::iter::repeat_n(LockRequest::from(self), slots);
        AllOf::new(self.claimant.connection().clone(), wanted.collect())
    }

    /// Takes a slot, does the work and releases the slot. If the slot is lost, the work is dropped and **started
    /// anew with another slot**, as often as that happens; each time a `warn` event says so.
    ///
    /// `let worked = pool.run(async |slot| work(slot.number())).await?;`
    ///
    /// The work ends this by returning: what it returns is returned, and it is not started again.
    ///
    /// # Errors
    /// Those of [`SlotPool::acquire`], for the first slot and for each later one;
    /// [`Lost`](crate::ErrorKind::Lost) if the slot was lost in the last stretch of work that has returned.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the slot in the background.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// # let tenure = tenure_core::memory::connect("slot-pool-run-example").await?;
    /// # let mut jobs = vec!["a", "b"].into_iter();
    /// let workers = tenure.slot_pool("worker-ids", 16);
    /// let worked = workers.run(async |slot| {
    ///     let mut worked = Vec::new();
    ///     while let Some(job) = jobs.next() {
    ///         worked.push(format!("{job} by worker {}", slot.number()));
    ///     }
    ///     worked
    /// });
    /// assert_eq!(worked.await?.len(), 2);
    /// # Ok(()) }) }
    /// ```
    pub async fn run<T>(&self, mut work: impl AsyncFnMut(&Slot) -> T) -> Result<T> {
        loop {
            let slot = self.acquire().await?;
            match until_lost(&slot, work(&slot)).await {
                Ok(done) => return finish(slot.lease, done).await,
                Err(lost) => tracing::warn!(
                    resource = %slot.resource(),
                    slot = slot.number(),
                    token = %slot.token(),
                    %lost,
                    "the work starts anew with another slot"
                ),
            }
        }
    }
}

/// A numbered unit that is held: a [`Lease`], to which it derefs, with a number.
///
/// Dropping it releases it in the background, without a runtime.
pub struct Slot {
    lease: Lease,
    number: u32,
}

impl Slot {
    pub(crate) fn new(lease: Lease) -> Result<Slot> {
        match lease.slot() {
            Some(number) => Ok(Slot { lease, number }),
            None => Err(Error::new(ErrorKind::Internal, "claim", "a grant of a slot pool names no slot")
                .with_resource(lease.resource())),
        }
    }

    /// Returns the number, from 0.
    ///
    /// `let number = slot.number();`
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Releases the slot and waits for the engine's answer (see [`Lease::release`]).
    ///
    /// `slot.release().await?;`
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the background.
    ///
    /// # Cost
    /// One round trip.
    pub async fn release(self) -> Result<ReleaseAnswer> {
        self.lease.release().await
    }
}

impl Deref for Slot {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl From<Slot> for Lease {
    /// Takes the slot for a lease like others; [`Lease::slot`] still returns its number.
    fn from(slot: Slot) -> Lease {
        slot.lease
    }
}

impl From<Acquire<Slot>> for Acquire {
    /// Waits for the slot as for a lease like others.
    fn from(acquire: Acquire<Slot>) -> Acquire {
        acquire.with(Ok)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.lease, f)
    }
}
