//! Queues over HTTP.

use serde_json::{Value, json};
use tenure_testkit::{TestDirectory, postgres};

use crate::access::{Tokens, bearer, made};
use crate::http::{Answer, Serving, anywhere, new_id, until};

fn push(server: &Serving, queue: &str, items: &Value) -> Answer {
    server.send("POST /v1/queue/push", &json!({"queue": queue, "items": items}))
}

/// Takes what is ready.
fn take(server: &Serving, queue: &str, more: &Value) -> Answer {
    let mut body = json!({"queue": queue, "poll_ms": 0});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    server.send("POST /v1/queue/take", &body)
}

fn settle(server: &Serving, item: &Value, act: &str, body: &Value) -> Answer {
    let claim = item["claim"].as_str().expect("a claim");
    server.send(&format!("POST /v1/deliveries/{claim}/{act}"), body)
}

fn state(answer: &Answer) -> (u16, &str) {
    (answer.status, answer.body["state"].as_str().unwrap_or_default())
}

#[test]
fn items_are_pushed_taken_kept_and_settled() {
    let server = Serving::memory(anywhere());
    let pushed = push(
        &server,
        "refunds",
        &json!([
            {"payload": "order 1", "group": "m", "context": "trace", "dedup": "1"},
            {"payload_base64": "/wA=", "group": "m"},
            {"payload": "order 1", "dedup": "1"},
        ]),
    );
    assert_eq!(pushed.status, 200, "{pushed:?}");
    assert_eq!(pushed.body[0]["item"], pushed.body[2]["item"]);
    let duplicates: Vec<_> = (0..3).map(|at| pushed.body[at]["is_duplicate"].as_bool()).collect();
    assert_eq!(duplicates, [Some(false), Some(false), Some(true)]);

    let taken = take(&server, "refunds", &json!({"max": 16}));
    assert_eq!(
        (taken.status, taken.body.as_array().map(Vec::len)),
        (200, Some(1)),
        "one of a group at a time"
    );
    let item = &taken.body[0];
    assert_eq!(
        (&item["payload"], &item["group"], &item["context"]),
        (&json!("order 1"), &json!("m"), &json!("trace"))
    );
    assert_eq!((&item["attempt"], &item["item"]), (&json!(1), &pushed.body[0]["item"]));
    assert!(item["token"].as_u64().is_some_and(|token| token > 0));
    assert!(item["expires_in_ms"].as_u64().is_some_and(|left| (1..=29_698).contains(&left)), "{item}");
    assert_eq!(take(&server, "refunds", &json!({})).status, 204, "nothing is ready");

    let kept = settle(&server, item, "renew", &json!({"queue": "refunds"}));
    assert_eq!(state(&kept), (200, "held"));
    let other = settle(&server, item, "ack", &json!({"queue": "others"}));
    assert_eq!((other.status, other.kind()), (410, "lost"), "it is of another queue");
    assert_eq!(state(&settle(&server, item, "ack", &json!({"queue": "refunds"}))), (200, "settled"));
    let again = settle(&server, item, "ack", &json!({"queue": "refunds"}));
    assert_eq!((again.status, again.kind()), (410, "lost"));

    let next = take(&server, "refunds", &json!({})).body[0].clone();
    assert_eq!(next["payload_base64"], "/wA=");
    let retried =
        settle(&server, &next, "retry", &json!({"queue": "refunds", "after_ms": 0, "reason": "no answer"}));
    assert_eq!(state(&retried), (200, "settled"));
    let next = take(&server, "refunds", &json!({})).body[0].clone();
    assert_eq!(next["attempt"], 2);
    assert_eq!(state(&settle(&server, &next, "return", &json!({"queue": "refunds"}))), (200, "settled"));
    let next = take(&server, "refunds", &json!({})).body[0].clone();
    assert_eq!(next["attempt"], 2, "it was given back as if it had not been taken");
    let last = json!({"queue": "refunds", "attempts_max": 2, "reason": "no such order"});
    assert_eq!(state(&settle(&server, &next, "retry", &last)), (200, "buried"));

    let dead = server.ask("GET /v1/queue/items?queue=refunds&which=dead");
    assert_eq!(
        (&dead.body["items"][0]["state"], &dead.body["items"][0]["reason"]),
        (&json!("dead"), &json!("no such order"))
    );
    let all = json!({"queue": "refunds", "all": true});
    assert_eq!(server.send("POST /v1/queue/replay", &all).body, json!({"count": 1}));
    let next = take(&server, "refunds", &json!({})).body[0].clone();
    assert_eq!(
        state(&settle(&server, &next, "fail", &json!({"queue": "refunds", "reason": "never"}))),
        (200, "settled")
    );
    let purge = json!({"queue": "refunds", "all": true, "which": "dead"});
    assert_eq!(server.send("POST /v1/queue/purge", &purge).body, json!({"count": 1}));
    assert_eq!(server.ask("GET /v1/queue/items?queue=refunds").body, json!({"items": []}));
}

