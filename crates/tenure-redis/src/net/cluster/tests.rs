use redis::Value;
use tenure_core::error::ErrorKind;
use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::redis::{RedisCluster, RedisOptions, RedisServer};

use super::*;
use crate::net::topology::CALL_TIMEOUT;
use crate::net::topology::tests::{Client, run, set};

/// How long after the end of a failover calls work again. (In between they fail, each in time.)
const BACK_WITHIN: Duration = Duration::from_secs(2);

#[test]
fn each_slot_is_served_by_its_node_and_any_node_may_be_named() {
    let cluster = RedisCluster::start();
    run(async {
        // Half of these are replicas; one does not exist.
        let hosts: Vec<String> =
            cluster.nodes().iter().rev().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let client = Client::of(&format!("redis+cluster://127.0.0.1:1,{}", hosts[..3].join(",")));
        assert!(client.servers.is_cluster());
        assert_eq!(client.servers.masters().await.unwrap().len(), 3);
        let mut incarnations = HashSet::new();
        for key in ["a", "b", "c", "d", "e", "f"] {
            let slot = cluster.slot_of(key);
            let (_, incarnation) = client.servers.call(slot, |_| set(key, "1")).await.unwrap();
            assert_eq!(client.servers.incarnation(slot), Some(incarnation));
            assert_eq!(cluster.node_of_slot(slot).command(&["GET", key]), "1");
            incarnations.insert(incarnation);
        }
        assert_eq!(incarnations.len(), 3);
        assert_eq!(client.servers.masters().await.unwrap().len(), 3);
    });
}

#[test]
fn a_slot_that_moves_is_followed_at_every_step() {
    let cluster = RedisCluster::start();
    run(async {
        let mut client = subscribed(&cluster).await;
        let slot = client.slot;
        let from = cluster.node_of_slot(slot);
        let to = cluster.nodes()[..3].iter().find(|node| node.port() != from.port()).unwrap();
        let incarnation = client.servers.incarnation(slot);
        cluster.begin_migration(slot, from, to);
        // A key that is still there is used there, and one that is not, at the new node.
        assert_eq!(client.increment().await.unwrap().1, incarnation.unwrap());
        let (_, asked) = client.servers.call(slot, |_| set("{n}new", "1")).await.unwrap();
        assert_ne!(Some(asked), incarnation);
        // A script for both finds its keys at neither.
        let both = |_| redis::cmd("EVAL").arg("return 1").arg(2).arg("n").arg("{n}new").to_owned();
        let mut asked_at = Instant::now();
        let mut fault = client.servers.call(slot, both).await.unwrap_err();
        // On a busy machine the last of many attempts may stay without an answer.
        while fault.code().is_none() {
            assert_in_time(asked_at.elapsed(), CALL_TIMEOUT + OTHERS_TIMEOUT);
            asked_at = Instant::now();
            fault = client.servers.call(slot, both).await.unwrap_err();
        }
        assert_eq!(fault.code(), Some("TRYAGAIN"));
        assert!(asked_at.elapsed() >= CALL_TIMEOUT / 2);
        assert_in_time(asked_at.elapsed(), CALL_TIMEOUT + OTHERS_TIMEOUT);
        cluster.move_keys(slot, from, to);
        let (value, moved) = client.increment().await.unwrap();
        assert_eq!((value, moved), (Value::Int(3), asked));
        client.servers.call(slot, both).await.unwrap();
        cluster.end_migration(slot, from, to);
        assert_eq!(client.increment().await.unwrap(), (Value::Int(4), asked));
        hears(&mut client, to).await;
    });
}

#[test]
fn a_channel_follows_its_slot_without_any_call() {
    let cluster = RedisCluster::start();
    run(async {
        let mut client = subscribed(&cluster).await;
        let from = cluster.node_of_slot(client.slot);
        let to = cluster.nodes()[..3].iter().find(|node| node.port() != from.port()).unwrap();
        cluster.migrate_slot(client.slot, from, to);
        hears(&mut client, to).await;
        // The other node's connection has not been confused by that.
        for key in ["a", "b", "c", "d", "e", "f"] {
            let answer =
                client.servers.call(cluster.slot_of(key), |_| redis::cmd("ECHO").arg(key).to_owned()).await;
            assert_eq!(answer.unwrap().0, Value::BulkString(key.as_bytes().to_vec()));
        }
    });
}

#[test]
fn no_call_gets_the_answer_of_another_while_a_channel_is_taken_away() {
    let cluster = RedisCluster::start();
    run(async {
        let client = subscribed(&cluster).await;
        let slot = client.slot;
        let from = cluster.node_of_slot(slot);
        let to = cluster.nodes()[..3].iter().find(|node| node.port() != from.port()).unwrap();
        let other = (0..).map(|n| format!("k{n}")).find(|key| {
            cluster.node_of_slot(cluster.slot_of(key)).port() == from.port() && cluster.slot_of(key) != slot
        });
        let other = cluster.slot_of(&other.unwrap());
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let servers = client.servers.clone();
                tokio::spawn(async move {
                    let (mut answered, mut cut) = (0, 0);
                    for n in 0..3000 {
                        let text = format!("{caller}-{n}");
                        match servers.call(other, |_| redis::cmd("ECHO").arg(&text).to_owned()).await {
                            Ok((value, _)) => {
                                assert_eq!(value, Value::BulkString(text.into_bytes()));
                                answered += 1;
                            }
                            Err(fault) => {
                                assert!(fault.is_outcome_unknown(), "{fault:?}");
                                cut += 1;
                            }
                        }
                    }
                    (answered, cut)
                })
            })
            .collect();
        cluster.migrate_slot(slot, from, to);
        let mut cut = 0;
        for caller in callers {
            cut += caller.await.unwrap().1;
        }
        // At most what was under way each time that the connection was cut.
        assert!(cut <= 64, "{cut} calls failed");
    });
}

