//! A Redis Cluster.

use std::sync::Arc;

use super::{RedisOptions, RedisServer};
use crate::{Port, Reply, Site, wait_for};

/// How many masters there are, each with a replica.
const MASTERS: usize = 3;

/// How many hash slots a cluster has. A slot in this file is one of them, never a unit of a pool.
const SLOTS: usize = 16_384;

/// How many keys are moved by one command.
const KEYS_MAX: usize = 100;

/// A cluster of three masters with a replica each, in which a node that is silent for 1 s counts as failed.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    bus: Vec<Port>,
}

impl RedisCluster {
    /// Starts a cluster, and waits until each node finds it complete.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start() -> RedisCluster {
        RedisCluster::start_with(&RedisOptions::default())
    }

    /// Starts a cluster of nodes with these options, which may not be a password.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with(options: &RedisOptions) -> RedisCluster {
        RedisCluster::start_on(&Site::new(), options)
    }

    /// Starts a cluster on a site.
    pub(crate) fn start_on(site: &Arc<Site>, options: &RedisOptions) -> RedisCluster {
        assert!(options.password.is_none(), "the nodes are not told of passwords");
        let bus: Vec<Port> = (0..2 * MASTERS).map(|_| Port::free()).collect();
        let options = options.clone().line("cluster-enabled yes").line("cluster-node-timeout 1000");
        let options = options.line("repl-diskless-sync-delay 0");
        let options = if options.tls { options.line("tls-cluster yes") } else { options };
        let mut nodes: Vec<RedisServer> = Vec::new();
        for bus in &bus {
            let options = options.clone().line(format!("cluster-port {}", bus.number()));
            let options = if let Some(first) = nodes.first() { options.trusting(first) } else { options };
            nodes.push(RedisServer::launch(site, Port::free(), options));
        }
        let cluster = RedisCluster { nodes, bus };
        cluster.join();
        cluster.wait_until_ready();
        for master in &cluster.nodes[..MASTERS] {
            master.wait_until_replicated(1);
        }
        cluster
    }

    /// Joins nodes that know nothing of each other.
    fn join(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            node.wait_until_ready();
            // Different ones from the start: nodes of one epoch would settle it later, in the midst of a test.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
        let (masters, replicas) = self.nodes.split_at(MASTERS);
        for (index, master) in masters.iter().enumerate() {
            let (first, end) = (SLOTS * index / MASTERS, SLOTS * (index + 1) / MASTERS);
            master.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(end - 1).to_string()]);
        }
        // Each meets each: gossip would tell them as well, but later.
        for (index, node) in self.nodes.iter().enumerate() {
            for (other, bus) in self.nodes.iter().zip(&self.bus).skip(index + 1) {
                let (port, bus) = (other.port().to_string(), bus.number().to_string());
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        for (replica, master) in replicas.iter().zip(masters) {
            let id = id(master);
            replica.wait_for("node that knows its master", || {
                (replica.ask(&["CLUSTER", "REPLICATE", &id]).to_string() == "OK").then_some(())
            });
        }
    }

    /// Returns an address with the first three nodes:
    /// `redis+cluster://127.0.0.1:20001,127.0.0.1:20002,127.0.0.1:20003`.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.nodes[..MASTERS].iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("{}+cluster://{}", self.nodes[0].scheme(), hosts.join(","))
    }

    /// Returns the nodes; the first three began as masters.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns the slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        let node = self.living().next().expect("a node that lives");
        node.command(&["CLUSTER", "KEYSLOT", key]).parse().expect("a slot")
    }

    /// Returns the master that has a slot: of the living nodes which claim it, the one of the latest epoch.
    /// Waits until there is one.
    ///
    /// # Panics
    /// If there is none.
    pub fn node_of_slot(&self, slot: u16) -> &RedisServer {
        wait_for("node of the slot", || self.owner(slot))
    }

    /// Waits until another node than the old one has a slot.
    ///
    /// # Panics
    /// If none gets it.
    pub fn wait_for_new_master(&self, slot: u16, old: &RedisServer) -> &RedisServer {
        wait_for("new master of the slot", || self.owner(slot).filter(|node| node.port() != old.port()))
    }

    /// Returns a replica of a master, as the living nodes know it.
    pub fn replica_of(&self, master: &RedisServer) -> Option<&RedisServer> {
        self.living().filter(|node| node.port() != master.port()).find(|node| {
            let views = views(node);
            let own = views.iter().find(|view| view.has("myself") && view.has("slave"));
            let of = own.and_then(|own| views.iter().find(|view| view.id == own.master));
            of.is_some_and(|of| of.port == master.port())
        })
    }

    /// Makes the replica of a living master the master (`CLUSTER FAILOVER`), and waits for it.
    ///
    /// # Panics
    /// If it does not become one.
    pub fn failover(&self, master: &RedisServer) -> &RedisServer {
        let replica = self.replica_of(master).expect("a replica of the master");
        replica.wait_for("role of a master", || {
            if replica.info("role")? == "master" {
                return Some(());
            }
            // Refused until the replica has seen its master; harmless while it is under way.
            replica.ask(&["CLUSTER", "FAILOVER"]);
            None
        });
        self.wait_until_ready();
        replica
    }

    /// Moves a slot with its keys.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn migrate_slot(&self, slot: u16, from: &RedisServer, to: &RedisServer) {
        self.begin_migration(slot, from, to);
        self.move_keys(slot, from, to);
        self.end_migration(slot, from, to);
    }

    /// Says to both nodes that a slot moves: from now on `from` answers `ASK` for keys that it does not have.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn begin_migration(&self, slot: u16, from: &RedisServer, to: &RedisServer) {
        let slot = slot.to_string();
        // In this order: `from` must not send anybody to a node that refuses.
        to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    }

    /// Moves the keys of a slot that moves, and returns how many there were.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn move_keys(&self, slot: u16, from: &RedisServer, to: &RedisServer) -> usize {
        let mut count = 0;
        loop {
            let found = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &KEYS_MAX.to_string()]);
            if found.parts().is_empty() {
                return count;
            }
            let port = to.port().to_string();
            let mut command: Vec<&[u8]> =
                vec![b"MIGRATE", b"127.0.0.1", port.as_bytes(), b"", b"0", b"5000", b"KEYS"];
            let keys = found
                .parts()
                .iter()
                .filter_map(|key| if let Reply::Bytes(key) = key { Some(key) } else { None });
            command.extend(keys.map(Vec::as_slice));
            let moved = from.ask(&command).to_string();
            assert!(moved == "OK" || moved == "NOKEY", "MIGRATE: {moved}");
            count += found.parts().len();
        }
    }

    /// Gives a slot that moves to its new node, and waits until every living node knows. Keys that `from` still has are lost to clients: move
    /// them first.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn end_migration(&self, slot: u16, from: &RedisServer, to: &RedisServer) {
        let to_id = id(to);
        let others = self.living().filter(|node| ![from.port(), to.port()].contains(&node.port()));
        let masters = others.filter(|node| node.info("role").is_some_and(|role| role == "master"));
        // The new owner first, which raises its epoch: else the slot would be nobody's for a moment.
        for node in [to, from].into_iter().chain(masters) {
            node.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &to_id]);
        }
        for node in self.living() {
            node.wait_for("news of the slot", || {
                views(node).iter().any(|view| view.id == to_id && view.slots.contains(&slot)).then_some(())
            });
        }
    }

    /// Waits until each living node finds the cluster complete: each slot has a master, and every living node
    /// is one of three masters or a replica that follows one.
    ///
    /// # Panics
    /// If it does not become so.
    pub fn wait_until_ready(&self) {
        let living: Vec<u16> = self.living().map(RedisServer::port).collect();
        for node in self.living() {
            node.wait_for("complete cluster", || {
                let is_ok = node.ask(&["CLUSTER", "INFO"]).to_string().contains("cluster_state:ok");
                let mut views = views(node);
                views.retain(|view| living.contains(&view.port));
                let bad = ["fail", "fail?", "handshake", "noaddr"];
                let is_whole = !views.iter().any(|view| bad.iter().any(|bad| view.has(bad)));
                let masters = views.iter().filter(|view| view.has("master")).count();
                (is_ok && is_whole && views.len() == living.len() && masters == MASTERS).then_some(())
            });
            if node.info("role").is_some_and(|role| role == "slave") {
                node.wait_until_linked();
            }
        }
    }

    /// The nodes whose processes run.
    fn living(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.runs())
    }

    /// The living master that says that it has a slot; of several that of the latest epoch.
    fn owner(&self, slot: u16) -> Option<&RedisServer> {
        let owners = self.living().filter_map(|node| {
            let own = views(node).into_iter().find(|view| view.has("myself"))?;
            (own.has("master") && own.slots.contains(&slot)).then_some((own.epoch, node))
        });
        owners.max_by_key(|(epoch, _)| *epoch).map(|(_, node)| node)
    }
}

