//! A server's wall clock.

use std::time::{Duration, SystemTime};

use tenure_testkit::redis::{RedisOptions, RedisServer};

/// What the server takes for the time, in µs.
fn time(server: &RedisServer) -> i128 {
    let script = "local time = redis.call('TIME') return time[1] * 1000000 + time[2]";
    server.command(&["EVAL", script, "0"]).parse().unwrap()
}

#[allow(clippy::disallowed_methods, reason = "the clock under test is compared with this machine's")]
fn machine_time() -> i128 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i128::try_from(time.as_micros()).unwrap()
}

#[test]
fn a_frozen_clock_says_exactly_what_it_was_told() {
    let server = RedisServer::start(RedisOptions::default().clock());
    let noon = Duration::from_micros(1_700_000_000_123_456);
    server.clock().freeze(noon);
    assert_eq!(time(&server), 1_700_000_000_123_456);
    server.command(&["SET", "key", "value", "PX", "1000"]);
    server.clock().advance(Duration::from_millis(999));
    assert_eq!(time(&server), 1_700_000_001_122_456);
    assert_eq!(server.command(&["GET", "key"]), "value");
    assert_eq!(server.command(&["PTTL", "key"]), "1");
    server.clock().advance(Duration::from_millis(2));
    assert_eq!(server.command(&["GET", "key"]), "");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "nothing is what happens while time passes")]
fn nothing_expires_while_the_clock_is_frozen() {
    let server = RedisServer::start(RedisOptions::default().clock());
    server.clock().freeze(Duration::from_secs(1_700_000_000));
    server.command(&["SET", "key", "value", "PX", "20"]);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(server.command(&["PTTL", "key"]), "20");
    server.clock().thaw();
    assert_eq!(server.command(&["GET", "key"]), "");
    assert!((time(&server) - machine_time()).abs() < 1_000_000);
}

#[test]
fn a_clock_that_goes_can_be_stepped() {
    let server = RedisServer::start(RedisOptions::default().clock());
    assert!((time(&server) - machine_time()).abs() < 1_000_000);
    server.command(&["SET", "key", "value", "EX", "60"]);
    server.clock().step_back(Duration::from_secs(60));
    assert!((time(&server) - machine_time() + 60_000_000).abs() < 1_000_000);
    let left: u32 = server.command(&["TTL", "key"]).parse().unwrap();
    assert!((119..=120).contains(&left), "{left}");
    server.clock().advance(Duration::from_secs(121));
    assert_eq!(server.command(&["GET", "key"]), "");
    server.restart();
    assert!((time(&server) - machine_time() - 61_000_000).abs() < 1_000_000);
}
