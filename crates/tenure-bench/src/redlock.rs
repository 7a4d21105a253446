//! A quorum of five servers, beside node-redlock on the same.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use tenure::redis::{Config, Redlock};
use tenure::{Settings, Tenure};
use tenure_core::engine::{Connect, Engine};
use tenure_testkit::redis::{RedisOptions, RedisServer, quorum_url};

use crate::foreign::{PERIOD, WARM_UP, clients, pairs_a_second};
use crate::measure::{Outcome, median};
use crate::report::{Report, Target};

const SERVERS: usize = 5;
const ROUNDS: usize = 3;
/// How many tasks, and how many times as many pairs as node-redlock are wanted.
const TASKS: [(usize, Target); 2] = [(1, Target::AtLeast(1.0, "≥ 1.0")), (64, Target::AtLeast(5.0, "≥ 5.0"))];

type Answer<T> = Result<T, Box<dyn std::error::Error>>;

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    let servers: Vec<RedisServer> =
        (0..SERVERS).map(|_| RedisServer::start(RedisOptions::default())).collect();
    let url = quorum_url(&servers);
    for (tasks, target) in TASKS {
        let (mut ours, mut theirs, mut written_back) = (Vec::new(), Vec::new(), 0.0_f64);
        for _ in 0..ROUNDS {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            let (pairs, share) = runtime.block_on(tenure_pairs(&url, tasks))?;
            ours.push(pairs);
            written_back = written_back.max(share);
            theirs.push(redlock_pairs(&servers, tasks)?);
        }
        let (ours, theirs) = (median(&ours), median(&theirs));
        report.add(
            &format!("redlock, {SERVERS} servers, uncontended, {tasks} task(s): pairs against node-redlock"),
            format!(
                "{ours:.0} pairs/s, {:.2} % needed a second round trip for the token",
                written_back * 100.0
            ),
            format!("{theirs:.0} pairs/s"),
            ours / theirs,
            target,
        );
    }
    Ok(())
}

/// Returns pairs a second, and the share of acquires whose token had to be written back.
async fn tenure_pairs(url: &str, tasks: usize) -> Answer<(f64, f64)> {
    let config = Config::parse(url)?;
    let engine: Arc<OnceLock<Arc<Redlock>>> = Arc::default();
    let kept = engine.clone();
    let connect: Connect = Box::new(move |client| {
        Box::pin(async move {
            let redlock = Arc::new(Redlock::connect(config, client).await?);
            let engine: Arc<dyn Engine> = redlock.clone();
            kept.get_or_init(|| redlock);
            Ok(engine)
        })
    });
    let tenure = Tenure::connect_with(connect, Settings::default()).await?;
    tenure.migrate().await?;
    let (rate, all) = pairs_a_second(&tenure, tasks).await?;
    tenure.close().await;
    let stamps = engine.get().map_or(0, |engine| engine.stamps());
    Ok((rate, stamps as f64 / all as f64))
}

fn redlock_pairs(servers: &[RedisServer], tasks: usize) -> Answer<f64> {
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
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
