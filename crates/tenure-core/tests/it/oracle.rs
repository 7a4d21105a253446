//! The protocol written a second time, as plainly as it can be said, for `step` to be compared with.
//!
//! The oracle forgets nothing and indexes nothing. It keeps every grant that was ever made, every claim that
//! ever queued and every value that was ever published in flat lists, and derives each answer from them: the
//! units in use by summing, a position by counting, the next slot by asking of each when it last came free.
//! It shares the types of commands and answers with `step`, and no code. It was written from the text of the
//! design, not from `step`: where the two differ, either can be wrong.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{
    Busy, CAPACITY_MAX, Claim, ClaimId, ClientId, Grant, HoldLimits, Keep, Kind, Label, Published, Waiting,
};
use tenure_core::model::step::{
    Break, BreakAnswer, Claimed, Publish, Refusal, Release, ReleaseAnswer, Renew, Renewed, Resize, Vanish,
    Withdraw, WithdrawAnswer, Woken,
};
use tenure_core::model::token::Token;

use crate::world::{Order, Outcome};

const WINDOW: Duration = Duration::from_secs(5);
const WAITER_LIFE: Duration = Duration::from_secs(15);
const MEMORY: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// One grant, from the day it was made.
#[derive(Clone, Debug)]
pub(crate) struct Tenancy {
    pub(crate) claim: ClaimId,
    pub(crate) client: ClientId,
    pub(crate) weight: u32,
    pub(crate) slot: Option<u32>,
    pub(crate) token: Token,
    pub(crate) granted_at: Timestamp,
    pub(crate) ends_at: Timestamp,
    pub(crate) is_confirmed: bool,
    pub(crate) ttl: Duration,
    pub(crate) limits: HoldLimits,
    pub(crate) label: Label,
    pub(crate) units: Units,
    /// Which slot order it belongs to: a record that takes another shape begins a new one.
    era: u32,
}

/// What has become of the units of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    Held,
    Resting {
        until: Timestamp,
    },
    /// Free since a moment, which was noticed in a phase.
    Free {
        phase: u64,
        at: Timestamp,
    },
}

/// One claim that queued. Its index in the list is its turn.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) claim: ClaimId,
    pub(crate) client: ClientId,
    pub(crate) weight: u32,
    pub(crate) expires_at: Timestamp,
    ttl: Duration,
    limits: HoldLimits,
    label: Label,
    unless_fresh: bool,
    still_waits: bool,
}

/// One publication.
#[derive(Clone, Debug)]
struct Publication {
    bytes: Arc<[u8]>,
    token: Token,
    at: Timestamp,
    keep: Keep,
    is_over: bool,
}

/// What the oracle says about a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    pub(crate) wakes: Vec<Woken>,
    pub(crate) moved_up: Vec<(ClientId, ClaimId)>,
}

/// Everything that ever happened on one resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    /// Kind and capacity, once anybody asked for the resource.
    pub(crate) shape: Option<(Kind, u32)>,
    pub(crate) last_token: Token,
    grants: Vec<Tenancy>,
    queue: Vec<Queued>,
    remembered: Vec<(ClaimId, Timestamp)>,
    publications: Vec<Publication>,
    /// Slots that a resize gave back, and in which phase.
    returned: Vec<(u32, u64)>,
    era: u32,
    /// Two for each command: what settling noticed comes before what the command did.
    phase: u64,
    wakes: Vec<Woken>,
    moved_up: Vec<(ClientId, ClaimId)>,
}

