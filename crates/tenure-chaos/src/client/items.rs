//! The producer: it pushes items of some groups, each until it is answered.

use std::time::Duration;

use pollster::block_on;
use tenure::ErrorKind;

use super::{PRODUCERS, QUEUE, Stage, pause};
use crate::history::now;

const GROUPS: usize = 6;
/// How long it rests between two pushes: consumers are to keep up, on a busy machine too.
const PUSH_EVERY_MS: std::ops::Range<u64> = 100..400;
/// Beyond so many items it waits.
const BACKLOG_MAX: u64 = 300;
/// After how many pushes it looks how many items there are.
const PUSHES_PER_LOOK: usize = 10;

/// Pushes until the faults are over.
pub(super) fn push(stage: &Stage) {
    push_all(stage);
    stage.is_through(PRODUCERS[0]);
}

fn push_all(stage: &Stage) {
    let queue = stage.tenure.queue(QUEUE);
    for number in 0.. {
        if stage.is_calm() || stage.is_over() {
            return;
        }
        let is_long =
            number % PUSHES_PER_LOOK == 0 && block_on(queue.depth()).is_ok_and(|depth| depth > BACKLOG_MAX);
        if is_long {
            pause(Duration::from_secs(1));
            continue;
        }
        let (item, group) = (format!("{}.{number}", stage.name), format!("g{}", fastrand::usize(0..GROUPS)));
        let asked = now();
        // Under a dedup id it may be repeated, and is remembered for minutes, longer than anything is broken.
        let push = async || queue.push(&item).group(&group).dedup(&item).await;
        while let Err(error) = block_on(push()) {
            stage.note("push", &error);
            if error.kind() != ErrorKind::Unavailable || stage.is_over() {
                return;
            }
            pause(Duration::from_millis(50));
        }
        stage.journal.write(&["pushed", &item, &group, &asked.to_string(), &now().to_string()]);
        pause(Duration::from_millis(fastrand::u64(PUSH_EVERY_MS)));
    }
}
