//! Waits in line, and writes down when the claim was seen there: from then on no later claim may overtake it.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tenure::{Acquire, Error};

use super::Stage;
use crate::history::{Kind, now};

/// How often a task polls until its claim is in line, and from then on: a wake brings the grant at once.
const LOOK_EVERY: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];

/// A task that asks for something.
pub(super) struct Asking<'a> {
    pub(super) stage: &'a Stage,
    pub(super) kind: Kind,
    pub(super) resource: &'a str,
    pub(super) asked: u64,
    pub(super) task: &'a str,
}

impl Asking<'_> {
    /// Waits for a grant.
    pub(super) fn wait<T>(&self, acquire: Acquire<T>) -> Result<T, Error> {
        let mut acquire = pin!(acquire);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut is_seen = false;
        loop {
            if let Poll::Ready(acquired) = acquire.as_mut().poll(&mut Context::from_waker(&waker)) {
                return acquired;
            }
            if !is_seen && acquire.place().is_some() {
                is_seen = true;
                let Asking { stage, kind, resource, asked, task } = self;
                let [asked, at] = [*asked, now()].map(|time| time.to_string());
                stage.journal.write(&["queued", kind.as_str(), resource, &asked, &at, task]);
            }
            thread::park_timeout(LOOK_EVERY[usize::from(is_seen)]);
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
