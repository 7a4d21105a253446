//! The second party of a check: another process, or a thread with a client of its own.
//!
//! Both sides of the conversation are here. The check sends a command in a line, its parts separated by tabs,
//! and the actor answers in lines behind a [`PREFIX`], since the test harness writes lines of its own:
//!
//! | command | answers |
//! | --- | --- |
//! | `acquire` key form name ttl_ms | `granted` token slot, or `failed` error |
//! | `try` key form name ttl_ms | `granted` token slot, `busy`, or `failed` error |
//! | `release` key | `released` answer, or `failed` error |
//! | `status` key | `held` or `lost` |
//! | `sections` form name ttl_ms count | `section` token from until slot, for each; `done` |
//! | `flights` key tasks value | `loading` for each load; `flown` tasks loads found, of which all found the same |
//! | `hang` key ttl_ms | `loading`, and then it loads for ever |
//! | `consume` queue ttl_ms count | `item` payload token from until, before it acknowledges each; `done` |
//! | `hold` queue ttl_ms | `item` payload token, and it keeps the delivery |
//! | `settle` | `settled`, or `failed` error |
//! | `leave` id name ttl_ms | `left`: its claim of a mutex waits, and it does not any more |
//! | `detach` name ttl_ms | `detached` bytes, in hexadecimal digits, or `failed` error |
//! | `die` place passes | `armed` |
//!
//! A form is that of [`Form`]; the slot is missing where there is none.
//!
//! An actor in a process ends when its standard input does, so that none outlives its check.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::pin::Pin;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use rustix::process::{Pid, Signal, kill_process};
use tenure_core::clock::Instant;
use tenure_core::engine::{Connect, Reach};
use tenure_core::{Delivery, Detached, Lease, Queue, Settings, Tenure, Token};
use tokio::sync::mpsc;

use crate::Setup;
use crate::form::{Form, Held, Lock};
use crate::history::Section;
use crate::mortal::Life;
use crate::stage::{LONG, now, pause, within};

/// The environment variable that makes the entry `actor` play, with the address of the store.
const ADDRESS: &str = "TENURE_CONFORMANCE_ACTOR";
/// What the lines of an actor begin with.
const PREFIX: &str = "actor> ";

