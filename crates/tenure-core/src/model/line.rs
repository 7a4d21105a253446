//! The holds of a line: the rule for stores that keep claims in the order in which they came.
//!
//! Such a store (etcd, ZooKeeper) gives each new entry a number that is larger than all before it. An entry *is* a claim,
//! what the store counts is its token, and nothing is written to grant it: **an entry holds if it fits beside everything
//! before it**. From this follows what [`step`](mod@crate::model::step) promises by other means:
//!
//! * No entry overtakes: one that comes later cannot change what holds.
//! * A hold stays one: entries before it only ever go, so what fits goes on to fit.
//! * Each grant's token is larger than those of all earlier grants.
//! * A claim that leaves, or dies, needs no cleanup behind it.
//!
//! The waiters find out by themselves what comes free when an entry goes, so each of them is notified of the entries
//! without whose going it cannot hold ([`Line::blockers`]): for a mutex its predecessor, as in ZooKeeper's recipe for
//! locks. So a release wakes one waiter, and never a herd.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::claim::{
    Busy, CAPACITY_MAX, Claim, ClaimId, ClientId, Kind, Label, Name, Published, Terms, Waiting,
};
use crate::model::inspect::{HoldView, VIEW_ENTRIES_MAX, View, WaiterView};
use crate::model::token::Token;

/// What the store says of an entry besides its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its claim.
    pub claim: ClaimId,
    /// Whose claim it is.
    pub client: ClientId,
    /// What the resource is, according to this claim.
    pub kind: Kind,
    /// How many units it has, according to this claim.
    pub capacity: u32,
    /// How many of them are claimed.
    pub weight: u32,
    /// What only people and observers ask for. None where it was not read.
    pub about: Option<About>,
}

/// What only people and observers ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The token that it has once it holds: larger than those of all entries before it.
    pub token: Token,
    /// The label of the client.
    pub label: Label,
    /// When, by the claimant's clock.
    pub since: Timestamp,
    /// How long the entry lives, at most, when its client is not heard of any more.
    pub lasts: Duration,
    /// An operator has broken the hold: it is not renewed any more, and its units rest until it goes.
    pub is_broken: bool,
}

/// An entry and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number: larger than those of all entries that came before.
    pub order: u64,
    /// The entry.
    pub entry: Entry,
}

/// Units that are not held and may not be granted yet, and the hold they belonged to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The number of the hold's entry.
    pub order: u64,
    /// What the hold was.
    pub entry: Entry,
    /// The slot that rests.
    pub slot: Option<u32>,
}

/// A slot that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenSlot {
    /// The slot.
    pub number: u32,
    /// The claim that took it.
    pub claim: ClaimId,
    /// The token of that claim.
    ///
    /// It is counted when the slot is taken: of two that are granted at once, the one that came later may take a slot first,
    /// and give it back before the other takes the same one.
    pub token: Token,
}

/// An operator's change of the capacity, while claims from before it are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// It is about entries with a smaller number.
    pub before: u64,
    /// The entries with a smaller number than this held then, and go on to hold even if they do not fit any more.
    pub held_before: u64,
    /// The capacity.
    pub capacity: u32,
}

/// All entries of one resource, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    places: Vec<Place>,
    rests: Vec<Rest>,
    resized: Option<Resized>,
    slots: Vec<TakenSlot>,
    /// So many entries were not read: they are behind the first one, and before the last two.
    unread: u32,
    /// The value that a holder published.
    pub value: Option<Published>,
}

/// Something before a claim that takes units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its number.
    pub order: u64,
    /// The entry, or what it was.
    pub entry: Entry,
    /// Its units only rest.
    pub is_rest: bool,
}

/// How a claim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds.
    Holds,
    /// It waits.
    Waits(Waiting),
    /// The name is in use with another kind or capacity.
    Conflict {
        /// The kind in use.
        kind: Kind,
        /// The capacity in use.
        capacity: u32,
    },
}

impl Blocker {
    fn of((order, entry, is_rest): &(u64, &Entry, bool)) -> Blocker {
        Blocker { order: *order, entry: (*entry).clone(), is_rest: *is_rest }
    }
}

impl Entry {
    /// Makes the entry of a claim.
    pub fn new(claim: &Claim, since: Timestamp, lasts: Duration) -> Entry {
        Entry::of_terms(claim.id, claim.client, &claim.terms, since, lasts)
    }

