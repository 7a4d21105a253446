//! `tenure status`: the resources, their holders and their waiters.

use clap::Args;
use serde::Serialize;
use tenure::{HoldView, Name, View};

use crate::connect::connect_blocking;
use crate::duration::{format_duration, millis};
use crate::exit::{self, Outcome};
use crate::output::data::{table, write_data, write_json};
use crate::output::holder::{Holder, who};

const EXAMPLES: &str = "\
Examples:
  tenure status                            everything that is held or waited for
  tenure status backup || ./backup.sh      whether anybody holds backup
  tenure status --prefix billing/ --json   what begins with billing/, for programs";

const CODES: &str = "\
Exit codes:
  0    done; with NAME: it is held, or rests
  1    with NAME: nobody holds it
  64   wrong usage
  69   the engine is not available";

/// List what is held, by whom, and who waits
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{CODES}"))]
pub(crate) struct Status {
    /// Only this one; exit code 1: nobody holds it
    #[arg(conflicts_with = "prefix")]
    pub(crate) name: Option<String>,
    /// Only names that begin with this
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Write a JSON array: its fields are in docs/command.md; times are whole milliseconds (`_ms`)
    #[arg(long)]
    pub(crate) json: bool,
}

/// A resource in JSON. Field names are stable; times are whole milliseconds.
#[derive(Debug, Serialize)]
pub(crate) struct ResourceJson<'a> {
    resource: &'a str,
    kind: &'static str,
    capacity: u32,
    used: u32,
    last_token: u64,
    holds: Vec<HoldJson<'a>>,
    waiting: u32,
    waiters: Vec<WaiterJson<'a>>,
}

/// A line of the list. Of a resource that cannot be read, only its name and why.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum LineJson<'a> {
    Resource(ResourceJson<'a>),
    Unreadable { resource: &'a str, error: String },
}

impl<'a> LineJson<'a> {
    fn of((name, view): &'a (Name, tenure::Result<View>)) -> LineJson<'a> {
        match view {
            Ok(view) => LineJson::Resource(ResourceJson::of(view)),
            Err(error) => LineJson::Unreadable { resource: name.as_str(), error: error.to_string() },
        }
    }
}

/// A hold or a rest. `claim` is null where the units rest: then `holder` was the last one.
#[derive(Debug, Serialize)]
pub(crate) struct HoldJson<'a> {
    claim: Option<String>,
    is_resting: bool,
    holder: Holder<'a>,
    token: u64,
    slot: Option<u32>,
    weight: u32,
    held_ms: u64,
    ends_in_ms: u64,
}

#[derive(Debug, Serialize)]
struct WaiterJson<'a> {
    claim: String,
    holder: Holder<'a>,
    weight: u32,
}

impl<'a> ResourceJson<'a> {
    fn of(view: &'a View) -> ResourceJson<'a> {
        ResourceJson {
            resource: view.resource.as_str(),
            kind: view.kind.as_str(),
            capacity: view.capacity,
            used: view.used,
            last_token: view.last_token.get(),
            holds: view.holds.iter().map(HoldJson::of).collect(),
            waiting: view.waiting,
            waiters: view
                .waiters
                .iter()
                .map(|waiter| WaiterJson {
                    claim: waiter.claim.to_string(),
                    holder: Holder::of(&waiter.label),
                    weight: waiter.weight,
                })
                .collect(),
        }
    }
}

impl<'a> HoldJson<'a> {
    pub(crate) fn of(hold: &'a HoldView) -> HoldJson<'a> {
        HoldJson {
            claim: hold.claim.map(|claim| claim.to_string()),
            is_resting: hold.claim.is_none(),
            holder: Holder::of(&hold.label),
            token: hold.token.get(),
            slot: hold.slot,
            weight: hold.weight,
            held_ms: millis(hold.held_for),
            ends_in_ms: millis(hold.ends_in),
        }
    }
}

/// Lists resources, or one.
pub(crate) fn status(status: &Status, engine: &str) -> Outcome {
    let tenure = connect_blocking(engine)?;
    let views = match &status.name {
        Some(name) => {
            let view = pollster::block_on(tenure.view(name))?;
            view.into_iter().map(|view| (view.resource.clone(), Ok(view))).collect()
        }
        None => pollster::block_on(tenure.inspect_each(&status.prefix))?,
    };
    pollster::block_on(tenure.close());
    if status.json {
        write_json(&views.iter().map(LineJson::of).collect::<Vec<_>>())?;
    } else {
        write_data(&text(&views, status.name.as_deref()))?;
    }
    let is_held = views.iter().any(|(_, view)| view.as_ref().is_ok_and(|view| !view.holds.is_empty()));
    Ok(if status.name.is_some() && !is_held { exit::DECLINED } else { 0 })
}

fn text(views: &[(Name, tenure::Result<View>)], name: Option<&str>) -> String {
    if views.is_empty() {
        return name.map_or("nothing is held\n".to_owned(), |name| format!("nobody holds {name:?}\n"));
    }
    let headings = ["RESOURCE", "KIND", "HOLDER", "TOKEN", "HELD FOR", "ENDS IN", "WAITERS"];
    let mut rows = Vec::new();
    for (name, view) in views {
        let view = match view {
            Ok(view) => view,
            Err(error) => {
                let rest = ["-", "-", "-", "-"].map(str::to_owned);
                let line = [name.to_string(), "unreadable".to_owned(), error.to_string()];
                rows.push(line.into_iter().chain(rest).collect());
                continue;
            }
        };
        let row = |holder: String, token: String, held_for: String, ends_in: String, waiters: String| {
            let (resource, kind) = (view.resource.to_string(), view.kind.to_string());
            vec![resource, kind, holder, token, held_for, ends_in, waiters]
        };
        for (index, hold) in view.holds.iter().enumerate() {
            // The queue is the resource's, so its length stands in the first row only.
            let waiters = if index == 0 { view.waiting.to_string() } else { String::new() };
            let (held_for, ends_in) = (format_duration(hold.held_for), format_duration(hold.ends_in));
            rows.push(row(holder(hold), hold.token.to_string(), held_for, ends_in, waiters));
        }
        if view.holds.is_empty() {
            let nothing = || "-".to_owned();
            let nobody = if view.value.is_some() { "nobody; a value is kept" } else { "nobody" };
            rows.push(row(nobody.to_owned(), nothing(), nothing(), nothing(), view.waiting.to_string()));
        }
    }
    table(&headings, &[3, 4, 5, 6], &rows)
}

/// Names the holder, or the last one where the units rest.
fn holder(hold: &HoldView) -> String {
    match (&hold.claim, hold.slot) {
        (None, _) => format!("resting after {}", who(&hold.label)),
        (Some(_), Some(slot)) => format!("slot {slot}: {}", who(&hold.label)),
        (Some(_), None) => who(&hold.label),
    }
}
