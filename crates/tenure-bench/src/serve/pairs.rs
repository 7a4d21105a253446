//! Claims of free locks and their releases, over HTTP and by the library.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::client::{Connection, new_id};
use super::{Answer, Instance, Place, block_on, millis, pause};
use crate::measure::{Outcome, median, now, percentile};
use crate::report::{Report, Target};

const CONNECTIONS: usize = 64;
const WARM_UP: Duration = Duration::from_millis(500);
const PERIOD: Duration = Duration::from_secs(3);
const ROUNDS: usize = 3;

pub(crate) fn pairs(report: &mut Report) -> Outcome {
    let place = Place::start().map_err(|error| error as Box<dyn std::error::Error>)?;
    let instance = place.serve().map_err(|error| error as Box<dyn std::error::Error>)?;
    let (mut rates, mut latest, mut busy, mut library) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let served = block_on(over_http(&instance))?;
        rates.push(served.rate);
        latest.push(millis(percentile(&served.took, 99)));
        busy.push(served.busy);
        library.push(block_on(by_library(&place.redis.url()))?);
    }
    let (rate, late, library) = (median(&rates), median(&latest), median(&library));
    report.add(
        &format!("serve, claim and release, {CONNECTIONS} connections: requests/s on one processor"),
        format!("{rate:.0}/s ({:.0} % of it in use)", median(&busy)),
        format!("the library, {CONNECTIONS} tasks, on the processor of Redis: {library:.0}/s"),
        rate,
        Target::AtLeast(15_000.0, "≥ 15,000/s"),
    );
    report.add(
        "serve, claim and release: against the library",
        format!("{rate:.0}/s"),
        format!("{library:.0}/s"),
        rate / library,
        Target::None,
    );
    report.add(
        "serve, claim and release: a request, p99",
        format!("{late:.2} ms"),
        "-".to_owned(),
        late,
        Target::AtMost(10.0, "≤ 10 ms"),
    );
    Ok(())
}

struct Served {
    rate: f64,
    took: Vec<Duration>,
    /// Of the instance's processor, in percent.
    busy: f64,
}

async fn over_http(instance: &Instance) -> Answer<Served> {
    let is_measured = Arc::new(AtomicBool::new(false));
    let is_over = Arc::new(AtomicBool::new(false));
    let mut users = JoinSet::new();
    for number in 0..CONNECTIONS {
        let (is_measured, is_over) = (is_measured.clone(), is_over.clone());
        let mut connection = Connection::open(instance.address()).await?;
        users.spawn(async move {
            let mut took = Vec::new();
            let body = format!("{{\"name\":\"pairs/{number}\"}}");
            while !is_over.load(Ordering::Relaxed) {
                let id = new_id();
                let (claim, release) =
                    (format!("/v1/claims/{id}"), format!("/v1/claims/{id}?name=pairs/{number}"));
                for (method, path, body) in [("PUT", claim, &*body), ("DELETE", release, "")] {
                    let began = now();
                    connection.ask(method, &path, body).await?.must_be(200)?;
                    if is_measured.load(Ordering::Relaxed) {
                        took.push(now().since(began));
                    }
                }
            }
            Answer::Ok(took)
        });
    }
    pause(WARM_UP).await;
    is_measured.store(true, Ordering::Relaxed);
    let (cpu, began) = (instance.cpu(), now());
    pause(PERIOD).await;
    is_measured.store(false, Ordering::Relaxed);
    let (seconds, cpu) = (now().since(began).as_secs_f64(), instance.cpu() - cpu);
    is_over.store(true, Ordering::Relaxed);
    let mut took = Vec::new();
    while let Some(user) = users.join_next().await {
        took.extend(user??);
    }
    Ok(Served { rate: took.len() as f64 / seconds, took, busy: cpu.as_secs_f64() * 100.0 / seconds })
}

/// Requests a second: two for a pair.
async fn by_library(url: &str) -> Answer<f64> {
    let tenure = tenure::connect(url).await?;
    let count = Arc::new(AtomicU64::new(0));
    let mut users = JoinSet::new();
    for number in 0..CONNECTIONS {
        let (mutex, count) = (tenure.mutex(&format!("pairs/{number}")), count.clone());
        users.spawn(async move {
            loop {
                mutex.acquire().await?.release().await?;
                count.fetch_add(2, Ordering::Relaxed);
            }
            #[allow(unreachable_code, reason = "it says how a task ends")]
            Answer::Ok(())
        });
    }
    pause(WARM_UP).await;
    let (before, began) = (count.load(Ordering::Relaxed), now());
    pause(PERIOD).await;
    let rate = (count.load(Ordering::Relaxed) - before) as f64 / now().since(began).as_secs_f64();
    if let Some(ended) = users.try_join_next() {
        return Err(format!("a user has ended: {ended:?}").into());
    }
    users.shutdown().await;
    Ok(rate)
}
