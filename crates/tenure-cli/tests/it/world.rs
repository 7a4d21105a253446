//! A place for one test: an engine directory, files, and processes that end with it.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
pub(crate) use tenure_testkit::{TestDirectory, finish, is_alive, signal, state, wait_for};

/// Prints which of `child` and `grandchild`, files with a process id each, still live. A zombie does not, and `kill -0` would find it.
pub(crate) const WHO_LIVES: &str = "for f in child grandchild; do
    read -r pid name state rest </proc/$(cat $f)/stat && test $state != Z && echo $f lives
    done 2>/dev/null; true";

pub(crate) struct World {
    pub(crate) directory: TestDirectory,
    /// The URL of the engine, if it is not the directory `engine`.
    url: Option<String>,
    /// How much longer than its ttl a hold lasts whose holder has died.
    pub(crate) lingers: Duration,
    /// Processes to end when the test ends, however it ends.
    pids: RefCell<Vec<u32>>,
}

impl World {
    pub(crate) fn new() -> World {
        World::at(None)
    }

    /// A world whose engine has a URL of its own.
    pub(crate) fn on(url: impl Into<String>) -> World {
        World::at(Some(url.into()))
    }

    fn at(url: Option<String>) -> World {
        let lingers = Duration::from_millis(500);
        World { directory: TestDirectory::new(), url, lingers, pids: RefCell::default() }
    }

    pub(crate) fn engine(&self) -> String {
        self.url.clone().unwrap_or_else(|| format!("local:{}", self.path("engine").display()))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The command, in the test's directory and on its engine.
    pub(crate) fn tenure(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env("TENURE_ENGINE", self.engine())
            .env_remove("TENURE_LOG")
            .stdin(Stdio::null());
        command
    }

    /// Runs the command to its end.
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.tenure(arguments).output().expect("the command starts")
    }

    /// Runs `tenure run` with flags, and a script as its program, to its end.
    pub(crate) fn run(&self, flags: &[&str], script: &str) -> Output {
        self.output(&[&["run"], flags, &["--", "sh", "-c", script]].concat())
    }

    /// Starts the command; it is killed with the world if it still runs.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        self.spawn(&mut self.tenure(arguments))
    }

    /// As [`World::start`], for a command with more than arguments.
    pub(crate) fn spawn(&self, command: &mut Command) -> Child {
        let child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
        self.watch(child.id());
        child
    }

    /// Sees to it that a process ends with the world.
    pub(crate) fn watch(&self, pid: u32) {
        self.pids.borrow_mut().push(pid);
    }

    /// Starts `tenure run` with flags, and a script as its program.
    pub(crate) fn start_run(&self, flags: &[&str], script: &str) -> Child {
        self.start(&[&["run"], flags, &["--", "sh", "-c", script]].concat())
    }

    /// Waits until a file has a whole line, and returns it.
    pub(crate) fn line(&self, name: &str) -> String {
        let path = self.path(name);
        wait_for(&format!("a line in {name}"), || {
            let text = fs::read_to_string(&path).ok()?;
            Some(text.split_once('\n')?.0.to_owned())
        })
    }

    /// Waits until a script has written a process id into a file, and returns it.
    pub(crate) fn pid(&self, name: &str) -> u32 {
        let pid = self.line(name).trim().parse().expect("a process id");
        self.pids.borrow_mut().push(pid);
        pid
    }

    /// Returns what `tenure status --json` says.
    pub(crate) fn status(&self) -> serde_json::Value {
        let output = self.output(&["status", "--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("status writes JSON")
    }

    /// Waits until so many claims wait for the first resource.
    pub(crate) fn wait_for_waiters(&self, count: u64) {
        wait_for(&format!("{count} waiters"), || {
            (self.status()[0]["waiting"].as_u64() == Some(count)).then_some(())
        });
    }

    pub(crate) fn token(&self) -> String {
        self.status()[0]["holds"][0]["token"].to_string()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for pid in self.pids.take() {
            // Ids of processes that have ended well are not given anew so soon.
            if is_alive(pid)
                && let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw)
            {
                // It may be gone already, which is as good.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// The time, to measure by.
#[allow(clippy::disallowed_methods, reason = "how long processes take is what is tested")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The keeper of a `tenure run`.
pub(crate) fn keeper(tenure: u32) -> u32 {
    wait_for("keeper", || {
        let children = fs::read_to_string(format!("/proc/{tenure}/task/{tenure}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}"))
}

pub(crate) fn append(path: &Path) -> fs::File {
    fs::OpenOptions::new().create(true).append(true).open(path).expect("a file to append to")
}
