//! A part of a record, in memory, for stores that answer over a network.
//!
//! [`step`](crate::model::step::step) asks one question after another, and a round trip for each would cost more than all
//! the rest. So a store loads what most commands need in one or two trips, `step` runs on the [`Window`], and the store
//! writes [`Window::changes`]. The window knows how far it reaches. A question beyond that is a [`NotLoaded`]: the store
//! loads more, still in the same transaction, and `step` runs again from the start. So a record of a hundred
//! thousand waiters costs what it needs, and no answer is ever a guess.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::clock::Timestamp;
use crate::model::claim::{ClaimId, ClientId};
use crate::model::record::{Head, Hold, Record, Value, Waiter};
use crate::model::token::Token;

/// What is missing: the store is to load it, and `step` is to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLoaded {
    /// More holds and waiters, of each order.
    Entries,
    /// Whether the claims of the command are among the finished.
    Finished,
    /// More free slots.
    FreeSlots,
}

/// How much of a record is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// So many holds by token and by end, and so many waiters by place and by end. `None`: all.
    pub entries: Option<usize>,
    /// So many of the slots that are free again, those that have been free longest.
    pub free_slots: usize,
    /// Whether the claims of the command are among the finished.
    pub finished: bool,
}

impl Reach {
    /// What is loaded for all commands alike.
    pub const FIRST: Reach = Reach { entries: Some(64), free_slots: 0, finished: false };

    /// Returns what to load after a miss.
    pub fn beyond(self, miss: NotLoaded) -> Reach {
        match miss {
            NotLoaded::Entries => Reach {
                entries: self.entries.map(|entries| entries * 16).filter(|more| *more < 1 << 20),
                ..self
            },
            NotLoaded::Finished => Reach { finished: true, ..self },
            NotLoaded::FreeSlots => Reach { free_slots: (self.free_slots * 16).max(64), ..self },
        }
    }
}

/// What a store has loaded of a record.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The head, none if nothing is stored.
    pub head: Option<Head>,
    /// Until when the last of the finished claims is remembered, none if none is.
    pub finished_until: Option<Timestamp>,
    /// The value. Its bytes may be left out where no claim takes a fresh one.
    pub value: Option<Value>,
    /// Holds in any order, none twice: those that the reach asks for, and those of the command's claims and tokens.
    pub holds: Vec<Hold>,
    /// Waiters in any order, none twice: as the holds.
    pub waiters: Vec<Waiter>,
    /// Whether these are all the holds and waiters that there are.
    pub is_complete: bool,
    /// For waiters of the command's claims: the place of the one behind, none for the last. Spares a load of all in between.
    pub followers: BTreeMap<u64, Option<u64>>,
    /// Those of the command's claims that are finished by now. `None`: not loaded.
    pub finished: Option<BTreeSet<ClaimId>>,
    /// Slots that are free again, the one that has been free longest first, each with the number under which it is stored.
    pub free_slots: VecDeque<(u64, u32)>,
    /// Whether these are all of them.
    pub has_all_free_slots: bool,
}

/// What to write, once `step` is through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The head, if it is another.
    pub head: Option<Head>,
    /// Holds to store, each in place of the one with its token.
    pub holds: Vec<Hold>,
    /// Tokens of holds to remove.
    pub gone_holds: Vec<Token>,
    /// Waiters to store, each in place of the one at its place.
    pub waiters: Vec<Waiter>,
    /// Places of waiters to remove.
    pub gone_waiters: Vec<u64>,
    /// How many more holds and waiters there are then.
    pub entries: i64,
    /// Claims to remember as finished.
    pub finished: Vec<(ClaimId, Timestamp)>,
    /// Forget all that were finished until then.
    pub forget_finished: Option<Timestamp>,
    /// Free slots to remove, by the number under which they are stored.
    pub taken_slots: Vec<u64>,
    /// Remove the free slots at and above this one, before anything is added.
    pub gone_slots_from: Option<u32>,
    /// Slots to add behind the others.
    pub free_slots: Vec<u32>,
    /// The value, if it is another.
    pub value: Option<Option<Value>>,
}

/// Up to where the loaded entries have no gap, in each of their orders. `None`: all are loaded.
#[derive(Clone, Copy, Debug, Default)]
struct Edges {
    token: Option<Token>,
    hold_end: Option<(Timestamp, Token)>,
    place: Option<u64>,
    waiter_end: Option<(Timestamp, u64)>,
}

