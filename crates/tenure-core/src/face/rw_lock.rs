//! Many readers or one writer.

use std::sync::Arc;
use std::time::Duration;

use crate::client::connection::Connection;
use crate::counts::Primitive;
use crate::error::Result;
use crate::face::claimant::{Claimant, claim_id, debug, labelled, run, settings, verbs};
use crate::face::lease::{Acquire, Lease};
use crate::model::claim::{CAPACITY_MAX, Kind};

/// A lock that many readers hold together, or one writer alone, by name.
///
/// A reader weighs one unit of the resource, a writer all of them.
///
/// # Guarantees
/// Those of a [`Mutex`](crate::Mutex), for each writer against all others. Claims of both sides wait in one queue, in
/// the order in which the engine received them: a reader that comes after a waiting writer waits behind it, so
/// neither side starves the other. Readers that wait one behind the other are served together. Readers get
/// tokens too; a fenced resource refuses what comes with a smaller token than that of a later writer.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("rw-lock-example").await?;
/// let catalog = tenure.rw_lock("catalog");
/// let pages = catalog.read().run(async |_lease| 42).await?;
/// let written = catalog.write().run(async |lease| format!("{pages} pages under {}", lease.token())).await?;
/// # assert!(written.starts_with("42 pages under 1"));
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # async fn f(catalog: tenure_core::RwLock) -> tenure_core::Result<()> {
/// let lease = catalog.read().acquire().await?;
/// let lease = catalog.write().acquire().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RwLock {
    pub(crate) claimant: Claimant,
}

debug!(RwLock ReadLock WriteLock);

impl RwLock {
    pub(crate) fn new(connection: Arc<Connection>, name: &str) -> RwLock {
        RwLock {
            claimant: Claimant::new(connection, name, Primitive::RwLock).of_kind(Kind::RwLock, CAPACITY_MAX),
        }
    }

    settings!("what a side holds");
    labelled!();
    claim_id!();

    /// Names the side of readers, which share it, with the settings made so far.
    ///
    /// `let lease = catalog.read().acquire().await?;`
    pub fn read(&self) -> ReadLock {
        ReadLock { claimant: self.claimant.clone() }
    }

    /// Names the side of writers, each of which is alone, with the settings made so far.
    ///
    /// `let lease = catalog.write().acquire().await?;`
    pub fn write(&self) -> WriteLock {
        let mut claimant = self.claimant.clone();
        claimant.terms().weight = CAPACITY_MAX;
        WriteLock { claimant }
    }
}

/// The side of a [`RwLock`] that its holders share with each other, but not with a writer.
///
/// No example: [`RwLock`] shows both sides.
#[derive(Clone)]
pub struct ReadLock {
    pub(crate) claimant: Claimant,
}

impl ReadLock {
    verbs!("the lock for reading", Lease, Ok);
    run!("the lock for reading");
}

/// The side of a [`RwLock`] whose holder is alone.
///
/// No example: [`RwLock`] shows both sides.
#[derive(Clone)]
pub struct WriteLock {
    pub(crate) claimant: Claimant,
}

impl WriteLock {
    verbs!("the lock for writing", Lease, Ok);
    run!("the lock for writing");
}
