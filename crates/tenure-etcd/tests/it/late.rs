//! Copies of requests that arrive late, and answers that do not arrive: nobody is granted what was given up.

use std::time::Duration;

use tenure_core::{ErrorKind, ReleaseAnswer};
use tenure_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdServer};
use tenure_testkit::{Loss, Proxy, wait_for};

use crate::crew::{assert_nothing_is_left, connect, hasty, keys, lease_of, pause, take, with_hasty};

const TTL: Duration = Duration::from_secs(20);

fn all_keys(server: &EtcdServer) -> Vec<String> {
    keys(server, "tenure/line/")
}

/// The claim was carried out, but nobody says so until its user has given up.
#[test]
fn a_claim_whose_answer_was_lost_leaves_nothing_when_it_is_given_up() {
    let server = EtcdServer::start(&EtcdOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let client = connect(&format!("etcd://127.0.0.1:{}", proxy.port()));
    // It has its lease already, so that the claim is all that it sends.
    drop(take(&client, "other", TTL));
    wait_for("release", || all_keys(&server).is_empty().then_some(()));
    proxy.drop_replies();
    let refused = pollster::block_on(client.mutex("m").ttl(TTL).acquire_within(Duration::from_millis(800)));
    let refused = refused.expect_err("nobody answers");
    assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    assert_eq!(all_keys(&server).len(), 1, "it was carried out");
    proxy.heal();
    assert_nothing_is_left(&server);
    // It stays so: no copy is let in afterwards.
    pause(Duration::from_secs(2));
    assert_eq!(all_keys(&server), [""; 0]);
}

/// The claim is held back by the network, repeated elsewhere, granted, released; and then its first copy arrives.
#[test]
fn a_copy_that_arrives_after_the_release_is_not_let_in() {
    let cluster = EtcdCluster::start(&hasty());
    let proxy = Proxy::start(([127, 0, 0, 1], cluster.servers()[0].port()));
    let hosts: Vec<String> =
        (1..3).map(|server| format!("127.0.0.1:{}", cluster.servers()[server].port())).collect();
    // The first that answers is used, and the others are asked later.
    let url = with_hasty(&format!("etcd://127.0.0.1:{},{}", proxy.port(), hosts.join(",")));
    let server = &cluster.servers()[1];
    let client = connect(&url);
    drop(take(&client, "other", TTL));
    wait_for("release", || all_keys(server).is_empty().then_some(()));
    assert!(proxy.connections() > 0, "the client uses the endpoint behind the proxy");
    proxy.pause();
    let lease = take(&client, "m", TTL);
    assert_eq!(pollster::block_on(lease.release()).expect("an answer"), ReleaseAnswer::Released);
    assert_eq!(all_keys(server), [""; 0]);
    assert_eq!(keys(server, "tenure/done/").len(), 1, "the claim is remembered");
    proxy.heal();
    pause(Duration::from_secs(1));
    assert_eq!(all_keys(server), [""; 0], "nobody is granted what was released");
    // The same for one that is given up before anybody has answered.
    pollster::block_on(client.mutex("n").ttl(TTL).acquire()).map(drop).expect("it is free");
}

/// What is dropped while its claim is under way is withdrawn, whatever becomes of the answer.
#[test]
fn claims_that_are_dropped_under_way_leave_nothing() {
    let server = EtcdServer::start(&EtcdOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let client = connect(&format!("etcd://127.0.0.1:{}", proxy.port()));
    for round in 0..20 {
        let name = format!("m{}", round % 3);
        if round % 4 == 0 {
            proxy.lose_replies(1, b"tenure/line/", Loss::Cut);
        }
        let mutex = client.mutex(&name).ttl(TTL);
        let acquire = mutex.acquire();
        pollster::block_on(async {
            let mut acquire = std::pin::pin!(acquire);
            // Once is enough to send it.
            let once =
                std::future::poll_fn(|cx| std::task::Poll::Ready(acquire.as_mut().poll(cx).is_ready()));
            once.await;
        });
        pause(Duration::from_millis(5 * (round % 5)));
    }
    proxy.heal();
    assert_nothing_is_left(&server);
    pause(Duration::from_secs(1));
    assert_nothing_is_left(&server);
}

mod alone {
    use super::*;
    use crate::crew::now;

    /// Nobody can be asked for longer than the claim would have lived. A server that comes back gives its lease the whole time again.
    #[test]
    fn a_claim_that_nobody_could_give_up_in_time_is_given_up_afterwards() {
        let ttl = Duration::from_secs(6);
        let server = EtcdServer::start(&EtcdOptions::default());
        let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
        let client = connect(&format!("etcd://127.0.0.1:{}", proxy.port()));
        drop(take(&client, "other", ttl));
        wait_for("release", || all_keys(&server).is_empty().then_some(()));
        proxy.drop_replies();
        let mutex = client.mutex("m").ttl(ttl);
        let claiming =
            std::thread::spawn(move || pollster::block_on(mutex.acquire_within(Duration::from_secs(1))));
        wait_for("its entry", || (all_keys(&server).len() == 1).then_some(()));
        server.kill();
        claiming.join().expect("no panic").expect_err("nobody answers");
        pause(ttl + Duration::from_millis(300));
        server.restart();
        proxy.heal();
        let back = now();
        assert_nothing_is_left(&server);
        assert!(now().since(back) < ttl / 2, "it ended with its lease only, after {:?}", now().since(back));
    }
}

/// A client has moved an entry under its own etcd lease, which it keeps alive for another, and never hears of it.
#[test]
fn a_hold_whose_attaching_was_not_answered_ends_though_the_etcd_lease_lives() {
    let ttl = Duration::from_secs(6);
    let server = EtcdServer::start(&EtcdOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let (first, third) = (connect(&server.url()), connect(&server.url()));
    let second = connect(&format!("etcd://127.0.0.1:{}", proxy.port()));
    let other = take(&second, "other", ttl);
    let detached = take(&first, "m", ttl).detach().expect("it is held");
    // Only what moves the entry names it.
    proxy.lose_replies(1000, format!("line/m\x1fc{}", detached.claim()).as_bytes(), Loss::Cut);
    let refused = pollster::block_on(second.attach(&detached)).expect_err("nobody answers");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    let etcd_lease = lease_of(&server, "other", other.claim());
    assert_eq!(lease_of(&server, "m", detached.claim()), etcd_lease, "it was carried out");
    proxy.heal();
    let next = pollster::block_on(third.mutex("m").ttl(ttl).acquire_within(4 * ttl));
    drop(next.expect("what nobody renews ends"));
    assert!(!other.is_lost(), "it is renewed all the while");
}
