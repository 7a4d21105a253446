//! First in, first out, in groups; at least once; and nothing early.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use tenure_core::clock::Instant;
use tenure_core::engine::queue::{
    CONSUMER_LOOK, Interval, ItemState, Push, QueueCapability, Rules, SettleAnswer, Settlement,
};
use tenure_core::testing::random::more;
use tenure_core::{Delivery, ErrorKind, Label, Name, Queue, Tenure, Token};

use crate::Setup;
use crate::actor::Actor;
use crate::cancellation::poll_times;
use crate::history::{Section, overlaps, stale_tokens};
use crate::queue_model::agree;
use crate::stage::{LONG, SHORT, assert_passed, name, now, pause, resource};

/// Whether the engine has queues, and what they can do; if not, the skip is noted.
pub(crate) async fn queues(setup: &dyn Setup, check: &str) -> Option<QueueCapability> {
    let found = setup.client().await.queue_capability().cloned();
    let (has, check) = (found.is_some(), format!("queue::{check}"));
    setup.can(&check, "queues", |_| has).await;
    found
}

/// The rules of a take by hand.
fn rules(ttl: Duration) -> Arc<Rules> {
    let label = Label::new("here", std::process::id(), "conformance", "queue");
    Arc::new(Rules { ttl, interval: Interval::Off, attempts_max: 0, label })
}

/// A push of a text by hand.
pub(crate) fn push_of(queue: &Name, group: Option<&str>, payload: &str) -> Push {
    let group = group.map(|group| Name::new(group).expect("a good name"));
    Push {
        queue: queue.clone(),
        group,
        payload: payload.as_bytes().into(),
        delay: Duration::ZERO,
        dedup: None,
        context: None,
    }
}

pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8_lossy(delivery.payload()).into_owned()
}

/// Pushes texts, one after the other.
async fn push_all(queue: &Queue, group: Option<&str>, payloads: &[&str]) {
    for payload in payloads {
        let push = queue.push(payload);
        let push = if let Some(group) = group { push.group(group) } else { push };
        push.await.expect("a push is answered");
    }
}

/// Takes what must be ready or become ready.
pub(crate) async fn next(setup: &dyn Setup, queue: &Queue) -> Delivery {
    setup.within("an item is handed out", queue.next()).await.expect("an item is handed out")
}

/// Tries to take once.
pub(crate) async fn try_next(setup: &dyn Setup, queue: &Queue) -> Option<Delivery> {
    setup.within("a try is answered", queue.try_next()).await.expect("a try is answered")
}

pub(crate) async fn ack(setup: &dyn Setup, delivery: Delivery) {
    setup.within("an ack is answered", delivery.ack()).await.expect("a delivery is acknowledged");
}

/// Takes all that is ready and acknowledges it, and returns the texts in order.
async fn drain(setup: &dyn Setup, queue: &Queue) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(delivery) = try_next(setup, queue).await {
        texts.push(text(&delivery));
        ack(setup, delivery).await;
    }
    texts
}

/// An item is with one consumer at a time, and gone when it is acknowledged.
pub async fn an_item_is_with_one_consumer(setup: &dyn Setup) {
    let Some(_) = queues(setup, "an_item_is_with_one_consumer").await else { return };
    let (a, b, queue) = (setup.client().await, setup.client().await, name("one"));
    let (a, b) = (a.queue(&queue), b.queue(&queue));
    let pushed = a.push("work").await.expect("a push is answered");
    let delivery = next(setup, &b).await;
    assert_eq!((text(&delivery).as_str(), delivery.attempt()), ("work", 1));
    assert_eq!(delivery.item(), pushed.item, "the item that was pushed");
    assert!(try_next(setup, &a).await.is_none(), "an item is with two consumers");
    ack(setup, delivery).await;
    assert!(try_next(setup, &a).await.is_none(), "an item that was acknowledged is handed out");
    assert_eq!(a.depth().await.expect("a count"), 0, "an item that was acknowledged is counted");
}

/// Items of a group are handed out one at a time, in the order of their pushes.
pub async fn a_group_is_served_in_order(setup: &dyn Setup) {
    let Some(_) = queues(setup, "a_group_is_served_in_order").await else { return };
    let (a, b, queue) = (setup.client().await, setup.client().await, name("order"));
    let (a, b) = (a.queue(&queue), b.queue(&queue));
    for (client, payload) in [(&a, "1"), (&b, "2"), (&a, "3"), (&b, "4")] {
        push_all(client, Some("g"), &[payload]).await;
    }
    let mut last = None;
    for (client, other, payload) in [(&b, &a, "1"), (&a, &b, "2"), (&b, &a, "3"), (&a, &b, "4")] {
        let delivery = next(setup, client).await;
        assert_eq!(text(&delivery), payload, "out of order");
        assert_eq!(delivery.group(), Some("g"));
        assert!(last < Some(delivery.token()), "a later delivery has no larger token");
        last = Some(delivery.token());
        assert!(try_next(setup, other).await.is_none(), "two of a group at once");
        ack(setup, delivery).await;
    }
    assert!(try_next(setup, &a).await.is_none(), "nothing is left");
}

