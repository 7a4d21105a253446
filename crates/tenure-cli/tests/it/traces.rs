//! Spans of the command: to a collector, below the caller's span, and above CMD's.

#![cfg(feature = "otlp")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use prost::Message;
use rustix::process::Signal;
use tenure_core::testing::busy::assert_in_time;

use crate::queue::push;
use crate::world::{World, code, finish, now, signal, stderr, stdout, wait_for};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067ab0cd902e7";

/// A collector that takes spans by HTTP and keeps them.
struct Collector {
    port: u16,
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let kept = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                take(stream.expect("a connection"), |request| {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(request);
                });
            }
        });
        Collector { port, requests }
    }

    /// The command, with this collector and a caller's span.
    fn tenure(&self, world: &World, arguments: &[&str]) -> Command {
        let mut command = world.tenure(arguments);
        command
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{}", self.port))
            .env("TRACEPARENT", format!("00-{TRACE}-{CALLER}-01"));
        command
    }

    /// The spans so far, by name.
    fn spans(&self) -> HashMap<String, Span> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        let spans = resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| &scope.spans);
        spans.map(|span| (span.name.clone(), span.clone())).collect()
    }

    /// What the programs say of themselves.
    fn service(&self) -> String {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let resource = requests[0].resource_spans[0].resource.clone().expect("a resource");
        let name = resource.attributes.iter().find(|attribute| attribute.key == "service.name");
        format!("{:?}", name.and_then(|name| name.value.clone()?.value))
    }
}

/// Reads one request, keeps it, and then says that it is well.
fn take(stream: TcpStream, keep: impl Fn(ExportTraceServiceRequest)) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).expect("a head") > 0, "it ended early: {head}");
    }
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut body = vec![0; length.parse().expect("a number")];
    reader.read_exact(&mut body).expect("a body");
    keep(ExportTraceServiceRequest::decode(&*body).expect("spans"));
    let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
    reader.get_mut().write_all(answer).expect("it is read");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(span: &Span, key: &str) -> String {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == key);
    match attribute.and_then(|attribute| attribute.value.clone()?.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_run_stands_between_its_caller_and_its_program() {
    let (world, collector) = (World::new(), Collector::start());
    let script = "echo $TRACEPARENT $TENURE_TOKEN";
    let arguments = ["run", "billing/4711", "--", "sh", "-c", script];
    let output = collector.tenure(&world, &arguments).output().expect("it starts");
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));

    let spans = collector.spans();
    let (command, acquire, hold) = (&spans["tenure run"], &spans["tenure acquire"], &spans["tenure hold"]);
    for span in [command, acquire, hold] {
        assert_eq!(hex(&span.trace_id), TRACE, "{span:?}");
    }
    assert_eq!(hex(&command.parent_span_id), CALLER);
    assert_eq!((&acquire.parent_span_id, &hold.parent_span_id), (&command.span_id, &command.span_id));
    assert_eq!(hold.links.iter().map(|link| &link.span_id).collect::<Vec<_>>(), [&acquire.span_id]);
    let said = stdout(&output);
    let (parent, token) = said.trim().split_once(' ').expect("two words");
    assert_eq!(parent, format!("00-{TRACE}-{}-01", hex(&hold.span_id)), "the program is below the hold");
    assert_eq!(attribute(hold, "tenure.token"), token);
    assert_eq!(attribute(hold, "tenure.resource"), "billing/4711");
    assert_eq!(
        (attribute(acquire, "tenure.outcome"), attribute(hold, "tenure.ended")),
        ("granted".into(), "released".into())
    );
    assert!(collector.service().contains("\"tenure\""), "{}", collector.service());
}