/// A record as far as it is loaded, and what has been changed in it.
#[derive(Clone, Debug)]
pub struct Window {
    stored: Option<Head>,
    head: Option<Head>,
    holds: BTreeMap<Token, Hold>,
    waiters: BTreeMap<u64, Waiter>,
    edges: Edges,
    followers: BTreeMap<u64, Option<u64>>,
    /// Whose hold or waiter was looked for, found or not.
    claims: BTreeSet<ClaimId>,
    tokens: BTreeSet<Token>,
    finished: Option<BTreeSet<ClaimId>>,
    finished_until: Option<Timestamp>,
    free_slots: VecDeque<(u64, u32)>,
    has_all_free_slots: bool,
    value: Option<Value>,
    /// What has been changed, and whether it was there before.
    touched_holds: BTreeMap<Token, bool>,
    touched_waiters: BTreeMap<u64, bool>,
    /// What has been added to the finished, and the rest as it is to be written.
    newly_finished: Vec<(ClaimId, Timestamp)>,
    changes: Changes,
}

impl Window {
    /// Makes the window of what was loaded for commands that name these claims and tokens, as far as `reach` says.
    pub fn new(
        loaded: Loaded,
        reach: Reach,
        claims: impl IntoIterator<Item = ClaimId>,
        tokens: impl IntoIterator<Item = Token>,
    ) -> Window {
        let edges = match reach.entries {
            Some(most) if !loaded.is_complete => edges(&loaded, most),
            _ => Edges::default(),
        };
        // A slot can only be free again if it was granted once.
        let has_none = loaded.head.as_ref().is_none_or(|head| head.fresh_slots == 0);
        Window {
            stored: loaded.head.clone(),
            head: loaded.head,
            holds: loaded.holds.into_iter().map(|hold| (hold.token, hold)).collect(),
            waiters: loaded.waiters.into_iter().map(|waiter| (waiter.place, waiter)).collect(),
            edges,
            followers: loaded.followers,
            claims: claims.into_iter().collect(),
            tokens: tokens.into_iter().collect(),
            finished: if loaded.finished_until.is_none() { Some(BTreeSet::new()) } else { loaded.finished },
            finished_until: loaded.finished_until,
            has_all_free_slots: loaded.has_all_free_slots || has_none,
            free_slots: loaded.free_slots,
            value: loaded.value,
            touched_holds: BTreeMap::new(),
            touched_waiters: BTreeMap::new(),
            newly_finished: Vec::new(),
            changes: Changes::default(),
        }
    }

    /// Returns until when the last of the finished claims is remembered.
    pub fn last_finished(&self) -> Option<Timestamp> {
        self.newly_finished.iter().map(|(_, until)| *until).chain(self.finished_until).max()
    }

    /// Returns what is to be written, against the state that was loaded.
    pub fn changes(&self) -> Changes {
        let mut changes = self.changes.clone();
        changes.head = self.head.clone().filter(|head| Some(head) != self.stored.as_ref());
        for (token, was_there) in &self.touched_holds {
            match self.holds.get(token) {
                Some(hold) => changes.holds.push(hold.clone()),
                None if *was_there => changes.gone_holds.push(*token),
                None => {}
            }
            changes.entries += i64::from(self.holds.contains_key(token)) - i64::from(*was_there);
        }
        for (place, was_there) in &self.touched_waiters {
            match self.waiters.get(place) {
                Some(waiter) => changes.waiters.push(waiter.clone()),
                None if *was_there => changes.gone_waiters.push(*place),
                None => {}
            }
            changes.entries += i64::from(self.waiters.contains_key(place)) - i64::from(*was_there);
        }
        changes.finished = self.newly_finished.clone();
        changes
    }
}

/// An answer that is true only if it lies within what is loaded without a gap.
fn within<T, K: PartialOrd>(
    found: Option<T>,
    key: impl FnOnce(&T) -> K,
    edge: Option<K>,
) -> Result<Option<T>, NotLoaded> {
    match (edge, &found) {
        (None, _) => Ok(found),
        (Some(edge), Some(entry)) if key(entry) <= edge => Ok(found),
        (Some(_), _) => Err(NotLoaded::Entries),
    }
}

fn all<K>(edge: Option<K>) -> Result<(), NotLoaded> {
    if edge.is_none() { Ok(()) } else { Err(NotLoaded::Entries) }
}

