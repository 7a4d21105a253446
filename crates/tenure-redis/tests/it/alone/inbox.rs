//! The connection for messages breaks alone, while everything else goes on.

use std::sync::mpsc;
use std::time::Duration;

use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::redis::{RedisOptions, RedisServer};
use tenure_testkit::wait_for;

use crate::crew::{connect, now, pause};

/// A heartbeat of a waiter comes every 1.7 s. What is told when the connection is back comes far sooner.
const SOON: Duration = Duration::from_secs(1);

#[test]
fn a_grant_that_nobody_heard_is_found_when_the_inbox_is_back() {
    let server = RedisServer::start(RedisOptions::default());
    let (holder, waiter) = (connect(&server.url()), connect(&server.url()));
    for _ in 0..10 {
        let lease = pollster::block_on(holder.mutex("m").acquire()).expect("it is free");
        let (mutex, (tell, told)) = (waiter.mutex("m"), mpsc::channel());
        let waiting = std::thread::spawn(move || {
            let lease = pollster::block_on(mutex.acquire_within(Duration::from_secs(20))).expect("its turn");
            tell.send(now()).expect("somebody waits for it");
            pollster::block_on(lease.release()).expect("a release is answered");
        });
        wait_for("a waiter", || {
            (pollster::block_on(holder.view("m")).expect("an answer")?.waiting == 1).then_some(())
        });
        pause(Duration::from_millis(100));
        assert!(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).parse::<u32>().expect("a number") >= 1);
        pollster::block_on(lease.release()).expect("a release is answered");
        let released_at = now();
        let granted_at = told.recv().expect("it is granted");
        waiting.join().expect("the waiter does not panic");
        let took = granted_at.since(released_at);
        assert_in_time(took, SOON);
    }
}
