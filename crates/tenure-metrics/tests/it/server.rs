//! The page on an address of its own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pollster::block_on;
use tenure_core::Settings;
use tenure_metrics::{Address, Server};

use crate::page::client;

fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

fn start(address: &str) -> (Server, impl Sized + use<>) {
    let (clock, store, tenure) = client(Settings::new().counts(true));
    drop(block_on(tenure.mutex("billing/1").acquire()).expect("free"));
    let counted = tenure.clone();
    let address: Address = address.parse().expect("an address");
    let server = Server::start(&address, move || vec![counted.counts()]).expect("it is free");
    (server, (clock, store, tenure))
}

fn tcp(server: &Server) -> TcpStream {
    let Address::Tcp(address) = server.address() else { panic!("it is by TCP") };
    let stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    stream
}

#[test]
fn a_server_of_metrics_is_answered_in_the_format_that_it_accepts() {
    let (server, _client) = start("127.0.0.1:0");
    let plain = ask(tcp(&server), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(plain.starts_with("HTTP/1.1 200 OK\r\n"), "{plain}");
    assert!(plain.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{plain}");
    assert!(plain.contains(r#"scope="billing/*",outcome="granted"} 1"#), "{plain}");
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let open = ask(tcp(&server), &format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"));
    assert!(
        open.contains("content-type: application/openmetrics-text") && open.ends_with("# EOF\n"),
        "{open}"
    );
    let elsewhere = ask(tcp(&server), "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(elsewhere.starts_with("HTTP/1.1 404 "), "{elsewhere}");
    let posted = ask(tcp(&server), "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    assert!(posted.starts_with("HTTP/1.1 405 ") && posted.contains("allow: GET, HEAD\r\n"), "{posted}");
}

#[test]
fn a_crowd_that_comes_before_anybody_is_accepted_is_not_forgotten() {
    const CROWD: usize = 300;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _entered = runtime.enter();
    let by_tcp: Address = "127.0.0.1:0".parse().expect("an address");
    let (_listener, by_tcp) = by_tcp.listen().expect("it is free");
    let Address::Tcp(address) = by_tcp else { panic!("it is by TCP") };
    let connect = |number| {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(30));
        stream.unwrap_or_else(|error| panic!("connection {number}: {error}"))
    };
    let crowd: Vec<TcpStream> = (0..CROWD).map(connect).collect();
    drop(crowd);
    let path = std::env::temp_dir().join(format!("tenure-crowd-{}.sock", std::process::id()));
    let (_listener, _) = Address::Unix(path.clone()).listen().expect("it is free");
    let connect = |number| {
        // One that waits for room would wait for ever.
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::NONBLOCK,
            None,
        );
        let socket = socket.expect("a socket");
        let file = rustix::net::SocketAddrUnix::new(&path).expect("a path");
        rustix::net::connect(&socket, &file).unwrap_or_else(|error| panic!("connection {number}: {error}"));
        socket
    };
    let crowd: Vec<_> = (0..CROWD).map(connect).collect();
    std::fs::remove_file(&path).expect("removed");
    drop(crowd);
}

#[test]
fn readers_that_say_nothing_hold_up_the_others_for_5_seconds_at_most() {
    let (server, _client) = start("127.0.0.1:0");
    let silent: Vec<TcpStream> = (0..8).map(|_| tcp(&server)).collect();
    let answer = ask(tcp(&server), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    drop(silent);
}

#[test]
fn a_socket_of_a_killed_process_is_replaced_and_removed_at_the_end() {
    let path = std::env::temp_dir().join(format!("tenure-metrics-{}.sock", std::process::id()));
    drop(std::os::unix::net::UnixListener::bind(&path).expect("free"));
    let (server, _client) = start(&format!("unix:{}", path.display()));
    let answer =
        ask(UnixStream::connect(&path).expect("connects"), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let mode = std::fs::metadata(&path).expect("it is there").permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    drop(server);
    assert!(!path.exists());
}

#[test]
fn what_is_no_address_says_what_is() {
    for text in ["9184", "localhost:9184", "unix:", ""] {
        let error = text.parse::<Address>().expect_err("no address");
        assert!(error.contains("unix:/run/job.sock"), "{error}");
    }
}

#[test]
fn a_file_that_is_no_socket_is_not_removed() {
    let path = std::env::temp_dir().join(format!("tenure-metrics-{}.txt", std::process::id()));
    std::fs::write(&path, "mine").expect("a file");
    let address: Address = format!("unix:{}", path.display()).parse().expect("an address");
    let error = Server::start(&address, Vec::new).expect_err("something is there");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "mine");
    std::fs::remove_file(&path).expect("it is there");
}
