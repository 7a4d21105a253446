//! A list of all that is held, beside other keys.

use pollster::block_on;
use tenure_testkit::Reply;
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::servers_fail::{connect, start};

const LOCKS: usize = 2_000;
const OTHERS: usize = 20_000;

/// Sets so many keys: those of mutexes that are held, and those of others.
fn fill(server: &RedisServer) {
    let script = "for i = 1, ARGV[1] do redis.call('SET', 'tenure:lock ' .. i, 'theirs', 'PX', 600000) end
                  for i = 1, ARGV[2] do redis.call('SET', 'tenant:' .. i, 'x') end";
    let done = server.ask(&["EVAL", script, "0", &LOCKS.to_string(), &OTHERS.to_string()]);
    assert_eq!(done, Reply::Nil);
}

#[test]
fn a_list_looks_at_each_key_once() {
    let (servers, url) = start(3, &RedisOptions::default());
    servers.iter().for_each(fill);
    let client = connect(&url);
    let before = servers[0].calls("scan");
    assert_eq!(block_on(client.inspect("")).expect("a list").len(), LOCKS);
    let scans = servers[0].calls("scan") - before;
    assert!(scans <= 2 * (LOCKS + OTHERS) / 1000 + 10, "{scans} scans");
}
