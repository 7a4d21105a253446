//! The contract of an engine's queues: few verbs, batched, the same meaning everywhere. [`step`](super::step) says
//! what is right for all of them; the checks of `tenure_conformance::queue` are the text of this contract.
//!
//! What the engine must do beside answering:
//!
//! - **Order.** Items of one group are handed out one at a time, in the order of their pushes: the next one only when the
//!   one before is acknowledged or dead. A push that began after another was answered comes after it. Items without a group
//!   stand for themselves. What is ready is handed out in the order in which it became ready, so groups take turns.
//! - **Time** is the store's, judged when something is taken: nothing has to run for a delay to pass. All that one call does with
//!   one queue is done at one moment.
//! - **Telling.** A client that took less than it wanted is *idle*. When something becomes ready, the engine sends
//!   [`Wake::Queue`](crate::engine::Wake::Queue) to an idle client, or to several; one that wakes few must do so again when who
//!   was woken leaves more behind. An idle client that is told nothing looks again after [`CONSUMER_LOOK`], so a wake that is lost
//!   costs that long at most, and an engine that cannot tell anybody ([`QueueCapability::tells_consumers`]) is asked more often.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use serde::{Deserialize, Serialize};

use crate::claim::{ClaimId, ClientId, Label, Name};
use crate::engine::{RenewAnswer, RenewRequest};
use crate::error::Result;
use crate::token::Token;

/// The largest payload of an item, in bytes: more belongs where it can be fetched by a name.
pub const PAYLOAD_BYTES_MAX: usize = 256 * 1024;
/// A queue as a list shows it: its name, and what is in it or why it cannot be read.
pub type QueueLine = (Name, Result<QueueStats>);

/// How many queues are asked for at a time where all are listed.
const PAGE: usize = 128;
/// The longest reason of a dead letter, in bytes. What is longer is cut.
pub const REASON_BYTES_MAX: usize = 256;
/// Returns as much of a reason as is kept.
pub fn cut_reason(reason: &str) -> &str {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

/// How long a dedup id is remembered after its push, at least: as long as its item is in the queue, and this long.
pub const DEDUP_MEMORY: Duration = Duration::from_secs(300);
/// After how long an idle client that was told nothing looks again.
pub const CONSUMER_LOOK: Duration = Duration::from_secs(5);
/// How long an idle client is taken to be there without looking again.
pub const CONSUMER_LIFE: Duration = Duration::from_secs(15);

/// What an engine's queues can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCapability {
    /// The largest payload, in bytes.
    pub payload_bytes_max: usize,
    /// The most items of one queue, dead letters included. A push beyond is refused as `Unsupported`.
    pub items_max: u64,
    /// The shortest interval between two dispatches.
    pub interval_min: Duration,
    /// Intervals are whole multiples of this.
    pub interval_grain: Duration,
    /// Whether an idle client is told at once when something is ready. Otherwise it looks every second.
    pub tells_consumers: bool,
    /// Whether what was pushed survives a crash of the store's machine.
    pub is_durable: bool,
    /// Whether what was pushed and answered survives the failover of a store's server.
    pub survives_failover: bool,
    /// The most pushes, takes, renewals or settlements in one call.
    pub batch_max: usize,
}

impl QueueCapability {
    /// All that [`step`](super::step) can do, in a store that forgets; an engine narrows it.
    pub fn of_step() -> QueueCapability {
        QueueCapability {
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            items_max: u64::MAX,
            interval_min: Duration::ZERO,
            interval_grain: Duration::from_micros(1),
            tells_consumers: true,
            is_durable: false,
            survives_failover: false,
            batch_max: 128,
        }
    }
}

/// The number of an item: larger for each later push into a queue. A dead letter that is replayed gets a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemId(pub u64);

impl std::fmt::Display for ItemId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A push of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// The queue.
    pub queue: Name,
    /// The group, if it belongs to one.
    pub group: Option<Name>,
    /// What is pushed.
    pub payload: Arc<[u8]>,
    /// How long it is held back.
    pub delay: Duration,
    /// The id under which it is pushed once.
    pub dedup: Option<Name>,
}

