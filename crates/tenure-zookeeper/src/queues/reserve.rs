//! Room that a consumer keeps for itself where its path has a quota.
//!
//! A change of a queue makes pages before it removes others, and servers that enforce a quota compare each operation with what was committed
//! before. So a quota that is used up refuses acknowledgements and renewals, too: what consumers are at work on would be lost at its deadline,
//! and handed out again. Therefore each client that takes makes some nodes of no other use, and removes them when it is to renew or
//! end a delivery and there is no room; a removal is never refused. Then it makes them again, beside whatever it does next and also after a
//! call that was cut off: nodes that it did not know would be in its own way. They are ephemeral: a client that is gone keeps no room.
//!
//! Others may be quicker to use what one has given up. Then it is as if there had been none.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::model::claim::ClientId;
use tenure_ordered::SessionId;
use tokio::sync::Mutex;
use zookeeper_client::CreateMode;

use super::called;
use crate::client::session::Session;
use crate::engine::Inner;
use crate::error::Fault;
use crate::quota;

/// How many nodes. One would do for a change, since each of its operations is compared by itself; but for that reason a change of another
/// client may have gone beyond the quota, by as many nodes as it made.
const NODES: usize = 16;
/// What is in one of them: as much as two pages, and what a head may grow by.
const BYTES: usize = 32 * 1024;
/// How often it is looked whether there is a quota by now.
const AGAIN: Duration = Duration::from_secs(60);

/// The room of one client.
#[derive(Default)]
pub(super) struct Reserve(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// In which session.
    session_id: Option<SessionId>,
    looked_at: Option<Instant>,
    nodes: Vec<String>,
}

/// Room that was given up. It is made again when this is dropped.
pub(super) struct GivenUp {
    reserve: Arc<Reserve>,
    inner: Arc<Inner>,
    session: Arc<Session>,
    client: ClientId,
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        let (reserve, inner) = (self.reserve.clone(), self.inner.clone());
        let (session, client) = (self.session.clone(), self.client);
        // Without a runtime the client is at its end, and its session as well.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { reserve.make(&inner, &session, client).await });
        }
    }
}

impl Reserve {
    /// Makes sure that there is room, if the path has a quota.
    pub(super) async fn keep(&self, inner: &Inner, client: ClientId) {
        let Ok(session) = inner.begin().await else { return };
        let now = SystemClock.now();
        {
            let mut kept = self.0.lock().await;
            if kept.session_id != Some(session.session_id) {
                *kept = Kept { session_id: Some(session.session_id), ..Kept::default() };
            }
            if !kept.nodes.is_empty() || kept.looked_at.is_some_and(|at| now.since(at) < AGAIN) {
                return;
            }
            kept.looked_at = Some(now);
        }
        // Whoever may not read it has none.
        if let Ok(Some(quota)) = quota::read(&session.client, &inner.config.chroot).await
            && quota.is_hard()
        {
            self.make(inner, &session, client).await;
        }
    }

    /// Makes the room, as much of it as there is.
    async fn make(&self, inner: &Inner, session: &Session, client: ClientId) {
        let mut kept = self.0.lock().await;
        if kept.session_id != Some(session.session_id) {
            return;
        }
        let (options, data) = (inner.options(CreateMode::Ephemeral), vec![0; BYTES]);
        // A session's own names: those of an earlier one may still be there.
        let path = format!("{}-{:x}", called(&inner.config.chroot, client), session.session_id.0);
        // From now on they may be there, also if nobody waits for the answers.
        kept.nodes = (0..NODES).map(|number| format!("{path}-{number}")).collect();
        let made = kept.nodes.clone().into_iter().enumerate().map(|(number, path)| {
            let data = if number == 0 { &data[..] } else { &[] };
            let options = &options;
            async move {
                match session.client.create(&path, data, options).await {
                    Err(Fault::QuotaExceeded) => None,
                    // It is there, or may be.
                    _ => Some(path),
                }
            }
        });
        kept.nodes = join_all(made).await.into_iter().flatten().collect();
    }

    /// Gives the room up for a moment. `None`: there is none.
    pub(super) async fn give_up(
        self: &Arc<Self>,
        inner: &Arc<Inner>,
        session: &Arc<Session>,
        client: ClientId,
    ) -> Option<GivenUp> {
        let mut kept = self.0.lock().await;
        if kept.session_id != Some(session.session_id) || kept.nodes.is_empty() {
            return None;
        }
        let (reserve, inner) = (self.clone(), inner.clone());
        let given_up = GivenUp { reserve, inner, session: session.clone(), client };
        let nodes = std::mem::take(&mut kept.nodes);
        let removed = join_all(nodes.iter().map(|node| session.client.delete(node, None))).await;
        removed.iter().any(Result::is_ok).then_some(given_up)
    }
}