thread_local! {
    /// The name of the test that is the entry of actors.
    static ENTRY: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Notes where the entry is: beside the module of the check that runs on this thread.
pub(crate) fn note_entry(module: &str) {
    // The path begins with the crate, which names of tests do not, and ends with the module of the check.
    let inside = module.split_once("::").map_or("", |(_, inside)| inside);
    let beside = inside.rsplit_once("::").map_or(String::new(), |(beside, _)| format!("{beside}::"));
    ENTRY.set(format!("{beside}actor"));
}

/// The check's side.
pub(crate) struct Actor {
    body: Body,
    answers: mpsc::UnboundedReceiver<String>,
    patience: Duration,
}

enum Body {
    Process { child: Child, commands: ChildStdin },
    Thread { life: Arc<Life>, commands: std::sync::mpsc::Sender<String> },
}

impl Actor {
    pub(crate) async fn start(setup: &dyn Setup, reach: Reach) -> Actor {
        let (say, answers) = mpsc::unbounded_channel();
        let body = match reach {
            Reach::Process => start_thread(setup.connector(), say),
            _ => start_process(&setup.address(), say),
        };
        let mut actor = Actor { body, answers, patience: setup.patience() };
        let greeting = actor.hear("it connects").await;
        assert_eq!(greeting.as_deref(), Some("connected"), "an actor begins");
        actor
    }

    /// Sends a command. One that is dead does not hear it.
    pub(crate) fn tell(&mut self, command: &[&str]) {
        let line = command.join("\t");
        match &mut self.body {
            Body::Process { commands, .. } => drop(commands.write_all(format!("{line}\n").as_bytes())),
            Body::Thread { commands, .. } => drop(commands.send(line)),
        }
    }

    /// Waits for the next answer; none if it is dead.
    pub(crate) async fn hear(&mut self, what: &str) -> Option<String> {
        within(self.patience, &format!("an actor answers: {what}"), self.answers.recv()).await
    }

    /// Sends a command and waits for its answer; none if it is dead.
    pub(crate) async fn ask(&mut self, command: &[&str]) -> Option<String> {
        self.tell(command);
        self.hear(command[0]).await
    }

    /// Has it take what is free or comes free.
    pub(crate) async fn acquire(&mut self, form: Form, name: &str, ttl: Duration) -> Granted {
        self.tell_acquire(form, name, ttl);
        self.granted().await
    }

    /// Has it begin to take something; [`Actor::granted`] waits for the grant.
    pub(crate) fn tell_acquire(&mut self, form: Form, name: &str, ttl: Duration) {
        self.tell(&["acquire", "lease", &form.to_string(), name, &ttl.as_millis().to_string()]);
    }

    /// Has it try something once; none if that was refused.
    pub(crate) async fn try_acquire(&mut self, form: Form, name: &str, ttl: Duration) -> Option<Granted> {
        let ttl = ttl.as_millis().to_string();
        let answer = self.ask(&["try", "lease", &form.to_string(), name, &ttl]).await;
        let answer = answer.expect("an actor lives");
        let granted = granted_in(&answer);
        assert!(granted.is_some() || answer == "busy", "an actor's try is answered: {answer}");
        granted
    }

    /// Waits until it has been granted.
    pub(crate) async fn granted(&mut self) -> Granted {
        let answer = self.hear("granted").await.expect("an actor lives");
        granted_in(&answer).unwrap_or_else(|| panic!("an actor is granted its claim: {answer}"))
    }

    /// Has it work in some sections, each under a claim of its own.
    pub(crate) fn tell_sections(&mut self, form: Form, name: &str, ttl: Duration, count: usize) {
        self.tell(&["sections", &form.to_string(), name, &ttl.as_millis().to_string(), &count.to_string()]);
    }

    /// Waits until it has worked in all sections.
    pub(crate) async fn sections(&mut self, client: usize) -> Vec<Section> {
        let mut sections = Vec::new();
        loop {
            let answer = self.hear("a section").await.expect("an actor lives");
            let numbers: Vec<u64> = answer.split('\t').skip(1).filter_map(|part| part.parse().ok()).collect();
            match (answer.split('\t').next(), &numbers[..]) {
                (Some("section"), &[token, from, until, ref slot @ ..]) => sections.push(Section {
                    client,
                    token: Token::new(token),
                    slot: slot.first().map(|slot| *slot as u32),
                    from: Instant::from_nanos(from),
                    until: Instant::from_nanos(until),
                }),
                (Some("done"), _) => return sections,
                _ => panic!("an actor works in its sections: {answer}"),
            }
        }
    }

    /// Stops it: by SIGSTOP, or by cutting its connection.
    pub(crate) fn stop(&mut self) {
        match &self.body {
            Body::Process { child, .. } => signal(child, Signal::STOP),
            Body::Thread { life, .. } => life.cut(),
        }
    }

    /// Lets it go on after a stop.
    pub(crate) fn go_on(&mut self) {
        match &self.body {
            Body::Process { child, .. } => signal(child, Signal::CONT),
            Body::Thread { life, .. } => life.mend(),
        }
    }

    /// Kills it: by SIGKILL, or by cutting its connection.
    pub(crate) fn kill(&mut self) {
        match &mut self.body {
            Body::Process { child, .. } => {
                // It may be dead already, which is what is wanted.
                child.kill().ok();
                child.wait().expect("a killed child ends");
            }
            Body::Thread { life, .. } => life.cut(),
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id() as i32).expect("a child has a pid");
    kill_process(pid, signal).expect("a child that was not waited for takes a signal");
}

/// How often each actor works in [`work_in_sections`], see `rounds` of the `stage`.
pub(crate) const SECTIONS: usize = 20;

/// Has each actor work in sections under claims of its form, all at the same time.
pub(crate) async fn work_in_sections(
    actors: &mut [Actor],
    forms: &[Form],
    name: &str,
    rounds: usize,
) -> Vec<Section> {
    for (actor, form) in actors.iter_mut().zip(forms) {
        actor.tell_sections(*form, name, LONG, rounds);
    }
    let work = actors.iter_mut().enumerate().map(|(client, actor)| actor.sections(client));
    let sections = join_all(work).await.concat();
    assert_eq!(sections.len(), actors.len() * rounds, "every section was worked in");
    sections
}

/// What an actor was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) token: Token,
    pub(crate) slot: Option<u32>,
}

/// Reads a grant that an actor answered.
pub(crate) fn granted_in(answer: &str) -> Option<Granted> {
    let mut numbers = answer.strip_prefix("granted\t")?.split('\t');
    let token = Token::new(numbers.next()?.parse().ok()?);
    Some(Granted { token, slot: numbers.next().and_then(|slot| slot.parse().ok()) })
}

/// Reads what an actor has detached.
pub(crate) fn detached_in(answer: &str) -> Option<Detached> {
    let digits = answer.strip_prefix("detached\t")?;
    let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    postcard::from_bytes(&bytes?).ok()
}

/// Takes a mutex and detaches it.
fn detach(tenure: &Tenure, name: &str, ttl: &str) -> String {
    let ttl = Duration::from_millis(ttl.parse().expect("the check sends a number"));
    let detached = pollster::block_on(tenure.mutex(name).ttl(ttl).acquire()).and_then(Lease::detach);
    match detached {
        Ok(detached) => {
            let bytes = postcard::to_allocvec(&detached).expect("it is written in any format");
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("detached\t{digits}")
        }
        Err(error) => format!("failed\t{error}"),
    }
}

/// Waits for a mutex until the claim has its place, and leaves it there.
async fn leave(tenure: &Tenure, id: &str, name: &str, ttl: &str) -> String {
    let id = id.parse().expect("the check sends an id");
    let ttl = Duration::from_millis(ttl.parse().expect("the check sends a number"));
    let mut waiting = Box::pin(tenure.mutex(name).ttl(ttl).claim_id(id).acquire());
    while waiting.place().is_none() {
        if let Some(answer) = poll_immediate(&mut waiting).await {
            return format!("failed\t{:?}", answer.map(|lease| lease.token()));
        }
        pause(Duration::from_millis(5)).await;
    }
    Pin::into_inner(waiting).detach();
    "left".to_owned()
}

fn start_thread(connect: Connect, say: mpsc::UnboundedSender<String>) -> Body {
    let life = Life::of_thread();
    let connect = life.connector(connect);
    let (commands, heard) = std::sync::mpsc::channel();
    let body = Body::Thread { life: life.clone(), commands };
    std::thread::spawn(move || {
        let say = |line: String| {
            // The check may be over.
            say.send(line).ok();
        };
        perform(connect, &life, heard.into_iter(), say);
    });
    body
}

fn start_process(address: &str, say: mpsc::UnboundedSender<String>) -> Body {
    let program = std::env::current_exe().expect("a test binary has a path");
    let entry = ENTRY.with_borrow(Clone::clone);
    let mut child = Command::new(program)
        .args([&entry, "--exact", "--nocapture", "--test-threads=1"])
        .env(ADDRESS, address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test binary executes itself");
    let commands = child.stdin.take().expect("it was asked for");
    let output = BufReader::new(child.stdout.take().expect("it was asked for"));
    std::thread::spawn(move || {
        // A line that is not UTF-8 or not the actor's is the harness's.
        for line in output.lines().map_while(Result::ok) {
            if let Some((_, answer)) = line.split_once(PREFIX) {
                say.send(answer.to_owned()).ok();
            }
        }
    });
    Body::Process { child, commands }
}

/// The entry of the process that is an actor. Anywhere else it does nothing.
#[doc(hidden)]
pub fn play<S: Setup>() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let life = Life::of_process();
    let setup = S::at(&address);
    let (commands, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            commands.send(line).ok();
        }
        // The check is over, whatever is under way here.
        std::process::exit(0);
    });
    let say = |line: String| {
        let mut output = std::io::stdout().lock();
        // A check that is over does not listen.
        output.write_all(format!("{PREFIX}{line}\n").as_bytes()).and_then(|()| output.flush()).ok();
    };
    perform(life.connector(setup.connector()), &life, heard.into_iter(), say);
}

