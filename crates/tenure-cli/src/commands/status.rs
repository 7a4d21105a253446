//! `tenure status`: the resources, their holders and their waiters.
//!
//! Without an order of its own a list is written as the store is read, so that a store of a million names costs this process little,
//! and the first of them are seen at once. Some are put together first: what fits on a screen is in the order of names.

use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::{HoldView, Tenure, Token, View};

use crate::clock;
use crate::connect::connect_blocking;
use crate::duration::{format_duration, millis, parse_duration};
use crate::exit::{self, Failure, Outcome};
use crate::listing::Line;
use crate::listing::alert::{Alert, Judgement};
use crate::listing::filter::Filter;
use crate::listing::order::Sort;
use crate::listing::table::Table;
use crate::listing::totals::Totals;
use crate::output::data::{terminal, write_data, write_json};
use crate::output::holder::{Holder, who};
use crate::output::messages::Messages;

const STATUS_HELP: &str = "\
Lists what is held, by whom, and who waits.

It is written as it is read, a thousand names at a time, each thousand by name. With --sort, and with --json, everything is read first.";

const EXAMPLES: &str = "\
Examples:
  tenure status                            everything that is held or waited for
  tenure status backup || ./backup.sh      whether anybody holds backup
  tenure status --prefix billing/ --json   what begins with billing/, for programs
  tenure status --sort waiting --limit 10 --watch 2s
                                           what most wait for, again and again
  tenure status --alert 'held>1h' --alert 'waiting>100' --alert 'dead>0'
                                           by cron, which mails what is written";

const CODES: &str = "\
Exit codes:
  0    done; with NAME: it is held, or rests; with --alert: none is breached
  1    with NAME: nobody holds it; with --alert: one is breached
  64   wrong usage
  69   the engine is not available; with --alert: nobody knows";

/// How many names are put together before they are written.
const PIECE: usize = 1000;
/// How much longer than a look took it rests before the next one, as a survey does.
const REST_TIMES: u32 = 20;
/// How long it rests after a look that failed, at least: what took long was to wait for an answer.
const AGAIN: Duration = Duration::from_secs(1);
/// The columns of a list.
const HEADINGS: [&str; 7] = ["RESOURCE", "KIND", "HOLDER", "TOKEN", "HELD FOR", "ENDS IN", "WAITERS"];
/// Those of numbers and times.
const RIGHT: [usize; 4] = [3, 4, 5, 6];
/// Those that are cut where the terminal is too narrow.
const MAY_BE_CUT: [usize; 2] = [0, 2];

/// List what is held, by whom, and who waits
#[derive(Debug, Args)]
#[command(long_about = STATUS_HELP, after_help = format!("{EXAMPLES}\n\n{CODES}"))]
pub(crate) struct Status {
    /// Only this one; exit code 1: nobody holds it
    #[arg(conflicts_with_all = ["prefix", "sort", "limit", "held_longer", "holder", "kind"])]
    pub(crate) name: Option<String>,
    /// Only names that begin with this
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) filter: Filter,
    /// What comes first. Nothing is written before everything is read
    #[arg(long, value_name = "ORDER")]
    pub(crate) sort: Option<Sort>,
    /// At most so many names. Without --sort no more than these are read
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Look again every so often, for a twentieth of the time at most
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) watch: Option<Duration>,
    /// Write only what breaches a threshold: 'held>1h', 'waiting>100' or 'dead>0'; may be given again
    #[arg(long, value_name = "ALERT", conflicts_with_all = ["watch", "sort", "limit"])]
    pub(crate) alert: Vec<Alert>,
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

