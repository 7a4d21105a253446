//! Tables that an older version of tenure made.

use tenure_conformance::older_tables::{self, OlderTables, Somebody};
use tenure_core::engine::Connect;
use tenure_core::{ErrorKind, Tenure};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};

use crate::conformance::{connector, make_older_tables};
use crate::crew::connect;

struct Older(PostgresServer);

impl OlderTables for Older {
    fn connectors(&self) -> Box<dyn Fn() -> Connect + Send + Sync> {
        let url = self.0.url();
        Box::new(move || connector(&url))
    }

    fn somebody(&self) -> Somebody {
        let mut connection = self.0.connect().expect("it answers");
        Box::new(move |statement| connection.run(statement).first().map(str::to_owned))
    }
}

fn with_older_tables() -> Older {
    let server = PostgresServer::start(&PostgresOptions::default());
    make_older_tables(&server);
    Older(server)
}

#[test]
fn older_tables_are_used_as_they_are_until_an_operator_says_otherwise() {
    older_tables::are_used_as_they_are(&with_older_tables());
}

#[test]
fn tables_are_made_new_while_clients_are_at_work() {
    older_tables::are_made_new_under_clients(&with_older_tables());
}

#[test]
fn tables_that_somebody_keeps_are_left_as_they_are() {
    older_tables::are_left_as_they_are_while_somebody_keeps_them(&with_older_tables());
}

/// A program of before would take a mutex for free whose hold it does not see: whatever it asks, it is refused.
#[test]
fn what_a_client_of_before_asks_is_refused() {
    let Older(server) = with_older_tables();
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
