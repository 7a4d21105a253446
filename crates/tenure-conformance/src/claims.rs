//! A claim id names one acquisition: repeating a request is harmless, and an id is never used twice.

use std::time::Duration;

use tenure_core::engine::{Capability, ClaimAnswer, ReleaseAnswer, RenewAnswer};
use tenure_core::model::claim::{Keep, Terms};
use tenure_core::model::step::Release;

use crate::Setup;
use crate::direct;
use crate::stage::{SHORT, resource, ttl_of};

/// A claim that is repeated, because its answer was lost, gets the grant that it had.
pub async fn a_repeated_claim_gets_the_same_grant(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("repeated");
    let claim = a.waiting(&resource, &direct::mutex());
    let grant = a.grant(&claim).await;
    for _ in 0..3 {
        assert_eq!(a.grant(&claim).await.token, grant.token, "a repeated claim got another grant");
    }
    b.refuse(&b.trying(&resource, &direct::mutex())).await;
    assert_eq!(a.release(&claim).await, ReleaseAnswer::Released);
    let next = b.trying(&resource, &direct::mutex());
    b.grant(&next).await;
    b.release(&next).await;
}

/// A waiting claim that is repeated keeps its place, and waits once.
pub async fn a_repeated_claim_keeps_its_place(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("place");
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    let (first, second) = (b.waiting(&resource, &direct::mutex()), b.waiting(&resource, &direct::mutex()));
    b.enqueue(&first).await;
    b.enqueue(&second).await;
    for _ in 0..3 {
        assert_eq!(b.enqueue(&first).await.position, 1, "a repeated claim keeps its place");
    }
    assert_eq!(b.view(&resource).await.expect("it is held").waiting, 2, "a repeated claim waits once");
    a.release(&held).await;
    b.served(&first, "it came first").await;
    b.assert_waits(&second, "the first holds").await;
    b.release(&first).await;
    b.served(&second, "the first released").await;
    b.release(&second).await;
}

/// A release that is repeated says that there was nothing to release, and harms nobody.
pub async fn a_repeated_release_says_already_lost(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("released");
    let claim = a.trying(&resource, &direct::mutex());
    a.grant(&claim).await;
    assert_eq!(a.release(&claim).await, ReleaseAnswer::Released);
    assert_eq!(a.release(&claim).await, ReleaseAnswer::AlreadyLost, "nothing is there to be released");
    let next = b.trying(&resource, &direct::mutex());
    b.grant(&next).await;
    assert_eq!(a.release(&claim).await, ReleaseAnswer::AlreadyLost);
    assert!(matches!(b.renew(&next).await, RenewAnswer::Renewed { .. }), "another's hold was released");
    assert_eq!(b.release(&next).await, ReleaseAnswer::Released);
}

/// A copy of a claim that arrives after the claim's release is refused, whether the engine had known it or not.
pub async fn a_claim_is_not_granted_after_its_own_release(setup: &dyn Setup) {
    let direct = setup.direct().await;
    for is_known in [false, true] {
        let resource = resource("late");
        let claim = direct.waiting(&resource, &direct::mutex());
        if is_known {
            direct.grant(&claim).await;
        }
        let release = Release { claim: claim.id, maybe_in_flight: true, is_unused: true };
        let answer = direct.release_as(&resource, release).await;
        let expected = if is_known { ReleaseAnswer::Released } else { ReleaseAnswer::AlreadyLost };
        assert_eq!(answer, expected);
        for _ in 0..2 {
            let answer = direct.claim(&claim).await;
            assert!(matches!(answer, Ok(ClaimAnswer::Finished)), "granted after its own release: {answer:?}");
        }
        assert_eq!(direct.heartbeat(&claim).await, RenewAnswer::Lost);
        let next = direct.trying(&resource, &direct::mutex());
        direct.grant(&next).await;
        direct.release(&next).await;
    }
}

