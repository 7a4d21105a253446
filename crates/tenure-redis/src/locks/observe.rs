//! Following one resource: its changes are published while an observer has asked for them in the last while.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure_core::Result;
use tenure_core::model::claim::Name;
use tenure_core::model::inspect::{View, shows_the_same};
use tokio::sync::Notify;

use crate::keys::Key;
use crate::locks::inspect::read_views;
use crate::lua::LIBRARY;
use crate::store::Store;

/// How long the server publishes changes for an observer that is not heard of again.
const INTEREST: Duration = Duration::from_secs(30);
/// When an observer reads again at the latest: other clients of the classic protocol publish nothing.
const REREAD_AFTER: Duration = Duration::from_secs(10);
/// After an error.
const RETRY: Duration = Duration::from_millis(500);

struct Observer {
    store: Arc<Store>,
    resource: Name,
    key: Key,
    channel: Vec<u8>,
    changed: Arc<Notify>,
    last: Option<Option<View>>,
}

/// Follows a resource: its present view first, then each later one that shows something else.
pub(crate) fn observe(store: Arc<Store>, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
    let key = match store.keys.of(&resource) {
        Ok(key) => key,
        Err(error) => return stream::once(async { Err(error) }).boxed(),
    };
    let channel = store.keys.changes(&key).into_bytes();
    let changed = store.switchboard.observers().add(&channel);
    let observer = Observer { store, resource, key, channel, changed, last: None };
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

    /// Subscribes to changes, and only then reads.
    async fn subscribe_and_read(&self) -> Result<Option<View>> {
        let (store, slot) = (&self.store, self.key.slot);
        let subscribed = store.servers.subscribe(slot, &self.channel).await;
        subscribed.map_err(|fault| fault.to_error("observe"))?;
        let interest = INTEREST.as_millis() as u64;
        let keys = std::slice::from_ref(&self.key);
        let argument = |cmd: &mut redis::Cmd| {
            cmd.arg(interest);
        };
        store.run_script("observe", &LIBRARY.observe, slot, keys, argument).await?;
        Ok(read_views(store, std::slice::from_ref(&self.resource)).await?.pop().flatten())
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        if self.store.switchboard.observers().remove(&self.channel, &self.changed)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (store, slot, channel) = (self.store.clone(), self.key.slot, self.channel.clone());
            runtime.spawn(async move { store.servers.unsubscribe(slot, &channel).await });
        }
    }
}
