//! What servers still keep open when all clients have ended: connections, subscriptions, sessions.

use std::time::Duration;

use tenure_testkit::etcd::EtcdServer;
use tenure_testkit::redis::RedisServer;
use tenure_testkit::{SqlConnection, SqlError};

use super::{Engine, Store};
use crate::history::now;

/// How long servers may take to notice that a client has ended.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);
/// How long an etcd lease may last that a client had begun and not yet used when it was killed: that of claims that have ended is the longest.
const UNUSED_MAX: Duration = Duration::from_secs(120);
const UNUSED: &str = "an empty lease: ";

impl Engine {
    /// Looks what is still open, until it is nothing or a time is over.
    pub(crate) fn open(&self) -> Vec<String> {
        let began = now();
        loop {
            let open = self.open_now();
            // What ends by itself is left only if it does not.
            let ends_within =
                if open.iter().any(|told| told.starts_with(UNUSED)) { UNUSED_MAX } else { Duration::ZERO };
            if open.is_empty() || now() - began > (ends_within + NOTICED_WITHIN).as_nanos() as u64 {
                return open;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn open_now(&self) -> Vec<String> {
        match &self.store {
            // The kernel closes what it has.
            Store::Local(_) => Vec::new(),
            Store::Redis(server) => of_redis(server),
            Store::Redlock(servers) => servers.iter().flat_map(of_redis).collect(),
            Store::Etcd(cluster) => of_etcd(&cluster.servers()[0]),
            Store::Postgres(server) => of_postgres(server.connect()),
            Store::Pair(pair) => of_postgres(pair.primary().connect()),
            Store::MariaDb(server) => ask(
                server.connect(),
                "SELECT concat(user, ' ', coalesce(info, '')) FROM information_schema.processlist \
                 WHERE user = 'root' AND id <> connection_id()",
            ),
            // Their servers have connections among themselves, and a pooler keeps its own.
            Store::Replicas { .. } | Store::Sentinel(_) | Store::Cluster(_) => Vec::new(),
            Store::PgBouncer(..) => Vec::new(),
            // A session that has ended takes along what its client had, which is looked for by itself.
            Store::ZooKeeper(_) => Vec::new(),
        }
    }
}

fn of_redis(server: &RedisServer) -> Vec<String> {
    let lines = |command: &[&str], what: &str| -> Vec<String> {
        let answer = server.command(command);
        answer.lines().filter(|line| !line.is_empty()).map(|line| format!("{what} {line}")).collect()
    };
    let mut open = lines(&["PUBSUB", "CHANNELS"], "channel");
    open.extend(lines(&["PUBSUB", "SHARDCHANNELS"], "channel"));
    // But for the one that asks.
    let others = lines(&["CLIENT", "LIST"], "connection");
    open.extend(others.into_iter().filter(|line| !line.contains("cmd=client")));
    open
}

/// Leases without keys.
fn of_etcd(server: &EtcdServer) -> Vec<String> {
    let leases = server.ctl(&["lease", "list"]);
    let ids = leases.lines().map(str::trim).filter(|line| line.len() == 16 && !line.contains(' '));
    let has_keys = |id: &str| server.ctl(&["lease", "timetolive", id, "--keys"]);
    // Clocks of queues that an election has ended, too, stay for 400 days.
    let is_clock = |told: &String| told.contains("granted with TTL(34560000s)");
    let told = ids.map(has_keys).filter(|told| told.contains("attached keys([])") && !is_clock(told));
    told.map(|told| format!("{UNUSED}{}", told.trim())).collect()
}

fn of_postgres(connection: Result<SqlConnection, SqlError>) -> Vec<String> {
    ask(
        connection,
        "SELECT state || ' ' || query FROM pg_stat_activity \
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() \
         UNION ALL SELECT 'advisory lock ' || objid FROM pg_locks WHERE locktype = 'advisory'",
    )
}

fn ask(connection: Result<SqlConnection, SqlError>, statement: &str) -> Vec<String> {
    let rows = connection.expect("the server answers").run(statement).rows;
    rows.into_iter().map(|row| row.into_iter().flatten().collect()).collect()
}
