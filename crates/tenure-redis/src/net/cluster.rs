//! The nodes of a cluster: a table says which has a hash slot, and a link goes to each that is in use.
//!
//! The table is a guess that is put right by three things: a node that answers "moved"; a connection that breaks or
//! hangs, since its node may have been replaced; and, so that a channel does not stay silent on a node that lost its
//! slot, a refresh every few seconds. A task keeps it: it asks several nodes at once, believes the claim of the
//! latest epoch, and takes the channels of slots that moved to their new nodes.

pub(crate) mod shape;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{Incarnation, Shard};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use self::shape::{Redirect, SLOTS, View, merge};
use crate::error::Fault;
use crate::net::address::Address;
use crate::net::dial::Dialer;
use crate::net::link::{Answer, Build, Link, Place, leaves};
use crate::net::pause;
use crate::net::wire::{Listeners, Manner, News, TableListeners, Wire, lock};

/// How often the table is refreshed although nothing happens.
const REFRESH_EVERY: Duration = Duration::from_secs(10);
/// How often at most.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);
/// How many nodes are asked at once: one of them may be hung, and one may have missed the news.
const ASK_AT_ONCE: usize = 3;
/// How long a node may take to describe the cluster.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the others may take once one has answered.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a command that was refused for now waits before it is repeated, at most.
const REFUSED_PAUSE_MAX: Duration = Duration::from_millis(100);
/// How many redirections are followed at once. More of them say that the nodes do not agree yet.
const REDIRECTS_AT_ONCE: u32 = 3;
/// How long one channel may take to be taken to another node, before the next refresh tries again.
const MOVE_TIMEOUT: Duration = Duration::from_secs(1);

/// The nodes of one cluster. Cheap to clone; connections end with the last clone.
#[derive(Clone)]
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    _keeper: Arc<Keeper>,
}

struct Keeper(AbortHandle);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Shared {
    dialer: Dialer,
    listeners: Listeners,
    /// The nodes of the URL.
    seeds: Vec<Address>,
    table: Mutex<Table>,
    /// Counts the changes of the table.
    changed: watch::Sender<u64>,
    /// Asks for a refresh of the table.
    refresh: Arc<Notify>,
}

struct Table {
    /// The owner of each slot.
    owners: Vec<Option<Arc<Address>>>,
    /// All nodes that any node has named, replicas too: those to ask.
    nodes: Vec<Address>,
    links: HashMap<(Arc<Address>, Lane), Link>,
    /// The numbers of all nodes that ever had a slot.
    shards: HashMap<Arc<Address>, Shard>,
    channels: BTreeMap<Vec<u8>, Channel>,
    /// Why the last refresh failed.
    fault: Option<Fault>,
}

/// What a link is for. A command that waits for replicas blocks its connection, and one with subscriptions must not
/// have large answers behind it (see `topology.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lane {
    Calls,
    Inbox,
    Replicated,
}

/// A channel that the client subscribed to.
struct Channel {
    slot: u16,
    /// Whose link has it.
    at: Option<Arc<Address>>,
}

impl Cluster {
    /// Begins to refresh the table. It must be called on a tokio runtime.
    pub(crate) fn start(dialer: Dialer, seeds: &[Address], news: UnboundedSender<News>) -> Cluster {
        let (strays, strayed) = unbounded_channel();
        let refresh = Arc::new(Notify::new());
        let table = Some(TableListeners { strays, trouble: refresh.clone() });
        let listeners = Listeners { news: Some(news), table, is_inbox: false };
        let shared = Arc::new(Shared {
            dialer,
            listeners,
            seeds: seeds.to_vec(),
            table: Mutex::new(Table {
                owners: vec![None; SLOTS],
                nodes: Vec::new(),
                links: HashMap::new(),
                shards: HashMap::new(),
                channels: BTreeMap::new(),
                fault: None,
            }),
            changed: watch::Sender::new(0),
            refresh,
        });
        let keeper = tokio::spawn(keep(shared.clone(), strayed));
        Cluster { shared, _keeper: Arc::new(Keeper(keeper.abort_handle())) }
    }

