//! The locks that people write by hand, in place of the library: what the same faults do to them.
//!
//! Their users work for as long as they planned, since nothing tells them of a loss, and what they write is not fenced. In the
//! history the time of a grant stands for its token, so that a write after one of a later holder is seen.

mod redis;
mod sql;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_testkit::foreign::python;

use super::sections::{LOOK_EVERY, LOOKS_PER_WRITE, MUTEXES, period};
use super::{MUTEX_TASKS, Stage, note_text, pause};
use crate::history::{Kind, now};
use crate::resource::Resource;

/// What [`work`] does, in Python.
const FOREIGN: &str = include_str!("classic/foreign.py");
/// The same in Java: where its classes and those of the libraries are.
const JAVA_CLASSES: &str = "TENURE_ANCHORS_JAVA";
/// A JVM that starts quickly, and needs little.
const JAVA: [&str; 3] = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m"];
/// How often a lock that is taken is asked for again.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// A way to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Classic {
    /// `SET NX PX`, and a script that deletes the key if it is still its own.
    Expiry,
    /// The same, and a thread that prolongs the key. Nothing checks whether that succeeded.
    Watchdog,
    /// A lock of a session: `pg_try_advisory_lock`, `GET_LOCK`.
    Session,
    /// The lock of redis-py, which is [`Classic::Expiry`] in Python.
    RedisPy,
    /// The lock of kazoo, which belongs to a ZooKeeper session. Nothing listens for the end of that session.
    Kazoo,
    /// The `RLock` of Redisson, with its watchdog.
    Redisson,
    /// Its `RFencedLock`, whose tokens the resource checks.
    RedissonFenced,
    /// The `InterProcessMutex` of Curator, which is of a ZooKeeper session, with nobody who listens whether that has ended.
    Curator,
}

impl Classic {
    const ALL: [Classic; 8] = [
        Classic::Expiry,
        Classic::Watchdog,
        Classic::Session,
        Classic::RedisPy,
        Classic::Kazoo,
        Classic::Redisson,
        Classic::RedissonFenced,
        Classic::Curator,
    ];

    /// Returns the locks that are tried on an engine's servers. Those of the JVM are built by `cargo xtask bench anchors`, and are left out elsewhere.
    pub(crate) fn of(engine: &str) -> Vec<Classic> {
        let known: &[Classic] = match engine {
            "redis" | "redis-forgetful" | "redis-replicas" => &[
                Classic::Expiry,
                Classic::Watchdog,
                Classic::RedisPy,
                Classic::Redisson,
                Classic::RedissonFenced,
            ],
            "postgres" | "postgres-pgbouncer" | "mysql" => &[Classic::Session],
            "zookeeper" => &[Classic::Kazoo, Classic::Curator],
            _ => &[],
        };
        let has_java = std::env::var_os(JAVA_CLASSES).is_some();
        known.iter().copied().filter(|classic| has_java || !classic.is_of_java()).collect()
    }