#[test]
fn who_waits_is_served_and_who_goes_away_takes_nothing() {
    // One waits at a time, so that is seen when it has gone.
    let server = Serving::memory(anywhere().waiting_max(1));
    let wait = json!({"queue": "q", "max": 4});
    let waits = server.begin("POST /v1/queue/take", &wait);
    push(&server, "q", &json!([{"payload": "a"}]));
    let taken = waits.answer();
    assert_eq!((taken.status, &taken.body[0]["payload"]), (200, &json!("a")));
    settle(&server, &taken.body[0], "ack", &json!({"queue": "q"}));
    let short = json!({"queue": "q", "poll_ms": 1});
    let status = || server.send("POST /v1/queue/take", &short).status;
    let gone = until("somebody who waits", || {
        let waits = server.begin("POST /v1/queue/take", &wait);
        (status() == 503).then_some(waits)
    });
    drop(gone);
    until("nobody who waits", || (status() == 204).then_some(()));
    push(&server, "q", &json!([{"payload": "b"}, {"payload": "c"}, {"payload": "d"}]));
    let taken = take(&server, "q", &json!({"max": 16}));
    let items: Vec<_> = taken.body.as_array().expect("items").iter().collect();
    assert_eq!(items.len(), 3, "{taken:?}");
    assert!(items.iter().all(|item| item["attempt"] == 1));
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_done() {
    let server = Serving::memory(anywhere());
    let claim = new_id();
    let many: Vec<Value> = (0..129).map(|_| json!({"payload": ""})).collect();
    for (request, body, says) in [
        ("POST /v1/queue/push", json!({"queue": "q", "items": []}), "1 to 128"),
        ("POST /v1/queue/push", json!({"queue": "q", "items": many}), "129 items"),
        ("POST /v1/queue/push", json!({"queue": "q", "items": [{"payload": "a"}, {}]}), "either `payload`"),
        ("POST /v1/queue/push", json!({"queue": "q", "items": [{"payload": "a", "delay": 1}]}), "delay"),
        ("POST /v1/queue/take", json!({"queue": "q", "max": 17}), "1 to 16"),
        ("POST /v1/queue/take", json!({"queue": "q", "poll_ms": 50_001}), "at most 50000"),
        ("POST /v1/queue/take", json!({"queue": "q", "interval_of": "group"}), "interval_ms"),
        ("POST /v1/queue/purge", json!({"queue": "q", "all": true}), "which"),
        ("POST /v1/queue/purge", json!({"queue": "q", "which": "live"}), "all"),
        ("POST /v1/queue/replay", json!({"queue": "q", "item": 1, "all": true}), "either"),
    ] {
        let answer = server.send(request, &body);
        assert_eq!((answer.status, answer.kind()), (400, "invalid"), "{request} {body}");
        let detail = answer.body["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(says), "{request} {body}: {detail}");
    }
    let ack = server.send(&format!("POST /v1/deliveries/{claim}/ack"), &json!({"queue": "q", "reason": "x"}));
    assert_eq!((ack.status, ack.kind()), (400, "invalid"));
    let other = server.send(&format!("POST /v1/deliveries/{claim}/eat"), &json!({"queue": "q"}));
    assert_eq!((other.status, other.kind()), (404, "not_found"));
    assert_eq!(server.ask("GET /v1/queue/items?queue=q").body, json!({"items": []}), "nothing was pushed");
    assert_eq!(server.ask("GET /v1/queues?limit=501").status, 400);
}

#[test]
fn payloads_and_queues_are_shown_to_who_may_see_them() {
    let (reader, first) = made("reader", &["read refunds", "push refunds", "push other"]);
    let (clerk, second) = made("clerk", &["read", "payload refunds"]);
    let tokens = Tokens::new(&(first + "\n" + &second));
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    for queue in ["refunds", "other"] {
        let body = json!({"queue": queue, "items": [{"payload": "secret"}]});
        assert_eq!(server.send_with("POST /v1/queue/push", &bearer(&reader), &body).status, 200);
    }
    let see = |path: &str, who| server.send_with(&format!("GET {path}"), &bearer(who), &Value::Null);
    let shown = see("/v1/queue/items?queue=refunds", &clerk);
    assert_eq!(shown.body["items"][0]["payload"], "secret");
    let hidden = see("/v1/queue/items?queue=refunds", &reader);
    assert_eq!(
        (&hidden.body["items"][0]["payload"], &hidden.body["items"][0]["bytes"]),
        (&Value::Null, &json!(6))
    );
    assert!(see("/v1/queue/items?queue=other", &clerk).body["items"][0]["payload"].is_null());
    assert_eq!(see("/v1/queue/items?queue=other", &reader).status, 403);
    let names = |answer: &Answer| {
        let queues = answer.body["queues"].as_array().expect("a list").iter();
        queues.map(|queue| queue["queue"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&see("/v1/queues", &clerk)), ["other", "refunds"]);
    assert_eq!(names(&see("/v1/queues?prefix=r", &clerk)), ["refunds"]);
    assert_eq!(names(&see("/v1/queues?after=other&limit=1", &clerk)), ["refunds"]);
    assert_eq!(names(&see("/v1/queues", &reader)), ["refunds"], "what it may not read is left out");
    let purge = json!({"queue": "refunds", "all": true, "which": "live"});
    assert_eq!(server.send_with("POST /v1/queue/purge", &bearer(&clerk), &purge).status, 403);
}

#[test]
fn a_delivery_outlives_the_instance_that_handed_it_out() {
    let url = postgres::shared();
    let (one, other) = (Serving::url(&url, anywhere()), Serving::url(&url, anywhere()));
    let queue = new_id();
    push(&one, &queue, &json!([{"payload": "a"}]));
    let item = take(&one, &queue, &json!({})).body[0].clone();
    one.kill();
    assert_eq!(state(&settle(&other, &item, "renew", &json!({"queue": queue}))), (200, "held"));
    assert_eq!(state(&settle(&other, &item, "ack", &json!({"queue": queue}))), (200, "settled"));
}

#[test]
fn an_instance_that_cannot_have_it_says_so() {
    let directory = TestDirectory::new();
    let url = format!("local:{}", directory.path().display());
    let (one, other) = (Serving::url(&url, anywhere()), Serving::url(&url, anywhere()));
    push(&one, "q", &json!([{"payload": "a"}]));
    let item = take(&one, "q", &json!({})).body[0].clone();
    let elsewhere = settle(&other, &item, "renew", &json!({"queue": "q"}));
    assert_eq!((elsewhere.status, elsewhere.kind()), (421, "elsewhere"), "{elsewhere:?}");
    assert_eq!(state(&settle(&one, &item, "ack", &json!({"queue": "q"}))), (200, "settled"));
}
