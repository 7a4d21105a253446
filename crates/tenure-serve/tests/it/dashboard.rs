//! The dashboard's files, and signing in to it: what a cookie is good for, and what not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tenure_core::clock::{Clock, SystemClock};
use tenure_serve::{Options, Secret};
use tenure_testkit::TestDirectory;

use crate::access::{Tokens, bearer, made};
use crate::events::Events;
use crate::http::{Answer, Serving, anywhere, ask, new_id, until};

/// What the dashboard sends with a change.
const OWN: &str = "sec-fetch-site: same-origin\r\ntenure-dashboard: 1\r\n";

fn sign_in(server: &Serving, token: &str) -> Answer {
    server.send("POST /v1/sign-in", &json!({"token": token}))
}

/// The cookie that a browser keeps, as it sends it.
fn kept(signed_in: &Answer) -> String {
    let set = signed_in.header("set-cookie").unwrap_or_else(|| panic!("a cookie in {signed_in:?}"));
    format!("cookie: {}\r\n", set.split(';').next().unwrap_or_default())
}

fn who(server: &Serving, headers: &str) -> Answer {
    ask(server.address, "GET /v1/sign-in", headers, None)
}

fn operator() -> (Secret, String) {
    made("ops", &["read", "operate", "claim"])
}

#[test]
fn a_token_is_sent_once_for_a_cookie_that_scripts_do_not_see() {
    let (secret, entry) = operator();
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    assert_eq!(who(&server, "").status, 401);
    let signed_in = sign_in(&server, &format!(" {}\n", secret.token()));
    assert_eq!((signed_in.status, &signed_in.body["name"]), (200, &json!("ops")), "{signed_in:?}");
    assert_eq!(signed_in.body["allow"], json!(["read", "operate", "claim"]));
    assert_eq!(signed_in.header("cache-control"), Some("no-store"));
    let set = signed_in.header("set-cookie").expect("a cookie");
    assert!(set.starts_with("tenure="), "without TLS, at this machine: {set}");
    assert!(set.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"), "{set}");
    assert!(!set.contains(&secret.token()[4..]), "the token is not in it: {set}");
    let cookie = kept(&signed_in);
    let known = who(&server, &cookie);
    assert_eq!((known.status, &known.body["name"]), (200, &json!("ops")));
    assert_eq!(ask(server.address, "GET /v1/resources", &cookie, None).status, 200);
    let out = ask(server.address, "DELETE /v1/sign-in", &(cookie + OWN), None);
    assert_eq!(out.status, 204);
    assert!(
        out.header("set-cookie").is_some_and(|set| set.starts_with("tenure=;") && set.contains("Max-Age=0"))
    );
    for wrong in ["tnr_wrong", ""] {
        let refused = sign_in(&server, wrong);
        assert_eq!((refused.status, refused.header("set-cookie")), (401, None), "{wrong}");
    }
}

#[test]
fn a_cookie_changes_something_only_where_the_dashboard_says_so() {
    let (secret, entry) = operator();
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    let cookie = kept(&sign_in(&server, secret.token()));
    let origin = format!("origin: http://{}\r\ntenure-dashboard: 1\r\n", server.address);
    let claim = |headers: &str| {
        let headers = format!("{cookie}{headers}");
        server.send_with(
            &format!("PUT /v1/claims/{}", new_id()),
            &headers,
            &json!({"name": "a", "wait": false}),
        )
    };
    for headers in [
        "",
        "tenure-dashboard: 1\r\n",
        "sec-fetch-site: same-origin\r\n",
        "sec-fetch-site: same-origin\r\ntenure-dashboard: yes\r\n",
        "sec-fetch-site: none\r\ntenure-dashboard: 1\r\n",
        "sec-fetch-site: cross-site\r\ntenure-dashboard: 1\r\n",
        "sec-fetch-site: same-site\r\ntenure-dashboard: 1\r\n",
        "origin: https://evil.example\r\ntenure-dashboard: 1\r\n",
        "origin: null\r\ntenure-dashboard: 1\r\n",
    ] {
        let refused = claim(headers);
        assert_eq!((refused.status, refused.kind()), (403, "forbidden"), "{headers}");
    }
    assert!(pollster::block_on(server.tenure.view("a")).expect("a view").is_none(), "nothing was asked");
    assert_eq!(claim(OWN).status, 200);
    assert_eq!(claim(&origin).kind(), "busy", "where a browser says its origin alone");
    let plain = server.send_with("POST /v1/claims/renew", &bearer(&secret), &json!({"claims": []}));
    assert_eq!(plain.status, 200, "a token needs nothing of that");
}

#[test]
fn a_cookie_dies_with_its_token_and_its_server() {
    let (secret, entry) = operator();
    let (other, second) = made("other", &["read"]);
    let tokens = Tokens::new(&format!("{entry}{second}"));
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    let (cookie, of_other) =
        (kept(&sign_in(&server, secret.token())), kept(&sign_in(&server, other.token())));
    // The same name with a new secret is another token.
    let (_, anew) = operator();
    tokens.write(&format!("{anew}{second}"));
    server.control.reload();
    until("the token is gone", || (who(&server, &cookie).status == 401).then_some(()));
    assert_eq!(who(&server, &of_other).status, 200);
    let next = Serving::memory(anywhere().tokens(tokens.file()));
    assert_eq!(who(&next, &of_other).status, 401, "another process has another key");
}

/// A cookie as a server with this key makes it.
fn made_by(key: &str, name: &str, expires: u64, secret: &Secret) -> String {
    let said = format!("{expires}.{}", URL_SAFE_NO_PAD.encode(Sha256::digest(secret.token().as_bytes())));
    let mut code = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("a key");
    code.update(format!("{name}={said}").as_bytes());
    format!("cookie: {name}={said}.{}\r\n", URL_SAFE_NO_PAD.encode(code.finalize().into_bytes()))
}

#[test]
fn a_cookie_that_is_forged_or_old_is_none() {
    let key = "0123456789abcdef0123456789abcdef";
    let (secret, entry) = operator();
    let (unknown, _) = operator();
    let tokens = Tokens::new(&entry);
    let directory = TestDirectory::new();
    let file = directory.path().join("cookie.key");
    fs::write(&file, format!("{key}\n")).expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
    let serve = || Serving::memory(anywhere().tokens(tokens.file()).cookie_key(&file));
    let (server, second) = (serve(), serve());
    let now = SystemClock.time_of_day().micros() / 1_000_000;
    let good = made_by(key, "tenure", now + 60, &secret);
    for (cookie, status) in [
        (good.clone(), 200),
        (made_by(key, "tenure", now - 1, &secret), 401),
        (made_by(key, "tenure", now + 60, &unknown), 401),
        (made_by("another key of 32 bytes or longer", "tenure", now + 60, &secret), 401),
        (made_by(key, "tenure", now + 60, &secret).replace("cookie: tenure=", "cookie: tenure=1"), 401),
        (made_by(key, "__Host-tenure", now + 60, &secret).replace("__Host-tenure", "tenure"), 401),
        ("cookie: tenure=\r\n".to_owned(), 401),
        ("cookie: tenure=a.b.c; tenure\r\n".to_owned(), 401),
    ] {
        let answer = who(&server, &cookie);
        assert_eq!(answer.status, status, "{cookie}");
    }
    let of_first = kept(&sign_in(&server, secret.token()));
    assert_eq!(who(&second, &of_first).status, 200, "instances with one key share who is signed in");
    // With a token the cookie says nothing.
    let wrong = format!("{good}authorization: Bearer tnr_wrong\r\n");
    assert_eq!(who(&server, &wrong).status, 401);
}

#[test]
fn without_tls_a_cookie_is_for_this_machine_and_behind_a_proxy_with_it_it_is_private() {
    let (secret, entry) = operator();
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(tokens.file()).host("locks.example"));
    let send =
        |request: &str, headers: &str, body: &Value| crate::http::raw(server.address, request, headers, body);
    let token = json!({"token": secret.token()});
    let refused = send("POST /v1/sign-in", "host: locks.example\r\n", &token);
    assert_eq!((refused.status, refused.kind(), refused.header("set-cookie")), (403, "forbidden", None));
    let proxied = "host: locks.example\r\norigin: https://locks.example\r\n";
    let signed_in = send("POST /v1/sign-in", proxied, &token);
    let set = signed_in.header("set-cookie").expect("a cookie");
    assert!(
        set.starts_with("__Host-tenure=") && set.ends_with("; HttpOnly; SameSite=Strict; Secure"),
        "{set}"
    );
    let cookie = kept(&signed_in);
    let body = json!({"name": "a", "token": 1});
    let broken = send("POST /v1/resource/break", &format!("{proxied}{cookie}tenure-dashboard: 1\r\n"), &body);
    assert_eq!(broken.kind(), "not_found", "it was let in: {broken:?}");
}