impl Oracle {
    /// Carries out a command.
    pub(crate) fn apply(&mut self, order: &Order, now: Timestamp) -> Answer {
        self.wakes.clear();
        self.moved_up.clear();
        self.settle(now);
        self.phase += 1;
        let outcome = match order {
            Order::Claim(claim) => Outcome::Claim(self.claim(claim, now)),
            Order::Renew(Renew(claim)) => Outcome::Renew(self.renew(*claim, now)),
            Order::Release(release) => Outcome::Release(self.release(*release, now)),
            Order::Withdraw(withdraw) => Outcome::Withdraw(self.withdraw(*withdraw, now)),
            Order::Publish(Publish { claim, bytes, keep }) => {
                Outcome::Publish(self.publish(*claim, bytes, *keep, now))
            }
            Order::Break(Break { token, at_once }) => Outcome::Break(self.break_hold(*token, *at_once, now)),
            Order::Resize(Resize(capacity)) => Outcome::Resize(self.resize(*capacity, now)),
            Order::Vanish(Vanish(client)) => {
                self.vanish(*client, now);
                Outcome::Vanish
            }
            Order::Settle => Outcome::Settle,
        };
        self.promote(now);
        Answer { outcome, wakes: self.wakes.clone(), moved_up: self.moved_up.clone() }
    }

    /// All units that are not free.
    pub(crate) fn taken(&self) -> impl Iterator<Item = &Tenancy> {
        self.grants.iter().filter(|grant| !matches!(grant.units, Units::Free { .. }))
    }

