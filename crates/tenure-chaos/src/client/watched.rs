//! A lease under which a task works, and what is written down of it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tenure::{Error, Lease};

use super::{Stage, pause};
use crate::history::now;

/// How long a task that sees a loss waits to be told of it as well.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// A lease, and the number by which the history names it.
pub(super) struct Watched<'a> {
    stage: &'a Stage,
    pub(super) number: String,
    pub(super) key: String,
    pub(super) lease: &'a Lease,
    lost: Pin<Box<dyn Future<Output = Error> + 'a>>,
    woken: Arc<Woken>,
    told: u64,
}

/// When a waker was called for the first time.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        // A later time is of no use: the reader has not read yet.
        self.0.compare_exchange(0, now(), Ordering::SeqCst, Ordering::SeqCst).ok();
    }
}

impl<'a> Watched<'a> {
    /// Begins to watch.
    pub(super) fn new(stage: &'a Stage, key: String, lease: &'a Lease) -> Watched<'a> {
        let number = stage.holds.fetch_add(1, Ordering::Relaxed).to_string();
        let (lost, woken) = (Box::pin(lease.lost()), Arc::default());
        let mut watched = Watched { stage, number, key, lease, lost, woken, told: 0 };
        watched.look();
        watched
    }

    /// Looks whether its user was told of a loss.
    fn look(&mut self) {
        if self.told > 0 {
            return;
        }
        let woken = self.woken.0.swap(0, Ordering::SeqCst);
        let waker = Waker::from(self.woken.clone());
        if self.lost.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.told = if woken > 0 { woken } else { now() };
        }
    }

    /// Writes down that it was held at a time.
    pub(super) fn see(&mut self, at: u64) {
        let deadline = self.lease.deadline().nanos();
        self.note("seen", &[at, deadline]);
        let after = now();
        if deadline > after + self.stage.ttl.as_nanos() as u64 {
            self.note("beyond", &[after]);
        }
    }

    /// Writes down a loss that was seen.
    pub(super) fn lose(&mut self) {
        let at = now();
        while self.told == 0 && now() < at + TOLD_WITHIN.as_nanos() as u64 {
            self.look();
            pause(Duration::from_millis(1));
        }
        let [seen, deadline, told] =
            [at, self.lease.deadline().nanos(), self.told].map(|time| time.to_string());
        let reason = self.lease.loss_reason().map_or("no reason", |reason| reason.as_str());
        self.stage.journal.write(&["lost", &self.number, &seen, &deadline, &told, reason]);
    }

    /// Writes down what happened.
    pub(super) fn note(&self, event: &str, numbers: &[u64]) {
        let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
        let mut parts = vec![event, &self.number];
        parts.extend(numbers.iter().map(String::as_str));
        self.stage.journal.write(&parts);
    }
}
