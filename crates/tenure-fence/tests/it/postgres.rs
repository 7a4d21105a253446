//! The statements for PostgreSQL.

use tenure_fence::sql::{POSTGRESQL, Statements};
use tenure_testkit::SqlConnection;
use tenure_testkit::postgres::{PgBouncer, PostgresOptions, PostgresServer};

use crate::database::{self, Database, Part};

struct Postgres(PostgresServer);

/// The same behind a pooler, which gives another connection to each transaction.
struct Pooled {
    bouncer: PgBouncer,
    _server: PostgresServer,
}

const ALL: &[Part] = &[Part::Key, Part::Token, Part::Claim];

impl Database for Postgres {
    const STATEMENTS: Statements = POSTGRESQL;
    const PARAMETERS: [&[Part]; 4] = [&[], ALL, ALL, &[Part::Key]];
    const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
    const BLOCKED: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

    fn connect(&self) -> SqlConnection {
        self.0.connect().expect("a server")
    }

    fn begin(&self, connection: &mut SqlConnection, level: &str) {
        connection.run(&format!("BEGIN ISOLATION LEVEL {level}"));
    }
}

impl Database for Pooled {
    const STATEMENTS: Statements = POSTGRESQL;
    const PARAMETERS: [&[Part]; 4] = Postgres::PARAMETERS;
    const LEVELS: [&str; 3] = Postgres::LEVELS;
    const BLOCKED: &str = Postgres::BLOCKED;

    fn connect(&self) -> SqlConnection {
        self.bouncer.connect().expect("a server")
    }

    fn begin(&self, connection: &mut SqlConnection, level: &str) {
        connection.run(&format!("BEGIN ISOLATION LEVEL {level}"));
    }
}

fn start() -> Postgres {
    Postgres(PostgresServer::start(&PostgresOptions::default()))
}

#[test]
fn answers_as_the_rule() {
    database::answers_as_the_rule(&start());
}

#[test]
fn a_stale_write_is_refused_and_says_the_largest_token() {
    database::a_stale_write_is_refused_and_says_the_largest_token(&start());
}

#[test]
fn a_rollback_takes_back_the_mark_and_the_write() {
    database::a_rollback_takes_back_the_mark_and_the_write(&start());
}

#[test]
fn a_check_waits_for_the_transaction_before_it() {
    database::a_check_waits_for_the_transaction_before_it(&start());
}

#[test]
fn what_is_written_never_goes_back() {
    database::what_is_written_never_goes_back(&start());
}

#[test]
fn what_is_written_never_goes_back_behind_a_pooler() {
    let server = PostgresServer::start(&PostgresOptions::default());
    let bouncer = PgBouncer::start(&server);
    database::what_is_written_never_goes_back(&Pooled { bouncer, _server: server });
}

#[test]
fn the_token_zero_and_negative_ones_are_not_accepted() {
    let server = start();
    let mut connection = server.connect();
    connection.run(POSTGRESQL.table);
    for has_row in [false, true] {
        if has_row {
            connection.ask(POSTGRESQL.write, &["x".into(), 1.into(), "a".into()]).unwrap();
        }
        for statement in [POSTGRESQL.write, POSTGRESQL.read] {
            for token in [0, -1] {
                let refused = connection.ask(statement, &["x".into(), token.into(), "a".into()]);
                assert_eq!(refused.unwrap_err().code, "23514", "the table checks it: {token}");
            }
        }
    }
}
