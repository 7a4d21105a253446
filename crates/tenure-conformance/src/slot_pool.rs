//! Numbered units. Driven at the engine.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::claim::{Kind, Terms};
use tenure_core::engine::{Capability, SlotOrder};

use crate::Setup;
use crate::direct::terms;
use crate::stage::{SHORT, Stage, assert_passed, now, pause, resource, ttl_of};

async fn can(setup: &impl Setup, check: &str, what: &str, can: impl FnOnce(&Capability) -> bool) -> bool {
    let has = |capability: &Capability| capability.kinds.contains(&Kind::SlotPool) && can(capability);
    setup.can(&format!("slot_pool::{check}"), what, has).await
}

fn slots(capacity: u32) -> Terms {
    terms(Kind::SlotPool, capacity, 1)
}

/// Each grant names a slot of the pool that no other holder has.
pub async fn no_slot_is_held_twice(setup: &impl Setup) {
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
pub async fn the_slot_that_was_free_longest_is_given(setup: &impl Setup) {
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
pub async fn a_resting_slot_is_not_given(setup: &impl Setup) {
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
