//! Working on one item after the other, until told to stop.
//!
//! So many lanes, each of which takes, works and settles in turn, in the caller's own task: no runtime is needed, and dropping
//! the future drops all of it. The lanes share round trips, as all tasks of one client do. The rules are those of `tenure queue work`.

use std::fmt::Display;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;

use super::{Delivery, Queue};
use crate::error::{Error, ErrorKind, Result};
use crate::face::claimant::until_lost;

/// The most items that one [`Queue::serve`] works on at a time, as of `tenure queue work --parallel`: a machine that can do more has
/// room for several processes, and one that dies takes no more deliveries with it.
pub const PARALLEL_MAX: u16 = 256;
/// How long a lane waits before it asks a store again that has not answered. The client itself has tried for 15 s then.
const PAUSE: Duration = Duration::from_secs(1);

impl Queue {
    /// Works on one item after the other until `stop` is ready, then finishes what is in hand and takes no more.
    ///
    /// `queue.serve(stop, async |delivery| work(delivery.payload())).await?;`
    ///
    /// Up to [`Queue::parallel`] items are worked on at a time (default 1), as one task of the caller's runtime: work that blocks a
    /// thread holds up the others, so spawn it, or use [`blocking`](crate::blocking::Queue::serve). A `stop` of
    /// [`std::future::pending`] never comes.
    ///
    /// # Guarantees
    /// - An item whose work says `Ok` is acknowledged. One whose work fails is handed out again after a growing delay, and is a dead letter
    ///   after [`Queue::max_attempts`]; both go into the log.
    /// - Work whose delivery is lost is dropped; the item is handed out again.
    /// - A store that does not answer ends nothing: it is asked again every second until it is back. An acknowledgement that it did not
    ///   answer either may mean that the item is worked on twice, as always (see [`Queue`]).
    ///
    /// # Errors
    /// What no repetition can mend: [`ErrorKind::Invalid`] for a setting out of range; [`ErrorKind::Unsupported`] if the engine has no
    /// queues, or not this interval; [`ErrorKind::Internal`] if the client is closed. What is in hand is finished first.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work in hand, whose items are handed out again after a growing delay, as
    /// [`Delivery::retry`] does it; an item that was on its way goes back to the head of the line. To bound a stop, drop it when the
    /// time is over.
    ///
    /// # Cost
    /// One round trip to take and one to settle, which all items in hand share; none while nothing comes but a sign of life every 5 s.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
    /// # use std::future::poll_fn;
    /// # let tenure = tenure_core::memory::connect("serve-example").await?;
    /// # let queue = tenure.queue("mails");
    /// # queue.push("hello").await?;
    /// # let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    /// # let stop = std::sync::Mutex::new(Some(stop));
    /// # let send = async |mail: &[u8]| { stop.lock().unwrap().take(); if mail.is_empty() { Err("no mail") } else { Ok(()) } };
    /// // In a program: `async { tokio::signal::ctrl_c().await.ok(); }`
    /// let stop = async { stopped.await.ok(); };
    /// queue.parallel(4).serve(stop, async |delivery| send(delivery.payload()).await).await?;
    /// # assert!(tenure.queue("mails").is_empty().await?);
    /// # Ok(()) }) }
    /// ```
    pub async fn serve<E: Display>(
        &self,
        stop: impl Future<Output = ()>,
        work: impl AsyncFn(&Delivery) -> Result<(), E>,
    ) -> Result<()> {
        let parallel = self.checked_parallel()?;
        let (server, work) = (&Server::new(self), &work);
        let mut lanes = FuturesUnordered::new();
        for _ in 0..parallel {
            lanes.push(server.lane(work));
        }
        let stop = async {
            stop.await;
            server.stop();
            std::future::pending::<std::convert::Infallible>().await
        };
        let lanes = async {
            let mut end = Ok(());
            while let Some(ended) = lanes.next().await {
                end = end.and(ended);
            }
            end
        };
        match select(pin!(stop), pin!(lanes)).await {
            Either::Left((never, _)) => match never {},
            Either::Right((end, _)) => end,
        }
    }

