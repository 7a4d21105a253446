//! Thousands of requests that wait for one name.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::clock::Instant;
use tokio::sync::{mpsc, oneshot};

use super::client::{Connection, granted, new_id, waiting};
use super::{Answer, Instance, Place, block_on, mebibytes, millis, pause};
use crate::measure::{Outcome, now, percentile};
use crate::report::{Report, Target};

/// How many wait, and how many of them begin at once: a wave begins when the one before is in the queue, so that their order is known.
const WAITERS: usize = 10_000;
const WAVE: usize = 100;
/// How many hand-overs are timed one by one.
const TIMED: usize = 200;
/// How long nothing happens while the processor time is measured.
const IDLE: Duration = Duration::from_secs(10);
const NAME: &str = "line";

/// A client that was granted the lock.
struct Grant {
    number: usize,
    id: String,
    token: u64,
    at: Instant,
    connection: Connection,
}

impl Grant {
    async fn release(&mut self) -> Answer<()> {
        let path = format!("/v1/claims/{}?name={NAME}", self.id);
        self.connection.ask("DELETE", &path, "").await?.must_be(200).map(drop)
    }
}

async fn claim(address: SocketAddr, number: usize) -> Answer<Grant> {
    let (id, mut connection) = (new_id(), Connection::open(address).await?);
    let said = granted(&mut connection, &[], &id, NAME).await?;
    let token = said.number("token").ok_or("a grant without a token")?;
    Ok(Grant { number, id, token, at: now(), connection })
}

/// What was seen.
struct Seen {
    before: u64,
    full: u64,
    idle: f64,
    hand_overs: Vec<Duration>,
    changes: f64,
    after: u64,
}

pub(crate) fn waiters(report: &mut Report) -> Outcome {
    let place = Place::start().map_err(|error| error as Box<dyn std::error::Error>)?;
    let count = if report.is_short { WAITERS / 10 } else { WAITERS };
    let instance = place.serve().map_err(|error| error as Box<dyn std::error::Error>)?;
    let seen = block_on(wait(&instance, count))?;
    let keys = place.keys();
    let row = |what: &str| format!("serve, {count} waiters: {what}");
    report.add(
        &row("resident memory"),
        format!("{:.0} MiB", mebibytes(seen.full)),
        format!("before: {:.0} MiB", mebibytes(seen.before)),
        mebibytes(seen.full),
        Target::AtMost(300.0, "≤ 300 MiB"),
    );
    report.add(
        &row("idle"),
        format!("{:.0} % of a processor", seen.idle),
        "-".to_owned(),
        seen.idle,
        Target::AtMost(25.0, "≤ 25 %"),
    );
    let (p50, p99) = (percentile(&seen.hand_overs, 50), percentile(&seen.hand_overs, 99));
    for (name, value, target) in
        [("p50", p50, Target::AtMost(3.0, "≤ 3 ms")), ("p99", p99, Target::AtMost(25.0, "≤ 25 ms"))]
    {
        let what = row(&format!("release to the next one's answer, {name}"));
        report.add(&what, format!("{:.2} ms", millis(value)), "-".to_owned(), millis(value), target);
    }
    report.add(
        &row("drained one by one"),
        format!("{:.0} changes/s", seen.changes),
        "-".to_owned(),
        seen.changes,
        Target::AtLeast(2000.0, "≥ 2,000/s"),
    );
    report.add(
        &row("resident memory afterwards"),
        format!("{:.0} MiB", mebibytes(seen.after)),
        format!("{keys} keys are left in the store"),
        seen.after as f64 / seen.full as f64,
        Target::AtMost(0.5, "≤ 0.5"),
    );
    Ok(())
}

/// Renews a hold until it is told to stop.
async fn keep(mut grant: Grant, mut stop: oneshot::Receiver<()>) -> Answer<Grant> {
    let (path, body) = (format!("/v1/claims/{}/renew", grant.id), format!("{{\"name\":\"{NAME}\"}}"));
    loop {
        tokio::select! {
            _ = &mut stop => return Ok(grant),
            () = pause(Duration::from_secs(5)) => {
                grant.connection.ask("POST", &path, &body).await?.must_be(200)?;
            }
        }
    }
}

async fn wait(instance: &Instance, count: usize) -> Answer<Seen> {
    let address = instance.address();
    let mut control = Connection::open(address).await?;
    let before = instance.resident();
    let (stop, stopped) = oneshot::channel();
    let holding = tokio::spawn(keep(claim(address, 0).await?, stopped));
    let is_drained = Arc::new(AtomicBool::new(false));
    let (granting, mut grants) = mpsc::unbounded_channel();
    for wave in 0..count / WAVE {
        for number in wave * WAVE..(wave + 1) * WAVE {
            let (granting, is_drained) = (granting.clone(), is_drained.clone());
            tokio::spawn(async move {
                let mut grant = claim(address, number).await;
                if let (Ok(grant), true) = (&mut grant, is_drained.load(Ordering::Relaxed)) {
                    // The waiters behind it notice what goes wrong.
                    grant.release().await.ok();
                }
                granting.send(grant).ok();
            });
        }
        while waiting(&mut control, NAME).await? < ((wave + 1) * WAVE) as u64 {
            if let Ok(early) = grants.try_recv() {
                return Err(format!("somebody did not wait: {:?}", early.map(|grant| grant.number)).into());
            }
            pause(Duration::from_millis(5)).await;
        }
    }
    pause(Duration::from_secs(2)).await;
    let full = instance.resident();
    let (cpu, began) = (instance.cpu(), now());
    pause(IDLE).await;
    let idle = (instance.cpu() - cpu).as_secs_f64() * 100.0 / now().since(began).as_secs_f64();
    // It waits for that.
    stop.send(()).ok();
    let mut holder = holding.await??;
    let (mut hand_overs, mut order) = (Vec::new(), Vec::new());
    for _ in 0..TIMED {
        let released_at = now();
        holder.release().await?;
        let next = grants.recv().await.ok_or("nobody is left")??;
        hand_overs.push(next.at.since(released_at));
        order.push((next.token, next.number / WAVE));
        holder = next;
    }
    is_drained.store(true, Ordering::Relaxed);
    let began = now();
    holder.release().await?;
    for _ in TIMED..count {
        let next = grants.recv().await.ok_or("nobody is left")??;
        order.push((next.token, next.number / WAVE));
    }
    let changes = (count - TIMED) as f64 / now().since(began).as_secs_f64();
    order.sort_unstable();
    if !order.is_sorted_by_key(|(_, wave)| *wave) {
        return Err("somebody was overtaken by who came later".into());
    }
    pause(Duration::from_secs(5)).await;
    let left = control.ask("GET", &format!("/v1/resource?name={NAME}"), "").await?;
    if left.status != 404 {
        return Err(format!("somebody is left: {}", left.body).into());
    }
    Ok(Seen { before, full, idle, hand_overs, changes, after: instance.resident() })
}
