//! The engine `zookeeper` on one server, beside kazoo's lock on the same.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_testkit::zookeeper::{ZooKeeperOptions, ZooKeeperServer};
use tokio::task::JoinSet;

use crate::measure::{Outcome, median, now};
use crate::report::{Report, Target};

/// How long users run before they are measured, and then.
const WARM_UP: Duration = Duration::from_millis(1000);
const PERIOD: Duration = Duration::from_millis(2000);
const ROUNDS: usize = 3;
const TASKS: [usize; 2] = [1, 64];

type Answer<T> = Result<T, Box<dyn std::error::Error>>;

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    for tasks in TASKS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            ours.push(runtime.block_on(tenure_pairs(&server, tasks))?);
            theirs.push(kazoo_pairs(&server, tasks)?);
        }
        let (ours, theirs) = (median(&ours), median(&theirs));
        report.add(
            &format!("zookeeper, uncontended, {tasks} task(s): pairs against kazoo's lock"),
            format!("{ours:.0} pairs/s"),
            format!("{tasks} thread(s), one client: {theirs:.0} pairs/s"),
            ours / theirs,
            Target::AtLeast(1.0, "≥ 1.0"),
        );
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]
async fn tenure_pairs(server: &ZooKeeperServer, tasks: usize) -> Answer<f64> {
    let url = format!("{}/tenure?session_timeout=10s&tick=200ms", server.url());
    let tenure = tenure::connect(&url).await?;
    let (pairs, mut users) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    for user in 0..tasks {
        let (mutex, pairs) = (tenure.mutex(&format!("bench/{user}")), pairs.clone());
        users.spawn(async move {
            loop {
                let pair = async { mutex.acquire().await?.release().await };
                match pair.await {
                    Ok(_) => pairs.fetch_add(1, Ordering::Relaxed),
                    Err(error) => return error,
                };
            }
        });
    }
    tokio::time::sleep(WARM_UP).await;
    let (before, began) = (pairs.load(Ordering::Relaxed), now());
    tokio::time::sleep(PERIOD).await;
    let rate = (pairs.load(Ordering::Relaxed) - before) as f64 / now().since(began).as_secs_f64();
    if let Some(ended) = users.try_join_next() {
        return Err(format!("a user has ended: {ended:?}").into());
    }
    users.shutdown().await;
    tenure.close().await;
    Ok(rate)
}

fn kazoo_pairs(server: &ZooKeeperServer, threads: usize) -> Answer<f64> {
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", foreign_clients().join("python"));
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign/kazoo_pairs.py"));
    python.args([server.port().to_string(), threads.to_string()]);
    python.args([WARM_UP, PERIOD].map(|period| period.as_secs_f64().to_string()));
    let output = python.output()?;
    if !output.status.success() {
        return Err(format!("`cargo xtask setup` installs kazoo: {output:?}").into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Where `cargo xtask setup` puts the clients of others.
fn foreign_clients() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    cache.unwrap_or_else(|| home.join(".cache")).join("tenure-xtask/foreign-clients")
}
