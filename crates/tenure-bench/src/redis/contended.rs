//! One lock that many clients want, held for no time: how often it changes hands, how evenly, and at what cost.

use std::time::Duration;

use super::peers::{BlpopLock, use_blpop, use_rslock};
use super::{Measured, Place, Tally, Users, measure, one_thread};
use crate::measure::{Outcome, median};
use crate::report::{Report, Target};

const WAITERS: [usize; 2] = [8, 64];
const ROUNDS: usize = 5;
/// How long each side is measured in a round.
const PERIOD: Duration = Duration::from_millis(2000);

pub(crate) fn contended(report: &mut Report) -> Outcome {
    let place = Place::start()?;
    let mut rates = Vec::new();
    for waiters in WAITERS {
        let (mut ours, mut blpop, mut rslock) = (Side::default(), Side::default(), Side::default());
        for _ in 0..ROUNDS {
            ours.add(&one_thread()?.block_on(tenure(&place, waiters))?);
            blpop.add(&one_thread()?.block_on(blpop_lock(&place, waiters))?);
            rslock.add(&one_thread()?.block_on(rslock_lock(&place, waiters))?);
        }
        rates.push(median(&ours.rates));
        add(report, waiters, &ours, &blpop, &rslock);
    }
    report.add(
        "redis, contended: owner changes with 64 waiters against 8",
        format!("{:.1} k/s", rates[1] / 1000.0),
        format!("{:.1} k/s", rates[0] / 1000.0),
        rates[1] / rates[0],
        Target::AtLeast(0.85, "within 15 %"),
    );
    Ok(())
}

fn add(report: &mut Report, waiters: usize, ours: &Side, blpop: &Side, rslock: &Side) {
    let what = |what: &str| format!("redis, contended, {waiters} waiters: {what}");
    report.add(
        &what("owner changes against a lock with BLPOP"),
        ours.text(),
        blpop.text(),
        median(&ours.rates) / median(&blpop.rates),
        Target::AtLeast(3.5, "≥ 3.5"),
    );
    report.add(
        &what("owner changes against rslock"),
        ours.text(),
        rslock.text(),
        median(&ours.rates) / median(&rslock.rates),
        Target::None,
    );
    report.add(
        &what("most acquisitions of a waiter against fewest"),
        format!("{:.2}", median(&ours.spread)),
        format!("BLPOP: {:.2}, rslock: {:.2}", median(&blpop.spread), median(&rslock.spread)),
        median(&ours.spread),
        Target::AtMost(1.05, "≤ 1.05"),
    );
    report.add(
        &what("commands for a change of owners"),
        format!("{:.2}", median(&ours.commands)),
        format!("BLPOP: {:.2}, rslock: {:.0}", median(&blpop.commands), median(&rslock.commands)),
        median(&ours.commands),
        // Heartbeats of those who wait come on top.
        Target::AtMost(3.05, "≤ 3"),
    );
}

/// The measurements of one side.
#[derive(Default)]
struct Side {
    /// Owner changes per second.
    rates: Vec<f64>,
    /// The most acquisitions of a waiter by the fewest.
    spread: Vec<f64>,
    commands: Vec<f64>,
    /// Processor time for a change of owners, in microseconds.
    server: Vec<f64>,
    client: Vec<f64>,
}

impl Side {
    fn add(&mut self, measured: &Measured) {
        let changes = measured.owner_changes as f64;
        let (fewest, most) = (measured.holds.iter().min(), measured.holds.iter().max());
        self.rates.push(changes / measured.seconds);
        self.spread.push(*most.unwrap_or(&0) as f64 / *fewest.unwrap_or(&0) as f64);
        self.commands.push(measured.calls as f64 / changes);
        self.server.push(measured.server * 1e6 / changes);
        self.client.push(measured.client * 1e6 / changes);
    }

    fn text(&self) -> String {
        let (rate, server, client) = (median(&self.rates), median(&self.server), median(&self.client));
        format!("{rate:.0}/s ({server:.0} µs server, {client:.0} µs client)")
    }
}

async fn tenure(place: &Place, waiters: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    place.clear();
    let (tally, mut users) = (Tally::new(waiters), Users::new());
    let mut clients = Vec::with_capacity(waiters);
    for user in 0..waiters {
        let client = tenure::connect(&place.url()).await?;
        let (mutex, tally) = (client.mutex("contended"), tally.clone());
        clients.push(client);
        users.spawn(async move {
            loop {
                let lease = mutex.acquire().await?;
                tally.held_by(user);
                lease.release().await?;
            }
        });
    }
    let measured = measure(place, &tally, users, PERIOD, &["evalsha", "fcall"]).await;
    for client in clients {
        client.close().await;
    }
    measured
}

async fn blpop_lock(place: &Place, waiters: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    place.clear();
    let (tally, mut users) = (Tally::new(waiters), Users::new());
    for user in 0..waiters {
        let lock = BlpopLock::new(place.connection().await?, "contended", user);
        users.spawn(use_blpop(lock, user, tally.clone()));
    }
    measure(place, &tally, users, PERIOD, &["set", "blpop", "evalsha", "fcall"]).await
}

async fn rslock_lock(place: &Place, waiters: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    place.clear();
    let (tally, mut users) = (Tally::new(waiters), Users::new());
    for user in 0..waiters {
        let manager = rslock::LockManager::new(vec![place.url()]);
        users.spawn(use_rslock(manager, "rslock".to_owned(), user, tally.clone()));
    }
    measure(place, &tally, users, PERIOD, &["set", "evalsha", "fcall"]).await
}