    fn is_of_java(self) -> bool {
        matches!(self, Classic::Redisson | Classic::RedissonFenced | Classic::Curator)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Classic::Expiry => "expiry",
            Classic::Watchdog => "watchdog",
            Classic::Session => "session",
            Classic::RedisPy => "redis-py",
            Classic::Kazoo => "kazoo",
            Classic::Redisson => "redisson",
            Classic::RedissonFenced => "redisson-fenced",
            Classic::Curator => "curator",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Classic> {
        Classic::ALL.into_iter().find(|known| known.as_str() == text)
    }

    fn connect(self, url: &str, ttl: Duration) -> Result<Box<dyn Lock>, String> {
        match self {
            Classic::Session => sql::connect(url),
            Classic::Expiry => redis::connect(url, ttl, false),
            Classic::Watchdog => redis::connect(url, ttl, true),
            _ => unreachable!("a process of its own plays it"),
        }
    }
}

/// Replaces this process by one in another language, if the lock is one of that language's.
///
/// # Errors
/// If that cannot be started.
pub(super) fn become_foreign(
    classic: Classic,
    url: &str,
    ttl: Duration,
    [journal, resource]: [&Path; 2],
) -> Result<(), String> {
    let mut command = match classic {
        Classic::Expiry | Classic::Watchdog | Classic::Session => return Ok(()),
        Classic::RedisPy | Classic::Kazoo => {
            let mut python = python();
            python.args(["-c", FOREIGN]);
            python
        }
        Classic::Redisson | Classic::RedissonFenced | Classic::Curator => {
            let classes = std::env::var_os(JAVA_CLASSES).ok_or("`cargo xtask bench anchors` builds it")?;
            let mut java = Command::new("java");
            java.args(JAVA).arg("-cp").arg(classes).arg("anchors.Chaos");
            java
        }
    };
    command.args([classic.as_str(), url, &ttl.as_secs_f64().to_string()]);
    command.args([journal, resource]).args([MUTEX_TASKS, MUTEXES].map(|count| count.to_string()));
    if classic.is_of_java() {
        command.arg(asleep().to_string());
    }
    // So that it is stopped and killed as any other.
    Err(command.exec().to_string())
}

/// For how many nanoseconds the machine has slept: a JVM has no clock that counts them.
fn asleep() -> i128 {
    use rustix::time::{ClockId, clock_gettime};
    let [boot, awake] = [ClockId::Boottime, ClockId::Monotonic].map(|clock| {
        let time = clock_gettime(clock);
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    });
    boot - awake
}

/// One connection with a lock at a time.
trait Lock {
    /// Acquires the lock if it is free.
    fn take(&mut self, name: &str) -> Result<bool, String>;

    /// Releases the lock. Returns whether it was still held.
    fn let_go(&mut self, name: &str) -> Result<bool, String>;
}

/// Takes mutexes until it is over.
pub(super) fn work(stage: &Stage<()>, classic: Classic, url: &str, task: &str) {
    let mut resource = Resource::connect(&stage.resource);
    let mut connection: Option<Box<dyn Lock>> = None;
    while !stage.is_over() {
        let name = format!("mutex-{}", fastrand::usize(0..MUTEXES));
        let done = match &mut connection {
            Some(lock) => section(stage, lock.as_mut(), &name, task, &mut resource),
            None => classic.connect(url, stage.ttl).map(|lock| connection = Some(lock)),
        };
        if let Err(text) = done {
            // As a pool does with a connection that is of no use any more.
            connection = None;
            note_text(&stage.journal, "classic", "unavailable", text);
            pause(Duration::from_millis(50));
        }
        pause(Duration::from_millis(fastrand::u64(0..60)));
    }
}

fn section(
    stage: &Stage<()>,
    lock: &mut dyn Lock,
    name: &str,
    task: &str,
    resource: &mut Resource,
) -> Result<(), String> {
    let asked = now();
    let wait = Duration::from_millis(fastrand::u64(50..3000));
    while !lock.take(name)? {
        if stage.is_over() || now() > asked + wait.as_nanos() as u64 {
            return Ok(());
        }
        pause(ASK_EVERY);
    }
    let granted = now();
    let number = stage.holds.fetch_add(1, Ordering::Relaxed).to_string();
    let [asked, token] = [asked, granted].map(|time| time.to_string());
    stage.journal.write(&["granted", &number, Kind::Mutex.as_str(), name, "1", &token, &asked, &token, task]);
    let ends = granted + period(stage).as_nanos() as u64;
    for looks in 0.. {
        if looks % LOOKS_PER_WRITE == 0 {
            resource.write_unfenced(name, granted);
        }
        let at = now();
        if at >= ends {
            stage.journal.write(&["exit", &number, &at.to_string()]);
            break;
        }
        // It believes that it holds until it lets go.
        stage.journal.write(&["seen", &number, &at.to_string(), &at.to_string()]);
        pause(LOOK_EVERY);
    }
    let let_go = lock.let_go(name);
    stage.journal.write(&["settled", &number, if let_go == Ok(true) { "released" } else { "not held" }]);
    let_go.map(drop)
}
