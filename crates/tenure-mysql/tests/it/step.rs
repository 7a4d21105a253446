//! The engine against `step`, by each of its ways.

use tenure_conformance::against_step::{self, Differences};
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};

use crate::conformance::connector;
use crate::versions::make_older_tables;

/// Compares the engine with `step`, and moves to the next version of the tables on the way if it is told to.
fn compare(server: &MariaDbServer, migrates: bool) {
    let set_clock = |now| server.clock().freeze(now);
    let differences = Differences { spares_places: false, migrates };
    against_step::compare(connector(&server.url()), &set_clock, differences);
}

#[test]
fn the_statements_do_what_step_does() {
    compare(&MariaDbServer::start(&MariaDbOptions::default().clock()), false);
}

/// A claim that is alone goes as several do where the server calls itself MySQL.
#[test]
fn the_statements_for_mysql_do_what_step_does() {
    compare(&MariaDbServer::start(&MariaDbOptions::default().clock().setting("version", "8.0.36")), false);
}

/// Tables of version 1, and what becomes of their holds and waiters when they get version 2.
#[test]
fn older_tables_do_what_step_does_before_and_after_they_are_made_new() {
    let server = MariaDbServer::start(&MariaDbOptions::default().clock());
    make_older_tables(&server);
    compare(&server, true);
}
