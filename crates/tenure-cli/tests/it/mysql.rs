//! The command on a real MariaDB server.
//!
//! The tests share one server, each with tables of its own; those that break a server start their own.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer, shared};

use crate::world::{World, code, finish, is_alive, stderr, stdout, wait_for};

#[allow(clippy::disallowed_methods, reason = "how long processes take is what is tested")]
fn now() -> Instant {
    Instant::now()
}

fn start() -> MariaDbServer {
    MariaDbServer::start(&MariaDbOptions::default())
}

/// A world with tables of its own on the server that all share.
fn world() -> World {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let number = WORLDS.fetch_add(1, Ordering::Relaxed);
    World::on(format!("{}?prefix=cli_{}_{number}_", shared(), std::process::id()))
}

#[test]
fn programs_exclude_each_other_and_tokens_grow() {
    let world = world();
    let script = "mkdir busy || exit 9; echo $TENURE_TOKEN >> tokens; sleep 0.02; rmdir busy; exit 3";
    let runs: Vec<_> = (0..5).map(|_| world.start_run(&["x"], script)).collect();
    for run in runs {
        let output = finish(run);
        assert_eq!(code(&output), 3, "{output:?}");
    }
    let tokens = fs::read_to_string(world.path("tokens")).expect("tokens");
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().expect("a token")).collect();
    assert_eq!(tokens.len(), 5);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert_eq!(world.status().as_array().map(Vec::len), Some(0), "everything was released");
}

#[test]
fn a_waiter_is_served_by_its_heartbeat() {
    let world = world();
    let holder = world.start_run(
        &["x", "--label", "the nightly one"],
        "echo $$ > pid; while ! test -e go; do sleep 0.01; done",
    );
    world.pid("pid");
    let busy = world.run(&["x", "--wait", "0s"], "echo ran > ran");
    assert_eq!(code(&busy), 75);
    assert!(stderr(&busy).contains("the nightly one since 20"), "{busy:?}");
    let waiter = world.start_run(&["x"], "true");
    world.wait_for_waiters(1);
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(holder)), 0);
    let released_at = now();
    assert_eq!(code(&finish(waiter)), 0);
    let took = released_at.elapsed();
    println!("served after {took:?}");
    assert!(took < Duration::from_millis(2500), "{took:?}");
}

#[test]
fn a_server_that_dies_takes_the_lease_along_by_its_deadline() {
    let server = start();
    let world = World::on(server.url());
    let run = world.start_run(&["x", "--ttl", "1s"], "echo $$ > pid; while :; do sleep 0.02; done");
    let pid = world.pid("pid");
    let killed_at = now();
    server.kill();
    wait_for("end of the work", || (!is_alive(pid)).then_some(()));
    let took = killed_at.elapsed();
    assert!(took < Duration::from_millis(1200), "{took:?}");
    // The command itself goes on trying to release for a while.
    let output = finish(run);
    assert_eq!(code(&output), 76, "{output:?}");
    assert!(stderr(&output).contains("error: lost the lease of \"x\""), "{output:?}");
}

#[test]
fn a_restart_of_the_server_is_not_noticed() {
    let server = start();
    let world = World::on(server.url());
    let run =
        world.start_run(&["x", "--ttl", "20s"], "echo $$ > pid; while ! test -e go; do sleep 0.01; done");
    world.pid("pid");
    let token = world.token();
    server.restart();
    assert_eq!(world.token(), token);
    let busy = world.run(&["x", "--wait", "0s"], "true");
    assert_eq!(code(&busy), 75, "{busy:?}");
    fs::write(world.path("go"), "").expect("a file");
    let output = finish(run);
    assert_eq!(code(&output), 0, "{output:?}");
}

