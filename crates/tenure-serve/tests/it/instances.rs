//! Several instances on one store, and answers that are lost.

use serde_json::json;
use tenure_testkit::redis::{self, Topology};
use tenure_testkit::{TestDirectory, postgres};

use crate::http::{Serving, anywhere, new_id, until_waiting};

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
