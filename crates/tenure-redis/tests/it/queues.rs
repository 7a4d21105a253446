//! Queues on real servers: what lies where and for how long, who is told, and what a fault may not do.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pollster::block_on;
use tenure_conformance::queue_crew;
use tenure_core::testing::random::more;
use tenure_core::{Delivery, ErrorKind, Tenure};
use tenure_testkit::redis::{RedisCluster, RedisOptions, RedisServer, Topology, shared};
use tenure_testkit::{Loss, Proxy, Reply, wait_for};

use crate::crew::{connect, now, pause};

/// Longer than a wake takes, and shorter than it takes an idle consumer to look by itself.
const TOLD: Duration = Duration::from_secs(2);
/// How soon all is as before once a fault is over.
const SOON: Duration = Duration::from_secs(20);

fn next(client: &Tenure, queue: &str) -> Delivery {
    let next = block_on(client.queue(queue).next_within(SOON)).expect("an answer");
    next.expect("something is ready")
}

fn push(client: &Tenure, queue: &str, group: &str, payload: &str) {
    let push = client.queue(queue).push(payload);
    block_on(async { if group.is_empty() { push.await } else { push.group(group).await } })
        .expect("it is pushed");
}

/// The letters of the keys that a queue has, and whether each ends by itself.
fn keys(server: &RedisServer) -> BTreeMap<char, bool> {
    let keys = server.ask(&["KEYS", "tenure.1.?:tenure:*"]);
    let letter = |key: &Reply| {
        let key = key.to_string();
        let Reply::Integer(left) = server.ask(&["PTTL", &key]) else { panic!("a number") };
        (key.chars().nth("tenure.1.".len()).expect("a letter"), left >= 0)
    };
    keys.parts().iter().map(letter).collect()
}

#[test]
fn data_has_no_expiry_and_all_else_has() {
    let server = RedisServer::start(RedisOptions::default());
    let (client, queue) = (connect(&server.url()), "a{b} c}{");
    for (group, payload) in [("", "1"), ("g{", "2"), ("g{", "3")] {
        push(&client, queue, group, payload);
    }
    block_on(client.queue(queue).push("4").dedup("once")).expect("it is pushed");
    // The dedup ids end with what they are of.
    let data = "lgniodt".chars().map(|letter| (letter, false));
    let expected: BTreeMap<char, bool> = data.chain([('b', true)]).collect();
    assert_eq!(keys(&server), expected);
    let (first, second) = (next(&client, queue), next(&client, queue));
    assert!(!keys(&server)[&'c'], "what is in flight is not forgotten");
    block_on(first.fail("because")).expect("it is in flight");
    let dead = keys(&server);
    assert_eq!((dead[&'y'], dead[&'m']), (false, false), "nor what is dead");
    block_on(second.ack()).expect("it is in flight");
    for _ in 0..2 {
        block_on(next(&client, queue).ack()).expect("it is in flight");
    }
    assert_eq!(block_on(client.queue(queue).purge_dead(None)).expect("an answer"), 1);
    let left = keys(&server);
    assert!(left.values().all(|ends| *ends), "an empty queue leaves something for ever: {left:?}");
    assert!(left.keys().all(|letter| "bdtju".contains(*letter)), "{left:?}");
}

#[test]
fn a_group_that_is_empty_costs_nothing() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&server.url());
    let memory = || server.info("used_memory").expect("a field").parse::<u64>().expect("a number");
    let turn = |round: u32| {
        for number in 0..500 {
            push(&client, "q", &format!("merchant {round}/{number}"), "work");
            block_on(next(&client, "q").ack()).expect("it is in flight");
        }
    };
    turn(0);
    let before = memory();
    turn(1);
    let (grown, left) = (memory().saturating_sub(before), keys(&server));
    assert!(grown < 100_000, "500 groups have left {grown} bytes");
    assert!(left.values().all(|ends| *ends), "{left:?}");
}

