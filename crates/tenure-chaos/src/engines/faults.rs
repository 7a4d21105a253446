//! What is done to the servers of an engine. Each fault is over when its function returns, and the servers are whole again.

use std::thread::sleep;
use std::time::Duration;

use tenure_testkit::etcd::{EtcdCluster, EtcdServer};
use tenure_testkit::mariadb::MariaDbServer;
use tenure_testkit::postgres::{PgBouncer, PostgresServer};
use tenure_testkit::redis::{RedisCluster, RedisSentinel, RedisServer};
use tenure_testkit::zookeeper::{ZooKeeperEnsemble, ZooKeeperServer};
use tenure_testkit::{ServerClock, SqlConnection, SqlError};

use super::{Engine, Store};
use crate::client::QUEUE;
use crate::schedule::Fault;

/// A hash slot's distance to one of another master, as a cluster is begun.
const THIRD: u16 = 5461;
const SLOTS: u16 = 16_384;
/// Names that clients use.
const NAMES: [&str; 8] =
    ["mutex-0", "mutex-1", "mutex-2", "semaphore", "read-write", "election", "pool", QUEUE];

/// How long to wait until a full disk is tried again.
const DROP_EVERY: Duration = Duration::from_millis(50);

/// A server's process.
trait Process {
    /// SIGSTOP, of all its processes.
    fn halt(&self);
    /// SIGCONT.
    fn go_on(&self);
    /// SIGKILL, and a start with the same files; returns when it answers.
    fn start_anew(&self);
}

macro_rules! processes {
    ($($kind:ty),*) => {$(
        impl Process for $kind {
            fn halt(&self) {
                self.stop();
            }

            fn go_on(&self) {
                self.cont();
            }

            fn start_anew(&self) {
                self.restart();
            }
        }
    )*};
}
processes!(RedisServer, EtcdServer, ZooKeeperServer, PostgresServer, PgBouncer, MariaDbServer);

fn all<P: Process>(servers: &[P]) -> Vec<&dyn Process> {
    servers.iter().map(|server| server as &dyn Process).collect()
}

impl Engine {
    /// Returns how many processes its servers are.
    pub(crate) fn servers(&self) -> usize {
        self.processes().len()
    }

    fn processes(&self) -> Vec<&dyn Process> {
        match &self.store {
            Store::Local(_) => Vec::new(),
            Store::Redis(server) => vec![server],
            Store::Replicas { primary, replica, .. } => vec![primary, replica],
            Store::Sentinel(set) => all(set.servers()),
            Store::Cluster(cluster) => all(cluster.nodes()),
            Store::Redlock(servers) => all(servers),
            Store::Etcd(cluster) => all(cluster.servers()),
            Store::ZooKeeper(ensemble) => all(ensemble.servers()),
            Store::Postgres(server) => vec![server],
            Store::PgBouncer(server, pooler) => vec![server, pooler],
            Store::Pair(pair) => all(pair.servers()),
            Store::MariaDb(server) => vec![server],
        }
    }

    /// Does what a fault says, and returns when the servers are whole again.
    ///
    /// # Panics
    /// If they do not become whole, or it is not a fault of servers.
    pub(crate) fn break_servers(&self, fault: Fault) {
        match fault {
            Fault::Restart { server } => self.restart(server),
            Fault::Hang { server, period } => {
                let server = self.processes()[server];
                server.halt();
                sleep(period);
                server.go_on();
            }
            Fault::Failover { of } => self.fail_over(of),
            Fault::LaggingFailover { by } => self.fail_over_lagging(by),
            Fault::HandOver { of } => self.hand_over(of),
            Fault::CutOff { server, period } => self.cut_off(server, period),
            Fault::LeaveBehind { period } => self.leave_behind(period),
            Fault::MoveSlot { of, period } => {
                if let Store::Cluster(cluster) = &self.store {
                    move_slot(cluster, slot(cluster, of), period);
                }
            }
            Fault::FillDisk { period } => {
                if let Store::Postgres(server) = &self.store {
                    fill_disk(server, period);
                }
            }
            Fault::Kick { messages } => self.kick(messages),
            Fault::ForgetScripts => {
                for command in [["FUNCTION", "FLUSH"], ["SCRIPT", "FLUSH"]] {
                    self.tell_redis(&command);
                }
            }
            Fault::ForgetAll => self.tell_redis(&["FLUSHALL"]),
            Fault::Compact => {
                if let Store::Etcd(cluster) = &self.store {
                    compact(cluster);
                }
            }
            Fault::SetAhead { server, by } => self.clock(server).advance(by),
            Fault::SetBack { server, by } => self.clock(server).step_back(by),
            Fault::Stop { .. } | Fault::Kill { .. } | Fault::Cut { .. } | Fault::Trouble { .. } => {
                unreachable!("{fault} is no fault of servers")
            }
        }
        // A master that was away may have been replaced meanwhile, and follows.
        match &self.store {
            Store::Sentinel(set) => set.wait_until_ready(),
            Store::Cluster(cluster) => cluster.wait_until_ready(),
            Store::Pair(pair) => pair.wait_until_ready(),
            _ => {}
        }
    }

