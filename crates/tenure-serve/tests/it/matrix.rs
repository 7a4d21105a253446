//! Who is let in by no route: each operation of `openapi.json`, with each token that may not use it. That the document has all routes is tested
//! in `openapi.rs`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::access::{Tokens, bearer, made};
use crate::http::{PATIENCE, Serving, anywhere, ask, now, until};
use crate::openapi::{Operation, operations};

/// The operations that are not for everybody, and some of them with other parameters.
fn rows() -> Vec<Operation> {
    let mut rows: Vec<Operation> = operations();
    rows.retain(|row| !row.is_public);
    assert!(rows.len() >= 25, "{}", rows.len());
    let more = [
        ("/v1/resources", "?prefix=billing/&kind=mutex&holder=x&brief=true"),
        ("/v1/events", "?prefix=billing/"),
        ("/v1/queue/items", "?queue=billing/1&which=dead&payloads=false"),
    ];
    for (path, query) in more {
        let mut again = operations();
        again.retain(|row| row.path == path);
        again.iter_mut().for_each(|row| row.target = format!("{path}{query}"));
        rows.extend(again);
    }
    rows
}

#[test]
fn no_route_lets_in_who_may_not_use_it_and_none_of_them_costs_redis_anything() {
    let rows = rows();
    let public: Vec<Operation> = operations().into_iter().filter(|row| row.is_public).collect();
    let paths: Vec<&str> = public.iter().map(|row| &*row.path).collect();
    let health = ["/healthz", "/readyz", "/v1/openapi.json", "/v1/problems/{kind}"];
    assert_eq!(paths, [&health[..], &["/v1/sign-in"; 2]].concat(), "who adds one must mean it");
    let redis = RedisServer::start(RedisOptions::default());
    let verbs = ["claim", "read", "operate", "push", "take", "payload", "metrics"];
    let elsewhere: Vec<String> = verbs.iter().map(|verb| format!("{verb} other/")).collect();
    let elsewhere: Vec<&str> = elsewhere.iter().map(String::as_str).collect();
    let (other, of_other) = made("other", &elsewhere);
    let (expired, of_expired) = made("expired", &verbs);
    let of_expired = of_expired.replace("allow", "expires = 2001-01-01\nallow");
    let (revoked, of_revoked) = made("revoked", &verbs);
    let (all, of_all) = made("all", &verbs);
    let (wrong, _) = made("wrong", &verbs);
    let tokens = Tokens::new(&format!("{of_other}{of_expired}{of_revoked}{of_all}"));
    let server = Serving::url(&redis.url(), anywhere().tokens(tokens.file()));
    let send = |row: &Operation, headers: &str| {
        let body = Some(&row.body).filter(|body| !body.is_null());
        ask(server.address, &format!("{} {}", row.method, row.target), headers, body)
    };
    // So that the rows are known to be good but for who sends them. Two of them go on for long.
    let is_good = |row: &&Operation| row.path != "/v1/queue/take" && row.path != "/v1/events";
    for row in rows.iter().filter(is_good) {
        let answer = send(row, &bearer(&all));
        assert!(
            ![400, 401, 403, 405, 415].contains(&answer.status),
            "{} {}: {answer:?}",
            row.method,
            row.target
        );
    }
    tokens.write(&format!("{of_other}{of_expired}{of_all}"));
    server.control.reload();
    until("the token is taken away", || (send(&rows[0], &bearer(&revoked)).status == 401).then_some(()));
    let asked = || -> Vec<String> {
        let stats = redis.command(&["INFO", "commandstats"]);
        let is_asked = |line: &&str| line.starts_with("cmdstat_f") || line.starts_with("cmdstat_scan");
        let lines = stats.lines().filter(is_asked);
        lines.map(|line| line.split(',').next().unwrap_or_default().to_owned()).collect()
    };
    // What the good ones have begun is over.
    let before = until("the store rests", || {
        let (began, before) = (now(), asked());
        until("a while", || (began.elapsed() > Duration::from_millis(1200)).then_some(()));
        (asked() == before).then_some(before)
    });
    for row in &rows {
        let operation = format!("{} {}", row.method, row.target);
        // An address may guess so often a second, and no more.
        let send = |headers: &str| {
            until("not too fast", || Some(send(row, headers)).filter(|answer| answer.status != 429))
        };
        let nobody = String::new();
        for (who, headers) in [
            ("nobody", nobody),
            ("wrong", bearer(&wrong)),
            ("expired", bearer(&expired)),
            ("revoked", bearer(&revoked)),
        ] {
            let answer = send(&headers);
            assert_eq!((answer.status, answer.kind()), (401, "unauthorized"), "{who}: {operation}");
        }
        let answer = send(&bearer(&other));
        match &*row.path {
            // It has an answer for each.
            "/v1/claims/renew" => {
                assert_eq!(answer.body["claims"][0]["problem"]["kind"], "forbidden", "{answer:?}")
            }
            // It tells somebody who they are.
            "/v1/sign-in" => assert_eq!(answer.body["name"], "other", "{answer:?}"),
            _ => assert_eq!((answer.status, answer.kind()), (403, "forbidden"), "{operation}"),
        }
    }
    assert_eq!(asked(), before, "the store was asked something");
}

#[test]
fn ten_thousand_guesses_are_answered_twenty_times_a_second() {
    let (_, entry) = made("billing", &["claim"]);
    let tokens = Tokens::new(&entry);
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    let began = now();
    let mut stream = TcpStream::connect(server.address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut writer = stream.try_clone().expect("a copy");
    let guessing = std::thread::spawn(move || {
        for at in 0..10_000 {
            let last = if at == 9_999 { "connection: close\r\n" } else { "" };
            let guess = format!(
                "GET /v1/doctor HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer tnr_{at}\r\n{last}\r\n"
            );
            writer.write_all(guess.as_bytes()).expect("a guess");
        }
    });
    let mut answers = String::new();
    stream.read_to_string(&mut answers).expect("answers");
    guessing.join().expect("no panic");
    let count = |status: u16| answers.matches(&format!("HTTP/1.1 {status} ")).count();
    let may = 20 + 20 * (began.elapsed().as_secs() as usize + 1);
    assert!(count(401) <= may, "{} of 10,000 guesses were looked at", count(401));
    assert_eq!(count(401) + count(429), 10_000);
}
