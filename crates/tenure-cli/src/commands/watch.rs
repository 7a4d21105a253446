//! `tenure watch`: each change of one lock, one line each; and of many, as surveys show them.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::{HoldView, Printable, Tenure, Token, View};
use tenure_core::model::inspect;
use tenure_core::survey::{NAMES_MAX, Surveyor};

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
    let mut before: Option<Option<View>> = None;
    while let Some(view) = pollster::block_on(changes.next()) {
        let view = view?;
        let happened = match &before {
            None => inspect::at_first(view.as_ref()),
            Some(before) => inspect::changes(before.as_ref(), view.as_ref()),
        };
        // A slow reader may have missed views in between.
        if !write(name, &happened, form)? {
            return Ok(0);
        }
        before = Some(view);
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
    for (name, view) in &before.locks {
        if let Ok(view) = view
            && !write(name.as_str(), &inspect::at_first(Some(view)), form)?
        {
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
        for (name, changes) in survey.changes(&before) {
            if !write(name.as_str(), &changes, form)? {
                return Ok(0);
            }
        }
        before = survey;
    }
}

/// Writes changes of a lock. Returns whether there still is a reader.
fn write(name: &str, changes: &[inspect::Change<'_>], form: Form) -> Result<bool, Failure> {
    for (change, slot) in changes.iter().filter_map(written) {
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

/// Returns a change as it is written, and the slot that it is about.
fn written<'a>(change: &inspect::Change<'a>) -> Option<(Change<'a>, Option<u32>)> {
    let of = |hold: &'a HoldView| (hold.token, Holder::of(&hold.label), millis(hold.ends_in));
    Some(match *change {
        inspect::Change::Held(hold) => {
            let (token, holder, ends_in_ms) = of(hold);
            (Change::Held { token, holder, held_ms: millis(hold.held_for), ends_in_ms }, hold.slot)
        }
        inspect::Change::Granted(hold) => {
            let (token, holder, ends_in_ms) = of(hold);
            (Change::Granted { token, holder, ends_in_ms }, hold.slot)
        }
        inspect::Change::Ended(hold) => {
            let (token, holder, _) = of(hold);
            (Change::Ended { token, holder }, hold.slot)
        }
        inspect::Change::Resting(hold) => {
            let (token, holder, ends_in_ms) = of(hold);
            (Change::Resting { token, holder, ends_in_ms }, hold.slot)
        }
        inspect::Change::Waiting(waiting) => (Change::Waiting { waiting }, None),
        inspect::Change::Idle => (Change::Idle, None),
        // Of a later version of the library.
        _ => return None,
    })
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
