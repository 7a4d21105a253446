//! One timer for all who let time pass on a client's thread. Each timer is a file descriptor: a thousand requests that are
//! repeated after a while must not need a thousand of them.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};

use crate::clock::{Clock, Instant, Timer};

/// Wakes at moments of a clock. Made with a client, started by its first use.
#[derive(Default)]
pub(crate) struct Alarms(OnceLock<mpsc::UnboundedSender<Alarm>>);

/// A moment, and who waits for it.
struct Alarm {
    at: Instant,
    ring: oneshot::Sender<()>,
}

impl Alarms {
    /// Returns what is told when a moment has come. It fails if the system has no timer.
    pub(crate) fn set(
        &self,
        clock: &Arc<dyn Clock>,
        runtime: &tokio::runtime::Handle,
        at: Instant,
    ) -> oneshot::Receiver<()> {
        let (ring, rung) = oneshot::channel();
        let line = self.0.get_or_init(|| {
            let (line, asked) = mpsc::unbounded_channel();
            let clock = clock.clone();
            runtime.spawn(Bell { clock, asked, timer: None, alarms: BinaryHeap::new() }.serve());
            line
        });
        // If the thread has ended, the caller is told by the sender that goes.
        line.send(Alarm { at, ring }).ok();
        rung
    }
}

struct Bell {
    clock: Arc<dyn Clock>,
    asked: mpsc::UnboundedReceiver<Alarm>,
    timer: Option<Box<dyn Timer>>,
    /// The next one first.
    alarms: BinaryHeap<Alarm>,
}

impl Bell {
    async fn serve(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    /// Ready when nobody can set an alarm any more.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(asked) = self.asked.poll_recv(cx) {
            let Some(alarm) = asked else { return Poll::Ready(()) };
            self.alarms.push(alarm);
        }
        while let Some(next) = self.alarms.peek() {
            if self.timer.is_none() {
                self.timer = self.clock.timer().ok();
            }
            let Some(timer) = &mut self.timer else {
                // Whoever waits is told that there is no timer.
                self.alarms.clear();
                break;
            };
            if timer.poll_until(next.at, cx).is_pending() {
                break;
            }
            if let Some(alarm) = self.alarms.pop() {
                // The receiver may have been dropped.
                alarm.ring.send(()).ok();
            }
        }
        Poll::Pending
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Alarm) -> Ordering {
        other.at.cmp(&self.at)
    }
}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Alarm) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Alarm) -> bool {
        self.at == other.at
    }
}

impl Eq for Alarm {}
