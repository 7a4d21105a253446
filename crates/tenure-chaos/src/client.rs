//! A client's process: it connects, and its tasks take leases, work and give them back until its standard input ends.

mod classic;
mod items;
mod line;
mod paced;
mod pulse;
mod sections;
mod told;
pub(crate) mod values;
mod watched;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure::{Error, Tenure};

pub(crate) use classic::Classic;

use crate::arguments::Arguments;
use crate::history::notes::Terms;
use crate::history::{Journal, Kind, now};

/// The line on its standard input after which all holds are short: the faults are over.
pub(crate) const CALM: &str = "calm";
/// How many tasks take mutexes.
const MUTEX_TASKS: usize = 3;
/// How many units a semaphore has.
const UNITS: u32 = 3;
/// What a writer weighs in the eyes of a checker: more than all readers together.
const WRITER: u32 = 1 << 20;
/// Those that push. Each says when nothing more comes of it, since a queue is empty for good only then.
pub(crate) const PRODUCERS: [&str; 2] = ["producer", "paced producer"];
/// The queue of a soak.
pub(crate) const QUEUE: &str = "items";
/// The queue with an interval, and the least one of it.
pub(crate) const PACED: &str = "paced";
const INTERVAL_MIN: Duration = Duration::from_millis(250);
/// A store that counts periods more coarsely than this keeps what it keeps for longer, as leases of etcd's last.
const GRAIN_MAX: Duration = Duration::from_millis(10);
/// How many tasks want values.
const VALUE_TASKS: usize = 2;

/// The task that takes two mutexes at once.
const PAIR: &str = "pair";
/// The task that does nothing between short sections under one of many mutexes, so that a fault hits calls of every phase.
const BRISK: &str = "brisk";

/// What an engine can do that not all can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(crate) has_semaphores: bool,
    pub(crate) has_queues: bool,
    pub(crate) has_values: bool,
}

impl Abilities {
    fn of(tenure: &Tenure) -> Abilities {
        let capability = tenure.capability();
        Abilities {
            has_semaphores: capability.kinds.contains(&tenure::Kind::Semaphore),
            has_queues: tenure.queue_capability().is_some(),
            has_values: capability.keeps_values,
        }
    }
}

/// What an engine promises to clients with leases of a ttl.
pub(crate) fn terms(tenure: &Tenure, ttl: Duration, slack: Duration) -> Terms {
    let capability = tenure.capability();
    // Of a quorum, those that hear of a value late keep it for longer.
    let is_exact = capability.ttl_grain <= GRAIN_MAX && capability.is_fifo;
    Terms {
        ttl,
        grain: if is_exact { capability.ttl_grain } else { slack },
        interval: tenure
            .queue_capability()
            .map_or(Duration::ZERO, |queues| INTERVAL_MIN.max(queues.interval_min)),
        has_values: capability.keeps_values,
        is_fifo: capability.is_fifo,
        hands_out_slots: capability.raises_tokens,
    }
}

/// The tasks of a client.
pub(crate) fn tasks(abilities: Abilities) -> Vec<(Kind, String)> {
    let Abilities { has_semaphores, has_queues, has_values } = abilities;
    let several =
        |kind: Kind, count| (0..count).map(move |index| (kind, format!("{}-{index}", kind.as_str())));
    let mut tasks: Vec<_> = several(Kind::Mutex, MUTEX_TASKS).collect();
    tasks.push((Kind::Mutex, PAIR.to_owned()));
    tasks.push((Kind::Mutex, BRISK.to_owned()));
    tasks.push((Kind::Slot, "slot".to_owned()));
    tasks.push((Kind::Term, "term".to_owned()));
    tasks.extend(has_semaphores.then(|| (Kind::Semaphore, "semaphore".to_owned())));
    tasks.extend(has_semaphores.then(|| (Kind::ReadWrite, "read-write".to_owned())));
    tasks.extend(has_queues.then(|| (Kind::Delivery, "delivery".to_owned())));
    tasks.extend(several(Kind::Load, if has_values { VALUE_TASKS } else { 0 }));
    tasks
}

