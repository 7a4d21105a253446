//! A quorum of five servers, beside node-redlock on the same.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use tenure::redlock::{Config, Redlock};
use tenure::{Settings, Tenure};
use tenure_core::engine::Connect;
use tenure_testkit::redis::{RedisOptions, RedisServer, quorum_url};

use crate::foreign::{PERIOD, WARM_UP, clients, pairs_a_second};
use crate::measure::{Outcome, cpu, median};
use crate::report::{Report, Target};

const SERVERS: usize = 5;
const ROUNDS: usize = 3;
/// How many tasks, and how many times as many pairs as node-redlock are wanted.
const TASKS: [(usize, Target); 2] = [(1, Target::AtLeast(1.0, "≥ 1.0")), (64, Target::AtLeast(5.0, "≥ 5.0"))];

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
    let mut node = Command::new("node");
    node.env("NODE_PATH", clients().join("node_modules"));
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
