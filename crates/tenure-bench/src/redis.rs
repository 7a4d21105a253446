//! The engine `redis` on one server without persistence, beside other locks on the same server.
//!
//! Where there are two processors, the server has one for itself and the clients the other, so that neither is
//! measured while it waits for the other's turn. All users are tasks on one thread.

mod contended;
mod hand_over;
mod million;
mod peers;
mod queue;
mod uncontended;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use tenure_testkit::redis::{RedisOptions, RedisServer};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::measure::{cpu, now};

pub(crate) use contended::contended;
pub(crate) use hand_over::hand_over;
pub(crate) use million::a_million_leases;
pub(crate) use queue::queue;
pub(crate) use uncontended::{counted, uncontended};

/// How a task ends.
type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;
/// The users of a lock, each a task that goes on until it is dropped.
type Users = JoinSet<Done>;

/// How long users run before they are measured.
const WARM_UP: Duration = Duration::from_millis(300);

/// A server on one processor, and this process on another, until this value ends.
struct Place {
    server: RedisServer,
    /// Where this process may run otherwise.
    everywhere: CpuSet,
}

impl Place {
    fn start() -> Result<Place, Box<dyn std::error::Error>> {
        let server = RedisServer::start(RedisOptions::default());
        let everywhere = sched_getaffinity(None)?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| everywhere.is_set(*cpu));
        if let (Some(servers), Some(clients)) = (allowed.next(), allowed.next()) {
            let only = |cpu| {
                let mut set = CpuSet::new();
                set.set(cpu);
                set
            };
            let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
            sched_setaffinity(pid, &only(servers))?;
            sched_setaffinity(None, &only(clients))?;
        }
        Ok(Place { server, everywhere })
    }

    /// Forgets what the users of the last measurement left behind, who were dropped as they held locks.
    fn clear(&self) {
        self.server.command(&["FLUSHALL"]);
    }

    fn url(&self) -> String {
        self.server.url()
    }

    /// Opens a connection of redis-rs, as our engine has one: without a timeout of its own.
    async fn connection(&self) -> redis::RedisResult<MultiplexedConnection> {
        let client = redis::Client::open(format!("{}?protocol=resp3", self.url()))?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    fn usage(&self) -> Usage {
        Usage { text: self.server.command(&["INFO", "everything"]), client: cpu(), at: now().nanos() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // It was possible before.
        sched_setaffinity(None, &self.everywhere).ok();
    }
}

/// What a server and this process have used so far.
struct Usage {
    text: String,
    client: Duration,
    at: u64,
}

impl Usage {
    fn field(&self, name: &str) -> &str {
        let found = self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or_default().trim()
    }

    /// The server's processor time, in seconds.
    fn server(&self) -> f64 {
        ["used_cpu_user", "used_cpu_sys"].iter().filter_map(|name| self.field(name).parse::<f64>().ok()).sum()
    }

    /// How often these commands were called, by clients or by scripts.
    fn calls(&self, commands: &[&str]) -> u64 {
        let calls = |command: &&str| {
            let field = self.field(&format!("cmdstat_{command}")).strip_prefix("calls=")?;
            field.split(',').next()?.parse::<u64>().ok()
        };
        commands.iter().filter_map(calls).sum()
    }

    /// The bytes that the server's data take.
    fn memory(&self) -> u64 {
        self.field("used_memory").parse().unwrap_or(0)
    }
}

/// Counts what users do.
struct Tally {
    holds: Vec<AtomicU64>,
    last_owner: AtomicUsize,
    owner_changes: AtomicU64,
}

impl Tally {
    fn new(users: usize) -> Arc<Tally> {
        let holds = (0..users).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Tally { holds, last_owner: AtomicUsize::new(usize::MAX), owner_changes: AtomicU64::new(0) })
    }

    /// A user holds the lock.
    fn held_by(&self, user: usize) {
        self.holds[user].fetch_add(1, Ordering::Relaxed);
        if self.last_owner.swap(user, Ordering::Relaxed) != user {
            self.owner_changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn holds(&self) -> Vec<u64> {
        self.holds.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

/// What was done in a measured period.
struct Measured {
    seconds: f64,
    /// How often each user held a lock.
    holds: Vec<u64>,
    owner_changes: u64,
    /// Processor time, in seconds.
    server: f64,
    client: f64,
    calls: u64,
}

impl Measured {
    fn total(&self) -> f64 {
        self.holds.iter().sum::<u64>() as f64
    }

    fn rate(&self) -> f64 {
        self.total() / self.seconds
    }
}

/// All users on the thread that waits for them. The lock with `BLPOP` does best so: with a worker thread, who releases
/// it takes it again before anybody else, ten times over.
fn one_thread() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// What `#[tokio::main]` makes of one processor. To wake a task from elsewhere costs less than with [`one_thread`].
fn one_worker() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

/// Measures users for a while. `commands` are those that only their clients call.
async fn measure(
    place: &Place,
    tally: &Tally,
    mut users: Users,
    period: Duration,
    commands: &[&str],
) -> Result<Measured, Box<dyn std::error::Error>> {
    pause(WARM_UP).await;
    let (before, holds_before) = (place.usage(), tally.holds());
    let changes_before = tally.owner_changes.load(Ordering::Relaxed);
    pause(period).await;
    let (after, holds) = (place.usage(), tally.holds());
    let owner_changes = tally.owner_changes.load(Ordering::Relaxed) - changes_before;
    if let Some(ended) = users.try_join_next() {
        return Err(format!("a user has ended: {ended:?}").into());
    }
    users.shutdown().await;
    Ok(Measured {
        seconds: (after.at - before.at) as f64 / 1e9,
        holds: holds.iter().zip(holds_before).map(|(after, before)| after - before).collect(),
        owner_changes,
        server: after.server() - before.server(),
        client: (after.client - before.client).as_secs_f64(),
        calls: after.calls(commands) - before.calls(commands),
    })
}

/// Lets other tasks run for a while.
#[allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]
fn pause(period: Duration) -> impl Future<Output = ()> {
    tokio::time::sleep(period)
}
