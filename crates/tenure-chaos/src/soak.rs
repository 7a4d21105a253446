//! The supervisor: it starts an engine and clients, has a schedule carried out, lets them recover and end, and judges.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_testkit::TestDirectory;

use crate::arguments::Arguments;
use crate::check::{judge, liveness};
use crate::client::{self, CAPACITY, QUEUE};
use crate::crew::{self, Crew};
use crate::engines::{Engine, Leftovers};
use crate::history::{History, Journal, Kind, now};
use crate::nemesis;
use crate::recovery::Recovery;
use crate::report::Report;
use crate::resource;
use crate::schedule::{self, Planned, Scope, plan};

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

/// Runs a soak as the command line says, and returns whether all promises were kept.
///
/// # Errors
/// If the arguments are not understood.
pub(crate) fn start(arguments: &mut Arguments) -> Result<bool, String> {
    let name = arguments.word().ok_or("which engine?")?;
    let number = |arguments: &mut Arguments, name: &str, without: u64| match arguments.optional(name) {
        None => Ok(without),
        Some(text) => text.parse().map_err(|_| format!("--{name}: {text:?} is not a number")),
    };
    let lasts = Duration::from_secs(number(arguments, "seconds", SECONDS)?);
    let seed = number(arguments, "seed", fastrand::u64(0..1_000_000))?;
    let clients = number(arguments, "clients", CLIENTS)? as usize;
    let recovery = Duration::from_secs(number(arguments, "recovery", RECOVERY_SECONDS)?);
    let keep = arguments.optional("keep").map(PathBuf::from);
    let only = arguments.optional("only");
    let is_quiet = arguments.flag("quiet");
    arguments.finish()?;
    let engine = Engine::start(&name)?;
    let scope = Scope {
        clients,
        servers: engine.ports().len(),
        ttl: engine.ttl,
        lasts,
        restart_every: engine.restart_every,
    };
    let mut planned = plan(seed, &scope);
    if let Some(kinds) = only {
        schedule::only(&mut planned, &kinds)?;
    }
    println!(
        "engine {}, seed {seed}, {} s, {clients} clients, ttl {:?}",
        engine.name,
        lasts.as_secs(),
        engine.ttl
    );
    if !is_quiet {
        planned.iter().for_each(|planned| println!("{planned}"));
    }
    let temporary = TestDirectory::new();
    let directory = match &keep {
        Some(keep) => {
            fs::create_dir_all(keep).map_err(|error| format!("{}: {error}", keep.display()))?;
            keep.as_path()
        }
        None => temporary.path(),
    };
    let report = run(&engine, seed, &planned, clients, [lasts, recovery], directory)?;
    print!("{report}");
    Ok(report.is_good())
}

/// Runs a soak, and judges its history.
fn run(
    engine: &Engine,
    seed: u64,
    planned: &[Planned],
    clients: usize,
    [lasts, recovery]: [Duration; 2],
    directory: &Path,
) -> Result<Report, String> {
    let journal = std::sync::Arc::new(Journal::of_supervisor(directory));
    resource::serve(&crew::socket(directory), &journal);
    let crew = Crew::start(engine, directory, &journal, clients);
    let began = now();
    let done = nemesis::carry_out(planned, &crew, engine, lasts);
    let worked = Duration::from_nanos(now() - began);
    let healed = now();
    journal.write(&["healed", &healed.to_string()]);
    let served = Recovery::begin(directory, healed);
    crew.calm();
    let tasks = tasks(engine, clients);
    served.wait(&tasks, recovery);
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
    let verdict = judge(&history, &tasks, CAPACITY);
    Ok(Report { engine: engine.name, seed, worked, done, history, verdict, failed, found, kept })
}

/// The tasks that must be served after the last fault: not the consumers of a queue, which is empty then.
fn tasks(engine: &Engine, clients: usize) -> Vec<String> {
    let tasks = client::tasks(engine.has_semaphores, engine.has_queues);
    let tasks = tasks.into_iter().filter(|(kind, _)| *kind != Kind::Delivery);
    tasks.flat_map(|(_, task)| (0..clients).map(move |client| liveness::task(client, &task))).collect()
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
