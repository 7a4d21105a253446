//! Second users and strange peers: what they cannot do to a lock, and what `doctor` says of what they could.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use tenure_core::{ErrorKind, Settings, Tenure};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tenure_testkit::{SqlConnection, wait_for};

use crate::conformance::connector;
use crate::crew::connect;

fn start() -> (PostgresServer, SqlConnection) {
    let server = PostgresServer::start(&PostgresOptions::default());
    let admin = server.connect().expect("it answers");
    (server, admin)
}

fn refused(url: &str) -> tenure_core::Error {
    let connected = pollster::block_on(Tenure::connect_with(connector(url), Settings::default()));
    connected.err().unwrap_or_else(|| panic!("{url}: it must not connect"))
}

/// A peer that has no TLS, asks for the password in clear text, and notes all that it is told.
fn peer() -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let noted = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let noted = noted.clone();
            std::thread::spawn(move || ask_for_password(stream, &noted));
        }
    });
    (port, heard)
}

fn ask_for_password(mut stream: TcpStream, noted: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        noted.lock().expect("no panic").extend(&bytes[..count]);
        let is_for_tls = bytes[..count] == [0, 0, 0, 8, 4, 210, 22, 47];
        let answer: &[u8] = if is_for_tls { b"N" } else { b"R\0\0\0\x08\0\0\0\x03" };
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}

#[test]
fn a_peer_without_tls_is_told_no_password() {
    let (port, heard) = peer();
    let url = format!("postgres://app:hunter2@127.0.0.1:{port}/app");
    for setting in ["?ca=/nonexistent/ca.pem", "?sslmode=require", "?sslmode=require&ca=/nonexistent/ca.pem"]
    {
        let error = refused(&format!("{url}{setting}"));
        let heard = heard.lock().expect("no panic").clone();
        let text = String::from_utf8_lossy(&heard);
        assert!(!text.contains("hunter2") && !text.contains("user"), "{setting}: {text:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{setting}: {error}");
    }
}

#[test]
fn a_password_is_never_sent_in_clear_text() {
    let (port, heard) = peer();
    let error = refused(&format!("postgres://app:hunter2@127.0.0.1:{port}/app"));
    let text = String::from_utf8_lossy(&heard.lock().expect("no panic")).into_owned();
    assert!(text.contains("user") && !text.contains("hunter2"), "{text:?}");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("sslmode=require")), "{error:?}");
}

#[test]
fn a_server_that_wants_clear_text_gets_it_by_tls_only() {
    let server = PostgresServer::start(&PostgresOptions::default().tls());
    let mut admin = server.connect().expect("it answers");
    admin.run("CREATE ROLE locks LOGIN PASSWORD 'swordfish'");
    admin.run("GRANT CREATE ON SCHEMA public TO locks");
    let access = server.server().directory().join("data/pg_hba.conf");
    std::fs::write(&access, "host all postgres all trust\nhost all all all password\n").expect("a file");
    admin.run("SELECT pg_reload_conf()");
    let url = server.url().replace("//postgres@", "//locks:swordfish@");
    assert_eq!(refused(&url).kind(), ErrorKind::Invalid);
    let private = connect(&format!("{url}?ca={}", server.ca().display()));
    pollster::block_on(private.mutex("m").acquire()).expect("it is free");
    // A proof of the password may go in the open.
    std::fs::write(&access, "host all all all scram-sha-256\n").expect("a file");
    admin.run("SELECT pg_reload_conf()");
    let open = wait_for("the new rules", || {
        pollster::block_on(Tenure::connect_with(connector(&url), Settings::default())).ok()
    });
    pollster::block_on(open.mutex("n").acquire()).expect("it is free");
    // The one without TLS at all, where TLS was asked for.
    let (other, _) = start();
    for setting in ["ca=/nonexistent/ca.pem".to_owned(), format!("ca={}", server.ca().display())] {
        let error = refused(&format!("{}?{setting}", other.url()));
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("TLS"), "{error}");
    }
}
