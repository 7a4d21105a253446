//! Tables that an older version of tenure made.

use tenure_conformance::older_tables::{self, OlderTables, Somebody};
use tenure_core::engine::Connect;
use tenure_core::{ErrorKind, Tenure};
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};

use crate::conformance::connector;
use crate::crew::connect;

/// Makes the tables of the version before this one.
pub(crate) fn make_older_tables(server: &MariaDbServer) {
    let mut raw = server.connect().expect("it answers");
    let statements = include_str!("../../src/dialect/tables-1.sql");
    statements.split(";\n").filter(|text| !text.is_empty()).for_each(|text| drop(raw.run(text)));
}

struct Older(MariaDbServer);

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
    let server = MariaDbServer::start(&MariaDbOptions::default());
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
    let grants = "INSERT INTO tenure_claim (name, place, token, claim, client, weight, granted_at, expires_at, is_confirmed, ttl, \
        min_hold, lock_delay, label, unless_fresh) SELECT 'm', 0, 1, 'c', 1, 1, 1, 1, 1, 1, 0, 0, '', 0 FROM DUAL WHERE 1 = 0";
    let renewals = "UPDATE tenure_claim SET is_confirmed = 1 WHERE claim = 'c' AND place = 0";
    for statement in [claims, grants, renewals] {
        old.ask(statement, &[]).expect("it is what it knows");
    }
    pollster::block_on(connect(&server.url()).migrate()).expect("it may");
    for statement in [claims, grants, renewals] {
        let told = format!("{:?}", old.ask(statement, &[]).expect_err("it knows nothing of the hold"));
        assert!(told.contains("doesn't exist"), "{told}");
    }
    // And whoever connects is told why, as this one is of what it does not know.
    old.run("UPDATE tenure_version SET version = 3");
    let told = pollster::block_on(Tenure::new(connector(&server.url()))).expect_err("nobody knows it");
    assert!(told.kind() == ErrorKind::Unsupported && told.to_string().contains("version 3"), "{told}");
}

/// A table that gets another name leaves the rights on it behind, and CREATE is what lets some be given before.
#[test]
fn a_user_with_rights_on_single_tables_works_on_if_it_is_given_the_new_one_before() {
    let Older(server) = with_older_tables();
    let mut root = server.connect().expect("it answers");
    root.run("CREATE USER worker@'%'");
    for table in ["resource", "claim", "finished", "slot", "version"] {
        root.run(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON test.tenure_{table} TO worker@'%'"));
    }
    root.run("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON test.tenure_entry TO worker@'%'");
    let worker = connect(&server.url().replace("//root@", "//worker@"));
    let pairs = || {
        pollster::block_on(async {
            worker.mutex("m").acquire().await?.release().await?;
            worker.semaphore("s", 2).acquire().await?.release().await
        })
    };
    pairs().expect("it has the old ones");
    pollster::block_on(connect(&server.url()).migrate()).expect("it may");
    pairs().expect("it has the new one");
}

/// As after an operator who was stopped between two statements.
#[test]
fn a_migration_that_was_broken_off_is_finished_by_the_next() {
    let Older(server) = with_older_tables();
    let client = connect(&server.url());
    let held = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    let mut somebody = server.connect().expect("it answers");
    let holds = "hold_claim VARBINARY(16), hold_token BIGINT, hold_client BIGINT, hold_granted_at BIGINT, hold_expires_at BIGINT, \
        hold_is_confirmed TINYINT, hold_ttl BIGINT, hold_label VARBINARY(1024)";
    somebody.run(&format!("ALTER TABLE tenure_resource ADD COLUMN ({holds})"));
    somebody.run("CREATE TABLE tenure_version_2 (version INT NOT NULL PRIMARY KEY)");
    // It is what it was until the last statement.
    assert!(
        pollster::block_on(connect(&server.url()).mutex("m").try_acquire()).expect("an answer").is_none()
    );
    pollster::block_on(client.migrate()).expect("it may");
    let tables = somebody.run("SHOW TABLES LIKE 'tenure\\_version%'");
    assert_eq!(tables.rows.len(), 1, "what it was made with is gone: {tables:?}");
    assert!(
        pollster::block_on(connect(&server.url()).mutex("m").try_acquire()).expect("an answer").is_none()
    );
    pollster::block_on(held.release()).expect("it is held");
}
