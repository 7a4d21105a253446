//! News for waiters and observers of this client, from wherever they come.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tenure_core::engine::{Incarnation, Wake};
use tenure_core::model::claim::{ClaimId, ClientId, Grant, Name};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::queues::Idle;

/// How many rung claims are known at most.
const RUNG_MAX: usize = 4096;

/// What a client is to learn after a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// A waiter has been granted what it waited for.
    Granted {
        /// Whose it is.
        to: ClientId,
        /// The claim.
        claim: ClaimId,
        /// What it got.
        grant: Grant,
    },
    /// A waiter should ask how it stands.
    Look {
        /// Whose it is.
        to: ClientId,
        /// The claim.
        claim: ClaimId,
    },
    /// A resource that has observers has changed.
    Changed {
        /// Which one.
        resource: Name,
    },
}

/// Where news for this client come in.
#[derive(Debug)]
pub struct Inbox {
    client: ClientId,
    sender: UnboundedSender<Wake>,
    wakes: Mutex<Option<UnboundedReceiver<Wake>>>,
    observers: Mutex<HashMap<Name, Vec<Arc<Notify>>>>,
    /// A hint that saves a trip, and no truth: any client may ring.
    rung: Mutex<HashSet<ClaimId>>,
    pub(crate) idle: Idle,
}

impl Inbox {
    /// Makes the inbox of a client.
    pub fn new(client: ClientId) -> Inbox {
        let (sender, wakes) = unbounded_channel();
        Inbox {
            client,
            sender,
            wakes: Mutex::new(Some(wakes)),
            observers: Mutex::default(),
            rung: Mutex::default(),
            idle: Idle::default(),
        }
    }

    /// Returns whose it is.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Puts something in.
    pub fn put(&self, wake: Wake) {
        // The receiver was dropped: the client is being closed.
        self.sender.send(wake).ok();
    }

    /// Another client says that a waiter should ask how it stands: most likely it has been granted what it waits for.
    pub fn ring(&self, claim: ClaimId) {
        let mut rung = lock(&self.rung);
        if rung.len() >= RUNG_MAX {
            rung.clear();
        }
        rung.insert(claim);
        drop(rung);
        self.put(Wake::Look(claim));
    }

    /// A request of a waiter has been answered. A ring meanwhile was not heard: a request was under way already.
    pub(crate) fn wake_if_rung(&self, claim: ClaimId) {
        if lock(&self.rung).contains(&claim) {
            self.put(Wake::Look(claim));
        }
    }

    /// Whether a claim has been rung since this was asked last.
    pub(crate) fn has_rung(&self, claim: ClaimId) -> bool {
        lock(&self.rung).remove(&claim)
    }

    /// Notifies the observers of a resource that it has changed.
    pub fn changed(&self, resource: &Name) {
        lock(&self.observers).get(resource).into_iter().flatten().for_each(|notify| notify.notify_one());
    }

    /// Whether this client is noted as idle in a queue.
    pub fn is_idle(&self, queue: &Name) -> bool {
        self.idle.has(queue)
    }

    /// Something may be ready in a queue, and this client was taken from its idle clients to be woken.
    pub fn called(&self, queue: Name) {
        self.idle.forget(&queue);
        self.put(Wake::Queue(queue));
    }

    /// Something will be ready in a queue, or this client is one of those now that watch for it.
    pub fn watches(&self, queue: Name) {
        self.idle.advance(&queue);
        self.put(Wake::Queue(queue));
    }

    /// News may have been missed: waiters, observers and consumers ask by themselves.
    pub fn missed(&self) {
        self.idle.forget_all().into_iter().for_each(|queue| self.put(Wake::Queue(queue)));
        lock(&self.observers).values().flatten().for_each(|notify| notify.notify_one());
        self.put(Wake::LookAtAll);
    }

    /// Returns what is put in, once; empty the second time.
    pub fn wakes(&self) -> BoxStream<'static, Wake> {
        let Some(mut wakes) = lock(&self.wakes).take() else { return futures_util::stream::empty().boxed() };
        futures_util::stream::poll_fn(move |cx| wakes.poll_recv(cx)).boxed()
    }

    /// Returns the notifications that are for others, or for others too.
    pub(crate) fn for_others(&self, notifications: &[Notification]) -> Vec<Notification> {
        notifications.iter().filter(|notification| !self.is_own(notification)).cloned().collect()
    }

    /// Delivers the notifications that are for this client.
    pub(crate) fn notify_own(&self, notifications: &[Notification], incarnation: Incarnation) {
        for notification in notifications {
            match notification {
                Notification::Granted { to, claim, grant } if *to == self.client => {
                    self.put(Wake::Granted { claim: *claim, grant: *grant, incarnation });
                }
                Notification::Look { to, claim } if *to == self.client => self.put(Wake::Look(*claim)),
                Notification::Changed { resource } => self.changed(resource),
                _ => {}
            }
        }
    }

    fn is_own(&self, notification: &Notification) -> bool {
        matches!(notification, Notification::Granted { to, .. } | Notification::Look { to, .. } if *to == self.client)
    }

    pub(crate) fn follow(&self, resource: &Name) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        lock(&self.observers).entry(resource.clone()).or_default().push(notify.clone());
        notify
    }

    pub(crate) fn unfollow(&self, resource: &Name, notify: &Arc<Notify>) {
        let mut observers = lock(&self.observers);
        if let Some(all) = observers.get_mut(resource) {
            all.retain(|one| !Arc::ptr_eq(one, notify));
            if all.is_empty() {
                observers.remove(resource);
            }
        }
    }
}

/// A panic elsewhere cannot leave these half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
