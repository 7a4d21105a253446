//! The engines: real servers with the durability that their pages ask for, and what they may keep when nobody uses them any more.

mod leftovers;

use std::time::Duration;

use tenure::Tenure;
use tenure_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdServer};
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tenure_testkit::redis::{Fsync, RedisOptions, RedisServer};
use tenure_testkit::zookeeper::{ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer};
use tenure_testkit::{Proxy, Server, TestDirectory};

use crate::schedule::Trouble;

pub(crate) use leftovers::Leftovers;

/// How many servers make a quorum of Redlock's.
const QUORUM: usize = 5;
/// The longest ttl of that quorum. A server that has started anew does not count for 2 s more.
const QUORUM_TTL_MAX: &str = "max_ttl=2s";
/// The tick of ZooKeeper's servers here.
const TICK: Duration = Duration::from_millis(200);

/// Leases of etcd's last for an election timeout more, and ZooKeeper's servers look for empty names each second.
const SLACK: Duration = Duration::from_secs(4);

/// What there is of it.
enum Store {
    Local(TestDirectory),
    Redis(RedisServer),
    Redlock(Vec<RedisServer>),
    Etcd(EtcdCluster),
    ZooKeeper(ZooKeeperEnsemble),
    Postgres(PostgresServer),
    MariaDb(MariaDbServer),
}

/// An engine with servers of its own, which end with this value.
pub(crate) struct Engine {
    store: Store,
    /// Its variant, as people call it.
    pub(crate) name: &'static str,
    pub(crate) ttl: Duration,
    /// The least time between two restarts of its servers.
    pub(crate) restart_every: Duration,
    /// How much longer than a ttl claims of dead clients may stay.
    pub(crate) slack: Duration,
    pub(crate) has_semaphores: bool,
    pub(crate) has_queues: bool,
}

/// The names of all.
pub(crate) const NAMES: [&str; 8] =
    ["local", "redis", "redis-forgetful", "redlock", "zookeeper", "etcd", "postgres", "mysql"];

impl Engine {
    /// Starts the servers of an engine.
    ///
    /// # Errors
    /// If there is none of that name.
    ///
    /// # Panics
    /// If its servers do not start.
    pub(crate) fn start(name: &str) -> Result<Engine, String> {
        let (store, ttl_ms, restart_every_s) = match name {
            "local" => (Store::Local(TestDirectory::new()), 1000, 0),
            "redis" => {
                let options = RedisOptions::default().persistent(Fsync::Always);
                (Store::Redis(RedisServer::start(options)), 1000, 9)
            }
            // A restart forgets every hold, as the page says. Here it is seen that the checkers find that.
            "redis-forgetful" => (Store::Redis(RedisServer::start(RedisOptions::default())), 1000, 2),
            "redlock" => {
                // Without persistence: a server that forgets does not count until it can do no harm. That is promised.
                let start = |_| RedisServer::start(RedisOptions::default());
                (Store::Redlock((0..QUORUM).map(start).collect()), 1000, 8)
            }
            "zookeeper" => {
                let options = ZooKeeperOptions::default().tick(TICK);
                (Store::ZooKeeper(ZooKeeperEnsemble::start(&options)), 2000, 15)
            }
            "etcd" => (Store::Etcd(EtcdCluster::start(&EtcdOptions::default())), 2000, 12),
            "postgres" => (Store::Postgres(PostgresServer::start(&PostgresOptions::default())), 2000, 12),
            "mysql" => (Store::MariaDb(MariaDbServer::start(&MariaDbOptions::default())), 2000, 12),
            _ => return Err(format!("there is no engine {name:?}: one of {}", NAMES.join(", "))),
        };
        let is_local = matches!(store, Store::Local(_));
        let is_redlock = matches!(store, Store::Redlock(_));
        let engine = Engine {
            store,
            name: NAMES.into_iter().find(|known| *known == name).unwrap_or_default(),
            ttl: Duration::from_millis(ttl_ms),
            restart_every: Duration::from_secs(restart_every_s),
            slack: if is_local { Duration::ZERO } else { SLACK },
            // Redlock says why on its page.
            has_semaphores: !is_redlock,
            has_queues: !is_redlock,
        };
        if is_redlock {
            pollster::block_on(engine.connect().migrate()).expect("all servers of the quorum are there");
        }
        Ok(engine)
    }

