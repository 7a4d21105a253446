//! Work in line: first in, first out within each group, with a lease on each item that is handed out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use tracing::{Instrument, Span};

use crate::client::connection::Connection;
use crate::client::handed_out::Parts;
use crate::client::queue_requests::Had;
use crate::client::trace;
use crate::counts::Primitive;
use crate::engine::DynQueueEngine;
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::face::claimant::{show, until_lost};
use crate::face::lease::Lease;
use crate::model::claim::{ClaimId, Name, PERIOD_MAX, Period, TTL_DEFAULT, TTL_MAX, TTL_MIN};
use crate::model::token::Token;

use crate::engine::queue::{
    Dispatched, Interval, ItemContext, ItemId, ItemView, QueueStats, Rules, Settle, SettleAnswer, Settlement,
    Which,
};

pub mod detached;
mod push;
pub(crate) mod serve;

pub use push::Push;
pub use serve::PARALLEL_MAX;

/// How often an item is handed out before it is dead, by default.
pub const ATTEMPTS_DEFAULT: u32 = 10;
/// The delay before the second attempt; it doubles with each one.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest delay before another attempt.
const RETRY_LONGEST: Duration = Duration::from_secs(300);
/// How many items an operator's request touches in one call: more would keep others waiting.
const PAGE: usize = 128;

/// A queue, by name: work is pushed into it and taken out of it in order.
///
/// # Guarantees
/// - Items of one group are handed out one at a time, in the order of their pushes; the next one when the one before is
///   acknowledged or dead. Items without a group are independent. Groups take turns.
/// - At least once: an item stays until it is acknowledged. If its consumer dies or is silent for a ttl, it is handed out again, and
///   the late consumer's acknowledgement is refused. Each delivery's token is larger than those of the group's earlier ones: write
///   with it to a fenced resource, and the effect happens once.
/// - A delay, an interval and the end of a delivery are judged by the store's clock when something is taken.
///
/// What was pushed is as durable as the engine: see its page.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("queue-example").await?;
/// let refunds = tenure.queue("refunds");
/// refunds.push("order 4711").group("merchant 17").await?;
///
/// let delivery = refunds.next().await?;
/// assert_eq!(delivery.payload(), b"order 4711");
/// delivery.ack().await?;
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # use std::time::Duration;
/// # async fn f(queue: tenure_core::Queue, work: impl Fn(&[u8]) -> tenure_core::Result<()>) -> tenure_core::Result<()> {
/// let name = queue.name()?;
/// let queue = queue.ttl(Duration::from_secs(30));
/// let queue = queue.interval(Duration::from_secs(1));
/// let queue = queue.group_interval(Duration::from_secs(1));
/// let queue = queue.max_attempts(3);
/// let queue = queue.label("eu-west");
/// let queue = queue.parallel(4);
/// queue.push("order 4711").await?;
/// queue.push("order 4711").group("merchant 17").await?;
/// queue.push("reminder").delay(Duration::from_secs(3600)).await?;
/// queue.push("order 4711").dedup("order-4711").await?;
/// queue.push("order 4711").context("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067ab0cd902e7-01").await?;
/// let delivery = queue.try_next().await?;
/// let delivery = queue.next_within(Duration::from_secs(5)).await?;
/// let done = queue.run(async |delivery| work(delivery.payload())).await?;
/// # let stop = std::future::pending();
/// queue.serve(stop, async |delivery| work(delivery.payload())).await?;
/// let stats = queue.stats().await?;
/// let is_empty = queue.is_empty().await?;
/// let depth = queue.depth().await?;
/// let items = queue.items(None, 100).await?;
/// let dead = queue.dead_letters(None, 100).await?;
/// let replayed = queue.replay(None).await?;
/// let purged = queue.purge_dead(None).await?;
/// let purged = queue.purge(None).await?;
/// let delivery = queue.next().await?;
/// let payload = delivery.payload();
/// let group = delivery.group();
/// let attempt = delivery.attempt();
/// let context = delivery.context();
/// let age = delivery.age();
/// let item = delivery.item();
/// let token = delivery.token();
/// let claim = delivery.claim();
/// let is_lost = delivery.lease().is_lost();
/// let delay = delivery.retry_delay();
/// delivery.ack().await?;
/// # let delivery = queue.next().await?;
/// let is_dead = delivery.retry().await?;
/// # let delivery = queue.next().await?;
/// let is_dead = delivery.retry_after(Duration::from_secs(60)).await?;
/// # let delivery = queue.next().await?;
/// let is_dead = delivery.retry_because(Duration::from_secs(60), "no answer").await?;
/// # let delivery = queue.next().await?;
/// delivery.fail("no such order").await?;
/// # let delivery = queue.next().await?;
/// delivery.put_back().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Queue {
    connection: Arc<Connection>,
    name: Result<Name>,
    rules: Arc<Rules>,
    /// How many items [`Queue::serve`] works on at a time.
    parallel: u16,
    /// In which scope it is counted.
    scope: u16,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, "Queue", &self.name, &self.connection)
    }
}

