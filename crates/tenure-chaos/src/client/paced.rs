//! The queue with an interval: each client pushes and takes, and asks so that it is known when an item was handed out.

use std::time::Duration;

use pollster::block_on;
use tenure::ErrorKind;

use super::{PACED, PRODUCERS, Stage, pause};
use crate::history::now;

/// So few items wait that they are done soon after the last fault, whatever the interval.
const BACKLOG_MAX: u64 = 3;
/// How often a client asks within an interval. None waits: an item is then handed out while its request is under way.
const ASKS_PER_INTERVAL: u32 = 3;

/// Pushes and takes until it is over.
pub(super) fn work(stage: &Stage, interval: Duration) {
    let queue = stage.tenure.queue(PACED).interval(interval).ttl(stage.ttl).max_attempts(0);
    let noted = |error: &tenure::Error| stage.note("paced", error);
    let mut is_through = false;
    while !stage.is_over() {
        if stage.is_calm() && !std::mem::replace(&mut is_through, true) {
            stage.is_through(PRODUCERS[1]);
        }
        if !is_through && block_on(queue.depth()).is_ok_and(|depth| depth < BACKLOG_MAX) {
            // Nobody counts these: what becomes of a push that is not answered does not matter.
            drop(block_on(async { queue.push("").await }).inspect_err(noted));
        }
        let asked = now();
        match block_on(queue.try_next()) {
            Ok(Some(delivery)) => {
                stage.journal.write(&["dispatched", &asked.to_string(), &now().to_string()]);
                drop(block_on(delivery.ack()).inspect_err(noted));
            }
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            Err(error) => noted(&error),
        }
        pause(interval / ASKS_PER_INTERVAL);
    }
}
