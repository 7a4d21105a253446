//! What the benchmarks of the SQL engines share: pairs of `acquire` and `release`, and items through a queue, beside statements by hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::measure::{cpu, median, now, percentile};
use crate::report::{Report, Target};

/// How long users run before they are measured, and then.
const WARM_UP: Duration = Duration::from_millis(500);
const PERIOD: Duration = Duration::from_millis(2000);
pub(crate) const ROUNDS: usize = 3;
/// As many connections as the engines use.
pub(crate) const CONNECTIONS: usize = 4;
pub(crate) const TASKS: [usize; 3] = [1, 4, 64];
/// As large as an order or an event is.
pub(crate) const PAYLOAD: [u8; 100] = [b'x'; 100];

/// How a task ends.
pub(crate) type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;
pub(crate) type Users = JoinSet<Done>;

pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

/// What was done in a measured period: pairs for a second, and microseconds of processor time for a pair.
pub(crate) struct Measured {
    rate: f64,
    server: f64,
    client: f64,
}

/// The rounds of one side.
#[derive(Default)]
pub(crate) struct Side {
    rates: Vec<f64>,
    server: Vec<f64>,
    client: Vec<f64>,
}

impl Side {
    pub(crate) fn add(&mut self, measured: Measured) {
        self.rates.push(measured.rate);
        self.server.push(measured.server);
        self.client.push(measured.client);
    }

    fn text(&self) -> String {
        let (rate, server, client) = (median(&self.rates), median(&self.server), median(&self.client));
        format!("{rate:.0} pairs/s (a pair: {server:.0} µs server, {client:.0} µs client)")
    }
}

/// Where both sides of a line were measured.
pub(crate) struct Case<'a> {
    /// The engine, and what is used of it.
    pub(crate) what: &'a str,
    pub(crate) tasks: usize,
    /// Whether commits are synced.
    pub(crate) commits: &'a str,
}

/// What a line compares, and the ratio that is wanted.
pub(crate) type Against = (&'static str, Target);
pub(crate) const UPSERT: Against = ("pairs against a bare upsert + delete", Target::AtLeast(0.6, "≥ 0.6"));
/// A push, a take and an acknowledgement are one.
pub(crate) const SKIP_LOCKED: Against =
    ("push + next + ack against SKIP LOCKED by hand", Target::AtLeast(0.6, "≥ 0.6"));

/// Adds the line of an engine and one of its peers.
pub(crate) fn add(
    report: &mut Report,
    case: &Case<'_>,
    (against, target): Against,
    ours: &Side,
    theirs: &Side,
) {
    let Case { what, tasks, commits } = case;
    report.add(
        &format!("{what}, {tasks} task(s), {commits}: {against}"),
        ours.text(),
        format!("{CONNECTIONS} connections: {}", theirs.text()),
        median(&ours.rates) / median(&theirs.rates),
        target,
    );
}

/// The processor time of processes so far.
pub(crate) fn processor_time(pids: impl Iterator<Item = u32>) -> Duration {
    let ticks = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields = stat.rsplit_once(") ")?.1;
        let mut numbers = fields.split(' ').skip(11).filter_map(|field| field.parse::<u64>().ok());
        Some(numbers.next()? + numbers.next()?)
    };
    Duration::from_millis(pids.filter_map(ticks).sum::<u64>() * 10)
}

/// Measures users that are at work; `on_server` is the server's processor time so far.
#[allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]
pub(crate) async fn measure(
    on_server: &impl Fn() -> Duration,
    pairs: &AtomicU64,
    mut users: Users,
) -> Result<Measured, Box<dyn std::error::Error>> {
    tokio::time::sleep(WARM_UP).await;
    let before = (pairs.load(Ordering::Relaxed), on_server(), cpu(), now());
    tokio::time::sleep(PERIOD).await;
    let count = (pairs.load(Ordering::Relaxed) - before.0) as f64;
    let (server, client) = (on_server() - before.1, cpu() - before.2);
    let seconds = now().since(before.3).as_secs_f64();
    if let Some(ended) = users.try_join_next() {
        return Err(format!("a user has ended: {ended:?}").into());
    }
    users.shutdown().await;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / count;
    Ok(Measured { rate: count / seconds, server: micros(server), client: micros(client) })
}

