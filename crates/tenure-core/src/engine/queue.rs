//! The contract of an engine's queues: few verbs, batched, the same meaning everywhere. [`step`](crate::model::queue::step) says
//! what is right for all of them; the checks of `tenure_conformance::queue` are the text of this contract.
//!
//! What the engine must do beside answering:
//!
//! - **Order.** Items of one group are handed out one at a time, in the order of their pushes: the next one only when the
//!   one before is acknowledged or dead. A push that began after another was answered comes after it. Items without a group
//!   stand for themselves. What is ready is handed out in the order in which it became ready, so groups take turns.
//! - **Time** is the store's, judged when something is taken: nothing has to run for a delay to pass. All that one call does with
//!   one queue is done at one moment.
//! - **Waking.** A client that took less than it wanted is *idle*. When something becomes ready, the engine sends
//!   [`Wake::Queue`](crate::engine::Wake::Queue) to an idle client, or to several; one that wakes few must do so again when
//!   the woken client leaves more behind. An idle client without a wake polls again after [`CONSUMER_LOOK`], so a lost wake
//!   costs that long at most, and an engine that cannot wake ([`QueueCapability::tells_consumers`]) is polled more often.

use std::time::Duration;

use futures_util::stream::{self, BoxStream};

use crate::engine::{Adopts, RenewAnswer, RenewRequest};
use crate::error::Result;
use crate::model::claim::Name;
pub use crate::model::queue::item::*;

/// A queue as a list shows it: its name, and what is in it or why it cannot be read.
pub type QueueLine = (Name, Result<QueueStats>);

/// How many queues are asked for at a time where all are listed.
const PAGE: usize = 128;

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
    /// Whether an idle client is woken at once when something is ready. Otherwise it polls every second.
    pub tells_consumers: bool,
    /// Whether what was pushed survives a crash of the store's machine.
    pub is_durable: bool,
    /// Whether what was pushed and answered survives the failover of a store's server.
    pub survives_failover: bool,
    /// Which clients can renew a delivery ([`QueueEngine::adopt`]).
    pub adopts: Adopts,
    /// Why no other client can, for the error of one that tries; empty: nothing is to be said.
    pub adopts_reason: &'static str,
    /// The most pushes, takes, renewals or settlements in one call.
    pub batch_max: usize,
    /// How long a push, a take or a settlement may take: a client waits so long, if that is longer than its answer timeout. For a
    /// store that cannot lose an answer and may have to wait for its disk.
    pub answer_max: Duration,
}

impl QueueCapability {
    /// All that [`step`](crate::model::queue::step) can do, in a store that forgets; an engine narrows it.
    pub fn of_step() -> QueueCapability {
        QueueCapability {
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            items_max: u64::MAX,
            interval_min: Duration::ZERO,
            interval_grain: Duration::from_micros(1),
            tells_consumers: true,
            is_durable: false,
            survives_failover: false,
            adopts: Adopts::AnyClient,
            adopts_reason: "",
            batch_max: 128,
            answer_max: Duration::ZERO,
        }
    }
}

/// The queues of an engine. As with [`Engine`](crate::engine::Engine): answers are in the order of the requests, an `Err` of kind
/// `Unavailable` means that the outcome is unknown, and nothing is repeated by the engine itself.
pub trait QueueEngine: Send + Sync {
    /// Returns what the queues can do.
    fn capability(&self) -> &QueueCapability;

    /// Puts items in line. Pushes of one call into one queue stand in the order of the call.
    fn push(&self, pushes: Vec<Push>) -> impl Future<Output = Vec<Result<Pushed>>> + Send;

    /// Hands out what is ready.
    fn take(&self, takes: Vec<Take>) -> impl Future<Output = Vec<Result<Taken>>> + Send;

    /// Extends deliveries: `Renewed` or `Lost`.
    fn renew(&self, renewals: Vec<RenewRequest>) -> impl Future<Output = Vec<Result<RenewAnswer>>> + Send;

    /// As [`QueueEngine::renew`], of deliveries that this client may not have taken: it can renew them from now on. As
    /// [`Engine::adopt`](crate::engine::Engine::adopt) where a delivery cannot go from one client to another.
    fn adopt(&self, renewals: Vec<RenewRequest>) -> impl Future<Output = Vec<Result<RenewAnswer>>> + Send {
        self.renew(renewals)
    }

    /// Ends deliveries.
    fn settle(&self, settlements: Vec<Settle>) -> impl Future<Output = Vec<Result<SettleAnswer>>> + Send;

    /// Lists up to `most` queues that have items or dead letters, whose names begin with `prefix` and come after `after`, by
    /// name. A page is empty only at the end.
    fn queues(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<(Name, QueueStats)>>> + Send;

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
    fn stats(&self, queue: Name) -> impl Future<Output = Result<QueueStats>> + Send;

    /// Says whether nothing in it waits or is in flight. It is asked several times a second, so its cost must not grow with the
    /// queue: an engine whose `stats` counts items has a way of its own.
    fn is_empty(&self, queue: Name) -> impl Future<Output = Result<bool>> + Send {
        async move {
            let stats = self.stats(queue).await?;
            Ok(stats.waiting + stats.in_flight == 0)
        }
    }

    /// Lists up to `most` items after `after`, by their numbers. A page may be shorter; it is empty only at the end.
    fn items(
        &self,
        queue: Name,
        which: Which,
        after: Option<ItemId>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<ItemView>>> + Send;

    /// Puts dead letters in line again, at the end of their groups and as if they had never been handed out: one, or up to `most`,
    /// the oldest first. Returns how many.
    fn replay(
        &self,
        queue: Name,
        item: Option<ItemId>,
        most: usize,
    ) -> impl Future<Output = Result<usize>> + Send;

    /// Removes up to `most` items, or one: dead letters, or what waits and is not in flight. Returns how many.
    fn purge(
        &self,
        queue: Name,
        which: Which,
        item: Option<ItemId>,
        most: usize,
    ) -> impl Future<Output = Result<usize>> + Send;
}
