//! Consumers that asked in vain come one after the other when something is due, so that none of them must live.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Label;
use tenure_core::engine::queue::{CONSUMER_LOOK, Interval, Rules};

use crate::Setup;
use crate::queue::{ack, next, push_of, queues, text};
use crate::stage::{LONG, resource, within};

/// Between two items. A multiple of what each engine can keep, and long enough that a busy machine asks in vain before it is over.
const INTERVAL: Duration = Duration::from_secs(2);

/// How soon somebody comes for it: before a client that is not called looks by itself.
const COMES: Duration = CONSUMER_LOOK.saturating_sub(Duration::from_millis(500));

/// What is due in a queue with an interval is handed out in time, though the consumers that were to come for it are gone without a word.
pub async fn those_who_are_gone_are_passed_over(setup: &dyn Setup) {
    if queues(setup, "those_who_are_gone_are_passed_over").await.is_none() {
        return;
    }
    let queue = resource("gone");
    let label = Label::new("here", std::process::id(), "conformance", "queue");
    let interval = Interval::Queue(INTERVAL);
    let rules = Arc::new(Rules { ttl: LONG, interval, attempts_max: 0, label });
    let gone = [setup.direct().await, setup.direct().await];
    let client = setup.client().await;
    let consumer = client.queue(queue.as_str()).interval(INTERVAL);
    gone[0].push(vec![push_of(&queue, None, "1"), push_of(&queue, None, "2")]).await;
    let first = next(setup, &consumer).await;
    // On a busy machine it may have gone back, late for its interval, and be ready after the other.
    let other = if text(&first) == "1" { "2" } else { "1" };
    for direct in &gone {
        // It asks in vain, and never again, nor does it hear a wake.
        assert!(direct.take(&queue, &rules, 1).await.items.is_empty(), "an interval is cut short");
    }
    ack(setup, first).await;
    // Those before it let their turns pass, and then it comes.
    let second = within(COMES, "an item is handed out though those before are gone", consumer.next()).await;
    let second = second.expect("an item is handed out");
    assert_eq!(text(&second), other);
    ack(setup, second).await;
}
