//! Several instances on one store, and answers that are lost.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::redis::{self, Topology};
use tenure_testkit::{Loss, Proxy, TestDirectory, postgres};

use crate::http::{Serving, anywhere, new_id, now, open, until, until_waiting};

fn two(url: &str) -> (Serving, Serving) {
    (Serving::url(url, anywhere()), Serving::url(url, anywhere()))
}

fn holds_and_places_outlive_an_instance(url: &str) {
    let (one, other) = two(url);
    let (holder, waiter, name) = (new_id(), new_id(), new_id());
    let body = json!({"name": name});
    let granted = one.send(&format!("PUT /v1/claims/{holder}"), &body);
    assert_eq!(granted.status, 200, "{granted:?}");
    let waits = one.begin(&format!("PUT /v1/claims/{waiter}"), &body);
    until_waiting(&other.tenure, &name, 1);
    let late = new_id();
    let behind = other.begin(&format!("PUT /v1/claims/{late}"), &body);
    until_waiting(&other.tenure, &name, 2);
    one.kill();
    drop(waits);
    let renewed = other.send(&format!("POST /v1/claims/{holder}/renew"), &body);
    assert_eq!((renewed.status, renewed.token()), (200, granted.token()), "{renewed:?}");
    let again = other.send(&format!("PUT /v1/claims/{holder}"), &body);
    assert_eq!((again.status, again.token()), (200, granted.token()));
    let returned = other.begin(&format!("PUT /v1/claims/{waiter}"), &body);
    other.ask(&format!("DELETE /v1/claims/{holder}?name={name}"));
    let next = returned.answer();
    assert_eq!((next.status, &next.body["claim"]), (200, &json!(waiter)), "its place was kept");
    assert!(next.token() > granted.token());
    other.ask(&format!("DELETE /v1/claims/{waiter}?name={name}"));
    assert_eq!(behind.answer().status, 200);
    other.ask(&format!("DELETE /v1/claims/{late}?name={name}"));
}

#[test]
fn on_redis_holds_and_places_outlive_an_instance() {
    holds_and_places_outlive_an_instance(&redis::shared(Topology::Single));
}

#[test]
fn on_postgres_holds_and_places_outlive_an_instance() {
    holds_and_places_outlive_an_instance(&postgres::shared());
}

#[test]
fn on_redis_who_waits_at_an_instance_that_ends_is_served_in_order_at_the_other_one() {
    const WAITERS: u32 = 20;
    let (mut one, other) = two(&redis::shared(Topology::Single));
    let (holder, name) = (new_id(), new_id());
    let body = json!({"name": name});
    assert_eq!(other.send(&format!("PUT /v1/claims/{holder}"), &body).status, 200);
    let ids: Vec<String> = (0..WAITERS).map(|_| new_id()).collect();
    let put = |id: &String| format!("PUT /v1/claims/{id}");
    let begun = (1..).zip(&ids).map(|(count, id)| {
        let waits = one.begin(&put(id), &body);
        until_waiting(&other.tenure, &name, count);
        waits
    });
    let waits: Vec<_> = begun.collect();
    one.control.drain();
    assert!(waits.into_iter().all(|waits| waits.answer().status == 202));
    one.ended();
    let mut last = holder;
    // Each is told 202 or granted, and never that its id is used up.
    let waits: Vec<_> = ids.iter().map(|id| other.begin(&put(id), &body)).collect();
    for (waits, id) in waits.into_iter().zip(ids) {
        other.ask(&format!("DELETE /v1/claims/{last}?name={name}"));
        let granted = waits.answer();
        assert_eq!((granted.status, &granted.body["claim"]), (200, &json!(id)), "{granted:?}");
        last = id;
    }
    other.ask(&format!("DELETE /v1/claims/{last}?name={name}"));
}

#[test]
fn what_lives_in_another_instance_is_said_to() {
    let directory = TestDirectory::new();
    let (one, other) = two(&format!("local:{}", directory.path().display()));
    let id = new_id();
    let granted = one.send(&format!("PUT /v1/claims/{id}"), &json!({"name": "a"}));
    assert_eq!((granted.status, &granted.body["bound_to"]), (200, &json!("this instance")));
    for (request, body) in [
        (format!("POST /v1/claims/{id}/renew"), json!({"name": "a"})),
        (format!("PUT /v1/claims/{id}"), json!({"name": "a"})),
    ] {
        let elsewhere = other.send(&request, &body);
        assert_eq!((elsewhere.status, elsewhere.kind()), (421, "elsewhere"), "{elsewhere:?}");
    }
}

