//! Other processes, as a test sees them.

use std::fs;
use std::path::Path;
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// How long anything may take before a test fails: these are processes on a machine that may be busy with compilers and browsers.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition gives something.
///
/// # Panics
/// If it does not within [`PATIENCE`].
pub fn wait_for<T>(what: &str, condition: impl Fn() -> Option<T>) -> T {
    let Some(found) = poll(PATIENCE, condition) else { panic!("no {what} within {PATIENCE:?}") };
    found
}

/// Waits until a condition gives something, but no longer than the patience.
#[allow(clippy::disallowed_methods, reason = "processes have no clock that a test could move")]
pub(crate) fn poll<T>(patience: Duration, condition: impl Fn() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let found = condition();
        let waited = began.elapsed();
        if found.is_some() || waited >= patience {
            return found;
        }
        // Some ask a server, or start a program: what takes seconds need not be asked for each moment.
        std::thread::sleep((waited / 16).clamp(Duration::from_millis(2), Duration::from_millis(40)));
    }
}

/// Waits until a process has ended, and returns what it wrote.
///
/// # Panics
/// If it does not end within [`PATIENCE`].
pub fn finish(child: Child) -> Output {
    let pid = child.id();
    let waiting = std::thread::spawn(move || child.wait_with_output().expect("a child can be waited for"));
    wait_for("end of a process", || (waiting.is_finished() || !is_alive(pid)).then_some(()));
    waiting.join().expect("waiting does not panic")
}

/// Whether a process runs: a zombie does not.
pub fn is_alive(pid: u32) -> bool {
    if test_kill_process(to_pid(pid)).is_err() {
        return false;
    }
    state(pid).is_some_and(|state| state != 'Z')
}

/// The state of a process: `S`, `T` (stopped), `Z` …
pub fn state(pid: u32) -> Option<char> {
    state_in(Path::new(&format!("/proc/{pid}")))
}

/// Whether every thread of a process is stopped. A signal is sent before the last of them has heard of it.
pub(crate) fn threads_stand_still(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.map(|thread| state_in(&thread.path())).all(|state| matches!(state, Some('T' | 'Z') | None))
}

fn state_in(directory: &Path) -> Option<char> {
    let stat = fs::read_to_string(directory.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Sends a signal to a process that is there.
///
/// # Panics
/// If it is not.
pub fn signal(pid: u32, signal: Signal) {
    kill_process(to_pid(pid), signal).expect("a process to signal");
}

fn to_pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("a process id")).expect("a process id")
}