    /// Everybody who waits, in their turn.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Queued> {
        self.queue.iter().filter(|queued| queued.still_waits)
    }

    pub(crate) fn used(&self) -> u64 {
        self.taken().map(|grant| u64::from(grant.weight)).sum()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.taken().next().is_none() && self.waiters().next().is_none()
    }

    pub(crate) fn is_remembered(&self, claim: ClaimId) -> bool {
        self.remembered.iter().any(|(id, _)| *id == claim)
    }

    /// The value that can be read, and until when it is fresh.
    pub(crate) fn value(&self) -> Option<(Arc<[u8]>, Token, Timestamp)> {
        let last = self.publications.last().filter(|last| !last.is_over)?;
        Some((last.bytes.clone(), last.token, last.fresh_until()))
    }

    /// Every moment at which something changes by itself or an answer changes, in no order.
    pub(crate) fn moments(&self) -> Vec<Timestamp> {
        let mut moments = Vec::new();
        for grant in self.taken() {
            moments.extend([
                grant.ends_at,
                grant.ends_at + grant.limits.lock_delay,
                grant.granted_at + grant.limits.min_hold,
                grant.granted_at + grant.limits.max_hold.unwrap_or_default(),
            ]);
            if let Units::Resting { until } = grant.units {
                moments.push(until);
            }
        }
        moments.extend(self.waiters().map(|queued| queued.expires_at));
        moments.extend(self.remembered.iter().map(|(_, until)| *until));
        if let Some(last) = self.publications.last() {
            moments.extend([last.fresh_until(), last.kept_until().unwrap_or_default()]);
        }
        moments
    }

    fn settle(&mut self, now: Timestamp) {
        self.phase += 1;
        self.end_what_has_ended(now);
        self.promote(now);
        // A grant can end in the moment in which it is made, and the next is due.
        while self.taken().any(|grant| next_change(grant) <= now) {
            self.end_what_has_ended(now);
            self.promote(now);
        }
    }

    fn end_what_has_ended(&mut self, now: Timestamp) {
        for at in 0..self.grants.len() {
            let grant = &mut self.grants[at];
            if grant.units == Units::Held && grant.ends_at <= now {
                grant.units = Units::Resting { until: grant.ends_at + grant.limits.lock_delay };
                let (claim, ended_at) = (grant.claim, grant.ends_at);
                self.remember(claim, ended_at + MEMORY);
            }
            self.end_rest(at, now);
        }
        self.drop_values(now);
        while let Some(turn) = self.next_dead_waiter(now) {
            let Queued { claim, expires_at, .. } = self.queue[turn];
            self.remember(claim, expires_at + MEMORY);
            self.leave(turn);
        }
        self.remembered.retain(|(_, until)| *until > now);
    }

    fn end_rest(&mut self, at: usize, now: Timestamp) {
        let grant = &mut self.grants[at];
        if let Units::Resting { until } = grant.units
            && until <= now
        {
            grant.units = Units::Free { phase: self.phase, at: until };
        }
    }

    fn drop_values(&mut self, now: Timestamp) {
        let held: Vec<Token> = self.taken().filter(|g| g.units == Units::Held).map(|g| g.token).collect();
        for publication in &mut self.publications {
            publication.is_over |= match publication.kept_until() {
                Some(until) => until <= now,
                None => !held.contains(&publication.token),
            };
        }
    }

    fn next_dead_waiter(&self, now: Timestamp) -> Option<usize> {
        let dead = self.queue.iter().enumerate().filter(|(_, q)| q.still_waits && q.expires_at <= now);
        dead.min_by_key(|(turn, queued)| (queued.expires_at, *turn)).map(|(turn, _)| turn)
    }

    /// Takes a claim out of the queue without a grant.
    fn leave(&mut self, turn: usize) {
        self.queue[turn].still_waits = false;
        if let Some(behind) = self.queue[turn..].iter().find(|queued| queued.still_waits) {
            self.moved_up.push((behind.client, behind.claim));
        }
    }

    fn remember(&mut self, claim: ClaimId, until: Timestamp) {
        self.remembered.retain(|(id, _)| *id != claim);
        self.remembered.push((claim, until));
    }

    fn fits(&self, weight: u32) -> bool {
        let capacity = self.shape.map_or(0, |(_, capacity)| capacity);
        self.used() + u64::from(weight) <= u64::from(capacity)
    }

    /// Grants to the head of the queue while it fits.
    fn promote(&mut self, now: Timestamp) {
        while let Some(turn) = self.queue.iter().position(|queued| queued.still_waits) {
            let head = self.queue[turn].clone();
            if !self.fits(head.weight) {
                break;
            }
            self.queue[turn].still_waits = false;
            let grant = self.grant(Tenancy {
                claim: head.claim,
                client: head.client,
                weight: head.weight,
                slot: None,
                token: self.next_token(now, Token::ZERO),
                granted_at: now,
                ends_at: now + head.ttl.min(WINDOW),
                is_confirmed: false,
                ttl: head.ttl,
                limits: head.limits,
                label: head.label,
                units: Units::Held,
                era: self.era,
            });
            self.wakes.push(Woken {
                claim: head.claim,
                client: head.client,
                grant: Some(answer_of(&grant, now)),
            });
        }
    }

    fn next_token(&self, now: Timestamp, floor: Token) -> Token {
        let candidates =
            [self.last_token.get().saturating_add(1), now.micros(), floor.get().saturating_add(1)];
        Token::new(candidates.into_iter().max().unwrap_or_default())
    }

    fn grant(&mut self, mut tenancy: Tenancy) -> Tenancy {
        tenancy.slot = self.next_slot();
        tenancy.ends_at = tenancy.ends_at.min(latest_end(&tenancy));
        self.last_token = tenancy.token;
        self.grants.push(tenancy.clone());
        tenancy
    }

    /// The slot that has been free longest: the first of those never granted, else the first that came free.
    fn next_slot(&self) -> Option<u32> {
        let (Kind::SlotPool, capacity) = self.shape? else { return None };
        let free = (0..capacity).filter(|slot| self.taken().all(|grant| grant.slot != Some(*slot)));
        free.min_by_key(|slot| {
            let mine = self.grants.iter().filter(|grant| grant.era == self.era && grant.slot == Some(*slot));
            let last = mine.max_by_key(|grant| grant.token)?;
            match last.units {
                Units::Free { phase, at } => {
                    Some(self.came_back(*slot, phase).unwrap_or((phase, at, last.token)))
                }
                Units::Held | Units::Resting { .. } => unreachable!("filtered above"),
            }
        })
    }

    /// A slot that a resize took away and another gave back has been free only since then.
    fn came_back(&self, slot: u32, freed: u64) -> Option<(u64, Timestamp, Token)> {
        let (_, phase) =
            self.returned.iter().rfind(|(returned, phase)| *returned == slot && *phase > freed)?;
        Some((*phase, Timestamp::default(), Token::new(u64::from(slot))))
    }

    fn held_by(&self, claim: ClaimId) -> Option<usize> {
        self.grants.iter().position(|grant| grant.claim == claim && grant.units == Units::Held)
    }

    fn turn_of(&self, claim: ClaimId) -> Option<usize> {
        self.queue.iter().position(|queued| queued.claim == claim && queued.still_waits)
    }

    fn claim(&mut self, claim: &Claim, now: Timestamp) -> Result<Claimed, Refusal> {
        if self.is_remembered(claim.id) {
            return Ok(Claimed::Finished);
        }
        if let Some(at) = self.held_by(claim.id) {
            return Ok(Claimed::Granted(self.extend(at, now)));
        }
        if let Some(turn) = self.turn_of(claim.id) {
            // It waits where it asked last.
            self.queue[turn].client = claim.client;
            return Ok(Claimed::Waiting(self.keep_place(turn, now)));
        }
        let shape = (claim.terms.kind, claim.terms.capacity);
        if let Some((kind, capacity)) = self.shape.filter(|old| *old != shape && !self.is_idle()) {
            return Err(Refusal::Conflict { kind, capacity });
        }
        if claim.terms.weight == 0 || claim.terms.weight > claim.terms.capacity {
            return Err(Refusal::Invalid("weight"));
        }
        if claim.floor.get() > (now + HOUR).micros() && !claim.floor_forced {
            return Err(Refusal::FloorAhead { now });
        }
        if let (true, Some(published)) = (claim.terms.unless_fresh, self.fresh_value(now)) {
            return Ok(Claimed::Fresh(published));
        }
        if self.shape != Some(shape) {
            self.shape = Some(shape);
            self.era += 1;
        }
        let is_queue_empty = self.waiters().next().is_none();
        if is_queue_empty && self.fits(claim.terms.weight) {
            return Ok(Claimed::Granted(self.grant_at_once(claim, now)));
        }
        if !claim.wait {
            return Ok(Claimed::Busy(self.busy(now)));
        }
        self.last_token = self.last_token.max(claim.floor);
        self.queue.push(Queued {
            claim: claim.id,
            client: claim.client,
            weight: claim.terms.weight,
            expires_at: now + claim.terms.ttl.min(WAITER_LIFE),
            ttl: claim.terms.ttl,
            limits: claim.terms.limits,
            label: claim.terms.label.clone(),
            unless_fresh: claim.terms.unless_fresh,
            still_waits: true,
        });
        Ok(Claimed::Waiting(self.waiting(self.queue.len() - 1, now)))
    }

    fn grant_at_once(&mut self, claim: &Claim, now: Timestamp) -> Grant {
        let grant = self.grant(Tenancy {
            claim: claim.id,
            client: claim.client,
            weight: claim.terms.weight,
            slot: None,
            token: self.next_token(now, claim.floor),
            granted_at: now,
            ends_at: now + claim.terms.ttl,
            is_confirmed: true,
            ttl: claim.terms.ttl,
            limits: claim.terms.limits,
            label: claim.terms.label.clone(),
            units: Units::Held,
            era: self.era,
        });
        answer_of(&grant, now)
    }

    fn extend(&mut self, at: usize, now: Timestamp) -> Grant {
        let grant = &mut self.grants[at];
        grant.ends_at = grant.ends_at.max((now + grant.ttl).min(latest_end(grant)));
        grant.is_confirmed = true;
        answer_of(grant, now)
    }

    fn keep_place(&mut self, turn: usize, now: Timestamp) -> Waiting {
        let queued = &mut self.queue[turn];
        queued.expires_at = queued.expires_at.max(now + queued.ttl.min(WAITER_LIFE));
        self.waiting(turn, now)
    }

    fn waiting(&self, turn: usize, now: Timestamp) -> Waiting {
        let ahead = self.queue[..turn].iter().filter(|queued| queued.still_waits).count();
        let first_end = self.taken().map(next_change).min();
        Waiting {
            position: ahead as u32 + 1,
            horizon: self.last_token,
            look_in: first_end.filter(|_| ahead == 0).map(|end| end.since(now)),
        }
    }

    fn busy(&self, now: Timestamp) -> Busy {
        let mut busy = Busy::new(self.last_token, self.waiters().count() as u32);
        let rests = |grant: &&Tenancy| grant.units != Units::Held;
        if let Some(shown) = self.taken().min_by_key(|grant| (rests(grant), grant.token)) {
            busy.holder = Some(shown.label.clone());
            busy.token = shown.token;
            busy.held_for = now.since(shown.granted_at);
            busy.is_resting = rests(&shown);
        }
        let first_to_end = self.taken().min_by_key(|grant| (next_change(grant), grant.token));
        busy.free_in = first_to_end.map(|first| free_at(first).since(now));
        busy
    }

    fn fresh_value(&self, now: Timestamp) -> Option<Published> {
        let (bytes, token, fresh_until) = self.value()?;
        (fresh_until > now).then(|| Published { bytes, token, fresh_for: fresh_until.since(now) })
    }

    fn renew(&mut self, claim: ClaimId, now: Timestamp) -> Renewed {
        match (self.held_by(claim), self.turn_of(claim)) {
            (Some(at), _) => Renewed::Held(self.extend(at, now)),
            (None, Some(turn)) => Renewed::Waiting(self.keep_place(turn, now)),
            (None, None) => Renewed::Lost,
        }
    }

    fn release(&mut self, release: Release, now: Timestamp) -> ReleaseAnswer {
        let held = self.held_by(release.claim);
        let turn = self.turn_of(release.claim);
        if release.maybe_in_flight {
            self.remember(release.claim, now + MEMORY);
        }
        if let Some(at) = held {
            let grant = &self.grants[at];
            let rested = grant.granted_at + grant.limits.min_hold;
            // A clock that was set back makes no rest longer.
            let rested = rested.min(now + grant.limits.min_hold);
            self.end(at, if release.is_unused { now } else { rested }, now);
        }
        if let Some(turn) = turn {
            self.leave(turn);
        }
        let was_there = held.is_some() || turn.is_some();
        if was_there { ReleaseAnswer::Released } else { ReleaseAnswer::AlreadyLost }
    }

    fn withdraw(&mut self, Withdraw { claim, client }: Withdraw, now: Timestamp) -> WithdrawAnswer {
        let (held, turn) = (self.held_by(claim), self.turn_of(claim));
        let may_end = match (held, turn) {
            (Some(at), _) => {
                let grant = &self.grants[at];
                // By its end alone, as who keeps no mark must decide.
                let is_short =
                    grant.ttl <= WINDOW || grant.limits.max_hold.is_some_and(|most| most <= WINDOW);
                grant.client == client && !grant.is_confirmed && !is_short
            }
            (None, Some(turn)) => self.queue[turn].client == client,
            (None, None) => true,
        };
        if !may_end {
            return WithdrawAnswer::InUse;
        }
        let release = Release { claim, maybe_in_flight: true, is_unused: true };
        match self.release(release, now) {
            ReleaseAnswer::Released => WithdrawAnswer::Withdrawn,
            ReleaseAnswer::AlreadyLost => WithdrawAnswer::AlreadyLost,
        }
    }

    /// Ends a hold before its time.
    fn end(&mut self, at: usize, rest_until: Timestamp, now: Timestamp) {
        self.grants[at].units = if rest_until > now {
            Units::Resting { until: rest_until }
        } else {
            Units::Free { phase: self.phase, at: now }
        };
        self.drop_values(now);
    }

    fn publish(&mut self, claim: ClaimId, bytes: &Arc<[u8]>, keep: Keep, now: Timestamp) -> bool {
        let Some(at) = self.held_by(claim) else { return false };
        let token = self.grants[at].token;
        self.publications.push(Publication { bytes: bytes.clone(), token, at: now, keep, is_over: false });
        if self.fresh_value(now).is_some() {
            for turn in 0..self.queue.len() {
                let Queued { claim, client, unless_fresh, still_waits, .. } = self.queue[turn];
                if still_waits && unless_fresh {
                    self.leave(turn);
                    self.wakes.push(Woken { claim, client, grant: None });
                }
            }
        }
        true
    }

    fn break_hold(&mut self, token: Token, at_once: bool, now: Timestamp) -> BreakAnswer {
        let Some(at) = self.grants.iter().position(|grant| grant.token == token) else {
            return BreakAnswer::NotHeld;
        };
        let Tenancy { claim, ends_at, units, .. } = self.grants[at];
        let until = match units {
            Units::Free { .. } => return BreakAnswer::NotHeld,
            Units::Resting { until } if !at_once => {
                return BreakAnswer::Resting { free_in: until.since(now) };
            }
            Units::Resting { until } => until,
            Units::Held => {
                self.remember(claim, now + MEMORY);
                ends_at
            }
        };
        let until = if at_once { now } else { until };
        self.end(at, until, now);
        BreakAnswer::Broken { free_in: until.since(now) }
    }

    fn resize(&mut self, capacity: u32, now: Timestamp) -> Result<(), &'static str> {
        if capacity == 0 || capacity > CAPACITY_MAX {
            return Err("capacity");
        }
        // Nobody has asked for it yet, and the first who does says how large it is.
        let Some((kind, old)) = self.shape else { return Ok(()) };
        if !matches!(kind, Kind::Semaphore | Kind::SlotPool) {
            return Err("kind");
        }
        self.shape = Some((kind, capacity));
        self.returned.extend((old..capacity).map(|slot| (slot, self.phase)));
        for turn in 0..self.queue.len() {
            if self.queue[turn].still_waits && self.queue[turn].weight > capacity {
                self.remember(self.queue[turn].claim, now + MEMORY);
                self.leave(turn);
            }
        }
        Ok(())
    }

    fn vanish(&mut self, client: ClientId, now: Timestamp) {
        for at in 0..self.grants.len() {
            if self.grants[at].client == client && self.grants[at].units == Units::Held {
                self.end(at, now + self.grants[at].limits.lock_delay, now);
            }
        }
        for turn in 0..self.queue.len() {
            if self.queue[turn].still_waits && self.queue[turn].client == client {
                self.leave(turn);
            }
        }
    }
}

