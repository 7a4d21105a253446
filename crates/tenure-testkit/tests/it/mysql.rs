//! MariaDB servers.

use std::cell::RefCell;
use std::net::TcpStream;
use std::time::Duration;

use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer, shared};
use tenure_testkit::{SqlConnection, is_alive, wait_for};

fn start() -> MariaDbServer {
    MariaDbServer::start(&MariaDbOptions::default())
}

#[test]
fn a_server_that_starts_takes_no_temporary_table_of_another() {
    let first = start();
    let mut connection = first.connect().unwrap();
    connection.ask("CREATE TEMPORARY TABLE kept (value INT) ENGINE=MyISAM", &[]).unwrap();
    start();
    connection.ask("FLUSH TABLES", &[]).unwrap();
    connection.ask("DROP TEMPORARY TABLE kept", &[]).unwrap();
}

#[test]
fn a_server_answers_with_values_rows_and_refusals() {
    let server = start();
    assert!(server.port() >= 20_000);
    assert_eq!(server.url(), format!("mysql://root@127.0.0.1:{}/test", server.port()));
    let mut connection = server.connect().unwrap();
    let number = i64::MIN;
    let answer = connection.ask("SELECT ?, ?, NULL", &[number.into(), "a'b".into()]).unwrap();
    assert_eq!(answer.rows, [[Some(number.to_string()), Some("a'b".to_owned()), None]]);
    assert_eq!(connection.run("SELECT -1, NULL").rows, [[Some("-1".to_owned()), None]]);
    connection.run("CREATE TABLE t (id INT PRIMARY KEY, n INT)");
    assert_eq!(connection.run("INSERT INTO t VALUES (1, 1), (2, 2)").affected, 2);
    assert_eq!(connection.run("INSERT INTO t VALUES (3, 3)").affected, 1);
    assert_eq!(connection.ask("INSERT INTO t VALUES (1, 1)", &[]).unwrap_err().code, "23000");
    let wrong = connection.ask("SELECT ? FROM no_such_table", &[1.into()]).unwrap_err();
    assert_eq!(wrong.code, "42S02");
    assert_eq!(connection.run("SELECT count(*) FROM t").first(), Some("3"), "it goes on after a refusal");
}

#[test]
fn rows_that_stay_as_they_were_count_as_the_client_wishes() {
    let server = start();
    server.connect().unwrap().run("CREATE TABLE t AS SELECT 1 AS n");
    for (counts_found, affected) in [(false, 0), (true, 1)] {
        let mut connection = SqlConnection::to_mariadb(server.port(), "root", "test", counts_found).unwrap();
        assert_eq!(connection.ask("UPDATE t SET n = ?", &[1.into()]).unwrap().affected, affected);
    }
}

#[test]
fn a_killed_server_keeps_what_was_committed() {
    let server = MariaDbServer::start(&MariaDbOptions::default().setting("lock-wait-timeout", "7"));
    let mut connection = server.connect().unwrap();
    assert_eq!(connection.run("SELECT @@lock_wait_timeout").first(), Some("7"));
    connection.run("CREATE TABLE t AS SELECT 7 AS n");
    let pid = server.pid();
    server.kill();
    assert!(!is_alive(pid));
    TcpStream::connect(("127.0.0.1", server.port())).expect_err("nobody listens");
    assert!(connection.ask("SELECT 1", &[]).unwrap_err().is_unknown());
    server.restart();
    assert_eq!(server.connect().unwrap().run("SELECT n FROM t").first(), Some("7"));
}

#[test]
fn a_stopped_server_does_nothing_until_it_continues() {
    let server = start();
    let mut connection = server.connect().unwrap();
    server.stop();
    wait_for("stopped server", || (tenure_testkit::state(server.pid()) == Some('T')).then_some(()));
    let asking = std::thread::spawn(move || connection.run("SELECT 1"));
    server.cont();
    assert_eq!(asking.join().unwrap().first(), Some("1"));
}

#[test]
fn a_server_has_a_clock_of_its_own() {
    let server = MariaDbServer::start(&MariaDbOptions::default().clock());
    let mut connection = server.connect().unwrap();
    let mut now = || {
        let answer = connection.run("SELECT floor(unix_timestamp(sysdate(6)))");
        answer.first().unwrap().parse::<u64>().unwrap()
    };
    let before = now();
    server.clock().advance(Duration::from_secs(3600));
    assert!((3600..3660).contains(&(now() - before)));
    server.clock().freeze(Duration::from_secs(2_000_000_000));
    assert_eq!(now(), 2_000_000_000);
}

#[test]
fn one_connection_is_ended_by_another() {
    let server = start();
    let (mut one, mut two) = (server.connect().unwrap(), server.connect().unwrap());
    let id = one.run("SELECT connection_id()").first().unwrap().to_owned();
    two.run(&format!("KILL {id}"));
    let one = RefCell::new(one);
    wait_for("ended connection", || one.borrow_mut().ask("SELECT 1", &[]).err());
    two.run("SELECT 1");
}

#[test]
fn a_server_that_cannot_start_fails_the_test_with_its_log() {
    let options = MariaDbOptions::default().setting("no-such-variable", "1");
    let failed = std::panic::catch_unwind(|| MariaDbServer::start(&options));
    let message = *failed.expect_err("a refused variable").downcast::<String>().unwrap();
    assert!(message.contains("ended") && message.contains("no-such-variable"), "{message}");
}

#[test]
fn a_dropped_server_leaves_nothing() {
    let server = start();
    let (pid, directory) = (server.pid(), server.directory().to_owned());
    drop(server);
    assert!(!is_alive(pid));
    assert!(!directory.parent().unwrap().exists());
}

#[test]
fn a_shared_server_is_one() {
    let url = shared();
    assert_eq!(url, shared());
    assert!(url.starts_with("mysql://root@127.0.0.1:"));
}
