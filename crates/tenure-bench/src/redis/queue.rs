//! Items through a queue: push, take, acknowledge.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tenure_core::Queue;
use tenure_testkit::foreign::node;

use super::{Done, Measured, Place, Tally, Users, measure, one_worker};
use crate::foreign;
use crate::measure::{Outcome, median};
use crate::report::{Report, Target};

/// How long each side is measured in a round.
const PERIOD: Duration = Duration::from_millis(1000);
const ROUNDS: usize = 5;
/// As large as an order or an event is.
const PAYLOAD: [u8; 100] = [b'x'; 100];
/// How many tasks, and how many items for one of the bare commands and of BullMQ are wanted.
const LEVELS: [(usize, Target, Target); 2] = [
    (1, Target::AtLeast(0.5, "≥ 0.5"), Target::AtLeast(1.0, "≥ 1.0")),
    (64, Target::AtLeast(0.5, "≥ 0.5"), Target::AtLeast(2.0, "≥ 2.0")),
];
/// The commands that only clients call here.
const CALLS: [&str; 5] = ["fcall", "evalsha", "lpush", "rpoplpush", "lrem"];

pub(crate) fn queue(report: &mut Report) -> Outcome {
    let place = Place::start()?;
    for (tasks, against_commands, against_bullmq) in LEVELS {
        let (mut ours, mut grouped, mut bare, mut bullmq) =
            (Side::default(), Side::default(), Side::default(), Vec::new());
        for _ in 0..ROUNDS {
            ours.add(&one_worker()?.block_on(tenure_items(&place, tasks, false))?);
            grouped.add(&one_worker()?.block_on(tenure_items(&place, tasks, true))?);
            bare.add(&one_worker()?.block_on(bare_items(&place, tasks))?);
        }
        for _ in 0..3 {
            bullmq.push(bullmq_items(&place, tasks)?);
        }
        let what =
            |against: &str| format!("redis, queue, {tasks} task(s): items (push, next, ack) {against}");
        report.add(
            &what("against LPUSH, RPOPLPUSH, LREM"),
            ours.text(),
            bare.text(),
            ours.rate() / bare.rate(),
            against_commands,
        );
        report.add(
            &what("in a group for each task, against the same"),
            grouped.text(),
            bare.text(),
            grouped.rate() / bare.rate(),
            Target::None,
        );
        let theirs = median(&bullmq);
        report.add(
            &what("against BullMQ"),
            ours.text(),
            format!("{:.1} k items/s", theirs / 1000.0),
            ours.rate() / theirs,
            against_bullmq,
        );
    }
    Ok(())
}

/// The measurements of one side.
#[derive(Default)]
struct Side {
    rates: Vec<f64>,
    /// Processor time of an item, in microseconds.
    server: Vec<f64>,
    client: Vec<f64>,
    /// Calls for an item.
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
            "{rate:.1} k items/s (an item: {server:.1} µs server, {client:.1} µs client, {calls:.3} calls)"
        )
    }
}

async fn tenure_items(
    place: &Place,
    tasks: usize,
    is_grouped: bool,
) -> Result<Measured, Box<dyn std::error::Error>> {
    place.clear();
    let tenure = tenure::connect(&place.url()).await?;
    let (tally, mut users) = (Tally::new(tasks), Users::new());
    for user in 0..tasks {
        let group = is_grouped.then(|| format!("group {user}"));
        users.spawn(use_queue(tenure.queue("bench"), group, user, tally.clone()));
    }
    let measured = measure(place, &tally, users, PERIOD, &CALLS).await;
    tenure.close().await;
    measured
}

async fn use_queue(queue: Queue, group: Option<String>, user: usize, tally: Arc<Tally>) -> Done {
    loop {
        let push = queue.push(PAYLOAD);
        match &group {
            Some(group) => push.group(group).await?,
            None => push.await?,
        };
        queue.next().await?.ack().await?;
        tally.held_by(user);
    }
}

async fn bare_items(place: &Place, tasks: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    place.clear();
    let connection = place.connection().await?;
    let (tally, mut users) = (Tally::new(tasks), Users::new());
    for user in 0..tasks {
        users.spawn(use_list(connection.clone(), user, tally.clone()));
    }
    measure(place, &tally, users, PERIOD, &CALLS).await
}

/// A queue as many make it by hand: a list, and a list of what is in flight.
async fn use_list(mut connection: MultiplexedConnection, user: usize, tally: Arc<Tally>) -> Done {
    let payload = [&PAYLOAD[..], format!(" {user}").as_bytes()].concat();
    loop {
        redis::cmd("LPUSH").arg("list").arg(&payload).exec_async(&mut connection).await?;
        let mut take = redis::cmd("RPOPLPUSH");
        let item: Vec<u8> = take.arg("list").arg("flight").query_async(&mut connection).await?;
        redis::cmd("LREM").arg("flight").arg(1).arg(item).exec_async(&mut connection).await?;
        tally.held_by(user);
    }
}

/// Returns how many items a second go through BullMQ: so many producers and as many jobs under way at a time.
fn bullmq_items(place: &Place, tasks: usize) -> Result<f64, Box<dyn std::error::Error>> {
    place.clear();
    let mut node = node();
    node.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign/bullmq_items.js"));
    node.args([place.server.port().to_string(), tasks.to_string()]);
    node.args([foreign::WARM_UP, foreign::PERIOD].map(|period| period.as_secs_f64().to_string()));
    let output = node.output()?;
    if !output.status.success() {
        return Err(format!("`cargo xtask setup` installs BullMQ: {output:?}").into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
