//! What ends by itself, when, and what does not.

use std::time::Duration;

use tenure_core::Name;
use tenure_core::clock::Instant;
use tenure_core::engine::{Capability, ClaimAnswer, HandOver, ReleaseAnswer, RenewAnswer};
use tenure_core::model::claim::{Claim, Terms};
use tenure_core::model::step::Release;

use crate::Setup;
use crate::direct::{self, Direct};
use crate::stage::{SHORT, assert_passed, now, pause, resource, ttl_of};
use tenure_core::testing::busy::assert_in_time;

/// How often a check looks whether something has ended.
const LOOK: Duration = Duration::from_millis(10);

fn brief(direct: &Direct) -> Terms {
    let mut terms = direct::mutex();
    terms.ttl = ttl_of(direct.capability(), SHORT);
    terms
}

/// Tries until the mutex is granted, lets it go and returns when it was.
async fn free_at(setup: &dyn Setup, direct: &Direct, resource: &Name) -> Instant {
    let until = now() + setup.patience();
    loop {
        let claim = direct.trying(resource, &direct::mutex());
        match direct.claim(&claim).await {
            Ok(ClaimAnswer::Granted(_)) => {
                let at = now();
                direct.release(&claim).await;
                return at;
            }
            Ok(ClaimAnswer::Busy(_)) => assert!(now() < until, "it never came free"),
            other => panic!("a try is granted or refused: {other:?}"),
        }
        pause(LOOK).await;
    }
}

/// Renews a hold until it is lost.
async fn renew_until_lost(setup: &dyn Setup, direct: &Direct, claim: &Claim) {
    setup
        .eventually("a hold that is renewed ends", async || match direct.renew(claim).await {
            RenewAnswer::Lost => true,
            RenewAnswer::Renewed { .. } => false,
            other => panic!("a renewal is answered with what is left or with the loss: {other:?}"),
        })
        .await;
}

/// A hold that nobody renews excludes others for its ttl, and then does not.
pub async fn a_hold_ends_after_its_ttl_and_not_before(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("ends");
    let terms = brief(&a);
    let claim = a.trying(&resource, &terms);
    let start = now();
    let ends_in = a.grant(&claim).await.ends_in;
    assert!(ends_in <= terms.ttl && ends_in > Duration::ZERO, "it is told to end in {ends_in:?}");
    free_at(setup, &b, &resource).await;
    assert_passed(start, terms.ttl, "a hold ends");
    assert_eq!(a.release(&claim).await, ReleaseAnswer::AlreadyLost, "a hold that has ended is lost");
}

/// A hold that is renewed lives on, however short its ttl.
pub async fn a_renewed_hold_outlives_its_ttl(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("lives");
    let mut terms = direct::mutex();
    terms.ttl = ttl_of(a.capability(), 2 * SHORT);
    let claim = a.trying(&resource, &terms);
    let start = now();
    a.grant(&claim).await;
    while now().since(start) < terms.ttl * 5 / 2 {
        match a.renew(&claim).await {
            RenewAnswer::Renewed { ends_in } => assert!(ends_in > terms.ttl / 2, "it ends in {ends_in:?}"),
            other => panic!("a hold that is renewed in time lives: {other:?}"),
        }
        b.refuse(&b.trying(&resource, &direct::mutex())).await;
        pause(terms.ttl / 10).await;
    }
    assert_eq!(a.release(&claim).await, ReleaseAnswer::Released);
}

/// A renewal of a hold that has ended says so and gives nothing, even if nobody else came.
pub async fn renewing_never_recreates(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("recreates");
    let claim = a.trying(&resource, &brief(&a));
    a.grant(&claim).await;
    setup.eventually("the hold ends", async || a.view(&resource).await.is_none()).await;
    assert_eq!(a.renew(&claim).await, RenewAnswer::Lost, "a renewal came after the end");
    assert_eq!(a.heartbeat(&claim).await, RenewAnswer::Lost, "a heartbeat came after the end");
    let unknown = a.trying(&resource, &direct::mutex());
    assert_eq!(a.renew(&unknown).await, RenewAnswer::Lost, "a claim was renewed that never was");
    let next = b.trying(&resource, &direct::mutex());
    b.grant(&next).await;
    b.release(&next).await;
}

/// A hold with a `max_hold` ends by then, renewed or not.
pub async fn max_hold_ends_a_renewed_hold(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("max-hold");
    let mut terms = direct::mutex();
    let max_hold = ttl_of(a.capability(), 2 * SHORT);
    terms.limits.max_hold = Some(max_hold);
    let claim = a.trying(&resource, &terms);
    let start = now();
    let ends_in = a.grant(&claim).await.ends_in;
    assert!(ends_in <= max_hold, "it is told to end in {ends_in:?}");
    renew_until_lost(setup, &a, &claim).await;
    assert_passed(start, max_hold, "a hold with a max_hold ends");
    let next = b.trying(&resource, &direct::mutex());
    b.grant(&next).await;
    b.release(&next).await;
}

async fn can_rest(setup: &dyn Setup, check: &str) -> bool {
    setup.can(&format!("expiry::{check}"), "rests", |capability: &Capability| capability.has_rests).await
}

