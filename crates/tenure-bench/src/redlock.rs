//! A quorum of five servers, beside node-redlock on the same; and the memory of a client that misses one of three.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::redlock::{Config, Redlock};
use tenure::{Settings, Tenure};
use tenure_core::engine::Connect;
use tenure_testkit::foreign::node;
use tenure_testkit::redis::{RedisOptions, RedisServer, quorum_url};
use tokio::task::JoinSet;

use crate::foreign::{PERIOD, WARM_UP, pairs_a_second};
use crate::measure::{Outcome, cpu, median, now, resident};
use crate::report::{Report, Target};

const SERVERS: usize = 5;
const ROUNDS: usize = 3;
/// How many tasks, and how many times as many pairs as node-redlock are wanted.
const TASKS: [(usize, Target); 2] = [(1, Target::AtLeast(1.0, "≥ 1.0")), (64, Target::AtLeast(5.0, "≥ 5.0"))];

/// How many releases the memory is watched for, how often it is sampled, and what `--short` leaves of both.
const RELEASES: u64 = 1_000_000;
const SAMPLES: u64 = 10;
const SHORT: u64 = 10;
/// How many releases come before: connections, batches and the allocator have their size by then.
const SETTLE: u64 = 20_000;
const MEMORY_TASKS: usize = 64;
/// How long a server that comes and goes is away, and then there. It is away for longer than a connection may be silent.
const AWAY: Duration = Duration::from_millis(2500);

type Answer<T> = Result<T, Box<dyn std::error::Error>>;

/// What one side has done.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Side {
    /// Pairs a second.
    rate: f64,
    /// Processor time of a pair, in microseconds: of all servers, and of the client.
    servers: f64,
    client: f64,
}

impl Side {
    fn new(rate: f64, pairs: f64, servers: f64, client: f64) -> Side {
        let each = |seconds: f64| seconds / pairs * 1e6;
        Side { rate, servers: each(servers), client: each(client) }
    }

    fn text(&self) -> String {
        format!(
            "{:.0} pairs/s (a pair: {:.0} µs servers, {:.0} µs client)",
            self.rate, self.servers, self.client
        )
    }
}

/// Returns the processor time of all servers so far, in seconds.
fn servers_cpu(servers: &[RedisServer]) -> f64 {
    let fields = ["used_cpu_user:", "used_cpu_sys:"];
    let texts = servers.iter().map(|server| server.command(&["INFO", "cpu"]));
    texts
        .flat_map(|text| {
            let of_field = |line: &str| {
                fields.iter().find_map(|field| line.strip_prefix(field)?.trim().parse::<f64>().ok())
            };
            text.lines().filter_map(of_field).collect::<Vec<f64>>()
        })
        .sum()
}

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    let servers: Vec<RedisServer> =
        (0..SERVERS).map(|_| RedisServer::start(RedisOptions::default())).collect();
    let url = quorum_url(&servers);
    for (tasks, target) in TASKS {
        let (mut ours, mut theirs, mut written_back) = (Vec::new(), Vec::new(), 0.0_f64);
        for _ in 0..ROUNDS {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            let (side, share) = runtime.block_on(tenure_pairs(&url, &servers, tasks))?;
            ours.push(side);
            written_back = written_back.max(share);
            theirs.push(redlock_pairs(&servers, tasks)?);
        }
        let (ours, theirs) = (median(&ours), median(&theirs));
        report.add(
            &format!("redlock, {SERVERS} servers, uncontended, {tasks} task(s): pairs against node-redlock"),
            format!(
                "{}, {:.2} % needed a second round trip for the token",
                ours.text(),
                written_back * 100.0
            ),
            theirs.text(),
            ours.rate / theirs.rate,
            target,
        );
    }
    Ok(())
}

/// What is wrong with one of three servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ill {
    /// It is dead: nothing accepts a connection.
    Dead,
    /// It is stopped: connections are accepted, and nothing answers.
    Hung,
    /// It hangs again and again, so that there is always something that it has still to hear of.
    Flapping,
}

