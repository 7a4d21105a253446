//! Other processes: this test binary again, told on its standard input what to do.
//!
//! Each line is a command, each answer a line that begins with `> `.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use futures_util::future::{Either, select};
use rustix::process::{Pid, Signal};
use tenure_core::claim::ClaimId;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{ClaimAnswer, RenewAnswer, Wake};
use tenure_core::failpoint;
use tenure_local::Config;

use crate::world::{Client, run};

const ROLE: &str = "TENURE_TEST_CHILD";

/// Another process.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process that has a client of a place.
    pub(crate) fn start(place: &Path) -> Process {
        let mut process = Process::start_with(Command::new(std::env::current_exe().unwrap()), place);
        assert_eq!(process.read(), "connected");
        process
    }

    /// Starts a process by a command that runs another one's arguments.
    pub(crate) fn start_with(mut command: Command, place: &Path) -> Process {
        let mut child = command
            .args(["--exact", "child::main_of_the_child", "--nocapture", "--test-threads=1"])
            .env(ROLE, place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process { child, input, output }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// Reads the next answer. Empty: the process has ended.
    pub(crate) fn read(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return String::new();
            }
            if let Some((_, answer)) = line.split_once("> ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.read()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Kills it at once, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What to do at which place: set by a command.
static FAILPOINT: Mutex<Option<(String, Signal)>> = Mutex::new(None);

fn fail(place: &'static str) {
    let mut failpoint = FAILPOINT.lock().unwrap();
    if failpoint.as_ref().is_some_and(|(at, _)| at == place) {
        let (_, signal) = failpoint.take().unwrap();
        drop(failpoint);
        rustix::process::kill_process(rustix::process::getpid(), signal).unwrap();
        if signal == Signal::KILL {
            loop {
                std::hint::spin_loop();
            }
        }
    }
}

fn say(answer: &str) {
    println!("> {answer}");
}

#[test]
fn main_of_the_child() {
    let Some(place) = std::env::var_os(ROLE) else { return };
    failpoint::set(fail);
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            sender.send(line.unwrap()).unwrap();
        }
    });
    run(async move {
        let mut client = match Client::try_connect(Config::in_directory(place)).await {
            Ok(client) => client,
            Err(error) => {
                say(&format!("{error:?}"));
                return;
            }
        };
        say("connected");
        let mut claims = HashMap::new();
        loop {
            let next =
                match select(std::pin::pin!(lines.recv()), std::pin::pin!(client.wake_at_leisure())).await {
                    Either::Left((line, _)) => Ok(line),
                    Either::Right((wake, _)) => Err(wake),
                };
            match next {
                Ok(None) => return,
                Ok(Some(line)) => obey(&client, &mut claims, &line).await,
                Err(wake) => hear(&client, &claims, wake).await,
            }
        }
    });
}

async fn obey(client: &Client, claims: &mut HashMap<String, ClaimId>, line: &str) {
    let words: Vec<_> = line.split(' ').collect();
    match words[..] {
        ["try" | "wait", name] => {
            let claim = client.request(name, words[0] == "wait");
            claims.insert(name.to_owned(), claim.id);
            match client.claim(claim).await {
                Ok(ClaimAnswer::Granted(grant)) => say(&format!("granted {}", grant.token)),
                Ok(ClaimAnswer::Waiting(..)) => say("waiting"),
                Ok(other) => say(&format!("{other:?}")),
                Err(error) => say(&format!("{error:?}")),
            }
        }
        ["release", name] => say(&format!("{:?}", client.release(name, claims[name]).await)),
        ["kill-at", place] => *FAILPOINT.lock().unwrap() = Some((place.to_owned(), Signal::KILL)),
        ["stop-at", place] => *FAILPOINT.lock().unwrap() = Some((place.to_owned(), Signal::STOP)),
        _ => panic!("unknown command {line}"),
    }
}

async fn hear(client: &Client, claims: &HashMap<String, ClaimId>, wake: Wake) {
    let tell = || say(&format!("woken {}", SystemClock.now().nanos()));
    match wake {
        Wake::Granted { .. } => tell(),
        _ => {
            for (name, claim) in claims {
                if let RenewAnswer::Granted(_) = client.renew(name, *claim, true).await {
                    tell();
                }
            }
        }
    }
}