    fn restart(&self, server: usize) {
        match &self.store {
            Store::ZooKeeper(ensemble) => ensemble.restart(server),
            _ => self.processes()[server].start_anew(),
        }
    }

    fn fail_over(&self, of: usize) {
        match &self.store {
            Store::Sentinel(set) => kill_master(set),
            Store::Cluster(cluster) => {
                let slot = slot(cluster, of);
                let old = cluster.node_of_slot(slot);
                old.kill();
                cluster.wait_for_new_master(slot, old);
                old.restart();
            }
            Store::Etcd(cluster) => {
                let old = cluster.leader();
                cluster.servers()[old].kill();
                cluster.wait_for_new_leader(old);
                cluster.servers()[old].restart();
            }
            Store::ZooKeeper(ensemble) => {
                let old = ensemble.leader();
                ensemble.servers()[old].kill();
                ensemble.wait_for_new_leader(old);
                ensemble.restart(old);
            }
            Store::Pair(pair) => pair.failover(),
            _ => unreachable!("{} has one server in charge", self.name),
        }
    }

    fn fail_over_lagging(&self, by: Duration) {
        let Store::Sentinel(set) = &self.store else { unreachable!("no replica of {} lags", self.name) };
        set.leave_behind(master(set));
        sleep(by);
        kill_master(set);
        set.heal();
    }

    fn hand_over(&self, of: usize) {
        match &self.store {
            Store::Sentinel(set) => drop(set.failover()),
            Store::Cluster(cluster) => {
                cluster.failover(cluster.node_of_slot(slot(cluster, of)));
            }
            Store::Etcd(cluster) => {
                let old = cluster.leader();
                cluster.move_leader((old + 1 + of % 2) % cluster.servers().len());
            }
            _ => unreachable!("{} cannot be asked to put another server in charge", self.name),
        }
    }

    fn cut_off(&self, server: Option<usize>, period: Duration) {
        match &self.store {
            Store::Sentinel(set) => {
                set.cut_off(server.unwrap_or_else(|| master(set)));
                sleep(period);
                set.heal();
            }
            Store::Etcd(cluster) => {
                cluster.cut_off(server.unwrap_or_else(|| cluster.leader()));
                sleep(period);
                cluster.heal();
                cluster.leader();
            }
            Store::ZooKeeper(ensemble) => {
                ensemble.cut_off(server.unwrap_or_else(|| ensemble.leader()));
                sleep(period);
                ensemble.heal();
                whole(ensemble);
            }
            _ => unreachable!("the servers of {} are not separated", self.name),
        }
    }

    fn leave_behind(&self, period: Duration) {
        match &self.store {
            Store::Replicas { link, .. } => {
                link.black_hole();
                sleep(period);
                link.heal();
            }
            Store::Sentinel(set) => {
                set.leave_behind(master(set));
                sleep(period);
                set.heal();
            }
            Store::Pair(pair) => {
                pair.leave_behind();
                sleep(period);
                pair.heal();
            }
            _ => unreachable!("{} has no replicas that lag", self.name),
        }
    }

    fn kick(&self, messages: bool) {
        let kind = if messages { "pubsub" } else { "normal" };
        let sql = match &self.store {
            Store::Postgres(server) | Store::PgBouncer(server, _) => server.connect().and_then(kick_postgres),
            Store::Pair(pair) => pair.primary().connect().and_then(kick_postgres),
            Store::MariaDb(server) => server.connect().and_then(kick_mariadb),
            _ => return self.tell_redis(&["CLIENT", "KILL", "TYPE", kind]),
        };
        sql.expect("the server answers");
    }