/// Returns the edges of a load of the first `most` entries in each order, and of some others.
fn edges(loaded: &Loaded, most: usize) -> Edges {
    // The nth of an order is loaded, and so is all before it. With fewer there is nothing behind the last.
    fn nth<K: Ord + Copy>(keys: impl Iterator<Item = K>, most: usize) -> Option<K> {
        let mut keys: Vec<K> = keys.collect();
        keys.sort_unstable();
        keys.get(most - 1).copied()
    }
    let (holds, waiters) = (|| loaded.holds.iter(), || loaded.waiters.iter());
    Edges {
        token: nth(holds().map(|hold| hold.token), most),
        hold_end: nth(holds().map(|hold| (hold.expires_at, hold.token)), most),
        place: nth(waiters().map(|waiter| waiter.place), most),
        waiter_end: nth(waiters().map(|waiter| (waiter.expires_at, waiter.place)), most),
    }
}

impl Record for Window {
    type Error = NotLoaded;

    fn head(&self) -> Result<Option<Head>, NotLoaded> {
        Ok(self.head.clone())
    }

    fn set_head(&mut self, head: Head) -> Result<(), NotLoaded> {
        self.head = Some(head);
        Ok(())
    }

    fn hold_of(&self, claim: ClaimId) -> Result<Option<Hold>, NotLoaded> {
        let found = self.holds.values().find(|hold| hold.claim == Some(claim));
        if found.is_none() && !self.claims.contains(&claim) {
            all(self.edges.token)?;
        }
        Ok(found.cloned())
    }

    fn hold(&self, token: Token) -> Result<Option<Hold>, NotLoaded> {
        let found = self.holds.get(&token);
        let is_within = self.edges.token.is_none_or(|edge| token <= edge);
        if found.is_none() && !is_within && !self.tokens.contains(&token) {
            return Err(NotLoaded::Entries);
        }
        Ok(found.cloned())
    }

    fn next_hold_to_end(&self) -> Result<Option<Hold>, NotLoaded> {
        let key = |hold: &Hold| (hold.expires_at, hold.token);
        within(self.holds.values().min_by_key(|hold| key(hold)).cloned(), key, self.edges.hold_end)
    }

    fn holds(&self, most: usize) -> Result<Vec<Hold>, NotLoaded> {
        let holds: Vec<Hold> = self.holds.values().take(most).cloned().collect();
        if holds.len() < most {
            all(self.edges.token)?;
        } else if let Some(last) = holds.last() {
            within(Some(last.token), |token| *token, self.edges.token)?;
        }
        Ok(holds)
    }

    fn put_hold(&mut self, hold: Hold) -> Result<(), NotLoaded> {
        self.touched_holds.entry(hold.token).or_insert(self.holds.contains_key(&hold.token));
        self.holds.insert(hold.token, hold);
        Ok(())
    }

    fn remove_hold(&mut self, token: Token) -> Result<(), NotLoaded> {
        self.touched_holds.entry(token).or_insert(self.holds.contains_key(&token));
        self.holds.remove(&token);
        Ok(())
    }

    fn is_slot_held(&self, slot: u32) -> Result<bool, NotLoaded> {
        all(self.edges.token)?;
        Ok(self.holds.values().any(|hold| hold.slot == Some(slot)))
    }

    fn waiter_of(&self, claim: ClaimId) -> Result<Option<Waiter>, NotLoaded> {
        let found = self.waiters.values().find(|waiter| waiter.claim == claim);
        if found.is_none() && !self.claims.contains(&claim) {
            all(self.edges.place)?;
        }
        Ok(found.cloned())
    }

    fn waiter_behind(&self, place: u64) -> Result<Option<Waiter>, NotLoaded> {
        let first = self.waiters.range(place.saturating_add(1)..).next().map(|(_, waiter)| waiter.clone());
        match self.followers.get(&place) {
            Some(Some(next)) if first.as_ref().is_some_and(|first| first.place == *next) => Ok(first),
            // A waiter behind the last one came in this very step.
            Some(None) => Ok(first),
            _ => within(first, |waiter| waiter.place, self.edges.place),
        }
    }