/// How many units of a resource of a kind may be held at once.
pub(crate) fn capacity(kind: Kind) -> u32 {
    match kind {
        Kind::Semaphore => UNITS,
        Kind::ReadWrite => WRITER,
        Kind::Mutex | Kind::Slot | Kind::Term | Kind::Delivery | Kind::Load => 1,
    }
}

/// What the tasks of a process share.
pub(crate) struct Stage<C = Tenure> {
    tenure: C,
    journal: Arc<Journal>,
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
    let classic = arguments.optional("classic");
    arguments.finish()?;
    let (number, incarnation) = (number as usize, incarnation as usize);
    let journal = Arc::new(Journal::of_client(&directory, number, incarnation));
    pulse::start(&journal);
    let name = format!("{number}.{incarnation}");
    if let Some(classic) = classic {
        let classic = Classic::parse(&classic).ok_or_else(|| format!("{classic:?} is no lock"))?;
        let own = Journal::path_of_client(&directory, number, incarnation);
        classic::become_foreign(classic, &url, ttl, [&own, &resource])?;
        play_by_hand(classic, &url, &Stage::new((), journal, resource, ttl, name));
        return Ok(());
    }
    told::listen(&journal);
    let tenure = connect(&url, &journal);
    let (tasks, interval) = (tasks(Abilities::of(&tenure)), terms(&tenure, ttl, Duration::ZERO).interval);
    let stage = Stage::new(tenure, journal, resource, ttl, name);
    std::thread::scope(|scope| {
        for (kind, task) in &tasks {
            let stage = &stage;
            match kind {
                Kind::Load => scope.spawn(move || values::fetch(stage, task)),
                _ => scope.spawn(move || sections::work(stage, *kind, task)),
            };
            if *kind == Kind::Delivery {
                scope.spawn(|| items::push(stage));
                scope.spawn(move || paced::work(stage, interval));
            }
        }
    });
    // What was dropped is to go before the process does.
    pollster::block_on(stage.tenure.clone().close());
    Ok(())
}

/// Plays one whose tasks take mutexes without the library.
fn play_by_hand(classic: Classic, url: &str, stage: &Arc<Stage<()>>) {
    std::thread::scope(|scope| {
        for task in 0..MUTEX_TASKS {
            scope.spawn(move || classic::work(stage, classic, url, &format!("mutex-{task}")));
        }
    });
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
fn listen<C: Send + Sync + 'static>(stage: &Arc<Stage<C>>) {
    let stage = stage.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            stage.is_calm.fetch_or(line == CALM, Ordering::Relaxed);
        }
        stage.is_over.store(true, Ordering::Relaxed);
    });
}

impl<C: Send + Sync + 'static> Stage<C> {
    /// Begins to hear what the supervisor says.
    fn new(
        tenure: C,
        journal: Arc<Journal>,
        resource: PathBuf,
        ttl: Duration,
        name: String,
    ) -> Arc<Stage<C>> {
        let (is_calm, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let stage =
            Stage { tenure, journal, resource, ttl, name, holds: AtomicU64::new(0), is_calm, is_over };
        let stage = Arc::new(stage);
        listen(&stage);
        stage
    }
}

impl<C> Stage<C> {
    fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// One of those that push is through.
    fn is_through(&self, producer: &str) {
        self.journal.write(&["through", &now().to_string(), producer]);
    }

    fn note(&self, operation: &str, error: &Error) {
        note(&self.journal, operation, error);
    }
}

fn note(journal: &Journal, operation: &str, error: &Error) {
    note_text(journal, operation, error.kind().as_str(), error.to_string());
}

fn note_text(journal: &Journal, operation: &str, kind: &str, mut text: String) {
    // Enough to tell errors apart, without what differs each time.
    text.retain(|letter| !letter.is_ascii_digit());
    journal.write(&["error", operation, kind, &text]);
}

/// Lets time pass.
fn pause(period: Duration) {
    std::thread::sleep(period);
}