impl Queue {
    pub(crate) fn new(connection: Arc<Connection>, name: &str) -> Queue {
        let rules = Arc::new(Rules {
            ttl: TTL_DEFAULT,
            interval: Interval::Off,
            attempts_max: ATTEMPTS_DEFAULT,
            label: connection.shared.terms.label.clone(),
        });
        let name = Name::new(name);
        let scope = connection.shared.scope(Primitive::Queue, name.as_ref().ok());
        Queue { connection, name, rules, parallel: 1, scope }
    }

    /// Returns the name.
    ///
    /// `let name = queue.name()?;`
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name.
    pub fn name(&self) -> Result<Name> {
        self.name.clone()
    }

    fn rules(&mut self) -> &mut Rules {
        Arc::make_mut(&mut self.rules)
    }

    /// Sets how long a delivery lives without renewal (default 30 s; 100 ms to 24 h). It is renewed in the background for as long
    /// as it is held, so this is how long an item waits after its consumer died.
    ///
    /// `let queue = queue.ttl(Duration::from_secs(30));`
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Queue {
        self.rules().ttl = ttl;
        self
    }

    /// Sets the least time between two dispatches of the whole queue, over all consumers (default: none). All consumers
    /// should say the same.
    ///
    /// `let queue = queue.interval(Duration::from_secs(1));`
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Queue {
        self.rules().interval = Interval::Queue(interval);
        self
    }

    /// Sets the least time between two dispatches of the same group, over all consumers (default: none). All consumers should
    /// say the same. Items without a group are not held back.
    ///
    /// `let queue = queue.group_interval(Duration::from_secs(1));`
    #[must_use]
    pub fn group_interval(mut self, interval: Duration) -> Queue {
        self.rules().interval = Interval::Group(interval);
        self
    }

    /// Sets after how many deliveries an item that was never acknowledged is a dead letter (default 10; 0: never).
    ///
    /// `let queue = queue.max_attempts(3);`
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Queue {
        self.rules().attempts_max = attempts;
        self
    }

    /// Sets a text that shows operators which consumer has an item.
    ///
    /// `let queue = queue.label("eu-west");`
    #[must_use]
    pub fn label(mut self, text: &str) -> Queue {
        let label = self.rules.label.with_text(text);
        self.rules().label = label;
        self
    }

    /// Sets how many items [`Queue::serve`] works on at a time (default 1; up to 256).
    ///
    /// `let queue = queue.parallel(4);`
    #[must_use]
    pub fn parallel(mut self, parallel: u16) -> Queue {
        self.parallel = parallel;
        self
    }

    /// Puts an item of up to 256 KiB in line: see [`Push`] for its settings. Nothing is sent before it is awaited.
    ///
    /// `queue.push("order 4711").await?;`
    pub fn push(&self, payload: impl AsRef<[u8]>) -> Push {
        Push::new(&self.connection, (self.name.clone(), self.scope), payload.as_ref())
    }

    /// Waits for the next item.
    ///
    /// `let delivery = queue.next().await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine has not answered for 15 s; [`ErrorKind::Invalid`] for a setting out of range;
    /// [`ErrorKind::Unsupported`] if the engine has no queues, or not this interval.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: an item that was on its way goes back to the head of the line, and the attempt does not count.
    ///
    /// # Cost
    /// One round trip, which tasks of one client share; one more after having waited. Waiting costs none but a sign of life every 5 s.
    pub async fn next(&self) -> Result<Delivery> {
        match self.take(false).await? {
            Some(delivery) => Ok(delivery),
            None => {
                Err(Error::new(ErrorKind::Internal, "take", "the engine returned no item to a waiting take"))
            }
        }
    }

