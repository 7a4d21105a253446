//! `?replicas=`: a grant counts only when so many replicas have it.

use std::time::Duration;

use tenure_core::{ErrorKind, ReleaseAnswer};
use tenure_testkit::redis::{RedisOptions, RedisServer};
use tenure_testkit::wait_for;

use crate::crew::{TTL, connect, crew, pause};

/// A master with one replica that follows it, and the address that demands its word.
fn pair() -> (RedisServer, RedisServer, String) {
    let master = RedisServer::start(RedisOptions::default().line("repl-diskless-sync-delay 0"));
    let replica = RedisServer::start(RedisOptions::default());
    replica.ask(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    wait_for("a replica that follows", || {
        (replica.info("master_link_status")? == "up" && master.info("slave0")?.contains("state=online"))
            .then_some(())
    });
    let url = format!("{}?replicas=1", master.url());
    (master, replica, url)
}

#[test]
fn a_grant_is_on_a_replica_before_it_counts() {
    let (_master, replica, url) = pair();
    let client = connect(&url);
    for round in 0..50 {
        let name = format!("m{round}");
        let lease = pollster::block_on(client.mutex(&name).acquire()).expect("it is free");
        assert!(replica.command(&["GET", &format!("tenure:{name}")]).contains(&lease.token().to_string()));
        pollster::block_on(lease.release()).expect("a release is answered");
    }
}

#[test]
fn waiters_take_turns_with_replicas_too() {
    let (_master, _replica, url) = pair();
    let names = vec!["one".to_owned()];
    let crew = crew(&url, 4, &names);
    pause(Duration::from_secs(1));
    crew.finish(1).assert_exclusive();
}

#[test]
fn replicas_that_are_away_refuse_grants_and_end_no_lease() {
    let (master, replica, url) = pair();
    let client = connect(&url);
    let held = pollster::block_on(client.mutex("held").ttl(TTL).acquire()).expect("it is free");
    replica.kill();
    let refused =
        pollster::block_on(client.mutex("other").try_acquire()).expect_err("nobody acknowledges it");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("0 of 1 replicas"), "{refused}");
    pause(TTL + Duration::from_millis(500));
    assert!(!held.is_lost(), "a renewal that no replica has is a warning");
    let answer = pollster::block_on(held.release()).expect("a release is answered");
    assert_eq!(answer, ReleaseAnswer::Released);
    wait_for("what was refused to be withdrawn", || {
        (master.command(&["EXISTS", "tenure:other"]) == "0").then_some(())
    });
}

#[test]
fn who_waits_for_one_lock_keeps_another_while_replicas_are_away() {
    let (_master, replica, url) = pair();
    let (client, other) = (connect(&url), connect(&url));
    let busy = pollster::block_on(other.mutex("busy").acquire()).expect("it is free");
    let held = pollster::block_on(client.mutex("held").ttl(Duration::from_secs(1)).acquire());
    let held = held.expect("it is free");
    let waiting = client.mutex("busy");
    let mut waiting = Box::pin(waiting.acquire());
    assert!(pollster::block_on(futures_util::future::poll_immediate(&mut waiting)).is_none());
    wait_for("a waiter", || waiting.place());
    replica.kill();
    // Two heartbeats, each of which waits for the replica.
    pause(Duration::from_millis(3500));
    assert!(!held.is_lost(), "the confirmation of a place has delayed the renewal of a lease");
    drop(busy);
}
