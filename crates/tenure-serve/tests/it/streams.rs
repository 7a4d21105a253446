//! Claims whose answer is a stream.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::json;
use tenure_core::testing::busy::assert_in_time;
use tenure_metrics::Address;
use tenure_serve::{Options, Server};
use tenure_testkit::TestDirectory;

use crate::access::{Tokens, bearer, made};
use crate::events::Events;
use crate::http::{PATIENCE, Serving, anywhere, ask, new_id, now, until, until_waiting};

const STREAM: &str = "accept: text/event-stream\r\n";

fn claim(server: &Serving, id: &str, body: &serde_json::Value) -> Events {
    Events::open(server, &format!("PUT /v1/claims/{id}"), STREAM, Some(body))
}

#[test]
fn a_stream_waits_holds_and_is_renewed_while_it_is_open_and_releases_nothing() {
    let server = Serving::memory(anywhere());
    let (first, second) = (new_id(), new_id());
    let held = server.send(&format!("PUT /v1/claims/{first}"), &json!({"name": "a"}));
    let mut events = claim(&server, &second, &json!({"name": "a", "ttl_ms": 1500}));
    assert_eq!(events.next().expect("an event").1, json!({"state": "waiting", "name": "a", "claim": second}));
    until_waiting(&server.tenure, "a", 1);
    ask(server.address, &format!("DELETE /v1/claims/{first}?name=a"), "", None);
    let granted = events.until("granted");
    assert!(granted["token"].as_u64() > Some(held.token()), "{granted}");
    assert_eq!((&granted["claim"], &granted["state"]), (&json!(second), &json!("granted")));
    // For longer than its ttl.
    let began = now();
    let mut kept = events.until("kept");
    while began.elapsed() < Duration::from_millis(3000) {
        kept = events.until("kept");
    }
    assert_eq!((&kept["token"], &kept["state"]), (&granted["token"], &json!("held")));
    assert!(kept["expires_in_ms"].as_u64() > Some(1000), "{kept}");
    drop(events);
    let closed = now();
    let view = || pollster::block_on(server.tenure.view("a")).expect("a view");
    let busy = server.send(&format!("PUT /v1/claims/{}", new_id()), &json!({"name": "a", "wait": false}));
    assert_eq!(busy.status, 423, "nothing is released");
    until("its end", || view().is_none().then_some(()));
    assert_in_time(closed.elapsed(), Duration::from_millis(2500));
}

#[test]
fn a_place_is_kept_for_a_while_when_a_stream_ends_that_waits() {
    let server = Serving::memory(anywhere());
    let (first, second) = (new_id(), new_id());
    server.send(&format!("PUT /v1/claims/{first}"), &json!({"name": "a"}));
    let events = claim(&server, &second, &json!({"name": "a", "linger_ms": 15000}));
    until_waiting(&server.tenure, "a", 1);
    drop(events);
    let mut again = claim(&server, &second, &json!({"name": "a", "linger_ms": 100}));
    assert_eq!(again.next().expect("an event").0, "waiting");
    drop(again);
    until_waiting(&server.tenure, "a", 0);
}

#[test]
fn a_stream_says_why_it_ends() {
    let (one, entry) = made("one", &["claim", "operate"]);
    let (other, second) = made("other", &["claim", "operate"]);
    let tokens = Tokens::new(&format!("{entry}{second}"));
    let mut server = Serving::memory(anywhere().tokens(tokens.file()));
    let claim = |who, name: &str, id: &str| {
        let headers = format!("{STREAM}{}", bearer(who));
        Events::open(
            &server,
            &format!("PUT /v1/claims/{id}"),
            &headers,
            Some(&json!({"name": name, "ttl_ms": 1500})),
        )
    };
    let last = |mut events: Events, event: &str| {
        let data = events.until(event);
        assert_eq!(events.next(), None, "it ends");
        data
    };
    let mut broken = claim(&one, "broken", &new_id());
    let token = broken.until("granted")["token"].clone();
    let now = json!({"name": "broken", "token": token, "now": true});
    assert_eq!(server.send_with("POST /v1/resource/break", &bearer(&one), &now).status, 200);
    assert_eq!(last(broken, "lost")["name"], "broken");

    let id = new_id();
    let mut earlier = claim(&one, "superseded", &id);
    earlier.until("granted");
    let mut later = claim(&one, "superseded", &id);
    assert_eq!(last(earlier, "bye"), json!({"why": "superseded"}));
    later.until("kept");

    let mut revoked = claim(&one, "revoked", &new_id());
    revoked.until("granted");
    let mut ending = claim(&other, "ending", &new_id());
    ending.until("granted");
    let mut waiting = claim(&other, "ending", &new_id());
    waiting.until("waiting");
    tokens.write(&second);
    assert_eq!(last(revoked, "bye"), json!({"why": "revoked"}));
    assert_eq!(last(later, "bye"), json!({"why": "revoked"}));
    server.control.drain();
    assert_eq!(last(ending, "bye"), json!({"why": "ending"}));
    assert_eq!(last(waiting, "bye"), json!({"why": "ending"}));
    server.ended();
}

#[test]
fn what_is_decided_at_once_is_no_stream() {
    let server = Serving::memory(anywhere());
    server.send(&format!("PUT /v1/claims/{}", new_id()), &json!({"name": "a"}));
    let put = |query: &str, headers: &str, body: serde_json::Value| {
        server.send_with(&format!("PUT /v1/claims/{}{query}", new_id()), headers, &body)
    };
    let busy = put("", STREAM, json!({"name": "a", "wait": false}));
    assert_eq!((busy.status, busy.kind()), (423, "busy"));
    for (query, headers, body) in [
        ("", STREAM, json!({"name": "b", "unless_fresh": true})),
        ("?on_disconnect=release", STREAM, json!({"name": "b"})),
        ("?on_disconnect=release", "", json!({"name": "b"})),
        ("?on_disconnect=keep", STREAM, json!({"name": "b"})),
    ] {
        let refused = put(query, headers, body);
        assert_eq!((refused.status, refused.kind()), (400, "invalid"), "{query} {refused:?}");
    }
    assert!(pollster::block_on(server.tenure.view("b")).expect("a view").is_none());
}

#[test]
fn the_end_of_a_connection_by_a_unix_socket_releases_where_that_is_asked_for() {
    let directory = TestDirectory::new();
    let path = directory.path().join("tenure.sock");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let tenure = pollster::block_on(tenure_core::memory::connect(&new_id())).expect("a store");
    let entered = runtime.enter();
    let server = Server::bind(tenure.clone(), Options::new(Address::Unix(path.clone()))).expect("a server");
    runtime.spawn(server.run());
    drop(entered);
    let claim = |query: &str, name: &str| {
        let body = json!({"name": name, "ttl_ms": 60_000}).to_string();
        let (id, length) = (new_id(), body.len());
        let head = format!("PUT /v1/claims/{id}{query} HTTP/1.1\r\nhost: any\r\n{STREAM}");
        let head = format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n");
        let mut stream = UnixStream::connect(&path).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all((head + &body).as_bytes()).expect("a request");
        let mut lines = BufReader::new(stream).lines();
        assert!(lines.any(|line| line.expect("a line") == "event: granted"));
        lines
    };
    let (kept, released) = (claim("", "kept"), claim("?on_disconnect=release", "released"));
    let held = |name: &str| pollster::block_on(tenure.view(name)).expect("a view").is_some();
    assert!(held("kept") && held("released"));
    drop((kept, released));
    until("its release", || (!held("released")).then_some(()));
    assert!(held("kept"));
    runtime.shutdown_background();
}