    /// Returns the next item if one is ready.
    ///
    /// `let delivery = queue.try_next().await?;`
    ///
    /// # Errors
    /// As [`Queue::next`]; [`ErrorKind::Unavailable`] if the engine does not answer in time.
    ///
    /// # Cost
    /// One round trip.
    pub async fn try_next(&self) -> Result<Option<Delivery>> {
        self.take(true).await
    }

    /// Waits for the next item, but not for longer than this. Returns `None` if nothing came.
    ///
    /// `let delivery = queue.next_within(Duration::from_secs(5)).await?;`
    ///
    /// # Errors
    /// As [`Queue::next`].
    pub async fn next_within(&self, wait: Duration) -> Result<Option<Delivery>> {
        let shared = &self.connection.shared;
        let pause = std::pin::pin!(shared.pause(wait));
        let next = std::pin::pin!(self.take(false));
        match select(next, pause).await {
            Either::Left((delivery, _)) => delivery,
            Either::Right((paused, _)) => paused.map(|()| None),
        }
    }

    /// Waits for one item and works on it: acknowledged if the work says `Ok`, tried again later with a growing delay if not.
    /// The work is dropped if the delivery is lost. A consumer that goes on is [`Queue::serve`].
    ///
    /// `let done = queue.run(async |delivery| work(delivery.payload())).await?;`
    ///
    /// Returns what the work said, so its error may be of any type with a text: `queue.run(work).await??` passes on both. The text is
    /// shown with the dead letter if it was the last attempt.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the delivery was lost; those of [`Queue::next`] and [`Delivery::ack`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and the item is handed out again after a growing delay, as [`Delivery::retry`] does it.
    pub async fn run<T, E: fmt::Display>(
        &self,
        work: impl AsyncFnOnce(&Delivery) -> Result<T, E>,
    ) -> Result<Result<T, E>> {
        let delivery = self.next().await?;
        let done = until_lost(delivery.lease(), work(&delivery)).await?;
        match &done {
            Ok(_) => delivery.ack().await?,
            Err(error) => {
                let delay = delivery.retry_delay();
                // Why the work failed says more than why nobody could be told: the item is handed out again in any case.
                if let Err(error) = delivery.retry_because(delay, &error.to_string()).await {
                    tracing::debug!(%error, "the item is handed out again when its delivery is over");
                }
            }
        }
        Ok(done)
    }

    /// Counts what is in the queue.
    ///
    /// `let stats = queue.stats().await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time.
    ///
    /// # Cost
    /// One round trip.
    pub async fn stats(&self) -> Result<QueueStats> {
        let name = self.name.clone()?;
        self.connection.shared.on_queues(&name.clone(), move |queues| queues.stats(name)).await
    }

    /// Says whether no item waits and none is with a consumer. Dead letters do not count.
    ///
    /// `let is_empty = queue.is_empty().await?;`
    ///
    /// # Errors
    /// As [`Queue::stats`].
    ///
    /// # Cost
    /// One round trip, and the same for the store however long the queue is; on SQL databases [`Queue::stats`] counts all items.
    pub async fn is_empty(&self) -> Result<bool> {
        let name = self.name.clone()?;
        self.connection.shared.on_queues(&name.clone(), move |queues| queues.is_empty(name)).await
    }

    /// Returns how many items wait or are with a consumer.
    ///
    /// `let depth = queue.depth().await?;`
    ///
    /// # Errors
    /// As [`Queue::stats`].
    pub async fn depth(&self) -> Result<u64> {
        self.stats().await.map(|stats| stats.waiting + stats.in_flight)
    }

    /// Lists up to `most` items that wait or are in flight, in the order of their pushes, after an item.
    ///
    /// `let items = queue.items(None, 100).await?;`
    ///
    /// # Errors
    /// As [`Queue::stats`].
    pub async fn items(&self, after: Option<ItemId>, most: usize) -> Result<Vec<ItemView>> {
        self.list(Which::Live, after, most).await
    }

    /// Lists up to `most` dead letters in the order of their pushes, after an item.
    ///
    /// `let dead = queue.dead_letters(None, 100).await?;`
    ///
    /// # Errors
    /// As [`Queue::stats`].
    pub async fn dead_letters(&self, after: Option<ItemId>, most: usize) -> Result<Vec<ItemView>> {
        self.list(Which::Dead, after, most).await
    }