/// Items without a group are with several consumers at once, the first pushed first.
pub async fn what_has_no_group_is_parallel(setup: &dyn Setup) {
    if queues(setup, "what_has_no_group_is_parallel").await.is_none() {
        return;
    }
    let (a, b, queue) = (setup.client().await, setup.client().await, name("parallel"));
    let (a, b) = (a.queue(&queue), b.queue(&queue));
    push_all(&a, None, &["1", "2", "3"]).await;
    let (one, two, three) = (next(setup, &a).await, next(setup, &b).await, next(setup, &a).await);
    assert_eq!([text(&one), text(&two), text(&three)], ["1", "2", "3"], "out of order");
    for delivery in [two, one, three] {
        ack(setup, delivery).await;
    }
}

/// A group waits for the item that is in flight, and holds back no other group.
pub async fn groups_are_parallel(setup: &dyn Setup) {
    if queues(setup, "groups_are_parallel").await.is_none() {
        return;
    }
    let (client, queue) = (setup.client().await, name("groups"));
    let queue = client.queue(&queue);
    push_all(&queue, Some("a"), &["a1", "a2"]).await;
    push_all(&queue, Some("b"), &["b1"]).await;
    let first = next(setup, &queue).await;
    let second = next(setup, &queue).await;
    assert_eq!([text(&first), text(&second)], ["a1", "b1"], "a group holds back another");
    assert!(try_next(setup, &queue).await.is_none(), "two of a group at once");
    ack(setup, first).await;
    let third = next(setup, &queue).await;
    assert_eq!(text(&third), "a2");
    ack(setup, third).await;
    ack(setup, second).await;
}

/// Groups take turns, however much one of them has.
pub async fn groups_take_turns(setup: &dyn Setup) {
    if queues(setup, "groups_take_turns").await.is_none() {
        return;
    }
    let (client, queue) = (setup.client().await, name("turns"));
    let queue = client.queue(&queue);
    push_all(&queue, Some("a"), &["a1", "a2", "a3"]).await;
    push_all(&queue, Some("b"), &["b1", "b2", "b3"]).await;
    assert_eq!(drain(setup, &queue).await, ["a1", "b1", "a2", "b2", "a3", "b3"], "groups do not take turns");
}

/// Who waits is told of a push by another client, long before it would look by itself.
pub async fn who_waits_is_told_of_a_push(setup: &dyn Setup) {
    let Some(capability) = queues(setup, "who_waits_is_told_of_a_push").await else { return };
    let (a, b, queue) = (setup.client().await, setup.client().await, name("told"));
    let (a, b) = (a.queue(&queue), b.queue(&queue));
    // Often enough that who looks by itself would be late at least once.
    for round in 0..4 {
        let mut waiting = Box::pin(a.next());
        assert!(poll_immediate(&mut waiting).await.is_none(), "nothing is there");
        pause(Duration::from_millis(100)).await;
        let pushed = now();
        push_all(&b, None, &["work"]).await;
        let delivery = setup.within("who waits is served", waiting).await.expect("an item");
        let took = now().since(pushed);
        let looks = if capability.tells_consumers { CONSUMER_LOOK / 2 } else { CONSUMER_LOOK };
        assert!(took < looks, "round {round}: told after {took:?} only");
        ack(setup, delivery).await;
    }
}

/// Each of many who wait is served, though few are told at a time.
pub async fn many_who_wait_are_all_served(setup: &dyn Setup) {
    if queues(setup, "many_who_wait_are_all_served").await.is_none() {
        return;
    }
    let queue = name("many");
    let clients = join_all((0..4).map(|_| setup.client())).await;
    let queues: Vec<Queue> = clients.iter().map(|client| client.queue(&queue)).collect();
    let mut waiting: Vec<_> = (0..16).map(|number| Box::pin(next(setup, &queues[number % 4]))).collect();
    for waits in &mut waiting {
        assert!(poll_immediate(waits).await.is_none(), "nothing is there");
    }
    pause(Duration::from_millis(100)).await;
    let payloads: Vec<String> = (0..16).map(|number| number.to_string()).collect();
    for payload in &payloads {
        push_all(&queues[0], None, &[payload]).await;
    }
    let mut served = Vec::new();
    for delivery in setup.within("all are served", join_all(waiting)).await {
        served.push(text(&delivery));
        ack(setup, delivery).await;
    }
    served.sort_by_key(|text| text.parse::<u32>().expect("a number"));
    assert_eq!(served, payloads, "each item once");
}

