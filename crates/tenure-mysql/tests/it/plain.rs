//! The short path of a free mutex.

use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::{ReleaseAnswer, Token};
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};
use tenure_testkit::wait_for;

use crate::crew::{connect, pause};

/// How often a text stands in the log of all that a server is sent.
fn count(server: &MariaDbServer, what: &str) -> usize {
    let log = std::fs::read(server.directory().join("data/general.log")).expect("the server's log");
    // The values of a prepared statement stand in it as they are.
    String::from_utf8_lossy(&log).lines().filter(|line| line.contains(what)).count()
}

fn logging() -> MariaDbServer {
    let options = MariaDbOptions::default().setting("general-log", "1");
    MariaDbServer::start(&options.setting("general-log-file", "general.log"))
}

/// What each transaction around `step` reads, a claim or release that is alone, and several.
const LONG: &str = "SELECT HEX(name), kind";
const ALONE: &str = "EXECUTE tenure_";
const SEVERAL: &str = "INTO @tenure_now";

#[test]
fn a_free_mutex_is_claimed_and_released_by_a_statement_each() {
    const PAIRS: usize = 20;
    let server = logging();
    let client = connect(&server.url());
    pollster::block_on(async {
        // The row is made by the long way.
        client.mutex("m").acquire().await?.release().await?;
        let (long_before, alone_before) = (count(&server, LONG), count(&server, ALONE));
        let mut last = Token::ZERO;
        for _ in 0..PAIRS {
            let lease = client.mutex("m").acquire().await?;
            assert!(lease.token() > last, "{} after {last}", lease.token());
            last = lease.token();
            assert!(connect(&server.url()).mutex("m").try_acquire().await?.is_none(), "it is held");
            lease.release().await?;
        }
        // A claim that is refused goes the long way after the short.
        assert_eq!(
            (count(&server, LONG) - long_before, count(&server, ALONE) - alone_before),
            (PAIRS, 3 * PAIRS)
        );
        Ok::<(), tenure_core::Error>(())
    })
    .expect("it is free");
}

/// More of them than one UPDATE is for, and of two clients: what one locks the other must not come across.
#[test]
fn many_free_mutexes_are_claimed_and_released_together() {
    const MANY: usize = 200;
    let server = logging();
    let clients = [connect(&server.url()), connect(&server.url())];
    let mutexes = Vec::from_iter((0..MANY).map(|at| clients[at % 2].mutex(&format!("m{at}"))));
    let mut last = vec![Token::ZERO; MANY];
    let mut round = || {
        let leases = pollster::block_on(join_all(mutexes.iter().map(|mutex| mutex.acquire())));
        let leases = Vec::from_iter(leases.into_iter().map(|lease| lease.expect("it is free")));
        for (lease, last) in leases.iter().zip(&mut last) {
            assert!(lease.token() > *last, "{} after {last}", lease.token());
            *last = lease.token();
        }
        let released = pollster::block_on(join_all(leases.into_iter().map(tenure_core::Lease::release)));
        assert!(
            released.iter().all(|released| matches!(released, Ok(ReleaseAnswer::Released))),
            "all are held"
        );
    };
    // The rows are made by the long way.
    round();
    let before = (count(&server, LONG), count(&server, SEVERAL));
    (0..5).for_each(|_| round());
    assert_eq!(count(&server, LONG), before.0, "none takes the long way");
    assert!(count(&server, SEVERAL) > before.1, "they come together");
}

/// Where the server calls itself MySQL, one that is alone goes as several do.
#[test]
fn on_mysql_a_free_mutex_is_claimed_and_released_by_a_text_each() {
    let options = MariaDbOptions::default().setting("general-log", "1").setting("version", "8.0.36");
    let server = MariaDbServer::start(&options.setting("general-log-file", "general.log"));
    let client = connect(&server.url());
    let pair = || pollster::block_on(async { client.mutex("m").acquire().await?.release().await });
    pair().expect("it is free");
    let (long, several) = (count(&server, LONG), count(&server, SEVERAL));
    pair().expect("it is free");
    assert_eq!((count(&server, LONG), count(&server, SEVERAL)), (long, several + 2));
    assert_eq!(count(&server, ALONE), 0);
}