    async fn list(&self, which: Which, after: Option<ItemId>, most: usize) -> Result<Vec<ItemView>> {
        let name = self.name.clone()?;
        let mut items: Vec<ItemView> = Vec::new();
        while items.len() < most {
            let (queue, after) = (name.clone(), items.last().map(|item| item.item).or(after));
            let page = (most - items.len()).min(PAGE);
            let shared = &self.connection.shared;
            let page = shared.on_queues(&name, move |queues| queues.items(queue, which, after, page)).await?;
            if page.is_empty() {
                break;
            }
            items.extend(page);
        }
        Ok(items)
    }

    /// Puts a dead letter in line again, at the end of its group and as if it had never been handed out; all that there are now, if none
    /// is named. Returns how many.
    ///
    /// `let replayed = queue.replay(None).await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time: some may be in line again.
    pub async fn replay(&self, item: Option<ItemId>) -> Result<u64> {
        let most = if item.is_some() { 1 } else { self.stats().await?.dead };
        self.by_pages(most, move |queues, name, page| queues.replay(name, item, page)).await
    }

    /// Removes a dead letter; all of them, if none is named. Returns how many.
    ///
    /// `let purged = queue.purge_dead(None).await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time: some may be removed.
    pub async fn purge_dead(&self, item: Option<ItemId>) -> Result<u64> {
        let most = if item.is_some() { 1 } else { u64::MAX };
        self.by_pages(most, move |queues, name, page| queues.purge(name, Which::Dead, item, page)).await
    }

    /// Removes an item that waits; all of them, if none is named. What is with a consumer stays. Returns how many.
    ///
    /// `let purged = queue.purge(None).await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time: some may be removed.
    pub async fn purge(&self, item: Option<ItemId>) -> Result<u64> {
        let most = if item.is_some() { 1 } else { u64::MAX };
        self.by_pages(most, move |queues, name, page| queues.purge(name, Which::Live, item, page)).await
    }

    async fn by_pages(
        &self,
        most: u64,
        ask: impl for<'a> Fn(&'a dyn DynQueueEngine, Name, usize) -> BoxFuture<'a, Result<usize>>
        + Clone
        + Send
        + 'static,
    ) -> Result<u64> {
        let name = self.name.clone()?;
        let mut count = 0;
        while count < most {
            let page = usize::try_from(most - count).unwrap_or(PAGE).min(PAGE);
            let (queue, ask) = (name.clone(), ask.clone());
            let shared = &self.connection.shared;
            let done = shared.on_queues(&name, move |queues| ask(queues, queue, page)).await?;
            if done == 0 {
                break;
            }
            count += done as u64;
        }
        Ok(count)
    }

    async fn take(&self, is_try: bool) -> Result<Option<Delivery>> {
        let name = self.name.clone()?;
        self.check().map_err(|error| error.with_resource(&name))?;
        let span = trace::take(self.connection.engine(), &name);
        loop {
            let place = self.connection.enqueue_take((&name, self.scope), &self.rules, is_try);
            let handed_out = place.handed_out().instrument(span.clone()).await?;
            let Some(handed_out) = handed_out else { return Ok(None) };
            // One that came long before its task polled has gone back.
            if let Some(parts) = handed_out.collect() {
                return Ok(Some(Delivery::new(parts, &span)));
            }
        }
    }

    fn check(&self) -> Result<()> {
        let shared = &self.connection.shared;
        shared.check_process()?;
        let capability = shared.queues()?.capability();
        let invalid = |message: String, hint: String| {
            Err(Error::new(ErrorKind::Invalid, "take", message).with_hint(hint))
        };
        let ttl = self.rules.ttl;
        if ttl < TTL_MIN || ttl > TTL_MAX {
            let hint = format!("a ttl is {TTL_MIN:?} to 24h; the default is 30s");
            return invalid(format!("a ttl of {} is out of range", Period(ttl)), hint);
        }
        let (Interval::Queue(interval) | Interval::Group(interval)) = self.rules.interval else {
            return Ok(());
        };
        if interval > PERIOD_MAX {
            let hint = "the longest is ten years".to_owned();
            return invalid(format!("an interval of {} is out of range", Period(interval)), hint);
        }
        let grain = capability.interval_grain.as_micros().max(1);
        let is_whole = interval.as_micros().is_multiple_of(grain);
        if !interval.is_zero() && (interval < capability.interval_min || !is_whole) {
            let message = format!("it cannot keep an interval of {interval:?}");
            let hint = format!(
                "on this engine an interval is a multiple of {:?}, and {:?} at least",
                capability.interval_grain, capability.interval_min
            );
            return Err(Error::new(ErrorKind::Unsupported, "take", message)
                .with_engine(shared.engine.name())
                .with_hint(hint));
        }
        Ok(())
    }
}

