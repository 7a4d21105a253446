//! What a store keeps when all clients are gone, but for what the engine's page says that it keeps.

use std::fs;

use tenure_testkit::SqlConnection;
use tenure_testkit::redis::RedisServer;

use super::{Engine, Store};
use crate::client::{PACED, QUEUE};

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    /// What should be gone.
    pub(crate) found: Vec<String>,
    /// How much is kept that may be.
    pub(crate) kept: usize,
}

/// Keys of Redis that may outlive their use for a time, which they must have: the last token, claims that have ended, which names have
/// queues or are watched (a quorum's server says `ended` and `followed`); the ends, holds and slots of a pool or a semaphore; what a queue remembers.
const REDIS_KEPT: [&str; 15] = [
    "token",
    "finished",
    "queues",
    "observed",
    "ended:",
    "followed:",
    "e:",
    "h:",
    "s:",
    "b:",
    "d:",
    "t:",
    "z:",
    "j:",
    "u:",
];
/// Those of Redlock that a server keeps for ever.
const REDLOCK_KEPT: [&str; 3] = ["boot", "max", "base"];
/// Where the waiters of one of its resources stand: the next client removes dead ones, and they expire if none comes.
const REDLOCK_LINE: [&str; 3] = ["Q:", "W:", "X:"];
/// Keys of etcd that are kept: heads of queues, their clock and their dedup ids; and, on leases, claims that have ended and marks of
/// clients that used a name alone.
const ETCD_KEPT: [&str; 5] =
    ["tenure/queues/", "tenure/queue-clock", "tenure/done/", "tenure/queue-called/", "tenure/alone/"];
/// Tables that must be empty.
const TABLES: [&str; 3] = ["tenure_queue_item", "tenure_queue_group", "tenure_queue_dead"];

/// Where a database has its holds and waiters, and how it says its time, in microseconds since 1970.
struct Words {
    claims: &'static str,
    now_us: &'static str,
}

const CLAIMS: &str = "(SELECT expires_at FROM tenure_entry UNION ALL \
    SELECT hold_expires_at FROM tenure_resource WHERE hold_claim IS NOT NULL) claims";
const POSTGRES: Words = Words { claims: CLAIMS, now_us: "extract(epoch FROM clock_timestamp()) * 1000000" };
const MARIADB: Words = Words { claims: CLAIMS, now_us: "unix_timestamp(sysdate(6)) * 1000000" };

impl Engine {
    /// Looks for what is left in the store, by its own means and by tenure's.
    pub(crate) fn leftovers(&self) -> Leftovers {
        let mut left = match &self.store {
            Store::Local(directory) => {
                let mut left = Leftovers::default();
                // Those of dead clients go with the next one that connects or waits.
                drop(self.connect());
                for kind in ["alive", "bell"] {
                    let boots = fs::read_dir(directory.path().join("store")).into_iter().flatten().flatten();
                    let files = boots.filter_map(|boot| fs::read_dir(boot.path().join(kind)).ok()).flatten();
                    left.kept += files.count();
                }
                left
            }
            Store::Redis(server) | Store::Replicas { primary: server, .. } => redis(server),
            Store::Sentinel(set) => redis(set.master()),
            Store::Cluster(cluster) => {
                let is_master = |node: &&RedisServer| node.info("role").is_some_and(|role| role == "master");
                together(cluster.nodes().iter().filter(is_master).map(redis))
            }
            Store::Redlock(servers) => together(servers.iter().map(redis)),
            Store::Etcd(cluster) => {
                let keys = cluster.servers()[0].ctl(&["get", "", "--prefix", "--keys-only"]);
                sort(keys.lines().filter(|key| !key.is_empty()), |key| {
                    let is_dedup = ["u", "v"]
                        .iter()
                        .any(|part| key.starts_with(&format!("tenure/queue/{QUEUE}\u{1f}{part}")));
                    is_dedup || ETCD_KEPT.iter().any(|kept| key.starts_with(kept))
                })
            }
            Store::ZooKeeper(ensemble) => {
                let nodes = ensemble.servers()[0].shell(&["ls", "-R", "/locks"]).expect("the server answers");
                // Idle names are removed by the servers, some time after their last claim.
                let claims =
                    nodes.lines().filter(|node| node.starts_with("/locks/") && !node.starts_with("/locks/%"));
                sort(claims, |node| node.matches('/').count() == 2)
            }
            Store::Postgres(server) | Store::PgBouncer(server, _) => {
                sql(server.connect().expect("the server answers"), &POSTGRES)
            }
            Store::Pair(pair) => sql(pair.primary().connect().expect("the server answers"), &POSTGRES),
            Store::MariaDb(server) => sql(server.connect().expect("the server answers"), &MARIADB),
        };
        left.found.extend(self.in_use());
        left
    }

