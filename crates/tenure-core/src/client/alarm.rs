//! One timer for all tasks on a client's thread that wait for a moment. Each timer is a file descriptor: a thousand
//! requests that are repeated after a while must not need a thousand of them.

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

/// A moment, and the task that waits for it.
struct Alarm {
    at: Instant,
    fire: oneshot::Sender<()>,
}

impl Alarms {
    /// Returns a receiver that fires when a moment has come. It fails if the system has no timer.
    pub(crate) fn set(
        &self,
        clock: &Arc<dyn Clock>,
        runtime: &tokio::runtime::Handle,
        at: Instant,
    ) -> oneshot::Receiver<()> {
        let (fire, fired) = oneshot::channel();
        let line = self.0.get_or_init(|| {
            let (line, asked) = mpsc::unbounded_channel();
            let clock = clock.clone();
            runtime.spawn(AlarmTask { clock, asked, timer: None, alarms: BinaryHeap::new() }.serve());
            line
        });
        // If the thread has ended, the caller finds its sender dropped.
        line.send(Alarm { at, fire }).ok();
        fired
    }
}

struct AlarmTask {
    clock: Arc<dyn Clock>,
    asked: mpsc::UnboundedReceiver<Alarm>,
    timer: Option<Box<dyn Timer>>,
    /// The next one first.
    alarms: BinaryHeap<Alarm>,
}

impl AlarmTask {
    async fn serve(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    /// Ready when every `Alarms` that could set an alarm is dropped.
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
                // The waiting tasks find their senders dropped: there is no timer.
                self.alarms.clear();
                break;
            };
            if timer.poll_until(next.at, cx).is_pending() {
                break;
            }
            if let Some(alarm) = self.alarms.pop() {
                // The receiver may have been dropped.
                alarm.fire.send(()).ok();
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
