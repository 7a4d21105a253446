//! Tokens, and who is let in.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tenure_core::testing::busy::assert_in_time;
use tenure_serve::{Secret, Server, secret};
use tenure_testkit::TestDirectory;

use crate::http::{Serving, anywhere, ask, new_id, now, until, until_waiting};

pub(crate) struct Tokens {
    _directory: TestDirectory,
    file: PathBuf,
}

impl Tokens {
    pub(crate) fn new(entries: &str) -> Tokens {
        let directory = TestDirectory::new();
        let file = directory.path().join("tokens.toml");
        write(&file, entries);
        Tokens { _directory: directory, file }
    }

    pub(crate) fn write(&self, entries: &str) {
        write(&self.file, entries);
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }
}

/// Writes beside it and renames, as an operator should.
fn write(file: &Path, entries: &str) {
    let new = file.with_extension("new");
    fs::write(&new, entries).expect("a file");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("its mode");
    fs::rename(new, file).expect("its name");
}

pub(crate) fn made(name: &str, allow: &[&str]) -> (Secret, String) {
    let allow: Vec<String> = allow.iter().map(|&line| line.to_owned()).collect();
    let secret = secret(&allow).expect("a token");
    let entry = secret.entry(name, &allow);
    (secret, entry)
}

pub(crate) fn bearer(secret: &Secret) -> String {
    format!("authorization: Bearer {}\r\n", secret.token())
}

#[test]
fn a_token_may_do_what_its_entry_says_with_the_names_that_it_says() {
    let (billing, entry) = made("billing", &["claim billing/"]);
    let (reader, other) = made("reader", &["read"]);
    let expired = other.replace("reader", "old").replace("allow", "expires = 2001-01-01\nallow");
    let (old, _) = (&reader, ());
    let (unknown, _) = made("unknown", &["claim"]);
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(&tokens.file));
    let claim = |headers: &str, name: &str| {
        let id = new_id();
        let put = server.send_with(&format!("PUT /v1/claims/{id}"), headers, &json!({"name": name}));
        // The id is no secret: each verb is checked against the name.
        let rest = [
            server.send_with(&format!("POST /v1/claims/{id}/renew"), headers, &json!({"name": name})),
            server.send_with(
                &format!("PUT /v1/claims/{id}/value"),
                headers,
                &json!({"name": name, "value": "v"}),
            ),
            ask(server.address, &format!("DELETE /v1/claims/{id}?name={name}"), headers, None),
        ];
        let is_alike = |status: u16| match put.status {
            200 => status / 100 == 2,
            refused => status == refused,
        };
        assert!(rest.iter().all(|answer| is_alike(answer.status)), "{put:?} {rest:?}");
        put
    };
    let granted = claim(&bearer(&billing), "billing/4711");
    assert_eq!(granted.status, 200, "{granted:?}");
    let forbidden = claim(&bearer(&billing), "payroll/1");
    assert_eq!((forbidden.status, forbidden.kind()), (403, "forbidden"));
    assert_eq!(forbidden.body["resource"], "payroll/1");
    for headers in [
        String::new(),
        bearer(&unknown),
        "authorization: Basic dG5y\r\n".to_owned(),
        "authorization: Bearer \r\n".to_owned(),
    ] {
        let refused = claim(&headers, "billing/4711");
        assert_eq!((refused.status, refused.kind()), (401, "unauthorized"), "{headers}");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(server.ask("GET /healthz").status, 200, "health is for everybody");

    write(&tokens.file, &format!("{entry}{expired}"));
    server.control.reload();
    until("the day of a token that is over", || {
        let refused = claim(&bearer(old), "billing/4711");
        (refused.status == 401).then_some(())
    });
    let many = json!({"claims": [{"name": "billing/1", "claim": new_id()}, {"name": "payroll/1", "claim": new_id()}]});
    let answer = server.send_with("POST /v1/claims/renew", &bearer(&billing), &many);
    assert_eq!(answer.body["claims"][0]["state"], "lost");
    assert_eq!(answer.body["claims"][1]["problem"]["kind"], "forbidden");
}

