//! What the user of a client has left behind is withdrawn, and nothing by which somebody may work.

use tenure_core::engine::{Adopts, Capability, ClaimAnswer, HandOver, RenewAnswer, WithdrawAnswer};
use tenure_core::model::claim::Claim;

use crate::Setup;
use crate::direct::{self, Direct};
use crate::stage::resource;

/// What an engine lacks whose claims end with their clients.
const TAKEN_OVER: &str = "claims that another client can take over";

fn can_adopt(capability: &Capability) -> bool {
    capability.adopts == Adopts::AnyClient
}

/// A mutex that the first client holds, and for which the second one waits.
async fn held_and_waiting(stem: &str, a: &Direct, b: &Direct) -> (Claim, Claim) {
    let resource = resource(stem);
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    let waits = b.waiting(&resource, &direct::mutex());
    b.enqueue(&waits).await;
    (held, waits)
}

/// A waiter that was withdrawn is passed over, and its id is used up.
pub async fn a_waiter_that_was_left_is_passed_over(setup: &dyn Setup) {
    let (a, b, c) = (setup.direct().await, setup.direct().await, setup.direct().await);
    let (held, left) = held_and_waiting("left", &a, &b).await;
    let next = c.waiting(&held.resource, &direct::mutex());
    c.enqueue(&next).await;
    assert_eq!(b.withdraw(&left).await, WithdrawAnswer::Withdrawn, "a waiter is withdrawn");
    assert_eq!(b.withdraw(&left).await, WithdrawAnswer::AlreadyLost, "a waiter is withdrawn twice");
    a.release(&held).await;
    c.served(&next, "the one behind a waiter that was withdrawn").await;
    let answer = b.claim(&left).await;
    assert!(matches!(answer, Ok(ClaimAnswer::Finished)), "what was withdrawn was answered {answer:?}");
}

/// A grant of which nobody has heard passes on as soon as it is withdrawn, and not after its window.
pub async fn a_grant_of_which_nobody_has_heard_passes_on(setup: &dyn Setup) {
    let check = "withdrawal::a_grant_of_which_nobody_has_heard_passes_on";
    let has_window = |capability: &Capability| capability.hand_over == HandOver::Window;
    if !setup.can(check, "confirm window", has_window).await {
        return;
    }
    let (a, b, c) = (setup.direct().await, setup.direct().await, setup.direct().await);
    let (held, left) = held_and_waiting("unheard", &a, &b).await;
    let next = c.waiting(&held.resource, &direct::mutex());
    c.enqueue(&next).await;
    a.release(&held).await;
    c.assert_waits(&next, "a waiter before it was granted").await;
    assert_eq!(b.withdraw(&left).await, WithdrawAnswer::Withdrawn, "a grant is withdrawn");
    let answer = c.heartbeat(&next).await;
    assert!(matches!(answer, RenewAnswer::Granted(_)), "the next in line was answered {answer:?}");
    assert_eq!(b.heartbeat(&left).await, RenewAnswer::Lost, "what was withdrawn holds");
}

/// A hold of which its user may know is never withdrawn: one that was granted at once, and one that was confirmed.
pub async fn a_hold_that_was_heard_of_stays(setup: &dyn Setup) {
    if !setup.can("withdrawal::a_hold_that_was_heard_of_stays", TAKEN_OVER, can_adopt).await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let (held, waits) = held_and_waiting("heard", &a, &b).await;
    assert_eq!(a.withdraw(&held).await, WithdrawAnswer::InUse, "a hold that was granted at once");
    b.assert_waits(&waits, "a hold is not withdrawn").await;
    a.release(&held).await;
    b.served(&waits, "the next in line").await;
    assert_eq!(b.withdraw(&waits).await, WithdrawAnswer::InUse, "a hold that was confirmed");
    let answer = b.renew(&waits).await;
    assert!(matches!(answer, RenewAnswer::Renewed { .. }), "a hold that was confirmed is gone: {answer:?}");
}

/// What waits by another client now, and what was granted to that one, is not withdrawn by the first.
pub async fn what_another_client_has_taken_over_stays(setup: &dyn Setup) {
    if !setup.can("withdrawal::what_another_client_has_taken_over_stays", TAKEN_OVER, can_adopt).await {
        return;
    }
    let (a, b, c) = (setup.direct().await, setup.direct().await, setup.direct().await);
    let (held, first) = held_and_waiting("over", &a, &b).await;
    let moved = Claim { client: c.client(), may_be_known: true, ..first.clone() };
    c.enqueue(&moved).await;
    assert_eq!(b.withdraw(&first).await, WithdrawAnswer::InUse, "a waiter of another client");
    c.assert_waits(&moved, "another client waits by it").await;
    a.release(&held).await;
    assert_eq!(b.withdraw(&first).await, WithdrawAnswer::InUse, "a grant to another client");
    c.served(&moved, "who waits on at another client").await;
}
