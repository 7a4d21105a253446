//! What the same faults do to the locks that people write by hand: their table beside tenure's.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tenure_testkit::TestDirectory;

use crate::check::{Verdict, judge};
use crate::client::{self, Classic};
use crate::crew::{self, Crew};
use crate::engines::Engine;
use crate::history::notes::Terms;
use crate::history::{History, Journal, Kind, Subject, now};
use crate::nemesis;
use crate::promise::Promises;
use crate::resource;
use crate::schedule::Planned;

/// How long clients may take to begin: a JVM on a busy machine takes many seconds, and a fault before that shows nothing.
const BEGIN_MAX: Duration = Duration::from_secs(120);
/// How long clients may take to end: their statements wait for an answer as long as their clients do.
const END_MAX: Duration = Duration::from_secs(30);

/// One lock under a schedule.
pub(crate) struct Row {
    name: &'static str,
    mutexes: usize,
    overlaps: usize,
    stale_accepted: usize,
    stale_refused: usize,
}

impl Row {
    /// That of tenure, of whose holds the mutexes are counted, and of all holds what was found.
    pub(crate) fn of_tenure(history: &History, verdict: &Verdict) -> Row {
        Row::new("tenure", history, verdict)
    }

    fn new(name: &'static str, history: &History, verdict: &Verdict) -> Row {
        Row {
            name,
            mutexes: history.holds.iter().filter(|hold| hold.kind == Kind::Mutex).count(),
            overlaps: verdict.overlaps.len(),
            stale_accepted: verdict.stale_accepted.len(),
            stale_refused: verdict.stale_refused,
        }
    }

    /// The names of the columns.
    pub(crate) const HEAD: &str =
        "  lock               mutexes held      overlaps  stale writes accepted   refused";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { name, mutexes, overlaps, stale_accepted, stale_refused } = self;
        write!(f, "  {name:16}{mutexes:15}{overlaps:14}{stale_accepted:23}{stale_refused:10}")
    }
}

/// Has the clients lock by hand while the same is broken at the same times.
///
/// # Errors
/// If what they recorded cannot be read.
pub(crate) fn run(
    engine: &Engine,
    classic: Classic,
    planned: &[Planned],
    (seed, clients, lasts): (u64, usize, Duration),
) -> Result<Row, String> {
    let directory = TestDirectory::new();
    let journal = Arc::new(Journal::of_supervisor(directory.path()));
    let subject = Subject {
        engine: engine.name.to_owned(),
        seed,
        clients,
        has_semaphores: false,
        has_queues: false,
        promises: Promises::ALL,
    };
    journal.begin(&subject, &Terms { ttl: engine.ttl, ..Terms::default() });
    resource::serve(&crew::socket(directory.path()), &journal);
    let crew = Crew::start(engine, directory.path(), &journal, clients, Some(classic));
    wait_for_holds(directory.path(), clients);
    nemesis::carry_out(planned, &crew, engine, lasts);
    crew.calm();
    // A client that does not end has promised nothing.
    drop(crew.finish(END_MAX));
    let history = History::read(directory.path())?;
    let verdict = judge(&history, &[], client::capacity);
    Ok(Row::new(classic.as_str(), &history, &verdict))
}

/// Waits until each client has held something.
fn wait_for_holds(directory: &Path, clients: usize) {
    let until = now() + BEGIN_MAX.as_nanos() as u64;
    let has_held = |client| {
        let journal = std::fs::read_to_string(Journal::path_of_client(directory, client, 0));
        journal.is_ok_and(|text| text.contains("granted\t"))
    };
    while now() < until && !(0..clients).all(has_held) {
        std::thread::sleep(Duration::from_millis(50));
    }
}
