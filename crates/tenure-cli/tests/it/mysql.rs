//! The command on a real MariaDB server.
//!
//! The tests share one server, each with tables of its own; those that break a server start their own.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer, shared};

use crate::world::{World, code, finish, now, stderr, stdout};

fn start() -> MariaDbServer {
    MariaDbServer::start(&MariaDbOptions::default())
}

/// A world with tables of its own on the server that all share.
pub(crate) fn world() -> World {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let number = WORLDS.fetch_add(1, Ordering::Relaxed);
    World::on(format!("{}?prefix=cli_{}_{number}_", shared(), std::process::id()))
}

crate::servers::on_a_server!(world);

#[test]
fn a_waiter_is_served_by_its_heartbeat() {
    let world = world();
    let holder = world.start_run(
        &["x", "--label", "the nightly one"],
        "echo $$ > pid; while ! test -e go; do sleep 0.1; done",
    );
    world.pid("pid");
    let busy = world.run(&["x", "--wait", "0s"], "echo ran > ran");
    assert_eq!(code(&busy), 75);
    assert!(stderr(&busy).contains("held by the nightly one (pid "), "{busy:?}");
    let waiter = world.start_run(&["x"], "true");
    world.wait_for_waiters(1);
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(holder)), 0);
    let released_at = now();
    assert_eq!(code(&finish(waiter)), 0);
    let took = released_at.elapsed();
    println!("served after {took:?}");
    assert_in_time(took, Duration::from_millis(2500));
}

#[test]
fn a_server_that_dies_takes_the_lease_along_by_its_deadline() {
    let server = start();
    crate::servers::work_ends_with_the_lease_when_the_server_dies(&World::on(server.url()), || server.kill());
}

#[test]
fn a_restart_of_the_server_is_not_noticed() {
    let server = start();
    crate::servers::a_hold_outlives_a_server(&World::on(server.url()), "20s", || server.restart());
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
    let url = |login: &str| format!("mysql://{login}127.0.0.1:{port}/test");
    let wrong = ["locks:hunter2@", "nobody:hunter2@", "locks@"].map(url);
    crate::servers::a_wrong_login_is_told_and_not_shown(&wrong, url("locks:swordfish@"));
}

#[test]
fn a_database_that_does_not_exist_is_told() {
    let world = World::on(shared().replace("/test", "/nosuch"));
    let output = world.run(&["x"], "true");
    assert_eq!(code(&output), 64, "{output:?}");
    assert!(stderr(&output).contains("check the name of the database"), "{output:?}");
}

mod alone {
    use super::*;

    /// A call that is late opens another connection beside it.
    #[test]
    fn a_short_run_opens_one_connection() {
        let server = start();
        let world = World::on(server.url());
        let mut admin = server.connect().expect("the server takes one more");
        let mut opened = || {
            let asked = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'CONNECTIONS'";
            admin.run(asked).first().expect("a number").parse::<u64>().expect("a number")
        };
        // The first one makes the tables.
        assert_eq!(code(&world.run(&["x"], "true")), 0);
        let before = opened();
        assert_eq!(code(&world.run(&["x"], "true")), 0);
        assert_eq!(opened() - before, 1);
        // It is renewed five times meanwhile.
        assert_eq!(code(&world.run(&["x", "--ttl", "600ms"], "sleep 1")), 0);
        assert_eq!(opened() - before, 2);
    }

    fn crowded() -> (MariaDbServer, World) {
        let server = MariaDbServer::start(
            &MariaDbOptions::default().setting("max-connections", (crate::servers::crowd() / 2).to_string()),
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
    let server = MariaDbServer::start(&MariaDbOptions::default().setting("max-connections", "10"));
    let mut taken = Vec::new();
    // Those who asked whether it is there may still have theirs. One more has room who may do everything.
    while taken.len() < 11 {
        taken.push(tenure_testkit::wait_for("room", || server.connect().ok()));
    }
    crate::servers::assert_told_that_it_is_full(&World::on(server.url()));
}