/// The actor's side.
fn perform(connect: Connect, life: &Life, commands: impl Iterator<Item = String>, say: impl Fn(String)) {
    // What fails late is judged where it is the matter: here a busy machine answers when it can.
    let settings = Settings::new().answer_timeout(Duration::from_secs(10));
    let tenure = match pollster::block_on(Tenure::connect_with(connect, settings)) {
        Ok(tenure) => tenure,
        Err(error) => return say(format!("failed\t{error}")),
    };
    say("connected".to_owned());
    let mut leases = HashMap::new();
    let mut delivery = None;
    for line in commands {
        let command: Vec<&str> = line.split('\t').collect();
        match command[..] {
            ["acquire", key, form, name, ttl] => {
                let acquired = pollster::block_on(lock(&tenure, form, name, ttl).acquire());
                say(keep(&mut leases, key, acquired.map(Some)));
            }
            ["try", key, form, name, ttl] => {
                let tried = pollster::block_on(lock(&tenure, form, name, ttl).try_acquire());
                say(keep(&mut leases, key, tried));
            }
            ["release", key] => match leases.remove(key).map(|lease| pollster::block_on(lease.release())) {
                Some(Ok(answer)) => say(format!("released\t{answer:?}")),
                Some(Err(error)) => say(format!("failed\t{error}")),
                None => say("failed\tno such lease".to_owned()),
            },
            ["status", key] => match leases.get(key) {
                Some(lease) => {
                    say(if lease.is_lost() { "lost" } else { "held" }.to_owned());
                }
                None => say("failed\tno such lease".to_owned()),
            },
            ["sections", form, name, ttl, count] => {
                let lock = lock(&tenure, form, name, ttl);
                for _ in 0..count.parse().unwrap_or(0) {
                    say(section(&lock));
                }
                say("done".to_owned());
            }
            ["flights", key, tasks, value] => say(flights(&tenure, key, tasks, value, &say)),
            ["hang", key, ttl] => say(hang(&tenure, key, ttl, &say)),
            ["consume", queue, ttl, count] => say(consume(&queue_of(&tenure, queue, ttl), count, &say)),
            ["hold", queue, ttl] => match pollster::block_on(queue_of(&tenure, queue, ttl).next()) {
                Ok(item) => {
                    say(item_line(&item));
                    delivery = Some(item);
                }
                Err(error) => say(format!("failed\t{error}")),
            },
            ["settle"] => match delivery.take().map(|item: Delivery| pollster::block_on(item.ack())) {
                Some(Ok(())) => say("settled".to_owned()),
                Some(Err(error)) => say(format!("failed\t{}", error.kind().as_str())),
                None => say("failed\tno such delivery".to_owned()),
            },
            ["leave", id, name, ttl] => say(pollster::block_on(leave(&tenure, id, name, ttl))),
            ["detach", name, ttl] => say(detach(&tenure, name, ttl)),
            ["die", place, passes] => {
                life.die_at(place, passes.parse().expect("the check sends a number"));
                say("armed".to_owned());
            }
            _ => say(format!("failed\tno such command: {line}")),
        }
    }
}