/// The answer to a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// The number of the item. Of a duplicate: the one that was pushed first.
    pub item: ItemId,
    /// Nothing was pushed: the dedup id is remembered.
    pub is_duplicate: bool,
}

/// The least time between two dispatches, over all consumers.
///
/// It is counted from each dispatch by the settings of who took it, so all consumers of a queue should say the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interval {
    /// None.
    #[default]
    Off,
    /// Between two of the whole queue.
    Queue(Duration),
    /// Between two of the same group. Items without a group are not held back.
    Group(Duration),
}

/// How a consumer takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// How long a delivery lives without renewal.
    pub ttl: Duration,
    /// The least time between two dispatches.
    pub interval: Interval,
    /// After so many deliveries that were not acknowledged an item is dead. 0: never.
    pub attempts_max: u32,
    /// Who takes, for people.
    pub label: Label,
}

/// A request for items.
#[derive(Clone, Debug)]
pub struct Take {
    /// The queue.
    pub queue: Name,
    /// Who takes.
    pub client: ClientId,
    /// A new id for each item that is wanted. None: the client wants nothing any more, and is not idle any more.
    pub claims: Vec<ClaimId>,
    /// How.
    pub rules: Arc<Rules>,
    /// Tokens are larger than this. A floor that lies more than an hour ahead of the store's clock is ignored, or the take is
    /// refused: one of the two is wrong. The client puts back what it is given with a smaller token.
    pub floor: Token,
}

/// The answer to a take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// As many items as there are ready, for the claims in their order.
    pub items: Vec<Dispatched>,
    /// Fewer than were wanted, and this client is to look again after so long. None: it will be told. Zero: there may be more at
    /// once, and whether this client is idle is not known.
    pub look_in: Option<Duration>,
}

/// An item that was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatched {
    /// Under which claim.
    pub claim: ClaimId,
    /// Its number.
    pub item: ItemId,
    /// Its group.
    pub group: Option<Name>,
    /// What was pushed.
    pub payload: Arc<[u8]>,
    /// How often it has been handed out: 1 for the first time.
    pub attempt: u32,
    /// Larger than that of every earlier delivery of the group.
    pub token: Token,
    /// How long the delivery lives without renewal, from when the engine answered.
    pub ends_in: Duration,
}

/// What becomes of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It is done: the item goes.
    Ack,
    /// It is to be handed out again after so long; its group waits. If it was the last of so many attempts (0: there is
    /// none), it is dead.
    Retry {
        /// After how long.
        after: Duration,
        /// As [`Rules::attempts_max`].
        attempts_max: u32,
        /// Why, for a dead letter.
        reason: String,
    },
    /// It never will be done: the item is dead.
    Fail {
        /// Why.
        reason: String,
    },
    /// Nobody has seen it: it is handed out again at once, and the attempt does not count.
    Return,
}

/// A settlement of a delivery.
#[derive(Clone, Debug)]
pub struct Settle {
    /// The queue.
    pub queue: Name,
    /// The claim under which it was taken.
    pub claim: ClaimId,
    /// What becomes of it.
    pub settlement: Settlement,
}

/// The answer to a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleAnswer {
    /// As was asked.
    Settled,
    /// It was the last attempt: the item is a dead letter now.
    Buried,
    /// The delivery has ended: nothing was changed.
    Lost,
}

/// What is in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// How many items wait: ready, delayed, for a retry or behind others of their group.
    pub waiting: u64,
    /// How many are with a consumer. One whose delivery has ended counts until it is handed out again.
    pub in_flight: u64,
    /// How many dead letters there are.
    pub dead: u64,
    /// After how long something can be taken, if no delivery is renewed or ended until then. None: there is nothing.
    pub next_in: Option<Duration>,
}

/// What of a queue is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// What waits or is in flight.
    Live,
    /// The dead letters.
    Dead,
}