    /// Sends a command to the node of a slot. What was refused (moved, not now, not here) is sent again until the
    /// deadline; what may have been executed is not. Unless `waits`, what is refused while the slot moves is a fault at once.
    pub(crate) async fn execute(
        &self,
        slot: u16,
        deadline: Instant,
        build: Build<'_>,
        replicas: u8,
        waits: bool,
    ) -> Result<Answer, Fault> {
        let lane = if replicas == 0 { Lane::Calls } else { Lane::Replicated };
        let mut ask = None;
        for attempt in 0.. {
            let is_asking = ask.is_some();
            let wire = match ask.take() {
                Some(address) => self.shared.link(&Arc::new(address), lane).up(deadline).await?,
                None => self.shared.wire(slot, lane, deadline).await?,
            };
            let incarnation = wire.incarnation();
            let manner = Manner { is_asking, replicas };
            let fault = match wire.execute(deadline, build(incarnation), manner).await {
                Ok((value, acknowledged)) => return Ok(Answer { value, incarnation, acknowledged }),
                Err(fault) => fault,
            };
            let mut is_refused = false;
            match self.shared.turn(&fault, &wire) {
                Turn::Follow(address) => ask = address,
                Turn::Wait if !waits && fault.code() == Some("TRYAGAIN") => return Err(fault),
                Turn::Wait => is_refused = true,
                Turn::End => {
                    self.shared.refresh.notify_one();
                    return Err(fault);
                }
            }
            if is_refused || attempt >= REDIRECTS_AT_ONCE {
                self.shared.refresh.notify_one();
                let pause = pause::briefly(attempt, REFUSED_PAUSE_MAX);
                if timeout_at(deadline, pause).await.is_err() {
                    return Err(fault);
                }
            }
        }
        unreachable!("the loop has no end but its returns")
    }

    /// Waits for a connection with the node of a slot.
    pub(crate) async fn up(&self, slot: u16, deadline: Instant) -> Result<(), Fault> {
        self.shared.wire(slot, Lane::Calls, deadline).await.map(drop)
    }

    /// Subscribes to a channel of a slot, at whatever node has the slot, now and later.
    pub(crate) async fn subscribe(&self, slot: u16, deadline: Instant, channel: &[u8]) -> Result<(), Fault> {
        let mut is_moved = false;
        for attempt in 0.. {
            let wire = self.shared.wire(slot, Lane::Inbox, deadline).await?;
            let Some((link, was_elsewhere)) = self.shared.place(slot, channel) else { continue };
            is_moved |= was_elsewhere;
            if !wire.is_subscribed(channel) {
                let fault = match wire.subscribe(deadline, vec![channel.to_vec()]).await {
                    Ok(mut refused) => refused.pop().map(|(_, fault)| fault),
                    // Subscribing twice does no harm.
                    Err(fault) => Some(fault),
                };
                if let Some(fault) = fault {
                    let is_lost = fault.is_outcome_unknown();
                    if !is_lost {
                        // Else no later connection of this link could come up.
                        link.forget(channel);
                    }
                    if matches!(self.shared.turn(&fault, &wire), Turn::End) && !is_lost {
                        return Err(fault);
                    }
                    self.shared.refresh.notify_one();
                    let pause = pause::briefly(attempt, REFUSED_PAUSE_MAX);
                    if timeout_at(deadline, pause).await.is_err() {
                        return Err(fault);
                    }
                    continue;
                }
            }
            if is_moved {
                // Others wait on this channel too, and have missed what came in between.
                self.shared.listeners.send(News::Up { incarnation: wire.incarnation(), is_new: true });
            }
            return Ok(());
        }
        unreachable!("the loop has no end but its returns")
    }

    /// Leaves a channel.
    pub(crate) async fn unsubscribe(&self, slot: u16, deadline: Instant, channel: &[u8]) {
        let link = {
            let mut table = lock(&self.shared.table);
            let removed = table.channels.remove(channel);
            debug_assert!(
                removed.as_ref().is_none_or(|channel| channel.slot == slot),
                "the slot of the channel"
            );
            let at = removed.and_then(|channel| channel.at);
            at.and_then(|at| table.links.get(&(at, Lane::Inbox)).cloned())
        };
        if let Some(link) = link {
            link.unsubscribe(deadline, channel).await;
        }
    }