/// Tasks of one client that wait for one queue by different rules are all told.
pub async fn who_waits_by_other_rules_is_told_too(setup: &dyn Setup) {
    if queues(setup, "who_waits_by_other_rules_is_told_too").await.is_none() {
        return;
    }
    let (a, b, queue) = (setup.client().await, setup.client().await, name("rules"));
    let (patient, quick, push) = (a.queue(&queue), a.queue(&queue).ttl(2 * LONG), b.queue(&queue));
    let mut waiting = [Box::pin(patient.next()), Box::pin(quick.next())];
    for waits in &mut waiting {
        assert!(poll_immediate(waits).await.is_none(), "nothing is there");
        pause(Duration::from_millis(100)).await;
    }
    let pushed = now();
    push_all(&push, None, &["1"]).await;
    // By now one of the two has what it wanted.
    pause(Duration::from_millis(200)).await;
    push_all(&push, None, &["2"]).await;
    for delivery in setup.within("both are served", join_all(waiting)).await {
        ack(setup, delivery.expect("an item")).await;
    }
    let took = now().since(pushed);
    assert!(took < CONSUMER_LOOK / 2, "one is told after {took:?} only");
}

/// A delivery that nobody renews ends after its ttl and not before; the item comes again, and the late ack is refused.
pub async fn a_silent_consumer_is_replaced(setup: &dyn Setup) {
    if queues(setup, "a_silent_consumer_is_replaced").await.is_none() {
        return;
    }
    let (direct, queue) = (setup.direct().await, resource("silent"));
    let ttl = setup.ttl(SHORT).await;
    let client = setup.client().await;
    let next_one = client.queue(queue.as_str()).ttl(ttl);
    direct.push(vec![push_of(&queue, Some("g"), "1"), push_of(&queue, Some("g"), "2")]).await;
    let start = now();
    let taken = direct.take(&queue, &rules(ttl), 1).await.items;
    assert_eq!(taken.len(), 1, "an item is ready");
    let again = next(setup, &next_one).await;
    assert_passed(start, ttl, "the next delivery");
    assert_eq!((text(&again).as_str(), again.attempt()), ("1", 2), "the same item again");
    assert!(again.token() > taken[0].token, "a later delivery has no larger token");
    let late = direct.settle(&queue, taken[0].claim, Settlement::Ack).await;
    assert_eq!(late, SettleAnswer::Lost, "an ack that came too late");
    let late = direct.renew_delivery(&queue, taken[0].claim).await;
    assert_eq!(late, tenure_core::engine::RenewAnswer::Lost, "a renewal that came too late");
    ack(setup, again).await;
    assert_eq!(drain(setup, &next_one).await, ["2"]);
}

/// A delivery is renewed in the background for as long as it is held.
pub async fn a_delivery_outlives_its_ttl(setup: &dyn Setup) {
    if queues(setup, "a_delivery_outlives_its_ttl").await.is_none() {
        return;
    }
    let (a, b, queue) = (setup.client().await, setup.client().await, name("renewed"));
    let ttl = setup.ttl(SHORT).await;
    let (a, b) = (a.queue(&queue).ttl(ttl), b.queue(&queue).ttl(ttl));
    push_all(&a, None, &["work"]).await;
    let delivery = next(setup, &a).await;
    pause(3 * ttl).await;
    assert!(!delivery.lease().is_lost(), "a delivery is renewed while it is held");
    assert!(try_next(setup, &b).await.is_none(), "an item is with two consumers");
    ack(setup, delivery).await;
    pause(2 * ttl).await;
    assert!(try_next(setup, &b).await.is_none(), "an item that was acknowledged is handed out");
}

/// A consumer that was stopped for longer than its ttl finds that its ack is refused.
pub async fn a_stopped_consumers_ack_is_refused(setup: &dyn Setup) {
    if queues(setup, "a_stopped_consumers_ack_is_refused").await.is_none() {
        return;
    }
    let (client, queue) = (setup.client().await, name("stopped"));
    let ttl = setup.ttl(SHORT).await;
    let queue = client.queue(&queue).ttl(ttl);
    push_all(&queue, None, &["work"]).await;
    let mut actor = setup.actor().await;
    let ttl_ms = ttl.as_millis().to_string();
    let name = queue_name(&queue);
    let held = actor.ask(&["hold", &name, &ttl_ms]).await.expect("an actor lives");
    assert!(held.starts_with("item\twork\t"), "an actor takes the item: {held}");
    actor.stop();
    let again = next(setup, &queue).await;
    assert_eq!(again.attempt(), 2);
    actor.go_on();
    let answer = actor.ask(&["settle"]).await.expect("an actor lives");
    assert_eq!(answer, "failed\tlost", "a consumer that was stopped acknowledges what another has");
    ack(setup, again).await;
}

pub(crate) fn queue_name(queue: &Queue) -> String {
    queue.name().expect("a good name").as_str().to_owned()
}

