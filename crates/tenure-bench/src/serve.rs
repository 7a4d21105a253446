//! `tenure serve` from outside: the command as it is built beside this program on one processor, a Redis without persistence and the clients on
//! the other. The clients speak HTTP/1.1 by hand, so that they cost little.

mod client;
mod drain;
mod gone;
mod hostile;
mod instance;
mod pairs;
mod waiters;
mod watchers;

use std::future::Future;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tenure_testkit::redis::{RedisOptions, RedisServer};

pub(crate) use drain::drain;
pub(crate) use gone::gone;
pub(crate) use hostile::{bodies, loris};
pub(crate) use pairs::pairs;
pub(crate) use waiters::waiters;
pub(crate) use watchers::{looks, streams};

use instance::Instance;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Answer<T> = Result<T, Failure>;

/// A Redis and this process on one processor, and the processor of the instances.
struct Place {
    redis: RedisServer,
    /// Where this process may run otherwise.
    everywhere: CpuSet,
    of_instances: CpuSet,
}

impl Place {
    fn start() -> Answer<Place> {
        // Thousands of connections.
        let files = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum })?;
        let everywhere = sched_getaffinity(None)?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| everywhere.is_set(*cpu));
        let mut of_instances = everywhere;
        if let (Some(first), Some(second)) = (allowed.next(), allowed.next()) {
            of_instances = only(first);
            sched_setaffinity(None, &only(second))?;
        }
        // It runs where this process does.
        let redis = RedisServer::start(RedisOptions::default());
        Ok(Place { redis, everywhere, of_instances })
    }

    /// Starts an instance on the processor of the instances. Its threads are as many as that has.
    fn serve(&self) -> Answer<Instance> {
        let here = sched_getaffinity(None)?;
        sched_setaffinity(None, &self.of_instances)?;
        let started = Instance::start(&self.redis.url());
        sched_setaffinity(None, &here)?;
        started
    }

    /// How many keys there are.
    fn keys(&self) -> String {
        self.redis.command(&["DBSIZE"])
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // It was possible before.
        sched_setaffinity(None, &self.everywhere).ok();
    }
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

/// Runs clients on one thread.
fn block_on<T>(work: impl Future<Output = Answer<T>>) -> Result<T, Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work).map_err(|error| error as Box<dyn std::error::Error>)
}

/// Lets other tasks run for a while.
#[allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]
fn pause(period: Duration) -> impl Future<Output = ()> {
    tokio::time::sleep(period)
}

/// Milliseconds, to be read.
fn millis(period: Duration) -> f64 {
    period.as_secs_f64() * 1e3
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
