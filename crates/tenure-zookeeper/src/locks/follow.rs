//! Following one resource.

use std::sync::Arc;

use futures_util::future::{BoxFuture, select_all};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use tenure_core::error::Result;
use tenure_core::model::claim::Name;
use zookeeper_client::WatchedEvent;

use crate::engine::Inner;
use crate::error::{to_error, within};
use crate::locks::wake::watch_all;

struct Follower {
    inner: Arc<Inner>,
    name: Name,
    changes: Vec<BoxFuture<'static, WatchedEvent>>,
}

/// Returns an item now and after each change. What is watched is set before the item, so that a read behind it misses
/// nothing.
pub(crate) fn follow(inner: Arc<Inner>, name: Name) -> BoxStream<'static, Result<()>> {
    let follower = Follower { inner, name, changes: Vec::new() };
    stream::unfold(follower, |mut follower| async move {
        let item = follower.next().await;
        Some((item, follower))
    })
    .boxed()
}

impl Follower {
    async fn next(&mut self) -> Result<()> {
        if !self.changes.is_empty() {
            select_all(std::mem::take(&mut self.changes)).await;
        }
        self.changes = within("watch", async {
            let session = self.inner.begin().await?;
            let watched = watch_all(&session, &self.inner, &self.name).await;
            watched.map_err(|fault| to_error("watch", &fault))
        })
        .await?;
        Ok(())
    }
}
