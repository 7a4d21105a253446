//! Each promise of `step` once, as a story that can be read; and each mistake that was found in it, so that it
//! stays mended.
//!
//! Claims go by small numbers: claim 7 is of client 3. A ttl is 30 seconds unless a story says otherwise.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{Claim, Grant, HoldLimits, Keep, Kind, Label, Terms, WAITERS_MAX, Waiting};
use tenure_core::model::inspect::inspect;
use tenure_core::model::record::{Head, PlainRecord, Record};
use tenure_core::model::step::{
    Break, BreakAnswer, CONFIRM_WINDOW_MAX, Claimed, Command, FINISHED_MEMORY, Publish, Refusal, Release,
    ReleaseAnswer, Renew, Renewed, Resize, Settle, TOKEN_MEMORY, Transition, Vanish, forget_at, step,
};
use tenure_core::model::token::{FLOOR_AHEAD_MAX, Token};

use crate::world::{START, client_of, holds, id, last_token, name};

const TTL: Duration = Duration::from_secs(30);
const MICROSECOND: Duration = Duration::from_micros(1);

/// One resource and its clock.
struct Stage {
    record: PlainRecord,
    now: Timestamp,
}

impl Stage {
    fn new() -> Stage {
        Stage { record: PlainRecord::default(), now: START }
    }

    /// Lets time pass, and nothing happen.
    fn pass(&mut self, time: Duration) -> &mut Stage {
        self.now = self.now + time;
        self
    }

    fn give<C: Command>(&mut self, command: &C) -> Transition<C::Answer> {
        let Ok(transition) = step(&mut self.record, command, self.now);
        transition
    }

    fn claim(&mut self, claim: &Claim) -> Result<Claimed, Refusal> {
        self.give(claim).answer
    }

    fn granted(&mut self, claim: &Claim) -> Grant {
        match self.claim(claim) {
            Ok(Claimed::Granted(grant)) => grant,
            other => panic!("{other:?}"),
        }
    }

    fn waiting(&mut self, claim: &Claim) -> Waiting {
        match self.claim(claim) {
            Ok(Claimed::Waiting(waiting)) => waiting,
            other => panic!("{other:?}"),
        }
    }

    fn renew(&mut self, claim: u64) -> Renewed {
        self.give(&Renew(id(claim))).answer
    }

    fn release(&mut self, claim: u64) -> Transition<ReleaseAnswer> {
        self.give(&plain_release(claim))
    }

    fn publish(&mut self, claim: u64, bytes: &[u8], keep: Keep) -> Transition<bool> {
        self.give(&Publish { claim: id(claim), bytes: bytes.into(), keep })
    }

    /// Settles, and returns who was granted the resource.
    fn woken(&mut self) -> Vec<u64> {
        let wakes = self.give(&Settle).wakes;
        wakes.iter().filter(|woken| woken.grant.is_some()).map(|woken| woken.claim.bits() as u64).collect()
    }

    fn value(&self) -> Option<Arc<[u8]>> {
        let Ok(view) = inspect(&name(), &self.record, self.now);
        view?.value
    }

    fn is_free(&self) -> bool {
        let Ok(view) = inspect(&name(), &self.record, self.now);
        view.is_none_or(|view| view.used == 0)
    }
}

fn plain_release(claim: u64) -> Release {
    Release { claim: id(claim), maybe_in_flight: false, is_unused: false }
}

fn claim_of(kind: Kind, capacity: u32, claim: u64) -> Claim {
    let label = Label::from_stored(&format!("host/{claim}/program"));
    let limits = HoldLimits::default();
    Claim {
        resource: name(),
        id: id(claim),
        client: client_of(claim),
        terms: Arc::new(Terms { kind, capacity, weight: 1, ttl: TTL, limits, label, unless_fresh: false }),
        wait: true,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    }
}

fn mutex(claim: u64) -> Claim {
    claim_of(Kind::Mutex, 1, claim)
}