/// A copy of a claim that arrives after its hold has ended by itself is refused.
pub async fn an_ended_claim_is_not_granted_again(setup: &dyn Setup) {
    let has = |capability: &Capability| capability.remembers_ends;
    if !setup
        .can("an_ended_claim_is_not_granted_again", "memory of holds that ended by themselves", has)
        .await
    {
        return;
    }
    let direct = setup.direct().await;
    let resource = resource("ended");
    let terms = Terms { ttl: ttl_of(direct.capability(), SHORT), ..direct::mutex() };
    let claim = direct.trying(&resource, &terms);
    direct.grant(&claim).await;
    setup.eventually("the hold ends", async || direct.view(&resource).await.is_none()).await;
    // Another hold in between, so that the end is long past for the engine.
    direct.token_of(&resource, &direct::mutex()).await;
    let answer = direct.claim(&claim).await;
    assert!(matches!(answer, Ok(ClaimAnswer::Finished)), "an ended claim was answered {answer:?}");
}

/// A copy of a claim that arrives after an operator broke its hold is refused.
pub async fn a_broken_claim_is_not_granted_again(setup: &dyn Setup) {
    let direct = setup.direct().await;
    let resource = resource("broken");
    let claim = direct.trying(&resource, &direct::mutex());
    let token = direct.grant(&claim).await.token;
    direct.break_hold(&resource, token, true).await;
    let answer = direct.claim(&claim).await;
    assert!(matches!(answer, Ok(ClaimAnswer::Finished)), "a broken claim was answered {answer:?}");
}

/// A release with another claim's id ends nothing.
pub async fn only_its_own_claim_releases_a_hold(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("own");
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    let waiting = b.waiting(&resource, &direct::mutex());
    b.enqueue(&waiting).await;
    for direct in [&a, &b] {
        let other = direct.trying(&resource, &direct::mutex());
        assert_eq!(
            direct.release(&other).await,
            ReleaseAnswer::AlreadyLost,
            "another's id released something"
        );
    }
    b.assert_waits(&waiting, "the holder did not release").await;
    assert!(matches!(a.renew(&held).await, RenewAnswer::Renewed { .. }), "it is still held");
    b.release(&waiting).await;
    a.release(&held).await;
}

/// The answers to a batch are in the order of its requests, each for its own.
pub async fn a_batch_is_answered_in_order(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let (free, taken) = (resource("batch-free"), resource("batch-taken"));
    let held = a.trying(&taken, &direct::mutex());
    a.grant(&held).await;
    let claims = vec![
        b.trying(&taken, &direct::mutex()),
        b.trying(&free, &direct::mutex()),
        b.waiting(&taken, &direct::mutex()),
        b.trying(&free, &direct::mutex()),
    ];
    let answers = b.claim_all(claims.clone()).await;
    assert!(
        matches!(
            answers[..],
            [
                Ok(ClaimAnswer::Busy(_)),
                Ok(ClaimAnswer::Granted(_)),
                Ok(ClaimAnswer::Waiting(..)),
                Ok(ClaimAnswer::Busy(_)),
            ]
        ),
        "the answers are out of order: {answers:?}"
    );
    assert_eq!(b.release(&claims[2]).await, ReleaseAnswer::Released);
    assert_eq!(b.release(&claims[1]).await, ReleaseAnswer::Released);
    a.release(&held).await;
}

/// Only who holds a resource sets its value, and without another wish the value goes with the hold.
pub async fn a_value_is_published_only_under_its_hold(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("value");
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    assert!(a.publish(&held, b"first", Keep::WhileHeld).await, "the holder publishes");
    let other = b.trying(&resource, &direct::mutex());
    assert!(!b.publish(&other, b"second", Keep::WhileHeld).await, "who does not hold cannot publish");
    let view = b.view(&resource).await.expect("it is held");
    assert_eq!(view.value.as_deref(), Some(&b"first"[..]), "the holder's value is seen");
    a.release(&held).await;
    assert!(!a.publish(&held, b"third", Keep::WhileHeld).await, "a hold that has ended publishes nothing");
    assert!(b.view(&resource).await.is_none(), "a value without hold goes");
    if !a.capability().keeps_values {
        return;
    }
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    let keep = Keep::For { fresh: Duration::from_secs(60), stale: Duration::from_secs(60) };
    assert!(a.publish(&held, b"kept", keep).await, "the holder publishes");
    a.release(&held).await;
    let view = b.view(&resource).await.expect("a kept value outlives the hold");
    assert_eq!(view.value.as_deref(), Some(&b"kept"[..]));
}
