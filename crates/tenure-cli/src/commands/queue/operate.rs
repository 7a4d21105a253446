//! `tenure queue replay` and `purge`: what an operator does with items.

use serde_json::json;
use tenure::queue::ItemId;

use super::arguments::{Purge, Replay};
use crate::connect::connect_blocking;
use crate::exit::{self, Failure, Outcome};
use crate::output::data::{write_data, write_json};
use crate::output::question;

/// Puts dead letters in line again.
pub(crate) fn replay(replay: &Replay, engine: &str) -> Outcome {
    let tenure = connect_blocking(engine)?;
    let count = pollster::block_on(tenure.queue(&replay.name).replay(replay.item.map(ItemId)))?;
    pollster::block_on(tenure.close());
    let name = &replay.name;
    if let (Some(item), 0) = (replay.item, count) {
        return Err(Failure::new(exit::USAGE, format!("{name:?} has no dead letter {item}"))
            .with_hint(format!("see `tenure queue dead {name}`")));
    }
    if replay.json {
        write_json(&json!({ "queue": name, "replayed": count }))?;
    } else {
        write_data(&format!("{} in line again in {name:?}\n", counted(count, "dead letter", "is", "are")))?;
    }
    Ok(0)
}

/// Removes items.
pub(crate) fn purge(purge: &Purge, engine: &str) -> Outcome {
    let Purge { name, item, .. } = purge;
    if item.is_none() && !purge.dead && !purge.waiting {
        return Err(Failure::new(exit::USAGE, format!("it is not said what of {name:?} is to be removed"))
            .with_hint("say `--dead`, `--waiting` or both, or the number of an item"));
    }
    question::check_can_ask("removing items", purge.force)?;
    // A number alone means the item, wherever it is.
    let is_one = item.is_some() && !purge.dead && !purge.waiting;
    let (is_dead, is_waiting) = (purge.dead || is_one, purge.waiting || is_one);
    let tenure = connect_blocking(engine)?;
    let queue = tenure.queue(name);
    if !purge.force {
        let stats = pollster::block_on(queue.stats())?;
        let dead = counted(stats.dead, "dead letter", "", "");
        let waiting = counted(stats.waiting, "item", "that waits", "that wait");
        let what = match (item, is_dead, is_waiting) {
            (Some(item), ..) => format!("item {item}"),
            (None, true, true) => format!("{}, and {waiting},", dead.trim_end()),
            (None, true, false) => dead,
            (None, false, _) => waiting,
        };
        if !question::ask(&format!("Remove {} from {name:?}? It cannot be undone.", what.trim_end()))? {
            return Ok(exit::DECLINED);
        }
    }
    let mut count = 0;
    if is_waiting {
        count += pollster::block_on(queue.purge(item.map(ItemId)))?;
    }
    if is_dead && (item.is_none() || count == 0) {
        count += pollster::block_on(queue.purge_dead(item.map(ItemId)))?;
    }
    pollster::block_on(tenure.close());
    if let (Some(item), 0) = (item, count) {
        return Err(Failure::new(exit::USAGE, format!("{name:?} has no item {item} that could be removed"))
            .with_hint("what a consumer has stays; see `tenure queue peek` and `tenure queue dead`"));
    }
    if purge.json {
        write_json(&json!({ "queue": name, "removed": count }))?;
    } else {
        write_data(&format!("{} removed from {name:?}\n", counted(count, "item", "was", "were")))?;
    }
    Ok(0)
}

/// `1 item is`, `2 items are`.
fn counted(count: u64, what: &str, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {what} {one}") } else { format!("{count} {what}s {many}") }
}
