//! Numbered units.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::engine::{BreakAnswer, Capability, SlotOrder};
use tenure_core::model::claim::{Kind, Terms};

use crate::actor::{Granted, SECTIONS};
use crate::direct::terms;
use crate::form::{Contest, Form};
use crate::history::{Section, by_slot, overlaps, stale_tokens};
use crate::stage::{LONG, SHORT, assert_passed, name, now, pause, resource, ttl_of};
use crate::{Setup, cancellation, death, loss};

async fn can(setup: &dyn Setup, check: &str, what: &str, can: impl FnOnce(&Capability) -> bool) -> bool {
    let has = |capability: &Capability| capability.kinds.contains(&Kind::SlotPool) && can(capability);
    setup.can(&format!("slot_pool::{check}"), what, has).await
}

fn slots(capacity: u32) -> Terms {
    terms(Kind::SlotPool, capacity, 1)
}

/// Each grant names a slot of the pool that no other holder has.
pub async fn no_slot_is_held_twice(setup: &dyn Setup) {
    if !can(setup, "no_slot_is_held_twice", "slot pools", |_| true).await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("slots");
    let mut holds = Vec::new();
    let mut numbers = BTreeSet::new();
    for direct in [&a, &b, &a] {
        let claim = direct.trying(&resource, &slots(3));
        let slot = direct.grant(&claim).await.slot.expect("a grant of a slot pool names a slot");
        assert!(slot < 3, "slot {slot} of 3");
        assert!(numbers.insert(slot), "slot {slot} is held twice");
        holds.push((direct, claim, slot));
    }
    b.refuse(&b.trying(&resource, &slots(3))).await;
    let (direct, claim, slot) = holds.remove(1);
    direct.release(&claim).await;
    let again = a.trying(&resource, &slots(3));
    assert_eq!(a.grant(&again).await.slot, Some(slot), "the only free slot is given");
    a.release(&again).await;
    for (direct, claim, _) in holds {
        direct.release(&claim).await;
    }
}

/// Of several free slots, the one that came free first is given.
pub async fn the_slot_that_was_free_longest_is_given(setup: &dyn Setup) {
    let is_longest_free = |capability: &Capability| capability.slot_order == SlotOrder::LongestFree;
    let check = "the_slot_that_was_free_longest_is_given";
    if !can(setup, check, "order of free slots", is_longest_free).await {
        return;
    }
    let direct = setup.direct().await;
    let resource = resource("longest");
    let mut holds = Vec::new();
    for _ in 0..4 {
        let claim = direct.trying(&resource, &slots(4));
        let slot = direct.grant(&claim).await.slot.expect("a grant of a slot pool names a slot");
        holds.push((claim, slot));
    }
    let order = [2, 0, 3, 1].map(|index| holds[index].1);
    for slot in order {
        let (claim, _) = holds.iter().find(|(_, held)| *held == slot).expect("it is held");
        direct.release(claim).await;
    }
    for slot in order {
        let claim = direct.trying(&resource, &slots(4));
        assert_eq!(
            direct.grant(&claim).await.slot,
            Some(slot),
            "the slot that came free first is given first"
        );
        holds.push((claim, slot));
    }
    for (claim, _) in &holds[4..] {
        direct.release(claim).await;
    }
}

/// A slot whose holder vanished is given to nobody until its `lock_delay` is over.
pub async fn a_resting_slot_is_not_given(setup: &dyn Setup) {
    let check = "a_resting_slot_is_not_given";
    if !can(setup, check, "slots that rest", |capability| capability.has_rests).await {
        return;
    }
    let direct = setup.direct().await;
    let resource = resource("rests");
    let mut brief = slots(2);
    brief.ttl = ttl_of(direct.capability(), Duration::from_millis(100));
    brief.limits.lock_delay = SHORT;
    let start = now();
    let vanished = direct.grant(&direct.trying(&resource, &brief)).await.slot;
    loop {
        // The other slot is free all the time, and is always the one that is given.
        let claim = direct.trying(&resource, &slots(2));
        let slot = direct.grant(&claim).await.slot;
        let other = direct.claim(&direct.trying(&resource, &slots(2))).await;
        direct.release(&claim).await;
        if let Ok(tenure_core::engine::ClaimAnswer::Granted(grant)) = other {
            assert_passed(start, brief.ttl + SHORT, "a resting slot is given");
            assert!(grant.slot == vanished || slot == vanished, "two slots are there");
            return;
        }
        assert!(now().since(start) < setup.patience(), "a rest ends");
        pause(Duration::from_millis(10)).await;
    }
}

