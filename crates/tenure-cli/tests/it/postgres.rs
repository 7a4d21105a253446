//! The command on a real PostgreSQL server.
//!
//! The tests share one server, each with tables of its own; those that break a server start their own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_testkit::postgres::{PgBouncer, PostgresOptions, PostgresServer, shared};

use crate::world::{World, code, finish, is_alive, signal, stderr, stdout, wait_for};

#[allow(clippy::disallowed_methods, reason = "how long processes take is what is tested")]
fn now() -> Instant {
    Instant::now()
}

fn start() -> PostgresServer {
    PostgresServer::start(&PostgresOptions::default())
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
    let runs: Vec<_> = (0..8).map(|_| world.start_run(&["x"], script)).collect();
    for run in runs {
        let output = finish(run);
        assert_eq!(code(&output), 3, "{output:?}");
    }
    let tokens = fs::read_to_string(world.path("tokens")).expect("tokens");
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().expect("a token")).collect();
    assert_eq!(tokens.len(), 8);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert_eq!(world.status().as_array().map(Vec::len), Some(0), "everything was released");
}

#[test]
fn without_waiting_it_says_who_is_in_the_way() {
    let world = world();
    let holder = world.start_run(&["x", "--label", "the nightly one"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let output = world.run(&["x", "--wait", "0s"], "echo ran > ran");
    assert_eq!(code(&output), 75);
    let text = stderr(&output);
    assert!(text.starts_with("error: \"x\" is held by tenure (pid "), "{text}");
    assert!(text.contains(&format!("(pid {} on ", holder.id())), "{text}");
    assert!(text.contains("the nightly one since 20"), "{text}");
    assert!(!world.path("ran").exists());
}

#[test]
fn status_lists_who_holds_and_who_waits() {
    let world = world();
    assert_eq!(stdout(&world.output(&["status"])), "nothing is held\n");
    let holder = world.start_run(&["jobs/a"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let waiter = world.start_run(&["jobs/a"], "true");
    world.wait_for_waiters(1);
    let status = world.status();
    assert_eq!((&status[0]["resource"], &status[0]["kind"]), (&"jobs/a".into(), &"mutex".into()));
    assert_eq!(status[0]["holds"][0]["holder"]["pid"], holder.id());
    assert_eq!(status[0]["waiters"][0]["holder"]["pid"], waiter.id());
    let table = stdout(&world.output(&["status", "jobs/"]));
    assert!(table.lines().any(|line| line.starts_with("jobs/a ")), "{table}");
    assert_eq!(stdout(&world.output(&["status", "other/"])), "nothing is held\n");
}

#[test]
fn watch_shows_each_change_as_it_happens() {
    let world = world();
    let mut watch = world.start(&["watch", "x", "--json"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut next = || -> serde_json::Value {
        let line = lines.next().expect("a line").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    };
    assert_eq!(next()["event"], "idle");
    let holder = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.01; done");
    world.pid("pid");
    let granted = next();
    assert_eq!((&granted["event"], &granted["holder"]["pid"]), (&"granted".into(), &holder.id().into()));
    let waiter = world.start_run(&["x"], "true");
    assert_eq!(next()["waiting"], 1);
    signal(waiter.id(), Signal::TERM);
    assert_eq!(next()["waiting"], 0);
    fs::write(world.path("go"), "").expect("a file");
    let ended = next();
    assert_eq!((&ended["event"], &ended["token"]), (&"ended".into(), &granted["token"]));
    assert_eq!(next()["event"], "idle");
    assert_eq!(code(&finish(holder)), 0);
    signal(watch.id(), Signal::TERM);
    drop((finish(waiter), watch));
}

#[test]
fn a_broken_lease_ends_the_work() {
    let world = world();
    let script = "trap 'echo term > got; exit 0' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let run = world.start_run(&["x", "--ttl", "2s"], script);
    let pid = world.pid("pid");
    let token = world.token();
    let wrong = world.output(&["release", "x", "--token", "1", "--force"]);
    assert_eq!(code(&wrong), 64, "{wrong:?}");
    let released = world.output(&["release", "x", "--token", &token, "--force"]);
    assert_eq!(code(&released), 0, "{released:?}");
    let output = finish(run);
    assert_eq!(code(&output), 76, "{output:?}");
    assert!(stderr(&output).contains("somebody broke it"), "{output:?}");
    assert_eq!(world.line("got"), "term");
    assert!(!is_alive(pid));
}

#[test]
fn killed_tenure_takes_its_work_along_and_the_lock_is_free_after_the_ttl() {
    let world = world();
    let ttl = Duration::from_secs(1);
    let run = world.start_run(&["x", "--ttl", "1s"], "echo $$ > pid; sleep 60");
    let pid = world.pid("pid");
    let next = world.start_run(&["x", "--ttl", "1s"], &format!("! kill -0 {pid}"));
    world.wait_for_waiters(1);
    let killed_at = now();
    signal(run.id(), Signal::KILL);
    let output = finish(next);
    let took = killed_at.elapsed();
    assert_eq!(code(&output), 0, "the work of the killed one still ran: {output:?}");
    println!("the next one ran after {took:?}");
    // Some of it was over when the holder was killed, and two processes had to start and end.
    assert!(took < ttl + Duration::from_millis(500), "{took:?}");
    drop(run);
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
        world.start_run(&["x", "--ttl", "5s"], "echo $$ > pid; while ! test -e go; do sleep 0.01; done");
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
fn slots_permits_and_readers_share_as_they_may() {
    let world = world();
    let script = "echo $TENURE_SLOT >> slots; echo $$ > pid$TENURE_SLOT; sleep 60";
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
    let writer = world.run(&["book", "--exclusive", "--wait", "0s"], "true");
    assert_eq!(code(&writer), 75, "{writer:?}");
    drop((runs, reader));
}

#[test]
fn one_leads_and_elect_shows_who() {
    let world = world();
    let leader = world.start_run(&["boss"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let shown = world.output(&["elect", "boss", "--json"]);
    assert_eq!(code(&shown), 0, "{shown:?}");
    assert!(stdout(&shown).contains(&leader.id().to_string()), "{shown:?}");
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
    let world = world();
    let output = world.output(&["doctor"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let text = stdout(&output);
    for part in [
        "good     engine: postgres://postgres@127.0.0.1:",
        "good     version: PostgreSQL ",
        "good     role: primary",
        "warning  durability: fsync is off",
        "good     tables: cli_",
        "good     wakes: a notification came back",
        "good     clock: ",
        "good     connections: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let output = world.output(&["doctor", "--migrate", "--purge", "--json"]);
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of = |what: &str| findings.as_array()?.iter().find(|finding| finding["what"] == what).cloned();
    assert!(of("migrate").expect("a finding")["found"].to_string().contains("version 1"), "{findings}");
    assert!(of("purge").expect("a finding")["found"].to_string().contains("0 idle"), "{findings}");
}

#[test]
fn a_pooler_is_found_and_waiters_are_served_all_the_same() {
    let server = start();
    let bouncer = PgBouncer::start(&server);
    let world = World::on(bouncer.url());
    let doctor = stdout(&world.output(&["doctor"]));
    assert!(doctor.contains("warning  wakes: no notification comes back"), "{doctor}");
    let holder = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.01; done");
    world.pid("pid");
    let waiter = world.start_run(&["x"], "true");
    world.wait_for_waiters(1);
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(holder)), 0);
    let released_at = now();
    assert_eq!(code(&finish(waiter)), 0);
    assert!(released_at.elapsed() < Duration::from_millis(2500), "{:?}", released_at.elapsed());
}

#[test]
fn a_wrong_login_is_told_and_not_shown() {
    let server = start();
    let mut admin = server.connect().expect("the server takes one more");
    admin.run("CREATE ROLE locks LOGIN PASSWORD 'swordfish'");
    let access = server.server().directory().join("data/pg_hba.conf");
    fs::write(&access, "host all postgres all trust\nhost all all all scram-sha-256\n").expect("a file");
    admin.run("SELECT pg_reload_conf()");
    admin.run("GRANT CREATE ON SCHEMA public TO locks");
    let port = server.port();
    for login in ["locks:hunter2@", "nobody:hunter2@", "locks@"] {
        let world = World::on(format!("postgres://{login}127.0.0.1:{port}/postgres"));
        for arguments in [&["status"][..], &["doctor"], &["run", "x", "--", "true"]] {
            let output = world.output(arguments);
            let text = format!("{}{}", stdout(&output), stderr(&output));
            assert!(!output.status.success() && !text.contains("hunter2"), "{arguments:?}: {text}");
            assert!(text.contains("check the user and the password of the URL"), "{arguments:?}: {text}");
        }
    }
    let world = World::on(format!("postgres://locks:swordfish@127.0.0.1:{port}/postgres"));
    let output = world.output(&["doctor"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(!stdout(&output).contains("swordfish"), "{output:?}");
}

#[test]
fn a_database_that_does_not_exist_is_told() {
    let world = World::on(shared().replace("/postgres", "/nosuch").replace("//nosuch@", "//postgres@"));
    let output = world.run(&["x"], "true");
    assert_eq!(code(&output), 64, "{output:?}");
    assert!(stderr(&output).contains("check the name of the database"), "{output:?}");
}
