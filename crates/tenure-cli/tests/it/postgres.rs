//! The command on a real PostgreSQL server.
//!
//! The tests share one server, each with tables of its own; those that break a server start their own.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::postgres::{PgBouncer, PostgresOptions, PostgresServer, shared};

use crate::world::{World, code, finish, now, stderr, stdout};

fn start() -> PostgresServer {
    PostgresServer::start(&PostgresOptions::default())
}

/// A world with tables of its own on the server that all share.
pub(crate) fn world() -> World {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let number = WORLDS.fetch_add(1, Ordering::Relaxed);
    World::on(format!("{}?prefix=cli_{}_{number}_", shared(), std::process::id()))
}

crate::servers::on_a_server!(world);

#[test]
fn a_server_that_dies_takes_the_lease_along_by_its_deadline() {
    let server = start();
    crate::servers::work_ends_with_the_lease_when_the_server_dies(&World::on(server.url()), || server.kill());
}

#[test]
fn a_restart_of_the_server_is_not_noticed() {
    let server = start();
    crate::servers::a_hold_outlives_a_server(&World::on(server.url()), "5s", || server.restart());
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
    assert!(of("migrate").expect("a finding")["found"].to_string().contains("version 2"), "{findings}");
    assert!(of("purge").expect("a finding")["found"].to_string().contains("0 idle"), "{findings}");
}

#[test]
fn a_pooler_is_found_and_waiters_are_served_all_the_same() {
    let server = start();
    let bouncer = PgBouncer::start(&server);
    let world = World::on(bouncer.url());
    let doctor = stdout(&world.output(&["doctor"]));
    assert!(doctor.contains("warning  wakes: no notification comes back"), "{doctor}");
    let holder = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    let waiter = world.start_run(&["x"], "true");
    world.wait_for_waiters(1);
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(holder)), 0);
    let released_at = now();
    assert_eq!(code(&finish(waiter)), 0);
    assert_in_time(released_at.elapsed(), Duration::from_millis(2500));
}

#[test]
fn a_wrong_login_is_told_and_not_shown() {
    let server = start();
    let mut admin = server.connect().expect("the server takes one more");
    admin.run("CREATE ROLE locks LOGIN PASSWORD 'swordfish'");
    let access = server.directory().join("data/pg_hba.conf");
    fs::write(&access, "host all postgres all trust\nhost all all all scram-sha-256\n").expect("a file");
    admin.run("SELECT pg_reload_conf()");
    admin.run("GRANT CREATE ON SCHEMA public TO locks");
    let port = server.port();
    let url = |login: &str| format!("postgres://{login}127.0.0.1:{port}/postgres");
    let wrong = ["locks:hunter2@", "nobody:hunter2@", "locks@"].map(url);
    crate::servers::a_wrong_login_is_told_and_not_shown(&wrong, url("locks:swordfish@"));
}

#[test]
fn a_database_that_does_not_exist_is_told() {
    let world = World::on(shared().replace("/postgres", "/nosuch").replace("//nosuch@", "//postgres@"));
    let output = world.run(&["x"], "true");
    assert_eq!(code(&output), 64, "{output:?}");
    assert!(stderr(&output).contains("check the name of the database"), "{output:?}");
}

mod alone {
    use super::*;

    /// A call that is late opens another connection beside it.
    #[test]
    fn a_short_run_opens_one_connection_to_work_and_one_to_listen() {
        let server = PostgresServer::start(&PostgresOptions::default().setting("log_connections", "on"));
        let world = World::on(server.url());
        let opened = || {
            let log = fs::read_to_string(server.directory().join("log")).expect("the server's log");
            let is_ours = |line: &&str| {
                line.contains("connection authorized") && line.contains("application_name=tenure")
            };
            log.lines().filter(is_ours).count()
        };
        // The first one makes the tables.
        assert_eq!(code(&world.run(&["x"], "true")), 0);
        let before = opened();
        assert_eq!(code(&world.run(&["x"], "true")), 0);
        assert_eq!(opened() - before, 2);
        // It is renewed five times meanwhile.
        assert_eq!(code(&world.run(&["x", "--ttl", "600ms"], "sleep 1")), 0);
        assert_eq!(opened() - before, 4);
    }

    fn crowded() -> (PostgresServer, World) {
        let server = PostgresServer::start(
            &PostgresOptions::default().setting("max_connections", (crate::servers::crowd() / 2).to_string()),
        );
        let world = World::on(server.url());
        (server, world)
    }

    #[test]
    fn a_crowd_of_runs_waits_for_room() {
        let (_server, world) = crowded();
        crate::servers::a_crowd_of_runs_waits_for_room(&world);
    }

    #[test]
    fn a_crowd_gets_one_value_that_is_loaded_once() {
        let (_server, world) = crowded();
        crate::servers::a_crowd_gets_one_value_that_is_loaded_once(&world);
    }
}

#[test]
fn a_server_that_is_full_is_told() {
    let options = PostgresOptions::default()
        .setting("max_connections", "8")
        .setting("superuser_reserved_connections", "0");
    let server = PostgresServer::start(&options);
    let mut taken = Vec::new();
    // Those who asked whether it is there may still have theirs.
    while taken.len() < 8 {
        taken.push(tenure_testkit::wait_for("room", || server.connect().ok()));
    }
    let world = World::on(server.url());
    crate::servers::assert_told_that_it_is_full(&world);
    // There is room for one of the two connections that a client needs.
    taken.pop();
    crate::servers::assert_told_that_it_is_full(&world);
}
