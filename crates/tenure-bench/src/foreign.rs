//! What benches beside clients of other languages share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::{Error, Tenure};
use tokio::task::JoinSet;

use crate::measure::now;
use crate::sql::PAYLOAD;

/// How long users run before they are measured, and then.
pub(crate) const WARM_UP: Duration = Duration::from_millis(1000);
pub(crate) const PERIOD: Duration = Duration::from_millis(2000);

/// Acquires and releases mutexes, one for each task. Returns pairs a second, and all pairs since the beginning.
pub(crate) async fn pairs_a_second(
    tenure: &Tenure,
    tasks: usize,
) -> Result<(f64, u64), Box<dyn std::error::Error>> {
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
    let rate = a_second(&pairs, users).await?;
    Ok((rate, pairs.load(Ordering::Relaxed).max(1)))
}

/// Pushes, takes and acknowledges items of one queue in each task. Returns items a second.
pub(crate) async fn items_a_second(tenure: &Tenure, tasks: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let (items, mut users) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    for _ in 0..tasks {
        let (queue, items) = (tenure.queue("bench"), items.clone());
        users.spawn(async move {
            loop {
                let item = async {
                    queue.push(PAYLOAD).await?;
                    queue.next().await?.ack().await
                };
                match item.await {
                    Ok(_) => items.fetch_add(1, Ordering::Relaxed),
                    Err(error) => return error,
                };
            }
        });
    }
    a_second(&items, users).await
}

/// Returns how much users do in a second.
#[allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]
async fn a_second(done: &AtomicU64, mut users: JoinSet<Error>) -> Result<f64, Box<dyn std::error::Error>> {
    tokio::time::sleep(WARM_UP).await;
    let (before, began) = (done.load(Ordering::Relaxed), now());
    tokio::time::sleep(PERIOD).await;
    let rate = (done.load(Ordering::Relaxed) - before) as f64 / now().since(began).as_secs_f64();
    if let Some(ended) = users.try_join_next() {
        return Err(format!("a user has ended: {ended:?}").into());
    }
    users.shutdown().await;
    Ok(rate)
}
