//! Time, processor time, memory, and processes of this very program.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_testkit::TestDirectory;

/// How a benchmark ends.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

pub(crate) fn now() -> Instant {
    SystemClock.now()
}

/// Runs `work` and returns how long it took.
pub(crate) fn timed(work: impl FnOnce() -> Outcome) -> Result<Duration, Box<dyn std::error::Error>> {
    let start = now();
    work()?;
    Ok(now().since(start))
}

/// Returns the middle one of some measurements.
pub(crate) fn median<T: Copy + PartialOrd>(values: &[T]) -> T {
    percentile(values, 50)
}

/// Returns the value below which so many of a hundred lie.
pub(crate) fn percentile<T: Copy + PartialOrd>(values: &[T], percent: usize) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).expect("measurements are numbers"));
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// Returns the processor time of this process so far.
pub(crate) fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the resident memory of this process, in bytes.
pub(crate) fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Returns the URL of an engine inside of a directory.
pub(crate) fn url(directory: &TestDirectory) -> String {
    format!("local:{}", directory.path().join("place").display())
}

/// Starts a part of a benchmark in another process. It ends with this one.
pub(crate) fn part(arguments: &[&str]) -> std::io::Result<Part> {
    let child = Command::new(std::env::current_exe()?)
        .arg("--part")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    Ok(Part(child))
}

/// Another process of this program.
pub(crate) struct Part(pub(crate) Child);

impl Part {
    /// Reads a line that the part prints; the end of its output is an error.
    pub(crate) fn line(&mut self) -> std::io::Result<String> {
        let mut line = Vec::new();
        let output = self.0.stdout.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        let mut byte = [0];
        loop {
            std::io::Read::read_exact(output, &mut byte)?;
            if byte[0] == b'\n' {
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            line.push(byte[0]);
        }
    }

    /// Sends a line to the part.
    pub(crate) fn tell(&mut self, line: &str) -> std::io::Result<()> {
        let input = self.0.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        std::io::Write::write_all(input, format!("{line}\n").as_bytes())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