/// An item that was handed out, kept in the background until it is settled, dropped or lost.
///
/// A delivery can be lost at any time, as any lease: stop the work when [`Lease::lost`] says so, and write with [`Delivery::token`] to
/// what can refuse a token that is too small.
///
/// Dropping a delivery hands the item out again after a growing delay, as [`Delivery::retry`] does.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("delivery-example").await?;
/// # let queue = tenure.queue("mails");
/// # queue.push("to: you").await?;
/// let delivery = queue.next().await?;
/// match std::str::from_utf8(delivery.payload()) {
///     Ok(mail) if mail.starts_with("to: ") => delivery.ack().await?,
///     Ok(_) => drop(delivery.retry_because(Duration::from_secs(60), "no address yet").await?),
///     Err(_) => delivery.fail("no UTF-8").await?,
/// }
/// # assert!(queue.is_empty().await?);
/// # Ok(()) }) }
/// ```
pub struct Delivery {
    lease: Lease,
    rules: Arc<Rules>,
    item: Dispatched,
    is_settled: bool,
}

impl Delivery {
    fn new(Parts { connection, state, key, rules, item }: Parts, take: &Span) -> Delivery {
        let span = trace::work(connection.engine(), state.resource(), &item, take);
        let lease = Lease::of_delivery(connection, state, key, span);
        Delivery { lease, rules, item, is_settled: false }
    }

    /// Returns what was pushed.
    ///
    /// `let payload = delivery.payload();`
    pub fn payload(&self) -> &[u8] {
        &self.item.payload
    }

    /// Returns the group, if it was pushed into one.
    ///
    /// `let group = delivery.group();`
    pub fn group(&self) -> Option<&str> {
        self.item.group.as_ref().map(Name::as_str)
    }

    /// Returns what its producer had travel with it ([`Push::context`]): a W3C `traceparent`, say.
    ///
    /// `let context = delivery.context();`
    pub fn context(&self) -> Option<&str> {
        self.item.context.as_ref().map(ItemContext::as_str)
    }

    /// Returns how often the item has been handed out: 1 for the first time.
    ///
    /// `let attempt = delivery.attempt();`
    pub fn attempt(&self) -> u32 {
        self.item.attempt
    }

    /// Returns how long the item had been due when it was handed out, by the clock of the store: since its push and the delay that it was
    /// pushed with, or its replay.
    ///
    /// `let age = delivery.age();`
    pub fn age(&self) -> Duration {
        self.item.age
    }

    /// Returns the number of the item: larger for each later push into the queue.
    ///
    /// `let item = delivery.item();`
    pub fn item(&self) -> ItemId {
        self.item.item
    }

    /// Returns the fencing token: larger than that of every earlier delivery of the group.
    ///
    /// `let token = delivery.token();`
    pub fn token(&self) -> Token {
        self.item.token
    }

    /// Returns the id of the claim, which with the token identifies this delivery to a fenced resource.
    ///
    /// `let claim = delivery.claim();`
    pub fn claim(&self) -> ClaimId {
        self.item.claim
    }

    /// Returns the lease on the item, to learn when it is lost.
    ///
    /// `let is_lost = delivery.lease().is_lost();`
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Acknowledges the item: it is done, and the next one of its group can be handed out.
    ///
    /// `delivery.ack().await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the delivery has ended: the item is or will be handed out again. [`ErrorKind::Unavailable`] if the engine
    /// did not answer before the delivery's deadline: it may be handed out again.
    ///
    /// # Cancel safety
    /// Dropping the future leaves it to the background.
    ///
    /// # Cost
    /// One round trip, shared by all that is settled while another is under way.
    pub async fn ack(self) -> Result<()> {
        self.settle(Settlement::Ack).await.map(drop)
    }

