//! The engines: real servers with the durability that their pages ask for, what is broken there, what that may cost, and what they may
//! keep when nobody uses them any more.

mod connections;
mod faults;
mod leftovers;
mod way;

use std::time::Duration;

use tenure::Tenure;
use tenure_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdServer};
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};
use tenure_testkit::postgres::{PgBouncer, PostgresOptions, PostgresPair, PostgresServer};
use tenure_testkit::redis::{Fsync, RedisCluster, RedisOptions, RedisSentinel, RedisServer, Sentinel};
use tenure_testkit::zookeeper::{ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer};
use tenure_testkit::{Proxy, TestDirectory, wait_for};

use crate::promise::Promises;
use crate::schedule::Planned;

pub(crate) use leftovers::Leftovers;
pub(crate) use way::Way;

/// How many servers make a quorum of Redlock's.
const QUORUM: usize = 5;
/// The longest ttl of that quorum. A server that has started anew does not count for 2 s more.
const QUORUM_TTL_MAX: &str = "max_ttl=2s";
/// How large a disk is that is to be full: three times what a fresh server needs.
const DISK_MEGABYTES: u32 = 80;
/// The tick of ZooKeeper's servers here.
const TICK: Duration = Duration::from_millis(200);

/// Leases of etcd's last for an election timeout more, and ZooKeeper's servers look for empty names each second.
const SLACK: Duration = Duration::from_secs(4);

/// An engine, as it is asked for.
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    ttl_ms: u64,
    /// The least time between two faults that take its servers away.
    restart_every_s: u64,
    /// The faults that take servers away, and those that are over at once.
    heavy: &'static [&'static str],
    light: &'static [&'static str],
    /// Faults that come only if they are asked for, since more is counted then, or since others cannot come beside them.
    pub(crate) extra: &'static [&'static str],
    /// What its page says that a fault may cost; everything else must not be found.
    costs: &'static [(&'static [&'static str], Promises)],
}

const NOTHING: Variant =
    Variant { name: "", ttl_ms: 1000, restart_every_s: 0, heavy: &[], light: &[], extra: &[], costs: &[] };

/// "the server's clock being set ahead by more than what is left of a ttl". Dedup ids end early then, too.
const CLOCK: &[(&[&str], Promises)] = &[(&["clock"], Promises::BUT_TIME)];

/// "A step back makes them longer, and the tokens of groups that were empty may be smaller, unless the client knows the last one."
const CLOCK_OF_SQL: &[(&[&str], Promises)] = &[(&["clock"], Promises::BUT_TIME_AND_GROUPS)];

