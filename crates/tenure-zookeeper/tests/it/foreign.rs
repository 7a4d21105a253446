//! Other clients' locks on the same path.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tenure_core::{ErrorKind, Token};
use tenure_testkit::zookeeper::{ZooKeeperOptions, ZooKeeperServer};
use tenure_testkit::{TestDirectory, foreign, wait_for};
use zookeeper_client::{Acls, CreateMode};

use crate::conformance::BRIEF;
use crate::crew::{connect, pause, raw};

/// Makes a file that must not be there; says whether it was.
fn enter(inside: &Path) -> bool {
    std::fs::File::options().write(true).create_new(true).open(inside).is_err()
}

#[test]
fn kazoo_and_a_mutex_take_turns() {
    const ROUNDS: usize = 60;
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    let directory = TestDirectory::new();
    let inside = directory.path().join("inside");
    let mut python = foreign::python();
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/kazoo_lock.py"));
    python.args([&server.port().to_string(), "/locks/shared", &ROUNDS.to_string()]).arg(&inside);
    python.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut other = python.spawn().expect("`cargo xtask setup` installs it");
    let client = connect(&format!("{}/locks?{BRIEF}&layout=kazoo", server.url()));
    let mutex = client.mutex("shared");
    let (mut ours, mut intruders, mut last) = (0, 0, Token::ZERO);
    while other.try_wait().expect("a child").is_none() {
        let lease =
            pollster::block_on(mutex.acquire_within(Duration::from_secs(20))).expect("its turn comes");
        assert!(lease.token() > last, "tokens grow");
        last = lease.token();
        intruders += usize::from(enter(&inside));
        pause(Duration::from_millis(2));
        intruders += usize::from(std::fs::remove_file(&inside).is_err());
        pollster::block_on(lease.release()).expect("a release is answered");
        ours += 1;
        pause(Duration::from_millis(3));
    }
    let output = other.wait_with_output().expect("a child");
    assert!(output.status.success(), "`cargo xtask setup` installs what it needs: {output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "it met ours inside");
    assert_eq!(intruders, 0, "ours met it inside");
    assert!(ours > ROUNDS / 4, "ours had its turns too: {ours}");
}

/// A lock of kazoo makes sure of its node once. That node must not be a container, which the servers remove.
#[test]
fn a_node_that_kazoo_shares_stays() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    for layout in ["kazoo", "curator"] {
        let client = connect(&format!("{}/{layout}?{BRIEF}&layout={layout}", server.url()));
        drop(pollster::block_on(client.mutex("nightly").acquire()).expect("it is free"));
    }
    raw(&server.url(), async |client| {
        let is_there = |path| {
            let client = client.clone();
            async move { client.check_stat(path).await.expect("an answer").is_some() }
        };
        wait_for("the other node is removed", || {
            (!pollster::block_on(is_there("/curator/nightly"))).then_some(())
        });
        assert!(is_there("/kazoo/nightly").await, "the servers removed it");
    });
}

/// As Curator's `InterProcessMutex` makes its nodes: `LockInternals` sorts what comes after `lock-`.
#[test]
fn curators_nodes_and_a_mutex_exclude_each_other() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    let client = connect(&format!("{}?{BRIEF}&layout=curator", server.url()));
    let mutex = client.mutex("/jobs/nightly");
    let lease = pollster::block_on(mutex.acquire()).expect("it is free");
    raw(&server.url(), async |curator| {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let id = "0f0e0d0c-0b0a-0908-0706-050403020100";
        let theirs = format!("/jobs/nightly/_c_{id}-lock-");
        let (_, sequence) = curator.create(&theirs, b"192.0.2.7", &options).await.expect("a node");
        let theirs = format!("{theirs}{sequence}");
        let mut names = curator.list_children("/jobs/nightly").await.expect("a list");
        names.sort_unstable_by_key(|name| name.rsplit_once("lock-").expect("their form").1.to_owned());
        assert!(theirs.ends_with(&names[1]), "ours comes first for them: {names:?}");
        pollster::block_on(lease.release()).expect("an answer");
        let busy = pollster::block_on(mutex.try_acquire()).expect("an answer");
        assert!(busy.is_none(), "now it is theirs");
        let view = pollster::block_on(client.view("/jobs/nightly")).expect("an answer").expect("it is held");
        assert_eq!(view.holds[0].label.as_str(), "192.0.2.7", "an operator sees whose it is");
        let error = pollster::block_on(client.break_hold("/jobs/nightly", view.holds[0].token, false));
        assert_eq!(error.expect_err("they look for no mark").kind(), ErrorKind::Unsupported);
        let waits = mutex.acquire();
        let waiting = std::thread::spawn(move || pollster::block_on(waits).expect("its turn comes"));
        wait_for("ours waits", || {
            let view = pollster::block_on(client.view("/jobs/nightly")).expect("an answer")?;
            (view.waiting == 1).then_some(())
        });
        curator.delete(&theirs, None).await.expect("they release it");
        drop(waiting.join().expect("no panic"));
    });
}

#[test]
fn other_kinds_have_no_counterpart() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    for layout in ["curator", "kazoo"] {
        let client = connect(&format!("{}?{BRIEF}&layout={layout}", server.url()));
        let error = pollster::block_on(client.semaphore("s", 3).acquire()).expect_err("no such thing");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let error = pollster::block_on(client.mutex("a//b").acquire()).expect_err("no path");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}