    /// What tenure itself says is held, waited for or in line.
    fn in_use(&self) -> Vec<String> {
        let tenure = self.connect();
        let views = pollster::block_on(tenure.inspect("")).expect("the store answers");
        let used = views.iter().filter(|view| view.used > 0 || view.waiting > 0);
        let mut found: Vec<String> = used
            .map(|view| {
                format!("{:?} {}: {} held, {} wait", view.kind, view.resource, view.used, view.waiting)
            })
            .collect();
        if self.has_queues {
            for queue in [QUEUE, PACED] {
                let stats = pollster::block_on(tenure.queue(queue).stats()).expect("the store answers");
                if stats.waiting + stats.in_flight + stats.dead > 0 {
                    found.push(format!("queue {queue}: {stats:?}"));
                }
            }
        }
        pollster::block_on(tenure.close());
        found
    }
}

fn sort<'a>(names: impl Iterator<Item = &'a str>, is_kept: impl Fn(&str) -> bool) -> Leftovers {
    let mut left = Leftovers::default();
    for name in names {
        if is_kept(name) {
            left.kept += 1;
        } else {
            left.found.push(name.escape_debug().to_string());
        }
    }
    left
}

fn together(each: impl Iterator<Item = Leftovers>) -> Leftovers {
    each.fold(Leftovers::default(), |mut all, one| {
        all.found.extend(one.found);
        all.kept += one.kept;
        all
    })
}

fn redis(server: &RedisServer) -> Leftovers {
    let keys = server.command(&["KEYS", "*"]);
    sort(keys.lines().filter(|key| !key.is_empty()), |key| {
        let Some(what) = key.strip_prefix("tenure.1.") else {
            // The hash of a pool or semaphore, whose holders vanished.
            return server.command(&["TYPE", key]) == "hash" && has_expiry(server, key);
        };
        let is_line = REDLOCK_LINE.iter().any(|line| what.starts_with(line));
        let is_counter =
            what.starts_with("C:") || is_line || REDIS_KEPT.iter().any(|kept| what.starts_with(kept));
        REDLOCK_KEPT.contains(&what) || (is_counter && has_expiry(server, key))
    })
}

fn has_expiry(server: &RedisServer, key: &str) -> bool {
    server.command(&["PTTL", key]) != "-1"
}

fn count(connection: &mut SqlConnection, table: &str) -> usize {
    let answer = connection.run(&format!("SELECT count(*) FROM {table}"));
    answer.first().and_then(|count| count.parse().ok()).unwrap_or_default()
}

fn sql(mut connection: SqlConnection, words: &Words) -> Leftovers {
    let Words { claims, now_us } = *words;
    let mut left = Leftovers::default();
    for table in TABLES {
        let rows = count(&mut connection, table);
        if rows > 0 {
            left.found.push(format!("{table}: {rows} rows"));
        }
    }
    // A claim whose holder vanished, and that nobody asks for again, is cleared away later; it must have ended.
    let live = format!("SELECT expires_at FROM {claims} WHERE expires_at > {now_us}");
    let live = connection.run(&live).rows.len();
    if live > 0 {
        left.found.push(format!("{claims}: {live} rows that have not expired"));
    }
    let mut count = |table: &str| count(&mut connection, table);
    left.kept =
        count(claims) + count("tenure_resource") + count("tenure_finished") + count("tenure_queue_dedup");
    left
}
