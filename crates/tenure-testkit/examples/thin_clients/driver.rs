//! A client under test, behind a program that does what lines say.
//!
//! The runner starts `DRIVER ARGUMENTS... URL` and writes commands to its input; each has a key, which the answer begins with. Commands are
//! done at the same time: one that waits keeps no other from being answered.
//!
//! | command | answer |
//! | --- | --- |
//! | `acquire KEY NAME TTL_MS WAIT_MS` | `KEY granted TOKEN`, or `KEY failed KIND` |
//! | `try KEY NAME TTL_MS` | `KEY granted TOKEN`, `KEY busy`, or `KEY failed KIND` |
//! | `check KEY` | `KEY held` or `KEY lost`: what the client believes at this moment, without a round trip |
//! | `release KEY` | `KEY released yes`, `KEY released no`, or `KEY failed KIND` |
//! | `push KEY QUEUE TEXT` | `KEY pushed`, or `KEY failed KIND` |
//! | `take KEY QUEUE TTL_MS WAIT_MS` | `KEY taken TEXT`, `KEY nothing`, or `KEY failed KIND` |
//! | `ack KEY` | `KEY settled`, or `KEY failed KIND` |
//! | `close KEY` | `KEY closed`: the client is closed |
//! | `exit` | the program ends by itself, and closes nothing |
//!
//! A lease that is lost is told by a line `KEY told`, from the callback that users have. `KIND` is `lost`, `timeout`, `unavailable`, and so on.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer may take, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Lines {
    of: Mutex<HashMap<String, Vec<String>>>,
    changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct Driver {
    child: Child,
    input: Option<ChildStdin>,
    lines: Arc<Lines>,
}

impl Driver {
    pub(crate) fn start(line: &[String], url: &str) -> Driver {
        let (program, arguments) = line.split_first().expect("a driver after `--`");
        let mut command = Command::new(program);
        command.args(arguments).arg(url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the driver can be started");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let lines = Arc::new(Lines::default());
        let heard = lines.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let (key, said) = line.split_once(' ').unwrap_or((&line, ""));
                let mut of = heard.of.lock().unwrap_or_else(PoisonError::into_inner);
                let kind = if said == "told" { format!("{key} told") } else { key.to_owned() };
                of.entry(kind).or_default().push(said.to_owned());
                heard.changed.notify_all();
            }
        });
        Driver { input: child.stdin.take(), child, lines }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it do something.
    pub(crate) fn begin(&mut self, command: &str) {
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{command}").and_then(|()| input.flush()).expect("the driver reads");
    }

    /// The next answer about a key.
    pub(crate) fn answer(&self, key: &str) -> String {
        self.answer_within(key, PATIENCE).unwrap_or_else(|| panic!("the driver says nothing about {key}"))
    }

    pub(crate) fn answer_within(&self, key: &str, patience: Duration) -> Option<String> {
        let until = Instant::now() + patience;
        let mut of = self.lines.of.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(said) = of.get_mut(key).filter(|said| !said.is_empty()) {
                return Some(said.remove(0));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            of = self.lines.changed.wait_timeout(of, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has it do something, and waits for the answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.begin(command);
        let key = command.split(' ').nth(1).expect("a command has a key");
        self.answer(key)
    }

    /// Waits until its client has told of a loss.
    pub(crate) fn told(&self, key: &str) {
        self.answer(&format!("{key} told"));
    }

    /// Waits until it has ended by itself.
    pub(crate) fn ended(&mut self) {
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
