//! PostgreSQL servers, and PgBouncer.

use std::cell::RefCell;
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tenure_testkit::postgres::{PgBouncer, PostgresOptions, PostgresPair, PostgresServer, shared};
use tenure_testkit::{SqlConnection, is_alive, wait_for};

fn start() -> PostgresServer {
    PostgresServer::start(&PostgresOptions::default())
}

/// All processes of a server.
fn processes(server: &PostgresServer) -> Vec<u32> {
    let pid = server.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).chain([pid]).collect()
}

/// The id of the System V memory of a server, which its lock file has.
fn memory(server: &PostgresServer) -> String {
    let lock = fs::read_to_string(server.directory().join("data/postmaster.pid")).unwrap();
    lock.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

fn exists(memory: &str) -> bool {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    table.lines().any(|line| line.split_whitespace().nth(1) == Some(memory))
}

#[test]
fn a_server_answers_with_values_rows_and_refusals() {
    let server = start();
    assert!(server.port() >= 20_000);
    assert_eq!(server.url(), format!("postgres://postgres@127.0.0.1:{}/postgres", server.port()));
    let mut connection = server.connect().unwrap();
    let number = i64::MAX;
    let answer = connection.ask("SELECT $1::bigint, $2::text, NULL", &[number.into(), "a'b".into()]).unwrap();
    assert_eq!(answer.rows, [[Some(number.to_string()), Some("a'b".to_owned()), None]]);
    connection.run("CREATE TABLE t (id int PRIMARY KEY)");
    assert_eq!(connection.run("INSERT INTO t VALUES (1), (2)").affected, 2);
    assert_eq!(connection.ask("INSERT INTO t VALUES (1)", &[]).unwrap_err().code, "23505");
    assert_eq!(connection.run("SELECT count(*) FROM t").first(), Some("2"), "it goes on after a refusal");
    assert!(SqlConnection::to_postgres(server.port(), "postgres", "none").is_err_and(|e| e.code == "3D000"));
}

#[test]
fn settings_are_those_of_the_test() {
    let server = PostgresServer::start(&PostgresOptions::default().setting("synchronous_commit", "off"));
    let mut connection = server.connect().unwrap();
    assert_eq!(connection.run("SHOW synchronous_commit").first(), Some("off"));
}

#[test]
fn a_killed_server_keeps_what_was_committed_and_leaves_no_process() {
    let server = start();
    let mut connection = server.connect().unwrap();
    connection.run("CREATE TABLE t AS SELECT 7 AS n");
    let processes = processes(&server);
    assert!(processes.len() > 2, "one of this connection, others for chores: {processes:?}");
    server.kill();
    assert!(processes.iter().all(|pid| !is_alive(*pid)));
    TcpStream::connect(("127.0.0.1", server.port())).expect_err("nobody listens");
    assert!(connection.ask("SELECT 1", &[]).unwrap_err().is_unknown());
    server.restart();
    assert_eq!(server.connect().unwrap().run("SELECT n FROM t").first(), Some("7"));
}

#[test]
fn a_server_that_is_shut_down_tells_its_clients() {
    let server = start();
    let mut connection = server.connect().unwrap();
    server.shut_down();
    assert!(connection.ask("SELECT 1", &[]).is_err_and(|error| error.code == "57P01"));
    server.restart();
    server.connect().unwrap().run("SELECT 1");
}

#[test]
fn a_stopped_server_does_nothing_until_it_continues() {
    let server = start();
    let mut connection = server.connect().unwrap();
    connection.run("CREATE TABLE t AS SELECT 1 AS n");
    server.stop();
    let asking = std::thread::spawn(move || connection.ask("UPDATE t SET n = 2", &[]).unwrap().affected);
    // A worker that ended meanwhile is not reaped by the first process, which is stopped.
    let stands_still = |pid: &u32| matches!(tenure_testkit::state(*pid), Some('T' | 'Z') | None);
    assert!(processes(&server).iter().all(stands_still));
    server.cont();
    assert_eq!(asking.join().unwrap(), 1);
}

#[test]
fn a_server_has_a_clock_of_its_own() {
    let server = PostgresServer::start(&PostgresOptions::default().clock());
    let mut connection = server.connect().unwrap();
    let seconds = "SELECT extract(epoch from clock_timestamp())::bigint";
    let mut now = || connection.run(seconds).first().unwrap().parse::<u64>().unwrap();
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
    let pid = one.run("SELECT pg_backend_pid()").first().unwrap().parse::<i64>().unwrap();
    assert_eq!(two.ask("SELECT pg_terminate_backend($1)", &[pid.into()]).unwrap().first(), Some("t"));
    let one = RefCell::new(one);
    wait_for("ended connection", || one.borrow_mut().ask("SELECT 1", &[]).err());
    two.run("SELECT 1");
}

#[test]
fn a_server_that_cannot_start_fails_the_test_with_its_log() {
    let options = PostgresOptions::default().setting("no_such_setting", "1");
    let failed = std::panic::catch_unwind(|| PostgresServer::start(&options));
    let message = *failed.expect_err("a refused setting").downcast::<String>().unwrap();
    assert!(message.contains("ended") && message.contains("no_such_setting"), "{message}");
}

#[test]
fn a_dropped_server_leaves_nothing_not_even_shared_memory() {
    let server = start();
    let directory = server.directory().to_owned();
    let processes = processes(&server);
    let memory = memory(&server);
    assert!(exists(&memory));
    drop(server);
    wait_for("end of all processes", || processes.iter().all(|pid| !is_alive(*pid)).then_some(()));
    assert!(!directory.parent().unwrap().exists() && !exists(&memory));
}

/// Played by another process, see the next test.
#[test]
fn starts_a_server_and_waits_to_be_killed() {
    let Some(found) = std::env::var_os("TENURE_TESTKIT_FOUND").map(PathBuf::from) else { return };
    let server = start();
    let processes: Vec<String> = processes(&server).iter().map(ToString::to_string).collect();
    fs::write(found.with_extension("new"), format!("{} {}", memory(&server), processes.join(" "))).unwrap();
    fs::rename(found.with_extension("new"), found).unwrap();
    wait_for("end of this process", || None::<()>);
}

#[test]
fn a_killed_test_process_leaves_nothing() {
    let files = tenure_testkit::TestDirectory::new();
    let found = files.path().join("found");
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "postgres::starts_a_server_and_waits_to_be_killed"]);
    test.env("TENURE_TESTKIT_FOUND", &found).stdout(std::process::Stdio::null());
    let mut test = test.spawn().unwrap();
    let text = wait_for("server", || fs::read_to_string(&found).ok());
    let (memory, processes) = text.split_once(' ').unwrap();
    let processes: Vec<u32> = processes.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert!(exists(memory));
    test.kill().unwrap();
    test.wait().unwrap();
    wait_for("end of all processes", || processes.iter().all(|pid| !is_alive(*pid)).then_some(()));
    wait_for("end of its shared memory", || (!exists(memory)).then_some(()));
}