/// Whether the client's memory grows with the releases that one of three servers does not hear of.
pub(crate) fn memory(report: &mut Report) -> Outcome {
    for ill in [Ill::Dead, Ill::Hung, Ill::Flapping] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(memory_with(report, ill))?;
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]
async fn memory_with(report: &mut Report, ill: Ill) -> Outcome {
    let mut servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start(RedisOptions::default())).collect();
    let url = quorum_url(&servers);
    let tenure = tenure::connect(&url).await?;
    tenure.migrate().await?;
    let (releases, failures) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut users = endless_pairs(&tenure, &releases, &failures);
    let third = servers.pop().ok_or("three servers")?;
    let pid = i32::try_from(third.pid()).ok().and_then(Pid::from_raw).ok_or("a process")?;
    let mut third = Some(third);
    match ill {
        Ill::Dead => third = None,
        Ill::Hung | Ill::Flapping => kill_process(pid, Signal::STOP)?,
    }
    let (all, began) = (if report.is_short { RELEASES / SHORT } else { RELEASES }, now());
    let (mut is_away, mut turned) = (true, now());
    let mut samples: Vec<(u64, u64)> = Vec::new();
    while samples.len() as u64 <= SAMPLES {
        let done = releases.load(Ordering::Relaxed);
        if done >= SETTLE + samples.len() as u64 * (all / SAMPLES) {
            samples.push((done - SETTLE, resident()));
            let failures = failures.load(Ordering::Relaxed);
            eprintln!(
                "bench: {ill:?}: {} releases, {failures} failed pairs, {} KiB",
                done - SETTLE,
                resident() / 1024
            );
        }
        if ill == Ill::Flapping && now().since(turned) >= AWAY {
            (is_away, turned) = (!is_away, now());
            kill_process(pid, if is_away { Signal::STOP } else { Signal::CONT })?;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = now().since(began).as_secs_f64();
    users.shutdown().await;
    tenure.close().await;
    if third.is_some() {
        kill_process(pid, Signal::CONT)?;
    }
    // From the second on: what a server hears late is bounded, and the bound is reached early.
    let (first, last) = (samples[1].1, samples[samples.len() - 1].1);
    let each: Vec<String> =
        samples.iter().map(|(_, bytes)| format!("{:.1}", *bytes as f64 / 1048576.0)).collect();
    report.add(
        &format!(
            "redlock, one of 3 servers {ill:?}: client's memory after {all} releases against after {}",
            all / SAMPLES
        ),
        format!(
            "MiB: {} ({:.0} releases/s, {} pairs failed)",
            each.join(", "),
            all as f64 / took,
            failures.load(Ordering::Relaxed)
        ),
        "-".to_owned(),
        last as f64 / first as f64,
        Target::AtMost(1.1, "≤ 1.1"),
    );
    Ok(())
}

/// Acquires and releases mutexes, one for each task, and goes on after errors.
fn endless_pairs(tenure: &Tenure, releases: &Arc<AtomicU64>, failures: &Arc<AtomicU64>) -> JoinSet<()> {
    let mut users = JoinSet::new();
    for user in 0..MEMORY_TASKS {
        let mutex = tenure.mutex(&format!("bench/{user}"));
        let (releases, failures) = (releases.clone(), failures.clone());
        users.spawn(async move {
            loop {
                let pair = async { mutex.acquire().await?.release().await };
                // On a machine that stands for a second the others are away, too, and what fails may leave something behind.
                let count = if pair.await.is_ok() { &releases } else { &failures };
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    users
}

/// Returns what was done, and the share of acquires whose token had to be written back.
async fn tenure_pairs(url: &str, servers: &[RedisServer], tasks: usize) -> Answer<(Side, f64)> {
    let (servers_before, client_before) = (servers_cpu(servers), cpu());
    let config = Config::parse(url)?;
    let engine: Arc<OnceLock<Arc<Redlock>>> = Arc::default();
    let kept = engine.clone();
    let connect = Connect::new("redlock", async move |client| {
        let redlock = Arc::new(Redlock::connect(config, client).await?);
        Ok(kept.get_or_init(|| redlock).clone())
    });
    let tenure = Tenure::connect_with(connect, Settings::default()).await?;
    tenure.migrate().await?;
    let (rate, all) = pairs_a_second(&tenure, tasks).await?;
    tenure.close().await;
    let (by_servers, by_client) = (servers_cpu(servers) - servers_before, cpu() - client_before);
    let side = Side::new(rate, all as f64, by_servers, by_client.as_secs_f64());
    let stamps = engine.get().map_or(0, |engine| engine.stamps());
    Ok((side, stamps as f64 / all as f64))
}

fn redlock_pairs(servers: &[RedisServer], tasks: usize) -> Answer<Side> {
    let before = servers_cpu(servers);
    let ports: Vec<String> = servers.iter().map(|server| server.port().to_string()).collect();
    let mut node = node();
    node.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign/node_redlock_pairs.js"));
    node.args([ports.join(","), tasks.to_string()]);
    node.args([WARM_UP, PERIOD].map(|period| period.as_secs_f64().to_string()));
    let output = node.output()?;
    if !output.status.success() {
        return Err(format!("`cargo xtask setup` installs node-redlock: {output:?}").into());
    }
    let text = String::from_utf8(output.stdout)?;
    let numbers: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [rate, pairs, client] = numbers[..] else { return Err(format!("node-redlock said {text}").into()) };
    Ok(Side::new(rate, pairs, servers_cpu(servers) - before, client))
}
