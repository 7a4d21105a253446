//! Holders of any weight, up to the capacity.

use tenure_core::ErrorKind;
use tenure_core::model::claim::Kind;

use crate::actor::{SECTIONS, work_in_sections};
use crate::direct::terms;
use crate::form::{Contest, Form};
use crate::history::{Section, over_capacity};
use crate::stage::{name, resource};
use crate::{Setup, cancellation, death, loss};

async fn can(setup: &dyn Setup, check: &str) -> bool {
    let has = |capability: &tenure_core::engine::Capability| capability.kinds.contains(&Kind::Semaphore);
    setup.can(&format!("semaphore::{check}"), "semaphores", has).await
}

/// The weights of the holders never exceed the capacity, and reach it.
pub async fn grants_up_to_its_capacity(setup: &dyn Setup) {
    if !can(setup, "grants_up_to_its_capacity").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("units");
    let weighing = |weight| terms(Kind::Semaphore, 5, weight);
    let (two, three) = (a.trying(&resource, &weighing(2)), b.trying(&resource, &weighing(3)));
    a.grant(&two).await;
    b.grant(&three).await;
    let busy = a.refuse(&a.trying(&resource, &weighing(1))).await;
    assert!(busy.holder.is_some(), "a refusal names a holder");
    assert_eq!(a.view(&resource).await.expect("it is held").used, 5);
    a.release(&two).await;
    b.refuse(&b.trying(&resource, &weighing(3))).await;
    let again = b.trying(&resource, &weighing(2));
    b.grant(&again).await;
    b.release(&again).await;
    b.release(&three).await;
}

/// What is too heavy to be granted at once is not overtaken by lighter claims, waiting or not.
pub async fn nobody_overtakes_the_head(setup: &dyn Setup) {
    if !can(setup, "nobody_overtakes_the_head").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("head");
    let weighing = |weight| terms(Kind::Semaphore, 4, weight);
    let held = a.trying(&resource, &weighing(2));
    a.grant(&held).await;
    let (heavy, light) = (b.waiting(&resource, &weighing(3)), b.waiting(&resource, &weighing(1)));
    b.enqueue(&heavy).await;
    b.enqueue(&light).await;
    a.refuse(&a.trying(&resource, &weighing(1))).await;
    b.assert_waits(&light, "a heavier claim came first").await;
    a.release(&held).await;
    b.served(&heavy, "its units are free").await;
    b.served(&light, "one unit is left").await;
    b.release(&heavy).await;
    b.release(&light).await;
}

/// A release serves all waiters that fit, not only one.
pub async fn a_heavy_release_serves_all_that_fit(setup: &dyn Setup) {
    if !can(setup, "a_heavy_release_serves_all_that_fit").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("all");
    let weighing = |weight| terms(Kind::Semaphore, 4, weight);
    let held = a.trying(&resource, &weighing(4));
    a.grant(&held).await;
    let claims = [2, 1, 1, 1].map(|weight| b.waiting(&resource, &weighing(weight)));
    for claim in &claims {
        b.enqueue(claim).await;
    }
    a.release(&held).await;
    for claim in &claims[..3] {
        b.served(claim, "it fits").await;
    }
    b.assert_waits(&claims[3], "four units are held").await;
    for claim in &claims {
        b.release(claim).await;
    }
}