    /// Returns the number of the node that has a slot. 0: none is known to have it.
    pub(crate) fn shard(&self, slot: u16) -> Shard {
        let mut table = lock(&self.shared.table);
        let Table { owners, shards, .. } = &mut *table;
        let Some(owner) = owners.get(usize::from(slot)).and_then(Option::as_ref) else {
            return Shard::default();
        };
        if let Some(shard) = shards.get(owner) {
            return *shard;
        }
        // Those beyond share the last one, and so wait for each other.
        let next = Shard(u16::try_from(shards.len() + 1).unwrap_or(u16::MAX));
        *shards.entry(owner.clone()).or_insert(next)
    }

    /// Returns the incarnation of a slot's owner now, if there is one.
    pub(crate) fn incarnation(&self, slot: u16) -> Option<Incarnation> {
        let table = lock(&self.shared.table);
        let owner = table.owners.get(usize::from(slot))?.clone()?;
        let link = table.links.get(&(owner, Lane::Calls))?;
        link.wire().map(|wire| wire.incarnation())
    }

    /// Returns a link with each master, once they are known.
    pub(crate) async fn masters(&self, deadline: Instant) -> Result<Vec<Link>, Fault> {
        let mut changed = self.shared.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let owners: HashSet<Arc<Address>> =
                lock(&self.shared.table).owners.iter().flatten().cloned().collect();
            if !owners.is_empty() {
                return Ok(owners.iter().map(|owner| self.shared.link(owner, Lane::Calls)).collect());
            }
            if timeout_at(deadline, changed.changed()).await.is_err() {
                return Err(self.shared.unknown("no node describes the cluster".to_owned()));
            }
        }
    }
}

/// What to do about a fault.
enum Turn {
    /// Ask this node, or the owner of the slot if none is named. Nothing was executed.
    Follow(Option<Address>),
    /// Try again in a moment. Nothing was executed.
    Wait,
    /// Give up.
    End,
}

impl Shared {
    fn turn(&self, fault: &Fault, wire: &Wire) -> Turn {
        match Redirect::read(fault, wire.address()) {
            Some(Redirect::Moved(slot, address)) => {
                self.set_owner(slot, address);
                self.refresh.notify_one();
                Turn::Follow(None)
            }
            Some(Redirect::Ask(address)) => Turn::Follow(Some(address)),
            None if matches!(fault.code(), Some("TRYAGAIN" | "CLUSTERDOWN")) => Turn::Wait,
            None if leaves(wire, fault) => Turn::Wait,
            None => Turn::End,
        }
    }

