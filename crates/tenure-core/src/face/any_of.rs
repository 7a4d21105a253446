//! One of several, whichever is free first.
//!
//! They are tried one after the other, in the order in which they were named: to try them together would take for a moment what
//! others want. When none is free it waits in all queues at once, and leaves the others when the first has granted. Whoever
//! waits so holds nothing that others could wait for, so no circle of waiters comes about.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;

use crate::client::connection::Connection;
use crate::clock::Instant;
use crate::error::{ErrorKind, Result};
use crate::face::all_of::{LockRequest, Repeats, checked};
use crate::face::claimant::{Claimant, finish, until_lost};
use crate::face::lease::{Acquired, Lease, timeout, unasked_value};

/// One of several locks, units or slots of any mix: the first that is free.
///
/// For numbers that others take by name, one lock for each (`thread_id_lock:0`, `thread_id_lock:1`, ...), or for any of a few
/// machines of different names. Where all are alike and only this library takes them, a [`SlotPool`](crate::SlotPool) is one
/// name, one call and one queue.
///
/// # Guarantees
/// At most one is held when a verb returns. [`Lease::resource`] says which.
///
/// In each queue, claims are served as those of a [`Mutex`](crate::Mutex) are; between queues there is no order. Somebody who came
/// later may be granted another one sooner.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("any-example").await?;
/// let ids = (0..16).map(|id| tenure.mutex(&format!("thread_id_lock:{id}")).into());
/// let lease = tenure.any(ids).acquire().await?;
/// assert_eq!(lease.resource().as_str(), "thread_id_lock:0");
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # use std::time::Duration;
/// # async fn f(any: tenure_core::AnyOf, work: impl Fn(&str)) -> tenure_core::Result<()> {
/// let lease = any.try_acquire().await?;
/// let lease = any.acquire_within(Duration::from_secs(5)).await?;
/// let lease = any.acquire().await?;
/// let done = any.run(async |lease| work(lease.resource().as_str())).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AnyOf {
    connection: Arc<Connection>,
    wanted: Vec<LockRequest>,
}

impl fmt::Debug for AnyOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyOf").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

impl AnyOf {
    pub(crate) fn new(connection: Arc<Connection>, wanted: Vec<LockRequest>) -> AnyOf {
        AnyOf { connection, wanted }
    }

    /// Takes the first that is free and has no waiters, in the order in which they were named; none if none is.
    ///
    /// `let lease = any.try_acquire().await?;`
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if a name before that is in use with another kind or capacity;
    /// [`Invalid`](ErrorKind::Invalid) for an empty list or more than 128, a name that is wanted twice, one that was named from another
    /// client, a bad name, capacity or setting: of any of them, before anything is sent; [`Unsupported`](ErrorKind::Unsupported) if
    /// the engine cannot do it; [`Unavailable`](ErrorKind::Unavailable) if the engine does not answer within the answer timeout
    /// (default 2 s).
    ///
    /// # Cancel safety
    /// Dropping the future releases what it may have been granted, in the background.
    ///
    /// # Cost
    /// One round trip for each up to the first that is free.
    pub async fn try_acquire(&self) -> Result<Option<Lease>> {
        Ok(match self.take(Some(Duration::ZERO)).await? {
            Acquired::Lease(lease) => Some(lease),
            Acquired::Busy(..) => None,
            Acquired::Fresh(..) => return Err(unasked_value()),
        })
    }

    /// Waits until one can be granted, and takes it. Waits for ever.
    ///
    /// `let lease = any.acquire().await?;`
    ///
    /// # Errors
    /// As [`Self::try_acquire`], and [`Unavailable`](ErrorKind::Unavailable) if the engine stays silent for so long that its places in
    /// all queues are gone (see [`Mutex::acquire`](crate::Mutex::acquire)).
    ///
    /// # Cancel safety
    /// Dropping the future withdraws what waits, and releases what it may have been granted, in the background.
    ///
    /// # Cost
    /// As [`Self::try_acquire`]; then one call for all queues, and one to leave the others.
    pub async fn acquire(&self) -> Result<Lease> {
        self.taken(None).await
    }