#[test]
fn who_guesses_by_signing_in_is_slowed_down() {
    let (_, entry) = operator();
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    let answers: Vec<u16> = (0..60).map(|at| sign_in(&server, &format!("tnr_{at}")).status).collect();
    assert_eq!(answers[0], 401);
    assert!(answers.contains(&429), "{answers:?}");
}

#[test]
fn without_tokens_nobody_signs_in_and_a_server_that_only_shows_says_so() {
    let server = Serving::memory(anywhere());
    let open = who(&server, "");
    assert_eq!((open.status, &open.body["name"], &open.body["allow"]), (200, &Value::Null, &Value::Null));
    assert_eq!(sign_in(&server, "anything").header("set-cookie"), None);
    let shows = Serving::memory(anywhere().read_only(true));
    assert_eq!(who(&shows, "").body["is_read_only"], true);
}

#[test]
fn the_page_is_for_everybody_and_may_do_nothing_but_ask_this_server() {
    let (_, entry) = operator();
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    let page = server.ask("GET /");
    assert_eq!((page.status, page.header("cache-control")), (200, Some("no-cache")));
    let policy = page.header("content-security-policy").expect("a policy");
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let tag = page.header("etag").expect("a tag").to_owned();
    for (path, sort) in
        [("main.js", "text/javascript"), ("dashboard.css", "text/css"), ("icon.svg", "image/svg+xml")]
    {
        let asset = server.ask(&format!("GET /assets/{path}"));
        assert!(
            asset.status == 200 && asset.header("content-type").is_some_and(|is| is.starts_with(sort)),
            "{asset:?}"
        );
        assert_eq!(asset.header("etag"), Some(&*tag), "one tag: no page has files of two versions");
        let again =
            ask(server.address, &format!("GET /assets/{path}"), &format!("if-none-match: {tag}\r\n"), None);
        assert_eq!(again.status, 304);
    }
    assert_eq!(server.ask("GET /assets/../lib.rs").status, 404);
    assert_eq!(server.ask("GET /assets/index.html").status, 404);
    // Somebody follows a link in a chat.
    let link = "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
    assert_eq!(ask(server.address, "GET /", link, None).status, 200);
    assert_eq!(ask(server.address, "GET /assets/main.js", link, None).status, 403);
    assert_eq!(ask(server.address, "GET /v1/resources", link, None).status, 403);
}

