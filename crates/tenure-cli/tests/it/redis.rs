//! The command on a real Redis server.
//!
//! The tests share one server, each with a prefix of its own; those that break a server start their own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::redis::{RedisOptions, RedisServer, Topology, shared};

use crate::world::{World, code, finish, is_alive, now, signal, stderr, stdout, wait_for};

/// The page on the engine, whose list of rights is tested.
const PAGE: &str = include_str!("../../../../docs/engines/redis.md");

/// A world with keys of its own on the server that all share.
pub(crate) fn world() -> World {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let number = WORLDS.fetch_add(1, Ordering::Relaxed);
    World::on(format!("{}?prefix=cli-{}-{number}:", shared(Topology::Single), std::process::id()))
}

crate::servers::on_a_server!(world);

#[test]
fn a_server_that_dies_takes_the_lease_along_by_its_deadline() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    let output = crate::servers::work_ends_with_the_lease_when_the_server_dies(&world, || server.kill());
    assert!(stderr(&output).contains(": the engine did not answer"), "{output:?}");
}

#[test]
fn what_cannot_be_read_is_a_line_of_the_lists() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    // Somebody else's text, where a value and where the dead letters of a queue belong.
    for key in ["tenure.1.v:tenure:bad", "tenure.1.y:tenure:worse", "tenure:classic"] {
        server.command(&["SET", key, "theirs"]);
    }
    let table = world.output(&["status"]);
    assert_eq!(code(&table), 0, "{table:?}");
    let lines: Vec<String> = stdout(&table).lines().map(str::to_owned).collect();
    assert!(lines[1].starts_with("bad ") && lines[1].contains(" unreadable "), "{table:?}");
    assert!(lines[2].starts_with("classic ") && lines[2].contains(" theirs "), "{table:?}");
    let status = world.status();
    assert!(status[0]["error"].as_str().is_some_and(|error| error.contains("WRONGTYPE")), "{status}");
    assert_eq!(status[1]["holds"][0]["holder"]["host"], "theirs", "{status}");
    let queues = world.output(&["queue", "ls"]);
    assert!(code(&queues) == 0 && stdout(&queues).contains("unreadable: "), "{queues:?}");
}

#[test]
fn a_server_that_has_forgotten_the_hold_ends_the_work() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    let run = world.start_run(&["x", "--ttl", "30s"], "echo $$ > pid; while :; do sleep 0.1; done");
    let pid = world.pid("pid");
    let first: u64 = world.token().parse().expect("a token");
    let restarted_at = now();
    server.restart();
    let output = finish(run);
    assert_eq!(code(&output), 76, "{output:?}");
    // Long before its ttl: whoever reconnects asks.
    assert_in_time(restarted_at.elapsed(), Duration::from_secs(5));
    assert!(!is_alive(pid));
    let later = world.run(&["x"], "echo $TENURE_TOKEN");
    let later: u64 = stdout(&later).trim().parse().expect("a token");
    assert!(later > first, "{later} {first}");
}

#[test]
fn a_restart_with_a_log_that_is_synced_always_is_not_noticed() {
    let server = RedisServer::start(RedisOptions::default().persistent(tenure_testkit::redis::Fsync::Always));
    crate::servers::a_hold_outlives_a_server(&World::on(server.url()), "5s", || server.restart());
}

#[test]
fn a_server_that_is_down_is_told_with_a_hint_and_nothing_runs() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    server.kill();
    crate::servers::assert_told_that_it_is_down(&world, server.port());
}

