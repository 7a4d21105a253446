//! A master that is replaced while work goes through a queue.
//!
//! Nothing claims that a failover loses nothing: replication is asynchronous. What is lost is counted; what must hold is that
//! the queue goes on soon, that its order holds for what is there, and that tokens grow.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pollster::block_on;
use tenure_core::Token;
use tenure_core::clock::Instant;
use tenure_testkit::redis::{RedisSentinel, RedisServer};

use crate::crew::{TTL, connect, now, pause};

/// How long servers take to replace a master, at the detection times of the kit, what was in flight takes to end, and 3 s more.
const AGAIN: Duration = Duration::from_millis(3300 + 2000 + 3000);

#[derive(Default)]
struct Seen {
    pushed: BTreeSet<u32>,
    /// Each acknowledgement: of which item, when, and with which token.
    acked: Vec<(u32, Instant, Token)>,
}

fn failover(fault: impl FnOnce(&RedisSentinel, &RedisServer)) {
    let set = RedisSentinel::start();
    let url = set.url();
    let (seen, is_over, stops_pushing) =
        (Mutex::new(Seen::default()), AtomicBool::new(false), AtomicBool::new(false));
    let broken_at = std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = connect(&url);
            let mut number = 0;
            while !stops_pushing.load(Ordering::Relaxed) {
                number += 1;
                let push = client.queue("q").push(number.to_string()).group("g");
                if block_on(push.into_future()).is_ok() {
                    seen.lock().expect("no panic").pushed.insert(number);
                }
                pause(Duration::from_millis(1));
            }
        });
        scope.spawn(|| {
            let client = connect(&url);
            let queue = client.queue("q").ttl(TTL).max_attempts(0);
            while !is_over.load(Ordering::Relaxed) {
                let Ok(Some(delivery)) = block_on(queue.next_within(Duration::from_millis(300))) else {
                    continue;
                };
                let number = String::from_utf8_lossy(delivery.payload()).parse().expect("a number");
                let token = delivery.token();
                if block_on(delivery.ack()).is_ok() {
                    seen.lock().expect("no panic").acked.push((number, now(), token));
                }
            }
        });
        pause(Duration::from_secs(1));
        let broken_at = now();
        fault(&set, set.master());
        pause(AGAIN);
        stops_pushing.store(true, Ordering::Relaxed);
        pause(Duration::from_secs(3));
        is_over.store(true, Ordering::Relaxed);
        broken_at
    });
    let Seen { pushed, acked } = seen.into_inner().expect("no panic");
    let done: BTreeSet<u32> = acked.iter().map(|(number, ..)| *number).collect();
    let lost = pushed.difference(&done).count();
    eprintln!(
        "{} pushed, {lost} of them lost, {} acknowledged twice",
        pushed.len(),
        acked.len() - done.len()
    );
    let after = acked.iter().filter(|(_, at, _)| *at > broken_at + AGAIN / 2).count();
    assert!(after > 100, "the queue does not go on: {after}");
    assert!(acked.windows(2).all(|pair| pair[0].2 < pair[1].2), "a later delivery has no larger token");
    // What was answered in the last half second before the fault, and until the old master was left, at most.
    assert!(lost < pushed.len() / 2, "more is lost than a failover explains");
    let again = |number: &u32| acked.iter().filter(|(of, ..)| of == number).count();
    assert!(
        done.iter().all(|number| again(number) <= 2),
        "an item came again more often than there were failovers"
    );
}

#[test]
fn a_master_that_is_killed_is_left() {
    failover(|_, master| master.kill());
}

#[test]
fn a_master_that_steps_down_is_left() {
    failover(|set, _| {
        set.failover();
    });
}
