//! Other clients of the classic protocol on the same key: `SET key value NX PX` and a compared delete.

use std::process::Command;
use std::time::Duration;

use tenure_core::engine::BreakAnswer;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{ErrorKind, Token};
use tenure_testkit::redis::{RedisOptions, RedisServer};
use tenure_testkit::{Reply, foreign};

use crate::crew::{connect, now, pause};
use crate::take_turns::take_turns_on;

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// Takes the key as any shell script would.
fn take(server: &RedisServer, key: &str, value: &str, ttl_ms: u64) -> bool {
    server.ask(&["SET", key, value, "NX", "PX", &ttl_ms.to_string()]) != Reply::Nil
}

fn release(server: &RedisServer, key: &str, value: &str) -> bool {
    server.ask(&["EVAL", RELEASE, "1", key, value]) == Reply::Integer(1)
}

#[test]
fn a_classic_lock_and_a_mutex_exclude_each_other() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&format!("{}?prefix=locks:", server.url()));
    let mutex = client.mutex("m").ttl(Duration::from_secs(2));
    let lease = pollster::block_on(mutex.acquire()).expect("it is free");
    assert!(!take(&server, "locks:m", "theirs", 10_000), "a mutex keeps them out");
    assert!(!release(&server, "locks:m", "theirs"), "and they cannot release it");
    pollster::block_on(lease.release()).expect("a release is answered");
    assert!(take(&server, "locks:m", "theirs", 10_000), "once it is released they get it");
    let busy = pollster::block_on(mutex.try_acquire()).expect("an answer");
    assert!(busy.is_none(), "and keep the mutex out");
    let views = pollster::block_on(client.inspect("m")).expect("an answer");
    assert_eq!(views[0].holds[0].label.as_str(), "theirs", "an operator sees whose it is");
    assert!(release(&server, "locks:m", "theirs"));
    drop(pollster::block_on(mutex.try_acquire()).expect("an answer").expect("once they release it is free"));
}

#[test]
fn a_waiter_gets_what_a_classic_lock_releases_or_lets_end() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&format!("{}?prefix=", server.url()));
    let mutex = client.mutex("m").ttl(Duration::from_secs(3));
    for is_released in [true, false] {
        assert!(take(&server, "m", "theirs", if is_released { 60_000 } else { 700 }));
        let began = now();
        let waiting = mutex.acquire_within(Duration::from_secs(20));
        let lease = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pollster::block_on(waiting).expect("it comes free"));
            pause(Duration::from_millis(300));
            assert!(!waiting.is_finished(), "it is theirs");
            if is_released {
                assert!(release(&server, "m", "theirs"));
            }
            waiting.join().expect("the waiter does not panic")
        });
        // A release that tells nobody is found by the heartbeat, an end by the timer.
        assert_in_time(now().since(began), Duration::from_secs(3));
        pollster::block_on(lease.release()).expect("a release is answered");
    }
}

#[test]
fn a_key_without_an_expiry_is_removed_only_at_once() {
    let server = RedisServer::start(RedisOptions::default());
    server.command(&["SET", "tenure:m", "theirs"]);
    let client = connect(&server.url());
    let broken =
        |at_once| pollster::block_on(client.break_hold("m", Token::ZERO, at_once)).expect("an answer");
    assert_eq!(broken(false), BreakAnswer::NotHeld, "nothing can end it later");
    assert_eq!(broken(true), BreakAnswer::Broken { free_in: Duration::ZERO });
    assert!(pollster::block_on(client.mutex("m").try_acquire()).expect("an answer").is_some());
}

#[test]
fn a_rest_keeps_classic_locks_out_too() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&format!("{}?prefix=", server.url()));
    let mutex = client.mutex("m").min_hold(Duration::from_millis(600));
    let began = now();
    let lease = pollster::block_on(mutex.acquire()).expect("it is free");
    pollster::block_on(lease.release()).expect("a release is answered");
    while !take(&server, "m", "theirs", 1000) {
        pause(Duration::from_millis(5));
    }
    assert!(now().since(began) >= Duration::from_millis(590), "the rest was cut short");
}

/// A lock of Redisson's is a hash with a field for each thread that holds it.
#[test]
fn a_lock_of_redissons_and_a_mutex_refuse_each_other() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&format!("{}?prefix=locks:", server.url()));
    let mutex = client.mutex("m");
    let field = "5f0c9b8e-3e5c-4b8e-9d0f-1c2d3e4f5a6b:1";
    server.command(&["HSET", "locks:m", field, "1"]);
    server.command(&["PEXPIRE", "locks:m", "30000"]);
    let error = pollster::block_on(mutex.try_acquire()).expect_err("it is no lock that could be waited for");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let said = "the Redis key locks:m is a hash that tenure did not make";
    assert!(error.to_string().contains(said), "{error}");
    assert_eq!(server.command(&["HGET", "locks:m", field]), "1", "it is left alone");
    server.command(&["DEL", "locks:m"]);
    let lease = pollster::block_on(mutex.acquire()).expect("it is free");
    // What its script asks: is there a key, and is it mine?
    assert_eq!(server.ask(&["EXISTS", "locks:m"]), Reply::Integer(1));
    let answer = server.ask(&["HEXISTS", "locks:m", field]);
    assert!(matches!(&answer, Reply::Error(text) if text.contains("WRONGTYPE")), "{answer:?}");
    pollster::block_on(lease.release()).expect("a release is answered");
}

/// Numbers that an allocator of one's own hands out, one key for each, are shared with it.
#[test]
fn any_of_several_keys_shares_numbers_with_a_classic_allocator() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&format!("{}?prefix=", server.url()));
    let any = || client.any((0..3).map(|id| client.mutex(&format!("thread_id_lock:{id}")).into()));
    assert!(take(&server, "thread_id_lock:0", "theirs", 60_000));
    let ours: Vec<_> = (1..3)
        .map(|id| {
            let lease = pollster::block_on(any().acquire()).expect("one is free");
            assert_eq!(lease.resource().as_str(), format!("thread_id_lock:{id}"));
            assert!(!take(&server, lease.resource().as_str(), "theirs", 60_000), "it is ours");
            lease
        })
        .collect();
    assert!(pollster::block_on(any().try_acquire()).expect("an answer").is_none(), "all are taken");
    assert!(release(&server, "thread_id_lock:0", "theirs"));
    let lease = pollster::block_on(any().try_acquire()).expect("an answer").expect("theirs is free");
    assert_eq!(lease.resource().as_str(), "thread_id_lock:0");
    drop((lease, ours));
}

/// Lets a program of others and a mutex of ours take turns, and counts who meets whom inside.
fn take_turns(program: Command, script: &str) {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&format!("{}?prefix=locks:", server.url()));
    take_turns_on(&[server], &client, program, script);
}

#[test]
fn redis_py_and_a_mutex_take_turns() {
    take_turns(foreign::python(), "redis_py.py");
}

#[test]
fn node_redlock_and_a_mutex_take_turns() {
    take_turns(foreign::node(), "node_redlock.js");
}