    /// Has each Redis server that answers do something. A replica refuses what it may not do.
    fn tell_redis(&self, command: &[&str]) {
        let servers: Vec<&RedisServer> = match &self.store {
            Store::Redis(server) => vec![server],
            Store::Replicas { primary, .. } => vec![primary],
            Store::Sentinel(set) => set.servers().iter().collect(),
            Store::Cluster(cluster) => cluster.nodes().iter().collect(),
            Store::Redlock(servers) => servers.iter().collect(),
            _ => unreachable!("{} has no Redis servers", self.name),
        };
        servers.into_iter().for_each(|server| drop(server.ask(command)));
    }

    fn clock(&self, server: usize) -> &ServerClock {
        match &self.store {
            Store::Redis(server) => server.clock(),
            Store::Redlock(servers) => servers[server].clock(),
            Store::Postgres(server) => server.clock(),
            Store::MariaDb(server) => server.clock(),
            _ => unreachable!("the clocks of {} are the machine's", self.name),
        }
    }
}

/// The server that the Sentinels name.
fn master(set: &RedisSentinel) -> usize {
    let port = set.master().port();
    set.servers().iter().position(|server| server.port() == port).expect("a server of the set")
}

fn kill_master(set: &RedisSentinel) {
    let old = set.master();
    old.kill();
    set.wait_for_new_master(old);
    old.restart();
}

/// The slot of one of the resources that clients use.
fn slot(cluster: &RedisCluster, of: usize) -> u16 {
    cluster.slot_of(&format!("tenure:{}", NAMES[of % NAMES.len()]))
}

fn move_slot(cluster: &RedisCluster, slot: u16, period: Duration) {
    let from = cluster.node_of_slot(slot);
    let others = [1, 2].map(|thirds| cluster.node_of_slot((slot + thirds * THIRD) % SLOTS));
    let Some(to) = others.into_iter().find(|other| other.port() != from.port()) else { return };
    cluster.begin_migration(slot, from, to);
    sleep(period / 2);
    cluster.move_keys(slot, from, to);
    sleep(period / 2);
    // What was made on the old node meanwhile would be forgotten with it.
    cluster.move_keys(slot, from, to);
    cluster.end_migration(slot, from, to);
}

/// Waits until each server follows or leads.
fn whole(ensemble: &ZooKeeperEnsemble) {
    ensemble.leader();
    for server in ensemble.servers() {
        server.wait_for("mode", || server.mode());
    }
}

fn compact(cluster: &EtcdCluster) {
    let server = &cluster.servers()[0];
    // Any answer tells the revision. Where there is no leader there is none, and nothing to compact.
    let Ok(answer) = server.try_ctl(&["get", "compact", "-w", "json"]) else { return };
    let revision: String = answer.split("\"revision\":").nth(1).unwrap_or_default().to_owned();
    let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
    // Refused where nothing has happened since the last time.
    drop(server.try_ctl(&["compaction", "--physical", &revision]));
    for server in cluster.servers() {
        drop(server.try_ctl(&["defrag"]));
    }
}

fn fill_disk(server: &PostgresServer, period: Duration) {
    let mut connection = server.connect().expect("the server answers");
    connection.run("CREATE TABLE IF NOT EXISTS filler (line text)");
    // Large pieces first, and then what still fits.
    for lines in [10_000, 100, 1] {
        let insert = format!("INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, {lines})");
        while connection.ask(&insert, &[]).is_ok() {}
    }
    sleep(period);
    // Its own record may find no room, until somebody else's transaction has left some.
    while connection.ask("DROP TABLE filler", &[]).is_err() {
        sleep(DROP_EVERY);
    }
}

fn kick_postgres(mut connection: SqlConnection) -> Result<(), SqlError> {
    let kick = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    connection.ask(kick, &[]).map(drop)
}

fn kick_mariadb(mut connection: SqlConnection) -> Result<(), SqlError> {
    let list = "SELECT id FROM information_schema.processlist WHERE user = 'root' AND id <> connection_id()";
    for row in connection.ask(list, &[])?.rows {
        if let Some(Some(id)) = row.first() {
            // It may have ended by itself.
            drop(connection.ask(&format!("KILL {id}"), &[]));
        }
    }
    Ok(())
}
