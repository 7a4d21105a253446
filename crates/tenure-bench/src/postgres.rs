//! The engine `postgres` on one server, beside bare statements on as many connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

use crate::measure::{Outcome, cpu, median, now};
use crate::report::{Report, Target};

/// How long users run before they are measured, and then.
const WARM_UP: Duration = Duration::from_millis(500);
const PERIOD: Duration = Duration::from_millis(2000);
const ROUNDS: usize = 3;
/// As many connections as the engine uses.
const CONNECTIONS: usize = 4;
const TASKS: [usize; 2] = [1, 64];
/// What every lock with an expiry comes down to: a row that is taken if it is not there or has ended, and is deleted.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, claim text NOT NULL, expires_at timestamptz NOT NULL)";

/// How a task ends.
type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;
type Users = JoinSet<Done>;

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    for (fsync, what) in [("on", "commits synced"), ("off", "commits not synced")] {
        let server = PostgresServer::start(&PostgresOptions::default().setting("fsync", fsync));
        for tasks in TASKS {
            let (mut ours, mut bare) = (Side::default(), Side::default());
            for _ in 0..ROUNDS {
                ours.add(runtime()?.block_on(tenure_pairs(&server, tasks))?);
                bare.add(runtime()?.block_on(bare_pairs(&server, tasks))?);
            }
            report.add(
                &format!(
                    "postgres, uncontended, {tasks} task(s), {what}: pairs against a bare upsert + delete"
                ),
                ours.text(),
                format!("{CONNECTIONS} connections: {}", bare.text()),
                median(&ours.rates) / median(&bare.rates),
                Target::AtLeast(0.6, "≥ 0.6"),
            );
        }
    }
    Ok(())
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

/// What was done in a measured period: pairs for a second, and microseconds of processor time for a pair.
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

    fn text(&self) -> String {
        let (rate, server, client) = (median(&self.rates), median(&self.server), median(&self.client));
        format!("{rate:.0} pairs/s (a pair: {server:.0} µs server, {client:.0} µs client)")
    }
}

/// The processor time of a server's processes so far.
fn server_cpu(server: &PostgresServer) -> Duration {
    let pid = server.pid();
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let ticks = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields = stat.rsplit_once(") ")?.1;
        let mut numbers = fields.split(' ').skip(11).filter_map(|field| field.parse::<u64>().ok());
        Some(numbers.next()? + numbers.next()?)
    };
    Duration::from_millis(list.split_whitespace().filter_map(ticks).sum::<u64>() * 10)
}

#[allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]
async fn measure(
    server: &PostgresServer,
    pairs: &AtomicU64,
    mut users: Users,
) -> Result<Measured, Box<dyn std::error::Error>> {
    tokio::time::sleep(WARM_UP).await;
    let before = (pairs.load(Ordering::Relaxed), server_cpu(server), cpu(), now());
    tokio::time::sleep(PERIOD).await;
    let count = (pairs.load(Ordering::Relaxed) - before.0) as f64;
    let (on_server, on_client) = (server_cpu(server) - before.1, cpu() - before.2);
    let seconds = now().since(before.3).as_secs_f64();
    if let Some(ended) = users.try_join_next() {
        return Err(format!("a user has ended: {ended:?}").into());
    }
    users.shutdown().await;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / count;
    Ok(Measured { rate: count / seconds, server: micros(on_server), client: micros(on_client) })
}

async fn tenure_pairs(server: &PostgresServer, tasks: usize) -> Result<Measured, Box<dyn std::error::Error>> {
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

async fn bare_pairs(server: &PostgresServer, tasks: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(server.url().parse()?, NoTls, manager);
    let pool = Pool::builder(manager).max_size(CONNECTIONS).build()?;
    pool.get().await?.batch_execute(TABLE).await?;
    let (pairs, mut users) = (Arc::new(AtomicU64::new(0)), Users::new());
    for user in 0..tasks {
        let (pool, pairs) = (pool.clone(), pairs.clone());
        users.spawn(async move {
            let take = format!(
                "INSERT INTO bare VALUES ('bench/{user}', 'c{user}', clock_timestamp() + interval '30 s') \
                 ON CONFLICT (name) DO UPDATE SET claim = excluded.claim, expires_at = excluded.expires_at \
                 WHERE bare.expires_at < clock_timestamp() RETURNING claim"
            );
            let give = format!("DELETE FROM bare WHERE name = 'bench/{user}' AND claim = 'c{user}'");
            loop {
                pool.get().await?.simple_query(&take).await?;
                pool.get().await?.simple_query(&give).await?;
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    measure(server, &pairs, users).await
}