#[test]
fn doctor_says_what_it_finds() {
    let world = world();
    let output = world.output(&["doctor"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let text = stdout(&output);
    for part in
        ["good     engine: redis://127.0.0.1:", "good     version: Redis ", "warning  persistence: none"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("good     prefix: \"cli-"), "{text}");
    let findings: serde_json::Value =
        serde_json::from_slice(&world.output(&["doctor", "--json"]).stdout).expect("JSON");
    let of = |what: &str| findings.as_array()?.iter().find(|finding| finding["what"] == what).cloned();
    assert_eq!(of("memory").expect("a finding")["severity"], "good");
}

#[test]
fn watch_of_many_goes_on_when_the_server_is_back() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    let mut watch = world.start(&["watch", "jobs/", "--json"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut next = || -> serde_json::Value {
        serde_json::from_str(&lines.next().expect("a line").expect("a line")).expect("JSON")
    };
    let holder = world.start_run(&["jobs/a"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    // As it came first: the run, or the first look.
    let first = next();
    assert!(["granted", "held"].contains(&first["event"].as_str().expect("an event")), "{first}");
    server.kill();
    let mut warnings = BufReader::new(watch.stderr.take().expect("a pipe")).lines();
    let warning = warnings.next().expect("a warning").expect("a warning");
    assert!(warning.starts_with("warning: ") && warning.ends_with("; looking again"), "{warning}");
    server.restart();
    // It has forgotten everything, and its holder has ended its work.
    assert_eq!(next()["event"], "ended");
    assert_eq!(next()["event"], "idle");
    signal(watch.id(), Signal::TERM);
    finish(watch);
    drop(holder);
}

#[test]
fn a_wrong_password_is_told_and_not_shown() {
    let server = RedisServer::start(RedisOptions::default().password("swordfish"));
    let port = server.port();
    for (login, shown) in [(":hunter2@", "hunter2"), ("me:hunter2@", "hunter2"), ("", "swordfish")] {
        let world = World::on(format!("redis://{login}127.0.0.1:{port}"));
        for arguments in [&["status"][..], &["doctor"], &["run", "x", "--", "true"]] {
            let output = world.output(arguments);
            let text = format!("{}{}", stdout(&output), stderr(&output));
            assert!(!output.status.success() && !text.contains(shown), "{arguments:?}: {text}");
            assert!(text.contains("check the user and the password of the URL"), "{arguments:?}: {text}");
        }
    }
    let world = World::on(server.url());
    let output = world.output(&["doctor"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(!stdout(&output).contains("swordfish"), "{output:?}");
}

#[test]
fn the_rights_of_the_page_are_enough() {
    let server = RedisServer::start(RedisOptions::default());
    let rule = PAGE.split("```text\nACL SETUSER ").nth(1).and_then(|rest| rest.split("\n```").next());
    let rule = rule.expect("the page has the rule");
    let words: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(rule.split_whitespace()).collect();
    server.command(&words);
    let world = World::on(format!("redis://locks:secret@127.0.0.1:{}", server.port()));
    let watch = world.start(&["watch", "x"]);
    let holder = world.start_run(
        &["x", "--ttl", "1s", "--lock-delay", "10ms"],
        "echo $$ > pid; while ! test -e go; do sleep 0.1; done",
    );
    world.pid("pid");
    let waiter = world.start_run(&["x"], "echo $$ > second; sleep 60");
    world.wait_for_waiters(1);
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(holder)), 0);
    world.pid("second");
    let released = world.output(&["release", "x", "--token", &world.token(), "--force", "--now"]);
    assert_eq!(code(&released), 0, "{released:?}");
    let every = world.run(&["y", "--every", "1h"], "true");
    assert_eq!(code(&every), 0, "{every:?}");
    signal(waiter.id(), Signal::TERM);
    drop((finish(waiter), watch));
    let doctor = stdout(&world.output(&["doctor"]));
    assert!(!doctor.contains("NOPERM"), "{doctor}");
}

#[test]
fn a_lock_of_another_client_is_waited_for() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(format!("{}?prefix=", server.url()));
    server.command(&["SET", "x", "0f4c", "NX", "PX", "60000"]);
    let busy = world.run(&["x", "--wait", "0s"], "true");
    assert_eq!(code(&busy), 75, "{busy:?}");
    assert!(stderr(&busy).contains("0f4c"), "{busy:?}");
    let list = stdout(&world.output(&["status", "x"]));
    let row: Vec<&str> = list.lines().nth(1).map_or(Vec::new(), |line| line.split_whitespace().collect());
    assert_eq!(row[..5], ["x", "mutex", "0f4c", "0", "-"], "nobody knows since when: {list}");
    let run = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.wait_for_waiters(1);
    let freed_at = now();
    server.command(&["DEL", "x"]);
    world.pid("pid");
    // Nobody told the waiter: it looked by itself.
    assert_in_time(freed_at.elapsed(), Duration::from_millis(2200));
    assert_eq!(server.command(&["SET", "x", "0f4c", "NX", "PX", "60000"]), "", "tenure holds it");
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(run)), 0);
    wait_for("free lock", || (server.command(&["EXISTS", "x"]) == "0").then_some(()));
}
