//! Two instances of `tenure serve`, one of which is killed every 2 s, and clients that keep leases through whichever they reach.
//!
//! A client does what `docs/operating/serve.md` asks of one. What it works on is fenced: it refuses a token that is smaller than one it has
//! seen, so a write that is accepted must come from whoever holds the lock. Where everything is tested, the clients for Node, PHP and Java
//! are among them, behind the drivers of the suite for thin clients; they stay with one instance, as behind a balancer that does not look.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_testkit::Port;

use crate::world::{World, finish, now, signal, wait_for};

const CLIENTS: usize = 32;
/// Two clients for each name: one waits while the other one holds.
const NAMES: usize = 16;
const TTL_MS: u64 = 10_000;
const KILL_EVERY: Duration = Duration::from_secs(2);
/// How many of the clients are in each other language, where everything is tested.
const OF_EACH_LANGUAGE: usize = 4;

/// What is protected: one number for each name.
#[derive(Default)]
struct Resource {
    last_token: u64,
    value: u64,
    /// Whose a token was.
    holders: HashMap<u64, (usize, usize)>,
}

#[derive(Default)]
struct Seen {
    resources: HashMap<String, Resource>,
    wrong: Vec<String>,
    writes: u64,
    refused: u64,
    /// Leases during which an instance was killed, and those of them that were lost.
    outlived: u64,
    lost: u64,
}

struct Site {
    is_over: AtomicBool,
    kills: Mutex<u64>,
    seen: Mutex<Seen>,
}

impl Site {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no panic")
    }

    fn kills(&self) -> u64 {
        *self.kills.lock().expect("no panic")
    }
}

/// Sends a request. `None`: no answer came.
fn ask(port: u16, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(8))).ok()?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let length = body.len();
    let head = format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + &body).as_bytes()).ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    let status = said.split(' ').nth(1)?.parse().ok()?;
    let (_, body) = said.split_once("\r\n\r\n")?;
    Some((status, serde_json::from_str(body).ok()?))
}

/// A lock that somebody takes and keeps.
trait Holder {
    /// Takes the lock. Returns the token; `None` if it was in vain.
    fn acquire(&mut self, name: &str, site: &Site) -> Option<u64>;

    /// Whether it is held, as its client believes, who renews it.
    fn is_held(&mut self, name: &str) -> bool;

    fn release(&mut self, name: &str);
}

/// A client by hand, which asks either instance.
struct Plain {
    ports: [u16; 2],
    turn: usize,
    id: String,
    deadline: Instant,
    renew_at: Instant,
}

impl Plain {
    /// Asks one instance, and the other one after an error.
    fn ask(&mut self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let answer = ask(self.ports[self.turn % 2], method, path, body);
        if answer.as_ref().is_none_or(|(status, _)| *status == 503) {
            self.turn += 1;
            pause(Duration::from_millis(20));
        }
        answer
    }

    /// Believes an answer, counted from when the request was sent that is answered.
    fn believe(&mut self, sent: Instant, body: &Value) -> Option<u64> {
        let period = |field: &str| body[field].as_u64().unwrap_or_else(|| panic!("{field} in {body}"));
        let left = period("expires_in_ms");
        self.deadline = sent + Duration::from_millis((left - left / 100).saturating_sub(2));
        self.renew_at = sent + Duration::from_millis(period("renew_in_ms"));
        body["token"].as_u64()
    }

    /// `None`: it is not known.
    fn renew(&mut self, name: &str) -> Option<(u16, Option<u64>)> {
        let (sent, path) = (now(), format!("/v1/claims/{}/renew", self.id));
        let (status, body) = self.ask("POST", &path, &json!({"name": name}))?;
        let token = if status == 200 { self.believe(sent, &body) } else { None };
        Some((status, token))
    }
}

impl Holder for Plain {
    /// Repeats one request until it is answered for good.
    fn acquire(&mut self, name: &str, site: &Site) -> Option<u64> {
        self.id = format!("{:032x}", fastrand::u128(..));
        while !site.is_over.load(Ordering::Relaxed) {
            let (sent, path) = (now(), format!("/v1/claims/{}", self.id));
            let body = json!({"name": name, "ttl_ms": TTL_MS, "poll_ms": 3000});
            match self.ask("PUT", &path, &body) {
                Some((200, body)) if body["waited_ms"] == 0 => return self.believe(sent, &body),
                // It may have been on its way for long.
                Some((200, _)) => {
                    if let Some((200, token)) = self.renew(name) {
                        return token;
                    }
                }
                Some((410, _)) => return None,
                Some((202 | 503, _)) | None => {}
                other => panic!("{other:?}"),
            }
        }
        None
    }

