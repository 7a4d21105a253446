//! A record that is seen through a window does what the whole record does.
//!
//! The store of these tests keeps the record as a plain one, loads as little as a reach says, and writes the changes
//! back. With a reach of one entry nearly every step looks beyond it.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;
use tenure_core::clock::Timestamp;
use tenure_core::model::claim::ClaimId;
use tenure_core::model::inspect::inspect;
use tenure_core::model::record::{Head, Hold, Value, Waiter};
use tenure_core::model::step::Transition;
use tenure_core::model::token::Token;
use tenure_core::model::window::{Loaded, Reach, Window};

use crate::world::{Order, Outcome, World, name, shape, wild_moves};

/// What a store has of a record.
#[derive(Clone, Debug, Default)]
struct Store {
    head: Option<Head>,
    holds: Vec<Hold>,
    waiters: Vec<Waiter>,
    finished: Vec<(ClaimId, Timestamp)>,
    finished_until: Option<Timestamp>,
    free_slots: VecDeque<(u64, u32)>,
    next_number: u64,
    value: Option<Value>,
    entries: i64,
    /// How often more had to be loaded.
    misses: usize,
}

impl Store {
    fn load(&self, reach: Reach, claims: &[ClaimId], tokens: &[Token], now: Timestamp) -> Loaded {
        let most = reach.entries.unwrap_or(usize::MAX);
        let (mut by_token, mut by_end) = (self.holds.clone(), self.holds.clone());
        by_token.sort_by_key(|hold| hold.token);
        by_end.sort_by_key(|hold| (hold.expires_at, hold.token));
        let mut holds: Vec<Hold> =
            by_token.into_iter().take(most).chain(by_end.into_iter().take(most)).collect();
        let is_asked = |hold: &&Hold| {
            hold.claim.is_some_and(|claim| claims.contains(&claim)) || tokens.contains(&hold.token)
        };
        holds.extend(self.holds.iter().filter(is_asked).cloned());
        holds.sort_by_key(|hold| hold.token);
        holds.dedup();
        let (mut by_place, mut by_end) = (self.waiters.clone(), self.waiters.clone());
        by_place.sort_by_key(|waiter| waiter.place);
        by_end.sort_by_key(|waiter| (waiter.expires_at, waiter.place));
        let behind = |place: u64| by_place.iter().find(|waiter| waiter.place > place).cloned();
        let asked: Vec<Waiter> =
            self.waiters.iter().filter(|waiter| claims.contains(&waiter.claim)).cloned().collect();
        let followers = asked.iter().map(|w| (w.place, behind(w.place).map(|next| next.place))).collect();
        let mut waiters: Vec<Waiter> = asked.iter().filter_map(|waiter| behind(waiter.place)).collect();
        waiters.extend(asked);
        waiters.extend(by_place.iter().take(most).cloned().chain(by_end.into_iter().take(most)));
        waiters.sort_by_key(|waiter| waiter.place);
        waiters.dedup();
        let finished: BTreeSet<ClaimId> = self
            .finished
            .iter()
            .filter(|(claim, until)| claims.contains(claim) && *until > now)
            .map(|(claim, _)| *claim)
            .collect();
        Loaded {
            head: self.head.clone(),
            finished_until: self.finished_until,
            value: self.value.clone(),
            holds,
            waiters,
            is_complete: reach.entries.is_none(),
            followers,
            finished: reach.finished.then_some(finished),
            free_slots: self.free_slots.iter().take(reach.free_slots).copied().collect(),
            has_all_free_slots: self.free_slots.len() <= reach.free_slots,
        }
    }