fn lock(tenure: &Tenure, form: &str, name: &str, ttl: &str) -> Lock {
    let form: Form = form.parse().expect("the check sends a form");
    let ttl = Duration::from_millis(ttl.parse().expect("the check sends a number"));
    form.of(tenure, name, ttl)
}

/// The slot as a last part of an answer, where there is one.
fn slot_part(lease: &Lease) -> String {
    lease.slot().map_or(String::new(), |slot| format!("\t{slot}"))
}

fn keep(
    leases: &mut HashMap<String, Held>,
    key: &str,
    acquired: tenure_core::Result<Option<Held>>,
) -> String {
    match acquired {
        Ok(Some(lease)) => {
            let granted = format!("granted\t{}{}", lease.token(), slot_part(&lease));
            leases.insert(key.to_owned(), lease);
            granted
        }
        Ok(None) => "busy".to_owned(),
        Err(error) => format!("failed\t{error}"),
    }
}

/// Works once under a claim.
fn section(lock: &Lock) -> String {
    let lease = match pollster::block_on(lock.acquire()) {
        Ok(lease) => lease,
        Err(error) => return format!("failed\t{error}"),
    };
    let from = now();
    #[allow(clippy::disallowed_methods, reason = "long enough that another holder would be seen")]
    std::thread::sleep(Duration::from_micros(500));
    let until = now();
    if lease.is_lost() {
        return "failed\tthe lease was lost".to_owned();
    }
    let (token, slot) = (lease.token(), slot_part(&lease));
    match pollster::block_on(lease.release()) {
        Ok(_) => format!("section\t{token}\t{}\t{}{slot}", from.nanos(), until.nanos()),
        Err(error) => format!("failed\t{error}"),
    }
}

