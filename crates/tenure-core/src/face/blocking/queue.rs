//! Queues for programs without an async runtime.

use std::fmt::Display;
use std::future::IntoFuture;
use std::panic::resume_unwind;
use std::time::Duration;

use pollster::block_on;

use crate::engine::queue::{ItemId, ItemView, Pushed, QueueStats};
use crate::error::{Error, ErrorKind, Result};
use crate::face::queue;
use crate::face::queue::serve::Server;

use super::{Blocking, sealed::Held};

/// Work in line, first in, first out within each group (see [`queue::Queue`]).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-queue"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let mails = tenure.queue("mails");
/// mails.push("hello").send()?;
/// let sent = mails.run(|mail| if mail.payload().is_empty() { Err("empty") } else { Ok(()) })?;
/// # Ok(()) }
/// ```
pub type Queue = Blocking<queue::Queue>;
/// A push that has not been sent yet (see [`queue::Push`]).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-push"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// let refunds = tenure.queue("refunds");
/// refunds.push("order 4711").group("merchant 17").dedup("refund 90").send()?;
/// # Ok(()) }
/// ```
pub type Push = Blocking<queue::Push>;
/// An item that was handed out (see [`queue::Delivery`], to which it derefs).
///
/// ```
/// # fn main() -> tenure_core::Result<()> {
/// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-delivery"))?;
/// # let tenure = tenure_core::blocking::Tenure::from(tenure);
/// # tenure.queue("mails").push("hello").send()?;
/// let mail = tenure.queue("mails").next()?;
/// println!("{} bytes under {}", mail.payload().len(), mail.token());
/// mail.ack()?;
/// # Ok(()) }
/// ```
pub type Delivery = Blocking<queue::Delivery>;

impl Held for queue::Delivery {}

