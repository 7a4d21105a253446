//! What the server counts, as Prometheus reads it.

use std::fs::File;
use std::time::Duration;

use serde_json::json;
use tenure_core::{Settings, Tenure, memory::Store};
use tenure_metrics::Format;
use tenure_testkit::TestDirectory;
use tenure_testkit::prometheus::promtool;

use crate::access::{Tokens, bearer, made};
use crate::http::{Serving, anywhere, ask, new_id, open, text_of, until, until_waiting};

/// A server of a client that counts.
pub(crate) fn counting(options: tenure_serve::Options) -> Serving {
    let settings = Settings::new().counts(true);
    let connecting = Tenure::connect_with(Store::named(&new_id()).connector(), settings);
    Serving::of(pollster::block_on(connecting).expect("a store"), options)
}

/// The number of a series.
pub(crate) fn number(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{series} is not in\n{page}"))
}

#[test]
fn requests_are_counted_by_routes_no_name_is_a_label_and_promtool_reads_the_page() {
    let server = counting(anywhere());
    let page = || text_of(&mut open(server.address, "GET /metrics", "", None)).1;
    let (secret_name, id) = ("payroll/secret-4711", new_id());
    let body = json!({"name": secret_name});
    assert_eq!(server.send(&format!("PUT /v1/claims/{id}"), &body).status, 200);
    let busy = json!({"name": secret_name, "wait": false});
    assert_eq!(server.send(&format!("PUT /v1/claims/{}", new_id()), &busy).status, 423);
    let waits =
        server.begin(&format!("PUT /v1/claims/{}", new_id()), &json!({"name": secret_name, "poll_ms": 3000}));
    until_waiting(&server.tenure, secret_name, 1);
    assert_eq!(number(&page(), r#"tenure_http_open{what="waiting"}"#), 1.0);
    assert_eq!(waits.answer().status, 202);
    let nobodys = ask(server.address, "BREW /v1/secret-path?name=x", "", None);
    assert_eq!(nobodys.status, 404);
    // An answer is read before the server has heard of the end of its connection.
    let page = until("no other connection", || {
        Some(page()).filter(|page| number(page, r#"tenure_http_open{what="connection"}"#) == 1.0)
    });
    for (series, count) in [
        (r#"tenure_http_requests_total{route="/v1/claims/{claim}",method="PUT",status="200"}"#, 1.0),
        (r#"tenure_http_requests_total{route="/v1/claims/{claim}",method="PUT",status="423"}"#, 1.0),
        (r#"tenure_http_requests_total{route="/v1/claims/{claim}",method="PUT",status="202"}"#, 1.0),
        (r#"tenure_http_requests_total{route="other",method="other",status="404"}"#, 1.0),
        (r#"tenure_http_request_seconds_count{route="/v1/claims/{claim}"}"#, 3.0),
        (r#"tenure_store_holds{engine="memory",kind="mutex",scope="payroll/*"}"#, 1.0),
        (r#"tenure_claims_total{engine="memory",kind="mutex",scope="payroll/*",outcome="busy"}"#, 1.0),
    ] {
        assert_eq!(number(&page, series), count, "{series}");
    }
    let took = number(&page, r#"tenure_http_request_seconds_sum{route="/v1/claims/{claim}"}"#);
    assert!(took < 2.5, "{took} s: the wait of 3 s is in it");
    for secret in ["4711", "secret", id.as_str(), "BREW"] {
        assert!(!page.contains(secret), "{secret} is in\n{page}");
    }
    let directory = TestDirectory::new();
    let file = directory.path().join("page");
    std::fs::write(&file, &page).expect("a file");
    let checked =
        promtool(directory.path()).args(["check", "metrics"]).stdin(File::open(file).expect("it")).output();
    let checked = checked.expect("promtool starts");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn refusals_are_counted_by_why_and_the_page_is_for_who_may_read_it() {
    let (ops, entry) = made("ops", &["metrics", "claim a"]);
    let (billing, second) = made("billing", &["claim billing/"]);
    let tokens = Tokens::new(&format!("{entry}{second}"));
    let server = Serving::memory(anywhere().tokens(tokens.file()).streams_max(0));
    let get = |path: &str, headers: &str| ask(server.address, &format!("GET {path}"), headers, None).status;
    assert_eq!(get("/metrics", &bearer(&billing)), 403);
    assert_eq!(get("/metrics", ""), 401);
    assert_eq!(get("/metrics", "origin: https://evil.example\r\n"), 403);
    let large = format!("{}content-type: application/json\r\n", bearer(&ops));
    let head = format!(
        "PUT /v1/claims/{} HTTP/1.1\r\nhost: localhost\r\n{large}content-length: 1048577\r\n\r\n",
        new_id()
    );
    assert_eq!(crate::limits::raw(&server, head.as_bytes()), 413);
    let stream = format!("{}accept: text/event-stream\r\n", bearer(&ops));
    let full = server.send_with(&format!("PUT /v1/claims/{}", new_id()), &stream, &json!({"name": "a"}));
    assert_eq!((full.status, full.kind()), (503, "overloaded"));
    tokens.write("[[token]]\nname = 7\n");
    server.control.reload();
    let page = || server.control.metrics(Format::Prometheus).expect("a page");
    until("a file that is not used", || {
        (number(&page(), r#"tenure_http_tokens_reloads_total{outcome="failed"}"#) >= 1.0).then_some(())
    });
    let page = page();
    for (reason, count) in [
        ("unauthorized", 1.0),
        ("forbidden", 1.0),
        ("origin", 1.0),
        ("too_large", 1.0),
        ("overload", 1.0),
        ("rate", 0.0),
    ] {
        assert_eq!(
            number(&page, &format!(r#"tenure_http_refused_total{{reason="{reason}"}}"#)),
            count,
            "{reason}"
        );
    }
}

#[test]
fn what_is_held_for_long_is_not_the_oldest() {
    let server = counting(anywhere().long_held("leader/*"));
    assert_eq!(
        server.send(&format!("PUT /v1/claims/{}", new_id()), &json!({"name": "leader/1"})).status,
        200
    );
    let page = || server.control.metrics(Format::Prometheus).expect("a page");
    until("a while", || {
        let view = pollster::block_on(server.tenure.view("leader/1")).expect("a view").expect("it is held");
        (view.holds[0].held_for > Duration::from_millis(10)).then_some(())
    });
    let page = page();
    assert_eq!(number(&page, r#"tenure_store_holds{engine="memory",kind="mutex",scope="leader/*"}"#), 1.0);
    assert_eq!(
        number(&page, r#"tenure_store_oldest_hold_seconds{engine="memory",kind="mutex",scope="leader/*"}"#),
        0.0
    );
}
