//! `tenure queue replay` and `purge`: what an operator does with items.

use serde_json::json;
use tenure::queue::ItemId;

use super::arguments::{Purge, Replay};
use crate::connect::connect_blocking;
use crate::exit::{self, Failure, Outcome};
use crate::output::audit::{self, Act};
use crate::output::data::{write_data, write_json};
use crate::output::question;

/// Puts dead letters in line again.
pub(crate) fn replay(replay: &Replay, engine: &str) -> Outcome {
    let tenure = connect_blocking(engine)?;
    let answer = pollster::block_on(tenure.queue(&replay.name).replay(replay.item.map(ItemId)));
    let detail = which(replay.item, "dead letters");
    audit::tell(
        &tenure,
        engine,
        &Act { what: "queue replay", name: &replay.name, detail: &detail },
        &answer,
        |count| format!("{count} in line again"),
    );
    let count = answer?;
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
    let tell = |answer: &tenure::Result<u64>, what: &str| {
        let act = Act { what: "queue purge", name, detail: &which(*item, what) };
        audit::tell(&tenure, engine, &act, answer, |count| format!("{count} removed"));
    };
    if is_waiting {
        let answer = pollster::block_on(queue.purge(item.map(ItemId)));
        tell(&answer, "items that wait");
        count += answer?;
    }
    if is_dead && (item.is_none() || count == 0) {
        let answer = pollster::block_on(queue.purge_dead(item.map(ItemId)));
        tell(&answer, "dead letters");
        count += answer?;
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

/// `item 17`, or what else is meant.
fn which(item: Option<u64>, what: &str) -> String {
    item.map_or_else(|| what.to_owned(), |item| format!("item {item} of the {what}"))
}

/// `1 item is`, `2 items are`.
fn counted(count: u64, what: &str, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {what} {one}") } else { format!("{count} {what}s {many}") }
}