#[test]
fn a_rest_of_an_empty_group_ends_by_itself() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&server.url());
    let queue = client.queue("q").group_interval(Duration::from_millis(600));
    push(&client, "q", "g", "1");
    let taken = now();
    block_on(async { queue.next().await?.ack().await }).expect("it is there");
    assert_eq!(keys(&server).get(&'z'), Some(&true), "it rests for some time");
    push(&client, "q", "g", "2");
    let second = block_on(queue.next()).expect("it is there");
    assert!(now().since(taken) >= Duration::from_millis(590), "the interval was undercut");
    block_on(second.ack()).expect("it is in flight");
    wait_for("the rest to end", || (!keys(&server).contains_key(&'z')).then_some(()));
}

fn while_it_works(url: &str, disturb: impl FnOnce(&AtomicBool) + Send) {
    queue_crew::while_it_works(|| connect(url), SOON, disturb);
}

#[test]
fn killed_connections_lose_nothing() {
    let server = RedisServer::start(RedisOptions::default());
    while_it_works(&server.url(), |is_over| {
        queue_crew::again_and_again(is_over, 40, Duration::from_millis(40), |_| {
            for kind in ["normal", "pubsub"] {
                server.ask(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
            }
        });
    });
}

#[test]
fn lost_replies_lose_nothing() {
    let server = RedisServer::start(RedisOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    while_it_works(&format!("redis://127.0.0.1:{}", proxy.port()), |is_over| {
        queue_crew::again_and_again(is_over, 30, Duration::from_millis(40), |_| {
            proxy.lose_replies(1, b"FCALL", Loss::Cut);
        });
    });
}

#[test]
fn forgotten_functions_and_scripts_are_sent_again() {
    for missing in [None, Some("-fcall")] {
        let server = RedisServer::start(RedisOptions::default());
        let mut url = server.url();
        if let Some(missing) = missing {
            server.ask(&["ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all", missing]);
            url = url.replace("redis://", "redis://worker:secret@");
        }
        while_it_works(&url, |is_over| {
            queue_crew::again_and_again(is_over, more(60, usize::MAX), Duration::from_millis(30), |_| {
                server.ask(&["FUNCTION", "FLUSH"]);
                server.ask(&["SCRIPT", "FLUSH"]);
            });
        });
    }
}

#[test]
fn who_is_gone_is_not_told_in_place_of_another() {
    let server = RedisServer::start(RedisOptions::default());
    let (proxy, producer, patient) =
        (Proxy::start(([127, 0, 0, 1], server.port())), connect(&server.url()), connect(&server.url()));
    let gone = connect(&format!("redis://127.0.0.1:{}", proxy.port()));
    let waiting = std::thread::spawn(move || {
        let delivery = next(&patient, "q");
        let at = now();
        block_on(delivery.ack()).expect("it is in flight");
        at
    });
    wait_for("a consumer", || {
        (server.ask(&["ZCARD", "tenure.1.j:tenure:q"]) == Reply::Integer(1)).then_some(())
    });
    let idle = Box::pin(async move { gone.queue("q").next().await });
    let mut idle = idle;
    assert!(block_on(futures_util::future::poll_immediate(&mut idle)).is_none());
    wait_for("another", || {
        (server.ask(&["ZCARD", "tenure.1.j:tenure:q"]) == Reply::Integer(2)).then_some(())
    });
    // It would be told first: it has asked last.
    proxy.refuse();
    proxy.cut();
    wait_for("it to be gone", || {
        let inboxes = server.ask(&["PUBSUB", "CHANNELS", "tenure.1.inbox:*"]).parts().len();
        (inboxes == 1).then_some(())
    });
    let pushed = now();
    push(&producer, "q", "", "work");
    let at = waiting.join().expect("the consumer does not panic");
    assert!(at.since(pushed) < TOLD, "told after {:?} only", at.since(pushed));
}

#[test]
fn a_full_server_takes_nothing_more_and_can_be_emptied() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&server.url());
    for number in 0..20 {
        push(&client, "q", if number % 2 == 0 { "g" } else { "" }, "work");
    }
    block_on(next(&client, "q").fail("because")).expect("it is in flight");
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = block_on(async { client.queue("q").push("more").await }).expect_err("there is no room");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("OOM"), "{refused}");
    for _ in 0..19 {
        block_on(next(&client, "q").ack()).expect("what is there can be handed out and acknowledged");
    }
    assert_eq!(block_on(client.queue("q").purge_dead(None)).expect("an answer"), 1);
}

