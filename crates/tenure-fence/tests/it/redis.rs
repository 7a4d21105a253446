//! The Lua function on a real server.

use proptest::prelude::prop_assert_eq;
use proptest::test_runner::{Config, TestRunner};
use tenure_fence::{Stale, redis};
use tenure_testkit::redis::{RedisOptions, RedisServer};
use tenure_testkit::{Connection, Reply};

use crate::writes::{accesses, expected, mark};

fn eval(connection: &mut Connection, script: &str, arguments: &[String]) -> Reply {
    let mut command = vec!["EVAL".to_owned(), script.to_owned()];
    command.extend_from_slice(arguments);
    connection.ask(&command).expect("an answer")
}

fn answer(reply: Reply) -> Result<(), Stale> {
    match &reply {
        Reply::Nil => redis::stale(None),
        Reply::Bytes(_) => redis::stale(Some(&reply.to_string())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn answers_as_the_rule() {
    let server = RedisServer::start(RedisOptions::default());
    let mut runner = TestRunner::new(Config::with_cases(256));
    let outcome = runner.run(&accesses(), |list| {
        let mut connection = server.connect().expect("a server");
        connection.ask(&["FLUSHALL"]).expect("an answer");
        let answers: Vec<Result<(), Stale>> = list
            .iter()
            .map(|access| {
                let arguments = match access.is_read {
                    true => redis::arguments_of_read(access.key, access.mark),
                    false => redis::arguments(access.key, access.mark),
                };
                answer(eval(&mut connection, redis::CHECK, &arguments))
            })
            .collect();
        prop_assert_eq!(answers, expected(&list));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn tokens_are_exact_to_the_last_of_64_bits() {
    let server = RedisServer::start(RedisOptions::default());
    let mut connection = server.connect().unwrap();
    let mut check = |token| answer(eval(&mut connection, redis::CHECK, &redis::arguments("k", mark(token))));
    for token in [9, 10, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, u64::MAX - 1, u64::MAX] {
        assert_eq!(check(token), Ok(()), "{token}");
        assert_eq!(check(token - 1).unwrap_err().max.get(), token);
    }
}

#[test]
fn the_write_is_in_the_same_step() {
    let server = RedisServer::start(RedisOptions::default());
    let mut connection = server.connect().unwrap();
    let script = redis::script(
        "local max = tenure_fence(KEYS[1], ARGV[1], ARGV[2], 'write')
         if max then return max end
         redis.call('SET', KEYS[2], ARGV[3])
         return false",
    );
    let claim = "0123456789abcdef0123456789abcdef";
    let mut set = |token: &str, balance: &str| {
        let arguments = ["2", "{billing}:fence", "{billing}", token, claim, balance].map(str::to_owned);
        eval(&mut connection, &script, &arguments)
    };
    assert_eq!(set("5", "new"), Reply::Nil);
    assert_eq!(set("4", "old"), Reply::Bytes(b"5".to_vec()));
    assert_eq!(server.command(&["GET", "{billing}"]), "new");
    let kept = format!("1 5/{claim} 0/{}", "0".repeat(32));
    assert_eq!(server.command(&["GET", "{billing}:fence"]), kept);
    assert_eq!(server.command(&["TTL", "{billing}:fence"]), "-1");
}

/// The server adds where in the script it happened.
#[track_caller]
fn assert_refused(reply: &Reply, text: &str) {
    assert!(matches!(reply, Reply::Error(error) if error.starts_with(text)), "{reply:?}");
}

#[test]
fn what_is_no_token_no_claim_and_no_fence_changes_nothing() {
    let server = RedisServer::start(RedisOptions::default());
    let mut connection = server.connect().unwrap();
    let claim = "a".repeat(32);
    let too_large = ["18446744073709551616", "100000000000000000000"];
    for token in ["", "0", "-1", "01", "1.5", "1e9", "x", too_large[0], too_large[1]] {
        let reply =
            eval(&mut connection, redis::CHECK, &["1", "k", token, &claim, "write"].map(str::to_owned));
        assert_refused(&reply, "ERR tenure fence: not a token");
    }
    for wrong in ["", "abc", &"A".repeat(32), &"g".repeat(32)] {
        let reply = eval(&mut connection, redis::CHECK, &["1", "k", "1", wrong, "write"].map(str::to_owned));
        assert_refused(&reply, "ERR tenure fence: not a claim id");
    }
    let reply = eval(&mut connection, redis::CHECK, &["1", "k", "1", &claim, "reads"].map(str::to_owned));
    assert!(matches!(reply, Reply::Error(_)), "{reply}");
    assert_eq!(server.ask(&["GET", "k"]), Reply::Nil);
    server.command(&["SET", "k", "2 a b c"]);
    let reply = eval(&mut connection, redis::CHECK, &redis::arguments("k", mark(9)));
    assert_refused(&reply, "ERR tenure fence: the key holds no fence of format 1");
}
