//! What the users of a world may believe, compared with what the store knows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::model::claim::{Claim, ClaimId, Name};
use tenure_core::model::inspect::{HoldView, View, WaiterView};
use tenure_core::{Delivery, Lease, Leases, Slot, Term, Token};

use super::time::NodeClock;
use super::{Memory, Play, World};

/// What a user has, of whatever primitive.
pub(crate) enum Had {
    Lease(Lease),
    Slot(Slot),
    Set(Leases),
    Term(Term),
    Delivery(Delivery),
}

impl Had {
    pub(crate) fn leases(&self) -> Vec<&Lease> {
        match self {
            Had::Lease(lease) => vec![lease],
            Had::Slot(slot) => vec![slot.deref()],
            Had::Set(leases) => leases.iter().collect(),
            Had::Term(term) => vec![term.deref()],
            Had::Delivery(delivery) => vec![delivery.lease()],
        }
    }
}

/// What all users of a world have now, and what they had.
#[derive(Default)]
pub(crate) struct Beliefs {
    /// What it is, on which machine, and since when in the world's time.
    had: BTreeMap<u64, (Had, Arc<NodeClock>, u64)>,
    next: u64,
    /// The token of the lease that was got last, for each resource.
    last_tokens: HashMap<Name, Token>,
    tokens: HashSet<(Name, Token)>,
    /// Up to this one tokens may be given twice.
    repeated_to: Token,
    /// Who held and who waited when a resource was looked at last, by their places.
    lines: HashMap<Name, (HashSet<ClaimId>, Vec<ClaimId>)>,
    /// Claims that the store was asked for, and those for which it was asked more than once.
    asked: HashSet<ClaimId>,
    asked_again: HashSet<ClaimId>,
    /// Claims whose lease was seen to be over.
    over: HashSet<ClaimId>,
    /// Claims whose release the store has carried out.
    pub(crate) released: HashSet<ClaimId>,
    pub(crate) items: Items,
}

/// Who holds a resource and who waits for it, as the store knows it.
#[derive(Default)]
struct Seen {
    holds: Vec<HoldView>,
    waiters: Vec<WaiterView>,
}

impl Seen {
    fn of(view: Option<View>) -> Seen {
        view.map(|View { holds, waiters, .. }| Seen { holds, waiters }).unwrap_or_default()
    }
}

impl Beliefs {
    pub(crate) fn may_be_repeated(&mut self, to: Token) {
        self.repeated_to = to.max(self.repeated_to);
    }
}

impl World {
    pub(crate) fn beliefs(&self) -> MutexGuard<'_, Beliefs> {
        self.beliefs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A user has got something just now. Returns the number under which it is kept.
    pub(crate) fn got(&self, had: Had, clock: &Arc<NodeClock>, is_exclusive: bool) -> u64 {
        if had.leases().iter().any(|lease| lease.expires_in().is_zero()) {
            self.time.fail("a user was given what was over already".to_owned());
        }
        if !matches!(had, Had::Delivery(_)) {
            had.leases().into_iter().for_each(|lease| self.check_token(lease, is_exclusive));
        }
        self.keep(had, clock)
    }

    /// Keeps what a user has. Returns the number under which it is kept.
    pub(crate) fn keep(&self, had: Had, clock: &Arc<NodeClock>) -> u64 {
        self.count_served();
        let mut beliefs = self.beliefs();
        beliefs.next += 1;
        let number = beliefs.next;
        beliefs.had.insert(number, (had, clock.clone(), self.time.now()));
        number
    }

    /// Compares the token of a lease that was just got with those before.
    pub(crate) fn check_token(&self, lease: &Lease, is_exclusive: bool) {
        let mut beliefs = self.beliefs();
        let (resource, token) = (lease.resource().clone(), lease.token());
        self.note(token.get());
        let last = beliefs.last_tokens.entry(resource.clone()).or_default();
        // A store that has forgotten may grant to others what somebody still believes to hold.
        if is_exclusive && token <= *last && self.memory == Memory::Keeps {
            self.time.fail(format!("{resource}: {last}, then {token}: tokens grow"));
        }
        *last = token.max(*last);
        if !beliefs.tokens.insert((resource.clone(), token)) && token > beliefs.repeated_to {
            self.time.fail(format!("{resource}: the token {token} was given twice"));
        }
    }

