//! What travels with an item: from its push to each of its deliveries.

use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use tenure_core::engine::queue::{CONTEXT_BYTES_MAX, ItemContext, ItemView, QueueCapability};
use tenure_core::{Delivery, Name, Queue};

use crate::Setup;
use crate::queue::{ack, next, push_of, queue_name, text, try_next};
use crate::stage::{SHORT, name};

/// As a producer has it whose work is followed.
const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067ab0cd902e7-01";

/// Whether the engine has queues, and what they can do; if not, the skip is noted.
async fn queues(setup: &dyn Setup, check: &str) -> Option<QueueCapability> {
    let found = setup.client().await.queue_capability().cloned();
    let (has, check) = (found.is_some(), format!("queue_context::{check}"));
    setup.can(&check, "queues", |_| has).await;
    found
}

/// What a delivery is of, and what travelled with it.
fn told(delivery: &Delivery) -> (String, Option<String>) {
    (text(delivery), delivery.context().map(str::to_owned))
}

fn shown(views: &[ItemView]) -> Vec<(String, Option<String>)> {
    let show = |view: &ItemView| {
        let context = view.context.as_ref().map(|context| context.as_str().to_owned());
        (String::from_utf8_lossy(&view.payload).into_owned(), context)
    };
    views.iter().map(show).collect()
}

fn with(payload: &str, context: Option<&str>) -> (String, Option<String>) {
    (payload.to_owned(), context.map(str::to_owned))
}

async fn list(queue: &Queue) -> Vec<(String, Option<String>)> {
    shown(&queue.items(None, 100).await.expect("a list"))
}

async fn dead(queue: &Queue) -> Vec<(String, Option<String>)> {
    shown(&queue.dead_letters(None, 100).await.expect("a list"))
}

/// What travels with an item comes with each of its deliveries: the first one, after a retry, and when it was a dead letter.
pub async fn a_context_comes_with_each_delivery(setup: &dyn Setup) {
    let check = "a_context_comes_with_each_delivery";
    let Some(capability) = queues(setup, check).await else { return };
    let (a, b, queue) = (setup.client().await, setup.client().await, name("context"));
    let (a, b) = (a.queue(&queue), b.queue(&queue).max_attempts(3));
    // Who waits asks for more than an item, and who keeps an interval asks in another way.
    let mut waits = Box::pin(b.next());
    assert!(poll_immediate(&mut waits).await.is_none(), "nothing is there");
    a.push("1").context(TRACEPARENT).await.expect("a push is answered");
    let delivery = setup.within("an item is handed out", waits).await.expect("an item is handed out");
    assert_eq!(told(&delivery), with("1", Some(TRACEPARENT)), "the context of a first delivery");
    delivery.put_back().await.expect("it goes back");
    for group in [None, Some("g")] {
        let delivery = next(setup, &b).await;
        assert_eq!(told(&delivery), with("1", Some(TRACEPARENT)), "the context after a return");
        delivery.retry_after(Duration::ZERO).await.expect("a retry is answered");
        let delivery = next(setup, &b).await;
        assert_eq!(told(&delivery), with("1", Some(TRACEPARENT)), "the context after a retry");
        assert_eq!(list(&a).await, [with("1", Some(TRACEPARENT))], "the context is listed");
        // One way to be a dead letter is an act, and the other a count.
        match group {
            None => delivery.fail("never").await.expect("it fails"),
            Some(_) => drop(delivery.retry_after(Duration::ZERO).await.expect("a retry is answered")),
        }
        while let Some(again) = try_next(setup, &b).await {
            assert!(group.is_some(), "what failed is handed out");
            assert_eq!(told(&again), with("1", Some(TRACEPARENT)), "the context of a later attempt");
            again.retry_after(Duration::ZERO).await.expect("a retry is answered");
        }
        assert_eq!(dead(&a).await, [with("1", Some(TRACEPARENT))], "the context of a dead letter");
        assert_eq!(a.replay(None).await.expect("it is replayed"), 1);
        let delivery = next(setup, &b).await;
        assert_eq!(told(&delivery), with("1", Some(TRACEPARENT)), "the context of what was a dead letter");
        ack(setup, delivery).await;
        let push = a.push("1").context(TRACEPARENT);
        let push = if group.is_none() { push.group("g") } else { push };
        push.await.expect("a push is answered");
    }
    let slow = b.clone().interval(capability.interval_min.max(capability.interval_grain).max(SHORT));
    let delivery = next(setup, &slow).await;
    assert_eq!(told(&delivery), with("1", Some(TRACEPARENT)), "the context of who keeps an interval");
    ack(setup, delivery).await;
    // What was remembered of an item says nothing of the next one.
    a.push("2").await.expect("a push is answered");
    let delivery = next(setup, &b).await;
    assert_eq!(told(&delivery), with("2", None), "an item without a context");
    ack(setup, delivery).await;
}

