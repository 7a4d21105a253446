//! Claims that do not wait: their answers, their ids, their kinds.

use serde_json::{Value, json};

use crate::http::{Serving, anywhere, new_id};

#[test]
fn a_claim_is_granted_renewed_and_released() {
    let server = Serving::memory(anywhere());
    let id = new_id();
    let granted = server.send(&format!("PUT /v1/claims/{id}"), &json!({"name": "billing/4711"}));
    assert_eq!(granted.status, 200, "{granted:?}");
    assert_eq!(granted.body["state"], "granted");
    assert_eq!((&granted.body["name"], &granted.body["claim"]), (&json!("billing/4711"), &json!(id)));
    assert_eq!((&granted.body["slot"], &granted.body["waited_ms"]), (&Value::Null, &json!(0)));
    // 30 s, less the margin for clocks that do not run alike.
    let expires_in = granted.body["expires_in_ms"].as_u64().expect("a period");
    assert!((1..=29_698).contains(&expires_in), "{expires_in}");
    assert!(granted.body["renew_in_ms"].as_u64().is_some_and(|renew_in| renew_in <= 10_000));
    assert_eq!(granted.header("tenure-token"), Some(&*granted.token().to_string()));
    assert_eq!(granted.header("tenure-claim"), Some(&*id));
    assert_eq!(granted.header("cache-control"), Some("no-store"));
    assert_eq!(granted.header("tenure-request-id").map(str::len), Some(16));

    let renewed = server.send(&format!("POST /v1/claims/{id}/renew"), &json!({"name": "billing/4711"}));
    assert_eq!((renewed.status, renewed.token()), (200, granted.token()));
    let released = server.ask(&format!("DELETE /v1/claims/{id}?name=billing%2F4711"));
    assert_eq!((released.status, &released.body), (200, &json!({"released": true})));
    let again = server.ask(&format!("DELETE /v1/claims/{id}?name=billing%2F4711"));
    assert_eq!((again.status, &again.body), (200, &json!({"released": false})));
    let lost = server.send(&format!("POST /v1/claims/{id}/renew"), &json!({"name": "billing/4711"}));
    assert_eq!((lost.status, lost.kind()), (410, "lost"), "a renewal makes no claim");
    assert_eq!(lost.body["resource"], "billing/4711");
}

#[test]
fn a_request_that_is_repeated_has_the_same_grant_and_an_id_is_used_once() {
    let server = Serving::memory(anywhere());
    let (put, body) = (format!("PUT /v1/claims/{}", new_id()), json!({"name": "a", "wait": false}));
    let (first, second) = (server.send(&put, &body), server.send(&put, &body));
    assert_eq!((first.status, second.status), (200, 200));
    assert_eq!(first.token(), second.token());
    server.ask(&format!("{}?name=a", put.replace("PUT", "DELETE")));
    let finished = server.send(&put, &body);
    assert_eq!((finished.status, finished.kind()), (410, "finished"));
    assert_eq!(finished.header("content-type"), Some("application/problem+json"));
    assert_eq!(finished.body["type"], "/v1/problems/finished");
    assert_eq!(finished.body["request_id"].as_str(), finished.header("tenure-request-id"));
    let page = server.ask("GET /v1/problems/finished");
    assert_eq!((page.status, &page.body["status"]), (200, &json!(410)));
}

#[test]
fn a_claim_that_does_not_wait_is_told_who_holds() {
    let server = Serving::memory(anywhere());
    let body = json!({"name": "a", "label": "night run", "wait": false});
    let held = server.send(&format!("PUT /v1/claims/{}", new_id()), &body);
    let busy = server.send(&format!("PUT /v1/claims/{}", new_id()), &body);
    assert_eq!((held.status, busy.status, busy.kind()), (200, 423, "busy"));
    assert_eq!(busy.body["holder"]["text"], "night run");
    assert_eq!(busy.body["waiting"], 0);
    assert!(busy.body["free_in_ms"].as_u64().is_some_and(|free_in| free_in <= 30_000), "{busy:?}");
}

#[test]
fn units_sides_and_slots_are_granted_as_their_kinds_are() {
    let server = Serving::memory(anywhere());
    let claim = |body: Value| server.send(&format!("PUT /v1/claims/{}", new_id()), &body);
    let units = |weight: u32| json!({"name": "s", "kind": "semaphore", "capacity": 5, "weight": weight, "wait": false});
    assert_eq!([claim(units(3)).status, claim(units(3)).status, claim(units(2)).status], [200, 423, 200]);
    let other = claim(json!({"name": "s", "kind": "semaphore", "capacity": 6, "wait": false}));
    assert_eq!((other.status, other.kind()), (409, "conflict"));

    let side =
        |exclusive: bool| json!({"name": "rw", "kind": "rw_lock", "exclusive": exclusive, "wait": false});
    assert_eq!(
        [claim(side(false)).status, claim(side(false)).status, claim(side(true)).status],
        [200, 200, 423]
    );

    let slot = json!({"name": "p", "kind": "slot_pool", "capacity": 2, "wait": false});
    let slots = [claim(slot.clone()), claim(slot.clone()), claim(slot)];
    assert_eq!((&slots[0].body["slot"], &slots[1].body["slot"]), (&json!(0), &json!(1)));
    assert_eq!(slots[2].status, 423);
}

