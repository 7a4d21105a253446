//! How a client hears that something may be ready for it: a node of its own, into which others write a queue's name.
//!
//! The node is ephemeral, so a client that is gone is not called. A watch fires once, and several calls may lie
//! between its firing and the next reading: the node's version says so, and then the client polls all. So it does
//! when it has begun a new session, since nothing was heard in between.

use std::sync::Arc;

use tenure_core::engine::Wake;
use tenure_core::error::Result;
use tenure_core::model::claim::{ClientId, Name};
use tenure_ordered::SessionId;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use zookeeper_client::{CreateMode, EventType, Stat};

use super::{CALLS, called};
use crate::client::session::Session;
use crate::engine::Inner;
use crate::error::{ANSWER_MAX, Fault, no_answer, pause, to_error};

/// How long one waits after a failure.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Hears for as long as it is there.
pub(super) struct WakeListener {
    /// In which session it hears, or why in none.
    hears: watch::Receiver<Hearing>,
    task: AbortHandle,
}

/// In which session a client hears, or why in none; nothing is known at first.
type Hearing = Result<SessionId, Option<Fault>>;

impl Drop for WakeListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WakeListener {
    /// Begins to listen.
    pub(super) fn open(inner: &Arc<Inner>, client: ClientId) -> WakeListener {
        let (tell, hears) = watch::channel(Err(None));
        let task = tokio::spawn(hear(inner.clone(), client, tell)).abort_handle();
        WakeListener { hears, task }
    }

    /// Returns when it hears.
    pub(super) async fn ready(&self, inner: &Inner) -> Result<()> {
        let mut hears = self.hears.clone();
        let hears_now = |hearing: &Hearing| {
            hearing.as_ref().is_ok_and(|session_id| inner.sessions.session(*session_id).is_some())
        };
        if let Ok(Ok(_)) = timeout(ANSWER_MAX, hears.wait_for(hears_now)).await {
            return Ok(());
        }
        match &*hears.borrow() {
            Err(Some(fault)) => Err(to_error("listen", fault)),
            _ => Err(no_answer("listen")),
        }
    }
}

/// Listens in one session after the other.
async fn hear(inner: Arc<Inner>, client: ClientId, tell: watch::Sender<Hearing>) {
    loop {
        let mut why = None;
        if let Ok(session) = inner.begin().await
            && let Err(fault) = listen(&inner, &session, client, &tell).await
        {
            tracing::debug!(%fault, "calls are not heard");
            why = Some(fault);
        }
        tell.send_modify(|hearing| *hearing = Err(why));
        pause(PAUSE).await;
    }
}

async fn listen(
    inner: &Inner,
    session: &Session,
    client: ClientId,
    tell: &watch::Sender<Hearing>,
) -> Result<(), Fault> {
    let path = called(&inner.config.chroot, client);
    open(inner, session, &path).await?;
    let (_, mut stat, mut watcher) = session.client.get_and_watch_data(&path).await?;
    inner.wakes.put(Wake::LookAtAll);
    tell.send_modify(|hearing| *hearing = Ok(session.session_id));
    loop {
        let event = tokio::select! {
            event = watcher.changed() => event,
            () = session.over() => return Ok(()),
        };
        match event.event_type {
            EventType::NodeDataChanged => {}
            // It was removed, or the session is over.
            _ => return Ok(()),
        }
        let (data, now, next) = session.client.get_and_watch_data(&path).await?;
        inner.wakes.put(what(&data, &stat, &now));
        (stat, watcher) = (now, next);
    }
}

/// What a client is called for. If it was called more than once, that is not known.
fn what(data: &[u8], before: &Stat, now: &Stat) -> Wake {
    let name = std::str::from_utf8(data).ok().and_then(|name| Name::new(name).ok());
    let is_one = now.version == before.version.wrapping_add(1);
    name.filter(|_| is_one).map_or(Wake::LookAtAll, Wake::Queue)
}

/// Makes the node in this session.
async fn open(inner: &Inner, session: &Session, path: &str) -> Result<(), Fault> {
    let options = inner.options(CreateMode::Ephemeral);
    match session.client.create(path, b"", &options).await {
        Ok(_) => Ok(()),
        Err(Fault::NoNode) => {
            let parent = format!("{}/{CALLS}", inner.config.chroot);
            session.client.mkdir(&parent, &inner.options(CreateMode::Persistent)).await?;
            session.client.create(path, b"", &options).await.map(drop)
        }
        // The servers do not know yet that the session before is over, and would remove it later.
        Err(Fault::NodeExists) => match session.client.check_stat(path).await? {
            Some(stat) if stat.ephemeral_owner.cast_unsigned() == session.session_id.0 => Ok(()),
            _ => {
                match session.client.delete(path, None).await {
                    Ok(()) | Err(Fault::NoNode) => {}
                    Err(fault) => return Err(fault),
                }
                session.client.create(path, b"", &options).await.map(drop)
            }
        },
        Err(fault) => Err(fault),
    }
}
