//! What may happen around a commit.

use std::time::Duration;

use tenure_core::{Settings, Tenure};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tenure_testkit::wait_for;

use crate::conformance::connector;

fn connect(url: &str) -> Tenure {
    pollster::block_on(Tenure::connect_with(connector(url), Settings::default()))
        .expect("the server is there")
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
        let tries = [one, other]
            .map(|mutex| scope.spawn(move || pollster::block_on(mutex.try_acquire()).expect("an answer")));
        wait_for("both wait for the row", || {
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            (server.connect().ok()?.ask(waiting, &[]).ok()?.first() == Some("2")).then_some(())
        });
        run("DELETE FROM tenure_resource");
        run("COMMIT");
        let [first, second] = tries.map(|tried| tried.join().expect("no panic"));
        (first, second)
    });
    assert_eq!(
        u8::from(first.is_some()) + u8::from(second.is_some()),
        1,
        "one holds it, the other is refused"
    );
}

#[test]
fn what_is_committed_is_answered_though_nobody_can_be_told() {
    let server = PostgresServer::start(&PostgresOptions::default());
    let mut admin = server.connect().expect("it answers");
    for statement in [
        "CREATE ROLE worker LOGIN",
        "GRANT ALL ON SCHEMA public TO worker",
        "REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC",
    ] {
        admin.run(statement);
    }
    let url = server.url().replace("postgres@", "worker@");
    let (a, b) = (connect(&url), connect(&url));
    pollster::block_on(async {
        let lease = a.mutex("x").acquire().await.expect("free");
        let waits = b.mutex("x");
        let mut next = std::pin::pin!(waits.acquire());
        assert!(futures_util::future::poll_immediate(&mut next).await.is_none());
        wait_for("it waits", || next.place());
        lease.release().await.expect("it is committed");
        // By its heartbeat.
        next.await.expect("its turn").release().await.expect("held");
    });
}