#[test]
fn a_hold_that_is_lost_is_an_error_of_its_trace() {
    let (world, collector) = (World::new(), Collector::start());
    let arguments = ["run", "x", "--ttl", "600ms", "--", "sh", "-c", "echo $$ > pid; sleep 60"];
    let child = collector.tenure(&world, &arguments).stderr(Stdio::piped()).spawn().expect("it starts");
    world.watch(child.id());
    world.pid("pid");
    assert_eq!(code(&world.output(&["release", "x", "--token", &world.token(), "--force"])), 0);
    let output = child.wait_with_output().expect("it ends");
    assert_ne!(code(&output), 0, "{output:?}");
    let spans = collector.spans();
    let hold = spans.get("tenure hold").unwrap_or_else(|| panic!("{output:?}: {spans:#?}"));
    assert_eq!(
        (attribute(hold, "tenure.ended"), attribute(hold, "tenure.loss_reason")),
        ("lost".into(), "refused".into())
    );
    assert_eq!(hold.status.as_ref().map(|status| status.code), Some(StatusCode::Error as i32), "{hold:?}");
    assert_eq!(hold.events.iter().map(|event| &*event.name).collect::<Vec<_>>(), ["lost"]);
}

#[test]
fn an_item_is_worked_on_below_its_delivery() {
    let (world, collector) = (World::new(), Collector::start());
    let item = push(&world, "refunds", &["order 4711"]);
    let arguments = ["queue", "work", "refunds", "--drain", "--", "sh", "-c", "echo $TRACEPARENT"];
    let output = collector.tenure(&world, &arguments).output().expect("it starts");
    assert_eq!(code(&output), 0, "{output:?}");
    let spans = collector.spans();
    let work = &spans["work refunds"];
    assert_eq!(stdout(&output).trim(), format!("00-{TRACE}-{}-01", hex(&work.span_id)));
    assert_eq!(
        (work.kind, &work.parent_span_id),
        (SpanKind::Consumer as i32, &spans["tenure queue"].span_id)
    );
    assert_eq!(attribute(work, "messaging.message.id"), item.to_string());
    assert_eq!(attribute(work, "tenure.ended"), "done");
    assert_eq!(spans["settle refunds"].parent_span_id, work.span_id);
    assert_eq!(spans["take refunds"].kind, SpanKind::Client as i32);
}