    fn is_held(&mut self, name: &str) -> bool {
        if now() >= self.renew_at && self.renew(name).is_some_and(|(status, _)| status == 410) {
            return false;
        }
        now() < self.deadline
    }

    fn release(&mut self, name: &str) {
        self.ask("DELETE", &format!("/v1/claims/{}?name={name}", self.id), &Value::Null);
    }
}

/// A client in another language, behind its driver: `crates/tenure-testkit/examples/thin_clients/driver.rs` has the protocol.
struct Driven {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    turn: u64,
}

impl Driven {
    fn start(words: &[String], port: u16) -> Driven {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(format!("http://127.0.0.1:{port}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a driver");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Driven { child, input, output, turn: 0 }
    }

    fn ask(&mut self, command: &str, more: &str) -> String {
        let key = format!("k{}", self.turn);
        let written = writeln!(self.input, "{command} {key}{more}").and_then(|()| self.input.flush());
        written.expect("the driver reads");
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("a line") > 0, "the driver has ended: {command}");
            let said = line.trim_end().strip_prefix(&key).and_then(|said| said.strip_prefix(' '));
            match said {
                None | Some("told") => {}
                Some(said) => return said.to_owned(),
            }
        }
    }
}

impl Holder for Driven {
    fn acquire(&mut self, name: &str, _: &Site) -> Option<u64> {
        self.turn += 1;
        let said = self.ask("acquire", &format!(" {name} {TTL_MS} 3000"));
        said.strip_prefix("granted ").map(|token| token.parse().expect("a token"))
    }

    fn is_held(&mut self, _: &str) -> bool {
        self.ask("check", "") == "held"
    }

    fn release(&mut self, _: &str) {
        self.ask("release", "");
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What starts the drivers of the other languages. Compiles the one in Java.
fn drivers(world: &World) -> Vec<Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let at = |path: &str| root.join(path).to_string_lossy().into_owned();
    let classes = world.path("classes").to_string_lossy().into_owned();
    let mut javac = Command::new("javac");
    javac.args(["-d", &classes, &at("java/tenure/src/test/java/dev/tenure/Driver.java")]);
    let sources = std::fs::read_dir(root.join("java/tenure/src/main/java/dev/tenure")).expect("sources");
    javac.args(sources.flatten().map(|file| file.path()));
    let compiled = javac.output().expect("javac");
    assert!(compiled.status.success(), "{compiled:?}");
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    vec![
        words(&["node", &at("clients/node/driver.mjs"), &at("clients/node/tenure.mjs")]),
        words(&["php", &at("clients/php/driver.php"), &at("clients/php/Tenure.php")]),
        words(&["java", "-XX:TieredStopAtLevel=1", "-Xmx64m", "-cp", &classes, "dev.tenure.Driver"]),
    ]
}

/// One client, with one lock at a time.
struct Client<'a> {
    site: &'a Site,
    name: String,
    /// Which client, and which of its leases.
    number: usize,
    turn: usize,
    holder: Box<dyn Holder + Send>,
}

impl Client<'_> {
    /// Works under a lease for a while, and keeps it. Returns whether it was lost.
    fn work(&mut self, token: u64, period: Duration) -> bool {
        let began = now();
        while began.elapsed() < period {
            if !self.holder.is_held(&self.name) {
                return true;
            }
            self.increment(token);
        }
        false
    }

    /// Reads, and writes what is one more: a write of somebody else in between would be overwritten.
    fn increment(&self, token: u64) {
        let read = self.access(token, |resource| resource.value);
        pause(Duration::from_millis(fastrand::u64(5..40)));
        let Some(read) = read else { return };
        let written = self.access(token, |resource| {
            let found = std::mem::replace(&mut resource.value, read + 1);
            (found != read).then(|| format!("{read} was read with {token}, and {found} overwritten"))
        });
        let mut seen = self.site.seen();
        match written {
            Some(wrong) => {
                seen.writes += 1;
                seen.wrong.extend(wrong);
            }
            None => seen.refused += 1,
        }
    }

    /// The fence. `None`: the token is old.
    fn access<T>(&self, token: u64, work: impl FnOnce(&mut Resource) -> T) -> Option<T> {
        let mut seen = self.site.seen();
        let Seen { resources, wrong, .. } = &mut *seen;
        let resource = resources.entry(self.name.clone()).or_default();
        if token < resource.last_token {
            return None;
        }
        resource.last_token = token;
        let holder = resource.holders.entry(token).or_insert((self.number, self.turn));
        if *holder != (self.number, self.turn) {
            wrong.push(format!(
                "client {} and another lease, {holder:?}, have the token {token}",
                self.number
            ));
        }
        Some(work(resource))
    }

    fn run(&mut self) {
        while !self.site.is_over.load(Ordering::Relaxed) {
            self.turn += 1;
            let Some(token) = self.holder.acquire(&self.name, self.site) else { continue };
            let kills = self.site.kills();
            let is_lost = self.work(token, Duration::from_millis(fastrand::u64(200..5000)));
            {
                let mut seen = self.site.seen();
                seen.outlived += u64::from(self.site.kills() > kills);
                seen.lost += u64::from(is_lost);
            }
            self.holder.release(&self.name);
        }
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "clients of other programs: what is tested is what happens meanwhile"
)]
fn pause(period: Duration) {
    std::thread::sleep(period);
}

