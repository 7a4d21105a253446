//! So many units at a time.

use std::sync::Arc;
use std::time::Duration;

use crate::client::connection::Connection;
use crate::counts::Primitive;
use crate::error::Result;
use crate::face::claimant::{Claimant, claim_id, debug, labelled, run, settings, verbs};
use crate::face::lease::{Acquire, Lease};
use crate::model::claim::Kind;

/// A number of units by name, of which each holder has one or several, so that never more than so many work at a
/// time.
///
/// Everybody must name it with the same capacity while it is in use (else
/// [`Conflict`](crate::ErrorKind::Conflict)); [`Tenure::resize`](crate::Tenure::resize) changes it in use.
///
/// # Guarantees
/// The weights of all holders never exceed the capacity, but for what an engine cannot promise (see its page). Claims are
/// granted in the order in which the engine received them: a light claim does not overtake a heavy one that
/// waits for enough units.
///
/// The units have no numbers, so **they are not fenced one by one**: tokens grow with each grant of the semaphore, and
/// a resource that keeps the largest one would refuse holders that are still entitled to work. Where a late
/// write must be refused, take a [`SlotPool`](crate::SlotPool) and keep a token for each slot.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("semaphore-example").await?;
/// let scrapers = tenure.semaphore("scrapers", 8);
/// let pages = scrapers.run(async |_lease| 42).await?;
/// let heavy = scrapers.weight(3).acquire().await?; // leaves five to others
/// # assert_eq!(pages, 42);
/// # heavy.release().await?;
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # async fn f(scrapers: tenure_core::Semaphore) -> tenure_core::Result<()> {
/// let lease = scrapers.weight(3).acquire().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    pub(crate) claimant: Claimant,
}

debug!(Semaphore);

impl Semaphore {
    pub(crate) fn new(connection: Arc<Connection>, name: &str, capacity: u32) -> Semaphore {
        Semaphore {
            claimant: Claimant::new(connection, name, Primitive::Semaphore)
                .of_kind(Kind::Semaphore, capacity),
        }
    }

    /// Sets how many units are taken at once (default 1; up to the capacity).
    ///
    /// `let lease = scrapers.weight(3).acquire().await?;`
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Semaphore {
        self.claimant.terms().weight = weight;
        self
    }

    settings!("the units");
    labelled!();
    claim_id!();
    verbs!("its weight in units", Lease, Ok);
    run!("its weight in units");
}
