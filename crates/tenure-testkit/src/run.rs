//! What all tests of one run share.
//!
//! cargo-nextest runs each test in a process of its own, and some sets of servers take seconds to start. So the
//! first process that needs one starts it, while it holds the lock of a file in a directory that belongs to the
//! run; the others find the address in a file. The servers end when the process that runs the tests is gone.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::process::getppid;

use crate::site::{Site, place};

/// What nextest tells each test about the run.
const RUN_ID: &str = "NEXTEST_RUN_ID";

/// Returns the address of the servers `name` of this run. If there are none yet, they are started on the site
/// that `start` is given, and go on after the end of this process; a starter that dies half-way is replaced by
/// the next one who asks.
///
/// Without cargo-nextest a run is the test process itself.
pub fn shared<T>(name: &str, start: impl FnOnce(&Arc<Site>) -> (String, T)) -> String {
    let runner = Runner::find();
    let directory = place().join(format!("tenure-run-{}", runner.run));
    fs::create_dir_all(&directory).expect("a directory for the files of servers");
    let lock = File::create(directory.join(format!("{name}.lock"))).expect("a file to lock");
    flock(&lock, FlockOperation::LockExclusive).expect("the lock of a file");
    let site = directory.join(name);
    let address = site.join("address");
    if let Ok(address) = fs::read_to_string(&address) {
        return address;
    }
    let (text, servers) = start(&Site::until_end_of(&site, runner.pid, &runner.started));
    // They are not this process's to end.
    std::mem::forget(servers);
    fs::write(site.join("address.new"), &text).expect("a file for the address");
    fs::rename(site.join("address.new"), address).expect("a file for the address");
    text
}

/// The process that ends when the run ends.
struct Runner {
    /// Names the run among those of this machine.
    run: String,
    pid: u32,
    /// When it began, as `/proc` says it; `unknown` where that is of another PID namespace.
    started: String,
}

impl Runner {
    fn find() -> Runner {
        let own = std::process::id();
        let has_proc = fs::read_link("/proc/self").is_ok_and(|pid| pid == Path::new(&own.to_string()));
        let started = |pid| if has_proc { stat(pid, 22) } else { Some("unknown".to_owned()) };
        let of_run = std::env::var(RUN_ID).ok().and_then(|run| {
            let pid = if has_proc { above(own, &run)? } else { parent()? };
            Some(Runner { run, pid, started: started(pid)? })
        });
        of_run.unwrap_or_else(|| {
            let started = started(own).expect("this process is in /proc");
            Runner { run: format!("{own}-{started}"), pid: own, started }
        })
    }
}

/// The nearest ancestor that is not of the run, which is who runs it: a test may ask in a process that another test has started.
fn above(own: u32, run: &str) -> Option<u32> {
    let mut pid = own;
    loop {
        pid = stat(pid, 4)?.parse().ok().filter(|pid| *pid != 0)?;
        // Whose environment cannot be read is of another user, so not of the run.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let variable = format!("{RUN_ID}={run}");
        if !environment.split(|byte| *byte == 0).any(|found| found == variable.as_bytes()) {
            // If the runner is gone already, its children have become those of somebody who goes on for ever.
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            return String::from_utf8_lossy(&command).contains("nextest").then_some(pid);
        }
    }
}

/// The parent, unless it is outside this PID namespace.
fn parent() -> Option<u32> {
    u32::try_from(getppid()?.as_raw_pid()).ok()
}

/// A field of what the system says about a process, counted from 1 as in proc(5); from 3 on.
fn stat(pid: u32, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split_whitespace().nth(field - 3).map(str::to_owned)
}
