//! A store that is far away, on the other side of the world or behind a slow line.

use std::time::Duration;

use pollster::block_on;
use tenure_core::engine::Connect;
use tenure_core::{Result, Tenure};

use crate::crew::{assert_excused, pause};
use crate::silence::answered;

/// How long a message takes there, and as long back.
pub const ONE_WAY: Duration = Duration::from_millis(150);
/// Long beside what is waited for, and renewed meanwhile.
const TTL: Duration = Duration::from_secs(6);

/// Asserts that a client with the settings that all have connects with a store that is as far away as [`ONE_WAY`] says, and that locks and
/// queues work there. What is done for the first time, such as to make the tables of queues, may take more round trips than a call is waited
/// for, and is asked for again.
///
/// # Panics
/// If something fails, or a lease is lost.
pub fn is_reached(connector: impl Fn() -> Connect) {
    let connect = || answered("a client", || block_on(Tenure::new(connector())));
    let (client, other) = (connect(), connect());
    let acquire = |client: &Tenure| answered("a claim", || block_on(client.mutex("far").ttl(TTL).acquire()));
    let held = acquire(&client);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(acquire(&other)));
        pause(TTL + TTL / 2);
        assert!(!held.is_lost(), "it is renewed");
        ends(block_on(held.release()));
        waiter.join().expect("it is handed over");
    });
    if client.queue_capability().is_some() {
        answered("a push", || block_on(async { client.queue("far").push(b"item").dedup("item").await }));
        let queue = other.queue("far");
        let delivery = answered("a take", || block_on(queue.next()));
        ends(block_on(delivery.ack()));
    }
}

/// Asserts that the end of a lease or a delivery was answered. It is asked for once, so on a busy machine the answer may come too late.
#[track_caller]
fn ends<T>(answer: Result<T>) {
    if let Err(error) = answer {
        assert_excused(&error);
    }
}