/// All engines.
pub(crate) const ENGINES: [Variant; 13] = [
    Variant { name: "local", ..NOTHING },
    // "one, `appendfsync always` | its disk is lost".
    Variant {
        name: "redis",
        restart_every_s: 9,
        heavy: &["restart", "restart", "hang"],
        light: &["kick", "scripts"],
        extra: &["clock"],
        costs: CLOCK,
        ..NOTHING
    },
    // "one, no persistence | it restarts: it has forgotten every hold": it is seen that this is found.
    Variant {
        name: "redis-forgetful",
        restart_every_s: 2,
        heavy: &["restart", "restart", "hang"],
        light: &["kick", "scripts"],
        extra: &["flush"],
        costs: &[(&["restart", "flush"], Promises::BUT_MEMORY)],
        ..NOTHING
    },
    // A replica that must acknowledge grants, and never takes over.
    Variant {
        name: "redis-replicas",
        restart_every_s: 6,
        heavy: &["restart", "hang", "lag", "lag"],
        light: &["kick", "scripts"],
        ..NOTHING
    },
    // "a failover: what the new master had not received is forgotten, and a master that is cut off goes on granting on its side". A
    // master that is away for a second is replaced, also where it would come back.
    Variant {
        name: "redis-sentinel",
        ttl_ms: 2000,
        restart_every_s: 15,
        heavy: &["failover", "lagging", "handover", "link", "link", "lag", "hang", "restart"],
        light: &["kick", "scripts"],
        costs: &[(&["failover", "lagging", "handover", "link", "hang", "restart"], Promises::BUT_MEMORY)],
        ..NOTHING
    },
    // "as Sentinel, for the slots of each master". A replica that is asked to take over (`CLUSTER FAILOVER`) has all first, and a slot
    // that moves takes its keys along.
    Variant {
        name: "redis-cluster",
        ttl_ms: 2000,
        restart_every_s: 8,
        heavy: &["failover", "handover", "slots", "slots", "hang", "restart"],
        light: &["kick", "scripts"],
        costs: &[(&["failover", "hang", "restart"], Promises::BUT_MEMORY)],
        ..NOTHING
    },
    // Servers without persistence: one that forgets does not count until it can do no harm. That is promised.
    Variant {
        name: "redlock",
        restart_every_s: 8,
        heavy: &["restart", "restart", "hang"],
        light: &["kick", "scripts"],
        extra: &["clock"],
        costs: CLOCK,
        ..NOTHING
    },
    Variant {
        name: "zookeeper",
        ttl_ms: 2000,
        restart_every_s: 15,
        heavy: &["restart", "hang", "failover", "link"],
        ..NOTHING
    },
    Variant {
        name: "etcd",
        ttl_ms: 2000,
        restart_every_s: 12,
        heavy: &["restart", "hang", "failover", "handover", "link", "link"],
        light: &["compact"],
        // "A new leader gives all leases their whole ttl again": those on which values lie, too.
        costs: &[(&["failover", "handover", "restart", "hang", "link"], Promises::BUT_AGES)],
        ..NOTHING
    },
    Variant {
        name: "postgres",
        ttl_ms: 2000,
        restart_every_s: 12,
        heavy: &["restart", "restart", "hang"],
        light: &["kick"],
        extra: &["clock", "disk"],
        costs: CLOCK_OF_SQL,
    },
    Variant {
        name: "postgres-pgbouncer",
        ttl_ms: 2000,
        restart_every_s: 12,
        heavy: &["restart", "restart", "hang"],
        light: &["kick"],
        ..NOTHING
    },
    // "with `synchronous_standby_names` | a failover to a standby that is not among them".
    Variant {
        name: "postgres-standby",
        ttl_ms: 2000,
        restart_every_s: 12,
        heavy: &["failover", "failover", "lag", "restart", "hang"],
        light: &["kick"],
        ..NOTHING
    },
    Variant {
        name: "mysql",
        ttl_ms: 2000,
        restart_every_s: 12,
        heavy: &["restart", "restart", "hang"],
        light: &["kick"],
        extra: &["clock"],
        costs: CLOCK_OF_SQL,
    },
];

/// What there is of it.
enum Store {
    Local(TestDirectory),
    Redis(RedisServer),
    Replicas { primary: RedisServer, replica: RedisServer, link: Proxy },
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
    Redlock(Vec<RedisServer>),
    Etcd(EtcdCluster),
    ZooKeeper(ZooKeeperEnsemble),
    Postgres(PostgresServer),
    PgBouncer(PostgresServer, PgBouncer),
    Pair(PostgresPair),
    MariaDb(MariaDbServer),
}

/// An engine with servers of its own, which end with this value.
pub(crate) struct Engine {
    store: Store,
    variant: &'static Variant,
    /// Its variant, as people call it.
    pub(crate) name: &'static str,
    pub(crate) ttl: Duration,
    /// The least time between two faults that take servers away.
    pub(crate) restart_every: Duration,
    /// How much longer than a ttl claims of dead clients may stay.
    pub(crate) slack: Duration,
    pub(crate) heavy: Vec<&'static str>,
    pub(crate) light: Vec<&'static str>,
    pub(crate) has_semaphores: bool,
    pub(crate) has_queues: bool,
}

/// The names of all.
pub(crate) fn names() -> Vec<&'static str> {
    ENGINES.iter().map(|variant| variant.name).collect()
}

