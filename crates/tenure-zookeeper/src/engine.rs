//! The engine: a store of lines, made of ZooKeeper's nodes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use tenure_core::clock::Instant;
use tenure_core::engine::{
    Adopts, Capability, DynQueueEngine, Finding, HandOver, Incarnation, Reach, SlotOrder,
};
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::model::claim::{ClaimId, ClientId, Keep, Kind, Name, Terms};
use tenure_core::model::line::{Line, Place, Resized, Rest, TakenSlot};
use tenure_ordered::{
    Entered, Entrance, Leaving, Left, Look, Mine, Ordered, Presence, Queues, SessionId, Store, Wait, Wakes,
};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

use crate::client::session::{Session, Sessions};
use crate::config::Config;
use crate::doctor;
use crate::error::{Fault, to_error, within};
use crate::locks::node::Layout;
use crate::locks::wake::Watches;
use crate::name::{escape, is_path, unescape};
use crate::queues::{CALLS, QUEUES, ZooKeeperQueues};

/// The most claims that wait for one resource: a list of 4,000 names is 400 kB, and a server answers 1 MB at most.
const WAITERS_MAX: u32 = 2000;
/// How many claims, renewals or releases are under way at a time.
const BATCH_MAX: usize = 128;
/// How many calls of one verb are under way at a time. A call goes to the server and back as often as the slowest of its requests needs, and the
/// next one does not wait for that. Pairs of free locks are as many with one, two or four.
const CALLS_MAX: usize = 2;

/// A ZooKeeper ensemble.
///
/// No example: it comes from `Config`, and is used by the client that connects with it.
pub struct ZooKeeper {
    pub(crate) inner: Arc<Inner>,
    capability: Capability,
    queues: Queues<ZooKeeperQueues>,
}

/// What the tasks of one client share.
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) watches: Watches,
    /// What is known of this client's entries beyond [`Mine`]. Whatever is missing is read from the line.
    nodes: Mutex<HashMap<ClaimId, Node>>,
    /// In which session those were made that are known.
    known_of: AtomicU64,
    has_containers: AtomicBool,
}

/// The node of an entry of this client.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) session_id: SessionId,
    pub(crate) path: String,
    /// Of its data. Only an operator changes it behind our back.
    pub(crate) version: i32,
    /// A slot whose taking was not answered.
    pub(crate) slot_in_doubt: Option<u32>,
}

/// Connects, and makes the path of the URL if it is not there.
///
/// No example: users give a [`Config`] to a client, which calls it.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) if no majority of servers answers in time;
/// [`Invalid`](ErrorKind::Invalid) for a wrong password or file of TLS;
/// [`Unsupported`](ErrorKind::Unsupported) for missing rights.
pub async fn connect(config: Config, client: ClientId) -> Result<Ordered<ZooKeeper>> {
    let wakes = Arc::new(Wakes::default());
    let sessions = Sessions::new(config.clone(), wakes.clone());
    let inner = Inner {
        // A lock of kazoo makes sure of its node once, and could never be acquired again after the servers removed it.
        has_containers: AtomicBool::new(config.layout != Layout::Kazoo),
        config,
        sessions,
        wakes,
        watches: Watches::default(),
        nodes: Mutex::default(),
        known_of: AtomicU64::new(0),
    };
    // It has a limit of its own, and names the servers when that is over.
    let session = inner.sessions.begin().await?;
    let made =
        async { inner.make_chroot(&session.client).await.map_err(|fault| to_error("connect", &fault)) };
    within("connect", made).await?;
    let capability = capability(session.timeout);
    let inner = Arc::new(inner);
    let queues = Queues::new(ZooKeeperQueues::new(inner.clone(), client), client);
    Ok(Ordered::new(ZooKeeper { inner, capability, queues }))
}

fn capability(timeout: Duration) -> Capability {
    let mut capability = Capability::of_step();
    capability.adopts = Adopts::SameClient;
    capability.adopts_reason = "an entry is a node that ends with the session in which its client made it, and cannot go to another session";
    capability.reach = Reach::Network;
    capability.slot_order = SlotOrder::AnyFree;
    capability.has_rests = false;
    capability.keeps_values = false;
    capability.ttl_grain = timeout;
    capability.ttl_grain_reason = "the session timeout, `?session_timeout=` in the URL";
    capability.silence_max = timeout;
    capability.hand_over = HandOver::Session;
    capability.raises_tokens = false;
    capability.remembers_ends = false;
    capability.survives_failover = true;
    capability.waiters_max = WAITERS_MAX;
    capability.batch_max = BATCH_MAX;
    capability.calls_max = CALLS_MAX;
    capability.keeps_call_order = false;
    capability
}

