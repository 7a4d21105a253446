//! Telling waiters that what they wait for has gone.
//!
//! A waiter watches what must go before it can hold, for a mutex its predecessor, so a release wakes one waiter and not
//! all. Watches are those that fire once: the client sets them again when it has connected anew, and the server
//! then fires those whose nodes have changed meanwhile.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, select, select_all};
use tenure_core::engine::Wake;
use tenure_core::error::Result;
use tenure_core::model::claim::{ClaimId, Name};
use tenure_core::model::line::Blocker;
use tenure_ordered::Mine;
use tokio::task::AbortHandle;
use zookeeper_client::WatchedEvent;

use crate::client::session::Session;
use crate::engine::Inner;
use crate::error::{Fault, to_error};

/// The most nodes that one waiter watches; beyond, it watches the list of them.
const WATCHES_MAX: usize = 16;

/// What the waiters of one client watch.
#[derive(Default)]
pub(crate) struct Watches(Mutex<HashMap<ClaimId, Watching>>);

struct Watching {
    /// The numbers of the entries that are in the way.
    orders: Vec<u64>,
    task: AbortHandle,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Watching>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a waiter as soon as one of its blockers has gone.
    pub(crate) fn watch(&self, inner: &Arc<Inner>, mine: &Mine, blockers: Vec<Blocker>) {
        let orders: Vec<u64> = blockers.iter().map(|blocker| blocker.order).collect();
        let mut watches = self.lock();
        if watches.get(&mine.claim).is_some_and(|old| old.orders == orders && !old.task.is_finished()) {
            return;
        }
        let (inner, mine, claim) = (inner.clone(), mine.clone(), mine.claim);
        let task = tokio::spawn(async move {
            if let Err(error) = wait(&inner, &mine, &blockers).await {
                tracing::debug!(%error, "a watch ended");
            }
            inner.wakes.put(Wake::Look(mine.claim));
        });
        watches.insert(claim, Watching { orders, task: task.abort_handle() });
    }

    /// A claim does not wait any more.
    pub(crate) fn unwatch(&self, claim: ClaimId) {
        self.lock().remove(&claim);
    }
}

impl Watches {
    /// Every waiter is gone.
    pub(crate) fn unwatch_all(&self) {
        self.lock().clear();
    }
}

/// Waits until one of the entries has changed, or nothing can be known of them.
async fn wait(inner: &Inner, mine: &Mine, blockers: &[Blocker]) -> Result<()> {
    let failed = |fault: Fault| to_error("watch", &fault);
    let Some(session) = inner.sessions.session(mine.session_id) else { return Ok(()) };
    let path = inner.path(&mine.resource)?;
    let layout = inner.config.layout;
    if blockers.len() <= WATCHES_MAX {
        let known = blockers.iter().map(|blocker| layout.name(&blocker.entry, blocker.order));
        let watching = match known.collect::<Option<Vec<String>>>() {
            Some(names) => changes(&session, &path, &names).await.map_err(failed)?,
            None => None,
        };
        let watching = match watching {
            Some(watching) => Some(watching),
            // One has gone, or has another name than we give: then it is in the line by that.
            None => {
                let seen = inner.list(&session.client, &path).await.map_err(failed)?;
                let name = |blocker: &Blocker| Some(seen.child(blocker.entry.claim)?.name.clone());
                match blockers.iter().map(name).collect::<Option<Vec<String>>>() {
                    Some(names) => changes(&session, &path, &names).await.map_err(failed)?,
                    None => None,
                }
            }
        };
        if let Some(watching) = watching
            && !watching.is_empty()
        {
            select(select_all(watching), pin!(session.over())).await;
        }
        return Ok(());
    }
    let (names, watcher) = session.client.list_and_watch_children(&path).await.map_err(failed)?;
    let seen = layout.seen(names, None);
    if blockers.iter().all(|blocker| seen.child(blocker.entry.claim).is_some()) {
        select(pin!(watcher.changed()), pin!(session.over())).await;
    }
    Ok(())
}

/// Watches the nodes of some entries. Returns `None` if one of them has gone.
async fn changes<'a>(
    session: &'a Session,
    path: &str,
    names: &[String],
) -> Result<Option<Vec<BoxFuture<'a, WatchedEvent>>>, Fault> {
    let mut changes: Vec<BoxFuture<'a, WatchedEvent>> = Vec::with_capacity(names.len());
    for name in names {
        let (stat, watcher) = session.client.check_and_watch_stat(&format!("{path}/{name}")).await?;
        if stat.is_none() {
            return Ok(None);
        }
        changes.push(Box::pin(watcher.changed()));
    }
    Ok(Some(changes))
}

/// Waits until a resource has changed: the entries of its line, what the holders published, or its capacity. Returns
/// at once with what to wait for.
pub(crate) async fn watch_all(
    session: &Session,
    inner: &Inner,
    name: &Name,
) -> Result<Vec<BoxFuture<'static, WatchedEvent>>, Fault> {
    let client = &session.client;
    let path = inner.path(name).map_err(|_| Fault::BadArguments(&"the name is no path"))?;
    let (stat, node) = client.check_and_watch_stat(&path).await?;
    let mut all: Vec<BoxFuture<'static, WatchedEvent>> = vec![Box::pin(node.changed())];
    if stat.is_none() {
        return Ok(all);
    }
    let (names, children) = match client.list_and_watch_children(&path).await {
        // It has gone since, and the first watch says so.
        Err(Fault::NoNode) => return Ok(all),
        listed => listed?,
    };
    all.push(Box::pin(children.changed()));
    let line = inner.config.layout.seen(names, None);
    let holders = line.line().holding();
    for child in line.children.iter().take(holders.min(WATCHES_MAX)) {
        let (stat, watcher) = client.check_and_watch_stat(&format!("{path}/{}", child.name)).await?;
        // If it has gone since, the list has changed.
        if stat.is_some() {
            all.push(Box::pin(watcher.changed()));
        }
    }
    Ok(all)
}
