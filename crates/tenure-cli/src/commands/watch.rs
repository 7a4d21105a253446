//! `tenure watch`: each change of one lock, one line each.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::{HoldView, Token, View};

use crate::clock;
use crate::connect::connect_blocking;
use crate::duration::{format_duration, millis};
use crate::exit::{self, Outcome};
use crate::output::data::write_data;
use crate::output::holder::Holder;

const EXAMPLE: &str = "\
Example:
  tenure watch backup --json    from now on, for programs";

/// Show each change of a lock, one line each, until interrupted
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{}", exit::QUERY_HELP))]
pub(crate) struct Watch {
    /// The lock
    pub(crate) name: String,
    /// Write JSON objects, one a line: their fields are in docs/command.md; times are whole milliseconds (`_ms`)
    #[arg(long)]
    pub(crate) json: bool,
}

/// A change. Field names are stable; times are whole milliseconds.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Change<'a> {
    /// It was held already when the watch began.
    Held { token: Token, holder: Holder<'a>, held_ms: u64, ends_in_ms: u64 },
    /// A claim was granted.
    Granted { token: Token, holder: Holder<'a>, ends_in_ms: u64 },
    /// A hold ended: it was released or broken, its holder died, or it was not renewed.
    Ended { token: Token, holder: Holder<'a> },
    /// Units rest: they are not held, and not granted yet.
    Resting { token: Token, holder: Holder<'a>, ends_in_ms: u64 },
    /// Another number of claims waits.
    Waiting { waiting: u32 },
    /// It is not held, and no claim waits.
    Idle,
}

/// A change as it is written.
#[derive(Debug, Serialize)]
struct Line<'a> {
    at: String,
    name: &'a str,
    #[serde(flatten)]
    change: Change<'a>,
    /// The slot that it is about, for a slot pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
}

/// Follows a lock until the reader or the engine is gone.
pub(crate) fn watch(watch: &Watch, engine: &str) -> Outcome {
    let tenure = connect_blocking(engine)?;
    let mut changes = tenure.observe(&watch.name)?;
    let mut is_first = true;
    let mut before: Option<View> = None;
    while let Some(view) = pollster::block_on(changes.next()) {
        let view = view?;
        for (change, slot) in compare(before.as_ref(), view.as_ref(), is_first) {
            let at = humantime::format_rfc3339_millis(clock::time_of_day()).to_string();
            let line = if watch.json {
                let line = Line { at, name: &watch.name, change, slot };
                serde_json::to_string(&line).expect("a change holds nothing that JSON has not")
            } else {
                let slot = slot.map_or(String::new(), |slot| format!("; slot {slot}"));
                format!("{at}  {}{slot}", text(&change))
            };
            if !write_data(&format!("{line}\n"))? {
                return Ok(0);
            }
        }
        is_first = false;
        before = view;
    }
    Ok(0)
}

/// Returns what happened between two views, and to which slot. A slow reader may have missed views in between.
fn compare<'a>(
    before: Option<&'a View>,
    after: Option<&'a View>,
    is_first: bool,
) -> Vec<(Change<'a>, Option<u32>)> {
    let holds = |view: Option<&'a View>| view.map(|view| &*view.holds).unwrap_or_default();
    let has = |holds: &[HoldView], hold: &HoldView| {
        holds.iter().any(|other| other.token == hold.token && other.claim == hold.claim)
    };
    let (old, new) = (holds(before), holds(after));
    let mut changes = Vec::new();
    for hold in old {
        if hold.claim.is_some() && !has(new, hold) {
            let (token, holder) = (hold.token, Holder::of(&hold.label));
            changes.push((Change::Ended { token, holder }, hold.slot));
        }
    }
    for hold in new {
        if has(old, hold) {
            continue;
        }
        let (token, holder) = (hold.token, Holder::of(&hold.label));
        let ends_in_ms = millis(hold.ends_in);
        let change = match hold.claim {
            None => Change::Resting { token, holder, ends_in_ms },
            Some(_) if is_first => Change::Held { token, holder, held_ms: millis(hold.held_for), ends_in_ms },
            Some(_) => Change::Granted { token, holder, ends_in_ms },
        };
        changes.push((change, hold.slot));
    }
    let waiting = |view: Option<&View>| view.map_or(0, |view| view.waiting);
    if waiting(before) != waiting(after) {
        changes.push((Change::Waiting { waiting: waiting(after) }, None));
    }
    if after.is_none() && (before.is_some() || is_first) {
        changes.push((Change::Idle, None));
    }
    changes
}

fn text(change: &Change<'_>) -> String {
    let span = |millis: &u64| format_duration(Duration::from_millis(*millis));
    match change {
        Change::Held { token, holder, held_ms, .. } => {
            format!("held      token {token} by {holder} for {}", span(held_ms))
        }
        Change::Granted { token, holder, .. } => format!("granted   token {token} to {holder}"),
        Change::Ended { token, holder } => format!("ended     token {token} of {holder}"),
        Change::Resting { token, holder, ends_in_ms } => {
            format!("resting   after token {token} of {holder}, for {}", span(ends_in_ms))
        }
        Change::Waiting { waiting } => format!("waiting   {waiting}"),
        Change::Idle => "idle".to_owned(),
    }
}
