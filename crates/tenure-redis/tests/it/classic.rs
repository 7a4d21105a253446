//! The hand-made locks that people have on Redis: each breaks in its own way, and a mutex does not.
//!
//! `docs/guides/from-setnx.md` tells it with the same headings. What a classic client does is written out here as
//! the commands that it sends; a client that dies is one whose connection ends, or that no packet reaches.

use std::time::Duration;

use tenure_core::{ReleaseAnswer, Tenure};
use tenure_testkit::redis::{RedisOptions, RedisServer};
use tenure_testkit::{Connection, Loss, Proxy, Reply, wait_for};

use crate::crew::{connect, now, pause};

/// The key of the mutex `m`.
const OURS: &str = "tenure:m";
/// How long holds live here, of either kind.
const TTL: Duration = Duration::from_millis(800);
/// How long nobody was served until a test says that nobody is.
const LONG: Duration = Duration::from_secs(3);

fn start() -> RedisServer {
    RedisServer::start(RedisOptions::default())
}

fn before(server: &RedisServer) -> (Proxy, String) {
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    (proxy, url)
}

/// Asks for a mutex, without waiting.
fn is_granted(client: &Tenure) -> bool {
    pollster::block_on(client.mutex("m").ttl(TTL).try_acquire()).expect("an answer").is_some()
}

/// Asks again and again until it is granted or [`LONG`] is over.
fn is_served(mut take: impl FnMut() -> bool) -> bool {
    let until = now() + LONG;
    while now() < until {
        if take() {
            return true;
        }
        pause(Duration::from_millis(50));
    }
    false
}

/// Milliseconds until a key expires: -1 never, -2 it is not there.
fn pttl(server: &RedisServer, key: &str) -> i64 {
    server.command(&["PTTL", key]).parse().expect("a number")
}

fn milliseconds(period: Duration) -> String {
    period.as_millis().to_string()
}

#[test]
fn no_expiry_a_dead_holder_holds_for_ever() {
    let server = start();
    let mut holder = server.connect().unwrap();
    assert_eq!(holder.ask(&["SETNX", "lock", "A"]).unwrap(), Reply::Integer(1));
    drop(holder);
    assert!(!is_served(|| server.ask(&["SETNX", "lock", "B"]) == Reply::Integer(1)), "nobody frees it");
    assert_eq!(pttl(&server, "lock"), -1);
    // tenure
    let (proxy, url) = before(&server);
    let holder = connect(&url);
    let lease = pollster::block_on(holder.mutex("m").ttl(TTL).acquire()).unwrap();
    proxy.black_hole();
    let next = connect(&server.url());
    assert!(is_served(|| is_granted(&next)), "the hold of a dead one ends after its ttl");
    assert!(lease.is_lost(), "and if it is not dead, it knows");
}

#[test]
fn expiry_as_a_second_command_a_death_in_between_is_for_ever() {
    let server = start();
    let mut holder = server.connect().unwrap();
    holder.ask(&["SETNX", "lock", "A"]).unwrap();
    // It dies before it sends `EXPIRE lock 30`.
    drop(holder);
    assert_eq!(pttl(&server, "lock"), -1);
    // tenure: of all that a claim sends, nothing comes back any more.
    let (proxy, url) = before(&server);
    let holder = connect(&url);
    // So that the server knows the script.
    pollster::block_on(holder.mutex("other").acquire()).unwrap();
    proxy.drop_replies();
    let claim = holder.mutex("m").ttl(TTL).acquire();
    let dying = std::thread::spawn(move || drop(pollster::block_on(claim)));
    let millis = wait_for("a key", || Some(pttl(&server, OURS)).filter(|millis| *millis != -2));
    assert!((0..=800).contains(&millis), "{millis}");
    proxy.black_hole();
    let next = connect(&server.url());
    assert!(is_served(|| is_granted(&next)));
    drop(proxy);
    dying.join().unwrap();
}

#[test]
fn multi_with_a_refreshed_expiry_those_who_wait_keep_the_dead_alive() {
    let server = start();
    let ttl = milliseconds(TTL);
    let take = |connection: &mut Connection, me: &str| {
        connection.ask(&["MULTI"]).unwrap();
        connection.ask(&["SETNX", "lock", me]).unwrap();
        connection.ask(&["PEXPIRE", "lock", &ttl]).unwrap();
        connection.ask(&["EXEC"]).unwrap().parts()[0] == Reply::Integer(1)
    };
    let mut holder = server.connect().unwrap();
    assert!(take(&mut holder, "A"));
    drop(holder);
    let mut waiter = server.connect().unwrap();
    assert!(!is_served(|| take(&mut waiter, "B")), "each try of the waiter gives the dead one another ttl");
    assert!(pttl(&server, "lock") > 0);
    // tenure
    let (proxy, url) = before(&server);
    let holder = connect(&url);
    let _lease = pollster::block_on(holder.mutex("m").ttl(TTL).acquire()).unwrap();
    proxy.black_hole();
    let (waiter, other) = (connect(&server.url()), connect(&server.url()));
    let waiting = std::thread::spawn(move || {
        pollster::block_on(waiter.mutex("m").ttl(TTL).acquire_within(LONG)).map(drop)
    });
    while !waiting.is_finished() {
        // Others try as well, and none of it prolongs anything.
        is_granted(&other);
        pause(Duration::from_millis(20));
    }
    waiting.join().unwrap().expect("it is served when the ttl of the dead one is over");
}