    /// Makes the entry of a claim with these terms.
    pub fn of_terms(
        claim: ClaimId,
        client: ClientId,
        terms: &Terms,
        since: Timestamp,
        lasts: Duration,
    ) -> Entry {
        let Terms { kind, capacity, weight, label, .. } = terms;
        let about = About { token: Token::ZERO, label: label.clone(), since, lasts, is_broken: false };
        let (kind, capacity, weight) = (*kind, *capacity, *weight);
        Entry { claim, client, kind, capacity, weight, about: Some(about) }
    }
}

impl Line {
    /// Makes a line of what the store has, in any order. A claim that took a slot has that slot's token.
    pub fn new(
        mut places: Vec<Place>,
        mut rests: Vec<Rest>,
        resized: Option<Resized>,
        slots: Vec<TakenSlot>,
    ) -> Line {
        for slot in &slots {
            let place = places.iter_mut().find(|place| place.entry.claim == slot.claim);
            if let Some(about) = place.and_then(|place| place.entry.about.as_mut()) {
                about.token = slot.token;
            }
        }
        places.sort_unstable_by_key(|place| place.order);
        // A rest beside the entry of its own hold stands for the same units.
        rests.retain(|rest| places.binary_search_by_key(&rest.order, |place| place.order).is_err());
        rests.sort_unstable_by_key(|rest| rest.order);
        Line { places, rests, resized, slots, unread: 0, value: None }
    }

    /// Makes a line of a mutex of its ends: so many entries were not read, which are behind the first one and before the last two.
    #[must_use]
    pub fn with_unread(self, unread: u32) -> Line {
        Line { unread, ..self }
    }

    /// Returns what the resource is: what its oldest entry says, or an operator since. `None` if it is idle.
    pub fn kind_and_capacity(&self) -> Option<(Kind, u32)> {
        let rest = self.rests.first().map(|rest| (rest.order, &rest.entry));
        let place = self.places.first().map(|place| (place.order, &place.entry));
        let (order, oldest) = match (rest, place) {
            (Some(rest), Some(place)) => {
                if rest.0 < place.0 {
                    rest
                } else {
                    place
                }
            }
            (rest, place) => rest.or(place)?,
        };
        let resized = self.resized.filter(|resized| order < resized.before);
        Some((oldest.kind, resized.map_or(oldest.capacity, |resized| resized.capacity)))
    }

    /// Whether an operator's change of the capacity is about no entry any more, and may be forgotten.
    pub fn resize_is_over(&self) -> bool {
        let is_before = |order: u64| self.resized.is_some_and(|resized| order < resized.before);
        let mut orders =
            self.places.iter().map(|place| place.order).chain(self.rests.iter().map(|rest| rest.order));
        self.resized.is_some() && !orders.any(is_before)
    }

