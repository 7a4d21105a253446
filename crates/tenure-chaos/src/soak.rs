//! The supervisor: it starts an engine and clients, has a schedule carried out, lets them recover and end, and judges.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_core::testing::busy::stretched;
use tenure_testkit::TestDirectory;

use crate::arguments::Arguments;
use crate::check::{judge, liveness};
use crate::client::{self, Abilities, Classic, PACED, PRODUCERS, QUEUE};
use crate::comparison::{self, Row};
use crate::crew::{self, Crew};
use crate::engines::{Engine, Leftovers};
use crate::history::notes::Terms;
use crate::history::{History, Journal, Kind, Subject, now};
use crate::nemesis;
use crate::recovery::Recovery;
use crate::report::Report;
use crate::resource;
use crate::schedule::{self, Planned, Scope, plan};
use crate::shrink::shrink;

/// How long a soak lasts, and with how many clients, unless the command line says otherwise.
const SECONDS: u64 = 600;
pub(crate) const CLIENTS: u64 = 6;
/// Within so many seconds after the last fault everybody must have been served: the slowest recovery that any page tells of is the
/// return of a Redlock server, and all want to be served at once. This and the other bounds are for an idle machine.
pub(crate) const RECOVERY_SECONDS: u64 = 30;
/// How long queues may take to become empty then.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// How often it is looked whether anything is left in the store.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long clients may take to end: an acquisition in a calm waits for 5 s.
const END_MAX: Duration = Duration::from_secs(20);

/// A soak that lasts so long is preceded by a time without faults, and followed by one in which clients go on as before, so that they
/// can be compared.
const LONG: Duration = Duration::from_secs(60);
/// How long all clients take to begin, and how long they work then without faults.
const SETTLES: Duration = Duration::from_secs(2);
const FREE: Duration = Duration::from_secs(8);

/// How often a schedule of fewer faults is tried before it is believed to break nothing: how threads and packets interleave is not
/// the schedule's.
const TRIES: usize = 2;
/// How long clients go on after the last fault of a schedule that was shrunk.
const AFTER_LAST_FAULT: Duration = Duration::from_secs(5);

/// What the command line asks for.
#[derive(Clone)]
pub(crate) struct Soak {
    pub(crate) engine: String,
    pub(crate) seed: u64,
    pub(crate) clients: usize,
    pub(crate) lasts: Duration,
    /// How long all may take to be served again.
    pub(crate) recovery: Duration,
    /// Kinds of faults that come beside those of each soak of the engine.
    pub(crate) with: Vec<String>,
}