impl Inner {
    fn nodes(&self) -> MutexGuard<'_, HashMap<ClaimId, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn node(&self, claim: ClaimId) -> Option<Node> {
        self.nodes().get(&claim).cloned()
    }

    pub(crate) fn know(&self, claim: ClaimId, node: Node) {
        self.nodes().insert(claim, node);
    }

    pub(crate) fn forget(&self, claim: ClaimId) {
        self.nodes().remove(&claim);
    }

    /// Changes what is known, if it is still there.
    pub(crate) fn note(&self, claim: ClaimId, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes().get_mut(&claim) {
            change(node);
        }
    }

    /// Returns a session that goes on. What is known of the entries of earlier ones is forgotten.
    pub(crate) async fn begin(&self) -> Result<Arc<Session>> {
        let session = self.sessions.begin().await?;
        let session_id = session.session_id;
        if self.known_of.swap(session_id.0, Ordering::Relaxed) != session_id.0 {
            self.nodes().retain(|_, node| node.session_id == session_id);
        }
        Ok(session)
    }

    /// Returns the path of a resource's node.
    pub(crate) fn path(&self, name: &Name) -> Result<String> {
        let chroot = &self.config.chroot;
        match self.config.layout {
            Layout::Tenure => Ok(format!("{chroot}/{}", escape(name.as_str()))),
            _ => {
                let path = format!("{chroot}/{}", name.as_str().trim_start_matches('/'));
                let is_theirs = path == "/zookeeper" || path.starts_with("/zookeeper/");
                let is_of_queues = path.split('/').any(|part| part == QUEUES || part == CALLS);
                if is_path(&path) && !is_theirs && !is_of_queues {
                    return Ok(path);
                }
                let why = "with a foreign layout a name is a path, and this is none";
                Err(Error::new(ErrorKind::Invalid, "name a resource", why))
            }
        }
    }

    fn acls(&self) -> Acls<'static> {
        if self.config.login.is_some() { Acls::creator_all() } else { Acls::anyone_all() }
    }

    pub(crate) fn options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(self.acls())
    }

    pub(crate) fn has_containers(&self) -> bool {
        self.has_containers.load(Ordering::Relaxed)
    }

    async fn make_chroot(&self, client: &Client) -> Result<(), Fault> {
        let chroot = &self.config.chroot;
        if chroot.is_empty() || client.check_stat(chroot).await?.is_some() {
            return Ok(());
        }
        client.mkdir(chroot, &self.options(CreateMode::Persistent)).await
    }

    /// Makes the node of a resource, which the server removes some time after its last child, except where kazoo shares it.
    pub(crate) async fn make_container(&self, client: &Client, path: &str) -> Result<(), Fault> {
        let mode = if self.has_containers() { CreateMode::Container } else { CreateMode::Persistent };
        match client.create(path, b"", &self.options(mode)).await {
            Ok(_) | Err(Fault::NodeExists) => Ok(()),
            Err(Fault::Unimplemented) if self.has_containers() => {
                self.has_containers.store(false, Ordering::Relaxed);
                client.mkdir(path, &self.options(CreateMode::Persistent)).await
            }
            // The path of the URL was removed, or a foreign layout has parents.
            Err(Fault::NoNode) => {
                self.make_chroot(client).await?;
                client.mkdir(path, &self.options(mode)).await
            }
            Err(fault) => Err(fault),
        }
    }
}

fn unsupported(what: &'static str, why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, what, why)
        .with_hint("use an engine that keeps records: local, redis, postgres or mysql")
}

impl Store for ZooKeeper {
    const ENGINE: &'static str = "zookeeper";

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn incarnation(&self) -> Incarnation {
        // An ensemble forgets nothing.
        Incarnation(1)
    }

    fn wakes(&self) -> &Wakes {
        &self.inner.wakes
    }

    async fn session_id(&self, _ttl: Duration) -> Result<SessionId> {
        Ok(self.inner.begin().await?.session_id)
    }

    async fn heartbeat(&self, session_id: SessionId) -> Result<Option<Instant>> {
        match self.inner.sessions.session(session_id) {
            Some(session) => session.heartbeat().await,
            None => Ok(None),
        }
    }

    async fn enter(&self, entrances: Vec<Entrance<'_>>) -> Vec<Result<Entered>> {
        let entered = entrances.into_iter().map(|entrance| self.inner.enter(entrance));
        join_all(entered).await
    }

    async fn look(&self, names: Vec<&Name>, is_detailed: bool) -> Vec<Result<Look>> {
        let looks = names.into_iter().map(move |name| self.inner.read_line(name, is_detailed));
        join_all(looks).await
    }

