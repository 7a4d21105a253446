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

/// What is remembered of a claim that was withdrawn counts for copies of that claim alone.
#[test]
fn a_mutex_whose_claim_was_withdrawn_is_claimed_by_a_statement_still() {
    let server = PostgresServer::start(&PostgresOptions::default().setting("log_statement", "all"));
    let log = || std::fs::read_to_string(server.directory().join("log")).expect("the server's log");
    run_with_engine(&server, async |engine| {
        let name = Name::new("x").expect("a name");
        withdraw(&engine, &name, ClaimId::new(1)).await;
        let before = log().len();
        for number in 2..5 {
            let id = ClaimId::new(number);
            let granted = engine.claim(vec![claim_of("x", id)]).await.remove(0).expect("an answer");
            assert!(matches!(granted, ClaimAnswer::Granted(_)), "{granted:?}");
            let waits = Claim { wait: true, ..claim_of("x", ClaimId::new(number + 100)) };
            let waiting = engine.claim(vec![waits.clone()]).await.remove(0).expect("an answer");
            assert!(matches!(waiting, ClaimAnswer::Waiting(..)), "{waiting:?}");
            assert_eq!(release(&engine, &name, waits.id, false).await, ReleaseAnswer::Released);
            assert_eq!(release(&engine, &name, id, false).await, ReleaseAnswer::Released);
        }
        let text = log().split_off(before);
        let long: Vec<&str> = text.lines().filter(|line| line.contains("ORDER BY name FOR UPDATE")).collect();
        assert_eq!(long.len(), 3, "only waiters that go take a transaction: {long:?}");
    });
}

/// A copy of a claim that comes while the claim is withdrawn waits for the row, and knows of nothing that was remembered since.
#[test]
fn a_late_copy_that_waited_for_its_withdrawal_is_not_granted() {
    const COPIES: u128 = 40;
    let server = PostgresServer::start(&PostgresOptions::default());
    run_with_engine(&server, async |engine| {
        let mut other = server.connect().expect("it answers");
        let mut watcher = server.connect().expect("it answers");
        let mut waited = 0;
        for id in 0..COPIES {
            let claim = claim_of("x", ClaimId::new(1000 + id));
            withdraw(&engine, &claim.resource, ClaimId::new(5000 + id)).await;
            // As a withdrawal does it.
            let micros = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 60000000";
            other.run("BEGIN");
            other.run(&format!("UPDATE tenure_resource SET finished_until = {micros}"));
            other.run(&format!(
                "INSERT INTO tenure_finished VALUES ('x', decode('{:032x}', 'hex'), {micros})",
                1000 + id
            ));
            let engine_too = engine.clone();
            let copy = claim.clone();
            let answer = tokio::spawn(async move { engine_too.claim(vec![copy]).await.remove(0) });
            // It waits for some milliseconds only, and asks in a transaction then: either way it is not granted.
            let is_waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            while !answer.is_finished() && watcher.run(is_waiting).first() == Some("0") {
                tokio::task::yield_now().await;
            }
            waited += u32::from(!answer.is_finished());
            other.run("COMMIT");
            let answer = answer.await.expect("no panic").expect("an answer");
            assert!(matches!(answer, ClaimAnswer::Finished), "{answer:?}");
        }
        assert!(waited > 0, "some copy has waited");
    });
}

/// The short path ends a hold that was over already as `step` does: a late copy of its claim is not granted.
#[test]
fn a_release_that_comes_too_late_is_told_and_remembered() {
    let server = PostgresServer::start(&PostgresOptions::default());
    run_with_engine(&server, async |engine| {
        let (name, id, ttl) = (Name::new("x").expect("a name"), ClaimId::new(17), Duration::from_millis(200));
        let mut claim = claim_of("x", id);
        claim.terms = Arc::new(Terms { ttl, ..Terms::clone(&claim.terms) });
        let granted = engine.claim(vec![claim.clone()]).await.remove(0).expect("an answer");
        assert!(matches!(granted, ClaimAnswer::Granted(_)), "{granted:?}");
        pause(2 * ttl);
        assert_eq!(release(&engine, &name, id, false).await, ReleaseAnswer::AlreadyLost);
        let again = engine.claim(vec![claim]).await.remove(0).expect("an answer");
        assert!(matches!(again, ClaimAnswer::Finished), "{again:?}");
    });
}

const CLIENT: ClientId = ClientId::new(1);

fn run_with_engine(server: &PostgresServer, work: impl AsyncFnOnce(Arc<dyn DynEngine>)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        work(connector(&server.url()).open(CLIENT).await.expect("the server is there")).await;
    });
}

fn claim_of(name: &str, id: ClaimId) -> Claim {
    Claim {
        resource: Name::new(name).expect("a name"),
        id,
        client: CLIENT,
        terms: Arc::new(Terms::of_mutex(Label::new("host", 1, "program", ""))),
        wait: false,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    }
}

async fn release(
    engine: &Arc<dyn DynEngine>,
    name: &Name,
    claim: ClaimId,
    maybe_in_flight: bool,
) -> ReleaseAnswer {
    let release = Release { claim, maybe_in_flight, is_unused: false };
    let request = ReleaseRequest { resource: name.clone(), release };
    engine.release(vec![request]).await.remove(0).expect("an answer")
}

/// Withdraws a claim that may be under way.
async fn withdraw(engine: &Arc<dyn DynEngine>, name: &Name, claim: ClaimId) {
    assert_eq!(release(engine, name, claim, true).await, ReleaseAnswer::AlreadyLost);
}
