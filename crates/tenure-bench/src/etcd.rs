//! The engine `etcd`, beside what `etcdctl lock` sends, sent by a bare client with one lease on the same server.

mod idle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tenure_etcd::raw::Bare;
use tenure_testkit::etcd::{EtcdOptions, EtcdServer};
use tokio::task::JoinSet;

use crate::measure::{Outcome, cpu, median, now};
use crate::report::{Report, Target};

pub(crate) use idle::idle_waiters;

/// How long users run before they are measured, and then.
const WARM_UP: Duration = Duration::from_millis(500);
const PERIOD: Duration = Duration::from_millis(2000);
const ROUNDS: usize = 5;
const TASKS: [usize; 2] = [1, 64];
/// How many clients contend for one lock, each as a process of its own would.
const WAITERS: usize = 8;

/// How a task ends.
type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;
type Users = JoinSet<Done>;
type Any<T> = Result<T, Box<dyn std::error::Error>>;

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    let server = EtcdServer::start(&EtcdOptions::default());
    for tasks in TASKS {
        let (mut ours, mut bare) = (Side::default(), Side::default());
        for _ in 0..ROUNDS {
            ours.add(runtime()?.block_on(tenure_pairs(&server, tasks))?);
            bare.add(runtime()?.block_on(bare_pairs(&server, tasks))?);
        }
        report.add(
            &format!("etcd, uncontended, {tasks} task(s): pairs against the calls of `etcdctl lock`"),
            ours.text("pairs"),
            bare.text("pairs"),
            median(&ours.rates) / median(&bare.rates),
            Target::AtLeast(1.0, "≥ 1.0"),
        );
    }
    Ok(())
}

pub(crate) fn contended(report: &mut Report) -> Outcome {
    let server = EtcdServer::start(&EtcdOptions::default());
    let (mut ours, mut bare) = (Side::default(), Side::default());
    for _ in 0..ROUNDS {
        ours.add(runtime()?.block_on(tenure_changes(&server))?);
        bare.add(runtime()?.block_on(bare_changes(&server))?);
    }
    report.add(
        &format!("etcd, contended, {WAITERS} waiters: owner changes against the recipe of `etcdctl lock`"),
        ours.text("changes"),
        bare.text("changes"),
        median(&ours.rates) / median(&bare.rates),
        Target::AtLeast(1.0, "≥ 1.0"),
    );
    Ok(())
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

/// What was done in a measured period: how much for a second, and microseconds of processor time for each.
struct Measured {
    rate: f64,
    server: f64,
    client: f64,
}

#[derive(Default)]
struct Side {
    rates: Vec<f64>,
    server: Vec<f64>,
    client: Vec<f64>,
}

impl Side {
    fn add(&mut self, measured: Measured) {
        self.rates.push(measured.rate);
        self.server.push(measured.server);
        self.client.push(measured.client);
    }

    fn text(&self, what: &str) -> String {
        let (rate, server, client) = (median(&self.rates), median(&self.server), median(&self.client));
        format!("{rate:.0} {what}/s (each: {server:.0} µs server, {client:.0} µs client)")
    }
}

/// The processor time of a server so far.
fn server_cpu(server: &EtcdServer) -> Duration {
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).ok()?;
        let fields = stat.rsplit_once(") ")?.1;
        let mut numbers = fields.split(' ').skip(11).filter_map(|field| field.parse::<u64>().ok());
        Some(numbers.next()? + numbers.next()?)
    };
    Duration::from_millis(ticks().unwrap_or(0) * 10)
}

#[allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]
async fn measure(server: &EtcdServer, done: &AtomicU64, mut users: Users) -> Any<Measured> {
    tokio::time::sleep(WARM_UP).await;
    let before = (done.load(Ordering::Relaxed), server_cpu(server), cpu(), now());
    tokio::time::sleep(PERIOD).await;
    let count = (done.load(Ordering::Relaxed) - before.0) as f64;
    let (on_server, on_client) = (server_cpu(server) - before.1, cpu() - before.2);
    let seconds = now().since(before.3).as_secs_f64();
    if let Some(ended) = users.try_join_next() {
        return Err(format!("a user has ended: {ended:?}").into());
    }
    users.shutdown().await;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / count;
    Ok(Measured { rate: count / seconds, server: micros(on_server), client: micros(on_client) })
}

async fn tenure_pairs(server: &EtcdServer, tasks: usize) -> Any<Measured> {
    let tenure = tenure::connect(&server.url()).await?;
    let (pairs, mut users) = (Arc::new(AtomicU64::new(0)), Users::new());
    for user in 0..tasks {
        let (mutex, pairs) = (tenure.mutex(&format!("bench/{user}")), pairs.clone());
        users.spawn(async move {
            loop {
                mutex.acquire().await?.release().await?;
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let measured = measure(server, &pairs, users).await;
    tenure.close().await;
    measured
}

async fn bare_pairs(server: &EtcdServer, tasks: usize) -> Any<Measured> {
    let bare = Bare::connect(&server.url()).await?;
    let (pairs, mut users) = (Arc::new(AtomicU64::new(0)), Users::new());
    for user in 0..tasks {
        let (bare, pairs) = (bare.clone(), pairs.clone());
        users.spawn(async move {
            let lock = format!("bare/{user}");
            loop {
                if !bare.pair(&lock).await? {
                    return Err(format!("{lock} was not free").into());
                }
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let measured = measure(server, &pairs, users).await;
    bare.close().await?;
    measured
}

/// Who had the lock last, and how often it went to another.
#[derive(Default)]
struct Changes {
    last: AtomicUsize,
    count: AtomicU64,
}

impl Changes {
    fn held_by(&self, user: usize) {
        if self.last.swap(user + 1, Ordering::Relaxed) != user + 1 {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn tenure_changes(server: &EtcdServer) -> Any<Measured> {
    let (changes, mut users) = (Arc::new(Changes::default()), Users::new());
    let mut clients = Vec::new();
    for user in 0..WAITERS {
        let client = tenure::connect(&server.url()).await?;
        let (mutex, changes) = (client.mutex("contended"), changes.clone());
        clients.push(client);
        users.spawn(async move {
            loop {
                let lease = mutex.acquire().await?;
                changes.held_by(user);
                lease.release().await?;
            }
        });
    }
    let measured = measure(server, &changes.count, users).await;
    for client in clients {
        client.close().await;
    }
    measured
}

async fn bare_changes(server: &EtcdServer) -> Any<Measured> {
    let (changes, mut users) = (Arc::new(Changes::default()), Users::new());
    let mut clients = Vec::new();
    for user in 0..WAITERS {
        let (bare, changes) = (Bare::connect(&server.url()).await?, changes.clone());
        clients.push(bare.clone());
        users.spawn(async move {
            loop {
                bare.lock("bare").await?;
                changes.held_by(user);
                bare.unlock("bare").await?;
            }
        });
    }
    let measured = measure(server, &changes.count, users).await;
    for bare in clients {
        bare.close().await?;
    }
    measured
}
