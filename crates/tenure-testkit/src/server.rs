//! A process that serves, with a directory and a log.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use crate::process::{poll, signal, threads_stand_still, wait_for};
use crate::site::Site;

/// How long a server may take until it is ready, on a machine that may be busy.
pub const READY_MAX: Duration = Duration::from_secs(60);

/// One of these is a word in the name of each test that starts a server, or of its package or module: `cargo xtask test`, which is for machines
/// without servers, leaves out what it is a word in (`xtask/src/test.rs`).
const LEFT_OUT: [&str; 10] = [
    "redis",
    "redlock",
    "postgres",
    "mysql",
    "zookeeper",
    "etcd",
    "prometheus",
    "packaging",
    "schemathesis",
    "dashboard",
];

/// How many lines of a log are shown.
const LOG_LINES_MAX: usize = 30;

/// A server's process. It is killed when this value ends.
#[derive(Debug)]
pub struct Server {
    name: String,
    directory: PathBuf,
    process: Mutex<Process>,
    // After the process, so that the reaper finds nothing left to do.
    _site: Arc<Site>,
}

/// What runs, and how it is started again.
#[derive(Debug)]
struct Process {
    command: Command,
    child: Child,
    is_stopped: bool,
}

/// Asserts that the fast tests leave out the test that this process runs, if nextest runs it.
fn assert_is_left_out() {
    let test = ["NEXTEST_BINARY_ID", "NEXTEST_TEST_NAME"]
        .map(|name| std::env::var(name).unwrap_or_default())
        .join("::");
    let is_left_out = test.split([':', '-', '_']).any(|word| LEFT_OUT.contains(&word));
    assert!(
        is_left_out || test == "::",
        "{test} starts a server: it needs one of the words {LEFT_OUT:?} in its name"
    );
}

/// Lets what has a field `server` be used as that [`Server`]: killed, stopped, continued, and its log read.
macro_rules! is_a_server {
    ($kind:ty) => {
        impl std::ops::Deref for $kind {
            type Target = $crate::Server;

            fn deref(&self) -> &$crate::Server {
                &self.server
            }
        }
    };
}
pub(crate) use is_a_server;

impl Server {
    /// Starts a program in a directory `name` of the site, which `prepare` may fill before it says how the
    /// program is called. Its output goes to the file `log` there.
    ///
    /// # Panics
    /// If the name is in use on this site, or the fast tests would not leave out the test.
    pub fn start(site: &Arc<Site>, name: &str, prepare: impl FnOnce(&Path) -> Command) -> Server {
        assert_is_left_out();
        let directory = site.path().join(name);
        fs::create_dir(&directory).expect("a new directory for a server");
        let mut command = registered(&prepare(&directory), &directory);
        let child = command.spawn().expect("sh");
        let process = Mutex::new(Process { command, child, is_stopped: false });
        Server { name: name.to_owned(), directory, process, _site: site.clone() }
    }

    /// Returns the directory of its files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the id of its process, of the last one if it was killed.
    pub fn pid(&self) -> u32 {
        self.with(|process| process.child.id())
    }

    /// Waits until a condition gives something.
    ///
    /// # Panics
    /// If it does not within [`READY_MAX`], or the process ends: with the last lines of the log.
    pub fn wait_for<T>(&self, what: &str, condition: impl Fn() -> Option<T>) -> T {
        let ended = || self.with(|process| process.child.try_wait().expect("a child of this process"));
        let found = poll(READY_MAX, || match condition() {
            Some(found) => Some(Ok(found)),
            None => ended().map(Err),
        });
        match found {
            Some(Ok(found)) => found,
            Some(Err(status)) => panic!("{self} ended ({status}) before {what}\n{}", self.log()),
            None => panic!("{self}: no {what} within {READY_MAX:?}\n{}", self.log()),
        }
    }

    /// Kills it (SIGKILL), and returns when it is gone.
    pub fn kill(&self) {
        self.with(|process| {
            // It may have ended by itself.
            drop(process.child.kill());
            process.child.wait().expect("a child of this process");
        });
    }

    /// Stops it (SIGSTOP), and returns when all its threads stand still: it keeps its connections, and does nothing.
    ///
    /// # Panics
    /// If it has been killed.
    pub fn stop(&self) {
        self.with(|process| {
            signal(process.child.id(), Signal::STOP);
            process.is_stopped = true;
            wait_for("stopped server", || threads_stand_still(process.child.id()).then_some(()));
        });
    }

    /// Lets it continue after [`Server::stop`].
    ///
    /// # Panics
    /// If it has been killed.
    pub fn cont(&self) {
        self.with(|process| {
            signal(process.child.id(), Signal::CONT);
            process.is_stopped = false;
        });
    }

    /// Kills it if it runs, and starts it again with the same arguments and files.
    pub fn restart(&self) {
        self.kill();
        self.with(|process| {
            process.child = process.command.spawn().expect("sh");
            process.is_stopped = false;
        });
    }

    /// Whether its process lives and has not been stopped by [`Server::stop`].
    pub fn runs(&self) -> bool {
        self.with(|process| {
            !process.is_stopped && process.child.try_wait().expect("a child of this process").is_none()
        })
    }

    /// Returns the last lines of its log.
    pub fn log(&self) -> String {
        let text = fs::read(self.directory.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n")
    }

    fn with<T>(&self, change: impl FnOnce(&mut Process) -> T) -> T {
        change(&mut self.process.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The command of a process that first writes its id where the reaper looks for it.
fn registered(program: &Command, directory: &Path) -> Command {
    let log = File::create(directory.join("log")).expect("a log");
    let mut command = Command::new("sh");
    command
        .args(["-c", "echo $$ >pid && exec \"$@\"", "sh"])
        .arg(program.get_program())
        .args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
    // A group of its own: a Ctrl-C in the terminal is for the tests, and the reaper does the rest.
    command.current_dir(directory).process_group(0);
    command
}
