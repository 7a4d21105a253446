//! What is said of items in line: pushes, takes, settlements, and their answers, as plain data.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::model::claim::{ClaimId, ClientId, Label, Name};
use crate::model::token::Token;

/// The largest payload of an item, in bytes: more belongs where it can be fetched by a name.
pub const PAYLOAD_BYTES_MAX: usize = 256 * 1024;
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
/// After how long an idle client that was not woken polls again.
pub const CONSUMER_LOOK: Duration = Duration::from_secs(5);
/// How long an idle client is taken to be there without polling again.
pub const CONSUMER_LIFE: Duration = Duration::from_secs(15);

/// The number of an item: larger for each later push into a queue. A dead letter that is replayed gets a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemId(pub u64);

impl std::fmt::Display for ItemId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The longest context of an item, in bytes: a W3C `traceparent` has 55.
pub const CONTEXT_BYTES_MAX: usize = 128;

/// What travels with an item beside its payload, for whoever follows work through many programs: a W3C `traceparent`, say.
///
/// 1 to 128 characters of ASCII that can be printed. So it is the same text in a header, a variable of the environment, JSON and a log,
/// and every store keeps it without a word about charsets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ItemContext(Arc<str>);

impl ItemContext {
    /// Checks a context.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is empty, longer than [`CONTEXT_BYTES_MAX`], or holds anything but printable ASCII.
    pub fn new(text: &str) -> Result<ItemContext, Error> {
        let wrong = if text.is_empty() {
            "the context is empty".to_owned()
        } else if text.len() > CONTEXT_BYTES_MAX {
            format!("the context has {} bytes, {CONTEXT_BYTES_MAX} are allowed", text.len())
        } else if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            "the context holds what is not printable ASCII".to_owned()
        } else {
            return Ok(ItemContext(text.into()));
        };
        let hint = format!(
            "a context has 1 to {CONTEXT_BYTES_MAX} characters of printable ASCII, as a `traceparent` has"
        );
        Err(Error::new(ErrorKind::Invalid, "push", wrong).with_hint(hint))
    }

    /// Returns what a store gave back. What somebody has changed there so that it is none costs the context, never the item.
    pub fn from_stored(bytes: &[u8]) -> Option<ItemContext> {
        ItemContext::new(std::str::from_utf8(bytes).ok()?).ok()
    }

    /// Returns it as text.
    pub fn as_str(&self) -> &str {
        &self.0
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
    /// What travels with it.
    pub context: Option<ItemContext>,
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
/// It is counted from each dispatch by the settings of the consumer, so all consumers of a queue should say the same.
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
    /// The label of the consumer, for operators.
    pub label: Label,
}

/// A request for items.
#[derive(Clone, Debug)]
pub struct Take {
    /// The queue.
    pub queue: Name,
    /// The client of the consumer.
    pub client: ClientId,
    /// A new id for each item that is wanted. Empty: the client wants nothing any more, and is not idle any more.
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
    /// Fewer than were wanted, and this client is to poll again after so long. `None`: it will be woken. Zero: there
    /// may be more at once, and whether this client is idle is not known.
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
    /// What travels with it.
    pub context: Option<ItemContext>,
    /// How often it has been handed out: 1 for the first time.
    pub attempt: u32,
    /// Larger than that of every earlier delivery of the group.
    pub token: Token,
    /// How long the delivery lives without renewal, from when the engine answered.
    pub ends_in: Duration,
    /// How long ago it was due, by the clock of the store: since its push and the delay that it was pushed with, or its replay.
    pub age: Duration,
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
    /// The consumer has not seen it: it is handed out again at once, and the attempt does not count.
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
    /// After how long something can be taken, if no delivery is renewed or ended until then. `None`: there is
    /// nothing.
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
    /// What travels with it.
    pub context: Option<ItemContext>,
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
        /// The label of the consumer.
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