#[test]
fn replicas_acknowledge_also_while_a_slot_moves() {
    let cluster = RedisCluster::start();
    run(async {
        let client = Client::of(&format!("{}?replicas=1", cluster.url()));
        let slot = cluster.slot_of("n");
        let from = cluster.node_of_slot(slot);
        let to = cluster.nodes()[..3].iter().find(|node| node.port() != from.port()).unwrap();
        cluster.begin_migration(slot, from, to);
        for n in 1..4 {
            let call = client.servers.with_replicas(slot, |_| redis::cmd("INCR").arg("n").to_owned());
            let (value, _, acknowledged) = call.await.unwrap();
            assert_eq!((value, acknowledged), (Value::Int(n), 1));
        }
        assert_eq!(to.command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]), "1");
    });
}

#[test]
fn a_killed_master_is_replaced() {
    let cluster = RedisCluster::start();
    run(async {
        let mut client = subscribed(&cluster).await;
        let old = cluster.node_of_slot(client.slot);
        old.kill();
        let new = cluster.wait_for_new_master(client.slot, old);
        follows(&mut client, new).await;
    });
}

#[test]
fn a_hung_master_that_was_replaced_is_left() {
    let cluster = RedisCluster::start();
    run(async {
        let mut client = subscribed(&cluster).await;
        let old = cluster.node_of_slot(client.slot);
        old.stop();
        let new = cluster.wait_for_new_master(client.slot, old);
        follows(&mut client, new).await;
        let incarnation = client.servers.incarnation(client.slot);
        old.cont();
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            assert_eq!(Some(client.increment().await.unwrap().1), incarnation);
            pause::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn a_failover_that_was_asked_for_is_followed_by_calls_and_channels() {
    let cluster = RedisCluster::start();
    run(async {
        let mut client = subscribed(&cluster).await;
        let old = cluster.node_of_slot(client.slot);
        let new = cluster.failover(old);
        // Without a call in between: the channel is found again by itself.
        hears(&mut client, new).await;
        follows(&mut client, new).await;
    });
}

#[test]
fn a_cluster_that_is_down_or_none_is_an_error_in_time() {
    let cluster = RedisCluster::start();
    let single = RedisServer::start(RedisOptions::default());
    run(async {
        for node in cluster.nodes() {
            node.kill();
        }
        let client = Client::of(&cluster.url());
        let error = client.increment().await.unwrap_err().to_error("claim");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(client.servers.masters().await.is_err());
        let client = Client::of(&single.url().replace("redis://", "redis+cluster://"));
        let error = client.increment().await.unwrap_err().to_error("claim");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("redis://")), "{error:?}");
    });
}

#[test]
fn calls_messages_and_failovers_go_over_tls() {
    let cluster = RedisCluster::start_with(&RedisOptions::default().tls());
    run(async {
        let url = format!("{}?ca={}", cluster.url(), cluster.nodes()[0].authority().display());
        assert!(url.starts_with("rediss+cluster://"));
        let mut client = subscribed_at(&cluster, &url).await;
        let old = cluster.node_of_slot(client.slot);
        assert_eq!(old.command(&["SPUBLISH", "inbox{n}", "hello"]), "1");
        assert_eq!(client.message().await.1, "hello");
        let new = cluster.failover(old);
        follows(&mut client, new).await;
    });
}

async fn subscribed(cluster: &RedisCluster) -> Client {
    subscribed_at(cluster, &cluster.url()).await
}

async fn subscribed_at(cluster: &RedisCluster, url: &str) -> Client {
    let mut client = Client::of(url);
    client.slot = cluster.slot_of("n");
    client.servers.subscribe(client.slot, b"inbox{n}").await.unwrap();
    client.servers.subscribe(client.slot, b"inbox{n}").await.unwrap();
    client.increment().await.unwrap();
    client.both().await;
    client
}

/// Messages that are published at a node are heard, within [`BACK_WITHIN`].
async fn hears(client: &mut Client, node: &RedisServer) {
    let since = Instant::now();
    while node.command(&["SPUBLISH", "inbox{n}", "hello"]) == "0" {
        assert_in_time(since.elapsed(), BACK_WITHIN);
        pause::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(client.message().await.1, "hello");
    // The subscriber learns that messages may have been missed.
    client.told_of_new().await;
}

/// Calls and messages go through the new master within [`BACK_WITHIN`].
async fn follows(client: &mut Client, new: &RedisServer) {
    let count = || new.command(&["GET", "n"]).parse().unwrap_or(0);
    let since = Instant::now();
    loop {
        match client.increment().await {
            Ok((Value::Int(value), _)) if count() == value => break,
            answer => assert!(since.elapsed() < BACK_WITHIN, "{answer:?} after {:?}", since.elapsed()),
        }
    }
    assert_in_time(since.elapsed(), BACK_WITHIN);
    hears(client, new).await;
}
