//! `?layout=etcdctl`: mutexes exclude those of `etcdctl lock`, both ways.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure_core::testing::busy::assert_in_time;
use tenure_core::{ErrorKind, Tenure};
use tenure_testkit::etcd::{EtcdOptions, EtcdServer};
use tenure_testkit::{TestDirectory, finish, wait_for};

use crate::crew::{assert_nothing_is_left, connect, keys, now, pause, wait_for_waiters};

const TTL: Duration = Duration::from_secs(20);
/// How long somebody who waits is watched.
const A_WHILE: Duration = Duration::from_millis(700);

fn start() -> (EtcdServer, Tenure) {
    let server = EtcdServer::start(&EtcdOptions::default());
    let client = connect(&format!("{}?layout=etcdctl", server.url()));
    (server, client)
}

/// `etcdctl lock`, which says the key when it has the lock.
struct Lock {
    child: Child,
    key: std::sync::mpsc::Receiver<String>,
}

fn command(server: &EtcdServer, name: &str) -> Command {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", server.endpoint())).args(["lock", name]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

impl Lock {
    fn start(server: &EtcdServer, name: &str) -> Lock {
        let mut child = command(server, name).spawn().expect("etcdctl");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (said, key) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            while let Some(Ok(line)) = lines.next() {
                // Nobody asks any more when the test is over.
                drop(said.send(line));
            }
        });
        Lock { child, key }
    }

    fn has_it(&self) -> bool {
        self.key.try_recv().is_ok()
    }

    fn wait(&self) -> String {
        self.key.recv_timeout(Duration::from_secs(10)).expect("etcdctl has the lock")
    }

    /// Lets it release the lock, as Ctrl-C does.
    fn end(mut self) {
        tenure_testkit::signal(self.child.id(), rustix::process::Signal::INT);
        self.child.wait().expect("it ends");
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn etcdctl_waits_for_tenure() {
    let (server, client) = start();
    let lease = pollster::block_on(client.mutex("m").ttl(TTL).acquire()).expect("it is free");
    assert_eq!(keys(&server, ""), [format!("m/{}", lease.claim())]);
    let lock = Lock::start(&server, "m");
    wait_for_waiters(&client, "m", 1);
    pause(A_WHILE);
    assert!(!lock.has_it(), "tenure has it");
    pollster::block_on(lease.release()).expect("an answer");
    let key = lock.wait();
    assert!(key.starts_with("m/"), "{key}");
}

#[test]
fn tenure_waits_for_etcdctl() {
    let (server, client) = start();
    let lock = Lock::start(&server, "m");
    lock.wait();
    let mutex = client.mutex("m").ttl(TTL);
    assert!(pollster::block_on(mutex.try_acquire()).expect("an answer").is_none());
    let view = pollster::block_on(client.view("m")).expect("an answer").expect("it is held");
    assert!(view.holds[0].label.to_string().contains("another client"), "{view:?}");
    let waiting = std::thread::spawn(move || (pollster::block_on(mutex.acquire()), now()));
    wait_for_waiters(&client, "m", 1);
    pause(A_WHILE);
    assert!(!waiting.is_finished(), "etcdctl has it");
    let ended_at = now();
    lock.end();
    let (lease, at) = waiting.join().expect("no panic");
    let lease = lease.expect("it is handed over");
    println!("tenure had it after {:?}", at.since(ended_at));
    assert_in_time(at.since(ended_at), Duration::from_secs(2));
    drop(lease);
    wait_for("release", || keys(&server, "m/").is_empty().then_some(()));
}

#[test]
fn they_take_turns() {
    const EACH: usize = 12;
    let (server, client) = start();
    let directory = TestDirectory::new();
    let busy = directory.path().join("busy");
    let script = directory.path().join("script");
    let text = format!("mkdir {0} || exit 9; sleep 0.02; rmdir {0}", busy.display());
    std::fs::write(&script, text).expect("a file");
    let script = script.to_str().expect("a path in UTF-8");
    std::thread::scope(|scope| {
        for _ in 0..EACH {
            scope.spawn(|| {
                let child = command(&server, "m").args(["sh", script]).spawn().expect("etcdctl");
                let output = finish(child);
                assert!(output.status.success(), "another was there: {output:?}");
            });
            scope.spawn(|| {
                let lease =
                    pollster::block_on(client.mutex("m").ttl(TTL).acquire()).expect("it is handed over");
                std::fs::create_dir(&busy).expect("nobody is there");
                pause(Duration::from_millis(20));
                std::fs::remove_dir(&busy).expect("nobody else removed it");
                pollster::block_on(lease.release()).expect("an answer");
            });
        }
    });
    wait_for("release", || keys(&server, "m/").is_empty().then_some(()));
    assert_nothing_is_left(&server);
}

/// As among `etcdctl`'s own: whoever locks `a` waits for those who had `a/b` before, and not the other way round.
#[test]
fn a_name_waits_for_those_below_it() {
    let (server, client) = start();
    let below = pollster::block_on(client.mutex("a/b").ttl(TTL).acquire()).expect("it is free");
    let lock = Lock::start(&server, "a");
    assert!(pollster::block_on(client.mutex("a").ttl(TTL).try_acquire()).expect("an answer").is_none());
    pause(A_WHILE);
    assert!(!lock.has_it(), "tenure has what is below it");
    pollster::block_on(below.release()).expect("an answer");
    lock.wait();
    let below = pollster::block_on(client.mutex("a/b").ttl(TTL).try_acquire()).expect("an answer");
    assert!(below.is_some(), "who is above is not in the way");
    let beside = pollster::block_on(client.mutex("ab").ttl(TTL).try_acquire()).expect("an answer");
    assert!(beside.is_some(), "another name");
}

#[test]
fn what_etcdctl_has_not_is_unsupported() {
    let (_server, client) = start();
    let kinds = [
        pollster::block_on(client.semaphore("s", 2).try_acquire()).map(drop),
        pollster::block_on(client.slot_pool("p", 2).try_acquire()).map(drop),
        pollster::block_on(client.rw_lock("b").read().try_acquire()).map(drop),
        pollster::block_on(client.mutex("m").lock_delay(TTL).try_acquire()).map(drop),
    ];
    for refused in kinds {
        assert_eq!(refused.expect_err("etcdctl has none").kind(), ErrorKind::Unsupported);
    }
}
