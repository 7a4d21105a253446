//! The supervisor: it starts an engine and clients, has a schedule carried out, lets them recover and end, and judges.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_testkit::TestDirectory;

use crate::arguments::Arguments;
use crate::check::{judge, liveness};
use crate::client::{self, QUEUE};
use crate::crew::{self, Crew};
use crate::engines::{Engine, Leftovers};
use crate::history::{History, Journal, Kind, Subject, now};
use crate::nemesis;
use crate::recovery::Recovery;
use crate::report::Report;
use crate::resource;
use crate::schedule::{self, Planned, Scope, plan};
use crate::shrink::shrink;

/// How long a soak lasts, and with how many clients, unless the command line says otherwise.
const SECONDS: u64 = 600;
const CLIENTS: u64 = 6;
/// Within so many seconds after the last fault everybody must have been served: the slowest recovery that any page tells of is the
/// return of a Redlock server, and on a busy machine all want to be served at once.
const RECOVERY_SECONDS: u64 = 30;
/// How long queues may take to become empty then.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// How long clients may take to end: an acquisition in a calm waits for 5 s.
const END_MAX: Duration = Duration::from_secs(20);

/// How often a schedule of fewer faults is tried before it is believed to break nothing: how threads and packets interleave is not
/// the schedule's.
const TRIES: usize = 2;
/// How long clients go on after the last fault of a schedule that was shrunk.
const AFTER_LAST_FAULT: Duration = Duration::from_secs(5);

/// What the command line asks for.
struct Soak {
    engine: String,
    seed: u64,
    clients: usize,
    lasts: Duration,
    recovery: Duration,
}

/// Runs a soak as the command line says, and returns whether all promises were kept.
///
/// # Errors
/// If the arguments are not understood.
pub(crate) fn start(arguments: &mut Arguments) -> Result<bool, String> {
    let engine = arguments.word().ok_or("which engine?")?;
    let number = |arguments: &mut Arguments, name: &str, without: u64| match arguments.optional(name) {
        None => Ok(without),
        Some(text) => text.parse().map_err(|_| format!("--{name}: {text:?} is not a number")),
    };
    let soak = Soak {
        engine,
        lasts: Duration::from_secs(number(arguments, "seconds", SECONDS)?),
        seed: number(arguments, "seed", fastrand::u64(0..1_000_000))?,
        clients: number(arguments, "clients", CLIENTS)? as usize,
        recovery: Duration::from_secs(number(arguments, "recovery", RECOVERY_SECONDS)?),
    };
    let keep = arguments.optional("keep").map(PathBuf::from);
    let only = arguments.optional("only");
    let (is_quiet, shrinks) = (arguments.flag("quiet"), arguments.flag("shrink"));
    arguments.finish()?;
    let directory = keep.as_deref().map(empty).transpose()?;
    let engine = Engine::start(&soak.engine)?;
    let mut planned = soak.plan(&engine);
    if let Some(kinds) = only {
        schedule::only(&mut planned, &kinds)?;
    }
    let Soak { seed, clients, lasts, .. } = &soak;
    println!(
        "engine {}, seed {seed}, {} s, {clients} clients, ttl {:?}",
        engine.name,
        lasts.as_secs(),
        engine.ttl
    );
    if !is_quiet {
        planned.iter().for_each(|planned| println!("{planned}"));
    }
    let report = soak.run(&engine, &planned, directory)?;
    print!("{report}");
    drop(engine);
    if shrinks && !report.is_good() {
        soak.shrink(planned)?;
    }
    Ok(report.is_good())
}

/// Judges what a soak has kept, and returns whether all promises were kept. What was left in the store is not known any more.
///
/// # Errors
/// If there is no history.
pub(crate) fn judge_again(arguments: &mut Arguments) -> Result<bool, String> {
    let directory = arguments.word().ok_or("which directory?")?;
    arguments.finish()?;
    let history = History::read(Path::new(&directory))?;
    let subject = history
        .subject
        .clone()
        .ok_or_else(|| format!("{directory}: the history does not say what it is of"))?;
    let tasks = tasks(&subject);
    let verdict = judge(&history, &tasks, client::capacity);
    let report = Report {
        engine: subject.engine,
        seed: subject.seed,
        worked: Duration::ZERO,
        done: nemesis::Done::default(),
        history,
        verdict,
        failed: Vec::new(),
        found: Vec::new(),
        kept: 0,
    };
    print!("{report}");
    Ok(report.is_good())
}

