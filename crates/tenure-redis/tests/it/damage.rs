//! Keys that are deleted under those who use them, and keys that others have made.

use std::time::Duration;

use tenure_core::engine::BreakAnswer;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{ErrorKind, ReleaseAnswer, Tenure};
use tenure_testkit::redis::{RedisOptions, RedisServer};
use tenure_testkit::wait_for;

use crate::crew::{connect, now};

const TTL: Duration = Duration::from_secs(2);

fn start() -> (RedisServer, Tenure) {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&server.url());
    (server, client)
}

/// What an operator tries first.
#[test]
fn to_delete_a_pool_breaks_its_holds_and_nothing_else() {
    for command in ["DEL", "UNLINK"] {
        let (server, client) = start();
        let other = connect(&server.url());
        let (pool, theirs) = (client.slot_pool("pool", 2).ttl(TTL), other.slot_pool("pool", 2).ttl(TTL));
        let first = pollster::block_on(pool.acquire()).expect("it is free");
        let second = pollster::block_on(pool.acquire()).expect("it is free");
        let waiting = theirs.acquire_within(Duration::from_secs(10));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pollster::block_on(waiting));
            wait_for("a waiter", || {
                (server.command(&["ZCARD", "tenure.1.q:tenure:pool"]) == "1").then_some(())
            });
            server.command(&[command, "tenure:pool"]);
            let third = waiting.join().expect("no panic").expect("it is free for who waits");
            assert_eq!(third.slot(), Some(0), "it gets a slot and no mutex");
            wait_for("the holders to learn it", || (first.is_lost() && second.is_lost()).then_some(()));
            let views = pollster::block_on(client.inspect("")).expect("all that is there can be looked at");
            assert_eq!((views[0].used, views[0].holds.len()), (1, 1));
            let fourth =
                pollster::block_on(pool.try_acquire()).expect("an answer").expect("the other is free");
            let none = pollster::block_on(pool.try_acquire()).expect("an answer");
            assert!(none.is_none(), "and there are two");
            for lease in [third, fourth] {
                let answer = pollster::block_on(lease.release()).expect("a release is answered");
                assert_eq!(answer, ReleaseAnswer::Released);
            }
        });
    }
}

/// Where a server evicts, it takes one key and not what belongs to it.
#[test]
fn a_semaphore_bears_the_loss_of_each_key_beside_it() {
    for letter in ["e", "h", "q", "w", "x"] {
        let (server, client) = start();
        let semaphore = client.semaphore("s", 3).ttl(TTL);
        let one = pollster::block_on(semaphore.acquire()).expect("it is free");
        let two = pollster::block_on(semaphore.clone().weight(2).acquire()).expect("it is free");
        let waiting = semaphore.acquire_within(Duration::from_secs(10));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pollster::block_on(waiting));
            wait_for("a waiter", || (server.command(&["ZCARD", "tenure.1.q:tenure:s"]) == "1").then_some(()));
            assert_eq!(server.command(&["DEL", &format!("tenure.1.{letter}:tenure:s")]), "1");
            let none = pollster::block_on(semaphore.try_acquire()).expect("an answer");
            assert!(none.is_none(), "without {letter} somebody is let in beside the holders");
            pollster::block_on(client.inspect("")).expect("all that is there can be looked at");
            assert!(!one.is_lost() && !two.is_lost());
            let answer = pollster::block_on(two.release()).expect("a release is answered");
            assert_eq!(answer, ReleaseAnswer::Released, "without {letter}");
            drop(waiting.join().expect("no panic").expect("it comes free"));
        });
        assert!(!one.is_lost(), "without {letter}");
    }
}

/// A resource that cannot be read costs those who use it, and nobody who uses others over the same connection.
#[test]
fn an_unreadable_pool_costs_innocent_claims_nothing() {
    let (server, client) = start();
    let held = pollster::block_on(client.semaphore("bad", 2).acquire()).expect("it is free");
    server.command(&["DEL", "tenure.1.e:tenure:bad"]);
    server.command(&["SET", "tenure.1.e:tenure:bad", "text"]);
    for round in 0..30 {
        let names = Vec::from_iter((0..16).map(|at| format!("good{round}.{at}")));
        let claims = names.iter().map(async |name| client.mutex(name).try_acquire().await);
        let (bad, good) = pollster::block_on(futures_util::future::join(
            client.semaphore("bad", 2).try_acquire(),
            futures_util::future::join_all(claims),
        ));
        assert_eq!(bad.expect_err("its key is a text").kind(), ErrorKind::Internal);
        for lease in good {
            drop(lease.expect("its key is well").expect("it is free"));
        }
    }
    drop(held);
}

