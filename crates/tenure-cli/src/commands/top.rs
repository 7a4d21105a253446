//! `tenure top`: what a store holds, as it changes.
//!
//! The thread of `looker.rs` asks the store, one reads keys, one signals; this one hears them all, decides (`state.rs`) and draws
//! (`screen.rs`). So a store that does not answer holds up no key.

mod looker;
mod screen;
mod state;
mod terminal;

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use clap::Args;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::Rect;
use rustix::process::Signal;
use serde::Serialize;
use tenure::Printable;

use crate::clock;
use crate::connect::connect_blocking;
use crate::duration::{millis, parse_duration, thousandths};
use crate::exit::{self, Failure, Outcome};
use crate::listing::order::Sort;
use crate::listing::{ends_in, oldest};
use crate::output::data::{terminal as terminal_size, write_data};
use crate::output::holder::Holder;
use crate::output::lines;
use crate::output::messages::Messages;
use looker::{Heard, Looker, Want};
use screen::{ABOVE, BELOW, draw};
use state::{Action, State};
use terminal::{Screen, Signals};

const TOP_HELP: &str = "\
Shows what a store holds, again and again: who holds what, for how long, and who waits.

The whole store is looked at, but for 5 % of the time at most. `?` shows the keys. Where there is no terminal, one screen is printed.";

const TOP_AFTER_HELP: &str = "\
Examples:
  tenure top                     all that is held or waited for
  tenure top billing/            what begins with billing/
  tenure top --once --sort waiting --limit 10
                                 what most wait for, once
  tenure top --json              a line each 2 s, for programs

Exit codes:
  0    done
  64   wrong usage
  69   the engine is not available
  128+n  signal n has ended it";

/// How wide a screen is that is printed where there is no terminal.
const COLUMNS: u16 = 120;
/// How many locks are printed there, and as JSON, unless --limit says otherwise.
const LIMIT: u64 = 100;
/// How often the screen is drawn though nothing happens: it says how old it is.
const TICK: Duration = Duration::from_secs(1);

/// Show what is held and waited for, as it changes
#[derive(Debug, Args)]
#[command(long_about = TOP_HELP, after_help = TOP_AFTER_HELP)]
pub(crate) struct Top {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// What comes first
    #[arg(long, value_name = "ORDER", default_value = "held")]
    pub(crate) sort: Sort,
    /// Look every so often, and not more often than each 2 s
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub(crate) interval: Duration,
    /// Print one screen, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Write a JSON object a look: its fields are in docs/command.md; times are whole milliseconds (`_ms`)
    #[arg(long)]
    pub(crate) json: bool,
    /// With --once and --json: at most so many locks [default: what fits, 100 without a terminal]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
}

/// Shows a store on the terminal, or prints it.
pub(crate) fn top(top: &Top, engine: &str) -> Outcome {
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if top.once || top.json || !is_terminal {
        return print(top, engine);
    }
    // Before there are threads, which would get them.
    let signals = Signals::catch().map_err(|error| Failure::system("catch signals", error))?;
    let tenure = connect_blocking(engine)?;
    let state = State::new(Printable(&tenure::redact(engine)).to_string(), top.sort);
    let (wants, wanted) = mpsc::channel();
    let (tell, heard) = mpsc::channel();
    let (engine, prefix, every) = (engine.to_owned(), top.prefix.clone(), top.interval);
    let told = tell.clone();
    start("tenure-looker", move || {
        let looker = Looker::new(tenure, &engine, &prefix, every);
        looker.serve(&wanted, |heard| told.send(News::Store(heard)).is_ok());
    })?;
    let caught = tell.clone();
    start("tenure-signals", move || {
        while let Ok(signal) = signals.next() {
            if caught.send(News::Signal(signal)).is_err() {
                return;
            }
        }
    })?;
    lines::hold();
    let screen = Screen::take().map_err(|error| Failure::system("use the terminal", error));
    let outcome = screen.and_then(|mut screen| {
        start("tenure-keys", move || read_keys(&tell))?;
        show(state, &mut screen, &heard, &wants)
    });
    lines::let_go();
    outcome
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map(drop).map_err(|error| Failure::system("start a thread", error))
}

/// What the main thread hears.
enum News {
    Store(Heard),
    Signal(i32),
    Key(Event),
    /// The terminal is gone.
    Gone,
}