/// Measures tenure with an engine at a URL.
pub(crate) async fn tenure_pairs(
    url: &str,
    on_server: &impl Fn() -> Duration,
    tasks: usize,
) -> Result<Measured, Box<dyn std::error::Error>> {
    let tenure = tenure::connect(url).await?;
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
    let measured = measure(on_server, &pairs, users).await;
    tenure.close().await;
    measured
}

/// Measures a queue of tenure with an engine at a URL.
pub(crate) async fn tenure_items(
    url: &str,
    on_server: &impl Fn() -> Duration,
    tasks: usize,
) -> Result<Measured, Box<dyn std::error::Error>> {
    let tenure = tenure::connect(url).await?;
    let (items, mut users) = (Arc::new(AtomicU64::new(0)), Users::new());
    for _ in 0..tasks {
        let (queue, items) = (tenure.queue("bench"), items.clone());
        users.spawn(async move {
            loop {
                queue.push(PAYLOAD).await?;
                queue.next().await?.ack().await?;
                items.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let measured = measure(on_server, &items, users).await;
    tenure.close().await;
    measured
}

/// How many wait for one lock, each in a client of its own, how long each holds it, and how many changes are measured.
const WAITERS: usize = 8;
const HOLD: Duration = Duration::from_millis(20);
const CHANGES: usize = 300;

/// Adds the line of an engine whose server cannot notify a client: from a release to the next owner's code in another client.
#[allow(clippy::disallowed_methods, reason = "what is measured is a real server")]
pub(crate) async fn hand_over(
    report: &mut Report,
    engine: &str,
    url: &str,
    on_server: &impl Fn() -> Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let (released, passed) = (Arc::new(Mutex::new(now())), Arc::new(Mutex::new(Vec::new())));
    let (mut users, mut clients) = (Users::new(), Vec::new());
    for _ in 0..=WAITERS {
        let client = tenure::connect(url).await?;
        let (mutex, released, passed) = (client.mutex("bench"), released.clone(), passed.clone());
        clients.push(client);
        users.spawn(async move {
            loop {
                let lease = mutex.acquire().await?;
                let took = now().since(*released.lock().unwrap_or_else(PoisonError::into_inner));
                passed.lock().unwrap_or_else(PoisonError::into_inner).push(took.as_secs_f64() * 1e3);
                tokio::time::sleep(HOLD).await;
                *released.lock().unwrap_or_else(PoisonError::into_inner) = now();
                lease.release().await?;
            }
        });
    }
    let (before, began) = (on_server(), now());
    let count = || passed.lock().unwrap_or_else(PoisonError::into_inner).len();
    while count() < CHANGES {
        tokio::time::sleep(HOLD).await;
        if let Some(ended) = users.try_join_next() {
            return Err(format!("a user has ended: {ended:?}").into());
        }
    }
    let (server, period) = (on_server() - before, now().since(began));
    users.shutdown().await;
    let passed = passed.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // Until all wait, nobody does for long.
    let passed = &passed[WAITERS.min(passed.len())..];
    let share = 100.0 * server.as_secs_f64() / period.as_secs_f64();
    report.add(
        &format!("{engine}, one lock, {WAITERS} waiters in as many clients: from a release to the next owner running, p50"),
        format!(
            "{:.1} ms (p99 {:.0} ms; {:.0} changes/s, {share:.1} % of a processor of the server)",
            median(passed),
            percentile(passed, 99),
            count() as f64 / period.as_secs_f64()
        ),
        String::new(),
        median(passed),
        Target::AtMost(50.0, "≤ 50 ms"),
    );
    Ok(())
}