impl Engine {
    /// Starts the servers of an engine, which are to suffer some faults more (`clock`) than they do anyway.
    ///
    /// # Errors
    /// If there is none of that name, or it cannot suffer such a fault.
    ///
    /// # Panics
    /// If its servers do not start.
    pub(crate) fn start(name: &str, with: &[String]) -> Result<Engine, String> {
        let variant = ENGINES.iter().find(|variant| variant.name == name);
        let variant =
            variant.ok_or_else(|| format!("there is no engine {name:?}: one of {}", names().join(", ")))?;
        let extra = with.iter().map(|asked| {
            let known = variant.extra.iter().find(|extra| *extra == asked).copied();
            known.ok_or_else(|| {
                format!("there is no fault {asked:?} to add to {name}: one of {:?}", variant.extra)
            })
        });
        let extra: Vec<&'static str> = extra.collect::<Result<_, _>>()?;
        let store = start(variant.name, &extra);
        let (mut heavy, mut light) = (variant.heavy.to_vec(), variant.light.to_vec());
        for kind in extra {
            // A disk that can be full is gone with the server's process.
            match kind {
                "disk" => heavy = vec!["disk", "disk", "hang"],
                _ => light.push(kind),
            }
        }
        let is_local = matches!(store, Store::Local(_));
        let is_redlock = matches!(store, Store::Redlock(_));
        let engine = Engine {
            store,
            variant,
            name: variant.name,
            ttl: Duration::from_millis(variant.ttl_ms),
            restart_every: Duration::from_secs(variant.restart_every_s),
            slack: if is_local { Duration::ZERO } else { SLACK },
            heavy,
            light,
            // Redlock says why on its page.
            has_semaphores: !is_redlock,
            has_queues: !is_redlock,
        };
        if is_redlock {
            pollster::block_on(engine.connect().migrate()).expect("all servers of the quorum are there");
        }
        Ok(engine)
    }

    /// Returns what its page promises while these faults happen.
    pub(crate) fn promises(&self, planned: &[Planned]) -> Promises {
        let costs = self.variant.costs.iter();
        let happen = |kinds: &[&str]| planned.iter().any(|planned| kinds.contains(&planned.fault.kind()));
        costs.filter(|(kinds, _)| happen(kinds)).fold(Promises::ALL, |all, (_, cost)| all.and(*cost))
    }

    /// Returns the ports that clients connect to; none for one without servers.
    pub(crate) fn addresses(&self) -> Vec<u16> {
        match &self.store {
            Store::Local(_) => Vec::new(),
            Store::Redis(server) | Store::Replicas { primary: server, .. } => vec![server.port()],
            // All servers, in the order in which they are announced, and those who say where the master is.
            Store::Sentinel(set) => {
                let servers = set.servers().iter().map(RedisServer::port);
                servers.chain(set.sentinels().iter().map(Sentinel::port)).collect()
            }
            Store::Cluster(cluster) => cluster.nodes().iter().map(RedisServer::port).collect(),
            Store::Redlock(servers) => servers.iter().map(RedisServer::port).collect(),
            Store::Etcd(cluster) => cluster.servers().iter().map(EtcdServer::port).collect(),
            Store::ZooKeeper(ensemble) => ensemble.servers().iter().map(ZooKeeperServer::port).collect(),
            Store::Postgres(server) => vec![server.port()],
            Store::PgBouncer(_, pooler) => vec![pooler.port()],
            Store::Pair(pair) => pair.servers().iter().map(PostgresServer::port).collect(),
            Store::MariaDb(server) => vec![server.port()],
        }
    }

    /// Returns the ports by which the first of its addresses are announced to clients.
    pub(crate) fn announced(&self) -> Vec<u16> {
        match &self.store {
            Store::Sentinel(set) => set.announced(),
            Store::Cluster(_) => self.addresses(),
            _ => Vec::new(),
        }
    }

    /// Returns the URL by which a client finds it, where its addresses have these ports.
    pub(crate) fn url(&self, ports: &[u16]) -> String {
        let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let sentinels = if let Store::Sentinel(set) = &self.store { set.servers().len() } else { 0 };
        let hosts = hosts[sentinels..].join(",");
        match &self.store {
            Store::Local(directory) => format!("local:{}", directory.path().join("store").display()),
            Store::Redis(_) => format!("redis://{hosts}"),
            Store::Replicas { .. } => format!("redis://{hosts}?replicas=1"),
            Store::Sentinel(_) => format!("redis+sentinel://{hosts}/mymaster"),
            Store::Cluster(_) => format!("redis+cluster://{hosts}"),
            Store::Redlock(_) => format!("redlock://{hosts}?{QUORUM_TTL_MAX}"),
            Store::Etcd(_) => format!("etcd://{hosts}"),
            Store::ZooKeeper(_) => {
                let (timeout_ms, tick_ms) = (self.ttl.as_millis(), TICK.as_millis());
                format!("zookeeper://{hosts}/locks?session_timeout={timeout_ms}ms&tick={tick_ms}ms")
            }
            Store::Postgres(_) | Store::Pair(_) => format!("postgres://postgres@{hosts}/postgres"),
            Store::PgBouncer(..) => format!("postgres://postgres@{hosts}/postgres?listen=off"),
            Store::MariaDb(_) => format!("mysql://root@{hosts}/test"),
        }
    }

