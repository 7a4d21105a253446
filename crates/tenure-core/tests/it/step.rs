//! `step` keeps its promises under random commands.
//!
//! The first test compares it with the oracle: outcome, wakes, and all that can be seen of the record, after
//! each command. The others state one promise each and need no oracle for it (only to know which moments are
//! worth hitting), so that an error common to `step` and the oracle does not hide. Proptest prints the seed
//! and the shortest sequence of moves that fails.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{Claim, ClaimId, Grant, Kind};
use tenure_core::model::inspect::inspect;
use tenure_core::model::record::{Head, Hold, PlainRecord, Record};
use tenure_core::model::step::{
    Claimed, FINISHED_MEMORY, Refusal, Renew, Renewed, Settle, TOKEN_MEMORY, Transition, forget_at, step,
};
use tenure_core::model::token::Token;

use tenure_core::testing::random::cases;

use crate::oracle::{Oracle, Tenancy, Units};
use crate::world::{
    CLAIMS, Move, Order, Outcome, Pause, START, Scene, World, commands, holds, id, last_token, moves, name,
    pool_moves, shape, waiters, wild_moves,
};

/// The longest sequence of moves. Longer ones find no more, shorter ones fewer resizes of a full pool.
const MOVES_MAX: usize = 60;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(512)))]

    #[test]
    fn step_and_the_oracle_agree((kind, capacity) in shape(), moves in wild_moves(MOVES_MAX)) {
        play(kind, capacity, &moves, |scene, world| {
            agree_on_the_answer(scene)?;
            agree_on_the_record(world)
        })?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(128)))]

    #[test]
    fn a_grant_never_exceeds_the_capacity((kind, capacity) in shape(), moves in wild_moves(MOVES_MAX)) {
        play(kind, capacity, &moves, |scene, world| {
            let Ok(head) = world.record.head();
            let used: u32 = holds(&world.record).iter().map(|hold| hold.weight).sum();
            prop_assert_eq!(head.as_ref().map_or(0, |head| head.used), used);
            if !new_grants(scene).is_empty() {
                prop_assert!(used <= head.map_or(0, |head| head.capacity).max(capacity_before(scene)));
            }
            Ok(())
        })?;
    }

    #[test]
    fn nobody_overtakes_the_head_of_the_queue(
        (kind, capacity) in shape(),
        moves in wild_moves(MOVES_MAX),
    ) {
        play(kind, capacity, &moves, |scene, world| {
            let waiting: BTreeSet<u64> = waiters(&world.record).iter().map(|waiter| waiter.place).collect();
            for (claim, _) in new_grants(scene) {
                let place = waiters(&scene.before).iter().find(|w| w.claim == claim).map(|w| w.place);
                // A claim that did not wait comes behind all that do.
                let overtaken = waiting.range(..place.unwrap_or(u64::MAX)).next();
                prop_assert_eq!(overtaken, None, "{} was granted first", claim);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_waiter_that_fits_is_granted_and_woken_once(
        (kind, capacity) in shape(),
        moves in wild_moves(MOVES_MAX),
    ) {
        play(kind, capacity, &moves, |scene, world| {
            let Ok(head) = world.record.head();
            if let (Some(head), Some(first)) = (head, waiters(&world.record).first()) {
                prop_assert!(head.used + first.weight > head.capacity, "the head of the queue fits");
            }
            let mut woken: Vec<ClaimId> = scene.transition.wakes.iter().map(|woken| woken.claim).collect();
            for hold in holds(&world.record) {
                let is_new = hold.token > last_token(&scene.before);
                let Some(claim) = hold.claim.filter(|_| is_new) else { continue };
                let mut waited = waiters(&scene.before).into_iter().filter(|w| w.expires_at > scene.now);
                let did_wait = waited.any(|waiter| waiter.claim == claim);
                prop_assert_eq!(woken.contains(&claim), did_wait, "{}", claim);
            }
            let count = woken.len();
            woken.sort_unstable();
            woken.dedup();
            prop_assert_eq!(woken.len(), count, "woken twice");
            Ok(())
        })?;
    }

    #[test]
    fn tokens_grow_and_pass_the_floor((kind, capacity) in shape(), moves in wild_moves(MOVES_MAX)) {
        let (mut largest, mut floors) = (Token::ZERO, BTreeMap::new());
        play(kind, capacity, &moves, |scene, _| {
            if let Order::Claim(claim) = &scene.order
                && !waiters(&scene.before).iter().any(|waiter| waiter.claim == claim.id)
            {
                floors.insert(claim.id, claim.floor);
            }
            for (claim, grant) in new_grants(scene) {
                prop_assert!(grant.token > largest);
                prop_assert!(Some(&grant.token) > floors.get(&claim));
                prop_assert!(grant.token.get() >= scene.now.micros());
                largest = grant.token;
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_repeated_command_changes_nothing_but_ends((kind, capacity) in shape(), moves in moves(MOVES_MAX)) {
        play(kind, capacity, &moves, |scene, world| {
            let mut record = world.record.clone();
            let Ok(again) = scene.order.run(&mut record, scene.now);
            prop_assert_eq!(without_ends(&record), without_ends(&world.record));
            prop_assert!(again.wakes.is_empty() && again.moved_up.is_empty());
            if let Order::Claim(_) = scene.order {
                prop_assert_eq!(again.answer, scene.transition.answer.clone());
            }
            Ok(())
        })?;
    }

    #[test]
    fn no_copy_of_a_claim_is_granted_after_its_own_release(
        (kind, capacity) in shape(),
        moves in moves(MOVES_MAX),
    ) {
        let mut released: BTreeMap<ClaimId, Timestamp> = BTreeMap::new();
        play(kind, capacity, &moves, |scene, world| {
            released.retain(|_, until| *until > scene.now);
            if let Order::Release(release) = &scene.order
                && release.maybe_in_flight
            {
                released.insert(release.claim, scene.now + FINISHED_MEMORY);
            }
            if let Order::Claim(claim) = &scene.order {
                let is_refused = scene.transition.answer == Outcome::Claim(Ok(Claimed::Finished));
                prop_assert!(is_refused || !released.contains_key(&claim.id));
            }
            for claim in present(&world.record) {
                prop_assert!(!released.contains_key(&claim), "{} is back", claim);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_renewal_never_creates_anything((kind, capacity) in shape(), moves in moves(MOVES_MAX)) {
        play(kind, capacity, &moves, |scene, world| {
            let Order::Renew(Renew(claim)) = scene.order else { return Ok(()) };
            prop_assert!(present(&world.record).is_subset(&present(&scene.before)));
            let mut held = holds(&scene.before).into_iter().filter(|h| h.expires_at > scene.now);
            let mut waited = waiters(&scene.before).into_iter().filter(|w| w.expires_at > scene.now);
            let did_hold = held.any(|hold| hold.claim == Some(claim));
            let did_wait = waited.any(|waiter| waiter.claim == claim);
            let is_lost = scene.transition.answer == Outcome::Renew(Renewed::Lost);
            prop_assert_eq!(!is_lost, did_hold || did_wait);
            Ok(())
        })?;
    }

    #[test]
    fn the_end_of_a_hold_never_moves_back((kind, capacity) in shape(), moves in wild_moves(MOVES_MAX)) {
        play(kind, capacity, &moves, |scene, world| {
            for old in holds(&scene.before).into_iter().filter(|old| old.claim.is_some()) {
                let Ok(new) = world.record.hold(old.token);
                let Some(new) = new.filter(|new| new.claim == old.claim) else { continue };
                prop_assert!(new.expires_at >= old.expires_at);
                prop_assert!(new.max_until().is_none_or(|max_until| new.expires_at <= max_until));
            }
            Ok(())
        })?;
    }

    #[test]
    fn no_slot_is_taken_twice(capacity in 1..=4_u32, moves in wild_moves(MOVES_MAX)) {
        play(Kind::SlotPool, capacity, &moves, |_, world| {
            let slots: Vec<u32> = holds(&world.record).iter().filter_map(|hold| hold.slot).collect();
            let distinct: BTreeSet<u32> = slots.iter().copied().collect();
            prop_assert_eq!(slots.len(), distinct.len());
            Ok(())
        })?;
    }

    #[test]
    fn the_slot_that_has_been_free_longest_is_given(
        capacity in 1..=4_u32,
        moves in pool_moves(MOVES_MAX),
    ) {
        // For each slot that was ever granted, when it came free, or the present if it has not.
        let mut taken_at: BTreeMap<u32, Timestamp> = BTreeMap::new();
        play(Kind::SlotPool, capacity, &moves, |scene, _| {
            let mut note = |hold: &Hold| {
                if let Some(slot) = hold.slot {
                    taken_at.insert(slot, free_by_itself_at(hold).min(scene.now));
                }
            };
            // What ended since the last command did so at its own time, all else not before now.
            holds(&scene.before).iter().for_each(&mut note);
            for (_, grant) in new_grants(scene) {
                let slot = grant.slot.expect("a pool grants slots");
                prop_assert!(slot < capacity);
                let taken_before = taken_slots(&scene.before, scene.now);
                prop_assert!(!taken_before.contains(&slot), "slot {} is held or rests", slot);
                let free = (0..capacity).filter(|free| !taken_before.contains(free));
                let longest_free = free.map(|free| taken_at.get(&free).copied()).min().flatten();
                prop_assert_eq!(taken_at.get(&slot).copied(), longest_free);
            }
            Ok(())
        })?;
    }

    #[test]
    fn an_idle_record_shrinks_to_nothing((kind, capacity) in shape(), moves in moves(MOVES_MAX)) {
        let mut last_in_use = START;
        play(kind, capacity, &moves, |scene, world| {
            if !is_idle(&scene.before) || !is_idle(&world.record) || !new_grants(scene).is_empty() {
                last_in_use = scene.now;
            }
            shrinks(&world.record, last_in_use, scene.now)
        })?;
    }

    #[test]
    fn what_is_forgotten_does_not_let_tokens_go_back(
        (kind, capacity) in shape(),
        moves in moves(MOVES_MAX),
        waits in prop::collection::vec(prop::option::weighted(0.3, any::<bool>()), MOVES_MAX),
    ) {
        let (mut world, mut largest) = (World::new(kind, capacity), Token::ZERO);
        for (next, wait) in moves.iter().zip(waits) {
            let scene = world.play(next);
            for (_, grant) in new_grants(&scene) {
                prop_assert!(grant.token > largest, "{} after {}", grant.token, largest);
                largest = grant.token;
            }
            let Some(is_monotonic) = wait else { continue };
            let Ok(at) = forget_at(&world.record, is_monotonic, world.now);
            if let Some(at) = at {
                world.now = world.now.max(at);
                world.record = PlainRecord::default();
            }
        }
    }

    #[test]
    fn any_command_at_any_time_has_an_answer(commands in commands(MOVES_MAX)) {
        let mut record = PlainRecord::default();
        for (order, now) in commands {
            let mut copy = record.clone();
            let before = last_token(&record);
            let Ok(transition) = order.run(&mut record, now);
            let Ok(again) = order.run(&mut copy, now);
            prop_assert_eq!((&transition, &record), (&again, &copy), "the same again");
            prop_assert!(last_token(&record) >= before);
            prop_assert!(granted(&transition).iter().all(|grant| grant.token <= last_token(&record)));
            let tokens: BTreeSet<Token> = holds(&record).iter().map(|hold| hold.token).collect();
            let Ok(head) = record.head();
            let used: u64 = holds(&record).iter().map(|hold| u64::from(hold.weight)).sum();
            prop_assert_eq!(head.as_ref().map_or(0, |head| u64::from(head.used)), used);
            prop_assert_eq!(tokens.len(), holds(&record).len());
            let Ok(_) = inspect(&name(), &record, now);
            for is_monotonic in [true, false] {
                let Ok(at) = forget_at(&record, is_monotonic, now);
                prop_assert_eq!(at.is_some(), head.as_ref().is_some_and(|head| head.is_idle()));
            }
        }
    }

    #[test]
    fn a_look_shows_what_settling_would_leave(
        (kind, capacity) in shape(),
        moves in moves(MOVES_MAX),
        pause in (0..12_usize, -1..=1_i64),
    ) {
        let mut world = World::new(kind, capacity);
        for next in &moves {
            world.play(next);
        }
        let now = world.after(Pause::Moment { nth: pause.0, give_or_take: pause.1 });
        // Without waiters, because a look grants nothing.
        let mut record = without_waiters(&world.record);
        let Ok(view) = inspect(&name(), &record, now);
        let Ok(_) = step(&mut record, &Settle, now);
        let Ok(settled) = inspect(&name(), &record, now);
        prop_assert_eq!(view, settled);
    }
}

/// Makes the moves, and checks after each.
fn play(
    kind: Kind,
    capacity: u32,
    moves: &[Move],
    mut check: impl FnMut(&Scene, &World) -> TestCaseResult,
) -> TestCaseResult {
    let mut world = World::new(kind, capacity);
    for next in moves {
        let scene = world.play(next);
        check(&scene, &world).map_err(|error| {
            TestCaseError::fail(format!("{error}\nafter {:?}\nat {}", scene.order, scene.now.micros()))
        })?;
    }
    Ok(())
}

fn agree_on_the_answer(scene: &Scene) -> TestCaseResult {
    let without_text = |outcome: &Outcome| match outcome {
        Outcome::Claim(Err(Refusal::Invalid(_))) => {
            Outcome::Claim(Err(Refusal::Invalid("whatever the text")))
        }
        Outcome::Resize(Err(_)) => Outcome::Resize(Err("whatever the text")),
        other => other.clone(),
    };
    let Transition { answer, wakes, moved_up } = &scene.transition;
    prop_assert_eq!(without_text(answer), without_text(&scene.answer.outcome), "outcome");
    prop_assert_eq!(wakes, &scene.answer.wakes, "wakes");
    prop_assert_eq!(moved_up, &scene.answer.moved_up, "moved up");
    Ok(())
}

fn agree_on_the_record(world: &World) -> TestCaseResult {
    let (record, oracle) = (&world.record, &world.oracle);
    let Ok(head) = record.head();
    if !oracle.is_idle() {
        prop_assert_eq!(head.as_ref().map(|head| (head.kind, head.capacity)), oracle.shape);
    }
    prop_assert_eq!(last_token(record), oracle.last_token);
    prop_assert_eq!(head.as_ref().map_or(0, |head| u64::from(head.used)), oracle.used(), "used");
    prop_assert_eq!(head.map_or(0, |head| head.waiting as usize), oracle.waiters().count(), "waiting");

    prop_assert_eq!(holds(record), expected_holds(oracle), "holds and rests");
    let seen: Vec<_> =
        waiters(record).into_iter().map(|w| (w.claim, w.client, w.weight, w.expires_at)).collect();
    let expected: Vec<_> = oracle.waiters().map(|q| (q.claim, q.client, q.weight, q.expires_at)).collect();
    prop_assert_eq!(seen, expected, "waiters");
    for claim in 0..CLAIMS {
        let Ok(is_finished) = record.is_finished(id(claim));
        prop_assert_eq!(is_finished, oracle.is_remembered(id(claim)), "finished {}", claim);
    }
    let Ok(value) = record.value();
    let value = value.map(|value| (value.bytes, value.token, value.fresh_until));
    prop_assert_eq!(value, oracle.value(), "value");
    Ok(())
}

fn expected_holds(oracle: &Oracle) -> Vec<Hold> {
    let hold = |taken: &Tenancy| {
        let (claim, expires_at) = match taken.units {
            Units::Resting { until } => (None, until),
            Units::Held | Units::Free { .. } => (Some(taken.claim), taken.ends_at),
        };
        Hold {
            claim,
            client: taken.client,
            weight: taken.weight,
            slot: taken.slot,
            token: taken.token,
            granted_at: taken.granted_at,
            expires_at,
            is_confirmed: taken.is_confirmed,
            ttl: taken.ttl,
            limits: taken.limits,
            label: taken.label.clone(),
        }
    };
    let mut expected: Vec<Hold> = oracle.taken().map(hold).collect();
    expected.sort_unstable_by_key(|hold| hold.token);
    expected
}

/// The grants that a scene brought, in the order in which they were made.
fn new_grants(scene: &Scene) -> Vec<(ClaimId, Grant)> {
    let woken = scene.transition.wakes.iter().filter_map(|woken| Some((woken.claim, woken.grant?)));
    let mut grants: Vec<(ClaimId, Grant)> = woken.collect();
    if let (Order::Claim(Claim { id, .. }), Outcome::Claim(Ok(Claimed::Granted(grant)))) =
        (&scene.order, &scene.transition.answer)
        && grant.token > last_token(&scene.before)
        && !grants.iter().any(|(claim, _)| claim == id)
    {
        grants.push((*id, *grant));
    }
    grants
}

fn granted(transition: &Transition<Outcome>) -> Vec<Grant> {
    let mut grants: Vec<Grant> = transition.wakes.iter().filter_map(|woken| woken.grant).collect();
    if let Outcome::Claim(Ok(Claimed::Granted(grant))) | Outcome::Renew(Renewed::Held(grant)) =
        transition.answer
    {
        grants.push(grant);
    }
    grants
}

fn capacity_before(scene: &Scene) -> u32 {
    let Ok(head) = scene.before.head();
    head.map_or(0, |head| head.capacity)
}

fn is_idle(record: &PlainRecord) -> bool {
    let Ok(head) = record.head();
    head.is_none_or(|head| head.is_idle())
}

/// Every claim that holds or waits.
fn present(record: &PlainRecord) -> BTreeSet<ClaimId> {
    let holders = holds(record).into_iter().filter_map(|hold| hold.claim);
    holders.chain(waiters(record).into_iter().map(|waiter| waiter.claim)).collect()
}

/// A record whose ends are all the same, and whose holds are all confirmed.
fn without_ends(record: &PlainRecord) -> PlainRecord {
    let mut record = record.clone();
    for mut hold in holds(&record) {
        hold.expires_at = Timestamp::default();
        hold.is_confirmed = true;
        let Ok(()) = record.put_hold(hold);
    }
    for mut waiter in waiters(&record) {
        waiter.expires_at = Timestamp::default();
        let Ok(()) = record.put_waiter(waiter);
    }
    record
}

fn without_waiters(record: &PlainRecord) -> PlainRecord {
    let mut record = record.clone();
    for waiter in waiters(&record) {
        let Ok(()) = record.remove_waiter(waiter.place);
    }
    if let Ok(Some(head)) = record.head() {
        let Ok(()) = record.set_head(Head { waiting: 0, ..head });
    }
    record
}

fn free_by_itself_at(hold: &Hold) -> Timestamp {
    if hold.claim.is_some() { hold.expires_at + hold.limits.lock_delay } else { hold.expires_at }
}

/// The slots of a record that are held or rest at a later time, if nobody does anything.
fn taken_slots(record: &PlainRecord, now: Timestamp) -> BTreeSet<u32> {
    let taken = holds(record).into_iter().filter(|hold| free_by_itself_at(hold) > now);
    taken.filter_map(|hold| hold.slot).collect()
}

/// A record in use stays; an idle one is kept for a reason, and not for longer than the longest reason.
fn shrinks(record: &PlainRecord, last_in_use: Timestamp, now: Timestamp) -> TestCaseResult {
    let Ok(Some(head)) = record.head() else { return Ok(()) };
    let (Ok(soon), Ok(late)) = (forget_at(record, true, now), forget_at(record, false, now));
    if !head.is_idle() {
        prop_assert_eq!((soon, late), (None, None));
        return Ok(());
    }
    let (soon, late) = (soon.expect("idle"), late.expect("idle"));
    prop_assert!(soon <= late);
    prop_assert!(late >= last_in_use + TOKEN_MEMORY);
    prop_assert!(soon.micros() > head.last_token.get() && late.micros() > head.last_token.get());
    let Ok(value) = record.value();
    let kept_until = value.and_then(|value| value.keep_until).unwrap_or_default();
    let Ok(finished_until) = record.finished_until();
    let reasons = kept_until.max(finished_until.unwrap_or_default()).max(now);
    let reasons = reasons.micros().max(head.last_token.get() + 1);
    if head.fresh_slots == 0 {
        prop_assert_eq!(soon.micros(), reasons, "nothing but these keeps it");
    }
    prop_assert!(soon.micros() <= reasons.max((now + TOKEN_MEMORY).micros()));

    let mut record = record.clone();
    let Ok(_) = step(&mut record, &Settle, soon.max(now));
    let (Ok(value), Ok(finished)) = (record.value(), record.finished_until());
    prop_assert_eq!((value, finished), (None, None), "nothing is forgotten too soon");
    let Ok(again) = forget_at(&record, true, soon);
    prop_assert_eq!(again, Some(soon), "the answer holds");
    Ok(())
}