#[test]
fn queues_of_all_slots_are_served() {
    let client = connect(&shared(Topology::Cluster));
    let names: Vec<String> =
        (0..60).map(|number| format!("slots {number} {{{}}}", fastrand::u64(..))).collect();
    block_on(async {
        let pushes = names.iter().map(|name| client.queue(name).push(name).group("g").into_future());
        futures_util::future::try_join_all(pushes).await.expect("all are pushed");
        let works = names.iter().map(async |name| {
            let delivery = client.queue(name).next().await?;
            assert_eq!(delivery.payload(), name.as_bytes());
            delivery.ack().await
        });
        futures_util::future::try_join_all(works).await.expect("all are served");
    });
    let found = block_on(client.queues("slots ")).expect("an answer");
    assert!(found.iter().all(|(name, _)| !names.contains(&name.to_string())), "an empty queue is listed");
}

#[test]
fn a_slot_that_moves_takes_its_queue_along() {
    let cluster = RedisCluster::start();
    let slot = cluster.slot_of("tenure:q");
    let from = cluster.node_of_slot(slot);
    let to = cluster.node_of_slot((slot + 8000) % 16384);
    while_it_works(&cluster.url(), |is_over| {
        let (mut here, mut there) = (from, to);
        for _ in 0..4 {
            pause(Duration::from_millis(100));
            assert!(!is_over.load(Ordering::Relaxed), "it was over before the slot has moved");
            cluster.migrate_slot(slot, here, there);
            (here, there) = (there, here);
        }
    });
}

#[test]
fn a_push_waits_for_replicas_where_it_should() {
    let master = RedisServer::start(RedisOptions::default());
    let client = connect(&format!("{}?replicas=1", master.url()));
    let refused =
        block_on(async { client.queue("q").push("work").await }).expect_err("nobody acknowledges it");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("0 of 1 replicas"), "{refused}");
}

#[test]
fn large_payloads_are_handed_out_in_parts() {
    let server = RedisServer::start(RedisOptions::default());
    let client = Arc::new(connect(&server.url()));
    let payload = vec![b'x'; 256 * 1024];
    block_on(async {
        let pushes = (0..40).map(|_| async { client.queue("q").push(&payload).await });
        futures_util::future::try_join_all(pushes).await.expect("all are pushed");
        let works = (0..40).map(async |_| {
            let delivery = client.queue("q").next().await?;
            assert_eq!(delivery.payload().len(), payload.len());
            delivery.ack().await
        });
        let works = futures_util::future::try_join_all(works);
        works.await.expect("all are handed out");
    });
    assert_eq!(block_on(client.queue("q").depth()).expect("an answer"), 0);
}

#[test]
fn the_rights_of_the_page_are_enough() {
    const PAGE: &str = include_str!("../../../../docs/engines/redis.md");
    let rule = PAGE.split("```text\nACL SETUSER ").nth(1).and_then(|rest| rest.split("\n```").next());
    let rule = rule.expect("the page says which rights are needed");
    let server = RedisServer::start(RedisOptions::default());
    let words: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(rule.split_whitespace()).collect();
    server.command(&words);
    let client = connect(&server.url().replace("redis://", "redis://locks:secret@"));
    let queue = client.queue("q").group_interval(Duration::from_millis(1)).ttl(Duration::from_secs(5));
    for number in 0..3 {
        push(&client, "q", "g", &number.to_string());
    }
    block_on(async {
        queue.push("once").dedup("id").await?;
        queue.next().await?.fail("because").await?;
        queue.next().await?.retry_after(Duration::ZERO).await?;
        queue.next().await?.put_back().await?;
        assert_eq!(queue.replay(None).await?, 1);
        assert_eq!(queue.items(None, 9).await?.len(), 4);
        while let Some(delivery) = queue.next_within(Duration::from_millis(300)).await? {
            delivery.ack().await?;
        }
        queue.push("once").dedup("id").await?;
        queue.push("more").await?;
        assert_eq!(client.queues("").await?.len(), 1);
        queue.purge(None).await
    })
    .expect("the rights of the page are enough");
}
