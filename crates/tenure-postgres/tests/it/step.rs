//! The engine against `step`, by each of its ways.

use tenure_conformance::against_step::{self, Differences};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};

use crate::conformance::{connector, make_older_tables};
use crate::functions::without_functions;

/// Compares the engine with `step` on tables that `prepare` may have made, and moves to the next version of them on the way if it is
/// told to.
fn compare(prepare: impl FnOnce(&PostgresServer), settings: &str, migrates: bool) {
    let server = PostgresServer::start(&PostgresOptions::default().clock());
    prepare(&server);
    let connector = connector(&format!("{}{settings}", server.url()));
    let set_clock = |now| server.clock().freeze(now);
    against_step::compare(connector, &set_clock, Differences { spares_places: true, migrates });
}

#[test]
fn the_statements_do_what_step_does() {
    compare(|_| (), "", false);
}

/// As behind a pooler.
#[test]
fn the_functions_do_what_step_does() {
    compare(|_| (), "?listen=off", false);
}

/// As behind a pooler, where none can be made.
#[test]
fn the_texts_do_what_step_does() {
    compare(without_functions, "?listen=off", false);
}

/// Tables of version 1, and what becomes of their holds and waiters when they get version 2.
#[test]
fn older_tables_do_what_step_does_before_and_after_they_are_made_new() {
    compare(make_older_tables, "", true);
}
