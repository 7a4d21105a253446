//! Other processes: this test binary again, told on its standard input what to do.
//!
//! Each line is a command, each answer a line that begins with `> `. What is claimed is remembered by name.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use futures_util::future::{Either, select};
use rustix::process::{Pid, Signal};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{ClaimAnswer, Engine, RenewAnswer, RenewRequest, Wake};
use tenure_core::model::claim::{Claim, ClaimId, Keep, Kind, Name};
use tenure_core::testing::failpoint;
use tenure_local::Config;

use crate::world::{Client, PATIENCE, claim_of, run};

/// The place to connect to; empty: the default one.
const PLACE: &str = "TENURE_TEST_PLACE";
/// What to do at which failpoint: `kill local.before_begin`.
const FAIL: &str = "TENURE_TEST_FAIL";

/// Another process.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Process {
    /// Starts a process that has a client of a place.
    pub(crate) fn start(place: &Path) -> Process {
        let mut process = Process::start_by(Command::new(std::env::current_exe().unwrap()), place);
        assert_eq!(process.read(), "connected");
        process
    }

    /// Starts a process that dies at a failpoint while it connects.
    pub(crate) fn start_to_die_at(failpoint: &str, place: &Path) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(FAIL, format!("kill {failpoint}"));
        Process::start_by(command, place)
    }

    /// Starts a process by a command that runs this binary.
    pub(crate) fn start_by(mut command: Command, place: &Path) -> Process {
        let mut child = command
            .args(["--exact", "child::main_of_the_child", "--nocapture", "--test-threads=1"])
            .env(PLACE, place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, answers) = channel();
        // A thread, so that a test can stop to wait.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, answer)) = line.split_once("> ") {
                    drop(sender.send(answer.trim_end().to_owned()));
                }
            }
        });
        Process { child, input, answers }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// Reads the next answer. Empty: the process has ended.
    pub(crate) fn read(&mut self) -> String {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Disconnected) => String::new(),
            Err(RecvTimeoutError::Timeout) => panic!("process {} does not answer", self.pid()),
        }
    }

    /// Whether there is an answer, without waiting long for one.
    pub(crate) fn try_read(&mut self) -> Option<String> {
        self.answers.recv_timeout(std::time::Duration::from_millis(1)).ok()
    }

    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.read()
    }

    /// Waits until it says that it has been woken; returns when, in nanoseconds since the boot.
    pub(crate) fn woken(&mut self) -> u64 {
        let answer = self.read();
        answer.strip_prefix("woken ").expect(&answer).parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it is stopped.
    pub(crate) fn stopped(&self) {
        let stat = format!("/proc/{}/stat", self.pid());
        let until = SystemClock.now() + PATIENCE;
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            assert!(SystemClock.now() < until);
            std::thread::yield_now();
        }
    }

    /// Kills it at once, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As [`Process::kill`]. Returns what it had said and nobody had read.
    pub(crate) fn last_words(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        std::iter::repeat_with(|| self.read()).take_while(|answer| !answer.is_empty()).collect()
    }

    /// Waits until it has died of a failpoint.
    pub(crate) fn died(mut self) {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(self.read(), "");
        assert_eq!(self.child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What to do at which failpoint.
static FAILPOINT: Mutex<Option<(String, String)>> = Mutex::new(None);

fn fail(place: &'static str) {
    let mut failpoint = FAILPOINT.lock().unwrap();
    if failpoint.as_ref().is_none_or(|(_, at)| at != place) {
        return;
    }
    let (what, _) = failpoint.take().unwrap();
    drop(failpoint);
    match &*what {
        "panic" => panic!("a failpoint said so"),
        "stop" => raise(Signal::STOP),
        "kill" => raise(Signal::KILL),
        other => panic!("unknown failpoint {other}"),
    }
}

/// Sends a signal to this very thread, so that it is the one that is stopped here.
#[allow(unsafe_code, reason = "raise")]
fn raise(signal: Signal) {
    // SAFETY: it sends a signal.
    assert_eq!(unsafe { libc::raise(signal.as_raw()) }, 0);
}

fn set_failpoint(words: &str) {
    let (what, place) = words.split_once(' ').unwrap();
    *FAILPOINT.lock().unwrap() = Some((what.to_owned(), place.to_owned()));
}

pub(crate) fn say(answer: &str) {
    println!("> {answer}");
}

/// Not a test: what the other processes run. It does nothing when it is run as a test.
#[test]
fn main_of_the_child() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    failpoint::set(fail);
    if let Ok(words) = std::env::var(FAIL) {
        set_failpoint(&words);
    }
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            sender.send(line.unwrap()).unwrap();
        }
    });
    run(async move {
        let config = if place.is_empty() { Config::default() } else { Config::in_directory(place) };
        let mut client = match Client::try_connect(config).await {
            Ok(client) => client,
            Err(error) => {
                say(&format!("{error:?}"));
                return;
            }
        };
        say("connected");
        let (mut claims, mut confirmed) = (HashMap::new(), HashSet::new());
        loop {
            let next = match select(std::pin::pin!(lines.recv()), std::pin::pin!(client.next_wake())).await {
                Either::Left((line, _)) => Ok(line),
                Either::Right((wake, _)) => Err(wake),
            };
            match next {
                Ok(None) => return,
                Ok(Some(line)) => obey(&mut client, &mut claims, &line).await,
                Err(wake) => hear(&client, &claims, &mut confirmed, wake).await,
            }
        }
    });
}