/// An element of the list. Of a resource that cannot be read, only its name and why.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum LineJson<'a> {
    Resource(ResourceJson<'a>),
    Unreadable { resource: &'a str, error: String },
}

impl<'a> LineJson<'a> {
    fn of((name, view): &'a Line) -> LineJson<'a> {
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
    let code = match status.watch {
        _ if !status.alert.is_empty() => judge(status, &tenure),
        Some(every) => show_again(status, &tenure, every),
        None => show(status, &tenure),
    }?;
    pollster::block_on(tenure.close());
    Ok(code)
}

/// Reads what is asked for and gives it to `take`, some at a time, until that has enough.
fn read(
    status: &Status,
    tenure: &Tenure,
    mut take: impl FnMut(Vec<Line>) -> Result<ControlFlow<()>, Failure>,
) -> Result<(), Failure> {
    if let Some(name) = &status.name {
        let view = pollster::block_on(tenure.view(name))?;
        let lines = view.into_iter().map(|view| (view.resource.clone(), Ok(view))).collect();
        return take(lines).map(drop);
    }
    let mut pages = tenure.inspect_pages(&status.prefix);
    while let Some(page) = pollster::block_on(pages.next()) {
        let page = page?.into_iter().filter(|line| status.filter.admits(line)).collect();
        if take(page)?.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads everything, and sorts it.
fn read_all(status: &Status, tenure: &Tenure) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    read(status, tenure, |page| {
        lines.extend(page);
        Ok(ControlFlow::Continue(()))
    })?;
    status.sort.unwrap_or(Sort::Name).sort(&mut lines);
    Ok(lines)
}

/// How many names are shown at most.
fn limit(status: &Status) -> usize {
    status.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Shows everything once.
fn show(status: &Status, tenure: &Tenure) -> Outcome {
    if status.json || status.sort.is_some() || status.name.is_some() {
        let lines = read_all(status, tenure)?;
        let shown = &lines[..lines.len().min(limit(status))];
        if status.json {
            write_json(&shown.iter().map(LineJson::of).collect::<Vec<_>>())?;
        } else {
            write_data(&text(status, &lines, shown.len(), terminal().map(|(columns, _)| columns)))?;
        }
        return Ok(code(status, &lines));
    }
    let mut list = List::new(limit(status), terminal().map(|(columns, _)| columns));
    read(status, tenure, |page| {
        let piece = list.take(page);
        let is_read = piece.is_empty() || write_data(&piece)?;
        Ok(if is_read && !list.is_full() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    write_data(&list.end())?;
    Ok(0)
}

/// The exit code of what is shown.
fn code(status: &Status, lines: &[Line]) -> u8 {
    let is_held = lines.iter().any(|(_, view)| view.as_ref().is_ok_and(|view| !view.holds.is_empty()));
    if status.name.is_some() && !is_held { exit::DECLINED } else { 0 }
}

/// Shows everything again and again. On a terminal each look takes the place of the one before, as far as it fits.
fn show_again(status: &Status, tenure: &Tenure, every: Duration) -> Outcome {
    let mut has_answered = false;
    loop {
        let (began, size) = (clock::now(), terminal());
        let read = read_all(status, tenure);
        let mut rest = clock::now().since(began).saturating_mul(REST_TIMES);
        match read {
            Ok(lines) => {
                has_answered = true;
                // The headings, the totals, and where the cursor stands.
                let fits = size.map_or(usize::MAX, |(_, rows)| rows.saturating_sub(3).max(1));
                let shown = lines.len().min(limit(status)).min(if status.json { usize::MAX } else { fits });
                let at = humantime::format_rfc3339_seconds(clock::time_of_day());
                let piece = match (status.json, size) {
                    (true, _) => {
                        let lines: Vec<_> = lines[..shown].iter().map(LineJson::of).collect();
                        let text = serde_json::to_string(&lines);
                        text.map_err(|error| Failure::system("write JSON", error))? + "\n"
                    }
                    (false, None) => format!("{at}\n{}\n", text(status, &lines, shown, None)),
                    (false, Some((columns, rows))) => {
                        screen(&text(status, &lines, shown, Some(columns)), rows)
                    }
                };
                if !write_data(&piece)? {
                    return Ok(0);
                }
            }
            // Nobody knows whether the store comes back: a program that begins without one is not left to wait.
            Err(failure) if !has_answered => return Err(failure),
            Err(failure) => {
                rest = AGAIN;
                Messages::TEXT.warning(&format!("{}; looking again", failure.message));
            }
        }
        clock::rest(every.max(rest));
    }
}

/// Puts a text in the place of what a terminal shows, without a moment in which it is empty. Its last line, the totals, is always shown.
fn screen(text: &str, rows: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (totals, above) = lines.split_last().unwrap_or((&"", &[]));
    let above = above.iter().take(rows.saturating_sub(2)).chain([totals]);
    let shown: String = above.map(|line| format!("{line}\x1b[K\n")).collect();
    format!("\x1b[H{shown}\x1b[J")
}

/// Judges the alerts. What nobody knows is not taken for well.
fn judge(status: &Status, tenure: &Tenure) -> Outcome {
    let mut judgement = Judgement::new(&status.alert);
    if status.alert.iter().any(|alert| !alert.is_of_queues()) {
        read(status, tenure, |page| {
            page.iter().for_each(|(_, view)| judgement.add_lock(view));
            Ok(ControlFlow::Continue(()))
        })?;
    }
    if status.alert.iter().any(Alert::is_of_queues) {
        let queues = match &status.name {
            Some(name) => {
                let stats = pollster::block_on(tenure.queue(name).stats())?;
                vec![(tenure::Name::new(name)?, Ok(stats))]
            }
            None => pollster::block_on(tenure.queues_each(&status.prefix))?,
        };
        queues.iter().for_each(|(name, stats)| judgement.add_queue(name, stats));
    }
    judgement.sort();
    if status.json {
        write_json(&judgement.json())?;
    } else {
        write_data(&judgement.to_string())?;
    }
    match (judgement.is_breached(), judgement.unreadable) {
        (true, _) => Ok(exit::DECLINED),
        (false, 0) => Ok(0),
        (false, count) => {
            let message = format!("{count} of the names cannot be read, and may breach an alert");
            let hint = "`tenure status` and `tenure queue ls` show which; leave them out with `--prefix`";
            Err(Failure::new(exit::UNAVAILABLE, message).with_hint(hint))
        }
    }
}

/// A list that is written as it is read.
struct List {
    table: Table<'static>,
    totals: Totals,
    waiting: Vec<Line>,
    most: usize,
}

impl List {
    fn new(most: usize, terminal: Option<usize>) -> List {
        let table = Table::new(&HEADINGS, &RIGHT).cut(&MAY_BE_CUT, terminal);
        List { table, totals: Totals::default(), waiting: Vec::new(), most }
    }

    /// Whether no more are shown.
    fn is_full(&self) -> bool {
        self.totals.names >= self.most
    }

    /// Takes more, and returns what is written now: nothing until there are enough.
    fn take(&mut self, page: Vec<Line>) -> String {
        for line in page {
            if !self.is_full() {
                self.totals.add(&line);
                self.waiting.push(line);
            }
        }
        if self.waiting.len() < PIECE && !self.is_full() { String::new() } else { self.write() }
    }

    fn write(&mut self) -> String {
        let mut lines = std::mem::take(&mut self.waiting);
        Sort::Name.sort(&mut lines);
        self.table.render(&lines.iter().flat_map(rows).collect::<Vec<_>>())
    }

    /// Returns the rest, and the totals.
    fn end(mut self) -> String {
        if self.totals.names == 0 {
            return "nothing is held\n".to_owned();
        }
        let rest = if self.waiting.is_empty() { String::new() } else { self.write() };
        let more = if self.is_full() { "; there may be more, beyond the limit" } else { "" };
        format!("{rest}{}{more}\n", self.totals)
    }
}

/// Renders so many of a list, and the totals of all.
fn text(status: &Status, lines: &[Line], shown: usize, terminal: Option<usize>) -> String {
    match (&status.name, lines.is_empty()) {
        (Some(name), true) => return format!("nobody holds {name:?}\n"),
        (None, true) => return "nothing is held\n".to_owned(),
        _ => {}
    }
    let mut table = Table::new(&HEADINGS, &RIGHT).cut(&MAY_BE_CUT, terminal);
    let text = table.render(&lines[..shown].iter().flat_map(rows).collect::<Vec<_>>());
    let totals = Totals::of(lines);
    match status.name {
        Some(_) => text,
        None if shown < lines.len() => format!("{text}{totals}; {shown} of them shown\n"),
        None => format!("{text}{totals}\n"),
    }
}

/// The rows of a lock: one for each hold.
fn rows((name, view): &Line) -> Vec<Vec<String>> {
    let view = match view {
        Ok(view) => view,
        Err(error) => {
            let rest = ["-", "-", "-", "-"].map(str::to_owned);
            let line = [name.to_string(), "unreadable".to_owned(), error.to_string()];
            return vec![line.into_iter().chain(rest).collect()];
        }
    };
    let row = |holder: String, token: String, held_for: String, ends_in: String, waiters: String| {
        let (resource, kind) = (view.resource.to_string(), view.kind.to_string());
        vec![resource, kind, holder, token, held_for, ends_in, waiters]
    };
    let mut rows = Vec::new();
    for (index, hold) in view.holds.iter().enumerate() {
        // The queue is the resource's, so its length stands in the first row only.
        let waiters = if index == 0 { view.waiting.to_string() } else { String::new() };
        // Another client of the store has not said since when it holds.
        let held_for =
            if hold.token == Token::ZERO { "-".to_owned() } else { format_duration(hold.held_for) };
        let ends_in = format_duration(hold.ends_in);
        rows.push(row(holder(hold), hold.token.to_string(), held_for, ends_in, waiters));
    }
    if view.holds.is_empty() {
        let nothing = || "-".to_owned();
        let nobody = if view.value.is_some() { "nobody; a value is kept" } else { "nobody" };
        rows.push(row(nobody.to_owned(), nothing(), nothing(), nothing(), view.waiting.to_string()));
    }
    rows
}

/// Names the holder, or the last one where the units rest.
pub(crate) fn holder(hold: &HoldView) -> String {
    match (&hold.claim, hold.slot) {
        (None, _) => format!("resting after {}", who(&hold.label)),
        (Some(_), Some(slot)) => format!("slot {slot}: {}", who(&hold.label)),
        (Some(_), None) => who(&hold.label),
    }
}
