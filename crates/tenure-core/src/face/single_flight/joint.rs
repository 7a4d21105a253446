//! What the tasks of one client want at the same time: one asks the store for all of them.
//!
//! The request is a future that all of them poll, so it goes on whichever of them is dropped or forgotten, and keeps
//! its place in the store's queue. Of a grant, the task that polls first takes the lease and loads; the others wait
//! for what it publishes. If it fails or is dropped, those that still want the value join for the next request.
//!
//! What the store answered is for those who had asked when the call was sent: whoever joins later may have been told meanwhile that the value is
//! forgotten or a newer one is there, and asks anew, together with all who came later. So does whoever joins a load whose value has ceased to
//! be fresh: it may lie there for long before a task looks at it, as when the process stands still.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::watch;

use crate::client::connection::Shared as Client;
use crate::clock::Instant;
use crate::error::Result;
use crate::face::lease::Lease;
use crate::model::claim::{Name, Published};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wanted {
    /// The fresh value, or a lease of this ttl to load it, however long that takes.
    Value(Duration),
    /// The same, if no load is under way.
    Try(Duration),
    /// The value that is there, fresh or not.
    Look,
}

/// What the store answered.
#[derive(Clone)]
pub(super) enum Answer {
    Fresh(Found),
    Busy,
    /// What was there, and when it was asked for.
    There(Option<Arc<[u8]>>, Instant),
    Granted(Arc<Loading>),
}

/// A fresh value.
#[derive(Clone)]
pub(super) struct Found {
    value: Published,
    /// It is for those who had asked by then.
    until: Instant,
}

impl Found {
    /// One that the store answered to a call that was sent then.
    pub(super) fn read(sent: Instant, value: Published) -> Found {
        Found { until: sent, value }
    }

    /// One that was loaded by then, under a lease that keeps others from changing it until nobody can join any more.
    pub(super) fn loaded(ended: Instant, value: Published) -> Found {
        Found { until: ended + value.fresh_for, value }
    }

    /// Whether it is one for a task that asked then.
    pub(super) fn answers(&self, asked: Instant) -> bool {
        asked <= self.until
    }

    pub(super) fn value(self) -> Published {
        self.value
    }
}

type Request = BoxFuture<'static, Result<Answer>>;
pub(super) type Joint = Shared<Request>;

/// The requests of one client that its tasks can join.
#[derive(Default)]
pub(crate) struct Flights(Mutex<State>);

#[derive(Default)]
struct State {
    joint: HashMap<(Name, Wanted), (u64, WeakShared<Request>)>,
    last_id: u64,
}

impl Flights {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Joins the request for what is wanted, or begins it.
pub(super) fn join(client: &Arc<Client>, key: (Name, Wanted), begin: impl FnOnce(Pass) -> Request) -> Joint {
    let mut state = client.kept::<Flights>().state();
    if let Some(joint) = state.joint.get(&key).and_then(|(_, joint)| joint.upgrade()) {
        return joint;
    }
    state.last_id += 1;
    let id = state.last_id;
    let joint = begin(Pass { client: Arc::downgrade(client), key: key.clone(), id }).shared();
    if let Some(weak) = joint.downgrade() {
        state.joint.insert(key, (id, weak));
    }
    joint
}

/// While it is there, a request can be joined.
pub(super) struct Pass {
    client: Weak<Client>,
    key: (Name, Wanted),
    id: u64,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(client) = self.client.upgrade() else { return };
        let mut state = client.kept::<Flights>().state();
        if state.joint.get(&self.key).is_some_and(|(id, _)| *id == self.id) {
            state.joint.remove(&self.key);
        }
    }
}

/// A grant, of which one task makes use.
pub(super) struct Loading {
    turn: Mutex<Option<(Lease, watch::Sender<Option<Found>>)>>,
    loaded: watch::Receiver<Option<Found>>,
    /// The others can join until it is known how the load ends.
    pass: Mutex<Option<Pass>>,
}

impl Loading {
    pub(super) fn new(lease: Lease, pass: Pass) -> Arc<Loading> {
        let (sender, loaded) = watch::channel(None);
        let (turn, pass) = (Mutex::new(Some((lease, sender))), Mutex::new(Some(pass)));
        Arc::new(Loading { turn, loaded, pass })
    }

    /// Takes the lease, if no other task has. `joint` is the request of which this came.
    pub(super) fn take_turn(self: &Arc<Loading>, joint: Joint) -> Option<(Lease, Turn)> {
        let (lease, sender) = self.turn.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some((lease, Turn { loading: self.clone(), sender, _joint: joint }))
    }

    /// Waits for the value. Returns `None` if the task that had the lease has failed or is gone.
    pub(super) async fn value(&self) -> Option<Found> {
        let mut loaded = self.loaded.clone();
        let value = loaded.wait_for(Option::is_some).await.ok()?;
        value.clone()
    }
}

/// The task that has it loads, and publishes for the others. Dropped before that, it lets another task load.
pub(super) struct Turn {
    loading: Arc<Loading>,
    sender: watch::Sender<Option<Found>>,
    /// A request lives as long as a task has it, and others are to join until the value is there.
    _joint: Joint,
}

impl Turn {
    /// Gives the other tasks what was published.
    pub(super) fn publish(&self, value: Found) {
        self.end();
        // They may all be gone.
        self.sender.send(Some(value)).ok();
    }

    /// From now on, a task that wants the value asks the store.
    fn end(&self) {
        drop(self.loading.pass.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Before the sender goes, whose end makes the others ask.
        self.end();
    }
}