    /// Waits up to `wait`. Zero does not queue.
    ///
    /// `let lease = any.acquire_within(Duration::from_secs(5)).await?;`
    ///
    /// # Errors
    /// As [`Self::acquire`], and [`Timeout`](ErrorKind::Timeout) if the wait was over first; it names the one that was in the way last.
    ///
    /// # Cancel safety
    /// As [`Self::acquire`].
    pub async fn acquire_within(&self, wait: Duration) -> Result<Lease> {
        self.taken(Some(wait)).await
    }

    /// Takes one, does the work and releases it. If it is lost, the work is dropped.
    ///
    /// `let done = any.run(async |lease| work(lease.resource().as_str())).await?;`
    ///
    /// # Errors
    /// Those of [`Self::acquire`], and [`Lost`](ErrorKind::Lost) if the lease was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases in the background.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T> {
        let lease = self.acquire().await?;
        let done = until_lost(&lease, work(&lease)).await?;
        finish(lease, done).await
    }

    async fn taken(&self, wait: Option<Duration>) -> Result<Lease> {
        match self.take(wait).await? {
            Acquired::Lease(lease) => Ok(lease),
            Acquired::Busy(resource, busy) => Err(timeout(&self.connection, &resource, *busy)),
            Acquired::Fresh(..) => Err(unasked_value()),
        }
    }

    /// See the top of the file. `wait` is how long to queue. `None`: for ever. Zero: not at all.
    async fn take(&self, wait: Option<Duration>) -> Result<Acquired> {
        let wanted = checked(&self.wanted, &self.connection, Repeats::Nothing)?;
        let claimants: Vec<&Claimant> = wanted.into_iter().map(|(_, claimant)| claimant).collect();
        let clock = &self.connection.shared.clock;
        let give_up_at = wait.map_or(Instant::NEVER, |wait| clock.now() + wait);
        let may_wait = wait != Some(Duration::ZERO);
        let mut busy = None;
        for claimant in &claimants {
            match claimant.ask(Some(Duration::ZERO)).await {
                Ok(Acquired::Busy(resource, by)) => busy = Some(Acquired::Busy(resource, by)),
                // The others may be on a shard that answers, which is found out by waiting for all at once.
                Err(error) if error.kind() == ErrorKind::Unavailable && may_wait => break,
                other => return other,
            }
        }
        let left = wait.map(|_| give_up_at.since(clock.now()));
        if left == Some(Duration::ZERO)
            && let Some(busy) = busy
        {
            return Ok(busy);
        }
        let mut refused = Refused::default();
        let mut waiting: Vec<_> = claimants.iter().map(|claimant| claimant.ask(left)).collect();
        while !waiting.is_empty() {
            // Dropped with the rest, a grant that comes at the same moment goes back unused.
            let (acquired, _, others) = select_all(waiting).await;
            match acquired {
                Ok(acquired @ Acquired::Lease(_)) => return Ok(acquired),
                other => refused.add(other)?,
            }
            waiting = others;
        }
        match (refused.last(), busy) {
            // What is left of the wait may be shorter than an answer takes. That is no silence of the engine.
            (Err(error), Some(busy))
                if error.kind() == ErrorKind::Unavailable && clock.now() >= give_up_at =>
            {
                Ok(busy)
            }
            (refused, _) => refused,
        }
    }
}

/// Why none was taken.
#[derive(Default)]
struct Refused {
    busy: Option<Acquired>,
    silent: Option<crate::error::Error>,
}

impl Refused {
    /// An engine that is silent about one, as a shard of it may be, may have another.
    fn add(&mut self, acquired: Result<Acquired>) -> Result<()> {
        match acquired {
            Ok(acquired) => self.busy = Some(acquired),
            Err(error) if error.kind() == ErrorKind::Unavailable => self.silent = Some(error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// What is not known to be busy may be free: that is told.
    fn last(self) -> Result<Acquired> {
        match (self.silent, self.busy) {
            (Some(error), _) => Err(error),
            (None, busy) => Ok(busy.expect("at least one is wanted")),
        }
    }
}
