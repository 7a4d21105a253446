//! `tenure queue`: put work in line, do it in order, and inspect what is there.
//!
//! `work.rs` runs programs for items, `worker_pool.rs` is its loop; the others make one call of the library each.

pub(crate) mod arguments;
mod item_info;
mod list;
mod operate;
mod progress;
mod push;
mod settlement;
mod work;
mod worker_pool;

use crate::exit::Outcome;
use crate::output::messages::Messages;
use arguments::Queue;

impl Queue {
    /// Returns how messages are to be shown.
    pub(crate) fn messages(&self) -> Messages {
        match self {
            Queue::Work(work) => Messages { json: work.json, quiet: work.quiet },
            _ => Messages::TEXT,
        }
    }
}

/// Runs a command on a queue.
pub(crate) fn queue(queue: Queue, engine: &str, messages: Messages) -> Outcome {
    match queue {
        Queue::Push(push) => push::push(push, engine),
        Queue::Work(work) => work::work(*work, engine, messages),
        Queue::Ls(ls) => list::list_queues(&ls, engine),
        Queue::Peek(peek) => list::list_items(&peek, engine),
        Queue::Dead(dead) => list::list_dead_letters(&dead, engine),
        Queue::Replay(replay) => operate::replay(&replay, engine),
        Queue::Purge(purge) => operate::purge(&purge, engine),
    }
}