/// Items that are pushed together have each its own context, or none.
pub async fn a_context_is_that_of_its_item(setup: &dyn Setup) {
    let check = "a_context_is_that_of_its_item";
    if queues(setup, check).await.is_none() {
        return;
    }
    let (a, b, queue) = (setup.client().await, setup.client().await, name("contexts"));
    let longest = "x".repeat(CONTEXT_BYTES_MAX);
    let (a, b) = (a.queue(&queue), b.queue(&queue));
    let contexts = [None, Some("c 1"), None, Some(&longest[..]), Some("~ !\"'\\{}%"), None];
    for (round, (group, dedup)) in
        [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate()
    {
        let pushes = contexts.iter().enumerate().map(|(at, context)| {
            let mut push = a.push(format!("{at}"));
            if let Some(context) = context {
                push = push.context(context);
            }
            if group {
                push = push.group(&format!("g{}", at % 2));
            }
            if dedup {
                push = push.dedup(&format!("{round} {at}"));
            }
            push.into_future()
        });
        for pushed in join_all(pushes).await {
            assert!(!pushed.expect("a push is answered").is_duplicate);
        }
        if dedup {
            for (at, context) in [(0, Some("late")), (1, None), (3, Some("other"))] {
                let push = a.push("again").dedup(&format!("{round} {at}"));
                let push = if let Some(context) = context { push.context(context) } else { push };
                assert!(push.await.expect("a push is answered").is_duplicate);
            }
        }
        let mut expected: Vec<_> =
            contexts.iter().enumerate().map(|(at, context)| with(&at.to_string(), *context)).collect();
        let mut listed = list(&b).await;
        listed.sort();
        assert_eq!(listed, expected, "each has its own in a list");
        let (mut seen, mut held) = (Vec::new(), Vec::new());
        while seen.len() < contexts.len() {
            match try_next(setup, &b).await {
                Some(delivery) => {
                    seen.push(told(&delivery));
                    held.push(delivery);
                }
                None => {
                    assert!(!held.is_empty(), "an item is missing");
                    for delivery in held.drain(..) {
                        ack(setup, delivery).await;
                    }
                }
            }
        }
        for delivery in held {
            ack(setup, delivery).await;
        }
        seen.sort();
        expected.sort();
        assert_eq!(seen, expected, "each has its own, of a group: {group}, under ids: {dedup}");
    }
}

/// One call of the engine may push with contexts and without, and what was pushed first under an id keeps its own.
pub async fn a_batch_keeps_contexts_apart(setup: &dyn Setup) {
    let check = "a_batch_keeps_contexts_apart";
    if queues(setup, check).await.is_none() {
        return;
    }
    let (direct, client, queue) = (setup.direct().await, setup.client().await, name("apart"));
    let queue = client.queue(&queue);
    let named = |text: &str| Name::new(text).expect("a good name");
    let in_engine = named(&queue_name(&queue));
    let of = |at: usize| (!at.is_multiple_of(3)).then(|| format!("c{at}"));
    for round in 0..3 {
        let pushes: Vec<_> = (0..20)
            .map(|at| {
                let mut push = push_of(&in_engine, (round == 1).then_some("g"), &format!("{at:02}"));
                push.context = of(at).map(|context| ItemContext::new(&context).expect("a context"));
                if round == 2 {
                    push.dedup = Some(named(&(at / 2).to_string()));
                }
                push
            })
            .collect();
        direct.push(pushes).await;
        let expected: Vec<_> = (0..20)
            .filter(|at: &usize| round < 2 || at.is_multiple_of(2))
            .map(|at| with(&format!("{at:02}"), of(at).as_deref()))
            .collect();
        let mut seen = Vec::new();
        while let Some(delivery) = try_next(setup, &queue).await {
            seen.push(told(&delivery));
            ack(setup, delivery).await;
        }
        assert_eq!(seen, expected, "of a batch, in round {round}");
    }
}
