//! The clients' processes, as the supervisor sees them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::Signal;
use tenure_testkit::signal;

use crate::client::{CALM, Classic};
use crate::engines::{Engine, Way};
use crate::history::{Journal, now};
use crate::schedule::{Fault, Reach, Trouble};

/// The processes of all clients, and what each is started with.
pub(crate) struct Crew<'a> {
    engine: &'a Engine,
    /// How they lock in place of the library.
    classic: Option<Classic>,
    directory: PathBuf,
    journal: &'a Journal,
    members: Vec<Mutex<Member>>,
}

/// A client: one process after the other.
struct Member {
    number: usize,
    way: Way,
    incarnation: usize,
    child: Child,
    input: Option<ChildStdin>,
}

/// The socket of the resource in the directory of a history.
pub(crate) fn socket(directory: &Path) -> PathBuf {
    directory.join("resource")
}

impl<'a> Crew<'a> {
    /// Starts so many clients.
    pub(crate) fn start(
        engine: &'a Engine,
        directory: &Path,
        journal: &'a Journal,
        clients: usize,
        classic: Option<Classic>,
    ) -> Crew<'a> {
        let start = |number| {
            let way = Way::to(engine);
            let mut child = spawn(engine, directory, &way, [number, 0], classic);
            let input = child.stdin.take();
            Mutex::new(Member { number, way, incarnation: 0, child, input })
        };
        let members = (0..clients).map(start).collect();
        Crew { engine, classic, directory: directory.to_owned(), journal, members }
    }

    /// Writes down what was broken at a time.
    pub(crate) fn note(&self, fault: &Fault, from: u64) {
        let (client, period) = match *fault {
            Fault::Stop { client, period } | Fault::Trouble { client, period, .. } => (Some(client), period),
            Fault::Kill { client } | Fault::Cut { client, .. } => (Some(client), Duration::ZERO),
            Fault::Hang { period, .. }
            | Fault::CutOff { period, .. }
            | Fault::LeaveBehind { period }
            | Fault::FillDisk { period }
            | Fault::MoveSlot { period, .. } => (None, period),
            _ => (None, Duration::ZERO),
        };
        let client = client.map(|client| client.to_string()).unwrap_or_default();
        let [from, until] = [from, from + period.as_nanos() as u64].map(|time| time.to_string());
        self.journal.write(&["fault", fault.kind(), &client, &from, &until]);
    }

    /// Stops a client's process (SIGSTOP).
    pub(crate) fn stop(&self, client: usize) {
        signal(self.member(client).child.id(), Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self, client: usize) {
        signal(self.member(client).child.id(), Signal::CONT);
    }

    /// Resets connections of its.
    pub(crate) fn cut(&self, client: usize, reach: Reach) {
        self.member(client).way.cut(reach);
    }

    /// Troubles its network.
    pub(crate) fn trouble(&self, client: usize, reach: Reach, trouble: Trouble) {
        self.member(client).way.trouble(reach, trouble);
    }

    /// Ends what troubles its network.
    pub(crate) fn heal(&self, client: usize) {
        self.member(client).way.heal();
    }

    /// Kills it, and starts another in its place.
    pub(crate) fn kill(&self, client: usize) {
        let mut member = self.member(client);
        let at = now();
        member.end();
        let Member { number, incarnation, .. } = *member;
        let parts = [number, incarnation].map(|part| part.to_string());
        self.journal.write(&["died", &parts[0], &parts[1], &at.to_string()]);
        member.incarnation += 1;
        member.child =
            spawn(self.engine, &self.directory, &member.way, [number, incarnation + 1], self.classic);
        member.input = member.child.stdin.take();
    }

    /// Tells all that the faults are over.
    pub(crate) fn calm(&self) {
        for client in 0..self.members.len() {
            let mut member = self.member(client);
            let input = member.input.as_mut().expect("it was not asked to end");
            input.write_all(format!("{CALM}\n").as_bytes()).expect("a client lives");
        }
    }

    /// Asks all to end; returns those that did not within a time, which are killed, or that failed.
    pub(crate) fn finish(self, within: Duration) -> Vec<String> {
        let until = now() + within.as_nanos() as u64;
        (0..self.members.len()).for_each(|client| drop(self.member(client).input.take()));
        let mut failed = Vec::new();
        for client in 0..self.members.len() {
            let mut member = self.member(client);
            let status = loop {
                let status = member.child.try_wait().expect("a child of this process");
                if status.is_some() || now() > until {
                    break status;
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            match status {
                Some(status) if status.success() => {}
                Some(status) => failed.push(format!("client {client}: {status}")),
                None => failed.push(format!("client {client} does not end")),
            }
        }
        failed
    }

    fn member(&self, client: usize) -> MutexGuard<'_, Member> {
        self.members[client].lock().expect("no fault panics")
    }
}

impl Member {
    fn end(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(
    engine: &Engine,
    directory: &Path,
    way: &Way,
    [number, incarnation]: [usize; 2],
    classic: Option<Classic>,
) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.arg("client").arg("--client").arg(number.to_string());
    command.arg("--incarnation").arg(incarnation.to_string());
    command.arg("--url").arg(engine.url(&way.ports()));
    command.arg("--ttl-ms").arg(engine.ttl.as_millis().to_string());
    command.arg("--history").arg(directory).arg("--resource").arg(socket(directory));
    command.args(classic.into_iter().flat_map(|classic| ["--classic", classic.as_str()]));
    command.stdin(Stdio::piped()).spawn().expect("this program starts itself")
}
