//! The command on real etcd servers.
//!
//! The tests share one server, each with a prefix of its own; those that break a server start their own.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use tenure_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdServer, shared};

use crate::world::{World, code, finish, signal, stdout, wait_for};

/// How much longer than its ttl a dead client's hold lasts: the election timeout, which is added; up to a second, to which it
/// is rounded; and half a second, in which etcd looks for leases that have ended. And as long as elsewhere.
const LINGERS: Duration = Duration::from_millis(3000);

fn start() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::default())
}

/// A world with keys of its own on the server that all share.
pub(crate) fn world() -> World {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let number = WORLDS.fetch_add(1, Ordering::Relaxed);
    let mut world = World::on(format!("{}/cli_{}_{number}", shared(), std::process::id()));
    world.lingers = LINGERS;
    world
}

crate::servers::on_a_server!(world);

#[test]
fn a_server_that_dies_takes_the_lease_along_by_its_deadline() {
    let server = start();
    crate::servers::work_ends_with_the_lease_when_the_server_dies(&World::on(server.url()), || server.kill());
}

#[test]
fn a_leader_that_dies_is_not_noticed() {
    let cluster = EtcdCluster::start(&EtcdOptions::default());
    let world = World::on(cluster.url());
    crate::servers::a_hold_outlives_a_server(&world, "20s", || {
        cluster.servers()[cluster.leader()].kill();
        // A question is not repeated, so it may meet the election.
        wait_for("an answer", || world.output(&["status"]).status.success().then_some(()));
    });
}

/// Jepsen's schedule: a holder that was paused for longer than its lease lasts.
#[test]
fn a_command_that_was_stopped_for_too_long_has_lost_and_its_work_is_over() {
    let world = world();
    let run = world.start_run(&["x", "--ttl", "1s"], "echo $$ > pid; while :; do sleep 0.1; done");
    let pid = world.pid("pid");
    signal(run.id(), Signal::STOP);
    let next = world.run(&["x", "--wait", "20s"], &format!("! kill -0 {pid}"));
    assert_eq!(code(&next), 0, "the work of the stopped one still ran: {next:?}");
    signal(run.id(), Signal::CONT);
    let output = finish(run);
    assert_eq!(code(&output), 76, "{output:?}");
}

#[test]
fn a_server_that_is_down_is_told_with_a_hint_and_nothing_runs() {
    let server = start();
    let world = World::on(server.url());
    server.kill();
    crate::servers::assert_told_that_it_is_down(&world, server.port());
}

#[test]
fn doctor_says_what_it_finds() {
    let output = world().output(&["doctor"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let text = stdout(&output);
    for part in [
        "good     engine: etcd://127.0.0.1:",
        "good     version: etcd 3.",
        "good     members: 1 (1 vote), led by alone",
        "good     alarms: none",
        "good     space: ",
        "good     rights: the keys under \"cli_",
        "good     election_timeout: 1s in the URL",
        "good     latency: a write takes ",
        "good     clock: does not matter",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn doctor_finds_what_is_wrong() {
    let slow = EtcdOptions::default().election(Duration::from_millis(500), Duration::from_secs(5));
    let cluster = EtcdCluster::start(&slow);
    let leader = cluster.leader();
    cluster.servers()[(leader + 1) % 3].kill();
    let output = World::on(cluster.url()).output(&["doctor"]);
    let text = stdout(&output);
    for part in [
        "warning  election_timeout: 1s in the URL; the servers' is above 4.666s and 5.333s at most",
        "warning  endpoint: cannot be looked at: ",
        "good     members: 3 (3 vote), led by n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let right = World::on(format!("{}?election_timeout=5s", cluster.url())).output(&["doctor"]);
    assert!(stdout(&right).contains("good     election_timeout: 5s in the URL"), "{right:?}");
}

#[test]
fn missing_rights_are_named() {
    let server = EtcdServer::start(&EtcdOptions::default().login("locks", "swordfish"));
    server.ctl(&["role", "add", "few"]);
    server.ctl(&["role", "grant-permission", "few", "--prefix=true", "readwrite", "mine/"]);
    server.ctl(&["user", "add", "ann:swordfish"]);
    server.ctl(&["user", "grant-role", "ann", "few"]);
    let url = |prefix: &str| format!("etcd://ann:swordfish@127.0.0.1:{}/{prefix}", server.port());
    // A server that has no time to check a password answers nothing.
    let examine = |world: &World| {
        wait_for("a doctor who can connect", || {
            let doctor = world.output(&["doctor"]);
            (!stdout(&doctor).contains("bad      connect: ")).then_some(doctor)
        })
    };
    let doctor = examine(&World::on(url("others")));
    assert_eq!(code(&doctor), 69, "{doctor:?}");
    let text = stdout(&doctor);
    assert!(
        text.contains("bad      rights: cannot be looked at: ") && text.contains("grant-permission"),
        "{text}"
    );
    let world = World::on(url("mine"));
    let doctor = examine(&world);
    assert_eq!(code(&doctor), 0, "{doctor:?}");
    let run = world.run(&["x"], "true");
    assert_eq!(code(&run), 0, "that is all it needs: {run:?}");
    assert_eq!(
        server.ctl(&["get", "--prefix", "--keys-only", "mine/line/"]).trim(),
        "",
        "and the doctor wrote nothing"
    );
}

#[test]
fn a_wrong_login_is_told_and_not_shown() {
    let server = EtcdServer::start(&EtcdOptions::default().login("locks", "swordfish"));
    let url = |login: &str| format!("etcd://{login}127.0.0.1:{}", server.port());
    let wrong = ["locks:hunter2@", "nobody:hunter2@"].map(url);
    crate::servers::a_wrong_login_is_told_and_not_shown(&wrong, server.url());
}

/// What the guide shows for data in the same cluster is what happens: a transaction that comes too late changes nothing.
#[test]
fn a_transaction_under_a_lease_that_is_over_changes_nothing() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/fencing.md");
    let guide = fs::read_to_string(guide).expect("the guide");
    let section = guide.split("\n## etcd\n").nth(1).expect("its section on etcd");
    let block = section.split("```sh\n").nth(1).and_then(|rest| rest.split("\n```").next());
    let script = block.expect("its script").to_owned();
    let server = start();
    let world = World::on(server.url());
    let program = world.path("set-balance");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a file");
    let endpoint = server.endpoint();
    let run = |script: &str| {
        let mut command = world.tenure(&["run", "billing", "--ttl", "2s", "--", "sh", "-c", script]);
        command.env("ETCDCTL_ENDPOINTS", &endpoint).env("ETCDCTL_API", "3").output().expect("it starts")
    };
    let set = |amount: &str| format!("sh {} {amount}", program.display());
    let output = run(&set("20"));
    assert_eq!((code(&output), stdout(&output).lines().next()), (0, Some("SUCCESS")), "{output:?}");
    assert_eq!(server.ctl(&["get", "--print-value-only", "account/7"]).trim(), "20");
    // The environment of a lease that is over by the time it is used.
    let output = run("env | grep ^TENURE_ > late");
    assert_eq!(code(&output), 0, "{output:?}");
    let late = format!("set -a; . {}; set +a; {}", world.path("late").display(), set("10"));
    let output = Command::new("sh")
        .args(["-c", &late])
        .current_dir(world.directory.path())
        .env("ETCDCTL_ENDPOINTS", &endpoint)
        .env("ETCDCTL_API", "3")
        .output()
        .expect("it starts");
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(server.ctl(&["get", "--print-value-only", "account/7"]).trim(), "20");
}