#[test]
fn what_others_have_made_is_left_alone_and_named() {
    let (server, client) = start();
    let product = ["HSET", "tenure:product", "kind", "s", "title", "a book"];
    server.command(&product);
    server.command(&["RPUSH", "tenure:alist", "x"]);
    server.command(&["ZADD", "tenure:symfony", "1", "x"]);
    for (name, what) in [("product", "hash"), ("alist", "list"), ("symfony", "sorted set")] {
        let error = pollster::block_on(client.mutex(name).acquire()).expect_err("it is none of ours");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let said = format!("the Redis key tenure:{name} is a {what} that tenure did not make");
        assert!(error.to_string().contains(&said), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("?prefix=")), "{:?}", error.hint());
        let error = pollster::block_on(client.semaphore(name, 2).acquire()).expect_err("it is none of ours");
        assert!(error.to_string().contains(&said), "{error}");
        let answer = pollster::block_on(client.break_hold(name, tenure_core::Token::ZERO, true));
        assert_eq!(answer.expect("an answer"), BreakAnswer::NotHeld);
        drop(pollster::block_on(client.resize(name, 3)).expect_err("nothing can be changed"));
    }
    assert_eq!(server.command(&["HGET", "tenure:product", "title"]), "a book");
}

/// Rights as a page of an earlier version had them.
#[test]
fn a_user_of_an_earlier_version_waits_for_others_too() {
    let (server, _) = start();
    server.command(&["ACL", "SETUSER", "old", "on", ">x", "~*", "&*", "+@all", "-getrange", "-hgetall"]);
    let client = connect(&server.url().replace("redis://", "redis://old:x@"));
    server.ask(&["SET", "tenure:m", &"theirs".repeat(1000), "PX", "500"]);
    drop(pollster::block_on(client.mutex("m").acquire_within(Duration::from_secs(9))).expect("it ends"));
    let held = pollster::block_on(client.semaphore("s", 2).ttl(TTL).acquire()).expect("it is free");
    for letter in ["e", "h"] {
        server.command(&["DEL", &format!("tenure.1.{letter}:tenure:s")]);
        drop(pollster::block_on(client.semaphore("s", 2).acquire()).expect("one is free"));
    }
    assert!(!held.is_lost());
}

/// A user for dashboards.
#[test]
fn a_user_who_may_only_read_changes_nothing() {
    let (server, client) = start();
    let rule = ["ACL", "SETUSER", "monitor", "on", ">x", "resetchannels", "%R~tenure:*", "%R~tenure.1.*"];
    server.command(&[&rule[..], &["+@all", "-@admin", "-function"]].concat());
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    let url = server.url().replace("redis://", "redis://monitor:x@");
    let mut monitor = redis::Client::open(url).unwrap().get_connection().unwrap();
    let mut ask = |words: &[&str]| {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        cmd.query::<redis::Value>(&mut monitor).map_err(|error| error.to_string())
    };
    let held = ask(&["GET", "tenure:m"]).expect("it may be looked at");
    assert!(format!("{held:?}").contains(&lease.token().to_string()));
    for refused in [
        &["DEL", "tenure:m"][..],
        &["SET", "tenure:m", "mine"],
        &["PEXPIRE", "tenure:m", "1"],
        &["DEL", "tenure.1.token:tenure:"],
        &["ZADD", "tenure.1.q:tenure:m", "0", "x"],
        &["PUBLISH", "tenure.1.inbox:0000000000000001", "L x"],
        &["EVAL", "return redis.call('DEL', KEYS[1])", "1", "tenure:m"],
    ] {
        let said = ask(refused).expect_err("it may only look");
        assert!(
            said.contains("NOPERM") || said.contains("ACL") || said.contains("permission"),
            "{refused:?}: {said}"
        );
    }
    assert!(!lease.is_lost());
    pollster::block_on(lease.release()).expect("a release is answered");
}

/// A text that nearly is a hold of ours is another client's lock.
#[test]
fn a_text_that_looks_like_a_hold_is_waited_for() {
    let (server, client) = start();
    let mutex = client.mutex("m").ttl(TTL);
    let id = "0123456789abcdef0123456789abcdef";
    for text in [
        format!("{id} - 99999999999999999999 1795268894084855 00030000 2f4a458c6f302bb6 0 0 0 1 - a/1/b"),
        format!("{id} - 1795268894084855 17952688940848559 00030000 2f4a458c6f302bb6 0 0 0 1 - a/1/b"),
        format!("{id} - 1795268894084855 1795268894084855 30000 2f4a458c6f302bb6 0 0 0 1 - a/1/b"),
        format!("{id} - 1795268894084855 1795268894084855 00030000 2f4a458c6f302bb6 0 0 0 99999999 - a/1/b"),
        format!(
            "{id} - 1795268894084855 1795268894084855 00030000 2f4a458c6f302bb6 0 0 0 1 77777777777777 a/1/b"
        ),
    ] {
        server.ask(&["SET", "tenure:m", &text, "PX", "300"]);
        let busy = pollster::block_on(mutex.try_acquire()).expect("an answer");
        assert!(busy.is_none(), "{text}");
        let views = pollster::block_on(client.inspect("m")).expect("an answer");
        assert_eq!(views[0].holds[0].label.as_str(), text, "an operator sees whose it is");
        let began = now();
        drop(pollster::block_on(mutex.acquire_within(Duration::from_secs(9))).expect("it ends"));
        assert_in_time(now().since(began), Duration::from_secs(2));
        wait_for("a release", || (server.command(&["EXISTS", "tenure:m"]) == "0").then_some(()));
    }
}
