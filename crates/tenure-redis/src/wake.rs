//! How waiters and observers hear of what happens: messages that the scripts publish, and the news of the links.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tenure_core::engine::{Incarnation, Wake};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use crate::keys::{CHANGES, INBOX};
use crate::lua::answer::{Message, message};
use crate::net::wire::News;

/// Passes on what comes in, each to its receiver.
pub(crate) struct Switchboard {
    sender: UnboundedSender<Wake>,
    wakes: Mutex<Option<UnboundedReceiver<Wake>>>,
    observers: Arc<Observers>,
    task: AbortHandle,
}

/// The observers of each channel of changes.
#[derive(Debug, Default)]
pub struct Observers(Mutex<HashMap<Vec<u8>, Vec<Arc<Notify>>>>);

impl Switchboard {
    /// Starts passing on. On a tokio runtime. Unless `passes_grants`, a waiter is woken to ask in place of getting
    /// the grant.
    pub(crate) fn start(news: UnboundedReceiver<News>, passes_grants: bool) -> Switchboard {
        let (sender, wakes) = unbounded_channel();
        let observers = Arc::new(Observers::default());
        let task =
            tokio::spawn(pass_on(news, sender.clone(), observers.clone(), passes_grants)).abort_handle();
        Switchboard { sender, wakes: Mutex::new(Some(wakes)), observers, task }
    }

    /// Sends the client a wake.
    pub(crate) fn send(&self, wake: Wake) {
        // The receiver was dropped: the client is being closed.
        self.sender.send(wake).ok();
    }

    /// Returns the news for this client's waiters; empty the second time.
    pub(crate) fn wakes(&self) -> BoxStream<'static, Wake> {
        let wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut wakes) = wakes else { return futures_util::stream::empty().boxed() };
        futures_util::stream::poll_fn(move |cx| wakes.poll_recv(cx)).boxed()
    }

    pub(crate) fn observers(&self) -> &Arc<Observers> {
        &self.observers
    }
}

impl Drop for Switchboard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass_on(
    mut news: UnboundedReceiver<News>,
    sender: UnboundedSender<Wake>,
    observers: Arc<Observers>,
    passes_grants: bool,
) {
    while let Some(news) = news.recv().await {
        let wake = match news {
            News::Message { channel, payload, .. } if channel.starts_with(INBOX.as_bytes()) => {
                message(&payload).map(|message| match message {
                    // The grant says by which life of the server it was made; the link's own may be a newer one.
                    Message::Granted(claim, grant, incarnation) if passes_grants => {
                        Wake::Granted { claim, grant, incarnation: Incarnation(incarnation) }
                    }
                    Message::Granted(claim, ..) | Message::Look(claim) => Wake::Look(claim),
                    Message::Ready(queue) => Wake::Queue(queue),
                })
            }
            News::Message { channel, .. } if channel.starts_with(CHANGES.as_bytes()) => {
                observers.notify(&channel);
                None
            }
            News::Message { .. } => None,
            News::Up { is_new, .. } | News::Listening { is_new } => {
                observers.notify_all();
                Some(if is_new { Wake::RenewAll } else { Wake::LookAtAll })
            }
        };
        if let Some(wake) = wake
            && sender.send(wake).is_err()
        {
            return;
        }
    }
}

impl Observers {
    /// Notes an observer of a channel.
    pub fn add(&self, channel: &[u8]) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        self.lock().entry(channel.to_vec()).or_default().push(notify.clone());
        notify
    }

    /// Forgets an observer of a channel; whether there is none any more.
    pub fn remove(&self, channel: &[u8], notify: &Arc<Notify>) -> bool {
        let mut channels = self.lock();
        let Some(all) = channels.get_mut(channel) else { return false };
        all.retain(|one| !Arc::ptr_eq(one, notify));
        if all.is_empty() {
            channels.remove(channel);
            return true;
        }
        false
    }

    /// Notifies the observers of a channel.
    pub fn notify(&self, channel: &[u8]) {
        self.lock().get(channel).into_iter().flatten().for_each(|notify| notify.notify_one());
    }

    /// Notifies all observers.
    pub fn notify_all(&self) {
        self.lock().values().flatten().for_each(|notify| notify.notify_one());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Vec<u8>, Vec<Arc<Notify>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