    fn waiters_ahead(&self, place: u64, most: u32) -> Result<u32, NotLoaded> {
        let ahead = self.waiters.range(..place).take(most as usize);
        let (mut count, mut last) = (0, 0);
        for (place, _) in ahead {
            (count, last) = (count + 1, *place);
        }
        // All of those that were counted, and all that lie between them, are loaded.
        let needed = if count == most { last } else { place.saturating_sub(1) };
        within(Some(needed), |needed| *needed, self.edges.place)?;
        Ok(count)
    }

    fn next_waiter_to_end(&self) -> Result<Option<Waiter>, NotLoaded> {
        let key = |waiter: &Waiter| (waiter.expires_at, waiter.place);
        within(self.waiters.values().min_by_key(|waiter| key(waiter)).cloned(), key, self.edges.waiter_end)
    }

    fn waiters(&self, most: usize) -> Result<Vec<Waiter>, NotLoaded> {
        all(self.edges.place)?;
        Ok(self.waiters.values().take(most).cloned().collect())
    }

    fn put_waiter(&mut self, waiter: Waiter) -> Result<(), NotLoaded> {
        self.touched_waiters.entry(waiter.place).or_insert(self.waiters.contains_key(&waiter.place));
        self.waiters.insert(waiter.place, waiter);
        Ok(())
    }

    fn remove_waiter(&mut self, place: u64) -> Result<(), NotLoaded> {
        self.touched_waiters.entry(place).or_insert(self.waiters.contains_key(&place));
        self.waiters.remove(&place);
        Ok(())
    }

    fn claims_of(&self, client: ClientId) -> Result<Vec<ClaimId>, NotLoaded> {
        all(self.edges.token)?;
        all(self.edges.place)?;
        let holds = self.holds.values().filter(|hold| hold.client == client).filter_map(|hold| hold.claim);
        let waiters = self.waiters.values().filter(|waiter| waiter.client == client);
        Ok(holds.chain(waiters.map(|waiter| waiter.claim)).collect())
    }

    fn is_finished(&self, claim: ClaimId) -> Result<bool, NotLoaded> {
        if self.newly_finished.iter().any(|(finished, _)| *finished == claim) {
            return Ok(true);
        }
        match &self.finished {
            Some(finished) => Ok(finished.contains(&claim)),
            None => Err(NotLoaded::Finished),
        }
    }

    fn put_finished(&mut self, claim: ClaimId, until: Timestamp) -> Result<(), NotLoaded> {
        self.newly_finished.retain(|(finished, _)| *finished != claim);
        self.newly_finished.push((claim, until));
        Ok(())
    }

    fn forget_finished(&mut self, now: Timestamp) -> Result<(), NotLoaded> {
        self.newly_finished.retain(|(_, until)| *until > now);
        if let Some(until) = self.finished_until {
            self.changes.forget_finished = Some(now);
            if until <= now {
                (self.finished, self.finished_until) = (Some(BTreeSet::new()), None);
            }
        }
        Ok(())
    }

    fn finished_until(&self) -> Result<Option<Timestamp>, NotLoaded> {
        Ok(self.last_finished())
    }

    fn push_free_slot(&mut self, slot: u32) -> Result<(), NotLoaded> {
        self.changes.free_slots.push(slot);
        Ok(())
    }

    fn pop_free_slot(&mut self) -> Result<Option<u32>, NotLoaded> {
        if let Some((number, slot)) = self.free_slots.pop_front() {
            self.changes.taken_slots.push(number);
            return Ok(Some(slot));
        }
        if !self.has_all_free_slots {
            return Err(NotLoaded::FreeSlots);
        }
        let added = &mut self.changes.free_slots;
        Ok(if added.is_empty() { None } else { Some(added.remove(0)) })
    }

    fn remove_free_slots(&mut self, from: u32) -> Result<(), NotLoaded> {
        self.has_all_free_slots |= from == 0;
        self.free_slots.retain(|(_, slot)| *slot < from);
        self.changes.free_slots.retain(|slot| *slot < from);
        let lowest = self.changes.gone_slots_from.map_or(from, |lowest| lowest.min(from));
        self.changes.gone_slots_from = Some(lowest);
        Ok(())
    }

    fn value(&self) -> Result<Option<Value>, NotLoaded> {
        Ok(self.value.clone())
    }

    fn set_value(&mut self, value: Option<Value>) -> Result<(), NotLoaded> {
        self.changes.value = Some(value.clone());
        self.value = value;
        Ok(())
    }
}
