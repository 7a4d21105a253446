//! What is known of a job that runs now and then, in a file for the textfile collector of node_exporter.
//!
//! A short run is gone before anybody scrapes it. So it leaves a file, one for each job, which is read before it is written: a run that
//! found the lock held keeps the last success of the one before, and runs that end together lose nothing of each other.
//!
//! Whether a run holds the lock is not remembered but seen: each run that does keeps a file beside locked, and the system unlocks it
//! whatever ends the run. So a run that was killed is corrected by the next one, and the last of several that share a lock says that it was the last.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use tenure_core::clock::Timestamp;

use crate::names::{self, Metric};
use crate::render::{Format, Page};
use crate::text_file::{TextFile, Turn, try_lock};

/// How far a time may lie ahead of a later one. What lies further ahead was told by a clock that was wrong, and would hide all that comes until then.
const AHEAD_MAX: Duration = Duration::from_secs(3600);

/// What is known of a job. Fields that are `None` are not written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Run {
    /// Whether a run holds the lock now. [`RunFile::update`] sees to it: what is set here is not written.
    pub is_running: bool,
    /// When a run last began to wait for the lock.
    pub last_start: Option<Timestamp>,
    /// When a run last ended with exit code 0.
    pub last_success: Option<Timestamp>,
    /// When a run last found the lock held and did nothing.
    pub last_busy: Option<Timestamp>,
    /// The exit code of the last run that was not busy.
    pub last_exit_code: Option<i32>,
    /// How long the last run that was not busy waited for the lock.
    pub last_wait: Option<Duration>,
    /// How long the last run that was not busy held the lock.
    pub last_hold: Option<Duration>,
    /// How much time may pass between two successes.
    pub expected: Option<Duration>,
}

/// The file of one job.
///
/// # Examples
/// ```
/// # fn main() -> std::io::Result<()> {
/// use tenure_metrics::RunFile;
///
/// # let directory = std::env::temp_dir().join(format!("tenure-run-example-{}", std::process::id()));
/// # std::fs::create_dir(&directory)?;
/// # let now = tenure_core::clock::Timestamp::from_micros(1_000_000);
/// let file = RunFile::new(&directory, "nightly-report");
/// file.update(|run| run.last_start = Some(now))?;
/// // The lock is acquired.
/// let holding = file.hold(|_| {})?;
/// // The work is done.
/// drop(holding);
/// file.update(|run| (run.last_success, run.last_exit_code) = (Some(now), Some(0)))?;
/// assert_eq!(file.read().last_success, Some(now));
/// # std::fs::remove_dir_all(&directory)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RunFile {
    name: String,
    file: TextFile,
}

/// Says that this process holds the lock of the job, until it is dropped or the process ends.
///
/// No example: [`RunFile`] has one.
#[derive(Debug)]
#[must_use = "without it no run holds the lock"]
pub struct Holding {
    _lock: File,
}