/// An item as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemView {
    /// Its number.
    pub item: ItemId,
    /// Its group.
    pub group: Option<Name>,
    /// What was pushed.
    pub payload: Arc<[u8]>,
    /// How often it has been handed out.
    pub attempts: u32,
    /// How long ago it was pushed.
    pub age: Duration,
    /// Where it stands.
    pub state: ItemState,
}

/// Where an item stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemState {
    /// It can be taken after so long.
    Waiting {
        /// Zero: now.
        ready_in: Duration,
    },
    /// Another of its group comes first.
    Behind,
    /// A consumer has it.
    InFlight {
        /// Who.
        label: Label,
        /// When the delivery ends without renewal.
        ends_in: Duration,
    },
    /// It is a dead letter.
    Dead {
        /// Why.
        reason: String,
        /// Since when.
        since: Duration,
    },
}

/// The queues of an engine. As with [`Engine`](crate::engine::Engine): answers are in the order of the requests, an `Err` of kind
/// `Unavailable` means that the outcome is unknown, and nothing is repeated by the engine itself.
pub trait QueueEngine: Send + Sync {
    /// Returns what the queues can do.
    fn capability(&self) -> &QueueCapability;

    /// Puts items in line. Pushes of one call into one queue stand in the order of the call.
    fn push(&self, pushes: Vec<Push>) -> BoxFuture<'_, Vec<Result<Pushed>>>;

    /// Hands out what is ready.
    fn take(&self, takes: Vec<Take>) -> BoxFuture<'_, Vec<Result<Taken>>>;

    /// Extends deliveries: `Renewed` or `Lost`.
    fn renew(&self, renewals: Vec<RenewRequest>) -> BoxFuture<'_, Vec<Result<RenewAnswer>>>;

    /// Ends deliveries.
    fn settle(&self, settlements: Vec<Settle>) -> BoxFuture<'_, Vec<Result<SettleAnswer>>>;

    /// Lists up to `most` queues that have items or dead letters, whose names begin with `prefix` and come after `after`, by
    /// name. A page is empty only at the end.
    fn queues(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> BoxFuture<'_, Result<Vec<(Name, QueueStats)>>>;

    /// Lists all queues that have items or dead letters, whose names begin with `prefix`, as
    /// [`Engine::inspect_all`](crate::engine::Engine::inspect_all) lists resources.
    fn queues_all(&self, prefix: String) -> BoxStream<'_, Result<Vec<QueueLine>>> {
        let first = (prefix, None::<Name>);
        let pages = stream::try_unfold(first, move |(prefix, after)| async move {
            let page = self.queues(prefix.clone(), after, PAGE).await?;
            let Some((last, _)) = page.last().cloned() else { return Ok(None) };
            let lines = page.into_iter().map(|(name, stats)| (name, Ok(stats))).collect();
            Ok(Some((lines, (prefix, Some(last)))))
        });
        Box::pin(pages)
    }

    /// Looks at one queue.
    fn stats(&self, queue: Name) -> BoxFuture<'_, Result<QueueStats>>;

    /// Says whether nothing in it waits or is in flight. It is asked several times a second, so its cost must not grow with the
    /// queue: an engine whose `stats` counts items has a way of its own.
    fn is_empty(&self, queue: Name) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let stats = self.stats(queue).await?;
            Ok(stats.waiting + stats.in_flight == 0)
        })
    }

    /// Lists up to `most` items after `after`, by their numbers. A page may be shorter; it is empty only at the end.
    fn items(
        &self,
        queue: Name,
        which: Which,
        after: Option<ItemId>,
        most: usize,
    ) -> BoxFuture<'_, Result<Vec<ItemView>>>;

    /// Puts dead letters in line again, at the end of their groups and as if they had never been handed out: one, or up to `most`,
    /// the oldest first. Returns how many.
    fn replay(&self, queue: Name, item: Option<ItemId>, most: usize) -> BoxFuture<'_, Result<usize>>;

    /// Removes up to `most` items, or one: dead letters, or what waits and is not in flight. Returns how many.
    fn purge(
        &self,
        queue: Name,
        which: Which,
        item: Option<ItemId>,
        most: usize,
    ) -> BoxFuture<'_, Result<usize>>;
}
