//! `tenure queue`: put work in line, do it in order, and look at what is there.
//!
//! `work.rs` runs programs for items, `worker_pool.rs` is its loop; the others are one call of the library each.

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

/// Does what is asked of a queue.
pub(crate) fn queue(queue: Queue, engine: &str, messages: Messages) -> Outcome {
    match queue {
        Queue::Push(push) => push::push(push, engine),
        Queue::Work(work) => work::work(*work, engine, messages),
        Queue::Ls(ls) => list::ls(&ls, engine),
        Queue::Peek(peek) => list::peek(&peek, engine),
        Queue::Dead(dead) => list::dead(&dead, engine),
        Queue::Replay(replay) => operate::replay(&replay, engine),
        Queue::Purge(purge) => operate::purge(&purge, engine),
    }
}