#[test]
fn getset_timestamps_a_clock_that_is_ahead_takes_a_lock_that_is_held() {
    /// The form that the page of SETNX recommended for years, with the time of the client.
    fn take(connection: &mut Connection, now_ms: u64) -> bool {
        let expires_at = (now_ms + 10_000).to_string();
        if connection.ask(&["SETNX", "lock", &expires_at]).unwrap() == Reply::Integer(1) {
            return true;
        }
        let seen = connection.ask(&["GET", "lock"]).unwrap().to_string();
        let is_over = seen.parse::<u64>().is_ok_and(|at| at <= now_ms);
        is_over && connection.ask(&["GETSET", "lock", &expires_at]).unwrap().to_string() == seen
    }
    let server = start();
    let (mut one, mut two) = (server.connect().unwrap(), server.connect().unwrap());
    assert!(take(&mut one, 1_000_000));
    assert!(!take(&mut two, 1_000_000), "with the same clock it works");
    assert!(take(&mut two, 1_011_000), "11 s ahead, it takes what is held for 10 s");
    // Two that see an old lock: both write, and the winner does not find its own time in the key.
    let seen = server.command(&["GET", "lock"]);
    assert_eq!(one.ask(&["GETSET", "lock", "2000001"]).unwrap().to_string(), seen, "one wins");
    assert_ne!(two.ask(&["GETSET", "lock", "2000002"]).unwrap().to_string(), seen, "two does not");
    assert_eq!(server.command(&["GET", "lock"]), "2000002", "but it is two's time that is kept");
    // tenure: a claim that is refused changes nothing, and no time but the server's is used.
    let (holder, other) = (connect(&server.url()), connect(&server.url()));
    let lease = pollster::block_on(holder.mutex("m").acquire()).unwrap();
    let value = server.command(&["GET", OURS]);
    assert!(!is_granted(&other));
    assert_eq!(server.command(&["GET", OURS]), value);
    assert_eq!(pollster::block_on(lease.release()).unwrap(), ReleaseAnswer::Released);
}

#[test]
fn delete_without_owner_check_a_late_holder_frees_the_lock_of_another() {
    let server = start();
    let take = |me: &str| server.ask(&["SET", "lock", me, "NX", "PX", &milliseconds(TTL)]) != Reply::Nil;
    assert!(take("A"));
    assert!(is_served(|| take("B")), "A is slow, and its lock expires");
    server.command(&["DEL", "lock"]);
    assert!(take("C"), "A's DEL has freed B's lock: B and C work at once");
    // tenure
    let (proxy, url) = before(&server);
    let (one, two, three) = (connect(&url), connect(&server.url()), connect(&server.url()));
    let late = pollster::block_on(one.mutex("m").ttl(TTL).acquire()).unwrap();
    proxy.black_hole();
    let held = pollster::block_on(two.mutex("m").acquire_within(LONG)).expect("the ttl ends");
    proxy.heal();
    assert_eq!(pollster::block_on(late.release()).unwrap(), ReleaseAnswer::AlreadyLost);
    assert!(!is_granted(&three) && !held.is_lost());
}

#[test]
fn a_fixed_expiry_slow_work_loses_the_lock_while_it_works() {
    let server = start();
    assert_ne!(server.ask(&["SET", "lock", "A", "NX", "PX", &milliseconds(TTL)]), Reply::Nil);
    // A works for longer than it thought.
    pause(TTL + Duration::from_millis(50));
    assert_ne!(server.ask(&["SET", "lock", "B", "NX", "PX", &milliseconds(TTL)]), Reply::Nil);
    // tenure
    let (holder, other) = (connect(&server.url()), connect(&server.url()));
    // Longer than a busy machine keeps a thread waiting.
    let ttl = Duration::from_secs(2);
    let lease = pollster::block_on(holder.mutex("m").ttl(ttl).acquire()).unwrap();
    let until = now() + ttl + ttl / 2;
    while now() < until {
        assert!(!is_granted(&other), "it is renewed");
        pause(Duration::from_millis(50));
    }
    assert!(!lease.is_lost());
}

#[test]
fn a_lost_reply_the_holder_waits_for_itself() {
    let server = start();
    let (proxy, url) = before(&server);
    let mut client = Connection::to_port(proxy.port()).unwrap();
    proxy.lose_replies(1, b"SET", Loss::Cut);
    let command = ["SET", "lock", "A", "NX", "PX", "30000"];
    client.ask(&command).expect_err("the reply is lost");
    proxy.heal();
    let mut client = Connection::to_port(proxy.port()).unwrap();
    assert_eq!(client.ask(&command).unwrap(), Reply::Nil, "it holds the lock, and is told that another does");
    // tenure: the claim is repeated under the same id.
    let client = connect(&url);
    proxy.lose_replies(1, b"EVALSHA", Loss::Cut);
    let began = now();
    let lease = pollster::block_on(client.mutex("m").acquire_within(LONG)).expect("it is granted");
    assert!(now().since(began) < LONG && !lease.is_lost());
}
