//! A single Redis server.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use tenure_testkit::redis::{Fsync, RedisOptions, RedisServer};
use tenure_testkit::{Connection, Reply, is_alive, state, wait_for};

#[test]
fn a_server_answers_by_port_and_by_socket() {
    let server = RedisServer::start(RedisOptions::default());
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert!(server.port() >= 20_000);
    assert_eq!(server.command(&["SET", "key", "value"]), "OK");
    let mut connection = Connection::to_port(server.port()).unwrap();
    assert_eq!(connection.ask(&["GET", "key"]).unwrap(), Reply::Bytes(b"value".to_vec()));
    assert_eq!(connection.ask(&["GET", "other"]).unwrap(), Reply::Nil);
    assert_eq!(connection.ask(&["MGET", "key", "other"]).unwrap().parts().len(), 2);
    assert!(matches!(connection.ask(&["GET"]).unwrap(), Reply::Error(_)));
}

#[test]
fn a_killed_server_forgets_unless_it_is_persistent() {
    for (fsync, kept) in [(None, ""), (Some(Fsync::Always), "value"), (Some(Fsync::EverySecond), "value")] {
        let options = RedisOptions::default();
        let options = if let Some(fsync) = fsync { options.persistent(fsync) } else { options };
        let server = RedisServer::start(options);
        server.command(&["SET", "key", "value"]);
        let pid = server.pid();
        server.kill();
        assert!(!is_alive(pid));
        TcpStream::connect(("127.0.0.1", server.port())).expect_err("nobody listens");
        server.restart();
        assert_ne!(server.pid(), pid);
        assert_eq!(server.command(&["GET", "key"]), kept);
    }
}

#[test]
fn a_stopped_server_does_nothing_until_it_continues() {
    let server = RedisServer::start(RedisOptions::default());
    let mut connection = server.connect().unwrap();
    server.stop();
    wait_for("stopped server", || (state(server.pid()) == Some('T')).then_some(()));
    connection.send(&["PING"]).unwrap();
    server.cont();
    assert_eq!(connection.receive().unwrap(), Reply::Bytes(b"PONG".to_vec()));
}

#[test]
fn a_password_is_demanded_and_is_part_of_the_url() {
    let server = RedisServer::start(RedisOptions::default().password("secret"));
    assert!(server.url().starts_with("redis://:secret@127.0.0.1:"));
    assert_eq!(server.command(&["PING"]), "PONG");
    let refused = Connection::to_port(server.port()).unwrap().ask(&["PING"]).unwrap();
    assert!(refused.to_string().starts_with("NOAUTH"), "{refused}");
}

#[test]
fn tls_has_a_certificate_by_the_authority() {
    let server = RedisServer::start(RedisOptions::default().tls());
    assert!(server.url().starts_with("rediss://127.0.0.1:"));
    let mut client = Command::new("openssl");
    client.args(["s_client", "-verify_return_error", "-verify_ip", "127.0.0.1", "-CAfile"]);
    client.arg(server.authority()).arg("-connect").arg(format!("127.0.0.1:{}", server.port()));
    let output = client.stdin(std::process::Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("Verification: OK"), "{text}");
}

#[test]
fn a_server_that_cannot_start_fails_the_test_with_its_log() {
    let failed =
        std::panic::catch_unwind(|| RedisServer::start(RedisOptions::default().line("no-such-line 1")));
    let message = *failed.expect_err("a refused configuration").downcast::<String>().unwrap();
    assert!(message.contains("ended") && message.contains("no-such-line"), "{message}");
}

#[test]
fn a_dropped_server_leaves_nothing() {
    let server = RedisServer::start(RedisOptions::default());
    let (pid, directory) = (server.pid(), server.directory().to_owned());
    drop(server);
    assert!(!is_alive(pid));
    assert!(!directory.parent().unwrap().exists());
}

/// Played by another process, see the next test.
#[test]
fn starts_a_server_and_waits_to_be_killed() {
    let Some(found) = std::env::var_os("TENURE_TESTKIT_FOUND") else { return };
    let server = RedisServer::start(RedisOptions::default());
    let text = format!("{} {}", server.pid(), server.directory().display());
    let found = PathBuf::from(found);
    std::fs::write(found.with_extension("new"), text).unwrap();
    std::fs::rename(found.with_extension("new"), found).unwrap();
    wait_for("end of this process", || None::<()>);
}

#[test]
fn a_killed_test_process_leaves_nothing() {
    let files = tenure_testkit::TestDirectory::new();
    let found = files.path().join("found");
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "redis::single::starts_a_server_and_waits_to_be_killed"]);
    test.env("TENURE_TESTKIT_FOUND", &found).stdout(std::process::Stdio::null());
    let mut test = test.spawn().unwrap();
    let text = wait_for("server", || std::fs::read_to_string(&found).ok());
    let (pid, directory) = text.split_once(' ').unwrap();
    let pid = pid.parse().unwrap();
    assert!(is_alive(pid));
    test.kill().unwrap();
    test.wait().unwrap();
    wait_for("end of the server", || (!is_alive(pid)).then_some(()));
    let site = PathBuf::from(directory).parent().unwrap().to_owned();
    wait_for("removal of its files", || (!site.exists()).then_some(()));
}