/// A consumer that was killed is replaced when its delivery ends; at once, where the engine notices deaths.
pub async fn a_killed_consumer_is_replaced(setup: &dyn Setup) {
    if queues(setup, "a_killed_consumer_is_replaced").await.is_none() {
        return;
    }
    let notices = setup.capability().await.notices_death;
    let ttl = if notices { LONG } else { setup.ttl(SHORT).await };
    let (client, queue) = (setup.client().await, name("killed"));
    let queue = client.queue(&queue).ttl(ttl);
    push_all(&queue, Some("g"), &["1", "2"]).await;
    let mut actor = setup.actor().await;
    let name = queue_name(&queue);
    let held = actor.ask(&["hold", &name, &ttl.as_millis().to_string()]).await;
    assert!(held.is_some_and(|held| held.starts_with("item\t1\t")), "an actor takes the first item");
    let mut waiting = Box::pin(queue.next());
    assert!(poll_immediate(&mut waiting).await.is_none(), "the group waits");
    actor.kill();
    let again = setup.within("the item is handed out again", waiting).await.expect("an item");
    assert_eq!((text(&again).as_str(), again.attempt()), ("1", 2), "the killed one's item comes first");
    ack(setup, again).await;
    assert_eq!(drain(setup, &queue).await, ["2"]);
}

/// A retry holds the item back for so long, and its group with it.
pub async fn a_retry_holds_its_group_back(setup: &dyn Setup) {
    if queues(setup, "a_retry_holds_its_group_back").await.is_none() {
        return;
    }
    let (client, queue) = (setup.client().await, name("retry"));
    let queue = client.queue(&queue);
    push_all(&queue, Some("g"), &["1", "2"]).await;
    let first = next(setup, &queue).await;
    let start = now();
    assert!(!first.retry_after(SHORT).await.expect("a retry is answered"), "not the last attempt");
    let again = next(setup, &queue).await;
    assert_passed(start, SHORT, "another attempt");
    assert_eq!((text(&again).as_str(), again.attempt()), ("1", 2), "a group waits for a retry");
    ack(setup, again).await;
    assert_eq!(drain(setup, &queue).await, ["2"]);
}

/// A delay holds an item back, and what stands behind it in its group; nothing else. Who waits is there when it is over.
pub async fn a_delay_holds_back(setup: &dyn Setup) {
    let Some(capability) = queues(setup, "a_delay_holds_back").await else { return };
    let grain = Duration::from_millis(20).max(capability.interval_min);
    let (a, b, queue) = (setup.client().await, setup.client().await, name("delay"));
    let (a, b) = (a.queue(&queue), b.queue(&queue));
    let mut waiting = Box::pin(a.next());
    assert!(poll_immediate(&mut waiting).await.is_none(), "nothing is there");
    pause(Duration::from_millis(50)).await;
    let start = now();
    b.push("late").group("g").delay(SHORT).await.expect("a push is answered");
    push_all(&b, Some("g"), &["behind"]).await;
    let late = setup.within("who waits is served when it is due", waiting).await.expect("an item");
    assert_passed(start, SHORT, "what was delayed");
    let late_by = now().since(start).saturating_sub(SHORT);
    assert!(late_by < CONSUMER_LOOK / 2, "who waits comes {late_by:?} after it was due only");
    assert_eq!(text(&late), "late", "what stands behind a delayed item came first");
    assert!(late.age() <= late_by + grain, "its delay is no part of its age: {:?}", late.age());
    push_all(&b, None, &["now"]).await;
    assert_eq!(text(&next(setup, &a).await), "now", "a delay holds back another item");
    ack(setup, late).await;
    let (behind, waited) = (next(setup, &a).await, now().since(start));
    let ages = SHORT.saturating_sub(grain)..=waited + grain;
    assert!(text(&behind) == "behind" && ages.contains(&behind.age()), "{:?} in {waited:?}", behind.age());
    ack(setup, behind).await;
}

/// Between two dispatches of a queue at least its interval passes, over all consumers.
pub async fn an_interval_is_never_undercut(setup: &dyn Setup) {
    let Some(capability) = queues(setup, "an_interval_is_never_undercut").await else { return };
    let interval = interval_of(&capability);
    let queue = name("interval");
    let clients = join_all((0..3).map(|_| setup.client())).await;
    let queues: Vec<Queue> = clients.iter().map(|client| client.queue(&queue).interval(interval)).collect();
    let count = 5;
    for number in 0..count {
        push_all(&queues[0], None, &[&number.to_string()]).await;
    }
    let start = now();
    let taken = AtomicUsize::new(0);
    let consume = async |queue: &Queue| {
        let mut times = Vec::new();
        // A machine that is busy may be late by more than a wait.
        while taken.load(Ordering::Relaxed) < count {
            if let Ok(Some(delivery)) = queue.next_within(3 * interval).await {
                times.push(now());
                taken.fetch_add(1, Ordering::Relaxed);
                ack(setup, delivery).await;
            }
        }
        times
    };
    let mut times = join_all(queues.iter().map(consume)).await.concat();
    times.sort();
    assert_eq!(times.len(), count, "each item once");
    for (number, time) in times.iter().enumerate() {
        let least = interval * number as u32;
        assert_passed(start, least, &format!("dispatch {number}"));
        let passed = time.since(start);
        assert!(passed + Duration::from_millis(5) >= least, "too early: dispatch {number} after {passed:?}");
    }
}

