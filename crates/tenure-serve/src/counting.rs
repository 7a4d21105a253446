//! What this server counts of its requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::Method;
use tenure_metrics::HttpCounts;

#[derive(Debug)]
pub(crate) struct Counting {
    counts: Mutex<HttpCounts>,
    connections: AtomicUsize,
    lost: AtomicU64,
}

/// A connection that is open.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<Counting>);

impl Counting {
    pub(crate) fn new() -> Counting {
        Counting { counts: Mutex::default(), connections: AtomicUsize::new(0), lost: AtomicU64::new(0) }
    }

    fn counts(&self) -> MutexGuard<'_, HttpCounts> {
        // A panic elsewhere cannot leave it half-changed.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn answered(&self, route: &'static str, method: &Method, status: u16, took: Duration) {
        self.counts().answered(route, word(method), status, took);
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        debug_assert!(HttpCounts::REFUSALS.contains(&reason), "{reason}");
        self.counts().refused(reason);
    }

    pub(crate) fn reloaded(&self, outcome: &'static str) {
        self.counts().reloaded(outcome);
    }

    /// How many answers had each status.
    pub(crate) fn statuses(&self) -> BTreeMap<u16, u64> {
        self.counts().statuses()
    }

    /// A client was told that what it held is lost.
    pub(crate) fn told_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a client was told so.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts a connection for as long as the answer is kept.
    pub(crate) fn connected(self: &Arc<Counting>) -> OpenConnection {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self.clone())
    }

    /// What was counted, and what is open now.
    pub(crate) fn look(&self, waiting: usize, streams: usize) -> HttpCounts {
        let mut counts = self.counts().clone();
        counts.open("connection", self.connections.load(Ordering::Relaxed));
        counts.open("waiting", waiting);
        counts.open("stream", streams);
        counts
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A method as it is counted: anybody can make one up, and each would be a series.
pub(crate) fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