    async fn find(&self, mine: Vec<Mine>) -> Vec<Result<Presence>> {
        let found = within("renew", async { Ok(self.inner.find_all(&mine).await) }).await;
        found.unwrap_or_else(|error| mine.iter().map(|_| Err(error.clone())).collect())
    }

    async fn leave(&self, leaving: Vec<Leaving>) -> Vec<Result<Left>> {
        join_all(leaving.iter().map(|leaving| self.inner.leave(leaving))).await
    }

    fn watch(&self, wait: Wait, _for_value: bool) {
        self.inner.watches.watch(&self.inner, &wait.mine, wait.blockers);
    }

    fn unwatch(&self, claim: ClaimId) {
        self.inner.watches.unwatch(claim);
    }

    async fn take_slot(&self, mine: &Mine, capacity: u32, line: &Line) -> Result<TakenSlot> {
        within("take a slot", self.inner.take_slot(mine, capacity, line)).await
    }

    async fn prepare_rest(&self, _mine: &Mine, _terms: &Terms) -> Result<()> {
        let error = unsupported("claim", "units cannot rest on ZooKeeper: nothing there outlives its client");
        Err(error)
    }

    async fn publish(&self, mine: Mine, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        if keep != Keep::WhileHeld {
            let why = "values cannot outlive their hold on ZooKeeper: nothing there outlives its client";
            return Err(unsupported("publish", why));
        }
        within("publish", self.inner.publish(&mine, &bytes)).await
    }

    async fn resize(&self, name: &Name, resized: Resized) -> Result<()> {
        within("resize", self.inner.resize(name, resized)).await
    }

    async fn break_place(
        &self,
        name: &Name,
        place: &Place,
        slot: Option<u32>,
        at_once: bool,
    ) -> Result<bool> {
        within("break a hold", self.inner.break_place(name, place, slot, at_once)).await
    }

    async fn end_rest(&self, _name: &Name, _rest: &Rest) -> Result<bool> {
        Ok(false)
    }

    async fn names(&self, prefix: &str, after: Option<&Name>, most: usize) -> Result<Vec<Name>> {
        within("inspect", async move {
            let mut names: Vec<Name> = self.inner.list_names().await?;
            names.retain(|name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after));
            names.sort_unstable();
            names.truncate(most);
            Ok(names)
        })
        .await
    }

    fn follow(&self, name: &Name) -> BoxStream<'static, Result<()>> {
        crate::locks::follow::follow(self.inner.clone(), name.clone())
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        Some(&self.queues)
    }

    async fn check(&self) -> Vec<Finding> {
        let make = self.inner.options(CreateMode::Container);
        doctor::check(&self.inner.config, self.inner.begin().await, make).await
    }
}

impl Inner {
    async fn list_names(&self) -> Result<Vec<Name>> {
        let session = self.begin().await?;
        let path = if self.config.chroot.is_empty() { "/" } else { &self.config.chroot };
        let (synced, listed) =
            futures_util::future::join(session.client.sync(path), session.client.list_children(path)).await;
        let names = match synced.and(listed) {
            Ok(names) => names,
            Err(Fault::NoNode) => Vec::new(),
            Err(fault) => return Err(to_error("inspect", &fault)),
        };
        let read = |name: &String| match self.config.layout {
            Layout::Tenure => unescape(name),
            _ => Name::new(name).ok().filter(|name| !["zookeeper", QUEUES, CALLS].contains(&name.as_str())),
        };
        Ok(names.iter().filter_map(read).collect())
    }

    /// Whether a claim's kind can be in a line of the layout.
    pub(crate) fn allows(&self, terms: &Terms) -> Result<()> {
        if !terms.limits.lock_delay.is_zero() || !terms.limits.min_hold.is_zero() {
            let why = "units cannot rest on ZooKeeper: nothing there outlives its client";
            return Err(unsupported("claim", why));
        }
        if terms.unless_fresh {
            let why = "values cannot outlive their hold on ZooKeeper: nothing there outlives its client";
            return Err(unsupported("claim", why));
        }
        if self.config.layout != Layout::Tenure && terms.kind != Kind::Mutex {
            let why = format!("a {} has no counterpart in the layout of others", terms.kind);
            return Err(Error::new(ErrorKind::Unsupported, "claim", why)
                .with_hint("omit `layout` in the URL, or use a mutex"));
        }
        Ok(())
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        // Their tasks would keep the session going.
        self.inner.watches.unwatch_all();
    }
}

impl std::fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZooKeeper").field("config", &self.inner.config).finish_non_exhaustive()
    }
}