    /// Returns how many items are worked on at a time, if that is in range.
    pub(crate) fn checked_parallel(&self) -> Result<u16> {
        let name = self.name.clone()?;
        if (1..=PARALLEL_MAX).contains(&self.parallel) {
            return Ok(self.parallel);
        }
        let message = format!("{} items at a time is out of range", self.parallel);
        Err(Error::new(ErrorKind::Invalid, "take", message)
            .with_resource(&name)
            .with_hint(format!("1 to {PARALLEL_MAX} items are worked on at a time")))
    }
}

/// What the lanes of one call share.
pub(crate) struct Server<'a> {
    queue: &'a Queue,
    is_stopping: watch::Sender<bool>,
    /// Whether the log says that the store is away.
    has_warned: AtomicBool,
}

/// Stops all lanes when it is dropped, in a panic too.
pub(crate) struct StopsAll<'a>(&'a Server<'a>);

impl Drop for StopsAll<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl<'a> Server<'a> {
    pub(crate) fn new(queue: &'a Queue) -> Server<'a> {
        Server { queue, is_stopping: watch::Sender::new(false), has_warned: AtomicBool::new(false) }
    }

    /// Lets no lane take any more.
    pub(crate) fn stop(&self) {
        self.is_stopping.send_replace(true);
    }

    async fn stopped(&self) {
        let mut is_stopping = self.is_stopping.subscribe();
        // An error would mean that the sender is gone, but it is `self`'s.
        is_stopping.wait_for(|is_stopping| *is_stopping).await.ok();
    }

    /// Stops all lanes when what is returned is dropped.
    pub(crate) fn stops_all(&self) -> StopsAll<'_> {
        StopsAll(self)
    }

    /// Returns when it is over, which is asked every second, or a lane has ended.
    pub(crate) async fn until_over(&self, mut is_over: impl FnMut() -> bool) {
        while !is_over() {
            let pause = pin!(self.queue.connection.shared.pause(PAUSE));
            match select(pin!(self.stopped()), pause).await {
                Either::Right((Ok(()), _)) => {}
                // Without a timer it could never be asked again.
                Either::Right((Err(_), _)) | Either::Left(_) => return,
            }
        }
    }

    /// Takes, works and settles in turn.
    pub(crate) async fn lane<W, E: Display>(&self, work: &W) -> Result<()>
    where
        W: AsyncFn(&Delivery) -> Result<(), E>,
    {
        let _stops_all = self.stops_all();
        loop {
            // Asked first, so that nothing is taken after the stop: what was on its way goes back.
            let taken = match select(pin!(self.stopped()), pin!(self.queue.next())).await {
                Either::Left(_) => return Ok(()),
                Either::Right((taken, _)) => taken,
            };
            match taken {
                Ok(delivery) => {
                    self.has_warned.store(false, Ordering::Relaxed);
                    work_on(delivery, work).await;
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    if !self.has_warned.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "trying to take again until the store is back");
                    }
                    let pause = pin!(self.queue.connection.shared.pause(PAUSE));
                    if let Either::Right((paused, _)) = select(pin!(self.stopped()), pause).await {
                        paused?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Works on one item and settles it. If that fails, the item is handed out again: there is nothing for the caller to do.
async fn work_on<W, E: Display>(delivery: Delivery, work: &W)
where
    W: AsyncFn(&Delivery) -> Result<(), E>,
{
    let (queue, item) = (delivery.lease().resource().clone(), delivery.item());
    let settled = match until_lost(delivery.lease(), work(&delivery)).await {
        Ok(Ok(())) => delivery.ack().await,
        Ok(Err(error)) => {
            let delay = delivery.retry_delay();
            tracing::warn!(%queue, %item, attempt = delivery.attempt(), %error, "the work on an item failed");
            match delivery.retry_because(delay, &error.to_string()).await {
                Ok(true) => {
                    tracing::warn!(%queue, %item, "the item is a dead letter");
                    Ok(())
                }
                retried => retried.map(drop),
            }
        }
        Err(lost) => Err(lost),
    };
    if let Err(error) = settled {
        tracing::warn!(%queue, %item, %error, "the item is handed out again");
    }
}