    /// Waits for a connection with the node of a slot, whichever that is by then.
    async fn wire(&self, slot: u16, lane: Lane, deadline: Instant) -> Result<Wire, Fault> {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let owner = lock(&self.table).owners.get(usize::from(slot)).cloned().flatten();
            let Some(owner) = owner else {
                self.refresh.notify_one();
                if timeout_at(deadline, changed.changed()).await.is_err() {
                    return Err(self.unknown(format!("no node has the hash slot {slot}")));
                }
                continue;
            };
            let link = self.link(&owner, lane);
            if let Some(wire) = link.wire() {
                return Ok(wire);
            }
            let (up, changed) = (pin!(link.up(deadline)), pin!(changed.changed()));
            match select(up, changed).await {
                Either::Left((up, _)) => return up,
                Either::Right(_) => {}
            }
        }
    }

    /// The fault of a table that lacks something: why the last refresh failed, if it did.
    fn unknown(&self, why: String) -> Fault {
        let last = lock(&self.table).fault.clone().unwrap_or(Fault::Nobody { why });
        Fault::Down { last: Box::new(last) }
    }

    /// Returns the link with a node, which is made if there is none.
    fn link(&self, address: &Arc<Address>, lane: Lane) -> Link {
        let mut table = lock(&self.table);
        if let Some(link) = table.links.get(&(address.clone(), lane)) {
            return link.clone();
        }
        let listeners = match lane {
            Lane::Calls => self.listeners.clone(),
            Lane::Inbox => self.listeners.of_inbox(),
            Lane::Replicated => Listeners { news: None, ..self.listeners.clone() },
        };
        // After the first table, a node that is new here has taken over from another one. That is not always so, and
        // clients that believe it renew once more than they had to.
        let is_successor = *self.changed.borrow() > 1;
        let place = Place::Fixed(Address::clone(address));
        let link = Link::start(self.dialer.clone(), place, listeners, is_successor);
        table.links.insert((address.clone(), lane), link.clone());
        link
    }

    /// Notes that a channel is at the node of its slot. Returns the link with it, and whether the channel was
    /// elsewhere before.
    fn place(&self, slot: u16, channel: &[u8]) -> Option<(Link, bool)> {
        let mut table = lock(&self.table);
        let owner = table.owners.get(usize::from(slot))?.clone()?;
        let link = table.links.get(&(owner.clone(), Lane::Inbox))?.clone();
        link.want(channel);
        let before = table.channels.insert(channel.to_vec(), Channel { slot, at: Some(owner.clone()) });
        let Some(before) = before.filter(|before| before.at.as_ref() != Some(&owner)) else {
            return Some((link, false));
        };
        if let Some(old) = before.at.and_then(|at| table.links.get(&(at, Lane::Inbox))) {
            old.forget(channel);
        }
        Some((link, true))
    }

    fn set_owner(&self, slot: u16, address: Address) {
        let mut table = lock(&self.table);
        let owner = &mut table.owners[usize::from(slot)];
        if owner.as_deref() != Some(&address) {
            *owner = Some(Arc::new(address));
            drop(table);
            self.changed.send_modify(|changed| *changed += 1);
        }
    }

    /// Asks nodes for the shape of the cluster until some answer, and takes it over.
    async fn refresh_topology(&self) -> Result<(), Fault> {
        let mut last = None;
        let nodes = self.nodes_to_ask();
        for nodes in nodes.chunks(ASK_AT_ONCE) {
            let views = self.views_of(nodes, &mut last).await;
            let owners = merge(&views);
            if owners.iter().all(Option::is_none) {
                continue;
            }
            let known: HashSet<Address> = views.into_iter().flat_map(|view| view.nodes).collect();
            self.take_over(owners, known);
            return Ok(());
        }
        let why = "no node describes the cluster".to_owned();
        Err(last.unwrap_or(Fault::Nobody { why }))
    }

    /// Those that answer first, then all others, each in random order so that clients spread.
    fn nodes_to_ask(&self) -> Vec<(Address, Option<Wire>)> {
        let table = lock(&self.table);
        let mut wires: HashMap<Address, Wire> = HashMap::new();
        for ((address, lane), link) in &table.links {
            if let (Lane::Calls, Some(wire)) = (lane, link.wire()) {
                wires.insert(Address::clone(address), wire);
            }
        }
        let known: HashSet<&Address> = table.nodes.iter().chain(&self.seeds).chain(wires.keys()).collect();
        let mut nodes: Vec<_> =
            known.into_iter().map(|address| (address.clone(), wires.get(address).cloned())).collect();
        nodes.sort_by_cached_key(|(_, wire)| (wire.is_none(), SystemClock.random()));
        nodes
    }

    async fn views_of(&self, nodes: &[(Address, Option<Wire>)], last: &mut Option<Fault>) -> Vec<View> {
        let mut asked: FuturesUnordered<_> =
            nodes.iter().map(|(address, wire)| self.view_of(address, wire.as_ref())).collect();
        let mut give_up_at = Instant::now() + ANSWER_TIMEOUT;
        let mut views = Vec::new();
        while let Ok(Some(answer)) = timeout_at(give_up_at, asked.next()).await {
            match answer {
                Ok(view) => {
                    views.push(view);
                    give_up_at = give_up_at.min(Instant::now() + OTHERS_TIMEOUT);
                }
                Err(fault) => *last = Some(fault),
            }
        }
        views
    }

    async fn view_of(&self, address: &Address, wire: Option<&Wire>) -> Result<View, Fault> {
        let mut commands = redis::pipe();
        commands.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("NODES");
        let answers = match wire {
            Some(wire) => wire.send_all(Instant::now() + ANSWER_TIMEOUT, &commands, 0).await?,
            None => {
                // A connection of its own, since this may be a replica, which a link would not talk with.
                let mut connection = self.dialer.dial(address, |_| Ok(())).await?;
                let answers = connection.send_packed_commands(&commands, 0, 2).await;
                answers.map_err(|error| Fault::of_command(&error, &address.to_string()))?
            }
        };
        let mut answers = answers.into_iter();
        View::read(answers.next().unwrap_or_default(), answers.next().unwrap_or_default(), address)
    }

    fn take_over(&self, owners: Vec<Option<Arc<Address>>>, known: HashSet<Address>) {
        let mut table = lock(&self.table);
        table.fault = None;
        table.nodes = known.into_iter().collect();
        let is_changed = table.owners != owners;
        table.owners = owners;
        let in_use: HashSet<Arc<Address>> = table.owners.iter().flatten().cloned().collect();
        // Their calls under way go on, since those have clones.
        table.links.retain(|(address, _), _| in_use.contains(address));
        drop(table);
        if is_changed {
            self.changed.send_modify(|changed| *changed += 1);
        }
    }

    /// Takes channels to where their slots are now.
    async fn move_channels(&self) {
        let mut moves: HashMap<Arc<Address>, Vec<Vec<u8>>> = HashMap::new();
        {
            let mut table = lock(&self.table);
            let Table { owners, channels, links, .. } = &mut *table;
            for (name, channel) in channels {
                let Some(owner) = owners[usize::from(channel.slot)].clone() else { continue };
                if channel.at.as_ref() == Some(&owner) {
                    continue;
                }
                for ((address, _), link) in links.iter() {
                    if *address != owner {
                        link.forget(name);
                    }
                }
                channel.at = Some(owner.clone());
                moves.entry(owner).or_default().push(name.clone());
            }
        }
        join_all(moves.into_iter().map(|(owner, names)| self.move_to(owner, names))).await;
    }

    async fn move_to(&self, owner: Arc<Address>, names: Vec<Vec<u8>>) {
        let link = self.link(&owner, Lane::Inbox);
        names.iter().for_each(|name| link.want(name));
        // A link that is not up yet subscribes to all that it wants by then when it comes up, and reports that.
        let Some(wire) = link.wire() else { return };
        let deadline = Instant::now() + MOVE_TIMEOUT;
        for name in names {
            if let Err(fault) = link.subscribe(deadline, &name).await {
                tracing::debug!(engine = "redis", server = wire.server(), %fault, "cannot move a channel");
                self.turn(&fault, &wire);
                self.stray(&name);
                self.refresh.notify_one();
            }
        }
        // The subscribers of these channels have missed what came in between.
        self.listeners.send(News::Up { incarnation: wire.incarnation(), is_new: true });
    }

    fn stray(&self, name: &[u8]) {
        if let Some(channel) = lock(&self.table).channels.get_mut(name) {
            channel.at = None;
        }
    }
}

/// Keeps the table right.
async fn keep(shared: Arc<Shared>, mut strays: UnboundedReceiver<Vec<u8>>) {
    let mut failed = 0;
    loop {
        match shared.refresh_topology().await {
            Ok(()) => failed = 0,
            Err(fault) => {
                tracing::debug!(engine = "redis", %fault, "cannot see the cluster");
                lock(&shared.table).fault = Some(fault);
                failed += 1;
            }
        }
        shared.move_channels().await;
        if failed > 0 {
            pause::before(failed).await;
        } else {
            pause::sleep(REFRESH_PAUSE).await;
            let (strayed, asked) = (pin!(strays.recv()), pin!(shared.refresh.notified()));
            if let Ok(Either::Left((Some(name), _))) = timeout(REFRESH_EVERY, select(strayed, asked)).await {
                shared.stray(&name);
            }
        }
        while let Ok(name) = strays.try_recv() {
            shared.stray(&name);
        }
    }
}

#[cfg(test)]
mod tests;
