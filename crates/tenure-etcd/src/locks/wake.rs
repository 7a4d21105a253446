//! Which waiters wait for which keys to go, and their wakes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::select_all;
use futures_util::stream::{self, BoxStream};
use tenure_core::Result;
use tenure_core::engine::Wake;
use tenure_core::model::claim::ClaimId;
use tenure_ordered::Wakes;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::client::proto::{WatchFilter, end_of_prefix};
use crate::client::watch::{End, Notice, Wanted, Watch, Watches};

/// How long an observer waits for its watches to begin before it reads for the first time.
const BEGIN_MAX: Duration = Duration::from_millis(1500);

/// The waiters of a client.
pub(crate) struct Waits {
    watches: Watches,
    wakes: Arc<Wakes>,
    waiting: Mutex<HashMap<ClaimId, Waiting>>,
}

struct Waiting {
    what: Vec<Wanted>,
    task: AbortHandle,
}

/// Asks for the deletions of a key, or of all keys that begin so.
pub(crate) fn goes(key: Vec<u8>, is_prefix: bool) -> Wanted {
    let range_end = if is_prefix { end_of_prefix(&key) } else { Vec::new() };
    Wanted { key, range_end, filters: vec![WatchFilter::NoPut.into()], ..Wanted::default() }
}

/// Asks for the values of a key.
pub(crate) fn comes(key: Vec<u8>) -> Wanted {
    Wanted { key, filters: vec![WatchFilter::NoDelete.into()], ..Wanted::default() }
}

impl Waits {
    pub(crate) fn new(watches: Watches, wakes: Arc<Wakes>) -> Waits {
        Waits { watches, wakes, waiting: Mutex::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<ClaimId, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a waiter as soon as one of these has happened since the revision at which it read last.
    ///
    /// It is watched from the present on, and not from that revision: etcd brings a watch that begins in the past up to date
    /// each 100 ms only, and until then sends nothing. If anything was written before it began, the waiter reads.
    pub(crate) fn wait(&self, claim: ClaimId, what: Vec<Wanted>, looked_at: i64) {
        let mut waiting = self.waiting();
        if let Some(known) = waiting.get(&claim) {
            // Each heartbeat asks again.
            if known.what == what && !known.task.is_finished() {
                return;
            }
            known.task.abort();
        }
        let watches: Vec<Watch> = what.iter().map(|wanted| self.watches.watch(wanted.clone())).collect();
        if watches.is_empty() {
            waiting.remove(&claim);
            return;
        }
        let wakes = self.wakes.clone();
        let task = tokio::spawn(async move {
            let missed = |began_at: i64| {
                if began_at > looked_at {
                    wakes.put(Wake::Look(claim));
                }
            };
            // A watch that ends may have missed what was waited for.
            select_all(watches.into_iter().map(|watch| Box::pin(happened(watch, missed)))).await;
            wakes.put(Wake::Look(claim));
        });
        waiting.insert(claim, Waiting { what, task: task.abort_handle() });
    }

    /// A claim does not wait any more.
    pub(crate) fn forget(&self, claim: ClaimId) {
        if let Some(known) = self.waiting().remove(&claim) {
            known.task.abort();
        }
    }

    /// Returns an item for each change of what begins with one of these, and one at once.
    pub(crate) fn follow(&self, prefixes: [Vec<u8>; 2]) -> BoxStream<'static, Result<()>> {
        let follower = Follower { watches: self.watches.clone(), prefixes, current: None };
        stream::unfold(follower, |mut follower| async move { Some((follower.next().await, follower)) })
            .boxed()
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.waiting().values().for_each(|waiting| waiting.task.abort());
    }
}

async fn happened(mut watch: Watch, missed: impl Fn(i64)) {
    while let Ok(Notice::Began { revision }) = watch.next().await {
        missed(revision);
    }
}

struct Follower {
    watches: Watches,
    prefixes: [Vec<u8>; 2],
    current: Option<[Watch; 2]>,
}

impl Follower {
    async fn next(&mut self) -> Result<()> {
        let Some([one, other]) = &mut self.current else { return self.begin().await };
        let (notice, _, _) = select_all([Box::pin(one.next()), Box::pin(other.next())]).await;
        match notice {
            Ok(_) => Ok(()),
            Err(end) => {
                self.current = None;
                match end {
                    End::Behind => self.begin().await,
                    End::Refused(fault) => Err(fault.to_error("observe")),
                }
            }
        }
    }

    /// Begins to watch, and returns once nothing that comes can be missed.
    async fn begin(&mut self) -> Result<()> {
        let all = |prefix: &Vec<u8>| Wanted {
            range_end: end_of_prefix(prefix),
            key: prefix.clone(),
            ..Wanted::default()
        };
        let mut watches = self.prefixes.each_ref().map(|prefix| self.watches.watch(all(prefix)));
        let until = Instant::now() + BEGIN_MAX;
        for watch in &mut watches {
            // The next read finds out why one has not begun; it begins by itself.
            if let Ok(Err(End::Refused(fault))) = timeout_at(until, watch.next()).await {
                return Err(fault.to_error("observe"));
            }
        }
        self.current = Some(watches);
        Ok(())
    }
}