    /// Hands back what a user has got. Nobody believes in it any more.
    pub(crate) fn let_go(&self, number: u64) -> Option<Had> {
        self.beliefs().had.remove(&number).map(|(had, ..)| had)
    }

    /// A machine is gone, and nobody there believes in anything any more. What it had is handed back.
    pub(crate) fn die(&self, machine: &Arc<NodeClock>) -> Vec<Had> {
        let mut beliefs = self.beliefs();
        let (gone, left) = std::mem::take(&mut beliefs.had)
            .into_iter()
            .partition(|(_, (_, clock, _))| Arc::ptr_eq(clock, machine));
        beliefs.had = left;
        let gone: BTreeMap<u64, (Had, Arc<NodeClock>, u64)> = gone;
        gone.into_values().map(|(had, ..)| had).collect()
    }

    /// Whether a user may still believe in what it has.
    pub(crate) fn is_held(&self, number: u64) -> bool {
        let beliefs = self.beliefs();
        beliefs.had.get(&number).is_some_and(|(had, ..)| {
            had.leases().into_iter().all(|lease| {
                let is_held = !lease.is_lost();
                if is_held && lease.expires_in().is_zero() {
                    self.time.fail(format!("{}: called held after its deadline", lease.resource()));
                }
                is_held
            })
        })
    }

    /// Compares what users believe of these resources with what the store knows.
    pub(crate) fn check(&self, resources: &[Name]) {
        let mut beliefs = self.beliefs();
        let Beliefs { had, over, released, lines, asked_again, .. } = &mut *beliefs;
        let mut seen = Vec::new();
        if self.memory == Memory::Keeps {
            // Once for all checks: a fifth of a world's time goes into this.
            seen.extend(resources.iter().map(|resource| Seen::of(self.store.view(resource))));
            for (resource, seen) in resources.iter().zip(&seen) {
                self.check_released(resource, seen, released);
                // Where the store's clock is set back, a place that has ended lasts again.
                if !self.may_step {
                    self.check_order(resource, seen, lines, asked_again);
                }
            }
        }
        for (had, _, since) in had.values() {
            for lease in had.leases() {
                // Asked so that nothing is changed by asking: a lease that is looked at may not come back.
                if lease.expires_in().is_zero() {
                    over.insert(lease.claim());
                    continue;
                }
                let name = lease.resource();
                if over.contains(&lease.claim()) {
                    self.time.fail(format!("{name}: a lease that was over came back"));
                }
                let Some(at) = resources.iter().position(|resource| resource == name) else { continue };
                let held_for = Duration::from_nanos(self.time.now() - since);
                // It is counted by the store's clock, which may be slow.
                if matches!(self.play, Play::Locks | Play::Sets)
                    && !self.may_step
                    && let Some(max_hold) = self.max_hold
                    && held_for > max_hold + max_hold / 100
                {
                    self.time.fail(format!("{name}: held for {held_for:?}, beyond {max_hold:?}"));
                }
                if self.memory == Memory::Keeps && !self.store_holds(had, lease, &seen[at]) {
                    self.time.fail(format!(
                        "{name}: token {} is believed for {:?} more, and the store does not hold it",
                        lease.token(),
                        lease.expires_in()
                    ));
                }
            }
        }
    }

    /// What was released is not granted any more, however late a copy of its claim arrives.
    fn check_released(&self, resource: &Name, seen: &Seen, released: &HashSet<ClaimId>) {
        if seen.holds.iter().filter_map(|hold| hold.claim).any(|claim| released.contains(&claim)) {
            self.time.fail(format!("{resource}: granted after its release"));
        }
    }

    /// Claims are about to be carried out. One that is asked again may have lost its place, and queues anew at the end.
    pub(crate) fn note_asked(&self, claims: &[Claim]) {
        let Beliefs { asked, asked_again, .. } = &mut *self.beliefs();
        asked_again.extend(claims.iter().map(|claim| claim.id).filter(|claim| !asked.insert(*claim)));
    }