#[test]
fn a_holder_is_shown_by_the_name_of_its_token() {
    let (secret, entry) = made("billing", &["claim"]);
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(&tokens.file));
    let claim = || {
        let body = json!({"name": "a", "wait": false, "label": "payroll/1"});
        server.send_with(&format!("PUT /v1/claims/{}", new_id()), &bearer(&secret), &body)
    };
    claim();
    let busy = claim();
    assert_eq!(busy.body["holder"]["program"], "billing", "{busy:?}");
    assert_eq!(busy.body["holder"]["text"], "payroll/1");
}

#[test]
fn what_a_removed_token_has_open_ends_and_a_bad_file_changes_nothing() {
    let (secret, entry) = made("billing", &["claim"]);
    let (_, other) = made("other", &["claim"]);
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(&tokens.file));
    let headers = bearer(&secret);
    let granted = server.send_with(&format!("PUT /v1/claims/{}", new_id()), &headers, &json!({"name": "a"}));
    let waits = server.begin_with(&format!("PUT /v1/claims/{}", new_id()), &headers, &json!({"name": "a"}));
    until_waiting(&server.tenure, "a", 1);

    write(&tokens.file, "[[token]]\nname = 7\n");
    server.control.reload();
    let ready = until("the fault is told", || {
        let ready = server.ask("GET /readyz");
        (!ready.body["tokens"].is_null()).then_some(ready)
    });
    assert_eq!(ready.status, 200, "it goes on with the tokens it has");
    let renewed = server.send_with(
        &format!("POST /v1/claims/{}/renew", granted.body["claim"].as_str().expect("an id")),
        &headers,
        &json!({"name": "a"}),
    );
    assert_eq!(renewed.status, 200);

    let began = now();
    // Nobody tells the server: it looks every 2 s.
    write(&tokens.file, &other);
    let revoked = waits.answer();
    assert_eq!((revoked.status, revoked.kind()), (401, "unauthorized"));
    assert_in_time(began.elapsed(), Duration::from_millis(2500));
    let view = pollster::block_on(server.tenure.view("a")).expect("a view").expect("it is held");
    assert_eq!(view.holds[0].token.get(), granted.token(), "what it held ends at its ttl");
}

#[test]
fn who_guesses_tokens_is_slowed_down() {
    let (secret, entry) = made("billing", &["claim"]);
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(&tokens.file));
    let guess = |token: &str| {
        let headers = format!("authorization: Bearer {token}\r\n");
        server.send_with("POST /v1/claims/renew", &headers, &json!({"claims": []}))
    };
    let answers: Vec<_> = (0..60).map(|at| guess(&format!("tnr_{at}")).status).collect();
    assert_eq!(answers[0], 401);
    let refused = answers.iter().filter(|status| **status == 429).count();
    assert!(refused > 0, "{answers:?}");
    assert!(answers.iter().all(|status| [401, 429].contains(status)));
    until("a second has passed", || (guess(secret.token()).status == 200).then_some(()));
}

#[test]
fn a_token_has_its_own_rate() {
    let (secret, entry) = made("billing", &["claim"]);
    let (other, second) = made("other", &["claim"]);
    let tokens = Tokens::new(&format!("{entry}rate = 3\n{second}"));
    let server = Serving::memory(anywhere().tokens(&tokens.file));
    let ask =
        |secret: &Secret| server.send_with("POST /v1/claims/renew", &bearer(secret), &json!({"claims": []}));
    let refused = until("too many", || Some(ask(&secret)).filter(|answer| answer.status != 200));
    assert_eq!((refused.status, refused.kind(), refused.header("retry-after")), (429, "rate", Some("1")));
    assert_eq!(ask(&other).status, 200);
}

#[test]
fn a_token_has_its_own_number_of_requests_that_wait() {
    let (secret, entry) = made("billing", &["claim"]);
    let (other, second) = made("other", &["claim"]);
    let tokens = Tokens::new(&format!("{entry}waiting = 1\n{second}"));
    let server = Serving::memory(anywhere().tokens(&tokens.file));
    let put = |secret: &Secret, body: serde_json::Value| {
        server.begin_with(&format!("PUT /v1/claims/{}", new_id()), &bearer(secret), &body)
    };
    assert_eq!(put(&other, json!({"name": "a"})).answer().status, 200);
    let waits = put(&secret, json!({"name": "a"}));
    until_waiting(&server.tenure, "a", 1);
    let refused = put(&secret, json!({"name": "a"})).answer();
    assert_eq!((refused.status, refused.kind(), refused.header("retry-after")), (429, "rate", Some("1")));
    assert_eq!(put(&secret, json!({"name": "a", "wait": false})).answer().status, 423, "it does not wait");
    assert_eq!(put(&other, json!({"name": "a", "poll_ms": 1})).answer().status, 202, "another has its own");
    drop(waits);
    until("its place is free", || {
        let answer = put(&secret, json!({"name": "a", "poll_ms": 1})).answer();
        (answer.status == 202).then_some(())
    });
}