impl RunFile {
    /// Names the file of a job in a directory. Nothing is read or written yet.
    pub fn new(directory: &Path, name: &str) -> RunFile {
        let file = TextFile::new(directory, &format!("tenure_run_{}.prom", file_name(name)));
        RunFile { name: name.to_owned(), file }
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Changes what is known of the job. Times of starts and successes that others have noted meanwhile do not go back, but for those
    /// more than an hour ahead, which a clock that was wrong has told.
    ///
    /// # Errors
    /// What the system says of the directory; [`io::ErrorKind::TimedOut`] if another writer has stood still for 5 seconds. The file is as it was then.
    pub fn update(&self, change: impl FnOnce(&mut Run)) -> io::Result<()> {
        self.change(&self.file.turn()?, change)
    }

    /// As [`RunFile::update`], and says that this process holds the lock, for as long as what is returned lives.
    ///
    /// # Errors
    /// As of [`RunFile::update`]. Then nobody is told that it holds.
    pub fn hold(&self, change: impl FnOnce(&mut Run)) -> io::Result<Holding> {
        let turn = self.file.turn()?;
        let lock = self.file.open_beside("held")?;
        if !try_lock(&lock, FlockOperation::NonBlockingLockShared)? {
            // Others lock it so only in their turn.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.change(&turn, change)?;
        Ok(Holding { _lock: lock })
    }

    fn change(&self, turn: &Turn, change: impl FnOnce(&mut Run)) -> io::Result<()> {
        let before = self.read();
        let mut run = before;
        change(&mut run);
        run.is_running = self.is_held()?;
        run.last_start = later(before.last_start, run.last_start);
        run.last_success = later(before.last_success, run.last_success);
        run.last_busy = later(before.last_busy, run.last_busy);
        self.file.replace(turn, &self.text(&run))
    }

    /// Whether a process holds the lock of the job.
    fn is_held(&self) -> io::Result<bool> {
        let lock = self.file.open_beside("held")?;
        Ok(!try_lock(&lock, FlockOperation::NonBlockingLockExclusive)?)
    }

    /// Reads what is known of the job; of a file that is not there or not ours, nothing.
    pub fn read(&self) -> Run {
        let text = std::fs::read_to_string(self.path()).unwrap_or_default();
        let number = |metric: Metric| {
            let line = text
                .lines()
                .find(|line| line.strip_prefix(metric.name).is_some_and(|rest| rest.starts_with('{')))?;
            line.rsplit(' ').next()?.parse::<f64>().ok().filter(|number| number.is_finite())
        };
        let time =
            |metric| number(metric).map(|seconds| Timestamp::from_micros((seconds * 1e6).round() as u64));
        let period = |metric| number(metric).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Run {
            is_running: number(names::RUN_RUNNING) == Some(1.0),
            last_start: time(names::RUN_START),
            last_success: time(names::RUN_SUCCESS),
            last_busy: time(names::RUN_BUSY),
            last_exit_code: number(names::RUN_EXIT).map(|code| code as i32),
            last_wait: period(names::RUN_WAIT),
            last_hold: period(names::RUN_HOLD),
            expected: period(names::RUN_EXPECTED),
        }
    }

    fn text(&self, run: &Run) -> String {
        let mut page = Page::default();
        let mut add = |metric, number: Option<f64>| {
            if let Some(number) = number {
                page.add(metric, &[&self.name], number);
            }
        };
        let seconds = |at: Timestamp| at.micros() as f64 / 1e6;
        add(names::RUN_RUNNING, Some(f64::from(u8::from(run.is_running))));
        add(names::RUN_START, run.last_start.map(seconds));
        add(names::RUN_SUCCESS, run.last_success.map(seconds));
        add(names::RUN_BUSY, run.last_busy.map(seconds));
        add(names::RUN_EXIT, run.last_exit_code.map(f64::from));
        add(names::RUN_WAIT, run.last_wait.map(|time| time.as_secs_f64()));
        add(names::RUN_HOLD, run.last_hold.map(|time| time.as_secs_f64()));
        add(names::RUN_EXPECTED, run.expected.map(|time| time.as_secs_f64()));
        page.text(Format::Prometheus)
    }
}

/// Returns the later of two times, unless it is the older one and cannot be.
fn later(before: Option<Timestamp>, now: Option<Timestamp>) -> Option<Timestamp> {
    match (before, now) {
        (Some(before), Some(now)) if before.since(now) > AHEAD_MAX => Some(now),
        _ => before.max(now),
    }
}

/// Writes a name as one of a file: what is not a letter, a digit, `-` or `.` as its bytes in hexadecimal, so that no two names have one
/// file. A file's name may have 255 bytes; of a longer one the rest is a hash.
fn file_name(name: &str) -> String {
    const BYTES_MAX: usize = 200;
    let mut escaped = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("_{byte:02x}")),
        }
    }
    if escaped.len() > BYTES_MAX {
        // FNV-1a, which is the same in each version of us.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        escaped.truncate(BYTES_MAX);
        escaped.push_str(&format!("_{hash:016x}"));
    }
    escaped
}
