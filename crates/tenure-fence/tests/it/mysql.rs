//! The statements for MySQL and MariaDB, on MariaDB.

use tenure_fence::sql::{MYSQL, Statements};
use tenure_testkit::SqlConnection;
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};

use crate::database::{self, Database, Part};

/// A server, and what its clients count as affected: rows that were found, or those that changed.
struct MariaDb {
    server: MariaDbServer,
    counts_found: bool,
}

use Part::{Claim, Key, Token};

impl Database for MariaDb {
    const STATEMENTS: Statements = MYSQL;
    const PARAMETERS: [&[Part]; 4] = [
        &[Key],
        &[Token, Claim, Key, Token, Token, Claim, Token, Token, Claim],
        &[Token, Claim, Token, Key, Token, Token, Claim],
        &[Key],
    ];
    // The default of these databases is the second one.
    const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
    // Not `innodb_trx`: it shows what it knew at the first look, until nobody has looked for 100 ms.
    const BLOCKED: &str = "SELECT variable_value FROM information_schema.global_status
         WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'";

    fn connect(&self) -> SqlConnection {
        SqlConnection::to_mariadb(self.server.port(), "root", "test", self.counts_found).expect("a server")
    }

    fn begin(&self, connection: &mut SqlConnection, level: &str) {
        connection.run(&format!("SET TRANSACTION ISOLATION LEVEL {level}"));
        connection.run("START TRANSACTION");
    }
}

fn start(counts_found: bool) -> MariaDb {
    let options = MariaDbOptions::default().setting("innodb-flush-log-at-trx-commit", "0");
    MariaDb { server: MariaDbServer::start(&options), counts_found }
}

#[test]
fn answers_as_the_rule() {
    database::answers_as_the_rule(&start(false));
}

#[test]
fn answers_as_the_rule_if_the_client_counts_found_rows() {
    database::answers_as_the_rule(&start(true));
}

#[test]
fn a_stale_write_is_refused_and_says_the_largest_token() {
    database::a_stale_write_is_refused_and_says_the_largest_token(&start(false));
}

#[test]
fn a_rollback_takes_back_the_mark_and_the_write() {
    database::a_rollback_takes_back_the_mark_and_the_write(&start(false));
}

#[test]
fn a_check_waits_for_the_transaction_before_it() {
    database::a_check_waits_for_the_transaction_before_it(&start(true));
}

#[test]
fn what_is_written_never_goes_back() {
    database::what_is_written_never_goes_back(&start(false));
}