    /// Returns whether the line has nothing in it.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.rests.is_empty()
    }

    /// Returns all entries, the oldest first.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Returns what rests.
    pub fn rests(&self) -> &[Rest] {
        &self.rests
    }

    /// Returns the taken slots.
    pub fn slots(&self) -> &[TakenSlot] {
        &self.slots
    }

    /// Returns the slot that a claim took.
    pub fn slot_of(&self, claim: ClaimId) -> Option<TakenSlot> {
        self.slots.iter().find(|slot| slot.claim == claim).copied()
    }

    /// Returns a claim's entry.
    pub fn place(&self, claim: ClaimId) -> Option<&Place> {
        self.places.iter().find(|place| place.entry.claim == claim)
    }

    /// Returns how many entries hold: always the first ones.
    pub fn holding(&self) -> usize {
        let Some((_, capacity)) = self.kind_and_capacity() else { return 0 };
        let held_before = self.resized.map_or(0, |resized| resized.held_before);
        let mut used = self.resting();
        let fits = |place: &&Place| {
            used += u64::from(place.entry.weight);
            place.order < held_before
                || used <= u64::from(capacity) + u64::from(mutant!("line-lets-in-one-more"))
        };
        self.places.iter().take_while(fits).count()
    }

    fn resting(&self) -> u64 {
        self.rests.iter().map(|rest| u64::from(rest.entry.weight)).sum()
    }

    /// Returns how many units are held or rest.
    pub fn used(&self) -> u32 {
        let held: u64 = self.places[..self.holding()].iter().map(|place| u64::from(place.entry.weight)).sum();
        u32::try_from(held + self.resting()).unwrap_or(u32::MAX)
    }

    /// Returns the largest token of a grant that is still to be seen, zero where none was read.
    pub fn last_token(&self) -> Token {
        let held = self.places[..self.holding()].iter().map(|place| &place.entry);
        let all = held.chain(self.rests.iter().map(|rest| &rest.entry));
        all.map(Entry::token).max().unwrap_or_default()
    }

    /// Returns how a claim stands, or `None` if it is not in the line.
    pub fn standing(&self, claim: ClaimId) -> Option<Standing> {
        let index = self.places.iter().position(|place| place.entry.claim == claim)?;
        let Place { order, entry } = &self.places[index];
        let (kind, capacity) = self.kind_and_capacity()?;
        let is_older = self.resized.is_some_and(|resized| *order < resized.before);
        if entry.kind != kind || entry.capacity != capacity && !is_older {
            return Some(Standing::Conflict { kind, capacity });
        }
        let holding = self.holding();
        if index < holding {
            return Some(Standing::Holds);
        }
        let position = u32::try_from(index - holding + 1).unwrap_or(u32::MAX).saturating_add(self.unread);
        let waiting = Waiting { position, horizon: self.last_token(), look_in: None };
        Some(Standing::Waits(waiting))
    }

    /// Whether a claim with these terms would hold at once. If not: why it is in conflict, where it is.
    pub fn would_hold(&self, terms: &Terms) -> Result<bool, Standing> {
        match self.kind_and_capacity() {
            None => Ok(true),
            Some((kind, capacity)) if (kind, capacity) != (terms.kind, terms.capacity) => {
                Err(Standing::Conflict { kind, capacity })
            }
            Some((_, capacity)) => {
                let free = u64::from(capacity).checked_sub(u64::from(self.used()));
                Ok(self.holding() == self.places.len() && free >= Some(u64::from(terms.weight)))
            }
        }
    }

    /// Returns the entries of which at least one must go before a waiting claim can hold. Of those that will do, the ones
    /// that go last, so that the waiter is woken as seldom as can be: one entry that cannot hold beside the claim, else
    /// the shortest end of what is before it that leaves no room.
    pub fn blockers(&self, claim: ClaimId) -> Vec<Blocker> {
        let Some(index) = self.places.iter().position(|place| place.entry.claim == claim) else {
            return Vec::new();
        };
        let capacity = self.kind_and_capacity().map_or(1, |(_, capacity)| u64::from(capacity));
        let weight = u64::from(self.places[index].entry.weight);
        let before: Vec<(u64, &Entry, bool)> = self.all_before(index).collect();
        let excludes = |(_, entry, _): &&(u64, &Entry, bool)| u64::from(entry.weight) + weight > capacity;
        if let Some(before) = before.iter().rev().find(excludes) {
            return vec![Blocker::of(before)];
        }
        let mut used = weight;
        let mut blockers = Vec::new();
        for before in before.iter().rev() {
            blockers.push(Blocker::of(before));
            used += u64::from(before.1.weight);
            if used > capacity {
                return blockers;
            }
        }
        Vec::new()
    }

    /// Returns everything before a claim that takes units, the oldest first, if it is at most so much and was read. Else the oldest alone.
    pub fn before(&self, claim: ClaimId, most: usize) -> (Vec<Blocker>, bool) {
        let index = self.places.iter().position(|place| place.entry.claim == claim).unwrap_or_default();
        let mut before: Vec<(u64, &Entry, bool)> = self.all_before(index).collect();
        before.sort_unstable_by_key(|(order, ..)| *order);
        let is_whole = self.unread == 0 && before.len() <= most;
        (before.iter().take(if is_whole { most } else { 1 }).map(Blocker::of).collect(), is_whole)
    }

    /// What rests, and the places before one.
    fn all_before(&self, index: usize) -> impl Iterator<Item = (u64, &Entry, bool)> {
        let rests = self.rests.iter().map(|rest| (rest.order, &rest.entry, true));
        rests.chain(self.places[..index].iter().map(|place| (place.order, &place.entry, false)))
    }

    /// Returns the answer to a claim that is refused. `now`: by this machine's clock.
    pub fn busy(&self, now: Timestamp) -> Busy {
        let holding = self.holding();
        let waiting =
            u32::try_from(self.places.len() - holding).unwrap_or(u32::MAX).saturating_add(self.unread);
        let mut busy = Busy::new(self.last_token(), waiting);
        let held = self.places.first().map(|place| &place.entry).filter(|_| holding > 0);
        busy.is_resting = held.is_none();
        if let Some(entry) = held.or(self.rests.first().map(|rest| &rest.entry)) {
            busy.token = entry.token();
            busy.holder = entry.about.as_ref().map(|about| about.label.clone());
            busy.held_for = entry.about.as_ref().map_or(Duration::ZERO, |about| now.since(about.since));
            busy.free_in = entry.about.as_ref().map(|about| about.lasts);
        }
        busy
    }

    /// Returns what is to be seen of the resource, or `None` if it is idle. `now`: by this machine's clock.
    pub fn view(&self, resource: &Name, now: Timestamp) -> Option<View> {
        let value = self.value.as_ref();
        let (kind, capacity) = match (self.kind_and_capacity(), value) {
            (Some(known), _) => known,
            (None, Some(_)) => (Kind::Mutex, 1),
            (None, None) => return None,
        };
        let mut view = View::new(resource.clone(), kind, capacity);
        view.used = self.used();
        view.value = value.map(|value| value.bytes.clone());
        view.last_token = self.last_token().max(value.map(|value| value.token).unwrap_or_default());
        let (holds, waiters) = self.places.split_at(self.holding());
        view.waiting = u32::try_from(waiters.len()).unwrap_or(u32::MAX);
        let nobody = || Label::from_stored("");
        let label = |entry: &Entry| entry.about.as_ref().map_or_else(nobody, |about| about.label.clone());
        let rests = self.rests.iter().map(|rest| (&rest.entry, rest.slot, None));
        let holds = holds.iter().map(|place| {
            let claim = place.entry.claim;
            let slot = self.slot_of(claim).map(|slot| slot.number);
            let is_broken = place.entry.about.as_ref().is_some_and(|about| about.is_broken);
            (&place.entry, slot, Some(claim).filter(|_| !is_broken))
        });
        for (entry, slot, claim) in rests.chain(holds).take(VIEW_ENTRIES_MAX) {
            let mut hold = HoldView::new(entry.token(), label(entry), entry.weight);
            hold.slot = slot;
            hold.claim = claim;
            hold.held_for = entry.about.as_ref().map_or(Duration::ZERO, |about| now.since(about.since));
            hold.ends_in = entry.about.as_ref().map_or(Duration::ZERO, |about| about.lasts);
            view.holds.push(hold);
        }
        view.waiters = waiters
            .iter()
            .take(VIEW_ENTRIES_MAX)
            .map(|place| WaiterView::new(place.entry.claim, label(&place.entry), place.entry.weight))
            .collect();
        Some(view)
    }
}