async fn obey(client: &mut Client, claims: &mut HashMap<String, ClaimId>, line: &str) {
    let words: Vec<_> = line.split(' ').collect();
    match words[..] {
        ["try" | "wait", name] => {
            let claim = client.request(name, words[0] == "wait");
            claim_it(client, claims, claim).await;
        }
        ["semaphore", name, capacity] => {
            let capacity = capacity.parse().unwrap();
            let claim = claim_of(client.id, name, true, Kind::Semaphore, capacity);
            claim_it(client, claims, claim).await;
        }
        ["publish", name, bytes] => {
            let (value, name) = (vec![7; bytes.parse().unwrap()].into(), Name::new(name).unwrap());
            let published =
                client.engine.publish(name.clone(), claims[name.as_str()], value, Keep::WhileHeld);
            match published.await {
                Ok(is_set) => say(if is_set { "published" } else { "lost" }),
                Err(error) => say(&format!("{error:?}")),
            }
        }
        ["release", name] => {
            match client.engine.release(vec![crate::world::release(name, claims[name])]).await.remove(0) {
                Ok(answer) => say(&format!("{answer:?}")),
                Err(error) => say(&format!("{error:?}")),
            }
        }
        ["renew", name] => {
            let request =
                RenewRequest { resource: Name::new(name).unwrap(), claim: claims[name], is_waiter: false };
            match client.engine.renew(vec![request]).await.remove(0) {
                Ok(RenewAnswer::Renewed { .. }) => say("renewed"),
                Ok(other) => say(&format!("{other:?}")),
                Err(error) => say(&format!("{error:?}")),
            }
        }
        ["check"] => say(&format!("{:?}", client.engine.check().await)),
        ["push" | "get" | "ack" | "pour" | "work", ..] => crate::queue::obey(client, claims, &words).await,
        ["at", what, place] => set_failpoint(&format!("{what} {place}")),
        ["count", path, rounds] => count(client, Path::new(path), rounds.parse().unwrap()).await,
        ["keeper"] => keeper(client),
        ["fork"] => fork(client),
        ["exit"] => std::process::exit(0),
        ["fill"] => {
            let mut file = std::fs::File::create(filler()).unwrap();
            while file.write_all(&[0; 4096]).is_ok() {}
            say("filled");
        }
        ["empty"] => {
            std::fs::remove_file(filler()).unwrap();
            say("emptied");
        }
        _ => panic!("unknown command {line}"),
    }
}

