//! One of several servers that hangs: nobody must notice.

use std::time::Duration;

use pollster::block_on;
use tenure_conformance::crew::{now, pause};
use tenure_testkit::redis::RedisOptions;

use crate::servers_fail::{connect, start};

/// How long it hangs.
const LASTS: Duration = Duration::from_secs(4);
const TTL: Duration = Duration::from_secs(2);

#[test]
fn a_server_of_a_quorum_that_hangs_costs_nothing() {
    let (servers, url) = start(3, &RedisOptions::default());
    let (client, other) = (connect(&url), connect(&url));
    let busy = block_on(other.mutex("busy").acquire()).expect("it is free");
    let kept = block_on(client.mutex("kept").ttl(TTL).acquire()).expect("it is free");
    let waits = client.mutex("busy");
    let mut waiting = Box::pin(waits.acquire());
    assert!(block_on(futures_util::future::poll_immediate(&mut waiting)).is_none());
    tenure_testkit::wait_for("a waiter", || waiting.place());
    servers[0].stop();
    let until = now() + LASTS;
    while now() < until {
        let lease = block_on(client.mutex("free").acquire()).expect("two of three are a majority");
        block_on(lease.release()).expect("two of three are a majority");
        pause(Duration::from_millis(20));
    }
    assert!(!kept.is_lost(), "two of three can renew it");
    drop(busy);
    drop(block_on(waiting).expect("it is handed over"));
}
