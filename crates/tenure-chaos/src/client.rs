//! A client's process: it connects, and its tasks take leases, work and give them back until its standard input ends.

mod items;
mod sections;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure::{Error, Tenure};

use crate::arguments::Arguments;
use crate::history::{Journal, Kind};

/// The line on its standard input after which all holds are short: the faults are over.
pub(crate) const CALM: &str = "calm";
/// How many tasks take mutexes.
const MUTEX_TASKS: usize = 3;
/// How many units a semaphore has.
const UNITS: u32 = 3;
/// What a writer weighs in the eyes of a checker: more than all readers together.
const WRITER: u32 = 1 << 20;
/// The queue of a soak.
pub(crate) const QUEUE: &str = "items";

/// The task that takes two mutexes at once.
const PAIR: &str = "pair";

/// The tasks that take leases, on an engine with or without semaphores and queues.
pub(crate) fn tasks(has_semaphores: bool, has_queues: bool) -> Vec<(Kind, String)> {
    let mut tasks: Vec<_> = (0..MUTEX_TASKS).map(|index| (Kind::Mutex, format!("mutex-{index}"))).collect();
    tasks.push((Kind::Mutex, PAIR.to_owned()));
    tasks.push((Kind::Slot, "slot".to_owned()));
    tasks.push((Kind::Term, "term".to_owned()));
    tasks.extend(has_semaphores.then(|| (Kind::Semaphore, "semaphore".to_owned())));
    tasks.extend(has_semaphores.then(|| (Kind::ReadWrite, "read-write".to_owned())));
    tasks.extend(has_queues.then(|| (Kind::Delivery, "delivery".to_owned())));
    tasks
}

/// How many units of a resource of a kind may be held at once.
pub(crate) fn capacity(kind: Kind) -> u32 {
    match kind {
        Kind::Semaphore => UNITS,
        Kind::ReadWrite => WRITER,
        Kind::Mutex | Kind::Slot | Kind::Term | Kind::Delivery => 1,
    }
}

/// What the tasks of a process share.
pub(crate) struct Stage {
    tenure: Tenure,
    journal: Journal,
    resource: PathBuf,
    ttl: Duration,
    /// Names it among all clients' processes.
    name: String,
    holds: AtomicU64,
    is_calm: AtomicBool,
    is_over: AtomicBool,
}

/// Plays a client as the arguments say.
///
/// # Errors
/// If they say too little.
pub(crate) fn play(arguments: &mut Arguments) -> Result<(), String> {
    let (number, incarnation) = (arguments.number("client")?, arguments.number("incarnation")?);
    let directory = PathBuf::from(arguments.text("history")?);
    let resource = PathBuf::from(arguments.text("resource")?);
    let ttl = Duration::from_millis(arguments.number("ttl-ms")?);
    let url = arguments.text("url")?;
    let tasks = tasks(arguments.flag("semaphores"), arguments.flag("queues"));
    arguments.finish()?;
    let (number, incarnation) = (number as usize, incarnation as usize);
    let journal = Journal::of_client(&directory, number, incarnation);
    let stage = Stage {
        tenure: connect(&url, &journal),
        journal,
        resource,
        ttl,
        name: format!("{number}.{incarnation}"),
        holds: AtomicU64::new(0),
        is_calm: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    };
    let stage = Arc::new(stage);
    listen(&stage);
    std::thread::scope(|scope| {
        for (kind, task) in &tasks {
            let stage = &stage;
            scope.spawn(move || sections::work(stage, *kind, task));
            if *kind == Kind::Delivery {
                scope.spawn(|| items::push(stage));
            }
        }
    });
    Ok(())
}

/// Connects, however long the store is away.
fn connect(url: &str, journal: &Journal) -> Tenure {
    loop {
        match pollster::block_on(tenure::connect(url)) {
            Ok(tenure) => return tenure,
            Err(error) => note(journal, "connect", &error),
        }
        pause(Duration::from_millis(100));
    }
}

/// Hears what the supervisor says.
fn listen(stage: &Arc<Stage>) {
    let stage = stage.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            stage.is_calm.fetch_or(line == CALM, Ordering::Relaxed);
        }
        stage.is_over.store(true, Ordering::Relaxed);
    });
}

impl Stage {
    fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn note(&self, operation: &str, error: &Error) {
        note(&self.journal, operation, error);
    }
}

fn note(journal: &Journal, operation: &str, error: &Error) {
    let mut text = error.to_string();
    // Enough to tell errors apart, without what differs each time.
    text.retain(|letter| !letter.is_ascii_digit());
    journal.write(&["error", operation, error.kind().as_str(), &text]);
}

/// Lets time pass.
fn pause(period: Duration) {
    std::thread::sleep(period);
}