#[test]
fn a_page_of_elsewhere_is_refused() {
    let server = Serving::memory(anywhere());
    let claim = |headers: &str| {
        server.send_with(&format!("PUT /v1/claims/{}", new_id()), headers, &json!({"name": "a"}))
    };
    for headers in ["origin: https://evil.example\r\n", "sec-fetch-site: cross-site\r\n"] {
        let refused = claim(headers);
        assert_eq!((refused.status, refused.kind()), (403, "forbidden"));
    }
    let idle = pollster::block_on(server.tenure.view("a")).expect("a view");
    assert!(idle.is_none(), "nothing was asked of the store");
    assert_eq!(claim("").status, 200);
}

#[test]
fn a_server_for_others_needs_tokens_that_are_its_own() {
    let tokens = Tokens::new("");
    let bind = |options| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _entered = runtime.enter();
        let tenure = pollster::block_on(tenure_core::memory::connect("bind")).expect("a store");
        Server::bind(tenure, options).map(drop).map_err(|error| error.to_string())
    };
    let open = || tenure_serve::Options::new("0.0.0.0:0".parse().expect("an address"));
    assert!(bind(open()).expect_err("everybody could").contains("without tokens"));
    assert_eq!(bind(open().tokens(&tokens.file)), Ok(()));
    fs::set_permissions(&tokens.file, fs::Permissions::from_mode(0o640)).expect("its mode");
    assert!(bind(open().tokens(&tokens.file)).expect_err("others may read it").contains("chmod 600"));
    assert!(bind(open().tokens("/nonexistent/tokens")).is_err());
}

#[test]
fn a_server_that_is_read_only_changes_nothing() {
    let server = Serving::memory(anywhere().read_only(true));
    let refused = server.send(&format!("PUT /v1/claims/{}", new_id()), &json!({"name": "a"}));
    assert_eq!((refused.status, refused.kind()), (403, "forbidden"));
    assert_eq!(server.ask("GET /readyz").status, 200);
}

#[test]
fn who_guesses_behind_a_proxy_is_slowed_down_alone_and_nobody_else_can_say_who_it_is() {
    let (secret, entry) = made("billing", &["claim"]);
    let tokens = Tokens::new(&entry);
    let server = |options: tenure_serve::Options| Serving::memory(options.tokens(&tokens.file));
    let behind = server(anywhere().trusted_proxy("127.0.0.0/8".parse().expect("a network")));
    let ask = |server: &Serving, token: &str, forwarded: &str| {
        let headers = format!("authorization: Bearer {token}\r\nforwarded: {forwarded}\r\n");
        server.send_with("POST /v1/claims/renew", &headers, &json!({"claims": []})).status
    };
    let use_up = |server: &Serving, forwarded: &str| {
        let of_it = || Some(()).filter(|()| ask(server, "tnr_wrong", forwarded) == 429);
        until("too many guesses", of_it);
    };
    // What the client has sent itself stands before what the proxy has written.
    use_up(&behind, "for=203.0.113.9, for=192.0.2.43");
    assert_eq!(ask(&behind, secret.token(), "for=203.0.113.9"), 200, "another client is let in");
    assert_eq!(ask(&behind, "tnr_wrong", "for=192.0.2.44"), 401);
    // Nobody is trusted here: with another address in each guess it is the same client.
    let open = server(anywhere());
    let mut at = 0;
    let limited = loop {
        at += 1;
        match ask(&open, "tnr_wrong", &format!("for=192.0.2.{}", at % 256)) {
            401 if at < 500 => {}
            status => break status,
        }
    };
    assert_eq!(limited, 429);
}
