//! The engine `zookeeper` on one server, beside kazoo's lock on the same.

use std::path::Path;

use tenure_testkit::foreign::python;
use tenure_testkit::zookeeper::{ZooKeeperOptions, ZooKeeperServer};

use crate::foreign::{PERIOD, WARM_UP, pairs_a_second};
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

async fn tenure_pairs(server: &ZooKeeperServer, tasks: usize) -> Answer<f64> {
    let url = format!("{}/tenure?session_timeout=10s&tick=200ms", server.url());
    let tenure = tenure::connect(&url).await?;
    let (rate, _) = pairs_a_second(&tenure, tasks).await?;
    tenure.close().await;
    Ok(rate)
}

fn kazoo_pairs(server: &ZooKeeperServer, threads: usize) -> Answer<f64> {
    let mut python = python();
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign/kazoo_pairs.py"));
    python.args([server.port().to_string(), threads.to_string()]);
    python.args([WARM_UP, PERIOD].map(|period| period.as_secs_f64().to_string()));
    let output = python.output()?;
    if !output.status.success() {
        return Err(format!("`cargo xtask setup` installs kazoo: {output:?}").into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