/// What a node says about a node.
struct View {
    id: String,
    port: u16,
    flags: Vec<String>,
    master: String,
    epoch: u64,
    slots: Vec<u16>,
}

impl View {
    /// Reads a line of `CLUSTER NODES`: id, address, flags, master, ping, pong, epoch, link, slots …
    fn parse(line: &str) -> Option<View> {
        let fields: Vec<&str> = line.split(' ').collect();
        let port = fields.get(1)?.split('@').next()?.rsplit(':').next()?.parse().ok()?;
        // Slots in brackets are on the move.
        let ranges = fields.get(8..).unwrap_or_default().iter().filter(|range| !range.starts_with('['));
        let slots = ranges.filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
        });
        Some(View {
            id: fields[0].to_owned(),
            port,
            flags: fields.get(2)?.split(',').map(str::to_owned).collect(),
            master: (*fields.get(3)?).to_owned(),
            epoch: fields.get(6)?.parse().ok()?,
            slots: slots.flatten().collect(),
        })
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }
}

/// What a node says about all nodes; nothing where it does not answer.
fn views(node: &RedisServer) -> Vec<View> {
    let answer = node.connect().and_then(|mut connection| connection.ask(&["CLUSTER", "NODES"]));
    let Ok(text) = answer.map(|answer| answer.to_string()) else { return Vec::new() };
    text.lines().filter_map(View::parse).collect()
}

/// The id of a node.
fn id(node: &RedisServer) -> String {
    node.command(&["CLUSTER", "MYID"])
}