/// Runs a soak as the command line says, and returns whether all promises were kept.
///
/// # Errors
/// If the arguments are not understood.
pub(crate) fn start(arguments: &mut Arguments) -> Result<bool, String> {
    let engine = arguments.word().ok_or("which engine?")?;
    let soak = Soak {
        engine,
        lasts: Duration::from_secs(arguments.number_or("seconds", SECONDS)?),
        seed: arguments.number_or("seed", fastrand::u64(0..1_000_000))?,
        clients: arguments.number_or("clients", CLIENTS)? as usize,
        recovery: Duration::from_secs(arguments.number_or("recovery", RECOVERY_SECONDS)?),
        with: arguments
            .optional("with")
            .iter()
            .flat_map(|kinds| kinds.split(','))
            .map(str::to_owned)
            .collect(),
    };
    let keep = arguments.optional("keep").map(PathBuf::from);
    let only = arguments.optional("only");
    let is_compared = arguments.flag("classic");
    let (is_quiet, shrinks) = (arguments.flag("quiet"), arguments.flag("shrink"));
    arguments.finish()?;
    let directory = keep.as_deref().map(empty).transpose()?;
    if is_compared && Classic::of(&soak.engine).is_empty() {
        return Err(format!("there is no lock written by hand for {}", soak.engine));
    }
    let engine = Engine::start(&soak.engine, &soak.with)?;
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
    if is_compared {
        soak.compare(&planned, &report)?;
    }
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
    let tasks = tasks(&subject, &history.terms);
    let verdict = judge(&history, &tasks, client::capacity);
    let report = Report {
        engine: subject.engine,
        seed: subject.seed,
        promises: subject.promises,
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
    /// What is soaked, in a word or two.
    pub(crate) fn name(&self) -> String {
        let with =
            if self.with.is_empty() { String::new() } else { format!(" with {}", self.with.join(",")) };
        format!("{}{with}", self.engine)
    }

    /// Starts the engine, does all that is planned, and judges what came of it.
    ///
    /// # Errors
    /// If there is no such engine or fault, or the history cannot be read.
    ///
    /// # Panics
    /// If servers do not start, or do not come back.
    pub(crate) fn whole(&self) -> Result<Report, String> {
        let engine = Engine::start(&self.engine, &self.with)?;
        self.run(&engine, &self.plan(&engine), None)
    }

    fn plan(&self, engine: &Engine) -> Vec<Planned> {
        plan(
            self.seed,
            &Scope {
                clients: self.clients,
                servers: engine.servers(),
                addresses: engine.addresses().len(),
                ttl: engine.ttl,
                lasts: self.lasts,
                restart_every: engine.restart_every,
                heavy: engine.heavy.clone(),
                light: engine.light.clone(),
            },
        )
    }

    /// Has the same faults done to the locks that people write by hand, and prints what came of all.
    fn compare(&self, planned: &[Planned], report: &Report) -> Result<(), String> {
        let mut rows = vec![Row::of_tenure(&report.history, &report.verdict)];
        for classic in Classic::of(&self.engine) {
            let engine = Engine::start(&self.engine, &self.with)?;
            rows.push(comparison::run(&engine, classic, planned, (self.seed, self.clients, self.lasts))?);
        }
        println!("\n{}, seed {}, the same faults:\n{}", self.engine, self.seed, Row::HEAD);
        rows.iter().for_each(|row| println!("{row}"));
        Ok(())
    }

    /// Leaves out faults as long as a promise is still broken, and prints those that are left.
    fn shrink(&self, planned: Vec<Planned>) -> Result<(), String> {
        let mut failed = None;
        let fewest = shrink(planned, |some| {
            let Some(last) = some.last() else { return false };
            let short = Soak { lasts: last.at + AFTER_LAST_FAULT, ..self.clone() };
            let is_broken = (0..TRIES).any(|_| {
                let run = Engine::start(&short.engine, &short.with)
                    .and_then(|engine| short.run(&engine, some, None));
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
            promises: engine.promises(planned),
        };
        let terms = terms(engine);
        journal.begin(&subject, &terms);
        resource::serve(&crew::socket(directory), &journal);
        let crew = Crew::start(engine, directory, &journal, self.clients, None);
        let is_long = self.lasts >= LONG;
        if is_long {
            pause(SETTLES);
            let free = now();
            pause(FREE);
            journal.write(&["free", &free.to_string(), &now().to_string()]);
        }
        let began = now();
        let done = nemesis::carry_out(planned, &crew, engine, self.lasts);
        let worked = Duration::from_nanos(now() - began);
        let healed = now();
        journal.write(&["healed", &healed.to_string()]);
        let served = Recovery::begin(directory, healed);
        if is_long {
            pause(liveness::GOES_ON);
        }
        crew.calm();
        let tasks = tasks(&subject, &terms);
        served.wait(&[&tasks[..], &producers(&subject)].concat(), stretched(self.recovery));
        let is_drained = drain(engine);
        journal.write(&["ended", &now().to_string()]);
        let failed = crew.finish(stretched(END_MAX));
        let mut leftovers = leftovers(engine);
        leftovers.found.extend(engine.open());
        if !is_drained {
            leftovers.found.push(format!("the queue was not empty after {DRAIN_MAX:?}"));
        }
        let Leftovers { found, kept } = leftovers;
        let history = History::read(directory)?;
        let verdict = judge(&history, &tasks, client::capacity);
        Ok(Report {
            engine: subject.engine,
            seed: self.seed,
            promises: subject.promises,
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

/// What the engine promises.
fn terms(engine: &Engine) -> Terms {
    let tenure = engine.connect();
    let terms = client::terms(&tenure, engine.ttl, engine.slack);
    pollster::block_on(tenure.close());
    terms
}

/// The tasks that must be served after the last fault: not the consumers of a queue, which is empty then.
fn tasks(subject: &Subject, terms: &Terms) -> Vec<String> {
    let Subject { has_semaphores, has_queues, .. } = *subject;
    let tasks = client::tasks(Abilities { has_semaphores, has_queues, has_values: terms.has_values });
    let tasks = tasks.into_iter().filter(|(kind, _)| *kind != Kind::Delivery);
    let of_all = |task: String| (0..subject.clients).map(move |client| liveness::task(client, &task));
    tasks.flat_map(|(_, task)| of_all(task)).collect()
}

/// Those that push: what they are at when the faults are over is to be handed out as well.
fn producers(subject: &Subject) -> Vec<String> {
    let clients = 0..if subject.has_queues { subject.clients } else { 0 };
    clients.flat_map(|client| PRODUCERS.map(|producer| liveness::task(client, producer))).collect()
}

/// What is left in the store as soon as nothing is, or when all claims of dead clients must have ended.
fn leftovers(engine: &Engine) -> Leftovers {
    let until = now() + (engine.ttl + engine.slack).as_nanos() as u64;
    loop {
        let left = engine.leftovers();
        if left.found.is_empty() || now() > until {
            return left;
        }
        pause(LOOK_EVERY);
    }
}

/// Waits until the queues are empty; returns whether they are.
fn drain(engine: &Engine) -> bool {
    if !engine.has_queues {
        return true;
    }
    let (tenure, until) = (engine.connect(), now() + stretched(DRAIN_MAX).as_nanos() as u64);
    let is_empty = |queue| pollster::block_on(tenure.queue(queue).depth()).is_ok_and(|depth| depth == 0);
    while !(is_empty(QUEUE) && is_empty(PACED)) {
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