impl Blocking<queue::Queue> {
    /// Sets how long a delivery lives without renewal (see [`queue::Queue::ttl`]).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Blocking(self.0.ttl(ttl))
    }

    /// Sets the least time between two dispatches of the whole queue (see [`queue::Queue::interval`]).
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Blocking(self.0.interval(interval))
    }

    /// Sets the least time between two dispatches of the same group (see [`queue::Queue::group_interval`]).
    #[must_use]
    pub fn group_interval(self, interval: Duration) -> Self {
        Blocking(self.0.group_interval(interval))
    }

    /// Sets after how many deliveries an item is a dead letter (see [`queue::Queue::max_attempts`]).
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        Blocking(self.0.max_attempts(attempts))
    }

    /// Sets a text that shows operators which consumer has an item (see [`queue::Queue::label`]).
    #[must_use]
    pub fn label(self, text: &str) -> Self {
        Blocking(self.0.label(text))
    }

    /// Prepares to put an item in line: nothing is sent before [`Push::send`].
    #[must_use = "nothing is pushed before it is sent"]
    pub fn push(&self, payload: impl AsRef<[u8]>) -> Push {
        Blocking(self.0.push(payload))
    }

    /// Waits for the next item.
    ///
    /// # Errors
    /// As [`queue::Queue::next`].
    pub fn next(&self) -> Result<Delivery> {
        block_on(self.0.next()).map(Blocking)
    }

    /// Returns the next item if one is ready.
    ///
    /// # Errors
    /// As [`queue::Queue::try_next`].
    pub fn try_next(&self) -> Result<Option<Delivery>> {
        Ok(block_on(self.0.try_next())?.map(Blocking))
    }

    /// Waits for the next item, but not for longer than this. Returns `None` if nothing came.
    ///
    /// # Errors
    /// As [`queue::Queue::next_within`].
    pub fn next_within(&self, wait: Duration) -> Result<Option<Delivery>> {
        Ok(block_on(self.0.next_within(wait))?.map(Blocking))
    }

    /// Sets how many threads [`Queue::serve`] works with (see [`queue::Queue::parallel`]).
    #[must_use]
    pub fn parallel(self, parallel: u16) -> Self {
        Blocking(self.0.parallel(parallel))
    }

    /// Waits for one item and works on it (see [`queue::Queue::run`]). A thread cannot be dropped: long work
    /// checks [`Lease::is_lost`](crate::Lease::is_lost) of [`queue::Delivery::lease`] and stops by itself.
    ///
    /// # Errors
    /// As [`queue::Queue::run`].
    pub fn run<T, E: Display>(
        &self,
        work: impl FnOnce(&queue::Delivery) -> Result<T, E>,
    ) -> Result<Result<T, E>> {
        block_on(self.0.run(async |delivery| work(delivery)))
    }

    /// Works on one item after the other until `is_over` says so, then finishes what is in hand and takes no more (see
    /// [`queue::Queue::serve`]).
    ///
    /// Each of [`queue::Queue::parallel`] items is worked on by a thread of its own; `is_over` is asked every second, on this one. A
    /// thread cannot be dropped: long work checks [`Lease::is_lost`](crate::Lease::is_lost) of [`queue::Delivery::lease`] and stops by
    /// itself.
    ///
    /// # Errors
    /// As [`queue::Queue::serve`]; [`ErrorKind::Unsupported`] if this process can have no more threads.
    ///
    /// # Panics
    /// If the work panics: the others finish what they have in hand first.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::atomic::{AtomicBool, Ordering};
    /// # fn main() -> tenure_core::Result<()> {
    /// # let tenure = pollster::block_on(tenure_core::memory::connect("blocking-serve-example"))?;
    /// # let queue = tenure_core::blocking::Tenure::from(tenure).queue("mails");
    /// # queue.push("hello").send()?;
    /// # let send = |_: &[u8]| { STOP.store(true, Ordering::Relaxed); Ok::<(), String>(()) };
    /// // Set by a handler of signals.
    /// static STOP: AtomicBool = AtomicBool::new(false);
    /// queue.serve(|| STOP.load(Ordering::Relaxed), |delivery| send(delivery.payload()))?;
    /// # assert!(queue.is_empty()?);
    /// # Ok(()) }
    /// ```
    pub fn serve<E: Display>(
        &self,
        is_over: impl FnMut() -> bool,
        work: impl Fn(&queue::Delivery) -> Result<(), E> + Sync,
    ) -> Result<()> {
        let parallel = self.0.checked_parallel()?;
        let (server, work) = (&Server::new(&self.0), &work);
        let lane = || block_on(server.lane(&async |delivery: &queue::Delivery| work(delivery)));
        std::thread::scope(|scope| {
            // Whatever ends this: the scope waits for its threads.
            let stops_all = server.stops_all();
            let no_thread = |error| {
                Error::new(ErrorKind::Unsupported, "take", "cannot start a thread").with_source(error)
            };
            let lanes: Result<Vec<_>> = (0..parallel)
                .map(|_| std::thread::Builder::new().spawn_scoped(scope, lane).map_err(no_thread))
                .collect();
            let lanes = lanes?;
            block_on(server.until_over(is_over));
            drop(stops_all);
            let ended =
                lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ended.fold(Ok(()), Result::and)
        })
    }

    /// Counts what is in the queue.
    ///
    /// # Errors
    /// As [`queue::Queue::stats`].
    pub fn stats(&self) -> Result<QueueStats> {
        block_on(self.0.stats())
    }

    /// Says whether no item waits and none is with a consumer.
    ///
    /// # Errors
    /// As [`queue::Queue::stats`].
    ///
    /// # Cost
    /// As [`queue::Queue::is_empty`].
    pub fn is_empty(&self) -> Result<bool> {
        block_on(self.0.is_empty())
    }

    /// Returns how many items wait or are with a consumer.
    ///
    /// # Errors
    /// As [`queue::Queue::stats`].
    pub fn depth(&self) -> Result<u64> {
        block_on(self.0.depth())
    }

    /// Lists items that wait or are in flight (see [`queue::Queue::items`]).
    ///
    /// # Errors
    /// As there.
    pub fn items(&self, after: Option<ItemId>, most: usize) -> Result<Vec<ItemView>> {
        block_on(self.0.items(after, most))
    }

    /// Lists dead letters (see [`queue::Queue::dead_letters`]).
    ///
    /// # Errors
    /// As there.
    pub fn dead_letters(&self, after: Option<ItemId>, most: usize) -> Result<Vec<ItemView>> {
        block_on(self.0.dead_letters(after, most))
    }

    /// Puts a dead letter, or all, in line again (see [`queue::Queue::replay`]).
    ///
    /// # Errors
    /// As there.
    pub fn replay(&self, item: Option<ItemId>) -> Result<u64> {
        block_on(self.0.replay(item))
    }

    /// Removes a dead letter, or all (see [`queue::Queue::purge_dead`]).
    ///
    /// # Errors
    /// As there.
    pub fn purge_dead(&self, item: Option<ItemId>) -> Result<u64> {
        block_on(self.0.purge_dead(item))
    }

    /// Removes an item that waits, or all (see [`queue::Queue::purge`]).
    ///
    /// # Errors
    /// As there.
    pub fn purge(&self, item: Option<ItemId>) -> Result<u64> {
        block_on(self.0.purge(item))
    }
}

