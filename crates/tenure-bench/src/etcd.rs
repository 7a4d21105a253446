//! What `etcdctl lock` sends, sent by the bare client with one lease: what an engine on etcd will be measured against.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_etcd::raw::Bare;
use tenure_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdServer};
use tokio::task::JoinSet;

use crate::measure::{Outcome, cpu, median, now};
use crate::report::{Report, Target};

/// How long users run before they are measured, and then.
const WARM_UP: Duration = Duration::from_millis(500);
const PERIOD: Duration = Duration::from_millis(2000);
const ROUNDS: usize = 3;
const TASKS: [usize; 3] = [1, 64, 1024];

/// How a task ends.
type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;

pub(crate) fn bare(report: &mut Report) -> Outcome {
    let server = EtcdServer::start(&EtcdOptions::default());
    measure_all(report, "one server", &server.url(), &[server.pid()])?;
    drop(server);
    let cluster = EtcdCluster::start(&EtcdOptions::default());
    let pids: Vec<u32> = cluster.servers().iter().map(EtcdServer::pid).collect();
    measure_all(report, "three servers", &cluster.url(), &pids)
}

fn measure_all(report: &mut Report, servers: &str, url: &str, pids: &[u32]) -> Outcome {
    for tasks in TASKS {
        let (mut rates, mut on_server, mut on_client) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            let measured = runtime.block_on(measure(url, pids, tasks))?;
            rates.push(measured.rate);
            on_server.push(measured.server);
            on_client.push(measured.client);
        }
        let (rate, on_server, on_client) = (median(&rates), median(&on_server), median(&on_client));
        report.add(
            &format!("etcd, {servers}, uncontended, {tasks} task(s): pairs of the bare client in a second"),
            "-".to_owned(),
            format!("{rate:.0} pairs/s (a pair: {on_server:.0} µs server, {on_client:.0} µs client)"),
            rate,
            Target::AtLeast(0.0, "-"),
        );
    }
    Ok(())
}

/// What was done in a measured period: pairs for a second, and microseconds of processor time for a pair.
struct Measured {
    rate: f64,
    server: f64,
    client: f64,
}

#[allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]
async fn measure(url: &str, pids: &[u32], tasks: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    let bare = Bare::connect(url).await?;
    let (pairs, mut users) = (Arc::new(AtomicU64::new(0)), JoinSet::<Done>::new());
    for user in 0..tasks {
        let (bare, pairs) = (bare.clone(), pairs.clone());
        users.spawn(async move {
            let lock = format!("bench/{user}");
            loop {
                if !bare.pair(&lock).await? {
                    return Err(format!("{lock} was not free").into());
                }
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(WARM_UP).await;
    let before = (pairs.load(Ordering::Relaxed), server_cpu(pids), cpu(), now());
    tokio::time::sleep(PERIOD).await;
    let count = (pairs.load(Ordering::Relaxed) - before.0) as f64;
    let (on_server, on_client) = (server_cpu(pids) - before.1, cpu() - before.2);
    let seconds = now().since(before.3).as_secs_f64();
    if let Some(ended) = users.try_join_next() {
        return Err(format!("a user has ended: {ended:?}").into());
    }
    users.shutdown().await;
    bare.close().await?;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / count;
    Ok(Measured { rate: count / seconds, server: micros(on_server), client: micros(on_client) })
}

/// The processor time of servers so far.
fn server_cpu(pids: &[u32]) -> Duration {
    let ticks = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields = stat.rsplit_once(") ")?.1;
        let mut numbers = fields.split(' ').skip(11).filter_map(|field| field.parse::<u64>().ok());
        Some(numbers.next()? + numbers.next()?)
    };
    Duration::from_millis(pids.iter().filter_map(ticks).sum::<u64>() * 10)
}
