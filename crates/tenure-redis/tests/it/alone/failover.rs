//! Masters that are killed, stopped and replaced while clients work.
//!
//! Exclusion does not survive a failover on Redis, and nothing here claims that it does. What must hold: every
//! waiter is served again soon, every lease that may be held twice is lost to its holder by its deadline, and
//! later holders have larger tokens, so that a fenced resource refuses what comes too late.

use std::time::Duration;

use tenure_conformance::history::{overlaps, stale_tokens};
use tenure_testkit::redis::{RedisCluster, RedisSentinel, RedisServer};
use tenure_testkit::wait_for;

use crate::crew::{Report, TTL, connect, crew, now, pause};

const CLIENTS: usize = 16;
/// How long servers take to replace a master, at the detection times of the kit, and 2 s for the clients.
const REPLACED_KILLED: Duration = Duration::from_millis(2300 + 2000);
const REPLACED_STOPPED: Duration = Duration::from_millis(3300 + 2000);

fn names(prefix: &str) -> Vec<String> {
    (0..4).map(|number| format!("{prefix}-{number}")).collect()
}

/// Breaks a master with `fault` while clients work, and one holds on to a lease that another waits for.
fn master_is_replaced(url: &str, names: &[String], within: Duration, fault: impl FnOnce()) -> Report {
    let crew = crew(url, CLIENTS, names);
    let (holder, waiter) = (connect(url), connect(url));
    let held = format!("{}-held", names[0]);
    let lease = pollster::block_on(holder.mutex(&held).ttl(TTL).acquire()).expect("nobody has it");
    let name = held.clone();
    let waiting = std::thread::spawn(move || {
        // A waiter bears a store that is away for its ttl, and a failover may take longer than the others'.
        let mutex = waiter.mutex(&held).ttl(5 * TTL);
        let next = pollster::block_on(mutex.acquire_within(Duration::from_secs(60)));
        let next = next.expect("it is free at last");
        let answer = (now(), next.token());
        pollster::block_on(next.release()).expect("a release is answered");
        answer
    });
    // Who finds the store away is told at once; who waits bears it.
    wait_for("a waiter", || {
        (pollster::block_on(holder.view(&name)).expect("an answer")?.waiting == 1).then_some(())
    });
    let broken_at = now();
    fault();
    let took = crew.wait_until_served(CLIENTS, broken_at, within, "after the fault");
    eprintln!("all were served again after {took:?}");
    // A lease that was not renewed is lost by now, on any server.
    pause((broken_at + TTL + Duration::from_millis(500)).since(now()));
    let is_taken = waiting.is_finished();
    assert!(lease.is_lost() || !is_taken, "another holds it, and its holder was not told by its deadline");
    let token = lease.token();
    pollster::block_on(lease.release()).expect("a release is answered");
    let (_, next) = waiting.join().expect("the waiter does not panic");
    assert!(next > token, "the next holder has a larger token");
    crew.finish(names.len())
}

/// Asserts what holds even over a failover.
fn assert_honest(report: &Report) {
    for sections in &report.names {
        let twice = overlaps(sections);
        for (first, second) in &twice {
            let both = first.until.since(second.from);
            assert!(both <= TTL, "held twice for longer than a lease lives unheard of: {first:?} {second:?}");
        }
        eprintln!("{} sections, {} overlap", sections.len(), twice.len());
        let stale = stale_tokens(sections);
        let is_overlap = |pair: &_| twice.contains(pair);
        assert!(stale.iter().all(is_overlap), "a later holder has no larger token: {stale:?}");
    }
}

fn sentinel_master(within: Duration, fault: impl FnOnce(&RedisSentinel, &RedisServer)) {
    let set = RedisSentinel::start();
    let report = master_is_replaced(&set.url(), &names("s"), within, || fault(&set, set.master()));
    assert_honest(&report);
}

#[test]
fn a_killed_sentinel_master_is_left() {
    sentinel_master(REPLACED_KILLED, |_, master| master.kill());
}

#[test]
fn a_stopped_sentinel_master_is_left_and_may_come_back() {
    let set = RedisSentinel::start();
    let old = set.master();
    let report = master_is_replaced(&set.url(), &names("s"), REPLACED_STOPPED, || old.stop());
    old.cont();
    assert_honest(&report);
}

#[test]
fn a_sentinel_master_that_steps_down_is_left() {
    sentinel_master(REPLACED_STOPPED, |set, _| {
        set.failover();
    });
}

/// Names of which every second is on the master that will be broken.
fn cluster_names(cluster: &RedisCluster, master: &RedisServer) -> Vec<String> {
    let is_there = |name: &String| {
        let key = format!("tenure:{name}");
        cluster.node_of_slot(cluster.slot_of(&key)).port() == master.port()
    };
    let all: Vec<String> = (0..200).map(|number| format!("c-{number}")).collect();
    let (there, elsewhere): (Vec<String>, Vec<String>) = all.into_iter().partition(is_there);
    let mut names: Vec<String> = there.into_iter().take(2).chain(elsewhere.into_iter().take(2)).collect();
    names.sort();
    names
}

fn cluster_master(within: Duration, fault: impl FnOnce(&RedisCluster, &RedisServer)) {
    let cluster = RedisCluster::start();
    let master = cluster.node_of_slot(0);
    let names = cluster_names(&cluster, master);
    let report = master_is_replaced(&cluster.url(), &names, within, || fault(&cluster, master));
    assert_honest(&report);
}

#[test]
fn a_killed_cluster_master_is_left() {
    cluster_master(REPLACED_KILLED, |_, master| master.kill());
}

#[test]
fn a_stopped_cluster_master_is_left() {
    cluster_master(REPLACED_STOPPED, |_, master| master.stop());
}

#[test]
fn a_cluster_master_that_steps_down_is_left() {
    cluster_master(REPLACED_STOPPED, |cluster, master| {
        cluster.failover(master);
    });
}

#[test]
fn a_slot_that_moves_takes_its_locks_and_waiters_along() {
    let cluster = RedisCluster::start();
    let from = cluster.node_of_slot(0);
    let names = cluster_names(&cluster, from);
    let moving: Vec<u16> = names.iter().map(|name| cluster.slot_of(&format!("tenure:{name}"))).collect();
    let crew = crew(&cluster.url(), CLIENTS, &names);
    for slot in moving {
        let from = cluster.node_of_slot(slot);
        let to = cluster.nodes().iter().find(|node| {
            node.port() != from.port() && node.info("role").is_some_and(|role| role == "master")
        });
        cluster.migrate_slot(slot, from, to.expect("another master"));
        let moved_at = now();
        crew.wait_until_served(CLIENTS, moved_at, REPLACED_STOPPED, "after the slot has moved");
    }
    crew.finish(names.len()).assert_exclusive();
}