    /// Returns the ports of its servers; none for one without.
    pub(crate) fn ports(&self) -> Vec<u16> {
        match &self.store {
            Store::Local(_) => Vec::new(),
            Store::Redis(server) => vec![server.port()],
            Store::Redlock(servers) => servers.iter().map(RedisServer::port).collect(),
            Store::Etcd(cluster) => cluster.servers().iter().map(EtcdServer::port).collect(),
            Store::ZooKeeper(ensemble) => ensemble.servers().iter().map(ZooKeeperServer::port).collect(),
            Store::Postgres(server) => vec![server.port()],
            Store::MariaDb(server) => vec![server.port()],
        }
    }

    /// Returns the URL by which a client finds it behind these ports.
    pub(crate) fn url(&self, ports: &[u16]) -> String {
        let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let hosts = hosts.join(",");
        match &self.store {
            Store::Local(directory) => format!("local:{}", directory.path().join("store").display()),
            Store::Redis(_) => format!("redis://{hosts}"),
            Store::Redlock(_) => format!("redlock://{hosts}?{QUORUM_TTL_MAX}"),
            Store::Etcd(_) => format!("etcd://{hosts}"),
            Store::ZooKeeper(_) => {
                let (timeout_ms, tick_ms) = (self.ttl.as_millis(), TICK.as_millis());
                format!("zookeeper://{hosts}/locks?session_timeout={timeout_ms}ms&tick={tick_ms}ms")
            }
            Store::Postgres(_) => format!("postgres://postgres@{hosts}/postgres"),
            Store::MariaDb(_) => format!("mysql://root@{hosts}/test"),
        }
    }

    /// Connects around all proxies.
    ///
    /// # Panics
    /// If it cannot.
    pub(crate) fn connect(&self) -> Tenure {
        pollster::block_on(tenure::connect(&self.url(&self.ports()))).expect("the servers answer")
    }

    /// Stops a server's process for a while. It keeps its connections.
    pub(crate) fn hang(&self, server: usize, period: Duration) {
        let server: &Server = match &self.store {
            Store::Local(_) => return,
            Store::Redis(server) => server,
            Store::Redlock(servers) => &servers[server],
            Store::Etcd(cluster) => &cluster.servers()[server],
            Store::ZooKeeper(ensemble) => &ensemble.servers()[server],
            Store::Postgres(server) => server,
            Store::MariaDb(server) => server,
        };
        server.stop();
        std::thread::sleep(period);
        server.cont();
    }

    /// Kills a server, starts it again with the same files, and waits until it answers.
    pub(crate) fn restart(&self, server: usize) {
        match &self.store {
            Store::Local(_) => {}
            Store::Redis(server) => server.restart(),
            Store::Redlock(servers) => servers[server].restart(),
            Store::Etcd(cluster) => cluster.servers()[server].restart(),
            Store::ZooKeeper(ensemble) => ensemble.restart(server),
            Store::Postgres(server) => server.restart(),
            Store::MariaDb(server) => server.restart(),
        }
    }
}

/// The way of one client to all servers.
pub(crate) struct Way(Vec<Proxy>);

impl Way {
    /// Puts a proxy before each server.
    pub(crate) fn to(engine: &Engine) -> Way {
        Way(engine.ports().into_iter().map(|port| Proxy::start(([127, 0, 0, 1], port))).collect())
    }

    /// Returns the ports of the proxies.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.0.iter().map(Proxy::port).collect()
    }

    /// Resets all connections.
    pub(crate) fn cut(&self) {
        self.0.iter().for_each(Proxy::cut);
    }

    /// Troubles all connections.
    pub(crate) fn trouble(&self, trouble: Trouble) {
        for proxy in &self.0 {
            match trouble {
                Trouble::Delay(by) => proxy.delay(by),
                Trouble::LosesReplies => proxy.drop_replies(),
                Trouble::LosesRequests => proxy.drop_requests(),
                Trouble::Silent => proxy.black_hole(),
                Trouble::HoldsBack => proxy.hold_back(),
                Trouble::Refuses => proxy.refuse(),
            }
        }
    }

    /// Ends what troubles them.
    pub(crate) fn heal(&self) {
        self.0.iter().for_each(Proxy::heal);
    }
}