/// No slot is ever held by two processes, and those of processes that are killed come back.
pub async fn processes_of_which_some_are_killed_share_no_slot(setup: &dyn Setup) {
    if !can(setup, "processes_of_which_some_are_killed_share_no_slot", "slot pools", |_| true).await {
        return;
    }
    const SLOTS: u32 = 3;
    let (name, client) = (name("processes"), setup.client().await);
    let pool = Form::Slots(SLOTS);
    let ttl = if client.capability().notices_death { LONG } else { setup.ttl(2 * SHORT).await };
    let mut actors = Vec::new();
    for _ in 0..5 {
        actors.push(setup.actor().await);
    }
    let mut victims = actors.split_off(3);
    let mut sections = Vec::new();
    for (victim, client) in victims.iter_mut().zip(actors.len()..) {
        let Granted { token, slot } = victim.acquire(pool, &name, ttl).await;
        sections.push(Section { client, token, slot, from: now(), until: now() });
    }
    let rounds = setup.rounds(SECTIONS).await;
    actors.iter_mut().for_each(|actor| actor.tell_sections(pool, &name, LONG, rounds));
    for (victim, section) in victims.iter_mut().zip(&mut sections) {
        pause(Duration::from_millis(5)).await;
        section.until = now();
        victim.kill();
    }
    let worked = join_all(actors.iter_mut().enumerate().map(|(client, actor)| actor.sections(client))).await;
    sections.extend(worked.concat());
    assert!(
        sections.iter().all(|section| section.slot.is_some_and(|slot| slot < SLOTS)),
        "no slot of the pool"
    );
    for sections in by_slot(&sections) {
        assert_eq!(overlaps(&sections), [], "two processes worked in one slot of {name:?} at once");
        assert_eq!(stale_tokens(&sections), [], "a later holder of a slot of {name:?} had no larger token");
    }
    let pool = pool.of(&client, &name, LONG);
    let all = join_all((0..SLOTS).map(|_| setup.take(&pool))).await;
    let numbers: BTreeSet<u32> = all.iter().filter_map(|held| held.slot()).collect();
    assert_eq!(numbers.len(), SLOTS as usize, "every slot came back: {numbers:?}");
    drop(all);
    setup.assert_nothing_is_left(&name).await;
}

/// Work under `run` is started anew with another slot when its slot is lost, until it returns.
pub async fn run_starts_its_work_anew_on_loss(setup: &dyn Setup) {
    if !can(setup, "run_starts_its_work_anew_on_loss", "slot pools", |_| true).await {
        return;
    }
    let (client, operator) = (setup.client().await, setup.client().await);
    let name = name("anew");
    let pool = client.slot_pool(&name, 2).ttl(setup.ttl(SHORT).await);
    let mut first = None;
    let run = pool.run(async |slot| {
        if first.is_none() {
            first = Some((slot.number(), slot.token()));
            let broken = operator.break_hold(&name, slot.token(), false).await;
            assert!(matches!(broken, Ok(BreakAnswer::Broken { .. })), "it is held: {broken:?}");
            std::future::pending::<()>().await;
        }
        (slot.number(), slot.token())
    });
    let ended = setup.within("work whose slot is lost starts anew", run).await;
    let (number, token) = ended.expect("the work ends by returning");
    let (lost, before) = first.expect("it began");
    assert!(token > before, "it is a later grant");
    assert!(
        number != lost || setup.capability().await.slot_order != SlotOrder::LongestFree,
        "it is another slot"
    );
    setup.assert_nothing_is_left(&name).await;
}

/// A wait that is dropped at any moment leaves no place in the queue, and no later grant.
pub async fn a_wait_dropped_at_any_moment_leaves_nothing(setup: &dyn Setup) {
    if can(setup, "a_wait_dropped_at_any_moment_leaves_nothing", "slot pools", |_| true).await {
        cancellation::drop_waits(setup, Contest::SLOT_POOL).await;
    }
}

/// A lease that is dropped on a thread without any runtime is released.
pub async fn a_lease_dropped_outside_a_runtime_is_released(setup: &dyn Setup) {
    if can(setup, "a_lease_dropped_outside_a_runtime_is_released", "slot pools", |_| true).await {
        cancellation::drop_outside_a_runtime(setup, Contest::SLOT_POOL).await;
    }
}

/// A lease whose hold an operator breaks is lost to its user within its ttl.
pub async fn a_broken_lease_is_lost_to_its_holder(setup: &dyn Setup) {
    if can(setup, "a_broken_lease_is_lost_to_its_holder", "slot pools", |_| true).await {
        loss::broken_is_lost(setup, Contest::SLOT_POOL.holder).await;
    }
}

/// A holder that is killed is replaced by the next waiter, at once where the engine notices deaths.
pub async fn a_killed_holder_is_replaced(setup: &dyn Setup) {
    if can(setup, "a_killed_holder_is_replaced", "slot pools", |_| true).await {
        death::killed_holder(setup, Contest::SLOT_POOL).await;
    }
}

/// A waiter that is killed is not waited for.
pub async fn a_killed_waiter_is_skipped(setup: &dyn Setup) {
    if can(setup, "a_killed_waiter_is_skipped", "slot pools", |_| true).await {
        death::killed_waiter(setup, Contest::SLOT_POOL).await;
    }
}