/// An interval of groups holds back each group by itself.
pub async fn a_group_interval_is_never_undercut(setup: &dyn Setup) {
    let Some(capability) = queues(setup, "a_group_interval_is_never_undercut").await else { return };
    let interval = interval_of(&capability);
    let (client, queue) = (setup.client().await, name("spaced"));
    let queue = client.queue(&queue).group_interval(interval);
    for group in ["a", "b", "c"] {
        push_all(&queue, Some(group), &["1", "2", "3"]).await;
    }
    let start = now();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..9 {
        let delivery = next(setup, &queue).await;
        let count = counts.entry(delivery.group().expect("a group").to_owned()).or_default();
        let passed = now().since(start) + Duration::from_millis(5);
        assert!(passed >= interval * *count, "too early: number {count} of a group after {passed:?}");
        *count += 1;
        ack(setup, delivery).await;
        if counts.len() < 3 {
            assert!(now().since(start) < interval, "a group holds back another");
        }
    }
    // A group that became empty still rests.
    queue.push("4").group("a").await.expect("a push is answered");
    let delivery = next(setup, &queue).await;
    assert_passed(start, 3 * interval, "the next of a group that was empty");
    ack(setup, delivery).await;
}

/// An interval that an engine can keep, long enough that a busy machine does not hide a fault.
fn interval_of(capability: &QueueCapability) -> Duration {
    Duration::from_millis(250).max(capability.interval_min)
}

/// A dedup id is pushed once, while its item waits and after it is done.
pub async fn a_dedup_id_is_pushed_once(setup: &dyn Setup) {
    if queues(setup, "a_dedup_id_is_pushed_once").await.is_none() {
        return;
    }
    let (a, b, queue) = (setup.client().await, setup.client().await, name("dedup"));
    let (a, b) = (a.queue(&queue), b.queue(&queue));
    let first = a.push("1").group("g").dedup("id").await.expect("a push is answered");
    let second = b.push("2").group("g").dedup("id").await.expect("a push is answered");
    assert!(!first.is_duplicate && second.is_duplicate, "a dedup id is pushed twice");
    assert_eq!(first.item, second.item, "a duplicate is answered with the first one's item");
    let other = b.push("3").group("g").dedup("other").await.expect("a push is answered");
    assert!(!other.is_duplicate, "another id");
    assert_eq!(drain(setup, &a).await, ["1", "3"], "a dedup id is pushed twice");
    let late = b.push("4").dedup("id").await.expect("a push is answered");
    assert!(late.is_duplicate, "a dedup id is forgotten with its item");
    assert_eq!(drain(setup, &a).await, Vec::<String>::new());
}

/// What fails is a dead letter: its group goes on, it is listed with its reason, and can be replayed or removed.
pub async fn what_fails_is_a_dead_letter(setup: &dyn Setup) {
    if queues(setup, "what_fails_is_a_dead_letter").await.is_none() {
        return;
    }
    let (a, b, queue) = (setup.client().await, setup.client().await, name("dead"));
    let (a, b) = (a.queue(&queue), b.queue(&queue));
    push_all(&a, Some("g"), &["1", "2", "3"]).await;
    for reason in ["no such order", "no such merchant"] {
        next(setup, &a).await.fail(reason).await.expect("a failure is answered");
    }
    assert_eq!(drain(setup, &b).await, ["3"], "a group goes on after a dead letter");
    let dead = b.dead_letters(None, 10).await.expect("dead letters");
    let told: Vec<_> = dead
        .iter()
        .map(|dead| (&*dead.payload, dead.group.as_ref().map(Name::as_str), dead.attempts, &dead.state))
        .map(|(payload, group, attempts, state)| match state {
            ItemState::Dead { reason, .. } => (payload, group, attempts, reason.as_str()),
            other => panic!("a dead letter is {other:?}"),
        })
        .collect();
    let expected =
        [(&b"1"[..], Some("g"), 1, "no such order"), (&b"2"[..], Some("g"), 1, "no such merchant")];
    assert_eq!(told, expected, "dead letters are listed");
    assert_eq!(b.stats().await.expect("a count").dead, 2, "dead letters are counted");
    assert_eq!(b.purge_dead(Some(dead[1].item)).await.expect("an answer"), 1, "one dead letter is removed");
    let mut waiting = Box::pin(b.next());
    assert!(poll_immediate(&mut waiting).await.is_none(), "nothing is there");
    pause(Duration::from_millis(50)).await;
    assert_eq!(a.replay(None).await.expect("an answer"), 1, "the other one is replayed");
    let again = setup.within("what was replayed is handed out", waiting).await.expect("an item");
    assert_eq!((text(&again).as_str(), again.attempt()), ("1", 1), "as if it had never been handed out");
    again.fail("still not").await.expect("a failure is answered");
    assert_eq!(a.purge_dead(None).await.expect("an answer"), 1);
    assert_eq!(a.dead_letters(None, 10).await.expect("dead letters").len(), 0, "dead letters are removed");
}

