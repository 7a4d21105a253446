//! Claims that wait, and clients that go away.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_core::Settings;
use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::redis::{self, Topology};
use tenure_testkit::{TestDirectory, postgres};

use crate::http::{Serving, anywhere, new_id, now, open, text_of, until, until_waiting};
use crate::metrics::number;

fn put(id: &str) -> String {
    format!("PUT /v1/claims/{id}")
}

fn delete(id: &str, name: &str) -> String {
    format!("DELETE /v1/claims/{id}?name={name}")
}

/// A server on a store where claims live with the client that made them.
fn local(directory: &TestDirectory) -> Serving {
    Serving::url(&format!("local:{}", directory.path().display()), anywhere())
}

#[test]
fn a_waiter_gets_the_lock_as_soon_as_it_is_released() {
    let server = Serving::memory(anywhere());
    let (first, second) = (new_id(), new_id());
    let token = server.send(&put(&first), &json!({"name": "a"})).token();
    let waits = server.begin(&put(&second), &json!({"name": "a"}));
    until_waiting(&server.tenure, "a", 1);
    server.ask(&delete(&first, "a"));
    let granted = waits.answer();
    assert_eq!((granted.status, &granted.body["claim"]), (200, &json!(second)));
    assert!(granted.token() > token);
    // It was confirmed before it was answered: it lives for its ttl, and not for the confirm window.
    let ends_in =
        pollster::block_on(server.tenure.view("a")).expect("a view").expect("it is held").holds[0].ends_in;
    assert!(ends_in > Duration::from_secs(10), "{ends_in:?}");
}

#[test]
fn who_asks_again_in_time_keeps_its_place() {
    let server = Serving::memory(anywhere());
    let (holder, early, late) = (new_id(), new_id(), new_id());
    server.send(&put(&holder), &json!({"name": "a"}));
    let poll = |id: &str, poll_ms: u64| server.send(&put(id), &json!({"name": "a", "poll_ms": poll_ms}));
    let waiting = poll(&early, 0);
    assert_eq!((waiting.status, &waiting.body["state"]), (202, &json!("waiting")), "{waiting:?}");
    assert_eq!((&waiting.body["position"], &waiting.body["place_kept_ms"]), (&json!(1), &json!(15_000)));
    assert_eq!(poll(&late, 0).body["position"], 2);
    assert_eq!(poll(&early, 20).body["position"], 1, "the same place");
    server.ask(&delete(&holder, "a"));
    assert_eq!(poll(&late, 20).status, 202);
    assert_eq!(poll(&early, 1000).status, 200);
    server.ask(&delete(&early, "a"));
    assert_eq!(poll(&late, 1000).status, 200);
}

#[test]
fn a_later_request_takes_the_claim_over_from_an_earlier_one() {
    let server = Serving::memory(anywhere());
    let (holder, waiter) = (new_id(), new_id());
    server.send(&put(&holder), &json!({"name": "a"}));
    let body = json!({"name": "a"});
    let first = server.begin(&put(&waiter), &body);
    until_waiting(&server.tenure, "a", 1);
    let second = server.begin(&put(&waiter), &body);
    let began = now();
    assert_eq!(first.answer().status, 202, "it has let go");
    assert_in_time(began.elapsed(), Duration::from_secs(2));
    until_waiting(&server.tenure, "a", 1);
    server.ask(&delete(&holder, "a"));
    assert_eq!(second.answer().status, 200);
}

#[test]
fn a_waiter_that_is_released_leaves_its_place() {
    let server = Serving::memory(anywhere());
    let (holder, waiter) = (new_id(), new_id());
    server.send(&put(&holder), &json!({"name": "a"}));
    let waits = server.begin(&put(&waiter), &json!({"name": "a"}));
    until_waiting(&server.tenure, "a", 1);
    assert_eq!(server.ask(&delete(&waiter, "a")).body, json!({"released": true}));
    until_waiting(&server.tenure, "a", 0);
    assert_eq!(waits.answer().status, 202);
    assert_eq!(server.send(&put(&waiter), &json!({"name": "a"})).kind(), "finished");
}

