//! Calls whose caller is dropped before they are answered, as the client does after its answer timeout.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{ClaimAnswer, DynEngine, ReleaseRequest};
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Label, Name, Terms};
use tenure_core::model::step::Release;
use tenure_core::model::token::Token;
use tenure_testkit::zookeeper::shared;
use tokio::time::timeout;

use crate::conformance::{BRIEF, connector};

/// How long calls are waited for: from nothing to about what they take.
const PATIENCE: std::ops::Range<u64> = 0..30;

fn claim(client: ClientId, resource: &Name, terms: Terms) -> Claim {
    let id = ClaimId::new(u128::from(SystemClock.random()) << 64 | u128::from(SystemClock.random()));
    let (resource, terms) = (resource.clone(), Arc::new(terms));
    Claim {
        resource,
        id,
        client,
        terms,
        wait: true,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    }
}

fn mutex() -> Terms {
    Terms::of_mutex(Label::new("here", 7, "dropped", ""))
}

/// Lets the runtime work for a while.
async fn pause(period: Duration) {
    let until = SystemClock.now() + period;
    let mut timer = SystemClock.timer().expect("a timer");
    poll_fn(|cx| timer.poll_until(until, cx)).await;
}

/// Asks, and is gone after a while.
async fn ask_and_go(engine: &Arc<dyn DynEngine>, claim: &Claim, patience: u64) {
    // Whether it was answered is all the same.
    drop(timeout(Duration::from_micros(100 * patience), engine.claim(vec![claim.clone()])).await);
}

async fn let_go(engine: &Arc<dyn DynEngine>, claim: &Claim) {
    let release = Release { claim: claim.id, maybe_in_flight: true, is_unused: true };
    engine.release(vec![ReleaseRequest { resource: claim.resource.clone(), release }]).await;
}

fn run(test: impl AsyncFn(Arc<dyn DynEngine>, ClientId)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = ClientId::new(SystemClock.random());
        let url = format!("{}/dropped?{BRIEF}", shared());
        test(connector(&url).open(client).await.expect("the server is there"), client).await;
    });
}

#[test]
fn a_claim_that_is_asked_again_after_its_caller_was_dropped_does_not_stand_behind_itself() {
    run(async |engine, client| {
        for patience in PATIENCE {
            let resource = Name::new(&format!("again-{client}-{patience}")).expect("a short name");
            let claim = claim(client, &resource, mutex());
            ask_and_go(&engine, &claim, patience).await;
            let answer = engine.claim(vec![claim.clone()]).await.pop();
            assert!(matches!(answer, Some(Ok(ClaimAnswer::Granted(_)))), "after {patience}: {answer:?}");
            let_go(&engine, &claim).await;
            assert!(
                engine.view(resource).await.expect("an answer").is_none(),
                "after {patience}: it is still there"
            );
        }
    });
}

#[test]
fn a_claim_that_must_leave_leaves_also_if_its_caller_is_dropped() {
    run(async |engine, client| {
        for patience in PATIENCE {
            let resource = Name::new(&format!("leaves-{client}-{patience}")).expect("a short name");
            let held = claim(client, &resource, mutex());
            engine.claim(vec![held.clone()]).await;
            let heavy = Terms { kind: tenure_core::model::claim::Kind::Semaphore, capacity: 3, ..mutex() };
            let conflict = claim(client, &resource, heavy);
            ask_and_go(&engine, &conflict, patience).await;
            // The client asks again, and is told that there is nothing for it: then it releases nothing.
            engine.claim(vec![conflict.clone()]).await;
            let mut looks = 0;
            while engine.view(resource.clone()).await.expect("an answer").is_none_or(|view| view.waiting > 0)
            {
                looks += 1;
                assert!(looks < 20, "after {patience}: it does not go");
                pause(Duration::from_millis(50)).await;
            }
            let_go(&engine, &held).await;
        }
    });
}