    /// Connects around all proxies.
    ///
    /// # Panics
    /// If it cannot.
    pub(crate) fn connect(&self) -> Tenure {
        pollster::block_on(tenure::connect(&self.url(&self.addresses()))).expect("the servers answer")
    }
}

/// Starts the servers of an engine, with clocks and disks of their own if these are to suffer.
fn start(name: &str, extra: &[&str]) -> Store {
    let has_clock = extra.contains(&"clock");
    let redis = |options: RedisOptions| RedisServer::start(if has_clock { options.clock() } else { options });
    let persistent = || RedisOptions::default().persistent(Fsync::Always);
    // Tests that take seconds do without. In minutes, the dead rows of busy locks would make every statement slow.
    let postgres = PostgresOptions::default().setting("autovacuum", "on").setting("autovacuum_naptime", "1");
    let postgres = if has_clock { postgres.clock() } else { postgres };
    let postgres = if extra.contains(&"disk") { postgres.disk(DISK_MEGABYTES) } else { postgres };
    match name {
        "local" => Store::Local(TestDirectory::new()),
        "redis" => Store::Redis(redis(persistent())),
        "redis-forgetful" => Store::Redis(redis(RedisOptions::default())),
        "redis-replicas" => replicas(persistent().line("repl-diskless-sync-delay 0")),
        "redis-sentinel" => Store::Sentinel(RedisSentinel::start_separable(&persistent())),
        "redis-cluster" => {
            // As the page asks for: a master that is away stops no others.
            let options = persistent().line("cluster-require-full-coverage no");
            Store::Cluster(RedisCluster::start_with(&options))
        }
        "redlock" => Store::Redlock((0..QUORUM).map(|_| redis(RedisOptions::default())).collect()),
        "zookeeper" => {
            Store::ZooKeeper(ZooKeeperEnsemble::start_separable(&ZooKeeperOptions::default().tick(TICK)))
        }
        "etcd" => Store::Etcd(EtcdCluster::start_separable(&EtcdOptions::default())),
        "postgres" => Store::Postgres(PostgresServer::start(&postgres)),
        "postgres-pgbouncer" => {
            let server = PostgresServer::start(&postgres);
            let pooler = PgBouncer::start(&server);
            Store::PgBouncer(server, pooler)
        }
        "postgres-standby" => Store::Pair(PostgresPair::start(&postgres)),
        "mysql" if has_clock => Store::MariaDb(MariaDbServer::start(&MariaDbOptions::default().clock())),
        "mysql" => Store::MariaDb(MariaDbServer::start(&MariaDbOptions::default())),
        _ => unreachable!("{name} is among the engines, and nobody starts it"),
    }
}

/// A primary and a replica, which follows through a proxy.
fn replicas(options: RedisOptions) -> Store {
    let primary = RedisServer::start(options);
    let link = Proxy::start(([127, 0, 0, 1], primary.port()));
    let replica =
        RedisServer::start(RedisOptions::default().line(format!("replicaof 127.0.0.1 {}", link.port())));
    wait_for("replica that follows", || (primary.info("slave0")?.contains("state=online")).then_some(()));
    Store::Replicas { primary, replica, link }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::KINDS;

    #[test]
    fn the_faults_of_all_engines_are_known() {
        for variant in &ENGINES {
            let costs = variant.costs.iter().flat_map(|(kinds, _)| kinds.iter());
            for kind in [variant.heavy, variant.light, variant.extra].concat().iter().chain(costs) {
                assert!(KINDS.contains(kind), "{}: {kind}", variant.name);
            }
        }
    }
}
