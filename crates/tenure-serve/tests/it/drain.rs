//! How a server ends.

use std::time::Duration;

use serde_json::json;
use tenure_core::testing::busy::assert_in_time;

use crate::http::{Serving, anywhere, new_id, now, until, until_waiting};

#[test]
fn a_server_that_ends_says_so_tells_waiters_to_come_again_and_releases_nothing() {
    let mut server = Serving::memory(anywhere());
    let (holder, waiter) = (new_id(), new_id());
    let granted = server.send(&format!("PUT /v1/claims/{holder}"), &json!({"name": "a"}));
    let waits = server.begin(&format!("PUT /v1/claims/{waiter}"), &json!({"name": "a"}));
    until_waiting(&server.tenure, "a", 1);
    let began = now();
    server.control.drain();
    let ready =
        until("it is not ready", || Some(server.ask("GET /readyz")).filter(|answer| answer.status == 503));
    assert_eq!(ready.body["why"], json!(["it is about to end"]));
    assert_eq!(server.ask("GET /healthz").status, 200, "it goes on for a while");
    let told = waits.answer();
    // Long before its own wait is over.
    assert_in_time(began.elapsed(), Duration::from_secs(5));
    assert_eq!((told.status, told.header("connection")), (202, Some("close")), "{told:?}");
    server.ended();
    let view = pollster::block_on(server.tenure.view("a")).expect("a view").expect("it is held");
    assert_eq!(view.holds[0].token.get(), granted.token());
    assert_eq!(view.waiting, 1, "its place is kept");

    let next = Serving::of(server.tenure.clone(), anywhere());
    let renewed = next.send(&format!("POST /v1/claims/{holder}/renew"), &json!({"name": "a"}));
    assert_eq!((renewed.status, renewed.token()), (200, granted.token()));
    next.ask(&format!("DELETE /v1/claims/{holder}?name=a"));
    assert_eq!(next.send(&format!("PUT /v1/claims/{waiter}"), &json!({"name": "a"})).status, 200);
}
