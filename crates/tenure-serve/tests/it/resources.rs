//! Looking at locks, and acting on them, over HTTP.

use serde_json::{Value, json};

use crate::access::{Tokens, bearer, made};
use crate::http::{Answer, Serving, anywhere, new_id};

fn hold(server: &Serving, body: &Value) -> Answer {
    let held = server.send(&format!("PUT /v1/claims/{}", new_id()), body);
    assert_eq!(held.status, 200, "{held:?}");
    held
}

#[test]
fn a_lock_and_its_leader_are_shown() {
    let server = Serving::memory(anywhere());
    let held = hold(&server, &json!({"name": "a", "label": "night run"}));
    let claim = held.body["claim"].as_str().expect("a claim").to_owned();
    let waits = server.send(&format!("PUT /v1/claims/{}", new_id()), &json!({"name": "a", "poll_ms": 0}));
    assert_eq!(waits.status, 202);
    let value = json!({"name": "a", "value": "10.0.0.1:80"});
    assert_eq!(server.send(&format!("PUT /v1/claims/{claim}/value"), &value).status, 204);
    let shown = server.ask("GET /v1/resource?name=a");
    assert_eq!(
        (shown.status, &shown.body["kind"], &shown.body["waiting"]),
        (200, &json!("mutex"), &json!(1))
    );
    let shown_hold = &shown.body["holds"][0];
    assert_eq!((&shown_hold["claim"], &shown_hold["token"]), (&json!(claim), &json!(held.token())));
    assert_eq!(shown_hold["holder"]["text"], "night run");
    assert!(shown.body["waiters"][0]["claim"].is_string());
    let leader = server.ask("GET /v1/leader?name=a");
    assert_eq!((&leader.body["token"], &leader.body["value"]), (&json!(held.token()), &json!("10.0.0.1:80")));
    for path in ["/v1/resource?name=b", "/v1/leader?name=b"] {
        assert_eq!(server.ask(&format!("GET {path}")).kind(), "not_found", "{path}");
    }
    assert_eq!(server.ask("GET /v1/resource?name=").kind(), "invalid");
}

#[test]
fn locks_are_listed_as_asked_for() {
    let server = Serving::memory(anywhere());
    for name in ["b/2", "a/1", "b/1", "b/3"] {
        hold(&server, &json!({"name": name}));
    }
    let waits = server.send(&format!("PUT /v1/claims/{}", new_id()), &json!({"name": "b/2", "poll_ms": 0}));
    assert_eq!(waits.status, 202);
    let names = |query: &str| {
        let listed = server.ask(&format!("GET /v1/resources{query}"));
        assert_eq!(listed.status, 200, "{query}: {listed:?}");
        let resources = listed.body["resources"].as_array().expect("a list").iter();
        resources
            .map(|one| one["resource"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    // The survey is young, and handed to all.
    assert_eq!(names(""), "a/1 b/1 b/2 b/3");
    assert_eq!(names("?prefix=b/&after=b%2F1&limit=1"), "b/2");
    assert_eq!(names("?sort=waiting&limit=1"), "b/2");
    assert_eq!(names("?held_longer_ms=3600000"), "");
    for wrong in ["?limit=0", "?sort=age", "?sort=held&after=a", "?held=1"] {
        assert_eq!(server.ask(&format!("GET /v1/resources{wrong}")).kind(), "invalid", "{wrong}");
    }
}

#[test]
fn an_operator_ends_a_hold_and_resizes() {
    let server = Serving::memory(anywhere());
    let held = hold(&server, &json!({"name": "a"}));
    let end = |token: u64, now: bool| {
        server.send("POST /v1/resource/break", &json!({"name": "a", "token": token, "now": now}))
    };
    assert_eq!(end(held.token() + 1, false).kind(), "not_found");
    let broken = end(held.token(), false);
    assert_eq!((broken.status, &broken.body["state"]), (200, &json!("broken")));
    assert!(
        broken.body["free_in_ms"].as_u64().is_some_and(|free_in| free_in > 10_000),
        "its work may stop first"
    );
    assert_eq!(end(held.token(), false).body["state"], "resting");
    assert_eq!(end(held.token(), true).body["free_in_ms"], 0);
    hold(&server, &json!({"name": "a", "wait": false}));

    hold(&server, &json!({"name": "s", "kind": "semaphore", "capacity": 1}));
    let resize = |body: &Value| server.send("POST /v1/resource/resize", body);
    assert_eq!(resize(&json!({"name": "s", "capacity": 2})).status, 204);
    hold(&server, &json!({"name": "s", "kind": "semaphore", "capacity": 2, "wait": false}));
    assert_eq!(resize(&json!({"name": "s", "capacity": 0})).kind(), "invalid");
    assert_eq!(resize(&json!({"name": "a", "capacity": 2})).kind(), "invalid", "a mutex has one unit");
    let findings = server.ask("GET /v1/doctor");
    assert_eq!(findings.status, 200);
    assert!(findings.body["findings"].as_array().is_some_and(|all| !all.is_empty()), "{findings:?}");
}

#[test]
fn ids_and_acts_are_for_operators_of_that_name() {
    let (reader, first) = made("reader", &["read a", "claim a", "operate =a/mine"]);
    let (operator, second) = made("operator", &["read", "operate"]);
    let tokens = Tokens::new(&(first + "\n" + &second));
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    let put = |name: &str| {
        let body = json!({"name": name});
        let held = server.send_with(&format!("PUT /v1/claims/{}", new_id()), &bearer(&reader), &body);
        assert_eq!(held.status, 200, "{held:?}");
        held.token()
    };
    let token = put("a/1");
    put("a/mine");
    let _other = pollster::block_on(server.tenure.mutex("b").acquire()).expect("it is free");
    let see = |path: &str, who| server.send_with(&format!("GET {path}"), &bearer(who), &Value::Null);
    let id = |path: &str, who| see(path, who).body["holds"][0]["claim"].is_string();
    assert!(!id("/v1/resource?name=a%2F1", &reader), "whoever has an id can release it");
    assert!(id("/v1/resource?name=a%2Fmine", &reader) && id("/v1/resource?name=a%2F1", &operator));
    assert_eq!(see("/v1/resource?name=b", &reader).status, 403);
    assert_eq!(see("/v1/leader?name=b", &reader).status, 403);
    let count = |who| see("/v1/resources", who).body["resources"].as_array().map(Vec::len);
    assert_eq!((count(&reader), count(&operator)), (Some(2), Some(3)), "what it may not read is left out");
    assert_eq!((see("/v1/doctor", &reader).status, see("/v1/doctor", &operator).status), (403, 200));
    let end = |who| {
        let body = json!({"name": "a/1", "token": token, "now": true});
        server.send_with("POST /v1/resource/break", &bearer(who), &body).status
    };
    assert_eq!((end(&reader), end(&operator)), (403, 200));
    let resize = json!({"name": "a/1", "capacity": 2});
    assert_eq!(server.send_with("POST /v1/resource/resize", &bearer(&reader), &resize).status, 403);
    let nobody = server.ask("GET /v1/resources");
    assert_eq!(nobody.status, 401);
}
