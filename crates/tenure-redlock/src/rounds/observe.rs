//! Following one resource: the servers publish its changes while an observer has asked for them in the last while.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::{self, BoxStream};
use tenure_core::Result;
use tenure_core::model::claim::Name;
use tenure_core::model::inspect::{View, shows_the_same};
use tenure_redis::server::Key;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Quorum;
use super::node::Request;
use crate::library::LIBRARY;

/// How long a server publishes changes for an observer that is not heard of again.
const INTEREST: Duration = Duration::from_secs(30);
/// When an observer reads again at the latest: other clients of the classic protocol publish nothing.
const REREAD_AFTER: Duration = Duration::from_secs(10);
/// After an error.
const RETRY: Duration = Duration::from_millis(500);
/// How long one server is waited for.
const WITHIN: Duration = Duration::from_millis(900);

struct Observer {
    quorum: Arc<Quorum>,
    resource: Name,
    key: Key,
    channel: Vec<u8>,
    changed: Arc<Notify>,
    last: Option<Option<View>>,
}

/// Follows a resource: its present view first, then each later one that shows something else.
pub(crate) fn observe(quorum: Arc<Quorum>, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
    let key = match quorum.keys.of(&resource) {
        Ok(key) => key,
        Err(error) => return stream::once(async { Err(error) }).boxed(),
    };
    let channel = quorum.keys.changes(&key).into_bytes();
    let changed = quorum.notices.observers.add(&channel);
    let observer = Observer { quorum, resource, key, channel, changed, last: None };
    stream::unfold((observer, Duration::ZERO), |(mut observer, wait)| async move {
        let (view, wait) = observer.next(wait).await;
        Some((view, (observer, wait)))
    })
    .boxed()
}

impl Observer {
    async fn next(&mut self, mut wait: Duration) -> (Result<Option<View>>, Duration) {
        loop {
            // A change in between leaves a permit, so that none is missed.
            if tokio::time::timeout(wait, self.changed.notified()).await.is_err() {
                tracing::trace!(resource = %self.resource, "an observer looks by itself");
            }
            let view = match self.subscribe_and_read().await {
                Ok(view) => view,
                Err(error) => return (Err(error), RETRY),
            };
            wait = view.as_ref().map_or(REREAD_AFTER, |view| {
                let next = view.holds.iter().map(|hold| hold.ends_in).min().unwrap_or(REREAD_AFTER);
                // An end by itself makes no event.
                (next + Duration::from_millis(1)).min(REREAD_AFTER)
            });
            let is_known =
                self.last.as_ref().is_some_and(|last| shows_the_same(last.as_ref(), view.as_ref()));
            if !is_known {
                self.last = Some(view.clone());
                return (Ok(view), wait);
            }
        }
    }

    /// Subscribes at all servers, and only then reads.
    async fn subscribe_and_read(&self) -> Result<Option<View>> {
        let quorum = &self.quorum;
        let up = quorum.nodes.iter().filter(|node| node.is_up());
        // A server that does not take it is one that is not heard, and others are.
        join_all(up.map(|node| node.wire.subscribe(Instant::now() + WITHIN, &self.channel))).await;
        let interest = INTEREST.as_millis().to_string();
        quorum.hear_all(WITHIN, Request::new(&LIBRARY.observe).key(&self.key.text).arg(interest)).await;
        Ok(quorum.read_views("observe", std::slice::from_ref(&self.resource)).await?.pop().flatten())
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        if self.quorum.notices.observers.remove(&self.channel, &self.changed)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (quorum, channel) = (self.quorum.clone(), self.channel.clone());
            runtime.spawn(async move {
                let deadline = Instant::now() + WITHIN;
                join_all(quorum.nodes.iter().map(|node| node.wire.unsubscribe(deadline, &channel))).await;
            });
        }
    }
}
