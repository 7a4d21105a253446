//! `?replicas=`: a grant counts only when so many replicas have it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::{ErrorKind, ReleaseAnswer};
use tenure_testkit::redis::{RedisOptions, RedisServer};
use tenure_testkit::{Reply, wait_for};

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

/// Tells the waiter for `m` that it was granted, as any user may that reads the keys and publishes to the inboxes.
fn forge_a_grant(master: &RedisServer, token: u64) {
    let claim = wait_for("a waiter", || {
        let line = master.ask(&["ZRANGE", "tenure.1.q:tenure:m", "0", "0"]);
        line.parts().first().map(ToString::to_string)
    });
    let life = [master.info("run_id"), master.info("master_replid")].map(Option::unwrap_or_default).join(" ");
    let incarnation = life.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    for inbox in master.ask(&["PUBSUB", "CHANNELS", "tenure.1.inbox:*"]).parts() {
        master.ask(&["PUBLISH", &inbox.to_string(), &format!("G {claim} {token} - 5000 {incarnation}")]);
    }
}

/// So rights to channels are rights to locks. With `?replicas=` a message is no grant, from any sender.
#[test]
fn a_grant_that_another_user_makes_up_ends_at_its_confirmation() {
    let (master, _replica, url) = pair();
    let lease = pollster::block_on(connect(&url).mutex("m").acquire()).expect("it is free");
    for (url, is_used) in [(master.url(), true), (url, false)] {
        let client = connect(&url);
        let waiting = client.mutex("m").ttl(TTL).acquire_within(Duration::from_millis(900));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pollster::block_on(waiting));
            forge_a_grant(&master, lease.token().get() + 1);
            let got = waiting.join().expect("no panic");
            assert_eq!(got.is_ok(), is_used, "{got:?}");
            if let Ok(forged) = got {
                wait_for("the renewal that finds nothing", || forged.is_lost().then_some(()));
            }
        });
    }
    assert!(!lease.is_lost());
    pollster::block_on(lease.release()).expect("a release is answered");
}

/// Claims and confirmations go over a connection of their own, so a client may confirm a grant of which its inbox did not hear.
/// What it was promised then is there.
#[test]
fn a_grant_is_whole_though_the_inbox_is_cut() {
    let (master, _replica, url) = pair();
    let (client, other) = (connect(&url), connect(&master.url()));
    for round in 0..3 {
        let name = format!("m{round}");
        let (key, mutex) = (format!("tenure:{name}"), client.mutex(&name).ttl(Duration::from_secs(30)));
        master.ask(&["SET", &key, "theirs", "PX", "250"]);
        let waiting = mutex.acquire_within(Duration::from_secs(20));
        let is_granted = AtomicBool::new(false);
        let lease = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_granted.load(Ordering::Relaxed) {
                    master.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                    // Without an inbox for as long as a call may take, a claim is not sent at all.
                    pause(Duration::from_millis(5));
                }
            });
            let lease = pollster::block_on(waiting);
            let Reply::Integer(left) = master.ask(&["PTTL", &key]) else { panic!("a number") };
            is_granted.store(true, Ordering::Relaxed);
            let lease = lease.expect("it comes free");
            assert!(left > 20_000, "{left} ms are left of 30 s");
            lease
        });
        pause(Duration::from_millis(550));
        let second = pollster::block_on(other.mutex(&name).try_acquire()).expect("an answer");
        assert!(second.is_none(), "two hold it");
        pollster::block_on(lease.release()).expect("a release is answered");
    }
}
