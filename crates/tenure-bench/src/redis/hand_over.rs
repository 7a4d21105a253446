//! From a release to the next owner's code, which runs in another client, beside a `PING` of the same moment.

use std::time::Duration;

use tenure_core::clock::Instant;

use super::{Place, one_thread, pause};
use crate::measure::{Outcome, median, now, percentile};
use crate::report::{Report, Target};

/// So that thirty are above the p99.
const HAND_OVERS: usize = 3000;
/// Long enough that the next owner is in line. Nothing checks it: a turn in which it is not measures a claim of a free lock.
const REST: Duration = Duration::from_millis(1);

pub(crate) fn hand_over(report: &mut Report) -> Outcome {
    let place = Place::start()?;
    let runtime = one_thread()?;
    let (hand_overs, pings) = runtime.block_on(hand_overs_and_pings(&place))?;
    let figures = |micros: &[f64]| (median(micros), percentile(micros, 99));
    let ((p50, p99), (ping_p50, ping_p99)) = (figures(&hand_overs), figures(&pings));
    let mut add = |what: &str, ours: f64, ping: f64, target: Target| {
        report.add(
            &format!("redis, release to next owner running, {what}"),
            format!("{ours:.0} µs"),
            format!("PING: {ping:.0} µs"),
            ours / ping,
            target,
        );
    };
    add("p50", p50, ping_p50, Target::AtMost(1.3, "≤ 1.3"));
    add("p99", p99, ping_p99, Target::AtMost(3.0, "≤ 3.0"));
    Ok(())
}

/// Passes a lock to and fro between two clients. Before each hand-over it measures a `PING`, both after the same rest.
async fn hand_overs_and_pings(place: &Place) -> Result<(Vec<f64>, Vec<f64>), Box<dyn std::error::Error>> {
    let mut mutexes = Vec::new();
    for _ in 0..2 {
        mutexes.push(tenure::connect(&place.url()).await?.mutex("hand-over"));
    }
    let mut connection = place.connection().await?;
    let (mut hand_overs, mut pings) = (Vec::new(), Vec::new());
    let mut lease = mutexes[0].acquire().await?;
    for turn in 1..=HAND_OVERS {
        let next = mutexes[turn % 2].clone();
        let waiter = tokio::spawn(async move {
            let lease = next.acquire().await?;
            Ok::<_, tenure::Error>((lease, now()))
        });
        pause(REST).await;
        let sent = now();
        redis::cmd("PING").query_async::<()>(&mut connection).await?;
        pings.push(micros(sent, now()));
        pause(REST).await;
        let released = now();
        lease.release().await?;
        let (granted, at) = waiter.await??;
        hand_overs.push(micros(released, at));
        lease = granted;
    }
    lease.release().await?;
    Ok((hand_overs, pings))
}

fn micros(from: Instant, to: Instant) -> f64 {
    to.since(from).as_nanos() as f64 / 1000.0
}
