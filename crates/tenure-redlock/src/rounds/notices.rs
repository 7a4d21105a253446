//! What the servers say unasked: that a waiter should ask again, and that something that is followed has changed.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tenure_core::engine::Wake;
use tenure_core::model::claim::ClaimId;
use tenure_redis::server::{CHANGES, INBOX, Message, News, Observers, message};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{ENGINE, Quorum};

/// What the servers' news become: wakes for waiters, and notifications for observers.
pub(crate) struct Notices {
    sender: UnboundedSender<Wake>,
    wakes: Mutex<Option<UnboundedReceiver<Wake>>>,
    pub(crate) observers: Arc<Observers>,
    /// Which servers have woken a waiter, since it last asked. It asks when a majority has: until then it is not
    /// free.
    wake_votes: Mutex<HashMap<ClaimId, BTreeSet<usize>>>,
    most: usize,
}

impl Notices {
    pub(crate) fn new(most: usize) -> Notices {
        let (sender, wakes) = unbounded_channel();
        let (wakes, observers) = (Mutex::new(Some(wakes)), Arc::default());
        Notices { sender, wakes, observers, wake_votes: Mutex::default(), most }
    }

    fn wake_votes(&self) -> std::sync::MutexGuard<'_, HashMap<ClaimId, BTreeSet<usize>>> {
        self.wake_votes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim is asked for now: what was said before does not matter any more.
    pub(crate) fn forget(&self, claim: ClaimId) {
        self.wake_votes().remove(&claim);
    }

    /// Returns the news for this client's waiters; empty the second time.
    pub(crate) fn wakes(&self) -> BoxStream<'static, Wake> {
        let wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut wakes) = wakes else { return futures_util::stream::empty().boxed() };
        futures_util::stream::poll_fn(move |cx| wakes.poll_recv(cx)).boxed()
    }

    fn send(&self, wake: Wake) {
        // The receiver was dropped: the client is being closed.
        self.sender.send(wake).ok();
    }

    fn count_wake_vote(&self, node: usize, claim: ClaimId) {
        let mut votes = self.wake_votes();
        let nodes = votes.entry(claim).or_default();
        nodes.insert(node);
        if nodes.len() >= self.most {
            votes.remove(&claim);
            drop(votes);
            self.send(Wake::Look(claim));
        }
    }
}

/// Passes on what one server says, until the client is gone.
pub(crate) async fn listen(quorum: Weak<Quorum>, node: usize, mut news: UnboundedReceiver<News>) {
    while let Some(news) = news.recv().await {
        let Some(quorum) = quorum.upgrade() else { return };
        let notices = &quorum.notices;
        match news {
            News::Message { channel, payload, .. } if channel.starts_with(INBOX.as_bytes()) => {
                let Some(Message::Look(claim)) = message(&payload) else { continue };
                // One that is not known any more has been answered, or withdrawn.
                if quorum.owned().get(claim).is_some_and(|own| own.held.is_none()) {
                    notices.count_wake_vote(node, claim);
                }
            }
            News::Message { channel, .. } if channel.starts_with(CHANGES.as_bytes()) => {
                notices.observers.notify(&channel);
            }
            News::Message { .. } => {}
            news @ (News::Up { .. } | News::Listening { .. }) => {
                if let News::Up { incarnation, .. } = news {
                    if let Err(fault) = quorum.count_once(node, incarnation) {
                        tracing::warn!(engine = ENGINE, %fault, "a server is counted once");
                    }
                    quorum.nodes[node].doubt.notify_one();
                }
                notices.observers.notify_all();
                notices.send(Wake::LookAtAll);
            }
        }
    }
}