/// After so many attempts that were not acknowledged an item is a dead letter: by retries, and by deliveries that ended.
pub async fn the_last_attempt_is_buried(setup: &dyn Setup) {
    if queues(setup, "the_last_attempt_is_buried").await.is_none() {
        return;
    }
    let (client, queue) = (setup.client().await, resource("attempts"));
    let consumer = client.queue(queue.as_str()).max_attempts(2);
    push_all(&consumer, Some("g"), &["1", "2", "3"]).await;
    let first = next(setup, &consumer).await;
    assert!(!first.retry_after(Duration::ZERO).await.expect("an answer"), "the first of two attempts");
    let second = next(setup, &consumer).await;
    assert_eq!(second.attempt(), 2);
    let buried = second.retry_because(Duration::ZERO, "it is broken").await;
    assert!(buried.expect("an answer"), "the second of two attempts");
    let direct = setup.direct().await;
    let ttl = setup.ttl(Duration::from_millis(100)).await;
    let rules = Arc::new(Rules { attempts_max: 2, ..Rules::clone(&rules(ttl)) });
    for attempt in 1..=2 {
        setup
            .eventually("a delivery has ended", async || {
                let taken = direct.take(&queue, &rules, 1).await.items;
                taken.first().is_some_and(|taken| {
                    assert_eq!((&*taken.payload, taken.attempt), (&b"2"[..], attempt), "the same again");
                    true
                })
            })
            .await;
    }
    assert_eq!(text(&next(setup, &consumer).await), "3", "a group goes on after the last attempt");
    let dead = consumer.dead_letters(None, 10).await.expect("dead letters");
    let dead: Vec<_> = dead.iter().map(|dead| (&*dead.payload, dead.attempts)).collect();
    assert_eq!(dead, [(&b"1"[..], 2), (&b"2"[..], 2)], "both are dead letters");
}

/// What is put back, or was never seen, is handed out again at once and does not count; what is dropped comes later, and counts.
pub async fn what_is_let_go_comes_again(setup: &dyn Setup) {
    if queues(setup, "what_is_let_go_comes_again").await.is_none() {
        return;
    }
    let (client, queue) = (setup.client().await, name("let-go"));
    let queue = client.queue(&queue);
    push_all(&queue, Some("g"), &["1", "2"]).await;
    next(setup, &queue).await.put_back().await.expect("an answer");
    let again = next(setup, &queue).await;
    assert_eq!((text(&again).as_str(), again.attempt()), ("1", 1), "put back at the head, uncounted");
    let (start, delay) = (now(), again.retry_delay());
    drop(again);
    let again = next(setup, &queue).await;
    assert_passed(start, delay, "what was dropped");
    assert_eq!((text(&again).as_str(), again.attempt()), ("1", 2), "dropped, it counts");
    ack(setup, again).await;
    assert_eq!(drain(setup, &queue).await, ["2"]);
}

/// Dropping a wait at any moment loses nothing, and changes no order.
pub async fn a_wait_dropped_at_any_moment_loses_nothing(setup: &dyn Setup) {
    if queues(setup, "a_wait_dropped_at_any_moment_loses_nothing").await.is_none() {
        return;
    }
    let (client, queue) = (setup.client().await, name("dropped"));
    let queue = client.queue(&queue);
    push_all(&queue, Some("g"), &["1", "2"]).await;
    for polls in 0..4 {
        let mut waiting = Box::pin(queue.next());
        drop(
            setup
                .within("a wait makes progress", poll_times(&mut waiting, polls))
                .await
                .map(|delivery| delivery.map(|delivery| pollster::block_on(delivery.put_back()))),
        );
        drop(waiting);
    }
    for step in 0..20u32 {
        let mut waiting = Box::pin(queue.next());
        // What came for a wait that was dropped may be there already.
        if let Some(delivery) = poll_immediate(&mut waiting).await {
            let delivery = delivery.expect("a wait ends well");
            setup.within("it goes back", delivery.put_back()).await.expect("it is in flight");
        }
        pause(Duration::from_micros(100) * step).await;
        drop(waiting);
    }
    let first = next(setup, &queue).await;
    assert_eq!((text(&first).as_str(), first.attempt()), ("1", 1), "an attempt that nobody saw counts");
    ack(setup, first).await;
    assert_eq!(drain(setup, &queue).await, ["2"]);
}

/// Any bytes come out as they went in: none at all, all values, and as many as the engine takes. More are refused.
pub async fn payloads_are_bytes(setup: &dyn Setup) {
    let Some(capability) = queues(setup, "payloads_are_bytes").await else { return };
    let (client, queue) = (setup.client().await, name("bytes"));
    let queue = client.queue(&queue);
    let all: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..capability.payload_bytes_max).map(|at| (at % 251) as u8).collect();
    for payload in [&[][..], &all, &large] {
        queue.push(payload).await.expect("a push is answered");
        let delivery = next(setup, &queue).await;
        assert!(delivery.payload() == payload, "{} bytes are not what was pushed", payload.len());
        ack(setup, delivery).await;
    }
    let refused = queue.push(vec![0; large.len() + 1]).await.map_err(|error| error.kind());
    assert_eq!(refused.map(|_| ()), Err(ErrorKind::Invalid), "a payload that is too large");
}