/// A mutex with a `min_hold` is not granted again before that, even if it is released.
pub async fn min_hold_keeps_others_out_after_a_release(setup: &dyn Setup) {
    if !can_rest(setup, "min_hold_keeps_others_out_after_a_release").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("min-hold");
    let mut terms = direct::mutex();
    terms.limits.min_hold = SHORT;
    let claim = a.trying(&resource, &terms);
    let start = now();
    a.grant(&claim).await;
    assert_eq!(a.release(&claim).await, ReleaseAnswer::Released);
    let busy = b.claim(&b.trying(&resource, &direct::mutex())).await;
    match busy {
        Ok(ClaimAnswer::Busy(busy)) => assert!(busy.is_resting, "nobody holds it: it rests"),
        _ => assert_passed(start, SHORT, "a rest ends"),
    }
    free_at(setup, &b, &resource).await;
    assert_passed(start, SHORT, "a rest ends");
}

/// A grant that never reached its user keeps nobody out.
pub async fn min_hold_does_not_count_for_an_unused_grant(setup: &dyn Setup) {
    if !can_rest(setup, "min_hold_does_not_count_for_an_unused_grant").await {
        return;
    }
    let direct = setup.direct().await;
    let resource = resource("unused");
    let mut terms = direct::mutex();
    terms.limits.min_hold = Duration::from_secs(3600);
    let claim = direct.trying(&resource, &terms);
    direct.grant(&claim).await;
    let release = Release { claim: claim.id, maybe_in_flight: false, is_unused: true };
    assert_eq!(direct.release_as(&resource, release).await, ReleaseAnswer::Released);
    let next = direct.trying(&resource, &direct::mutex());
    direct.grant(&next).await;
    direct.release(&next).await;
}

/// A mutex with a `lock_delay` whose holder vanished rests for that long after the hold's end.
pub async fn lock_delay_keeps_others_out_after_a_holder_vanished(setup: &dyn Setup) {
    if !can_rest(setup, "lock_delay_keeps_others_out_after_a_holder_vanished").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("lock-delay");
    let mut terms = brief(&a);
    terms.limits.lock_delay = SHORT;
    let claim = a.trying(&resource, &terms);
    let start = now();
    a.grant(&claim).await;
    free_at(setup, &b, &resource).await;
    assert_passed(start, terms.ttl + SHORT, "the rest after a hold that ended by itself is over");
    assert_eq!(a.renew(&claim).await, RenewAnswer::Lost);
}

/// A holder that releases by itself did not vanish: its `lock_delay` keeps nobody out.
pub async fn a_release_skips_the_lock_delay(setup: &dyn Setup) {
    if !can_rest(setup, "a_release_skips_the_lock_delay").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("no-delay");
    let mut terms = direct::mutex();
    terms.limits.lock_delay = Duration::from_secs(3600);
    let claim = a.trying(&resource, &terms);
    a.grant(&claim).await;
    a.release(&claim).await;
    let next = b.trying(&resource, &direct::mutex());
    b.grant(&next).await;
    b.release(&next).await;
}

/// A grant to a waiter that is never heard of again ends after the confirm window, not after its ttl.
pub async fn an_unconfirmed_grant_ends_after_its_window(setup: &dyn Setup) {
    let has_window = |capability: &Capability| capability.hand_over == HandOver::Window;
    if !setup.can("expiry::an_unconfirmed_grant_ends_after_its_window", "confirm window", has_window).await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("window");
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    // The window of a ttl this short is the ttl; that it is no longer than 5 s is seen at the next waiter.
    let silent = b.waiting(&resource, &brief(&b));
    b.enqueue(&silent).await;
    let long = b.waiting(&resource, &direct::mutex());
    b.enqueue(&long).await;
    let start = now();
    a.release(&held).await;
    setup
        .eventually("the silent waiter's grant ends", async || {
            matches!(b.heartbeat(&long).await, RenewAnswer::Granted(_))
        })
        .await;
    let took = now().since(start);
    assert_in_time(took, Duration::from_secs(5) + 2 * SHORT);
    assert_eq!(b.heartbeat(&silent).await, RenewAnswer::Lost, "the grant was not confirmed in time");
    b.release(&long).await;
    unconfirmed_grant_is_short(&a, &b).await;
}

/// A grant that was made to a waiter with a long ttl is listed to end within the window.
async fn unconfirmed_grant_is_short(a: &Direct, b: &Direct) {
    let resource = resource("window-max");
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    let waiting = b.waiting(&resource, &direct::mutex());
    b.enqueue(&waiting).await;
    a.release(&held).await;
    let view = a.view(&resource).await.expect("the waiter was granted");
    let ends_in = view.holds.first().expect("the waiter holds").ends_in;
    assert!(ends_in <= Duration::from_secs(5), "an unconfirmed grant ends in {ends_in:?}");
    b.served(&waiting, "it was granted").await;
    b.release(&waiting).await;
}

/// A waiter that is not heard of loses its place.
pub async fn a_waiter_without_heartbeat_goes(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("silent");
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    let silent = b.waiting(&resource, &brief(&b));
    b.enqueue(&silent).await;
    setup
        .eventually("the silent waiter goes", async || {
            // However long its ttl, a hold may end when nothing is heard of its user.
            assert!(matches!(a.renew(&held).await, RenewAnswer::Renewed { .. }), "it is held");
            a.view(&resource).await.expect("it is held").waiting == 0
        })
        .await;
    assert_eq!(b.heartbeat(&silent).await, RenewAnswer::Lost, "its place is gone");
    a.release(&held).await;
    let next = a.trying(&resource, &direct::mutex());
    a.grant(&next).await;
    a.release(&next).await;
}