/// A claim that could never be granted is refused at once.
pub async fn a_weight_above_the_capacity_is_invalid(setup: &dyn Setup) {
    if !can(setup, "a_weight_above_the_capacity_is_invalid").await {
        return;
    }
    let direct = setup.direct().await;
    let resource = resource("weight");
    for weight in [0, 5] {
        let claim = direct.waiting(&resource, &terms(Kind::Semaphore, 4, weight));
        let error = direct.claim(&claim).await.expect_err("a weight that can never be granted is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert!(direct.view(&resource).await.is_none(), "a claim that was refused leaves nothing");
}

/// Units that an operator adds go to the waiters.
pub async fn growing_it_serves_waiters(setup: &dyn Setup) {
    if !can(setup, "growing_it_serves_waiters").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("grow");
    let held = a.trying(&resource, &terms(Kind::Semaphore, 1, 1));
    a.grant(&held).await;
    let waiting = b.waiting(&resource, &terms(Kind::Semaphore, 1, 1));
    b.enqueue(&waiting).await;
    a.resize(&resource, 2).await;
    b.served(&waiting, "there are two units").await;
    a.release(&held).await;
    b.release(&waiting).await;
}

/// Units that an operator takes away are gone once they are released; no holder loses its own.
pub async fn shrinking_it_takes_effect_as_units_come_free(setup: &dyn Setup) {
    if !can(setup, "shrinking_it_takes_effect_as_units_come_free").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("shrink");
    let holds = [1, 2].map(|_| a.trying(&resource, &terms(Kind::Semaphore, 2, 1)));
    for hold in &holds {
        a.grant(hold).await;
    }
    a.resize(&resource, 1).await;
    for hold in &holds {
        let answer = a.renew(hold).await;
        let is_held = matches!(answer, tenure_core::engine::RenewAnswer::Renewed { .. });
        assert!(is_held, "no holder loses its units: {answer:?}");
    }
    a.release(&holds[0]).await;
    b.refuse(&b.trying(&resource, &terms(Kind::Semaphore, 1, 1))).await;
    a.release(&holds[1]).await;
    let next = b.trying(&resource, &terms(Kind::Semaphore, 1, 1));
    b.grant(&next).await;
    b.release(&next).await;
}

/// Processes that contend for units never hold more of them together than there are.
pub async fn processes_never_exceed_its_capacity(setup: &dyn Setup) {
    if !can(setup, "processes_never_exceed_its_capacity").await {
        return;
    }
    const CAPACITY: u32 = 3;
    let name = name("units");
    let forms = [1, 1, 2, 1, 3].map(|weight| Form::Semaphore { capacity: CAPACITY, weight });
    let mut actors = Vec::new();
    for _ in forms {
        actors.push(setup.actor().await);
    }
    let sections = work_in_sections(&mut actors, &forms, &name, setup.rounds(SECTIONS).await).await;
    let weight = |section: &Section| forms[section.client].weight();
    assert_eq!(
        over_capacity(&sections, CAPACITY, weight),
        [],
        "more than {CAPACITY} units were held at once"
    );
    setup.assert_nothing_is_left(&name).await;
}

/// A wait that is dropped at any moment leaves no place in the queue, and no later grant.
pub async fn a_wait_dropped_at_any_moment_leaves_nothing(setup: &dyn Setup) {
    if can(setup, "a_wait_dropped_at_any_moment_leaves_nothing").await {
        cancellation::drop_waits(setup, Contest::SEMAPHORE).await;
    }
}

/// A lease that is dropped on a thread without any runtime is released.
pub async fn a_lease_dropped_outside_a_runtime_is_released(setup: &dyn Setup) {
    if can(setup, "a_lease_dropped_outside_a_runtime_is_released").await {
        cancellation::drop_outside_a_runtime(setup, Contest::SEMAPHORE).await;
    }
}

/// A lease whose hold an operator breaks is lost to its user within its ttl.
pub async fn a_broken_lease_is_lost_to_its_holder(setup: &dyn Setup) {
    if can(setup, "a_broken_lease_is_lost_to_its_holder").await {
        loss::broken_is_lost(setup, Contest::SEMAPHORE.holder).await;
    }
}

/// Work under `run` is dropped when its lease is lost.
pub async fn run_drops_its_work_on_loss(setup: &dyn Setup) {
    if can(setup, "run_drops_its_work_on_loss").await {
        loss::run_drops(setup, Contest::SEMAPHORE.next).await;
    }
}

/// A holder that is killed is replaced by the next waiter, at once where the engine notices deaths.
pub async fn a_killed_holder_is_replaced(setup: &dyn Setup) {
    if can(setup, "a_killed_holder_is_replaced").await {
        death::killed_holder(setup, Contest::SEMAPHORE).await;
    }
}

/// A waiter that is killed is not waited for.
pub async fn a_killed_waiter_is_skipped(setup: &dyn Setup) {
    if can(setup, "a_killed_waiter_is_skipped").await {
        death::killed_waiter(setup, Contest::SEMAPHORE).await;
    }
}