impl Blocking<queue::Push> {
    /// Puts it into a group (see [`queue::Push::group`]).
    #[must_use = "nothing is pushed before it is sent"]
    pub fn group(self, group: &str) -> Push {
        Blocking(self.0.group(group))
    }

    /// Holds it back for so long (see [`queue::Push::delay`]).
    #[must_use = "nothing is pushed before it is sent"]
    pub fn delay(self, delay: Duration) -> Push {
        Blocking(self.0.delay(delay))
    }

    /// Has a text travel with it (see [`queue::Push::context`]).
    #[must_use = "nothing is pushed before it is sent"]
    pub fn context(self, context: &str) -> Push {
        Blocking(self.0.context(context))
    }

    /// As [`Push::context`], and asked for in the span of the push (see [`queue::Push::context_with`]).
    #[must_use = "nothing is pushed before it is sent"]
    pub fn context_with(self, context: impl FnOnce() -> Option<String> + Send + 'static) -> Push {
        Blocking(self.0.context_with(context))
    }

    /// Pushes it once under this id (see [`queue::Push::dedup`]).
    #[must_use = "nothing is pushed before it is sent"]
    pub fn dedup(self, id: &str) -> Push {
        Blocking(self.0.dedup(id))
    }

    /// Sends it, and waits for the answer.
    ///
    /// # Errors
    /// As [`queue::Push`].
    pub fn send(self) -> Result<Pushed> {
        block_on(self.0.into_future())
    }
}

impl Blocking<queue::Delivery> {
    /// Acknowledges the item (see [`queue::Delivery::ack`]).
    ///
    /// # Errors
    /// As there; so for all of these.
    pub fn ack(self) -> Result<()> {
        block_on(self.0.ack())
    }

    /// Hands the item out again after a growing delay (see [`queue::Delivery::retry`]).
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn retry(self) -> Result<bool> {
        block_on(self.0.retry())
    }

    /// Hands the item out again after so long (see [`queue::Delivery::retry_after`]).
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn retry_after(self, delay: Duration) -> Result<bool> {
        block_on(self.0.retry_after(delay))
    }

    /// The same, and says why (see [`queue::Delivery::retry_because`]).
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn retry_because(self, delay: Duration, why: &str) -> Result<bool> {
        block_on(self.0.retry_because(delay, why))
    }

    /// Makes the item a dead letter (see [`queue::Delivery::fail`]).
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn fail(self, reason: &str) -> Result<()> {
        block_on(self.0.fail(reason))
    }

    /// Puts the item back as if it had not been handed out (see [`queue::Delivery::put_back`]).
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub fn put_back(self) -> Result<()> {
        block_on(self.0.put_back())
    }
}
