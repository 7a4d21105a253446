//! `tenure watch`: each change of one lock, one line each; and of many, as surveys show them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::{HoldView, Name, Printable, Tenure, Token, View};
use tenure_core::survey::{NAMES_MAX, Survey, Surveyor};

use crate::clock;
use crate::connect::connect_blocking;
use crate::duration::{format_duration, millis};
use crate::exit::{self, Failure, Outcome};
use crate::output::data::write_data;
use crate::output::holder::Holder;
use crate::output::messages::Messages;

const WATCH_HELP: &str = "\
Shows each change of a lock as it happens, one line each, until interrupted.

Of many locks, PREFIX/ or --prefix, it shows what has changed from one look at the store to the next: each 2 s, or less often where a look \
takes long, since looks take 5 % of the time at most. What comes and goes between two looks is not seen.";

const EXAMPLES: &str = "\
Examples:
  tenure watch backup --json    from now on, for programs
  tenure watch billing/         all whose names begin with billing/
  tenure watch --prefix ''      all there are";

/// How often it asks for a survey. How often there is one, the surveyor decides.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Show each change of a lock, or of many, one line each, until interrupted
#[derive(Debug, Args)]
#[command(long_about = WATCH_HELP, after_help = format!("{EXAMPLES}\n\n{}", exit::QUERY_HELP))]
pub(crate) struct Watch {
    /// The lock; one that ends in / is the beginning of many
    #[arg(required_unless_present = "prefix", conflicts_with = "prefix")]
    pub(crate) name: Option<String>,
    /// All names that begin with this
    #[arg(long, value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
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

/// How a change is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    /// As text, of one lock.
    One,
    /// As text, with the name.
    Many,
}

/// Follows a lock, or many, until the reader or the engine is gone.
pub(crate) fn watch(watch: &Watch, engine: &str) -> Outcome {
    let tenure = connect_blocking(engine)?;
    match (&watch.name, &watch.prefix) {
        (Some(name), _) if !name.ends_with('/') => {
            watch_one(name, if watch.json { Form::Json } else { Form::One }, &tenure)
        }
        (Some(prefix), _) | (None, Some(prefix)) => {
            watch_many(prefix, if watch.json { Form::Json } else { Form::Many }, &tenure)
        }
        (None, None) => unreachable!("one of the two is required"),
    }
}

fn watch_one(name: &str, form: Form, tenure: &Tenure) -> Outcome {
    let mut changes = tenure.observe(name)?;
    let mut is_first = true;
    let mut before: Option<View> = None;
    while let Some(view) = pollster::block_on(changes.next()) {
        let view = view?;
        if !write(name, compare(before.as_ref(), view.as_ref(), is_first), form)? {
            return Ok(0);
        }
        is_first = false;
        before = view;
    }
    Ok(0)
}

/// Follows many. A store that is away for a while ends nothing.
fn watch_many(prefix: &str, form: Form, tenure: &Tenure) -> Outcome {
    let surveyor = Surveyor::new(tenure).prefix(prefix);
    let mut before = pollster::block_on(surveyor.latest())?;
    if !before.is_whole {
        let text = format!("there are more than {NAMES_MAX} names, and the rest of them is not watched");
        Messages::TEXT.warning(&text);
    }
    for (name, view) in readable(&before) {
        if !write(name.as_str(), compare(None, Some(view), true), form)? {
            return Ok(0);
        }
    }
    let mut is_away = false;
    loop {
        clock::rest(LOOK_EVERY);
        let survey = match pollster::block_on(surveyor.latest()) {
            Ok(survey) => survey,
            Err(_) if is_away => continue,
            Err(error) => {
                is_away = true;
                Messages::TEXT.warning(&format!("{error}; looking again"));
                continue;
            }
        };
        is_away = false;
        if !Arc::ptr_eq(&before, &survey) && !write_differences(&before, &survey, form)? {
            return Ok(0);
        }
        before = survey;
    }
}

/// The names of a survey that can be read, and what is held of them.
fn readable(survey: &Survey) -> BTreeMap<&Name, &View> {
    survey.locks.iter().filter_map(|(name, view)| Some((name, view.as_ref().ok()?))).collect()
}

/// Writes what is another than before, by name. Of what could not be read before or cannot now, nothing is known.
fn write_differences(before: &Survey, after: &Survey, form: Form) -> Result<bool, Failure> {
    let (old, new) = (readable(before), readable(after));
    let is_unknown = |survey: &Survey, name: &Name| {
        survey.locks.iter().any(|(other, view)| other == name && view.is_err())
    };
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    let names: std::collections::BTreeSet<&Name> = new.keys().chain(gone).copied().collect();
    for name in names {
        let (one, other) = (old.get(name).copied(), new.get(name).copied());
        if (one.is_none() && is_unknown(before, name)) || (other.is_none() && is_unknown(after, name)) {
            continue;
        }
        if !write(name.as_str(), compare(one, other, false), form)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes changes of a lock. Returns whether there still is a reader.
fn write(name: &str, changes: Vec<(Change<'_>, Option<u32>)>, form: Form) -> Result<bool, Failure> {
    for (change, slot) in changes {
        let at = humantime::format_rfc3339_millis(clock::time_of_day()).to_string();
        let line = if form == Form::Json {
            let line = Line { at, name, change, slot };
            serde_json::to_string(&line).expect("a change holds nothing that JSON has not")
        } else {
            let slot = slot.map_or(String::new(), |slot| format!("; slot {slot}"));
            let name = if form == Form::Many { format!("{}  ", Printable(name)) } else { String::new() };
            format!("{at}  {name}{}{slot}", text(&change))
        };
        if !write_data(&format!("{line}\n"))? {
            return Ok(false);
        }
    }
    Ok(true)
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