/// Has many tasks want one value at the same time. Whoever loads it makes it of `value`.
fn flights(tenure: &Tenure, key: &str, tasks: &str, value: &str, say: &impl Fn(String)) -> String {
    let tasks: usize = tasks.parse().expect("the check sends a number");
    let loads = std::cell::Cell::new(0);
    let want = async || {
        let flight = tenure.single_flight(key).ttl(LONG);
        let load = async |_: &Lease| {
            loads.set(loads.get() + 1);
            say("loading".to_owned());
            // Long enough that everybody comes while it loads.
            pause(Duration::from_millis(300)).await;
            Ok::<_, tenure_core::Error>(value.as_bytes().to_vec())
        };
        flight.get_or_refresh(load).await
    };
    let found = pollster::block_on(join_all((0..tasks).map(|_| want())));
    let found: std::collections::BTreeSet<String> = found
        .into_iter()
        .map(|found| match found {
            Ok(found) => String::from_utf8_lossy(&found.bytes).into_owned(),
            Err(error) => error.to_string(),
        })
        .collect();
    let found: Vec<String> = found.into_iter().collect();
    format!("flown\t{tasks}\t{}\t{}", loads.get(), found.join(" and "))
}

fn queue_of(tenure: &Tenure, name: &str, ttl: &str) -> Queue {
    tenure.queue(name).ttl(Duration::from_millis(ttl.parse().expect("the check sends a number")))
}

fn item_line(item: &Delivery) -> String {
    format!("item\t{}\t{}", String::from_utf8_lossy(item.payload()), item.token())
}

/// Takes items and acknowledges them, until a payload says `stop` or so many are done.
fn consume(queue: &Queue, count: &str, say: &impl Fn(String)) -> String {
    for _ in 0..count.parse().expect("the check sends a number") {
        let worked = pollster::block_on(async {
            let delivery = queue.next().await?;
            let from = now();
            pause(Duration::from_micros(500)).await;
            let line = format!("{}\t{}\t{}", item_line(&delivery), from.nanos(), now().nanos());
            say(line.clone());
            delivery.ack().await?;
            Ok::<_, tenure_core::Error>(line)
        });
        match worked {
            Ok(line) if line.starts_with("item\tstop\t") => break,
            Ok(_) => {}
            Err(error) => return format!("failed\t{error}"),
        }
    }
    "done".to_owned()
}

/// Loads a value for ever.
fn hang(tenure: &Tenure, key: &str, ttl: &str, say: &impl Fn(String)) -> String {
    let ttl = Duration::from_millis(ttl.parse().expect("the check sends a number"));
    let flight = tenure.single_flight(key).ttl(ttl);
    let found = flight.get_or_refresh(async |_| {
        say("loading".to_owned());
        std::future::pending::<Result<Vec<u8>, tenure_core::Error>>().await
    });
    match pollster::block_on(found) {
        Ok(found) => format!("found\t{}", String::from_utf8_lossy(&found.bytes)),
        Err(error) => format!("failed\t{error}"),
    }
}