#[test]
fn a_server_without_a_dashboard_has_neither_page_nor_cookies() {
    let (secret, entry) = operator();
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(tokens.file()).dashboard(false));
    for path in ["GET /", "GET /assets/main.js"] {
        assert_eq!(server.ask(path).status, 404, "{path}");
    }
    assert_eq!(sign_in(&server, secret.token()).status, 404);
}

#[test]
fn operators_see_what_this_instance_does_and_did() {
    let (secret, entry) = operator();
    let (reader, second) = made("reader", &["read"]);
    let (_, unused) = made("unused", &["push refunds"]);
    let tokens = Tokens::new(&format!("{entry}{second}{unused}expires = 2999-01-01\n"));
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    let cookie = kept(&sign_in(&server, secret.token()));
    let body = json!({"name": "a", "token": 7, "now": true});
    server.send_with("POST /v1/resource/break", &format!("{cookie}{OWN}"), &body);
    let shown = ask(server.address, "GET /v1/server", &cookie, None);
    assert_eq!(shown.status, 200, "{shown:?}");
    let act = &shown.body["acts"][0];
    assert_eq!(
        (&act["by"], &act["act"], &act["name"], &act["outcome"]),
        (&json!("ops"), &json!("break"), &json!("a"), &json!("done"))
    );
    let names: Vec<_> =
        shown.body["tokens"].as_array().expect("tokens").iter().map(|token| &token["name"]).collect();
    assert_eq!(names, ["ops", "reader", "unused"]);
    let [first, _, third] = [0, 1, 2].map(|at| &shown.body["tokens"][at]);
    assert!(
        first["used_ago_ms"].as_u64().is_some_and(|ago| ago < Duration::from_secs(60).as_millis() as u64)
    );
    assert!(first["requests"].as_u64() >= Some(3), "{first}");
    assert!(
        third["used_ago_ms"].is_null()
            && third["expires_in_ms"].is_u64()
            && third["allow"][0] == "push refunds"
    );
    assert!(!shown.body.to_string().contains("sha256"), "{shown:?}");
    let answers = |status: u16| {
        let all = shown.body["requests"].as_array().expect("requests");
        all.iter().find(|one| one["status"] == status).map(|one| one["count"].clone())
    };
    // Signing in; and the hold that there is none to break.
    assert_eq!(
        (answers(200), answers(404), answers(500)),
        (Some(json!(1)), Some(json!(1)), None),
        "{shown:?}"
    );
    // By a renewal, by one of many, and by a stream.
    let id = new_id();
    let renewed =
        server.send_with(&format!("POST /v1/claims/{id}/renew"), &bearer(&secret), &json!({"name": "a"}));
    assert_eq!((renewed.status, &shown.body["lost"]), (410, &json!(0)));
    let many = json!({"claims": [{"name": "a", "claim": id}]});
    assert_eq!(
        server.send_with("POST /v1/claims/renew", &bearer(&secret), &many).body["claims"][0]["state"],
        "lost"
    );
    let headers = format!("accept: text/event-stream\r\n{}", bearer(&secret));
    let body = json!({"name": "b", "ttl_ms": 1500});
    let mut stream = Events::open(&server, &format!("PUT /v1/claims/{}", new_id()), &headers, Some(&body));
    let broken = json!({"name": "b", "token": stream.until("granted")["token"], "now": true});
    assert_eq!(server.send_with("POST /v1/resource/break", &bearer(&secret), &broken).status, 200);
    stream.until("lost");
    assert_eq!(ask(server.address, "GET /v1/server", &cookie, None).body["lost"], 3);
    // This connection, and maybe one that is about to end.
    assert!(shown.body["limits"][0]["used"].as_u64() >= Some(1), "{shown:?}");
    let refused = ask(server.address, "GET /v1/server", &bearer(&reader), None);
    assert_eq!(refused.status, 403);
}

#[test]
fn a_key_that_others_may_read_starts_no_server() {
    let directory = TestDirectory::new();
    let file = directory.path().join("cookie.key");
    fs::write(&file, "k".repeat(64)).expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("its mode");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _entered = runtime.enter();
    let tenure = pollster::block_on(tenure_core::memory::connect("key")).expect("a store");
    let options = Options::new("127.0.0.1:0".parse().expect("an address")).cookie_key(&file);
    let refused = tenure_serve::Server::bind(tenure, options).expect_err("others may read it");
    assert!(refused.to_string().contains("chmod 600"), "{refused}");
}