/// Counts and lists say where each item stands; what waits can be removed, what is in flight stays.
pub async fn what_is_there_is_told(setup: &dyn Setup) {
    if queues(setup, "what_is_there_is_told").await.is_none() {
        return;
    }
    let (client, stem) = (setup.client().await, name("told"));
    let (queue, other) = (client.queue(&format!("{stem}/a")), client.queue(&format!("{stem}/b")));
    push_all(&queue, Some("g"), &["1", "2"]).await;
    queue.push("3").delay(LONG).await.expect("a push is answered");
    push_all(&queue, None, &["4"]).await;
    push_all(&other, None, &["5"]).await;
    let delivery = next(setup, &queue).await;
    let stats = queue.stats().await.expect("a count");
    assert_eq!((stats.waiting, stats.in_flight, stats.dead), (3, 1, 0), "what is there is counted");
    assert!(!queue.is_empty().await.expect("an answer"), "what waits and what is in flight is there");
    assert_eq!(stats.next_in, Some(Duration::ZERO), "something is ready");
    let items = queue.items(None, 10).await.expect("a list");
    let texts: Vec<_> = items.iter().map(|item| String::from_utf8_lossy(&item.payload)).collect();
    assert_eq!(texts, ["1", "2", "3", "4"], "items are listed in the order of their pushes");
    let stand: Vec<&str> = items
        .iter()
        .map(|item| match &item.state {
            ItemState::Waiting { ready_in } if ready_in.is_zero() => "ready",
            ItemState::Waiting { .. } => "delayed",
            ItemState::Behind => "behind",
            ItemState::InFlight { .. } => "in flight",
            ItemState::Dead { .. } => "dead",
        })
        .collect();
    assert_eq!(stand, ["in flight", "behind", "delayed", "ready"], "each item's standing is told");
    let page = queue.items(Some(items[1].item), 1).await.expect("a list");
    let page: Vec<_> = page.iter().map(|item| item.item).collect();
    assert_eq!(page, [items[2].item], "a page begins after an item");
    let found = client.queues(&stem).await.expect("a list");
    let found: Vec<_> = found.iter().map(|(name, stats)| (name.as_str(), stats.waiting)).collect();
    let expected = [(format!("{stem}/a"), 3), (format!("{stem}/b"), 1)];
    assert!(found.iter().zip(&expected).all(|(a, b)| (a.0, a.1) == (b.0.as_str(), b.1)), "{found:?}");
    assert_eq!(found.len(), 2, "queues are listed by prefix");
    assert_eq!(queue.purge(Some(items[3].item)).await.expect("an answer"), 1, "one is removed");
    assert_eq!(queue.purge(None).await.expect("an answer"), 2, "what waits is removed");
    assert!(!queue.is_empty().await.expect("an answer"), "what is in flight is there");
    ack(setup, delivery).await;
    assert_eq!(queue.depth().await.expect("a count"), 0);
    assert!(queue.is_empty().await.expect("an answer"), "nothing is left");
    push_all(&queue, None, &["6"]).await;
    next(setup, &queue).await.fail("never").await.expect("a failure is answered");
    assert_eq!(queue.stats().await.expect("a count").dead, 1);
    assert!(queue.is_empty().await.expect("an answer"), "a dead letter does not count");
    assert_eq!(drain(setup, &other).await, ["5"], "another queue keeps its items");
}

/// What is pushed in one call stands in the order of the call, and answers come in the order of the requests.
pub async fn a_batch_is_answered_in_order(setup: &dyn Setup) {
    if queues(setup, "a_batch_is_answered_in_order").await.is_none() {
        return;
    }
    let (direct, queue, other) = (setup.direct().await, resource("batch"), resource("other"));
    let pushes: Vec<Push> = (0..20)
        .map(|number| {
            let queue = if number % 3 == 0 { &other } else { &queue };
            push_of(queue, (number % 2 == 0).then_some("g"), &number.to_string())
        })
        .collect();
    let pushed = direct.push(pushes.clone()).await;
    let mut expected: Vec<_> = pushes.iter().zip(&pushed).filter(|(push, _)| push.queue == queue).collect();
    let mut taken = BTreeMap::new();
    for _ in 0..expected.len() {
        for item in direct.take(&queue, &rules(LONG), 64).await.items {
            taken.insert(item.item, (item.payload.clone(), item.group.clone()));
            direct.settle(&queue, item.claim, Settlement::Ack).await;
        }
    }
    assert!(expected.is_sorted_by_key(|(_, pushed)| pushed.item), "a call's pushes stand in its order");
    expected.retain(|(push, pushed)| {
        taken.remove(&pushed.item).as_ref() != Some(&(push.payload.clone(), push.group.clone()))
    });
    assert!(expected.is_empty() && taken.is_empty(), "answers are out of order: {expected:?} {taken:?}");
}