    fn write(&mut self, window: &Window) {
        let changes = window.changes();
        self.head = changes.head.or(self.head.take());
        let is_gone = |token| {
            changes.gone_holds.contains(&token) || changes.holds.iter().any(|hold| hold.token == token)
        };
        self.holds.retain(|hold| !is_gone(hold.token));
        self.holds.extend(changes.holds.iter().cloned());
        let is_gone = |place| {
            changes.gone_waiters.contains(&place)
                || changes.waiters.iter().any(|waiter| waiter.place == place)
        };
        self.waiters.retain(|waiter| !is_gone(waiter.place));
        self.waiters.extend(changes.waiters.iter().cloned());
        self.entries += changes.entries;
        assert_eq!(self.entries, (self.holds.len() + self.waiters.len()) as i64, "entries are counted");
        if let Some(now) = changes.forget_finished {
            self.finished.retain(|(_, until)| *until > now);
        }
        self.finished.retain(|(claim, _)| !changes.finished.iter().any(|(other, _)| other == claim));
        self.finished.extend(changes.finished);
        self.finished_until = window.last_finished();
        self.free_slots.retain(|(number, slot)| {
            !changes.taken_slots.contains(number) && changes.gone_slots_from.is_none_or(|from| *slot < from)
        });
        for slot in changes.free_slots {
            self.free_slots.push_back((self.next_number, slot));
            self.next_number += 1;
        }
        if let Some(value) = changes.value {
            self.value = value;
        }
    }

    fn carry_out(&mut self, order: &Order, now: Timestamp, first: Reach) -> Transition<Outcome> {
        let claims = Vec::from_iter(order.claim());
        let tokens = Vec::from_iter(order.token());
        let mut reach = first;
        loop {
            let loaded = self.load(reach, &claims, &tokens, now);
            let mut window = Window::new(loaded, reach, claims.iter().copied(), tokens.iter().copied());
            match order.run(&mut window, now) {
                Ok(transition) => {
                    self.write(&window);
                    return transition;
                }
                Err(miss) => {
                    self.misses += 1;
                    let wider = reach.beyond(miss);
                    assert_ne!(wider, reach, "{miss:?} leads nowhere");
                    reach = wider;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tenure_core::testing::random::cases(256)))]

    #[test]
    fn a_window_of_any_width_shows_what_is_there(
        (kind, capacity) in shape(),
        moves in wild_moves(60),
        entries in prop_oneof![Just(Some(1)), Just(Some(2)), Just(Some(64)), Just(None)],
    ) {
        let mut world = World::new(kind, capacity);
        let mut store = Store::default();
        let first = Reach { entries, free_slots: 0, finished: false };
        for next in &moves {
            let scene = world.play(next);
            let seen = store.carry_out(&scene.order, scene.now, first);
            prop_assert_eq!(&seen, &scene.transition);
            let Ok(expected) = inspect(&name(), &world.record, scene.now);
            let all = Reach { entries: None, ..first };
            let whole = Window::new(store.load(all, &[], &[], scene.now), all, [], []);
            prop_assert_eq!(inspect(&name(), &whole, scene.now), Ok(expected));
        }
    }
}

#[test]
fn a_long_queue_is_looked_at_from_both_ends_only() {
    // 1,000 waiters, and the last but one leaves, renews, and leaves: what lies in between is not loaded.
    use crate::world::{Act, Ask, Floor, Move, Pause};
    use std::time::Duration;
    use tenure_core::model::claim::{HoldLimits, Kind};

    let mut world = World::new(Kind::Mutex, 1);
    let mut store = Store::default();
    let act = |claim| {
        Act::Claim(Ask {
            claim,
            shape: None,
            weight: 1,
            ttl: Duration::from_secs(30),
            limits: HoldLimits::default(),
            wait: true,
            unless_fresh: false,
            floor: Floor::Zero,
            comes_back: false,
        })
    };
    let mut play = |act: Act| {
        let scene = world.play(&Move { pause: Pause::Micros(1), act });
        assert_eq!(store.carry_out(&scene.order, scene.now, Reach::FIRST), scene.transition);
        store.misses
    };
    for claim in 0..1000 {
        play(act(claim));
    }
    let before = play(Act::Settle);
    play(Act::Renew(998));
    let after = play(Act::Release { claim: 998, maybe_in_flight: false, is_unused: false });
    assert_eq!(after, before, "a withdrawal in the middle loads more than its neighbours");
    play(Act::Release { claim: 0, maybe_in_flight: false, is_unused: false });
    assert_eq!(play(Act::Settle), before);
}
