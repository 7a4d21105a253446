//! Pairs of acquire and release of free locks, from one process.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Settings;

use super::peers::{call_scripts, use_rslock};
use super::{Done, Measured, Place, Tally, Users, measure, one_worker};
use crate::measure::{Outcome, median};
use crate::report::{Report, Target};

/// How long each side is measured in a round.
const PERIOD: Duration = Duration::from_millis(1000);
const ROUNDS: usize = 5;

/// What is measured with how many tasks.
struct Level {
    tasks: usize,
    /// How the bare scripts are called: so many calls under way, with so many claims each.
    calls: usize,
    claims_per_call: usize,
    against_rslock: Target,
    against_scripts: Option<Target>,
}

const LEVELS: [Level; 3] = [
    Level {
        tasks: 1,
        calls: 1,
        claims_per_call: 1,
        against_rslock: Target::AtLeast(0.9, "≥ 0.9"),
        against_scripts: None,
    },
    Level {
        tasks: 64,
        calls: 2,
        claims_per_call: 32,
        against_rslock: Target::AtLeast(1.5, "≥ 1.5"),
        against_scripts: Some(Target::AtLeast(0.8, "≥ 0.8")),
    },
    Level {
        tasks: 1024,
        calls: 2,
        claims_per_call: 128,
        against_rslock: Target::AtLeast(2.3, "≥ 2.3"),
        against_scripts: Some(Target::AtLeast(0.8, "≥ 0.8")),
    },
];

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    let place = Place::start()?;
    for level in &LEVELS {
        let (mut ours, mut rslock, mut scripts) = (Side::default(), Side::default(), Side::default());
        for _ in 0..ROUNDS {
            let settings = Settings::new();
            ours.add(&one_worker()?.block_on(tenure_pairs(&place, level.tasks, settings))?);
            rslock.add(&one_worker()?.block_on(rslock_pairs(&place, level.tasks))?);
            scripts.add(&one_worker()?.block_on(script_pairs(&place, level))?);
        }
        let Level { tasks, calls, claims_per_call, .. } = level;
        report.add(
            &format!("redis, uncontended, {tasks} task(s): pairs against rslock"),
            ours.text(),
            format!("rslock: {}", rslock.text()),
            ours.rate() / rslock.rate(),
            level.against_rslock,
        );
        report.add(
            &format!("redis, uncontended, {tasks} task(s): pairs against the bare scripts"),
            ours.text(),
            format!("{calls} call(s) of {claims_per_call} under way: {}", scripts.text()),
            ours.rate() / scripts.rate(),
            level.against_scripts.unwrap_or(Target::None),
        );
    }
    Ok(())
}

/// The measurements of one side.
#[derive(Default)]
struct Side {
    rates: Vec<f64>,
    /// Processor time of a pair, in microseconds.
    server: Vec<f64>,
    client: Vec<f64>,
    /// Calls of a script for a pair.
    calls: Vec<f64>,
}

impl Side {
    fn add(&mut self, measured: &Measured) {
        let micros = |seconds: f64| seconds * 1e6 / measured.total();
        self.rates.push(measured.rate());
        self.server.push(micros(measured.server));
        self.client.push(micros(measured.client));
        self.calls.push(measured.calls as f64 / measured.total());
    }

    fn rate(&self) -> f64 {
        median(&self.rates)
    }

    fn text(&self) -> String {
        let (rate, server, client) = (self.rate() / 1000.0, median(&self.server), median(&self.client));
        let calls = median(&self.calls);
        format!(
            "{rate:.1} k pairs/s (a pair: {server:.1} µs server, {client:.1} µs client, {calls:.3} calls)"
        )
    }
}

/// What it costs a crowd that its client counts.
pub(crate) fn counted(report: &mut Report) -> Outcome {
    const TASKS: usize = 1024;
    let place = Place::start()?;
    let (mut off, mut on) = (Side::default(), Side::default());
    for _ in 0..2 * ROUNDS {
        for (side, is_on) in [(&mut off, false), (&mut on, true)] {
            let pairs = tenure_pairs(&place, TASKS, Settings::new().counts(is_on));
            side.add(&one_worker()?.block_on(pairs)?);
        }
    }
    report.add(
        &format!("counts on: redis, {TASKS} tasks"),
        on.text(),
        format!("counts off: {}", off.text()),
        on.rate() / off.rate(),
        Target::AtLeast(0.97, "≥ 0.97"),
    );
    Ok(())
}

async fn tenure_pairs(
    place: &Place,
    tasks: usize,
    settings: Settings,
) -> Result<Measured, Box<dyn std::error::Error>> {
    place.clear();
    let tenure = tenure::connect_with(&place.url(), settings).await?;
    let (tally, mut users) = (Tally::new(tasks), Users::new());
    for user in 0..tasks {
        let (mutex, tally) = (tenure.mutex(&format!("bench/{user}")), tally.clone());
        users.spawn(async move {
            loop {
                let lease = mutex.acquire().await?;
                tally.held_by(user);
                lease.release().await?;
            }
        });
    }
    let measured = measure(place, &tally, users, PERIOD, &["evalsha", "fcall"]).await;
    tenure.close().await;
    measured
}

async fn rslock_pairs(place: &Place, tasks: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    place.clear();
    let manager = rslock::LockManager::new(vec![place.url()]);
    let (tally, mut users) = (Tally::new(tasks), Users::new());
    for user in 0..tasks {
        users.spawn(use_rslock(manager.clone(), format!("rslock/{user}"), user, tally.clone()));
    }
    measure(place, &tally, users, PERIOD, &["evalsha", "fcall"]).await
}

async fn script_pairs(place: &Place, level: &Level) -> Result<Measured, Box<dyn std::error::Error>> {
    place.clear();
    let connection = place.connection().await?;
    let (tally, mut users): (Arc<Tally>, Users) = (Tally::new(level.calls), Users::new());
    for user in 0..level.calls {
        let names = (0..level.claims_per_call).map(|number| format!("bench/{user}/{number}")).collect();
        let work = call_scripts(connection.clone(), names, user, tally.clone());
        users.spawn(async move { work.await as Done });
    }
    measure(place, &tally, users, PERIOD, &["evalsha", "fcall"]).await
}
