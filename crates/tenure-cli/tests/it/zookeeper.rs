//! The command on a real ZooKeeper server.
//!
//! The tests share one server, each with a path of its own; those that break a server start their own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_testkit::zookeeper::{ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer, shared};

use crate::world::{World, code, stderr, stdout, wait_for};

/// A session of three seconds on servers with ticks of 200 ms.
const BRIEF: &str = "session_timeout=3s&tick=200ms";
/// On a busy machine a server in Java is silent for seconds.
const SESSION: Duration = Duration::from_secs(10);

/// A world with a path of its own on the server that all share.
fn world() -> World {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let number = WORLDS.fetch_add(1, Ordering::Relaxed);
    let settings = format!("session_timeout={}s&tick=200ms", SESSION.as_secs());
    let mut world = World::on(format!("{}/cli/{}-{number}?{settings}", shared(), std::process::id()));
    // Whoever dies holds until its session ends, and a tick.
    world.lingers += SESSION;
    world
}

crate::servers::on_a_server!(world, nothing stays);

#[test]
fn a_server_that_dies_takes_the_lease_along_by_its_deadline() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    let world = World::on(format!("{}?{BRIEF}", server.url()));
    crate::servers::work_ends_with_the_lease_when_the_server_dies(&world, || server.kill());
}

#[test]
fn a_ttl_that_the_death_of_the_client_does_not_heed_is_told() {
    let world = world();
    let output = world.run(&["x", "--ttl", "500ms"], "true");
    let told = "if this process dies, \"x\" is free after 10.0s (the session timeout, `?session_timeout=` in the URL), and not after";
    assert!(code(&output) == 0 && stderr(&output).contains(told), "{output:?}");
    let output = world.run(&["x", "--ttl", "10s"], "true");
    assert!(code(&output) == 0 && !stderr(&output).contains("dies"), "{output:?}");
}

/// A renewal gives no more than the session lives, which is less than the grace that work has by default.
#[test]
fn work_goes_on_after_its_renewals_where_the_session_is_shorter_than_the_grace() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    let world = World::on(format!("{}?session_timeout=6s&tick=200ms", server.url()));
    let output = world.run(&["x"], "sleep 4");
    assert!(code(&output) == 0, "{output:?}");
    crate::queue::push(&world, "q", &["item"]);
    let output = world.output(&["queue", "work", "q", "--drain", "--", "sleep", "4"]);
    assert!(code(&output) == 0, "{output:?}");
}

#[test]
fn a_new_leader_is_not_noticed() {
    let ensemble = ZooKeeperEnsemble::start(&ZooKeeperOptions::default());
    // A lost connection is tried again ever less often: the session lives on if another leads within half of it, and a busy machine takes long.
    let world = World::on(format!("{}?session_timeout=20s&tick=200ms", ensemble.url()));
    crate::servers::a_hold_outlives_a_server(&world, "20s", || {
        let leader = ensemble.leader();
        ensemble.servers()[leader].kill();
        ensemble.wait_for_new_leader(leader);
        wait_for("an answer", || (code(&world.run(&["x", "--wait", "0s"], "true")) != 69).then_some(()));
    });
}

#[test]
fn a_server_that_is_down_is_told_with_a_hint_and_nothing_runs() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    let world = World::on(server.url());
    server.kill();
    crate::servers::assert_told_that_it_is_down(&world, server.port());
}

#[test]
fn what_needs_more_than_a_client_says_so() {
    let world = world();
    let cache = world.output(&["cache", "answer", "--ttl", "60s", "--", "true"]);
    assert_ne!(code(&cache), 0);
    assert!(stderr(&cache).contains("keeps no value"), "{cache:?}");
    let doctor = world.output(&["doctor"]);
    let text = stdout(&doctor);
    assert!(text.contains("clock") && text.contains("containers"), "{doctor:?}");
}