#[test]
fn a_floor_raises_the_token_of_this_claim_alone() {
    let server = Serving::memory(anywhere());
    let claim = |floor: Option<u64>| {
        let id = new_id();
        let granted = server.send(&format!("PUT /v1/claims/{id}"), &json!({"name": "a", "floor": floor}));
        server.ask(&format!("DELETE /v1/claims/{id}?name=a"));
        granted
    };
    let token = claim(None).token();
    let floor = token + 60_000_000;
    assert_eq!(claim(Some(floor)).token(), floor + 1);
    // So far ahead that the store's clock must be wrong, or the floor.
    assert_eq!(claim(Some(token * 2)).status / 100, 4);
    assert_eq!(claim(None).status, 200, "the floor of one client is not that of all");
}

#[test]
fn many_are_renewed_in_one_request_with_an_answer_for_each() {
    let server = Serving::memory(anywhere());
    let (held, gone) = (new_id(), new_id());
    let token = server.send(&format!("PUT /v1/claims/{held}"), &json!({"name": "a"})).token();
    let answer = server.send(
        "POST /v1/claims/renew",
        &json!({"claims": [
            {"name": "a", "claim": gone},
            {"name": "a", "claim": "7"},
            {"name": "a", "claim": held},
        ]}),
    );
    let claims = answer.body["claims"].as_array().expect("a list");
    let states: Vec<_> = claims.iter().map(|claim| claim["state"].as_str().expect("a state")).collect();
    assert_eq!(states, ["lost", "failed", "held"]);
    assert_eq!(claims[2]["token"], token);
    assert_eq!(claims[1]["problem"]["kind"], "invalid");
    let many: Vec<_> = (0..257).map(|_| json!({"name": "a", "claim": new_id()})).collect();
    assert_eq!(server.send("POST /v1/claims/renew", &json!({"claims": many})).status, 400);
    let most: Vec<_> = (0..256).map(|_| json!({"name": "a", "claim": new_id()})).collect();
    assert_eq!(server.send("POST /v1/claims/renew", &json!({"claims": most})).status, 200);
}

#[test]
fn one_client_loads_a_value_and_the_others_get_it() {
    let server = Serving::memory(anywhere());
    let (loader, reader) = (new_id(), new_id());
    let body = json!({"name": "price", "unless_fresh": true, "wait": false});
    let turn = server.send(&format!("PUT /v1/claims/{loader}"), &body);
    assert_eq!((turn.status, &turn.body["state"]), (200, &json!("granted")));
    let value = json!({"name": "price", "value": "17.50", "fresh_ms": 60_000});
    assert_eq!(
        server.send(&format!("PUT /v1/claims/{reader}/value"), &value).status,
        410,
        "who holds nothing"
    );
    assert_eq!(server.send(&format!("PUT /v1/claims/{loader}/value"), &value).status, 204);
    server.ask(&format!("DELETE /v1/claims/{loader}?name=price"));
    let fresh = server.send(&format!("PUT /v1/claims/{reader}"), &body);
    assert_eq!((fresh.status, &fresh.body["state"]), (200, &json!("fresh")), "{fresh:?}");
    assert_eq!((&fresh.body["value"], &fresh.body["token"]), (&json!("17.50"), &json!(turn.token())));
    assert!(fresh.body["fresh_ms"].as_u64().is_some_and(|left| left <= 60_000));
    assert_eq!(fresh.header("tenure-token"), None, "nothing is held");
}

#[test]
fn what_is_not_understood_is_refused_and_named() {
    let server = Serving::memory(anywhere());
    let put = format!("PUT /v1/claims/{}", new_id());
    for (request, body, status, kind, text) in [
        (&*put, json!({"name": "a", "ttl": 30}), 400, "invalid", "unknown field `ttl`"),
        (&put, json!({"name": ""}), 400, "invalid", "the name is empty"),
        (&put, json!({"name": "a", "ttl_ms": 1}), 400, "invalid", "ttl"),
        (&put, json!([1]), 400, "invalid", "the body"),
        ("PUT /v1/claims/7", json!({"name": "a"}), 400, "invalid", "32 hexadecimal"),
        ("PUT /v1/claims/%FF", json!({"name": "a"}), 400, "invalid", ""),
        ("POST /v1/nothing", json!({}), 404, "not_found", ""),
        ("GET /v1/problems/none", json!({}), 404, "not_found", ""),
        ("POST /v1/claims/7/renew/more", json!({}), 404, "not_found", ""),
        ("GET /v1/claims/7", json!({}), 405, "method_not_allowed", ""),
        ("DELETE /v1/claims/00000000000000000000000000000007", json!({}), 400, "invalid", "name"),
    ] {
        let answer = server.send(request, &body);
        assert_eq!((answer.status, answer.kind()), (status, kind), "{request} {body}: {answer:?}");
        assert!(answer.body["detail"].as_str().is_some_and(|detail| detail.contains(text)), "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let answer = crate::http::ask(server.address, &put, form, None);
    assert_eq!((answer.status, answer.kind()), (415, "unsupported_media_type"));
}

#[test]
fn health_is_told_to_everybody() {
    let server = Serving::memory(anywhere());
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.ask(&format!("GET {path}")).status, 200);
    }
}