/// Hears keys until the terminal is gone.
fn read_keys(tell: &Sender<News>) {
    while let Ok(event) = event::read() {
        if tell.send(News::Key(event)).is_err() {
            return;
        }
    }
    // A receiver that is gone has ended.
    drop(tell.send(News::Gone));
}

/// Draws, hears and does, until a key or a signal ends it.
fn show(mut state: State, screen: &mut Screen, heard: &Receiver<News>, wants: &Sender<Want>) -> Outcome {
    let failed = |error: io::Error| Failure::system("use the terminal", error);
    loop {
        let size = screen.0.size().map_err(failed)?;
        state.height = usize::from(size.height).saturating_sub(ABOVE + BELOW);
        let draw = |frame: &mut ratatui::Frame<'_>| draw(&state, clock::now(), false, frame.buffer_mut());
        screen.0.draw(draw).map_err(failed)?;
        let mut next = match heard.recv_timeout(TICK) {
            Ok(news) => Some(news),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(0),
        };
        // What has come meanwhile is drawn at once.
        while let Some(news) = next {
            if let Some(code) = hear(&mut state, screen, wants, news).map_err(failed)? {
                return Ok(code);
            }
            next = heard.try_recv().ok();
        }
    }
}

/// Does what is heard. Returns the exit code if that ends it.
fn hear(state: &mut State, screen: &mut Screen, wants: &Sender<Want>, news: News) -> io::Result<Option<u8>> {
    let action = match news {
        News::Store(heard) => {
            see(state, heard);
            Action::Nothing
        }
        News::Key(Event::Key(key)) if key.kind != KeyEventKind::Release => state.key(key),
        News::Key(_) => Action::Nothing,
        News::Signal(signal) if signal == Signal::TSTP.as_raw() => {
            screen.stop()?;
            Action::Nothing
        }
        News::Signal(signal) if signal == Signal::CONT.as_raw() => {
            screen.again()?;
            Action::Nothing
        }
        News::Signal(signal) => Action::Quit(exit::of_signal(signal)),
        News::Gone => Action::Quit(exit::of_signal(Signal::HUP.as_raw())),
    };
    let want = match action {
        Action::Nothing => return Ok(None),
        Action::Quit(code) => return Ok(Some(code)),
        Action::Stop => {
            // All of the group, as the terminal would have done it; this process hears of it as the others do.
            rustix::process::kill_current_process_group(Signal::TSTP)?;
            return Ok(None);
        }
        Action::Survey => Want::Survey,
        Action::Look(name) => Want::Lock(name),
        Action::Break(name, token) => Want::Break(name, token),
    };
    // It ends only with this thread, or by a panic, which ends the process.
    drop(wants.send(want));
    Ok(None)
}

/// Takes in what the store has said.
fn see(state: &mut State, heard: Heard) {
    match heard {
        Heard::Survey(survey, answer) => state.see(survey, answer),
        Heard::Lock(name, view, at) => state.see_lock(&name, view, at),
        Heard::Trouble(why) => state.trouble = Some(why),
        Heard::Done(what) => state.message = Some(what),
    }
}

/// What a look has seen, in JSON. Field names are stable; times are whole milliseconds, but for `answer_ms`.
#[derive(Serialize)]
struct LookJson<'a> {
    at: String,
    engine: &'a str,
    answer_ms: f64,
    took_ms: u64,
    age_ms: u64,
    is_whole: bool,
    names: usize,
    held: u64,
    resting: u64,
    waiting: u64,
    unreadable: usize,
    /// None for the first.
    grants_per_second: Option<f64>,
    locks: Vec<LockJson<'a>>,
    queues: Vec<QueueJson<'a>>,
}

#[derive(Serialize)]
struct LockJson<'a> {
    name: &'a str,
    #[serde(flatten)]
    seen: LockSeen<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum LockSeen<'a> {
    Readable {
        kind: &'static str,
        holds: usize,
        holder: Option<Holder<'a>>,
        held_ms: Option<u64>,
        ends_in_ms: Option<u64>,
        waiting: u32,
    },
    Unreadable {
        error: String,
    },
}

#[derive(Serialize)]
struct QueueJson<'a> {
    queue: &'a str,
    waiting: u64,
    in_flight: u64,
    dead: u64,
    oldest_ms: Option<u64>,
}