impl Entry {
    /// Returns its token, zero if it was not read.
    pub fn token(&self) -> Token {
        self.about.as_ref().map(|about| about.token).unwrap_or_default()
    }
}

/// The format that [`Entry::encode`] writes first.
const FORMAT: &str = "1";

impl Entry {
    /// Writes the entry as one line of text, which an operator can read: the format, claim, client, kind, capacity, weight,
    /// what it lives (ms), since when (ms since 1970), `-` or `broken`, and the label up to the end.
    pub fn encode(&self) -> String {
        let kind = letter(self.kind);
        let mut text =
            format!("{FORMAT} {} {} {kind} {} {}", self.claim, self.client, self.capacity, self.weight);
        if let Some(About { label, since, lasts, is_broken, .. }) = &self.about {
            let state = if *is_broken { "broken" } else { "-" };
            let (lasts, since) = (lasts.as_millis(), since.micros() / 1000);
            text.push_str(&format!(" {lasts} {since} {state} {}", label.as_str()));
        }
        text
    }

    /// Reads what [`Entry::encode`] wrote; the token is for the store to fill in. `None` if something else wrote it.
    pub fn decode(text: &str) -> Option<Entry> {
        let mut parts = text.splitn(10, ' ');
        let mut next = || parts.next();
        if next()? != FORMAT {
            return None;
        }
        let (claim, client) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let kind = kind_of(next()?)?;
        let (capacity, weight) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let is_sound = (1..=CAPACITY_MAX).contains(&capacity) && (1..=capacity).contains(&weight);
        let about = match next() {
            None => None,
            Some(lasts) => {
                let lasts = Duration::from_millis(lasts.parse().ok()?);
                let since: u64 = next()?.parse().ok()?;
                let is_broken = next()? == "broken";
                let label = Label::from_stored(next()?);
                Some(About {
                    token: Token::ZERO,
                    label,
                    since: Timestamp::from_micros(since.saturating_mul(1000)),
                    lasts,
                    is_broken,
                })
            }
        };
        is_sound.then_some(Entry { claim, client, kind, capacity, weight, about })
    }
}

/// The letter of a kind, for names and texts in a store.
pub const fn letter(kind: Kind) -> char {
    match kind {
        Kind::Mutex => 'm',
        Kind::RwLock => 'r',
        Kind::Semaphore => 's',
        Kind::SlotPool => 'p',
    }
}

/// The kind of a letter.
pub fn kind_of(letter: &str) -> Option<Kind> {
    match letter {
        "m" => Some(Kind::Mutex),
        "r" => Some(Kind::RwLock),
        "s" => Some(Kind::Semaphore),
        "p" => Some(Kind::SlotPool),
        _ => None,
    }
}