fn start(world: &World, port: &Port) -> Child {
    let listen = format!("127.0.0.1:{}", port.number());
    let mut command = world.tenure(&["serve", "--listen", &listen]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts");
    world.watch(child.id());
    wait_for("an instance", || TcpStream::connect(("127.0.0.1", port.number())).ok());
    child
}

fn is_everything() -> bool {
    std::env::var_os("TENURE_EVERYTHING").is_some()
}

/// The clients of a test: by hand, and in other languages where everything is tested.
fn holders(world: &World, ports: [u16; 2]) -> Vec<Box<dyn Holder + Send>> {
    let mut holders: Vec<Box<dyn Holder + Send>> = Vec::new();
    if is_everything() {
        for words in drivers(world) {
            let driven = |number: usize| Box::new(Driven::start(&words, ports[number % 2]));
            holders.extend((0..OF_EACH_LANGUAGE).map(|number| driven(number) as Box<dyn Holder + Send>));
        }
    }
    for turn in holders.len()..CLIENTS {
        let (id, deadline) = (String::new(), now());
        holders.push(Box::new(Plain { ports, turn, id, deadline, renew_at: deadline }));
    }
    holders
}

/// Kills two instances in turn under clients that keep leases.
fn leases_outlive_instances_that_are_killed(world: &World) {
    let period = Duration::from_secs(if is_everything() { 120 } else { 10 });
    let ports = [Port::free(), Port::free()];
    let mut instances = [start(world, &ports[0]), start(world, &ports[1])];
    let holders = holders(world, [ports[0].number(), ports[1].number()]);
    let site = Site { is_over: AtomicBool::new(false), kills: Mutex::new(0), seen: Mutex::default() };
    std::thread::scope(|threads| {
        for (number, holder) in holders.into_iter().enumerate() {
            let name = format!("counter-{}", number % NAMES);
            let mut client = Client { site: &site, name, number, turn: 0, holder };
            threads.spawn(move || client.run());
        }
        let began = now();
        let mut turn = 0;
        while began.elapsed() < period {
            pause(KILL_EVERY);
            signal(instances[turn % 2].id(), Signal::KILL);
            *site.kills.lock().expect("no panic") += 1;
            let next = start(world, &ports[turn % 2]);
            finish(std::mem::replace(&mut instances[turn % 2], next));
            turn += 1;
        }
        site.is_over.store(true, Ordering::Relaxed);
    });
    let Seen { resources, wrong, writes, refused, outlived, lost } =
        site.seen.into_inner().expect("no panic");
    let told = format!("{writes} writes, {refused} refused, {outlived} leases saw a kill, {lost} were lost");
    println!("{told}");
    assert!(wrong.is_empty(), "{wrong:?}: {told}");
    assert_eq!(resources.values().map(|resource| resource.value).sum::<u64>(), writes, "{told}");
    assert!(resources.len() == NAMES && outlived >= 20, "{told}");
    // 99 % outlive a kill.
    assert!(lost * 100 <= outlived, "{told}");
    for instance in instances {
        signal(instance.id(), Signal::KILL);
        finish(instance);
    }
}

#[test]
fn on_redis_leases_outlive_instances_that_are_killed() {
    leases_outlive_instances_that_are_killed(&crate::redis::world());
}

#[test]
fn on_postgres_leases_outlive_instances_that_are_killed() {
    leases_outlive_instances_that_are_killed(&crate::postgres::world());
}

#[test]
fn on_mysql_leases_outlive_instances_that_are_killed() {
    leases_outlive_instances_that_are_killed(&crate::mysql::world());
}

#[test]
fn on_etcd_leases_outlive_instances_that_are_killed() {
    leases_outlive_instances_that_are_killed(&crate::etcd::world());
}