    /// Hands the item out again after a delay that grows with its attempts: 1 s, 2 s, 4 s, up to 5 minutes. Its group waits.
    /// Says whether it was the last attempt: then it is a dead letter now.
    ///
    /// `let is_dead = delivery.retry().await?;`
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn retry(self) -> Result<bool> {
        let delay = self.retry_delay();
        self.retry_because(delay, "").await
    }

    /// As [`Delivery::retry`], after so long.
    ///
    /// `let is_dead = delivery.retry_after(Duration::from_secs(60)).await?;`
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn retry_after(self, delay: Duration) -> Result<bool> {
        self.retry_because(delay, "").await
    }

    /// As [`Delivery::retry_after`], and says why, which is shown with the dead letter if it was the last attempt.
    ///
    /// `let is_dead = delivery.retry_because(Duration::from_secs(60), "no answer").await?;`
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn retry_because(self, delay: Duration, why: &str) -> Result<bool> {
        let settlement = self.retrying(delay, why);
        Ok(self.settle(settlement).await? == SettleAnswer::Buried)
    }

    /// Makes the item a dead letter, with a reason for people. The next one of its group can be handed out.
    ///
    /// `delivery.fail("no such order").await?;`
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn fail(self, reason: &str) -> Result<()> {
        self.settle(Settlement::Fail { reason: reason.to_owned() }).await.map(drop)
    }

    /// Puts the item back at the head of its group as if it had not been handed out, for a consumer that has to stop.
    ///
    /// `delivery.put_back().await?;`
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn put_back(self) -> Result<()> {
        self.settle(Settlement::Return).await.map(drop)
    }

    /// Returns the delay after which [`Delivery::retry`] hands the item out again.
    ///
    /// `let delay = delivery.retry_delay();`
    pub fn retry_delay(&self) -> Duration {
        let doubled = RETRY_FIRST.saturating_mul(1 << (self.item.attempt - 1).min(16));
        doubled.min(RETRY_LONGEST)
    }

    fn retrying(&self, after: Duration, why: &str) -> Settlement {
        let reason = if why.is_empty() { "no attempt succeeded" } else { why };
        let (attempts_max, reason) = (self.rules.attempts_max, reason.to_owned());
        Settlement::Retry { after: after.min(PERIOD_MAX), attempts_max, reason }
    }

    async fn settle(mut self, settlement: Settlement) -> Result<SettleAnswer> {
        self.is_settled = true;
        let answer = self.start(settlement).map_err(|reason| self.lease.lost_error(reason))?;
        let (engine, queue) = (self.lease.connection().engine(), self.lease.resource());
        let span = trace::settle(engine, queue, self.item.item, self.lease.shared_span());
        let gone = |_| Error::new(ErrorKind::Internal, "use the client", "its thread has ended");
        let answer = answer.instrument(span).await.map_err(gone)??;
        if answer == SettleAnswer::Lost { Err(self.lease.lost_error(LossReason::Ended)) } else { Ok(answer) }
    }

    /// Begins to settle, unless the delivery is lost.
    fn start(
        &self,
        settlement: Settlement,
    ) -> Result<tokio::sync::oneshot::Receiver<Result<SettleAnswer>>, LossReason> {
        let shared = &self.lease.connection().shared;
        let (key, until) = (self.lease.key(), self.lease.deadline());
        // It is not renewed any more: a renewal that came after the settlement would report a loss.
        let (had, loss) =
            shared.update_ledger(|ledger, now| (ledger.had_for(now, key), ledger.disown(now, key)));
        if let Some(reason) = loss {
            return Err(reason);
        }
        let settle = Settle { queue: self.lease.resource().clone(), claim: self.item.claim, settlement };
        let span = self.lease.shared_span().cloned();
        let had = had.map(|(scope, took)| Had { scope, took, span });
        Ok(shared.start_settling(settle, until, had))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.is_settled {
            drop(self.start(self.retrying(self.retry_delay(), "its consumer let go of it")));
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("queue", self.lease.resource())
            .field("item", &self.item.item)
            .field("group", &self.item.group)
            .field("attempt", &self.item.attempt)
            .field("token", &self.item.token)
            .finish_non_exhaustive()
    }
}
