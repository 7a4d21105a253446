//! What may happen around a commit.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::engine::{ClaimAnswer, DynEngine, ReleaseAnswer, ReleaseRequest};
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Label, Name, Terms};
use tenure_core::model::step::Release;
use tenure_core::model::token::Token;
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};
use tenure_testkit::wait_for;

use crate::conformance::connector;
use crate::crew::{connect, pause};

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

#[test]
fn a_free_mutex_is_claimed_and_released_by_a_statement_each() {
    const PAIRS: usize = 20;
    let server = PostgresServer::start(&PostgresOptions::default().setting("log_statement", "all"));
    let client = connect(&server.url());
    let log = || std::fs::read_to_string(server.directory().join("log")).expect("the server's log");
    let count = |text: &str, what: &str| text.lines().filter(|line| line.contains(what)).count();
    let before = log().len();
    pollster::block_on(async {
        for _ in 0..PAIRS {
            client.mutex("x").acquire().await.expect("free").release().await.expect("held");
        }
    });
    let text = log().split_off(before);
    assert_eq!(count(&text, "WITH v (name, floor"), PAIRS, "claims");
    assert_eq!(count(&text, "WITH v (name, claim)"), PAIRS, "releases");
    assert_eq!(count(&text, "ORDER BY name FOR UPDATE"), 0, "no transaction around `step`");
}

/// The short path ends a hold that was over already as `step` does: a late copy of its claim is not granted.
#[test]
fn a_release_that_comes_too_late_is_told_and_remembered() {
    let server = PostgresServer::start(&PostgresOptions::default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let client = ClientId::new(1);
        let engine: Arc<dyn DynEngine> =
            connector(&server.url()).open(client).await.expect("the server is there");
        let ttl = Duration::from_millis(200);
        let terms = Arc::new(Terms { ttl, ..Terms::of_mutex(Label::new("host", 1, "program", "")) });
        let (resource, id) = (Name::new("x").expect("a name"), ClaimId::new(17));
        let claim = Claim {
            resource: resource.clone(),
            id,
            client,
            terms,
            wait: false,
            floor: Token::ZERO,
            floor_forced: false,
            may_be_known: false,
        };
        let granted = engine.claim(vec![claim.clone()]).await.remove(0).expect("an answer");
        assert!(matches!(granted, ClaimAnswer::Granted(_)), "{granted:?}");
        pause(2 * ttl);
        let release = Release { claim: id, maybe_in_flight: false, is_unused: false };
        let released = engine.release(vec![ReleaseRequest { resource, release }]).await.remove(0);
        assert_eq!(released.expect("an answer"), ReleaseAnswer::AlreadyLost);
        let again = engine.claim(vec![claim]).await.remove(0).expect("an answer");
        assert!(matches!(again, ClaimAnswer::Finished), "{again:?}");
    });
}

#[test]
fn the_longest_names_of_tables_and_channels_fit() {
    let server = PostgresServer::start(&PostgresOptions::default());
    let names = format!("schema=s{}&prefix=p{}_", "1".repeat(14), "2".repeat(29));
    let (a, b) = [0, 1].map(|_| connect(&format!("{}?{names}", server.url()))).into();
    assert!(a.capability().tells_waiters && b.capability().tells_waiters, "both hear");
    pollster::block_on(async { b.mutex("x").acquire().await?.release().await }).expect("it is free");
}
