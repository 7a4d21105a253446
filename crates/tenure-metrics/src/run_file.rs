//! What is known of a job that runs now and then, in a file for the textfile collector of node_exporter.
//!
//! A short run is gone before anybody scrapes it. So it leaves a file, one for each job, which is read before it is written: a run that
//! found the lock held keeps the last success of the one before. It is written beside and renamed, under a lock of its own, so that
//! a reader sees one whole page, and runs that end together lose nothing of each other.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tenure_core::clock::Timestamp;

use crate::names::{self, Metric};
use crate::render::{Format, Page};

/// What is known of a job. Fields that are `None` are not written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Run {
    /// Whether a run holds the lock now.
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
#[derive(Clone, Debug)]
pub struct RunFile {
    name: String,
    path: PathBuf,
}

impl RunFile {
    /// Names the file of a job in a directory. Nothing is read or written yet.
    pub fn new(directory: &Path, name: &str) -> RunFile {
        let file = format!("tenure_run_{}.prom", file_name(name));
        RunFile { name: name.to_owned(), path: directory.join(file) }
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes what is known of the job. Times of successes and starts that others have noted meanwhile never go back.
    ///
    /// # Errors
    /// What the system says of the directory. The file is as it was then.
    pub fn update(&self, change: impl FnOnce(&mut Run)) -> io::Result<()> {
        let _lock = self.lock()?;
        let before = self.read();
        let mut run = before;
        change(&mut run);
        run.last_start = run.last_start.max(before.last_start);
        run.last_success = run.last_success.max(before.last_success);
        run.last_busy = run.last_busy.max(before.last_busy);
        let beside = self.path.with_extension("prom.new");
        let mut file = File::create(&beside)?;
        file.write_all(self.text(&run).as_bytes())?;
        std::fs::rename(&beside, &self.path)
    }

    /// Reads what is known of the job; of a file that is not there or not ours, nothing.
    pub fn read(&self) -> Run {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
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

    /// Waits for the lock of the file, which the file itself cannot bear since it is replaced.
    fn lock(&self) -> io::Result<File> {
        let lock = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(self.path.with_extension("prom.lock"))?;
        loop {
            match flock(&lock, FlockOperation::LockExclusive) {
                Err(rustix::io::Errno::INTR) => {}
                locked => return locked.map(|()| lock).map_err(io::Error::from),
            }
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