#[test]
fn a_pooler_gives_another_connection_to_each_transaction() {
    let server = start();
    let bouncer = PgBouncer::start(&server);
    let (mut one, mut two) = (bouncer.connect().unwrap(), bouncer.connect().unwrap());
    let pid = "SELECT pg_backend_pid()";
    one.run("BEGIN");
    let first = one.run(pid);
    assert_ne!(two.run(pid), first, "a transaction has its connection for itself");
    one.run("COMMIT");
    // The next client gets the connection that was used last.
    let used = two.run(pid);
    assert_eq!(one.run(pid), used);
    assert_eq!(two.ask("SELECT $1::bigint + 1", &[41.into()]).unwrap().first(), Some("42"));
    bouncer.restart();
    bouncer.connect().unwrap().run("SELECT 1");
}

#[test]
fn a_shared_server_is_one() {
    let url = shared();
    assert_eq!(url, shared());
    assert!(url.starts_with("postgres://postgres@127.0.0.1:"));
}

#[test]
fn what_a_pair_has_committed_survives_its_primary() {
    let pair = PostgresPair::start(&PostgresOptions::default());
    for round in 1..=2 {
        let first = pair.primary().port();
        let mut raw = pair.primary().connect().unwrap();
        raw.run("CREATE TABLE IF NOT EXISTS kept (number bigint)");
        raw.run(&format!("INSERT INTO kept VALUES ({round})"));
        pair.failover();
        assert_ne!(pair.primary().port(), first);
        let mut raw = pair.primary().connect().unwrap();
        assert_eq!(raw.run("SELECT count(*) FROM kept").first(), Some(round.to_string().as_str()));
    }
    pair.leave_behind();
    let mut raw = pair.primary().connect().unwrap();
    let inserting = std::thread::spawn(move || raw.run("INSERT INTO kept VALUES (3)"));
    wait_for("a commit that waits for the standby", || {
        let waiting = pair
            .primary()
            .connect()
            .unwrap()
            .run("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
        (waiting.first() == Some("1")).then_some(())
    });
    assert!(!inserting.is_finished(), "no standby has it");
    pair.heal();
    inserting.join().unwrap();
}