#[test]
fn a_server_that_is_down_is_told_with_a_hint_and_nothing_runs() {
    let server = start();
    let world = World::on(server.url());
    server.kill();
    let began = now();
    let output = world.run(&["x"], "echo ran > ran");
    let took = began.elapsed();
    assert_eq!(code(&output), 69, "{output:?}");
    let text = stderr(&output);
    assert!(text.contains(&format!("127.0.0.1:{}", server.port())) && text.contains("\n\nhint: "), "{text}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(!world.path("ran").exists());
    let doctor = world.output(&["doctor"]);
    assert_eq!(code(&doctor), 69, "{doctor:?}");
    assert!(stdout(&doctor).contains("bad      connect: "), "{doctor:?}");
}

#[test]
fn slots_and_readers_share_as_they_may() {
    let world = world();
    let script = "echo $$ > pid$TENURE_SLOT; sleep 60";
    let runs: Vec<_> = (0..2).map(|_| world.start_run(&["pool", "--slots", "2"], script)).collect();
    world.pid("pid0");
    world.pid("pid1");
    let third = world.run(&["pool", "--slots", "2", "--wait", "0s"], "true");
    assert_eq!(code(&third), 75, "{third:?}");
    let conflict = world.run(&["pool", "--wait", "0s"], "true");
    assert_eq!(code(&conflict), 64, "a mutex of the same name: {conflict:?}");
    let reader = world.start_run(&["book", "--shared"], "echo $$ > reader; sleep 60");
    world.pid("reader");
    let second = world.run(&["book", "--shared", "--wait", "0s"], "true");
    assert_eq!(code(&second), 0, "{second:?}");
    drop((runs, reader));
}

#[test]
fn cache_runs_a_program_once() {
    let world = world();
    let script = "echo ran >> ran; echo 42";
    for _ in 0..3 {
        let output = world.output(&["cache", "answer", "--ttl", "60s", "--", "sh", "-c", script]);
        assert_eq!((code(&output), stdout(&output).trim()), (0, "42"), "{output:?}");
    }
    assert_eq!(fs::read_to_string(world.path("ran")).expect("a file"), "ran\n");
}

#[test]
fn doctor_says_what_it_finds() {
    let output = world().output(&["doctor"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let text = stdout(&output);
    for part in [
        "good     engine: mysql://root@127.0.0.1:",
        "good     version: MariaDB 10.",
        "good     role: it takes writes",
        "good     durability: synced",
        "good     sysdate: it goes on",
        "good     max_allowed_packet: ",
        "good     connections: ",
        "good     tables: cli_",
        "good     rights: ",
        "good     wakes: ",
        "good     clock: ",
        "good     latency: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn doctor_finds_what_is_wrong() {
    let options = MariaDbOptions::default()
        .setting("innodb-flush-log-at-trx-commit", "2")
        .setting("sysdate-is-now", "1")
        .setting("max-allowed-packet", "1M");
    let server = MariaDbServer::start(&options);
    let text = stdout(&World::on(server.url()).output(&["doctor"]));
    for part in [
        "warning  durability: innodb_flush_log_at_trx_commit is 2",
        "warning  sysdate: SYSDATE() is NOW() here",
        "warning  max_allowed_packet: 1024 KiB",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_wrong_login_is_told_and_not_shown() {
    let server = start();
    let mut admin = server.connect().expect("the server takes one more");
    admin.run("CREATE USER locks@'%' IDENTIFIED BY 'swordfish'");
    admin.run("GRANT ALL ON test.* TO locks@'%'");
    let port = server.port();
    for login in ["locks:hunter2@", "nobody:hunter2@", "locks@"] {
        let world = World::on(format!("mysql://{login}127.0.0.1:{port}/test"));
        for arguments in [&["status"][..], &["doctor"], &["run", "x", "--", "true"]] {
            let output = world.output(arguments);
            let text = format!("{}{}", stdout(&output), stderr(&output));
            assert!(!output.status.success() && !text.contains("hunter2"), "{arguments:?}: {text}");
            assert!(text.contains("check the user and the password of the URL"), "{arguments:?}: {text}");
        }
    }
    let world = World::on(format!("mysql://locks:swordfish@127.0.0.1:{port}/test"));
    let output = world.output(&["doctor"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(!stdout(&output).contains("swordfish"), "{output:?}");
}

#[test]
fn a_database_that_does_not_exist_is_told() {
    let world = World::on(shared().replace("/test", "/nosuch"));
    let output = world.run(&["x"], "true");
    assert_eq!(code(&output), 64, "{output:?}");
    assert!(stderr(&output).contains("check the name of the database"), "{output:?}");
}