    /// Nobody is granted anything while somebody waits who came before.
    fn check_order(
        &self,
        resource: &Name,
        seen: &Seen,
        lines: &mut HashMap<Name, (HashSet<ClaimId>, Vec<ClaimId>)>,
        asked_again: &HashSet<ClaimId>,
    ) {
        let holds: HashSet<ClaimId> = seen.holds.iter().filter_map(|hold| hold.claim).collect();
        let waiters: Vec<ClaimId> = seen.waiters.iter().map(|waiter| waiter.claim).collect();
        let (held, waited) = lines.remove(resource).unwrap_or_default();
        for granted in holds.difference(&held) {
            let before = waited.iter().take_while(|claim| *claim != granted);
            if let Some(overtaken) =
                before.into_iter().find(|claim| waiters.contains(claim) && !asked_again.contains(claim))
            {
                self.time.fail(format!("{resource}: {granted} was granted before {overtaken}"));
            }
        }
        lines.insert(resource.clone(), (holds, waiters));
    }

    fn store_holds(&self, had: &Had, lease: &Lease, seen: &Seen) -> bool {
        if matches!(had, Had::Delivery(_)) {
            return self.store.is_delivered(lease.resource(), lease.claim());
        }
        // What an operator has broken rests for as long as its holder may believe in it.
        let kept = seen.holds.iter().find(|hold| hold.token == lease.token());
        kept.is_some_and(|hold| {
            hold.claim.is_none_or(|claim| claim == lease.claim()) && !hold.ends_in.is_zero()
        })
    }

    /// What must be so when everybody has gone and all periods are over.
    pub(crate) fn check_end(&self) {
        let beliefs = self.beliefs();
        assert!(beliefs.had.is_empty(), "a user has something left");
        if self.memory == Memory::Keeps {
            beliefs.items.check_end();
        }
        assert_eq!(self.store.records_in_use(), 0, "something is left in the store");
    }
}

/// What is known of the items of a queue. An item is named by its group and its number in that group.
#[derive(Default)]
pub(crate) struct Items {
    pushed: BTreeMap<Item, Fate>,
    next: u32,
}

/// A group and a number, or a number alone.
pub(crate) type Item = (u8, u32);

#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    /// The push was answered.
    is_sure: bool,
    is_seen: bool,
    /// It was acknowledged or is dead, as its consumer was told.
    is_over: bool,
    /// It may be.
    may_be_over: bool,
}

impl Items {
    /// Names a new item of a group.
    pub(crate) fn name(&mut self, group: u8) -> Item {
        self.next += 1;
        self.pushed.insert((group, self.next), Fate::default());
        (group, self.next)
    }

    /// The push of an item was answered.
    pub(crate) fn pushed(&mut self, item: Item) {
        self.pushed.entry(item).or_default().is_sure = true;
    }

    /// An item was handed out. Returns what is wrong about that.
    pub(crate) fn handed_out(&mut self, item: Item) -> Option<String> {
        let grouped = item.0 != 0;
        let earlier = self.pushed.range((item.0, 0)..item);
        let skipped = earlier.filter(|(_, fate)| fate.is_sure && !fate.may_be_over && !fate.is_over);
        let skipped = skipped.map(|(item, _)| *item).next();
        let fate = self.pushed.entry(item).or_default();
        fate.is_seen = true;
        match skipped {
            _ if fate.is_over => Some(format!("item {item:?} was handed out after its end")),
            Some(skipped) if grouped => Some(format!("item {item:?} was handed out before {skipped:?}")),
            _ => None,
        }
    }

    /// A user begins to settle an item for good.
    pub(crate) fn may_end(&mut self, item: Item) {
        self.pushed.entry(item).or_default().may_be_over = true;
    }

    pub(crate) fn ended(&mut self, item: Item) {
        self.pushed.entry(item).or_default().is_over = true;
    }

    pub(crate) fn are_all_over(&self) -> bool {
        self.pushed.values().filter(|fate| fate.is_sure).all(|fate| fate.is_over || fate.may_be_over)
    }

    fn check_end(&self) {
        let missed = self.pushed.iter().find(|(_, fate)| fate.is_sure && !fate.is_seen);
        assert!(missed.is_none(), "an item was pushed and never handed out: {missed:?}");
        assert!(self.are_all_over(), "an item was never settled");
    }
}