async fn claim_it(client: &Client, claims: &mut HashMap<String, ClaimId>, claim: Claim) {
    let (id, name) = (claim.id, claim.resource.to_string());
    let answer = client.claim(claim).await;
    if matches!(answer, Ok(ClaimAnswer::Granted(_) | ClaimAnswer::Waiting(..))) {
        claims.insert(name, id);
    }
    match answer {
        Ok(ClaimAnswer::Granted(grant)) => say(&format!("granted {}", grant.token)),
        Ok(ClaimAnswer::Waiting(..)) => say("waiting"),
        Ok(other) => say(&format!("{other:?}")),
        Err(error) => say(&format!("{error:?}")),
    }
}

/// Confirms a grant, as a client does, and says so once: news may come twice.
async fn hear(
    client: &Client,
    claims: &HashMap<String, ClaimId>,
    confirmed: &mut HashSet<ClaimId>,
    wake: Wake,
) {
    if let Wake::Queue(queue) = &wake {
        // Another may have been quicker.
        if !client.take_items(queue.as_str(), 1).await.is_empty() {
            say(&format!("woken {}", SystemClock.now().nanos()));
        }
        return;
    }
    for (name, claim) in claims {
        let is_meant = match wake {
            Wake::Granted { claim: woken, .. } | Wake::Look(woken) => woken == *claim,
            _ => true,
        };
        if is_meant
            && !confirmed.contains(claim)
            && let RenewAnswer::Granted(_) = client.renew(name, *claim, true).await
        {
            confirmed.insert(*claim);
            say(&format!("woken {}", SystemClock.now().nanos()));
        }
    }
}

/// Where the space of the place's file system goes.
fn filler() -> std::path::PathBuf {
    Path::new(&std::env::var_os(PLACE).unwrap()).join("filler")
}

/// Adds to a number in a file that only the holder of the lock may touch.
async fn count(client: &mut Client, path: &Path, rounds: u32) {
    for _ in 0..rounds {
        let claim = client.request("counter", true);
        let id = claim.id;
        if let ClaimAnswer::Waiting(..) = client.claim(claim).await.unwrap() {
            client.granted("counter", id).await;
        }
        let number: u32 = std::fs::read_to_string(path).unwrap().trim().parse().unwrap();
        // Written whole, so that a kill leaves the old number or the new one.
        let fresh = path.with_extension(std::process::id().to_string());
        std::fs::write(&fresh, (number + 1).to_string()).unwrap();
        std::fs::rename(&fresh, path).unwrap();
        say("counted");
        client.release("counter", id).await;
    }
    say("done");
}

/// Lets another process share this one's life.
fn keeper(client: &Client) {
    let shared = client.engine.share_life(std::process::id()).unwrap().unwrap();
    // The keeper inherits it.
    rustix::io::fcntl_setfd(&shared, rustix::io::FdFlags::empty()).unwrap();
    #[allow(clippy::zombie_processes, reason = "it outlives this process")]
    let keeper = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
    drop::<OwnedFd>(shared);
    drop(client.engine.share_life(keeper.id()).unwrap());
    say(&keeper.id().to_string());
}

/// Forks a child that outlives this process, and says what became of its use of the client.
#[allow(unsafe_code, reason = "fork")]
fn fork(client: &Client) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let claim = client.request("of the child", false);
    // SAFETY: the child calls nothing that needs another thread, and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let answer = client.engine.blocking().unwrap().claim(&claim);
        let text = answer.map_or_else(|error| format!("{error:?}"), |answer| format!("{answer:?}"));
        rustix::io::write(&writer, text.as_bytes()).unwrap();
        let pushed = pollster::block_on(client.try_push(crate::queue::push("q", "", "of the child")));
        rustix::io::write(&writer, format!(" {pushed:?}").as_bytes()).unwrap();
        rustix::io::write(&writer, b"\n").unwrap();
        // Its copies of everything stay open, until it is killed or the test has been over for long.
        let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 });
        // SAFETY: it ends the process without running anything of it.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    assert!(reader.as_raw_fd() >= 0);
    let mut answer = String::new();
    BufReader::new(std::fs::File::from(reader)).read_line(&mut answer).unwrap();
    say(&format!("{pid} {}", answer.trim()));
}
