//! `--metrics-file`: what is known of a job that runs now and then, in a file for node_exporter.
//!
//! It is written when the run begins to wait, when the lock is granted, and when CMD has ended. The first time on the main thread,
//! which still has nothing to do, so that a directory that is missing is told before anything is claimed. Then by a thread of its own: a disk
//! that hangs must not hold up the thread that sends keepers their deadlines. What cannot be written then is a warning, and no
//! failure of the job.

use std::cell::{Cell, OnceCell};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tenure::{Instant, plain};
use tenure_core::clock::Timestamp;
use tenure_metrics::{Run, RunFile};

use crate::clock;
use crate::exit::{self, Failure, Outcome};
use crate::output::messages::Messages;

/// How long the end of the command waits for a disk.
const WRITE_MAX: Duration = Duration::from_secs(2);

/// What happened to the run.
enum Note {
    /// The lock was granted after so long.
    Granted { waited: Duration },
    /// It ended.
    Ended(End),
}

/// How a run ended, or one term of a leader.
#[derive(Clone, Copy)]
struct End {
    at: Timestamp,
    code: u8,
    /// `None`: others had the lock.
    held: Option<Duration>,
    /// How long it waited, where that was not told before.
    waited: Option<Duration>,
}

/// What a run notes down.
pub(super) struct RunRecord {
    file: RunFile,
    messages: Messages,
    began_at: Instant,
    granted_at: Cell<Option<Instant>>,
    /// The code of an end that was noted.
    noted: Cell<Option<u8>>,
    writer: OnceCell<Writer>,
}

struct Writer {
    notes: Sender<Note>,
    done: Receiver<()>,
}

impl RunRecord {
    /// Notes that a run begins to wait.
    ///
    /// # Errors
    /// Nobody can write there. That the disk is full is no reason not to run, and a warning.
    pub(super) fn begin(
        directory: &Path,
        name: &str,
        expected: Option<Duration>,
        messages: Messages,
    ) -> Result<RunRecord, Failure> {
        let file = RunFile::new(directory, name);
        let now = now();
        let written = file.update(|run| (run.last_start, run.expected) = (Some(now), expected));
        let (began_at, granted_at, noted, writer) =
            (clock::now(), Cell::default(), Cell::default(), OnceCell::new());
        let record = RunRecord { file, messages, began_at, granted_at, noted, writer };
        match written {
            Err(error) if is_lasting(&error) => return Err(not_written(&record.file, &error)),
            Err(error) => warn(&record.file, messages, &error),
            Ok(()) => {}
        }
        Ok(record)
    }

    /// Writes in the background from now on. For a process that forks no more.
    pub(super) fn write_in_background(&self) {
        let (file, messages) = (self.file.clone(), self.messages);
        let (notes, noted) = channel();
        let (is_done, done) = channel();
        let write = move || {
            write_all(&file, messages, noted);
            drop(is_done);
        };
        if std::thread::Builder::new().name("tenure-run-file".to_owned()).spawn(write).is_ok() {
            drop(self.writer.set(Writer { notes, done }));
        }
    }

    /// Notes that the lock was granted.
    pub(super) fn granted(&self, waited: Duration) {
        self.granted_at.set(Some(clock::now()));
        self.noted.set(None);
        self.note(Note::Granted { waited });
    }

    /// Notes that CMD has ended, before the lock is released.
    pub(super) fn worked(&self, outcome: &Outcome) {
        let held = self.granted_at.get().map(|granted_at| clock::now().since(granted_at));
        let code = code(outcome);
        self.noted.set(Some(code));
        self.note(Note::Ended(End { at: now(), code, held: Some(held.unwrap_or_default()), waited: None }));
    }

    /// Notes how the command ends, and waits until everything is written, but not for long.
    pub(super) fn end(self, outcome: &Outcome) {
        let code = code(outcome);
        if self.noted.get() != Some(code) {
            let has_begun = self.granted_at.get().is_some();
            let is_busy = outcome.is_err() && code == exit::BUSY && !has_begun;
            let held = (!is_busy).then_some(Duration::ZERO);
            let waited = (!has_begun).then(|| clock::now().since(self.began_at));
            self.note(Note::Ended(End { at: now(), code, held, waited }));
        }
        let Some(Writer { notes, done }) = self.writer.into_inner() else { return };
        drop(notes);
        if done.recv_timeout(WRITE_MAX) == Err(RecvTimeoutError::Timeout) {
            let path = self.file.path().display();
            self.messages.warning(&format!("{path} was not written within {WRITE_MAX:?}"));
        }
    }

    fn note(&self, note: Note) {
        match self.writer.get() {
            // It serves until the sender is dropped.
            Some(writer) => drop(writer.notes.send(note)),
            None => write_all(&self.file, self.messages, [note]),
        }
    }
}

/// Writes what happens, one after the other.
fn write_all(file: &RunFile, messages: Messages, notes: impl IntoIterator<Item = Note>) {
    let (mut holding, mut has_warned) = (None, false);
    for note in notes {
        let written = match note {
            Note::Granted { waited } => {
                file.hold(|run| run.last_wait = Some(waited)).map(|held| holding = Some(held))
            }
            Note::Ended(end) => {
                holding = None;
                file.update(|run| enter(run, end))
            }
        };
        if let Err(error) = written
            && !has_warned
        {
            has_warned = true;
            warn(file, messages, &error);
        }
    }
    drop(holding);
}

fn enter(run: &mut Run, End { at, code, held, waited }: End) {
    if held.is_none() {
        run.last_busy = Some(at);
        return;
    }
    (run.last_exit_code, run.last_hold) = (Some(code.into()), held);
    run.last_wait = waited.or(run.last_wait);
    if code == 0 {
        run.last_success = Some(at);
    }
}

fn code(outcome: &Outcome) -> u8 {
    outcome.as_ref().map_or_else(|failure| failure.code, |code| *code)
}

fn now() -> Timestamp {
    let since = clock::time_of_day().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Whether the next run will fail as well, unless somebody does something about it.
fn is_lasting(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem)
}

fn not_written(file: &RunFile, error: &io::Error) -> Failure {
    let failure = Failure::system(&format!("write {}", file.path().display()), error);
    match error.kind() {
        io::ErrorKind::PermissionDenied => failure.with_hint("let this user write to that directory"),
        _ => failure.with_hint(
            "--metrics-file names the directory that node_exporter reads (`--collector.textfile.directory`)",
        ),
    }
}

fn warn(file: &RunFile, messages: Messages, error: &io::Error) {
    let (path, error) = (file.path().display(), error.to_string());
    messages.warning(&format!("cannot write {path}: {}", plain(&error)));
}
