//! What an ordered store must give for queues.

use std::time::Duration;

use tenure_core::clock::{Instant, Timestamp};
use tenure_core::engine::queue::QueueCapability;
use tenure_core::model::claim::{ClaimId, ClientId, Name};
use tenure_core::{Error, Result};

use super::row_cache::{Found, Key, KeyRange, Value};
use crate::wake::Wakes;

/// What the store's clock says: it is not before `earliest`, and was not after `latest` when this was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// What is due by this moment is due.
    pub earliest: Timestamp,
    /// What is to last is counted from here.
    pub latest: Timestamp,
    /// Which clock this is: a later one need not agree with an earlier one.
    pub epoch: i64,
}

/// A queue's head and some of its rows, all at one version.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The version of the head; 0 if there is none.
    pub version: i64,
    /// The head.
    pub head: Option<Value>,
    /// What was asked for, in that order.
    pub found: Vec<Found>,
}

/// Changes of a queue, all or none of which are made.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// The queue.
    pub queue: &'a Name,
    /// Only if the head has this version.
    pub version: i64,
    /// Only if this is still the clock.
    pub epoch: i64,
    /// The new head.
    pub head: Vec<u8>,
    /// What becomes of other rows.
    pub rows: Vec<(Key, Option<Value>)>,
    /// These rows must be there: they are removed without a change of the head.
    pub there: Vec<Key>,
    /// Deliveries that begin, with their ttl, or end. One that begins is given a sign of its client's session, if the store has those.
    pub signs: Vec<(ClaimId, Option<Duration>)>,
    /// The clients to wake, since something may be ready.
    pub calls: Vec<ClientId>,
    /// It renews or ends deliveries: what a store keeps room for that refuses all else when it is full.
    pub is_of_deliveries: bool,
    /// What is read if nothing is changed.
    pub otherwise: &'a [KeyRange],
}

/// What became of a change.
#[derive(Clone, Debug)]
pub enum Changed {
    /// It is made; the head's version now.
    Yes(i64),
    /// The head, or the clock, was another one.
    No(Snapshot),
}

/// What is removed while nothing can be written.
#[derive(Clone, Debug)]
pub struct Removal<'a> {
    /// The queue.
    pub queue: &'a Name,
    /// Only if there is a sign of life of this delivery.
    pub claim: ClaimId,
    /// And only if this row is there.
    pub there: Key,
    /// What goes.
    pub rows: Vec<Key>,
    /// Whether the sign goes, too.
    pub with_sign: bool,
}

/// What there is of a delivery, beside what a queue's head speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The sign of its client's session.
    pub has_sign: bool,
    /// The row of its claim.
    pub has_claim: bool,
    /// Its item.
    pub has_item: bool,
}

/// Whether a change fits in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It does, and there is room for more.
    Room,
    /// It does, and is to be made as it is.
    Full,
    /// It does not: less has to be done at once.
    Beyond,
}

/// A change takes no further request when it is heavier, in bytes: with one more payload it is below the 1.5 MiB that etcd takes.
const BYTES_MAX: usize = 640 * 1024;
/// The most rows that a change begins to add to.
const ROWS_MAX: usize = 1500;

/// A store that keeps rows in the order of their keys, and changes several of them as one.
///
/// Every answer is linearizable. A call that fails with [`tenure_core::ErrorKind::Unavailable`] may have been carried out,
/// and no call is repeated by the store.
pub trait QueueStore: Send + Sync + 'static {
    /// The engine's one word.
    const ENGINE: &'static str;

    /// What its queues can do.
    fn capability(&self) -> &QueueCapability;

    /// Where news for this client go.
    fn wakes(&self) -> &Wakes;

    /// Reads the store's clock.
    fn time(&self) -> impl Future<Output = Result<Moment>> + Send;

    /// Reads a queue.
    fn read(&self, queue: &Name, wanted: &[KeyRange]) -> impl Future<Output = Result<Snapshot>> + Send;

    /// Changes a queue.
    fn change(&self, change: Change<'_>) -> impl Future<Output = Result<Changed>> + Send;

    /// Whether changes of rows fit in one transaction of a queue, as it was read last. In the order of their keys.
    fn fit<'a>(&self, queue: &Name, rows: &mut dyn Iterator<Item = (&'a Key, Option<&'a Value>)>) -> Fit {
        let _ = queue;
        let weigh = |(count, bytes), (key, value): (&Key, Option<&Value>)| {
            (count + 1, bytes + key.len() + value.map_or(0, |value| value.len()))
        };
        let (count, bytes) = rows.fold((0, 0), weigh);
        if count >= ROWS_MAX || bytes >= BYTES_MAX { Fit::Full } else { Fit::Room }
    }

    /// Lists up to `most` queues that have a head, by their names.
    fn names(
        &self,
        prefix: &str,
        after: Option<&Name>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Name>>> + Send;

    /// Whether the store has signs of life, and so the next five.
    fn has_signs(&self) -> bool {
        false
    }

    /// Makes sure that signs for deliveries with this ttl can be given at once.
    fn prepare(&self, ttl: Duration) -> impl Future<Output = Result<()>> + Send {
        let _ = ttl;
        async { Ok(()) }
    }

    /// Shows that this client lives. Returns until when the signs of deliveries with this ttl last at least, if there may be any.
    fn keep(&self, ttl: Duration) -> impl Future<Output = Result<Option<Instant>>> + Send {
        let _ = ttl;
        async { Ok(None) }
    }

    /// Whether an error says that nothing can be written until an operator makes room.
    fn is_full(&self, error: &Error) -> bool {
        let _ = error;
        false
    }

    /// Removes rows, and does not touch the head. False: something is not there that must be.
    fn remove(&self, removal: Removal<'_>) -> impl Future<Output = Result<bool>> + Send {
        drop(removal);
        async { Ok(false) }
    }

    /// Reads what there is of deliveries, by their claims, and the keys of the claim's row and of the item.
    fn standing(
        &self,
        queue: &Name,
        deliveries: &[(ClaimId, Key, Key)],
    ) -> impl Future<Output = Result<Vec<Standing>>> + Send {
        let _ = (queue, deliveries);
        async { Ok(Vec::new()) }
    }

    /// Has this client woken from now on when others call it.
    fn listen(&self) -> impl Future<Output = Result<()>> + Send;
}
