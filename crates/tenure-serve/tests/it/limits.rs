//! What nobody may cost the server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;
use tenure_core::testing::busy::assert_in_time;

use crate::http::{PATIENCE, Serving, anywhere, new_id, now, open, read, text_of};
use crate::metrics::{counting, number};

fn connect(server: &Serving) -> TcpStream {
    let stream = TcpStream::connect(server.address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Returns the status of a request that is written as it stands.
pub(crate) fn raw(server: &Serving, request: &[u8]) -> u16 {
    let mut stream = connect(server);
    // The server may answer and close before all is written.
    stream.write_all(request).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("no answer: {text:?}"))
}

#[test]
fn heads_are_bounded() {
    let server = Serving::memory(anywhere());
    let head =
        |more: &str| format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n");
    let fields = |count: usize| (0..count).map(|at| format!("x-{at}: 1\r\n")).collect::<String>();
    assert_eq!(raw(&server, head(&fields(60)).as_bytes()), 200);
    assert_eq!(raw(&server, head(&fields(80)).as_bytes()), 431);
    assert_eq!(raw(&server, head(&format!("x: {}\r\n", "a".repeat(8 * 1024))).as_bytes()), 200);
    assert_eq!(raw(&server, head(&format!("x: {}\r\n", "a".repeat(20 * 1024))).as_bytes()), 431);
}

#[test]
fn bodies_are_bounded_whether_or_not_they_say_how_long_they_are() {
    let server = Serving::memory(anywhere());
    let head = format!(
        "PUT /v1/claims/{} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n",
        new_id()
    );
    // Refused before a byte of it is there.
    assert_eq!(raw(&server, format!("{head}content-length: 1048577\r\n\r\n").as_bytes()), 413);
    let mut chunked = format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes();
    for _ in 0..17 {
        chunked.extend(format!("10000\r\n{}\r\n", " ".repeat(0x10000)).as_bytes());
    }
    assert_eq!(raw(&server, &chunked), 413);
    let deep = "[".repeat(10_000);
    assert_eq!(raw(&server, format!("{head}content-length: {}\r\n\r\n{deep}", deep.len()).as_bytes()), 400);
    let body = json!({"name": "a"}).to_string();
    let padded = format!("{body}{}", " ".repeat(1024 * 1024 - body.len()));
    assert_eq!(
        raw(&server, format!("{head}content-length: {}\r\n\r\n{padded}", padded.len()).as_bytes()),
        200
    );
}

/// Returns how long a connection lasts on which so much is sent, a byte every half second, and then nothing.
fn lasts(server: &Serving, begin: &str, bytes: usize) -> Duration {
    let began = now();
    let mut stream = connect(server);
    stream.write_all(begin.as_bytes()).expect("a beginning");
    let mut writer = stream.try_clone().expect("a copy");
    let slowly = std::thread::spawn(move || {
        for _ in 0..bytes {
            tenure_testkit::wait_for("a while", {
                let at = now();
                move || (at.elapsed() > Duration::from_millis(500)).then_some(())
            });
            if writer.write_all(b"a").is_err() {
                return;
            }
        }
    });
    let mut answer = Vec::new();
    // A reset is an end as well.
    stream.read_to_end(&mut answer).ok();
    let lasted = began.elapsed();
    slowly.join().expect("no panic");
    lasted
}

#[test]
fn slow_clients_lose_their_connections() {
    let server = Serving::memory(anywhere());
    let put = format!(
        "PUT /v1/claims/{} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n",
        new_id()
    );
    let late = format!("{put}content-length: 100\r\n\r\n");
    let (server, put, late) = (&server, &*put, &*late);
    std::thread::scope(|threads| {
        for (begin, bytes, most) in
            [("", 0, 5), ("GET", 0, 5), ("GET /healthz HTTP/1.1\r\nx: ", 30, 5), (put, 0, 5), (late, 30, 10)]
        {
            threads.spawn(move || {
                let lasted = lasts(server, begin, bytes);
                assert!(lasted >= Duration::from_millis(most * 1000 - 500), "{begin:?} lasted {lasted:?}");
                assert_in_time(lasted, Duration::from_secs(most + 2));
            });
        }
        assert_eq!(server.ask("GET /healthz").status, 200, "others do not notice");
    });
}

#[test]
fn who_reads_no_answer_has_few_made_and_loses_its_connection() {
    let server = counting(anywhere());
    let page = || text_of(&mut open(server.address, "GET /metrics", "", None)).1;
    let mut stream = connect(&server);
    stream.set_write_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    let requests = b"GET /v1/server HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(500);
    // Until nothing is taken any more: neither side reads.
    while stream.write_all(&requests).is_ok() {}
    let began = now();
    let made = number(&page(), r#"tenure_http_requests_total{route="/v1/server",method="GET",status="200"}"#);
    assert!(made < 5_000.0, "{made} answers that nobody reads");
    tenure_testkit::wait_for("an end of the connection", || {
        (number(&page(), r#"tenure_http_refused_total{reason="slow"}"#) == 1.0).then_some(())
    });
    assert_in_time(began.elapsed(), Duration::from_secs(12));
}

#[test]
fn there_are_so_many_connections_and_others_wait_in_line() {
    let server = Serving::memory(anywhere().connections_max(2));
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let put = json!({"name": "a"});
    assert_eq!(server.send(&format!("PUT /v1/claims/{}", new_id()), &put).status, 200);
    let open: Vec<_> = (0..2).map(|_| server.begin(&format!("PUT /v1/claims/{}", new_id()), &put)).collect();
    crate::http::until_waiting(&server.tenure, "a", 2);
    let mut late = connect(&server);
    late.write_all(request).expect("a request");
    late.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    assert!(late.read(&mut [0; 1]).is_err(), "it is not let in");
    drop(open);
    late.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    assert_eq!(read(&mut late).status, 200);
}

#[test]
fn a_connection_rests_between_requests() {
    let server = Serving::memory(anywhere());
    let mut stream = connect(&server);
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut answer = [0; 4096];
    stream.write_all(request).expect("a request");
    let count = stream.read(&mut answer).expect("an answer");
    assert!(answer[..count].starts_with(b"HTTP/1.1 200"));
    // Longer than a head may take.
    tenure_testkit::wait_for("a rest", {
        let at = now();
        move || (at.elapsed() > Duration::from_millis(5500)).then_some(())
    });
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .expect("a request");
    assert_eq!(read(&mut stream).status, 200);
}
