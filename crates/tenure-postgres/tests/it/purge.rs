//! Idle rows go, and nobody who claims at that moment is harmed.

use std::time::Duration;

use tenure_core::{Settings, Tenure};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tenure_testkit::wait_for;

use crate::conformance::connector;

fn connect(url: &str) -> Tenure {
    pollster::block_on(Tenure::connect_with(connector(url), Settings::default())).expect("the server is there")
}

#[test]
fn two_who_claim_while_an_idle_row_is_removed_do_not_both_hold() {
    let server = PostgresServer::start(&PostgresOptions::default());
    let (a, b) = (connect(&server.url()), connect(&server.url()));
    let [one, other] = [&a, &b].map(|client| client.mutex("x").ttl(Duration::from_secs(30)));
    pollster::block_on(async { one.acquire().await?.release().await }).expect("it is free");
    // As the purge does it: first the row is locked, which both wait for, and then it goes.
    let mut purge = server.connect().expect("it answers");
    let mut run = |statement: &str| purge.ask(statement, &[]).expect("it is executed");
    run("BEGIN");
    run("SELECT name FROM tenure_resource FOR UPDATE");
    let (first, second) = std::thread::scope(|scope| {
        let tries = [one, other].map(|mutex| {
            scope.spawn(move || pollster::block_on(mutex.try_acquire()).expect("an answer"))
        });
        wait_for("both wait for the row", || {
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            (server.connect().ok()?.ask(waiting, &[]).ok()?.first() == Some("2")).then_some(())
        });
        run("DELETE FROM tenure_resource");
        run("COMMIT");
        let [first, second] = tries.map(|tried| tried.join().expect("no panic"));
        (first, second)
    });
    assert_eq!(u8::from(first.is_some()) + u8::from(second.is_some()), 1, "one holds it, the other is refused");
}