#[test]
fn on_redis_a_client_whose_answers_are_lost_repeats_and_has_one_grant() {
    let server = Serving::url(&redis::shared(Topology::Single), anywhere());
    let proxy = Proxy::start(server.address);
    let by_proxy = SocketAddr::from(([127, 0, 0, 1], proxy.port()));
    let (id, name) = (new_id(), new_id());
    let body = json!({"name": name});
    // Each request arrives, and its answer does not.
    let lose = |request: &str, body: Option<&Value>| {
        proxy.lose_replies(1, id.as_bytes(), Loss::Cut);
        let mut stream = open(by_proxy, request, "", body);
        let mut said = Vec::new();
        stream.read_to_end(&mut said).ok();
        assert_eq!(said, b"", "the answer is lost");
    };
    let put = format!("PUT /v1/claims/{id}");
    lose(&put, Some(&body));
    lose(&put, Some(&body));
    let granted = server.send(&put, &body);
    assert_eq!(granted.status, 200);
    let view = pollster::block_on(server.tenure.view(&name)).expect("a view").expect("it is held");
    assert_eq!((view.holds.len(), view.waiting), (1, 0));
    assert_eq!(view.holds[0].token.get(), granted.token());
    lose(&format!("POST /v1/claims/{id}/renew"), Some(&body));
    lose(&format!("DELETE /v1/claims/{id}?name={name}"), None);
    let released = server.ask(&format!("DELETE /v1/claims/{id}?name={name}"));
    assert_eq!((released.status, &released.body), (200, &json!({"released": false})));
    assert_eq!(server.send(&put, &body).kind(), "finished");
}

/// The shared Redis behind a proxy, and a server that reaches it that way only.
fn by_proxy(url: &str) -> (Proxy, Serving) {
    let port: u16 =
        url.rsplit(':').next().and_then(|port| port.trim_end_matches('/').parse().ok()).expect("a port");
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], port)));
    let server = Serving::url(&format!("redis://127.0.0.1:{}", proxy.port()), anywhere());
    (proxy, server)
}

/// By itself each keeps its place for 15 s after it was heard of last, and all that are granted meanwhile keep the next one waiting.
#[test]
fn claims_that_are_left_while_redis_is_silent_are_withdrawn_when_it_answers() {
    const CROWD: u32 = 20;
    let url = redis::shared(Topology::Single);
    let ((proxy, server), other) = (by_proxy(&url), Serving::url(&url, anywhere()));
    let (holder, name) = (new_id(), new_id());
    let body = json!({"name": name, "linger_ms": 500});
    assert_eq!(other.send(&format!("PUT /v1/claims/{holder}"), &body).status, 200);
    let crowd: Vec<_> =
        (0..CROWD).map(|_| server.begin(&format!("PUT /v1/claims/{}", new_id()), &body)).collect();
    until_waiting(&other.tenure, &name, CROWD);
    proxy.drop_requests();
    let began = now();
    drop(crowd);
    until("the store was asked in vain", || (began.elapsed() > Duration::from_secs(4)).then_some(()));
    proxy.heal();
    proxy.cut();
    until_waiting(&other.tenure, &name, 0);
    assert_in_time(began.elapsed(), Duration::from_secs(9));
}

#[test]
fn a_redis_that_is_silent_is_told_in_time_and_the_same_request_is_good_later() {
    let url = redis::shared(Topology::Single);
    let (proxy, server) = by_proxy(&url);
    let other = Serving::url(&url, anywhere());
    let (id, name) = (new_id(), new_id());
    let (put, body) = (format!("PUT /v1/claims/{id}"), json!({"name": name}));
    // What is asked arrives, on connections that there are, and is not answered.
    let warm = new_id();
    assert_eq!(server.send(&format!("PUT /v1/claims/{warm}"), &json!({"name": warm})).status, 200);
    proxy.drop_replies();
    let began = now();
    for request in [put.clone(), format!("POST /v1/claims/{id}/renew")] {
        let silent = server.send(&request, &body);
        assert_eq!((silent.status, silent.kind()), (503, "unavailable"), "{silent:?}");
        assert_eq!(silent.body["resource"], name);
    }
    assert_in_time(began.elapsed(), Duration::from_secs(10));
    proxy.heal();
    proxy.cut();
    // The claim was not withdrawn: another instance may have answered by now. The same request finds it.
    let held =
        pollster::block_on(other.tenure.view(&name)).expect("a view").expect("what was asked has arrived");
    let granted = until("an answer", || Some(server.send(&put, &body)).filter(|answer| answer.status != 503));
    assert_eq!((granted.status, granted.token()), (200, held.holds[0].token.get()), "{granted:?}");
    let elsewhere = other.send(&put, &body);
    assert_eq!((elsewhere.status, elsewhere.token()), (200, granted.token()));
}
