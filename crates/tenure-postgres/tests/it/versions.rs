//! Tables that an older version of tenure made: they are used as they are, and made new while clients are at work.

use std::time::Duration;

use tenure_core::engine::Severity;
use tenure_core::{ErrorKind, Tenure};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};

use crate::conformance::{connector, make_older_tables};
use crate::crew::{connect, crew, now, pause, use_every_kind};

fn with_older_tables() -> PostgresServer {
    let server = PostgresServer::start(&PostgresOptions::default());
    make_older_tables(&server);
    server
}

fn number(server: &PostgresServer, statement: &str) -> u64 {
    let answer = server.connect().expect("it answers").run(statement);
    answer.first().expect("a number").parse().expect("a number")
}

const VERSION: &str = "SELECT max(version) FROM tenure_version";

#[test]
fn older_tables_are_used_as_they_are_until_an_operator_says_otherwise() {
    let server = with_older_tables();
    let (a, b) = (connect(&server.url()), connect(&server.url()));
    use_every_kind(&a, &b);
    let held = pollster::block_on(a.mutex("m").acquire()).expect("it is free");
    assert_eq!(number(&server, "SELECT count(*) FROM tenure_claim WHERE name = 'm' AND place = 0"), 1);
    assert_eq!(number(&server, VERSION), 1);
    let tables = |client: &Tenure| {
        let found = pollster::block_on(client.check()).expect("an answer");
        found.into_iter().find(|finding| finding.what == "tables").expect("a finding")
    };
    let found = tables(&a);
    assert!(found.severity == Severity::Good && found.hint.is_some_and(|hint| hint.contains("--migrate")));
    assert!(pollster::block_on(a.migrate()).expect("it may").is_some_and(|text| text.contains("version 2")));
    assert_eq!(tables(&b).hint, None, "there is nothing more to gain");
    // Again is nothing new.
    pollster::block_on(b.migrate()).expect("it may");
    assert_eq!(number(&server, VERSION), 2);
    assert!(pollster::block_on(b.mutex("m").try_acquire()).expect("an answer").is_none(), "it is held still");
    pollster::block_on(held.release()).expect("it is held");
    let again = pollster::block_on(b.mutex("m").acquire()).expect("it is free");
    assert_eq!(number(&server, "SELECT count(hold_claim) FROM tenure_resource WHERE name = 'm'"), 1);
    assert_eq!(number(&server, "SELECT count(*) FROM tenure_entry WHERE name = 'm'"), 0);
    pollster::block_on(again.release()).expect("it is held");
    use_every_kind(&a, &b);
}

/// Holders, waiters and renewals go on, nobody holds what another holds, and no user sees an error.
#[test]
fn tables_are_made_new_while_clients_are_at_work() {
    const CLIENTS: usize = 8;
    let server = with_older_tables();
    let names = ["one", "two", "three"].map(str::to_owned);
    let holder = connect(&server.url());
    let held = pollster::block_on(holder.mutex("long").ttl(Duration::from_secs(3)).acquire());
    let held = held.expect("it is free");
    let crew = crew(&server.url(), CLIENTS, &names);
    pause(Duration::from_millis(500));
    let operator = connect(&server.url());
    pollster::block_on(operator.migrate()).expect("nobody keeps the tables for long");
    let at = now();
    crew.wait_until_served(CLIENTS, at, Duration::from_secs(10), "after the tables were made new");
    // Long enough for what could not be renewed to end.
    pause(Duration::from_secs(4));
    let report = crew.finish(names.len());
    assert!(report.errors.is_empty(), "{:#?}", report.errors);
    assert!(!held.is_lost(), "it was renewed before and after");
    pollster::block_on(held.release()).expect("it is held");
    assert_eq!(number(&server, VERSION), 2);
}

/// Somebody's long transaction keeps the tables as they are, and does not keep clients from working behind whoever waits for it.
#[test]
fn tables_that_somebody_keeps_are_left_as_they_are() {
    let server = with_older_tables();
    let client = connect(&server.url());
    let mut somebody = server.connect().expect("it answers");
    somebody.run("BEGIN");
    somebody.run("SELECT count(*) FROM tenure_claim");
    let told = std::thread::scope(|scope| {
        let migrating = scope.spawn(|| pollster::block_on(connect(&server.url()).migrate()));
        while !migrating.is_finished() {
            let pair = async { client.mutex("m").acquire().await?.release().await };
            pollster::block_on(pair).expect("it waits for a third of a second at most");
        }
        migrating.join().expect("no panic")
    });
    let told = told.expect_err("it is locked");
    assert_eq!(told.kind(), ErrorKind::Unavailable, "{told}");
    somebody.run("ROLLBACK");
    assert_eq!(number(&server, VERSION), 1);
    pollster::block_on(client.migrate()).expect("nobody keeps them");
}

/// A program of before would take a mutex for free whose hold it does not see: whatever it asks, it is refused.
#[test]
fn what_a_client_of_before_asks_is_refused() {
    let server = with_older_tables();
    drop(connect(&server.url()));
    let mut old = server.connect().expect("it answers");
    let claims = "SELECT name, place, token, claim FROM tenure_claim WHERE name = 'm'";
    let grants = "INSERT INTO tenure_resource AS r (name, plain_claim) VALUES ('m', 'c') ON CONFLICT (name) DO NOTHING";
    let renewals = "UPDATE tenure_claim h SET is_confirmed = 1 WHERE claim = 'c' AND place = 0";
    for statement in [claims, grants, renewals] {
        old.ask(statement, &[]).expect("it is what it knows");
    }
    pollster::block_on(connect(&server.url()).migrate()).expect("it may");
    for statement in [claims, grants, renewals] {
        let told = format!("{:?}", old.ask(statement, &[]).expect_err("it knows nothing of the hold"));
        assert!(told.contains("does not exist"), "{told}");
    }
    // And whoever connects is told why, as this one is of what it does not know.
    old.run("UPDATE tenure_version SET version = 3");
    let told = pollster::block_on(Tenure::new(connector(&server.url()))).expect_err("nobody knows it");
    assert!(told.kind() == ErrorKind::Unsupported && told.to_string().contains("version 3"), "{told}");
}