#[test]
fn a_client_that_vanishes_may_come_back_and_is_withdrawn_if_it_does_not() {
    let directory = TestDirectory::new();
    let server = local(&directory);
    let (holder, gone, back, last) = (new_id(), new_id(), new_id(), new_id());
    server.send(&put(&holder), &json!({"name": "a"}));
    let body = |linger_ms: u64| json!({"name": "a", "linger_ms": linger_ms});
    let vanishes = server.begin(&put(&gone), &body(300));
    until_waiting(&server.tenure, "a", 1);
    let returns = server.begin(&put(&back), &body(15_000));
    until_waiting(&server.tenure, "a", 2);
    let waits = server.begin(&put(&last), &body(300));
    until_waiting(&server.tenure, "a", 3);
    drop(vanishes);
    drop(returns);
    // The first one is withdrawn when its time is over, and the second one has its place.
    until_waiting(&server.tenure, "a", 2);
    let returned = server.begin(&put(&back), &body(15_000));
    let began = now();
    server.ask(&delete(&holder, "a"));
    let granted = returned.answer();
    assert_eq!((granted.status, &granted.body["claim"]), (200, &json!(back)));
    assert_in_time(began.elapsed(), Duration::from_secs(2));
    assert_eq!(server.send(&put(&gone), &body(300)).kind(), "finished");
    server.ask(&delete(&back, "a"));
    assert_eq!(waits.answer().status, 200);
}

#[test]
fn who_renews_what_it_was_granted_after_its_connection_had_ended_keeps_it() {
    let directory = TestDirectory::new();
    let server = local(&directory);
    let (holder, gone) = (new_id(), new_id());
    server.send(&put(&holder), &json!({"name": "a"}));
    let waits = server.begin(&put(&gone), &json!({"name": "a", "linger_ms": 500}));
    until_waiting(&server.tenure, "a", 1);
    drop(waits);
    server.ask(&delete(&holder, "a"));
    let renew = || server.send(&format!("POST /v1/claims/{gone}/renew"), &json!({"name": "a"}));
    let held = until("it is granted", || Some(renew()).filter(|answer| answer.status == 200));
    let began = now();
    until("longer than it lingers", || (began.elapsed() > Duration::from_millis(1500)).then_some(()));
    let still = renew();
    assert_eq!((still.status, still.token()), (200, held.token()), "two would hold: {still:?}");
}