#[test]
fn a_collector_that_is_away_or_hangs_costs_a_second_at_the_end() {
    let world = World::new();
    let hangs = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = hangs.local_addr().expect("an address").port();
    for endpoint in [
        "http://127.0.0.1:1".to_owned(),
        format!("http://127.0.0.1:{port}"),
        "http://me:secret@[nonsense".to_owned(),
    ] {
        let mut command = world.tenure(&["run", "x", "--", "sh", "-c", "exit 7"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
        let began = now();
        let output = command.output().expect("it starts");
        assert_in_time(began.elapsed(), Duration::from_secs(4));
        assert_eq!(code(&output), 7, "{output:?}");
        assert!(stderr(&output).contains("no spans are sent: "), "it is told: {output:?}");
        assert!(!stderr(&output).contains("secret"), "{output:?}");
    }
}

#[test]
fn without_a_collector_the_program_has_the_callers_span() {
    let world = World::new();
    let mut command = world.tenure(&["run", "x", "--", "sh", "-c", "echo $TRACEPARENT"]);
    let output = command.env("TRACEPARENT", "as it is").env_remove("OTEL_EXPORTER_OTLP_ENDPOINT").output();
    assert_eq!(stdout(&output.expect("it starts")), "as it is\n");
}

#[test]
fn the_work_on_an_item_is_linked_to_its_push() {
    let (world, collector) = (World::new(), Collector::start());
    let output = collector.tenure(&world, &["queue", "push", "refunds", "order 4711"]).output();
    assert_eq!(code(&output.expect("it starts")), 0);
    let of_push = collector.spans()["push refunds"].clone();
    let traceparent = format!("00-{TRACE}-{}-01", hex(&of_push.span_id));
    let listed = stdout(&world.output(&["queue", "peek", "refunds", "--json"]));
    assert!(listed.contains(&traceparent), "{listed}");
    let script = "echo $TENURE_CONTEXT $TRACEPARENT";
    let arguments = ["queue", "work", "refunds", "--drain", "--", "sh", "-c", script];
    let output = collector.tenure(&world, &arguments).output().expect("it starts");
    let spans = collector.spans();
    let work = &spans["work refunds"];
    assert_eq!(stdout(&output), format!("{traceparent} 00-{TRACE}-{}-01\n", hex(&work.span_id)));
    let links: Vec<_> = work.links.iter().map(|link| link.span_id.clone()).collect();
    // The first is the take, of which there is another, in vain.
    assert_eq!(links[1..], [of_push.span_id]);
    assert_eq!(attribute(work, "tenure.context"), traceparent);
}

#[test]
fn a_request_to_a_server_stands_between_its_client_and_the_claim() {
    const CLIENT: &str = "0123456789abcdef";
    const OTHER: &str = "0af7651916cd43dd8448eb211c80319c";
    let (world, collector) = (World::new(), Collector::start());
    let socket = world.path("socket");
    let listen = format!("unix:{}", socket.display());
    let mut server = collector.tenure(&world, &["serve", "--listen", &listen, "--drain", "1s"]);
    // Nothing of a span is in the log.
    let server = server.env("TENURE_LOG", "debug").stderr(Stdio::piped()).spawn().expect("it starts");
    world.watch(server.id());
    let claim = |id: char, name: &str, parent: &str| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--request", "PUT", "--json", &format!("{{\"name\": \"{name}\"}}")]);
        curl.args(["--header", &format!("traceparent: {parent}"), "--unix-socket"]).arg(&socket);
        let path = format!("http://localhost/v1/claims/{}", String::from(id).repeat(32));
        let output = curl.arg(path).output().expect("curl");
        output.status.success().then(|| stdout(&output))
    };
    let parent = format!("00-{OTHER}-{CLIENT}-01");
    let granted = wait_for("a server", || claim('a', "billing/4711", &parent));
    assert!(granted.contains("\"granted\""), "{granted}");
    signal(server.id(), Signal::TERM);
    let output = finish(server);
    assert_eq!(code(&output), 0, "{output:?}");
    let (log, spans) = (stderr(&output), collector.spans());
    assert!(!log.contains("tenure request"), "{log}");
    let (request, acquire) = (&spans["PUT /v1/claims/{claim}"], &spans["tenure acquire"]);
    assert_eq!((request.kind, hex(&request.trace_id)), (SpanKind::Server as i32, OTHER.to_owned()));
    assert_eq!(hex(&request.parent_span_id), CLIENT);
    assert_eq!(
        (attribute(request, "http.route"), attribute(request, "http.response.status_code")),
        ("/v1/claims/{claim}".into(), "200".into())
    );
    assert_eq!(attribute(request, "tenure.resource"), "billing/4711");
    assert_eq!((&acquire.trace_id, &acquire.parent_span_id), (&request.trace_id, &request.span_id));
}

#[test]
fn a_request_with_a_parent_that_is_none_begins_a_trace() {
    let (world, collector) = (World::new(), Collector::start());
    let socket = world.path("socket");
    let listen = format!("unix:{}", socket.display());
    let server = collector.tenure(&world, &["serve", "--listen", &listen, "--drain", "1s"]).spawn();
    let server = server.expect("it starts");
    world.watch(server.id());
    wait_for("an answer", || {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--header", "traceparent: nonsense", "--unix-socket"]).arg(&socket);
        let output = curl.arg("http://localhost/healthz").output().expect("curl");
        output.status.success().then_some(())
    });
    signal(server.id(), Signal::TERM);
    assert_eq!(code(&finish(server)), 0);
    let spans = collector.spans();
    let request = &spans["GET /healthz"];
    assert!(request.parent_span_id.is_empty(), "{request:?}");
    // Nor is it the trace in which the server was started, for as long as that runs.
    assert_ne!(hex(&request.trace_id), TRACE);
}
