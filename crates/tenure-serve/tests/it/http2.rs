//! HTTP/2: many requests on one connection. Those that are reset have ended, and the others do not notice.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use hyper::Request;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::TestDirectory;

use crate::http::{PATIENCE, Serving, anywhere, new_id, now, until, until_waiting};

type Client = SendRequest<Bytes>;

async fn connect(server: &Serving) -> Client {
    let stream = tokio::net::TcpStream::connect(server.address).await.expect("a connection");
    let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    // It ends with an error where the server ends it.
    tokio::spawn(async move { connection.await.ok() });
    client
}

/// Begins a request. Dropping or resetting its stream ends it.
async fn begin(
    client: &Client,
    method: &str,
    path: &str,
    body: &Value,
) -> (ResponseFuture, SendStream<Bytes>) {
    let request = Request::builder().method(method).uri(format!("http://localhost{path}"));
    let request = request.header("content-type", "application/json").body(()).expect("a request");
    let mut client = client.clone().ready().await.expect("room for a request");
    let (answer, mut stream) = client.send_request(request, body.is_null()).expect("a stream");
    if !body.is_null() {
        stream.send_data(body.to_string().into(), true).expect("a body");
    }
    (answer, stream)
}

/// Returns the status of an answer, and its body.
async fn said(answer: ResponseFuture) -> (u16, Value) {
    let response = tokio::time::timeout(PATIENCE, answer).await.expect("in time").expect("an answer");
    let (status, mut body) = (response.status().as_u16(), response.into_body());
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.expect("a piece");
        body.flow_control().release_capacity(piece.len()).expect("room");
        bytes.extend(piece);
    }
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

async fn ask(client: &Client, method: &str, path: &str, body: &Value) -> (u16, Value) {
    said(begin(client, method, path, body).await.0).await
}

fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(work);
}

#[test]
fn a_request_that_is_reset_is_a_client_that_has_gone_and_the_others_go_on() {
    let directory = TestDirectory::new();
    let server = Serving::url(&format!("local:{}", directory.path().display()), anywhere());
    run(async {
        let client = connect(&server).await;
        let put = |id: &str| format!("/v1/claims/{id}");
        let body = json!({"name": "a", "linger_ms": 100});
        let (holder, gone, waits) = (new_id(), new_id(), new_id());
        assert_eq!(ask(&client, "PUT", &put(&holder), &body).await.0, 200);
        let (_answer, mut stream) = begin(&client, "PUT", &put(&gone), &body).await;
        until_waiting(&server.tenure, "a", 1);
        let (waiting, _stream) = begin(&client, "PUT", &put(&waits), &body).await;
        until_waiting(&server.tenure, "a", 2);
        stream.send_reset(Reason::CANCEL);
        // After it has lingered.
        until_waiting(&server.tenure, "a", 1);
        assert_eq!(ask(&client, "DELETE", &format!("{}?name=a", put(&holder)), &Value::Null).await.0, 200);
        let (status, granted) = said(waiting).await;
        assert_eq!((status, &granted["claim"]), (200, &json!(waits)), "{granted}");
        let (status, finished) = ask(&client, "PUT", &put(&gone), &body).await;
        assert_eq!((status, &finished["kind"]), (410, &json!("finished")));
    });
}

#[test]
fn a_connection_has_256_requests_and_no_foreign_name() {
    let server = Serving::memory(anywhere());
    run(async {
        let client = connect(&server).await;
        // The first answer comes after the server's settings.
        assert_eq!(ask(&client, "GET", "/healthz", &Value::Null).await.0, 200);
        // page: docs/operating/serve.md "256 requests"
        assert_eq!(client.current_max_send_streams(), 256);
        let foreign = Request::get("http://rebound.example/healthz").body(()).expect("a request");
        let mut ready = client.clone().ready().await.expect("room for a request");
        let (status, _) = said(ready.send_request(foreign, true).expect("a stream").0).await;
        assert_eq!(status, 403);
        let mut many = Request::get("http://localhost/healthz");
        for at in 0..80 {
            many = many.header(format!("x-{at}"), "1");
        }
        let many = many.body(()).expect("a request");
        let (status, _) =
            said(ready.ready().await.expect("room").send_request(many, true).expect("a stream").0).await;
        assert_eq!(status, 400);
        // A body that ends early, and one that is too large, are their requests' alone.
        let large = Value::from("a".repeat(1024 * 1024 + 1));
        let (status, problem) = ask(&client, "POST", "/v1/queue/push", &large).await;
        assert_eq!((status, &problem["kind"]), (413, &json!("too_large")));
        assert_eq!(ask(&client, "GET", "/healthz", &Value::Null).await.0, 200);
    });
}

#[test]
fn who_is_answered_before_its_body_was_read_is_not_reset_by_that() {
    let server = Serving::memory(anywhere());
    run(async {
        let client = connect(&server).await;
        let asks = |path: &str| {
            let request = Request::post(format!("http://localhost{path}"));
            request.header("content-type", "application/json").body(()).expect("a request")
        };
        let mut ready = client.clone().ready().await.expect("room for a request");
        let (answer, mut stream) = ready.send_request(asks("/v1/nothing"), false).expect("a stream");
        assert_eq!(said(answer).await.0, 404);
        // A reset would have come before this answer.
        assert_eq!(ask(&client, "GET", "/healthz", &Value::Null).await.0, 200);
        stream.send_data("{".into(), false).expect("it may still send");
        assert_eq!(ask(&client, "GET", "/healthz", &Value::Null).await.0, 200);
        stream.send_data("}".into(), true).expect("it may still send");
        // More than any small body is not taken.
        let (answer, mut stream) = ready.send_request(asks("/v1/nothing"), false).expect("a stream");
        assert_eq!(said(answer).await.0, 404);
        for _ in 0..5 {
            stream.send_data(vec![b' '; 4096].into(), false).expect("room for it");
        }
        let reset = std::future::poll_fn(|cx| stream.poll_reset(cx));
        tokio::time::timeout(PATIENCE, reset).await.expect("in time").expect("a reset");
        assert_eq!(ask(&client, "GET", "/healthz", &Value::Null).await.0, 200);
    });
}

#[test]
fn a_server_that_ends_answers_what_waits_and_lets_go_of_the_connection() {
    let mut server = Serving::memory(anywhere());
    let (holder, waiter) = (new_id(), new_id());
    server.send(&format!("PUT /v1/claims/{holder}"), &json!({"name": "a"}));
    run(async {
        let client = connect(&server).await;
        let put = format!("/v1/claims/{waiter}");
        let (waiting, _stream) = begin(&client, "PUT", &put, &json!({"name": "a"})).await;
        until_waiting(&server.tenure, "a", 1);
        server.control.drain();
        assert_eq!(said(waiting).await.0, 202);
        until("the connection ends", || {
            let ended = futures_util::FutureExt::now_or_never(client.clone().ready());
            matches!(ended, Some(Err(_))).then_some(())
        });
    });
    server.ended();
}

#[test]
fn who_begins_http_2_and_asks_nothing_loses_the_connection() {
    let server = Serving::memory(anywhere());
    let began = now();
    let mut stream = TcpStream::connect(server.address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // The preface, and settings without any.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("a beginning");
    // A reset is an end as well.
    stream.read_to_end(&mut Vec::new()).ok();
    assert!(began.elapsed() > Duration::from_millis(4500), "{:?}", began.elapsed());
    assert_in_time(began.elapsed(), Duration::from_secs(7));
}