impl Publication {
    fn fresh_until(&self) -> Timestamp {
        match self.keep {
            Keep::WhileHeld => self.at,
            Keep::For { fresh, .. } => self.at + fresh,
        }
    }

    fn kept_until(&self) -> Option<Timestamp> {
        match self.keep {
            Keep::WhileHeld => None,
            Keep::For { fresh, stale } => Some(self.at + fresh + stale),
        }
    }
}

/// The end that no renewal can pass.
fn latest_end(grant: &Tenancy) -> Timestamp {
    grant.limits.max_hold.map_or(Timestamp::from_micros(u64::MAX), |max_hold| grant.granted_at + max_hold)
}

/// When the units change hands by themselves: from a holder into rest, or from rest into freedom.
fn next_change(grant: &Tenancy) -> Timestamp {
    match grant.units {
        Units::Resting { until } => until,
        Units::Held | Units::Free { .. } => grant.ends_at,
    }
}

/// When the units come free if nobody renews or releases.
fn free_at(grant: &Tenancy) -> Timestamp {
    match grant.units {
        Units::Resting { until } => until,
        Units::Held | Units::Free { .. } => grant.ends_at + grant.limits.lock_delay,
    }
}

fn answer_of(grant: &Tenancy, now: Timestamp) -> Grant {
    Grant { token: grant.token, slot: grant.slot, ends_in: grant.ends_at.since(now) }
}