/// Several processes consume while several clients push: each item is acknowledged once, and each group in order.
pub async fn processes_share_a_queue_in_order(setup: &dyn Setup) {
    const GROUPS: [usize; 2] = [1, 7];
    let items = more(45, 90);
    if queues(setup, "processes_share_a_queue_in_order").await.is_none() {
        return;
    }
    let queue = name("shared");
    let mut actors: Vec<Actor> = Vec::new();
    for _ in 0..3 {
        let mut actor = setup.actor().await;
        actor.tell(&["consume", &queue, &LONG.as_millis().to_string(), "1000"]);
        actors.push(actor);
    }
    let producers = join_all((0..2).map(|_| setup.client())).await;
    let produce = async |number: usize, client: &Tenure| {
        let queue = client.queue(&queue);
        for item in 0..items {
            let group = format!("{number}.{}", item % GROUPS[number]);
            let text = format!("{group} {item}");
            // On a busy store one of those who change a queue at once may lose again and again.
            let push = async || {
                let pushed = queue.push(&text).group(&group).dedup(&text).await;
                pushed.map_err(|error| assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}")).is_ok()
            };
            setup.eventually("a push is answered", push).await;
        }
    };
    join_all(producers.iter().enumerate().map(|(number, client)| produce(number, client))).await;
    let left = producers[0].queue(&queue);
    setup.eventually("all is acknowledged", async || left.depth().await.expect("a count") == 0).await;
    for _ in &actors {
        push_all(&left, None, &["stop"]).await;
    }
    let mut worked: BTreeMap<String, Vec<(Section, usize)>> = BTreeMap::new();
    for (number, actor) in actors.iter_mut().enumerate() {
        loop {
            let line = actor.hear("an item").await.expect("an actor lives");
            match line.split('\t').collect::<Vec<&str>>()[..] {
                ["item", "stop", ..] => {}
                ["item", payload, token, from, until] => {
                    let (group, item) = payload.split_once(' ').expect("a group and a number");
                    let number_in = |text: &str| text.parse().expect("a number");
                    let [from, until] = [from, until].map(|at| Instant::from_nanos(number_in(at)));
                    let token = Token::new(number_in(token));
                    let section = Section { client: number, token, slot: None, from, until };
                    let item = item.parse().expect("a number");
                    worked.entry(group.to_owned()).or_default().push((section, item));
                }
                ["done"] => break,
                _ => panic!("an actor consumes: {line}"),
            }
        }
    }
    assert_eq!(worked.values().map(Vec::len).sum::<usize>(), 2 * items, "each item once");
    for (group, mut worked) in worked {
        worked.sort_by_key(|(section, _)| section.token);
        assert!(worked.is_sorted_by_key(|(_, item)| *item), "group {group} is out of order: {worked:?}");
        let sections: Vec<Section> = worked.iter().map(|(section, _)| *section).collect();
        assert_eq!(overlaps(&sections), [], "two of group {group} at once");
        assert_eq!(stale_tokens(&sections), [], "a later delivery has no larger token");
    }
}

/// What was pushed and answered is there when the client that pushed it was killed, and when the consumers were.
pub async fn a_killed_client_loses_nothing(setup: &dyn Setup) {
    if queues(setup, "a_killed_client_loses_nothing").await.is_none() {
        return;
    }
    let notices = setup.capability().await.notices_death;
    let ttl = if notices { LONG } else { setup.ttl(SHORT).await };
    let (client, queue) = (setup.client().await, name("lives"));
    let queue = client.queue(&queue).ttl(ttl);
    let payloads: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    for payload in &payloads {
        push_all(&queue, Some("g"), &[payload]).await;
    }
    let name = queue_name(&queue);
    let mut acked = Vec::new();
    for (place, passes) in [("take.after", 1), ("settle.before", 2), ("settle.after", 2), ("take.before", 2)]
    {
        let mut actor = setup.actor().await;
        actor.ask(&["die", place, &passes.to_string()]).await;
        actor.tell(&["consume", &name, &ttl.as_millis().to_string(), "3"]);
        // Told of before it is acknowledged: the last one may be told again by who comes next.
        pause(Duration::from_millis(300)).await;
        actor.kill();
        while let Some(line) = poll_immediate(std::pin::pin!(actor.hear("an item"))).await.flatten() {
            acked.extend(
                line.strip_prefix("item\t").and_then(|item| item.split('\t').next()).map(str::to_owned),
            );
        }
    }
    while queue.depth().await.expect("a count") > 0 {
        let delivery = next(setup, &queue).await;
        acked.push(text(&delivery));
        ack(setup, delivery).await;
    }
    acked.dedup();
    assert_eq!(acked, payloads, "an item is lost, or comes out of order");
}

/// Whatever is asked, the engine answers as the model does: random requests to both, but for what takes time.
pub async fn it_behaves_like_the_model(setup: &dyn Setup) {
    if queues(setup, "it_behaves_like_the_model").await.is_none() {
        return;
    }
    let (direct, queue) = (setup.direct().await, name("model"));
    let client = direct.client();
    direct
        .on_queues(move |queues| Box::pin(async move { agree(queues, client, &queue, 150, false).await }))
        .await;
}