fn pool(capacity: u32, claim: u64) -> Claim {
    claim_of(Kind::SlotPool, capacity, claim)
}

fn with(mut claim: Claim, change: impl FnOnce(&mut Terms)) -> Claim {
    change(Arc::make_mut(&mut claim.terms));
    claim
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn a_released_lock_goes_to_the_longest_waiter() {
    let mut stage = Stage::new();
    let first = stage.granted(&mutex(1));
    let second = stage.waiting(&mutex(2));
    assert_eq!((second.position, second.horizon, second.look_in), (1, first.token, Some(TTL)));
    let third = stage.waiting(&mutex(3));
    assert_eq!((third.position, third.look_in), (2, None));

    let transition = stage.release(1);

    assert_eq!(transition.answer, ReleaseAnswer::Released);
    let [woken] = transition.wakes[..] else { panic!("{transition:?}") };
    assert_eq!((woken.claim, woken.client), (id(2), client_of(2)));
    let grant = woken.grant.expect("a grant");
    assert!(grant.token > second.horizon);
    assert_eq!(grant.ends_in, CONFIRM_WINDOW_MAX);
}

#[test]
fn a_grant_that_nobody_confirms_passes_on_after_the_window() {
    let mut stage = Stage::new();
    stage.granted(&mutex(1));
    stage.waiting(&mutex(2));
    stage.waiting(&mutex(3));
    stage.release(1);
    assert!(stage.pass(CONFIRM_WINDOW_MAX - MICROSECOND).woken().is_empty());
    assert_eq!(stage.pass(MICROSECOND).woken(), [3]);
    assert_eq!(stage.claim(&mutex(2)), Ok(Claimed::Finished));
}

#[test]
fn a_confirmed_grant_lives_for_its_ttl() {
    let mut stage = Stage::new();
    stage.granted(&mutex(1));
    stage.waiting(&mutex(2));
    stage.release(1);
    stage.pass(CONFIRM_WINDOW_MAX - MICROSECOND);
    assert!(matches!(stage.renew(2), Renewed::Held(grant) if grant.ends_in == TTL));
    stage.pass(TTL - MICROSECOND);
    assert!(!stage.is_free());
    assert!(stage.pass(MICROSECOND).is_free());
    assert_eq!(stage.renew(2), Renewed::Lost);
}

#[test]
fn a_dead_waiter_is_skipped() {
    let mut stage = Stage::new();
    stage.granted(&mutex(1));
    for claim in 2..=4 {
        stage.waiting(&mutex(claim));
    }
    stage.pass(secs(10));
    stage.renew(4);
    let moved_up = stage.pass(secs(5)).give(&Settle).moved_up;
    assert_eq!(moved_up, [(client_of(3), id(3)), (client_of(4), id(4))]);
    let transition = stage.release(1);
    assert_eq!(transition.wakes[0].claim, id(4));
}

#[test]
fn a_try_does_not_barge_past_a_waiter() {
    let mut stage = Stage::new();
    stage.granted(&claim_of(Kind::Semaphore, 2, 1));
    stage.waiting(&with(claim_of(Kind::Semaphore, 2, 2), |terms| terms.weight = 2));
    let attempt = Claim { wait: false, ..claim_of(Kind::Semaphore, 2, 3) };
    assert!(matches!(stage.claim(&attempt), Ok(Claimed::Busy(_))), "one unit is free, but promised");
}

#[test]
fn a_refusal_says_who_is_in_the_way_and_until_when() {
    let mut stage = Stage::new();
    let grant = stage.granted(&with(mutex(1), |terms| terms.limits.lock_delay = secs(7)));
    let attempt = Claim { wait: false, ..mutex(2) };

    let Ok(Claimed::Busy(busy)) = stage.pass(secs(10)).claim(&attempt) else { panic!("it is held") };
    assert_eq!(busy.holder.as_ref().map(Label::as_str), Some("host/1/program"));
    assert_eq!((busy.token, busy.held_for, busy.is_resting), (grant.token, secs(10), false));
    assert_eq!(busy.free_in, Some(secs(20 + 7)), "if nobody renews or releases");

    let Ok(Claimed::Busy(busy)) = stage.pass(secs(20)).claim(&attempt) else { panic!("it rests") };
    assert_eq!((busy.is_resting, busy.free_in), (true, Some(secs(7))));
    assert_eq!(busy.holder.as_ref().map(Label::as_str), Some("host/1/program"), "whose hold it was");

    stage.pass(secs(7)).granted(&attempt);
}

#[test]
fn the_units_of_a_holder_that_vanished_rest() {
    let mut stage = Stage::new();
    stage.granted(&with(mutex(1), |terms| terms.limits.lock_delay = secs(7)));
    stage.waiting(&with(mutex(2), |terms| terms.ttl = secs(12)));
    stage.pass(secs(1)).give(&Vanish(client_of(1)));
    assert_eq!(stage.renew(1), Renewed::Lost);
    assert!(stage.pass(secs(7) - MICROSECOND).woken().is_empty());
    assert_eq!(stage.pass(MICROSECOND).woken(), [2]);
}

#[test]
fn min_hold_keeps_the_units_after_a_release_but_not_for_an_unused_grant() {
    let every_hour = |claim| with(mutex(claim), |terms| terms.limits.min_hold = secs(3600));
    let mut stage = Stage::new();
    stage.granted(&every_hour(1));
    stage.pass(secs(10)).release(1);
    assert!(!stage.pass(secs(3590) - MICROSECOND).is_free());
    assert!(stage.pass(MICROSECOND).is_free());

    stage.granted(&every_hour(2));
    stage.give(&Release { is_unused: true, ..plain_release(2) });
    assert!(stage.is_free());
}

#[test]
fn a_clock_set_back_makes_no_rest_longer() {
    let mut stage = Stage::new();
    stage.granted(&mutex(1));
    stage.now = Timestamp::from_micros(START.micros() - 3_600_000_000);
    stage.release(1);
    assert!(stage.is_free(), "nobody asked for a rest");

    stage.now = START;
    stage.granted(&with(mutex(2), |terms| terms.limits.min_hold = secs(4)));
    stage.now = Timestamp::from_micros(START.micros() - 3_600_000_000);
    stage.release(2);
    assert!(stage.pass(secs(4)).is_free());
}

#[test]
fn no_renewal_passes_max_hold() {
    let mut stage = Stage::new();
    stage.granted(&with(mutex(1), |terms| terms.limits.max_hold = Some(secs(50))));
    stage.pass(secs(29));
    assert!(matches!(stage.renew(1), Renewed::Held(grant) if grant.ends_in == secs(21)));
    assert_eq!(stage.pass(secs(21)).renew(1), Renewed::Lost);
}

#[test]
fn a_broken_hold_rests_until_its_end_unless_it_is_broken_at_once() {
    let mut stage = Stage::new();
    let token = stage.granted(&mutex(1)).token;
    stage.pass(secs(10));
    let broken = stage.give(&Break { token, at_once: false }).answer;
    assert_eq!(broken, BreakAnswer::Broken { free_in: secs(20) });
    assert_eq!(stage.renew(1), Renewed::Lost);
    assert_eq!(stage.claim(&mutex(1)), Ok(Claimed::Finished));
    assert!(!stage.is_free());
    stage.pass(secs(5));
    let again = stage.give(&Break { token, at_once: false }).answer;
    assert_eq!(again, BreakAnswer::Resting { free_in: secs(15) }, "nothing is changed");
    let broken = stage.give(&Break { token, at_once: true }).answer;
    assert_eq!(broken, BreakAnswer::Broken { free_in: Duration::ZERO });
    assert!(stage.granted(&mutex(2)).token > token);
}

#[test]
fn a_claim_that_arrives_after_its_own_release_is_refused() {
    let mut stage = Stage::new();
    let release = Release { maybe_in_flight: true, ..plain_release(1) };
    assert_eq!(stage.give(&release).answer, ReleaseAnswer::AlreadyLost);
    assert_eq!(stage.pass(FINISHED_MEMORY - MICROSECOND).claim(&mutex(1)), Ok(Claimed::Finished));
    stage.pass(MICROSECOND).granted(&mutex(1));
}

#[test]
fn a_floor_may_lie_an_hour_ahead_and_no_more() {
    let mut stage = Stage::new();
    let floor = Token::new((START + FLOOR_AHEAD_MAX).micros());
    let too_high = Claim { floor: Token::new(floor.get() + 1), ..mutex(1) };
    assert_eq!(stage.claim(&too_high), Err(Refusal::FloorAhead { now: START }));
    assert_eq!(stage.granted(&Claim { floor, ..mutex(1) }).token.get(), floor.get() + 1);
    stage.release(1);
    assert!(stage.granted(&Claim { floor_forced: true, ..too_high }).token.get() > floor.get() + 1);
}

#[test]
fn a_waiter_is_granted_more_than_its_floor() {
    let mut stage = Stage::new();
    stage.granted(&mutex(1));
    let floor = Token::new(START.micros() + 500_000);
    let waiting = stage.waiting(&Claim { floor, ..mutex(2) });
    assert_eq!(waiting.horizon, floor);
    let transition = stage.release(1);
    assert!(transition.wakes[0].grant.expect("a grant").token > floor);
}

#[test]
fn a_living_resource_keeps_its_shape_and_an_idle_one_takes_another() {
    let mut stage = Stage::new();
    let token = stage.granted(&mutex(1)).token;
    assert_eq!(stage.claim(&pool(2, 2)), Err(Refusal::Conflict { kind: Kind::Mutex, capacity: 1 }));
    stage.release(1);
    let grant = stage.granted(&pool(2, 2));
    assert!(grant.token > token);
    assert_eq!(grant.slot, Some(0));
}

#[test]
fn a_refused_claim_leaves_an_idle_record_as_it_is() {
    let mut stage = Stage::new();
    for claim in 1..=2 {
        stage.granted(&pool(3, claim));
        stage.release(claim);
    }
    let before = stage.record.clone();
    stage.pass(secs(60));
    let too_heavy = with(claim_of(Kind::Semaphore, 2, 3), |terms| terms.weight = 3);
    assert!(matches!(stage.claim(&too_heavy), Err(Refusal::Invalid(_))));
    let too_high = Claim { floor: Token::new(u64::MAX - 1), ..claim_of(Kind::Semaphore, 2, 3) };
    assert!(matches!(stage.claim(&too_high), Err(Refusal::FloorAhead { .. })));
    assert_eq!(stage.record, before, "with its slot order and the memory of its tokens");
}

#[test]
fn a_pool_gives_the_slot_that_has_been_free_longest() {
    let mut stage = Stage::new();
    for (claim, slot) in [(1, 0), (2, 1), (3, 2)] {
        assert_eq!(stage.granted(&pool(3, claim)).slot, Some(slot));
    }
    for claim in [2, 3, 1] {
        stage.pass(secs(1)).release(claim);
    }
    for (claim, slot) in [(4, 1), (5, 2), (6, 0)] {
        assert_eq!(stage.granted(&pool(3, claim)).slot, Some(slot));
    }
}

#[test]
fn slots_that_end_unseen_come_free_in_the_order_of_their_ends() {
    let mut stage = Stage::new();
    stage.granted(&with(pool(2, 1), |terms| (terms.ttl, terms.limits.lock_delay) = (secs(3), secs(9))));
    stage.granted(&with(pool(2, 2), |terms| terms.ttl = secs(5)));
    stage.pass(secs(3600));
    assert_eq!(stage.granted(&pool(2, 3)).slot, Some(1), "the rest of the other ended later");
}

#[test]
fn a_slot_that_a_resize_gives_back_is_not_the_longest_free() {
    let mut stage = Stage::new();
    for claim in 0..3 {
        stage.granted(&pool(3, claim));
    }
    stage.release(0);
    stage.give(&Resize(1));
    stage.give(&Resize(3));
    stage.release(2);
    assert_eq!(stage.granted(&pool(3, 4)).slot, Some(0), "2 was held a moment ago");
    assert_eq!(stage.granted(&pool(3, 5)).slot, Some(2));

    stage.release(1);
    stage.release(4);
    stage.give(&Resize(1));
    stage.give(&Resize(2));
    assert_eq!(holds(&stage.record).len(), 1, "slot 2, beyond the capacity");
    assert_eq!(stage.granted(&pool(2, 6)).slot, Some(0), "1 was not there a moment ago");
}

#[test]
fn a_resize_throws_out_what_can_never_fit() {
    let mut stage = Stage::new();
    stage.granted(&with(claim_of(Kind::Semaphore, 4, 1), |terms| terms.weight = 2));
    stage.waiting(&with(claim_of(Kind::Semaphore, 4, 2), |terms| terms.weight = 3));
    stage.waiting(&with(claim_of(Kind::Semaphore, 4, 3), |terms| terms.weight = 2));
    let transition = stage.give(&Resize(2));
    assert_eq!(transition.moved_up, [(client_of(3), id(3))]);
    assert_eq!(stage.claim(&claim_of(Kind::Semaphore, 4, 2)), Ok(Claimed::Finished));
    assert_eq!(stage.release(1).wakes[0].claim, id(3));
}

#[test]
fn a_resize_of_what_is_not_stored_is_checked_too() {
    let mut stage = Stage::new();
    assert!(stage.give(&Resize(0)).answer.is_err());
    assert_eq!(stage.give(&Resize(8)).answer, Ok(()));
    stage.give(&Release { maybe_in_flight: true, ..plain_release(1) });
    assert_eq!(stage.give(&Resize(8)).answer, Ok(()), "nobody has made it a mutex");
}

#[test]
fn a_fresh_value_answers_all_who_would_take_it() {
    let reader = |claim| with(mutex(claim), |terms| terms.unless_fresh = true);
    let mut stage = Stage::new();
    stage.granted(&reader(1));
    stage.waiting(&reader(2));
    stage.waiting(&mutex(3));
    stage.waiting(&reader(4));
    let keep = Keep::For { fresh: secs(60), stale: secs(60) };
    let transition = stage.publish(1, b"found", keep);
    let woken: Vec<_> = transition.wakes.iter().map(|woken| (woken.claim, woken.grant)).collect();
    assert_eq!(woken, [(id(2), None), (id(4), None)]);
    assert!(matches!(stage.claim(&reader(2)), Ok(Claimed::Fresh(value)) if &value.bytes[..] == b"found"));

    assert_eq!(stage.release(1).wakes[0].claim, id(3));
    stage.pass(secs(60));
    assert!(stage.value().is_some(), "stale is better than nothing");
    stage.granted(&reader(2));
    assert!(stage.pass(secs(60)).value().is_none());
}

#[test]
fn a_value_goes_with_its_hold() {
    let mut stage = Stage::new();
    stage.granted(&mutex(1));
    stage.publish(1, b"leader 1", Keep::WhileHeld);
    assert!(stage.pass(TTL - MICROSECOND).value().is_some());
    assert!(stage.pass(MICROSECOND).value().is_none(), "even before anybody settles the record");
    assert!(!stage.publish(1, b"leader 1", Keep::WhileHeld).answer);
}

#[test]
fn a_position_is_exact_near_the_head_and_never_too_small_behind() {
    let mut stage = Stage::new();
    stage.granted(&mutex(0));
    for claim in 1..=100 {
        assert_eq!(u64::from(stage.waiting(&mutex(claim)).position), claim);
    }
    for claim in 2..=20 {
        stage.release(claim);
    }
    let mut position = |claim| stage.waiting(&mutex(claim)).position;
    assert_eq!((position(1), position(21), position(83)), (1, 2, 64));
    assert_eq!((position(84), position(100)), (84, 100), "65 and 81, were those that left not counted");
}

#[test]
fn a_full_queue_takes_nobody() {
    let mut stage = Stage::new();
    stage.granted(&mutex(1));
    stage.waiting(&mutex(2));
    let Ok(head) = stage.record.head();
    let Ok(()) = stage.record.set_head(Head { waiting: WAITERS_MAX, ..head.expect("a head") });
    assert_eq!(stage.claim(&mutex(3)), Err(Refusal::QueueFull));
    assert!(matches!(stage.claim(&Claim { wait: false, ..mutex(3) }), Ok(Claimed::Busy(_))));
    stage.waiting(&mutex(2));
}

#[test]
fn a_grant_that_ends_at_once_passes_on_at_once() {
    let mut stage = Stage::new();
    stage.granted(&mutex(1));
    stage.waiting(&with(mutex(2), |terms| terms.limits.max_hold = Some(Duration::ZERO)));
    stage.waiting(&mutex(3));
    stage.renew(1);
    stage.pass(secs(14)).renew(3);
    stage.renew(2);
    stage.pass(secs(14)).renew(3);
    stage.renew(2);
    stage.pass(secs(2));
    assert_eq!(stage.renew(2), Renewed::Lost, "it was granted, and ended, before it was renewed");
    assert!(matches!(stage.renew(3), Renewed::Held(_)));
}

#[test]
fn a_resource_whose_tokens_are_used_up_refuses_claims() {
    let mut stage = Stage::new();
    let poison = |floor| Claim { floor: Token::new(floor), floor_forced: true, ..mutex(1) };
    assert!(matches!(stage.claim(&poison(u64::MAX)), Err(Refusal::Invalid(_))));
    assert_eq!(last_token(&stage.record), Token::ZERO);
    assert_eq!(stage.granted(&poison(u64::MAX - 1)).token.get(), u64::MAX);
    assert!(matches!(stage.claim(&mutex(2)), Err(Refusal::Invalid(_))));
    stage.release(1);
    assert!(matches!(stage.claim(&mutex(2)), Err(Refusal::Invalid(_))));
}

#[test]
fn weights_that_add_up_to_more_than_fits_a_number_do_not_fit() {
    let huge =
        |claim, weight| with(claim_of(Kind::Semaphore, u32::MAX, claim), |terms| terms.weight = weight);
    let mut stage = Stage::new();
    stage.granted(&huge(1, 1));
    stage.waiting(&huge(2, u32::MAX));
}

#[test]
fn an_idle_record_is_forgotten_only_when_the_clock_has_passed_its_token() {
    let mut stage = Stage::new();
    let floor = Token::new((START + FLOOR_AHEAD_MAX).micros());
    let token = stage.granted(&Claim { floor, ..mutex(1) }).token;
    stage.release(1);
    for is_monotonic in [true, false] {
        let Ok(at) = forget_at(&stage.record, is_monotonic, stage.now);
        let mut forgotten = Stage { record: PlainRecord::default(), now: at.expect("idle") };
        assert!(forgotten.granted(&mutex(2)).token > token);
    }
}

#[test]
fn a_burst_of_grants_does_not_keep_an_idle_record_for_an_hour() {
    let mut stage = Stage::new();
    for claim in 1..=3 {
        stage.granted(&mutex(claim));
        stage.release(claim);
    }
    let Ok(soon) = forget_at(&stage.record, true, stage.now);
    assert_eq!(soon, Some(START + Duration::from_micros(3)));
    let Ok(late) = forget_at(&stage.record, false, stage.now);
    assert_eq!(late, Some(START + TOKEN_MEMORY));
}