/// As after one that was withdrawn while it was under way.
#[test]
fn a_claim_that_is_remembered_as_finished_sends_nobody_the_long_way() {
    let server = logging();
    let client = connect(&server.url());
    let pair = || pollster::block_on(async { client.mutex("m").acquire().await?.release().await });
    pair().expect("it is free");
    let mut raw = server.connect().expect("it answers");
    raw.run("UPDATE tenure_resource SET finished_until = 9000000000000000");
    raw.run("INSERT INTO tenure_finished (name, claim, until) VALUES ('m', 'another', 9000000000000000)");
    let (long, alone) = (count(&server, LONG), count(&server, ALONE));
    for _ in 0..5 {
        pair().expect("it is free");
    }
    assert_eq!((count(&server, LONG), count(&server, ALONE)), (long, alone + 10));
}

/// Whether a claim was withdrawn is looked for when its row is locked, so row by row; and no row but that one is read, which would be
/// locked as well.
#[test]
fn a_claim_looks_for_finished_ones_behind_its_lock() {
    let server = logging();
    let client = connect(&server.url());
    pollster::block_on(async { client.mutex("m").acquire().await?.release().await }).expect("it is free");
    let log = std::fs::read(server.directory().join("data/general.log")).expect("the server's log");
    let log = String::from_utf8_lossy(&log).into_owned();
    let (_, prepared) = log
        .split_once("PREPARE tenure_claim FROM 'SET STATEMENT innodb_lock_wait_timeout = 0 FOR ")
        .expect("a connection prepares it");
    let claim = prepared.split_once('\'').expect("its end").0.replace('?', "X'6d'");
    let mut raw = server.connect().expect("it answers");
    // More than the one that a plan would have to read anyway.
    (0..50).for_each(|at| drop(raw.run(&format!("INSERT INTO tenure_resource (name) VALUES ('n{at}')"))));
    let plan = raw.run(&format!("EXPLAIN {claim}"));
    let steps: Vec<_> =
        plan.rows.iter().map(|step| step[1..4].iter().flatten().cloned().collect::<Vec<_>>()).collect();
    assert_eq!(steps, [["PRIMARY", "tenure_resource", "range"], ["DEPENDENT SUBQUERY", "f", "eq_ref"]]);
}

#[test]
fn a_locked_row_is_left_to_the_long_way() {
    let server = MariaDbServer::start(&MariaDbOptions::default());
    let client = connect(&server.url());
    let mutex = client.mutex("m").ttl(Duration::from_secs(30));
    pollster::block_on(async { mutex.acquire().await?.release().await }).expect("it is free");
    let mut holder = server.connect().expect("one more");
    let mut while_locked = |begin: &mut dyn FnMut()| {
        holder.run("BEGIN");
        holder.run("SELECT name FROM test.tenure_resource FORCE INDEX (PRIMARY) WHERE name = 'm' FOR UPDATE");
        begin();
        let waits = wait_for("the one that waits for the row", || {
            // Whoever asks more often than ten times a second gets the same answer again.
            pause(Duration::from_millis(150));
            let asked = "SELECT trx_query FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
            server.connect().ok()?.run(asked).first().map(str::to_owned)
        });
        let is_short =
            ["EXECUTE tenure_", "UPDATE tenure_resource"].iter().any(|short| waits.contains(short));
        assert!(!is_short, "the short path waits: {waits}");
        holder.run("ROLLBACK");
    };
    std::thread::scope(|scope| {
        let mut claim = None;
        while_locked(&mut || claim = Some(scope.spawn(|| pollster::block_on(mutex.acquire()))));
        let lease = claim.expect("it began").join().expect("no panic").expect("it is free");
        let mut release = None;
        let mut lease = Some(lease);
        while_locked(&mut || {
            let lease = lease.take().expect("once");
            release = Some(scope.spawn(move || pollster::block_on(lease.release())));
        });
        release.expect("it began").join().expect("no panic").expect("it is held");
    });
}
