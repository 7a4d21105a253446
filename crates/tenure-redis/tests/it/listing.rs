//! Lists of all that is held, beside other keys, and with what cannot be read.

use pollster::block_on;
use tenure_testkit::Reply;
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::crew::connect;

const LOCKS: usize = 2_000;
const OTHERS: usize = 20_000;

/// Sets so many keys: those of mutexes that are held, or those of others.
fn fill(server: &RedisServer) {
    let text = "766a5490ee4cdd9ee3b7e35f6adc1c5b - 1795268894084855 1795268894084855 00030000 2f4a458c6f302bb6 \
                0 0 0 1 - vm/5319/tenure nightly";
    let script = "for i = 1, ARGV[1] do redis.call('SET', 'tenure:lock ' .. i, ARGV[3], 'PX', 600000) end
                  for i = 1, ARGV[2] do redis.call('SET', 'tenant:' .. i, 'x') end";
    let done = server.ask(&["EVAL", script, "0", &LOCKS.to_string(), &OTHERS.to_string(), text]);
    assert_eq!(done, Reply::Nil);
}

#[test]
fn a_list_looks_at_each_key_once() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&server.url());
    fill(&server);
    block_on(async {
        // Of these the list must show more than the hold.
        let leader = client.election("leader").try_campaign().await?.expect("it is free");
        leader.publish(b"here").await?;
        client.semaphore("pool", 2).acquire().await.map(std::mem::forget)?;
        client.queue("work").push("item").await.map(drop)?;
        std::mem::forget(leader);
        Ok::<_, tenure_core::Error>(())
    })
    .expect("answers");
    // The functions are loaded by now.
    let before = (server.calls("scan"), server.calls("fcall"));
    let views = block_on(client.inspect("")).expect("a list");
    let (scans, looks) = (server.calls("scan") - before.0, server.calls("fcall") - before.1);
    assert_eq!(views.len(), LOCKS + 2);
    assert!(views.is_sorted_by(|one, next| one.resource < next.resource));
    let view = |name: &str| views.iter().find(|view| view.resource.as_str() == name).expect("it is listed");
    assert_eq!(view("leader").value.as_deref(), Some(&b"here"[..]));
    assert_eq!((view("pool").used, view("pool").capacity), (1, 2));
    assert_eq!(view("lock 7").holds[0].label.as_str(), "vm/5319/tenure nightly");
    assert_eq!(view("lock 7").holds[0].token.get(), 1_795_268_894_084_855);
    assert!(scans <= (LOCKS + OTHERS) / 1000 + 5, "{scans} scans");
    assert!(looks <= LOCKS / 128 + 2, "{looks} looks");
    let before = server.calls("scan");
    let queues = block_on(client.queues("")).expect("a list");
    assert_eq!((queues.len(), queues[0].0.as_str(), queues[0].1.waiting), (1, "work", 1));
    assert!(server.calls("scan") - before <= (LOCKS + OTHERS) / 1000 + 5);
}

#[test]
fn what_cannot_be_read_is_a_line_of_its_own() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&server.url());
    let held = ["a", "b", "d"].map(|name| block_on(client.mutex(name).acquire()).expect("it is free"));
    block_on(client.queue("work").push("item")).expect("it is pushed");
    // What somebody else put where a value and the dead letters of a queue belong.
    for key in ["tenure.1.v:tenure:c", "tenure.1.y:tenure:other"] {
        server.command(&["SET", key, "garbage"]);
    }
    let each = block_on(client.inspect_each("")).expect("a list");
    let lines: Vec<(&str, bool)> = each.iter().map(|(name, view)| (name.as_str(), view.is_ok())).collect();
    assert_eq!(lines, [("a", true), ("b", true), ("c", false), ("d", true)]);
    let error = each[2].1.as_ref().expect_err("it cannot be read");
    assert!(error.to_string().contains("WRONGTYPE") && error.to_string().contains("\"c\""), "{error}");
    let refused = block_on(client.inspect("")).expect_err("one cannot be read");
    assert_eq!(refused.resource().map(|name| name.as_str()), Some("c"));
    let queues = block_on(client.queues_each("")).expect("a list");
    let lines: Vec<(&str, bool)> =
        queues.iter().map(|(name, stats)| (name.as_str(), stats.is_ok())).collect();
    assert_eq!(lines, [("other", false), ("work", true)]);
    drop(held);
}