/// Makes a directory for a history. Another one in it would be judged with this one.
fn empty(directory: &Path) -> Result<&Path, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    fs::create_dir_all(directory).map_err(failed)?;
    match fs::read_dir(directory).map_err(failed)?.next() {
        None => Ok(directory),
        Some(_) => Err(format!("{} is not empty", directory.display())),
    }
}

impl Soak {
    fn plan(&self, engine: &Engine) -> Vec<Planned> {
        plan(
            self.seed,
            &Scope {
                clients: self.clients,
                servers: engine.ports().len(),
                ttl: engine.ttl,
                lasts: self.lasts,
                restart_every: engine.restart_every,
            },
        )
    }

    /// Leaves out faults as long as a promise is still broken, and prints those that are left.
    fn shrink(&self, planned: Vec<Planned>) -> Result<(), String> {
        let mut failed = None;
        let fewest = shrink(planned, |some| {
            let Some(last) = some.last() else { return false };
            let short = Soak { engine: self.engine.clone(), lasts: last.at + AFTER_LAST_FAULT, ..*self };
            let is_broken = (0..TRIES).any(|_| {
                let run = Engine::start(&short.engine).and_then(|engine| short.run(&engine, some, None));
                run.map_err(|error| failed = Some(error)).is_ok_and(|report| !report.is_good())
            });
            println!("{} faults: {}", some.len(), if is_broken { "BAD" } else { "good" });
            is_broken
        });
        println!("the fewest faults that were seen to break a promise:");
        fewest.iter().for_each(|planned| println!("{planned}"));
        failed.map_or(Ok(()), Err)
    }

    /// Has faults done, and judges the history, which is kept in a directory if there is one.
    fn run(&self, engine: &Engine, planned: &[Planned], keep: Option<&Path>) -> Result<Report, String> {
        let temporary = TestDirectory::new();
        let directory = keep.unwrap_or(temporary.path());
        let journal = std::sync::Arc::new(Journal::of_supervisor(directory));
        let subject = Subject {
            engine: engine.name.to_owned(),
            seed: self.seed,
            clients: self.clients,
            has_semaphores: engine.has_semaphores,
            has_queues: engine.has_queues,
        };
        journal.begin(&subject);
        resource::serve(&crew::socket(directory), &journal);
        let crew = Crew::start(engine, directory, &journal, self.clients);
        let began = now();
        let done = nemesis::carry_out(planned, &crew, engine, self.lasts);
        let worked = Duration::from_nanos(now() - began);
        let healed = now();
        journal.write(&["healed", &healed.to_string()]);
        let served = Recovery::begin(directory, healed);
        crew.calm();
        let tasks = tasks(&subject);
        served.wait(&tasks, self.recovery);
        let is_drained = drain(engine);
        journal.write(&["ended", &now().to_string()]);
        let failed = crew.finish(END_MAX);
        pause(engine.ttl + engine.slack);
        let mut leftovers = engine.leftovers();
        if !is_drained {
            leftovers.found.push(format!("the queue was not empty after {DRAIN_MAX:?}"));
        }
        let Leftovers { found, kept } = leftovers;
        let history = History::read(directory)?;
        let verdict = judge(&history, &tasks, client::capacity);
        Ok(Report {
            engine: subject.engine,
            seed: self.seed,
            worked,
            done,
            history,
            verdict,
            failed,
            found,
            kept,
        })
    }
}

/// The tasks that must be served after the last fault: not the consumers of a queue, which is empty then.
fn tasks(subject: &Subject) -> Vec<String> {
    let tasks = client::tasks(subject.has_semaphores, subject.has_queues);
    let tasks = tasks.into_iter().filter(|(kind, _)| *kind != Kind::Delivery);
    let of_all = |task: String| (0..subject.clients).map(move |client| liveness::task(client, &task));
    tasks.flat_map(|(_, task)| of_all(task)).collect()
}

/// Waits until the queue is empty; returns whether it is.
fn drain(engine: &Engine) -> bool {
    if !engine.has_queues {
        return true;
    }
    let (tenure, until) = (engine.connect(), now() + DRAIN_MAX.as_nanos() as u64);
    let is_empty = || pollster::block_on(tenure.queue(QUEUE).depth()).is_ok_and(|depth| depth == 0);
    while !is_empty() {
        if now() > until {
            return false;
        }
        pause(Duration::from_millis(100));
    }
    pollster::block_on(tenure.close());
    true
}

fn pause(period: Duration) {
    std::thread::sleep(period);
}
