//! The engine `zookeeper` on one server, beside kazoo's lock and queue on the same.

use std::path::Path;

use tenure_testkit::foreign::python;
use tenure_testkit::zookeeper::{ZooKeeperOptions, ZooKeeperServer};

use crate::foreign::{PERIOD, WARM_UP, items_a_second, pairs_a_second};
use crate::measure::{Outcome, median};
use crate::report::{Report, Target};

const ROUNDS: usize = 3;
const TASKS: [usize; 2] = [1, 64];

type Answer<T> = Result<T, Box<dyn std::error::Error>>;

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    for tasks in TASKS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(runtime()?.block_on(tenure_pairs(&server, tasks))?);
            theirs.push(kazoo(&server, "kazoo_pairs.py", tasks)?);
        }
        let what = format!("zookeeper, uncontended, {tasks} task(s): pairs against kazoo's lock");
        add(report, &what, "pairs", tasks, &ours, &theirs);
    }
    Ok(())
}

/// Kazoo's `LockingQueue`, whose `Queue` removes an item before anybody has worked on it. It has priorities; it has no tokens, groups, delays, retries or dead
/// letters, what a client has taken is lost to others until its session ends, and each change wakes all who wait.
pub(crate) fn queue(report: &mut Report) -> Outcome {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    for tasks in TASKS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(runtime()?.block_on(tenure_items(&server, tasks))?);
            theirs.push(kazoo(&server, "kazoo_items.py", tasks)?);
        }
        let what =
            format!("zookeeper, queue, {tasks} task(s): push + next + ack against kazoo's LockingQueue");
        add(report, &what, "items", tasks, &ours, &theirs);
    }
    Ok(())
}

fn add(report: &mut Report, what: &str, unit: &str, tasks: usize, ours: &[f64], theirs: &[f64]) {
    let (ours, theirs) = (median(ours), median(theirs));
    report.add(
        what,
        format!("{ours:.0} {unit}/s"),
        format!("{tasks} thread(s), one client: {theirs:.0} {unit}/s"),
        ours / theirs,
        Target::AtLeast(1.0, "≥ 1.0"),
    );
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

fn url(server: &ZooKeeperServer) -> String {
    format!("{}/tenure?session_timeout=10s&tick=200ms", server.url())
}

async fn tenure_pairs(server: &ZooKeeperServer, tasks: usize) -> Answer<f64> {
    let tenure = tenure::connect(&url(server)).await?;
    let (rate, _) = pairs_a_second(&tenure, tasks).await?;
    tenure.close().await;
    Ok(rate)
}

async fn tenure_items(server: &ZooKeeperServer, tasks: usize) -> Answer<f64> {
    let tenure = tenure::connect(&url(server)).await?;
    let rate = items_a_second(&tenure, tasks).await?;
    tenure.close().await;
    Ok(rate)
}

/// Runs a script with kazoo, and returns what it says that it did in a second.
fn kazoo(server: &ZooKeeperServer, script: &str, threads: usize) -> Answer<f64> {
    let mut python = python();
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign").join(script));
    python.args([server.port().to_string(), threads.to_string()]);
    python.args([WARM_UP, PERIOD].map(|period| period.as_secs_f64().to_string()));
    let output = python.output()?;
    if !output.status.success() {
        return Err(format!("`cargo xtask setup` installs kazoo: {output:?}").into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