/// Prints a screen, or writes what programs read.
fn print(top: &Top, engine: &str) -> Outcome {
    let tenure = connect_blocking(engine)?;
    let word = tenure.engine();
    let mut state = State::new(Printable(&tenure::redact(engine)).to_string(), top.sort);
    let looker = Looker::new(tenure, engine, &top.prefix, top.interval);
    let limit = usize::try_from(top.limit.unwrap_or(LIMIT)).unwrap_or(usize::MAX);
    loop {
        let pause = match looker.survey() {
            Ok((survey, answer, pause)) => {
                state.see(survey, answer);
                pause
            }
            // Nobody knows whether the store comes back: a program that begins without one is not left to wait.
            Err(error) if state.seen.is_none() => return Err(error.into()),
            Err(error) => {
                Messages::TEXT.warning(&format!("{error}; looking again"));
                clock::rest(looker::AGAIN);
                continue;
            }
        };
        let text = if top.json { json(&state, word, limit)? } else { once(&mut state, top.limit) };
        let has_reader = write_data(&text)?;
        if top.once || !top.json || !has_reader {
            return Ok(0);
        }
        clock::rest(pause);
    }
}

/// Returns one screen.
fn once(state: &mut State, limit: Option<u64>) -> String {
    let size = terminal_size();
    let fits = size.map_or(LIMIT as usize, |(_, rows)| rows.saturating_sub(ABOVE + BELOW));
    let most = limit.map_or(fits, |limit| usize::try_from(limit).unwrap_or(fits));
    state.height = most.max(1);
    let width = size.map_or(COLUMNS, |(columns, _)| columns.min(1000) as u16);
    let rows = state.shown().len().max(1).min(usize::from(u16::MAX) / 2 / usize::from(width).max(1));
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, (ABOVE + rows) as u16));
    draw(state, clock::now(), true, &mut buffer);
    screen::lines(&buffer).join("\n") + "\n"
}

fn json(state: &State, engine: &str, limit: usize) -> Result<String, Failure> {
    let seen = state.seen.as_ref().expect("it was seen just now");
    let (survey, totals) = (&seen.survey, seen.totals);
    let locks = state.locks.iter().take(limit).map(|at| &survey.locks[*at]);
    let look = LookJson {
        at: humantime::format_rfc3339_millis(clock::time_of_day()).to_string(),
        engine,
        answer_ms: thousandths(seen.answer),
        took_ms: millis(survey.took),
        age_ms: millis(clock::now().since(survey.at)),
        is_whole: survey.is_whole,
        names: totals.names,
        held: totals.held,
        resting: totals.resting,
        waiting: totals.waiting,
        unreadable: totals.unreadable,
        grants_per_second: seen.changes.map(|changes| changes.rate(changes.grants)),
        locks: locks.map(|(name, view)| LockJson { name: name.as_str(), seen: LockSeen::of(view) }).collect(),
        queues: survey.queues.iter().filter_map(QueueJson::of).collect(),
    };
    let text = serde_json::to_string(&look).map_err(|error| Failure::system("write JSON", error))?;
    Ok(text + "\n")
}

impl<'a> LockSeen<'a> {
    fn of(view: &'a tenure::Result<tenure::View>) -> LockSeen<'a> {
        match view {
            Ok(view) => LockSeen::Readable {
                kind: view.kind.as_str(),
                holds: view.holds.iter().filter(|hold| hold.claim.is_some()).count(),
                holder: oldest(view).map(|hold| Holder::of(&hold.label)),
                held_ms: oldest(view).map(|hold| millis(hold.held_for)),
                ends_in_ms: ends_in(view).map(millis),
                waiting: view.waiting,
            },
            Err(error) => LockSeen::Unreadable { error: error.to_string() },
        }
    }
}

impl<'a> QueueJson<'a> {
    /// One that cannot be read is left out.
    fn of(queue: &'a tenure_core::survey::SurveyedQueue) -> Option<QueueJson<'a>> {
        let stats = queue.stats.as_ref().ok()?;
        Some(QueueJson {
            queue: queue.name.as_str(),
            waiting: stats.waiting,
            in_flight: stats.in_flight,
            dead: stats.dead,
            oldest_ms: queue.oldest_waiting.map(millis),
        })
    }
}