/// A crowd is cut at once, and all the server knows of it is that its connections have ended.
fn a_crowd_that_vanishes_does_not_hold_up_the_next_one(url: &str) {
    let connecting = tenure::connect_with(url, Settings::new().counts(true));
    let server = Serving::of(pollster::block_on(connecting).expect("a store"), anywhere());
    const CROWD: u32 = 200;
    let (holder, last, name) = (new_id(), new_id(), new_id());
    let body = json!({"name": name});
    server.send(&put(&holder), &body);
    let crowd: Vec<_> = (0..CROWD).map(|_| server.begin(&put(&new_id()), &body)).collect();
    until_waiting(&server.tenure, &name, CROWD);
    let waits = server.begin(&put(&last), &body);
    until_waiting(&server.tenure, &name, CROWD + 1);
    let began = now();
    drop(crowd);
    // Who is granted before that is known, and was kept in its place by the server a moment before, holds for its ttl.
    until("the server knows", || {
        let page = text_of(&mut open(server.address, "GET /metrics", "", None)).1;
        (number(&page, r#"tenure_http_open{what="waiting"}"#) == 1.0).then_some(())
    });
    assert_eq!(server.ask(&delete(&holder, &name)).status, 200);
    let granted = waits.answer();
    let view = pollster::block_on(server.tenure.view(&name));
    assert_eq!(granted.status, 200, "{granted:?} {view:?}");
    // For all of them together: as long as one of them may come back, and no confirm window.
    assert_in_time(began.elapsed(), Duration::from_millis(3500));
    server.ask(&delete(&last, &name));
    let view = pollster::block_on(server.tenure.view(&name)).expect("a view");
    assert!(view.is_none_or(|view| view.holds.is_empty() && view.waiting == 0), "nothing is left");
}

#[test]
fn on_local_a_crowd_that_vanishes_does_not_hold_up_the_next_one() {
    let directory = TestDirectory::new();
    a_crowd_that_vanishes_does_not_hold_up_the_next_one(&format!("local:{}", directory.path().display()));
}

#[test]
fn on_redis_a_crowd_that_vanishes_does_not_hold_up_the_next_one() {
    a_crowd_that_vanishes_does_not_hold_up_the_next_one(&redis::shared(Topology::Single));
}

#[test]
fn on_postgres_a_crowd_that_vanishes_does_not_hold_up_the_next_one() {
    a_crowd_that_vanishes_does_not_hold_up_the_next_one(&postgres::shared());
}

#[test]
fn on_redis_who_has_come_back_at_another_instance_is_not_withdrawn_by_the_first() {
    let url = redis::shared(Topology::Single);
    let (one, other) = (Serving::url(&url, anywhere()), Serving::url(&url, anywhere()));
    let name = new_id();
    let body = json!({"name": name, "linger_ms": 5000});
    // One that waits on there, and one that holds there what it was granted while it was gone.
    let (holder, waits_on, holds) = (new_id(), new_id(), new_id());
    one.send(&put(&holder), &body);
    let gone = one.begin(&put(&holds), &body);
    until_waiting(&other.tenure, &name, 1);
    let also_gone = one.begin(&put(&waits_on), &body);
    until_waiting(&other.tenure, &name, 2);
    drop((gone, also_gone));
    let back = other.begin(&put(&waits_on), &body);
    one.ask(&delete(&holder, &name));
    let renew = || other.send(&format!("POST /v1/claims/{holds}/renew"), &json!({"name": name}));
    let held = until("it is granted", || Some(renew()).filter(|answer| answer.status == 200));
    let began = now();
    until("longer than it lingers", || (began.elapsed() > Duration::from_millis(6500)).then_some(()));
    let still = renew();
    assert_eq!((still.status, still.token()), (200, held.token()), "two would hold: {still:?}");
    until_waiting(&other.tenure, &name, 1);
    other.ask(&delete(&holds, &name));
    assert_eq!(back.answer().status, 200);
    other.ask(&delete(&waits_on, &name));
}

#[test]
fn a_hold_of_a_client_that_vanishes_ends_at_its_ttl_and_not_before() {
    let server = Serving::memory(anywhere());
    let (holder, waiter) = (new_id(), new_id());
    let granted = server.send(&put(&holder), &json!({"name": "a", "ttl_ms": 1000}));
    let sent = now();
    assert_eq!(granted.status, 200);
    let next = server.send(&put(&waiter), &json!({"name": "a"}));
    assert_eq!(next.status, 200);
    assert!(sent.elapsed() > Duration::from_millis(900), "{:?}", sent.elapsed());
}

#[test]
fn one_client_waits_for_the_value_that_another_one_loads() {
    let server = Serving::memory(anywhere());
    let (loader, reader) = (new_id(), new_id());
    let body = json!({"name": "price", "unless_fresh": true});
    server.send(&put(&loader), &body);
    let waits = server.begin(&put(&reader), &body);
    until_waiting(&server.tenure, "price", 1);
    let value = json!({"name": "price", "value_base64": "/wA=", "fresh_ms": 60_000});
    assert_eq!(server.send(&format!("{}/value", put(&loader)), &value).status, 204);
    let fresh = waits.answer();
    assert_eq!(
        (&fresh.body["state"], &fresh.body["value_base64"]),
        (&json!("fresh"), &json!("/wA=")),
        "{fresh:?}"
    );
}

#[test]
fn too_many_that_wait_are_sent_away() {
    let server = Serving::memory(anywhere().waiting_max(2));
    let body = json!({"name": "a"});
    server.send(&put(&new_id()), &body);
    let waits: Vec<_> = (0..2).map(|_| server.begin(&put(&new_id()), &body)).collect();
    until_waiting(&server.tenure, "a", 2);
    let refused = server.send(&put(&new_id()), &body);
    assert_eq!(
        (refused.status, refused.kind(), refused.header("retry-after")),
        (503, "overloaded", Some("1"))
    );
    assert_eq!(
        server.send(&put(&new_id()), &json!({"name": "b", "wait": false})).status,
        200,
        "who does not wait may"
    );
    drop(waits);
    let free = until("a place", || {
        let answer = server.send(&put(&new_id()), &json!({"name": "b", "poll_ms": 0}));
        (answer.status != 503).then_some(answer)
    });
    assert_ne!(free.body, Value::Null);
}

#[test]
fn on_redis_where_another_instance_may_have_it_a_place_is_withdrawn_too_and_its_id_is_used_up() {
    let server = Serving::url(&redis::shared(Topology::Single), anywhere());
    let (holder, waiter, name) = (new_id(), new_id(), new_id());
    assert_eq!(server.send(&put(&holder), &json!({"name": name})).status, 200);
    let gone = server.begin(&put(&waiter), &json!({"name": name, "linger_ms": 100}));
    until_waiting(&server.tenure, &name, 1);
    drop(gone);
    let began = now();
    until_waiting(&server.tenure, &name, 0);
    // Its place would lapse after 15 s.
    assert_in_time(began.elapsed(), Duration::from_secs(2));
    assert_eq!(server.send(&put(&waiter), &json!({"name": name, "poll_ms": 1})).kind(), "finished");
    server.ask(&delete(&holder, &name));
}
