//! The whole protocol as a pure function: what is right for every engine.
//!
//! [`step`] takes a resource's record, one command and the store's time; it changes the record and returns the answer
//! and the clients to wake. It does no I/O and reads no clock, so a hosted engine runs it inside a transaction of its
//! store, a native engine's scripts are compared with it, and the tests compare it with a naive oracle.
//!
//! Every command but [`inspect`](crate::model::inspect::inspect) first *settles* the record: what ended by `now` goes, and while the head of
//! the queue fits into the free capacity it is granted. Invariants, kept on every path:
//!
//! * Units held and resting never exceed the capacity when a grant is made.
//! * No claim overtakes the head of the queue.
//! * Each grant's token is larger than every token given before.
//! * A claim id is in at most one place: a hold, a waiter, or among the finished.
//! * A hold's end moves only forward, and only while it has not come.
//!
//! A new command also needs: a line in the oracle of the tests, the scripts of native engines, `docs/concepts/`.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::claim::{
    Busy, CAPACITY_MAX, Claim, ClaimId, ClientId, Grant, HoldLimits, Keep, Kind, Label, Published,
    WAITERS_MAX, Waiting,
};
use crate::model::record::{Head, Hold, POSITION_EXACT_MAX, Record, Value, Waiter};
use crate::model::token::Token;

/// The longest that a grant to a waiter lives before its first renewal.
pub const CONFIRM_WINDOW_MAX: Duration = Duration::from_secs(5);
/// The longest that a waiter lives without a heartbeat.
pub const WAITER_LIFE_MAX: Duration = Duration::from_secs(15);
/// How long a finished claim id is remembered: longer than any copy of a request can be under way.
pub const FINISHED_MEMORY: Duration = Duration::from_secs(60);
/// How long an idle record is kept where the store's clock could go back.
pub const TOKEN_MEMORY: Duration = Duration::from_secs(3600);

/// How long a grant to a waiter lives before it is confirmed.
pub fn confirm_window(ttl: Duration) -> Duration {
    ttl.min(CONFIRM_WINDOW_MAX)
}

/// How long a waiter lives without a heartbeat.
pub fn waiter_life(ttl: Duration) -> Duration {
    ttl.min(WAITER_LIFE_MAX)
}

/// What can be asked of a record.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Command<'a> {
    /// Grant, queue or refuse a claim.
    Claim(&'a Claim),
    /// Extend a hold, confirm a grant, or keep a waiter's place.
    Renew(ClaimId),
    /// End a hold or withdraw a waiter.
    Release(Release),
    /// Set the value under a hold.
    Publish {
        /// The claim that holds.
        claim: ClaimId,
        /// The bytes.
        bytes: std::sync::Arc<[u8]>,
        /// How long they live.
        keep: Keep,
    },
    /// An operator ends a hold.
    Break {
        /// The token of the hold.
        token: Token,
        /// Free its units at once; otherwise they rest until the hold's end, so that its work can stop.
        at_once: bool,
    },
    /// An operator changes the capacity.
    Resize(u32),
    /// An engine knows that a client is dead: all that it holds or waits for here ends now.
    Vanish(ClientId),
    /// Nothing but settle.
    Settle,
}

/// A release, and what is known about other copies of its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The claim.
    pub claim: ClaimId,
    /// A copy of the claim may still be under way: remember the id, so that it is not granted afterwards.
    pub maybe_in_flight: bool,
    /// The grant never reached its user, so `min_hold` does not count.
    pub is_unused: bool,
}

/// What to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The claim holds.
    Granted(Grant),
    /// The claim waits.
    Waiting(Waiting),
    /// The claim was refused; others hold.
    Busy(Busy),
    /// The claim was answered by a fresh value.
    Fresh(Published),
    /// The claim's id has been used and has ended.
    Finished,
    /// The hold was extended.
    Renewed(Grant),
    /// The claim neither holds nor waits.
    Lost,
    /// The claim held or waited, and does not any more.
    Released,
    /// There was nothing to release.
    AlreadyLost,
    /// The value is set.
    Published,
    /// The hold is broken; its units come free after this long.
    Broken {
        /// Zero if they are free.
        free_in: Duration,
    },
    /// Nothing is changed: the units of the hold rest already, and come free after this long.
    Resting {
        /// From now on.
        free_in: Duration,
    },
    /// The capacity is changed.
    Resized,
    /// Settled.
    Settled,
    /// The name is in use with another kind or capacity.
    Conflict {
        /// The kind in use.
        kind: Kind,
        /// The capacity in use.
        capacity: u32,
    },
    /// The floor lies too far ahead of the store's clock: one of the two is wrong.
    FloorAhead {
        /// The store's clock.
        now: Timestamp,
    },
    /// The queue is full.
    QueueFull,
    /// The command does not make sense for this resource.
    Invalid(&'static str),
}

/// A waiter to be woken since its wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Woken {
    /// The claim.
    pub claim: ClaimId,
    /// Whose it is.
    pub client: ClientId,
    /// What it got. `None`: a fresh value answers it; it should claim anew and will be given the value.
    pub grant: Option<Grant>,
}

/// All that a step did beside changing the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The answer.
    pub outcome: Outcome,
    /// The clients to wake.
    pub wakes: Vec<Woken>,
    /// Waiters behind one that left the queue without a grant: another entry is ahead of them now.
    pub moved_up: Vec<(ClientId, ClaimId)>,
    /// The last token lies ahead of the store's clock, which has been wrong at some time.
    pub is_token_ahead: bool,
}

/// Carries out a command.
///
/// # Errors
/// Those of the store.
pub fn step<R: Record>(
    record: &mut R,
    command: &Command<'_>,
    now: Timestamp,
) -> Result<Transition, R::Error> {
    let Some(head) = record.head()? else { return step_on_nothing(record, command, now) };
    let mut step = Step { record, head, now, wakes: Vec::new(), moved_up: Vec::new() };
    step.settle()?;
    let outcome = match command {
        Command::Claim(claim) => step.claim(claim)?,
        Command::Renew(claim) => step.renew(*claim)?,
        Command::Release(release) => step.release(*release)?,
        Command::Publish { claim, bytes, keep } => step.publish(*claim, bytes, *keep)?,
        Command::Break { token, at_once } => step.break_hold(*token, *at_once)?,
        Command::Resize(capacity) => step.resize(*capacity)?,
        Command::Vanish(client) => step.vanish(*client)?,
        Command::Settle => Outcome::Settled,
    };
    step.finish(outcome)
}

fn step_on_nothing<R: Record>(
    record: &mut R,
    command: &Command<'_>,
    now: Timestamp,
) -> Result<Transition, R::Error> {
    let quiet =
        |outcome| Ok(Transition { outcome, wakes: Vec::new(), moved_up: Vec::new(), is_token_ahead: false });
    // Kind and capacity of a record that holds nothing but finished claims do not matter: it is idle. A
    // semaphore can be resized, as what is not stored can.
    let head = match command {
        Command::Claim(claim) => Head::new(claim.terms.kind, claim.terms.capacity),
        Command::Release(release) if release.maybe_in_flight => Head::new(Kind::Semaphore, 1),
        Command::Release(_) => return quiet(Outcome::AlreadyLost),
        Command::Resize(capacity) if !is_capacity(*capacity) => return quiet(BAD_CAPACITY),
        Command::Resize(_) => return quiet(Outcome::Resized),
        Command::Vanish(_) | Command::Settle => return quiet(Outcome::Settled),
        Command::Renew(_) | Command::Publish { .. } | Command::Break { .. } => return quiet(Outcome::Lost),
    };
    let mut step = Step { record, head, now, wakes: Vec::new(), moved_up: Vec::new() };
    let outcome = match command {
        Command::Claim(claim) => step.claim(claim)?,
        Command::Release(release) => step.release(*release)?,
        _ => unreachable!("every other command has returned"),
    };
    if matches!(outcome, Outcome::FloorAhead { .. } | Outcome::Invalid(_)) {
        return quiet(outcome);
    }
    step.finish(outcome)
}

/// When a store may forget a record, none while it is in use.
///
/// `is_monotonic` says that the store's clock never goes back, not even over a restart; then the clock alone
/// keeps the tokens growing, and an idle record has nothing to remember but finished claims, its value, and
/// which slot has been free longest.
///
/// # Errors
/// Those of the store.
pub fn forget_at<R: Record>(
    record: &R,
    is_monotonic: bool,
    now: Timestamp,
) -> Result<Option<Timestamp>, R::Error> {
    let Some(head) = record.head()? else { return Ok(None) };
    if !head.is_idle() {
        return Ok(None);
    }
    let needs_memory = !is_monotonic || head.fresh_slots > 0;
    let mut at = if needs_memory { head.idle_since + TOKEN_MEMORY } else { now };
    // From the next microsecond on the clock gives a larger token by itself.
    at = at.max(Timestamp::from_micros(head.last_token.get().saturating_add(1)));
    if let Some(until) = record.finished_until()? {
        at = at.max(until);
    }
    if let Some(until) = record.value()?.and_then(|value| value.keep_until) {
        at = at.max(until);
    }
    Ok(Some(at))
}

struct Step<'a, R> {
    record: &'a mut R,
    head: Head,
    now: Timestamp,
    wakes: Vec<Woken>,
    moved_up: Vec<(ClientId, ClaimId)>,
}

impl<R: Record> Step<'_, R> {
    fn settle(&mut self) -> Result<(), R::Error> {
        loop {
            self.end_what_has_ended()?;
            let granted = self.wakes.len();
            self.grant_waiters()?;
            // A ttl or max_hold of zero: the grant has ended too, and the next waiter is due. A hold that has
            // ended must not meet a command.
            let has_ended = |woken: &Woken| woken.grant.is_some_and(|grant| grant.ends_in.is_zero());
            if !self.wakes[granted..].iter().any(has_ended) {
                return Ok(());
            }
        }
    }

    fn end_what_has_ended(&mut self) -> Result<(), R::Error> {
        while let Some(hold) = self.record.next_hold_to_end()? {
            if hold.expires_at > self.now {
                break;
            }
            // It was not released, so a copy of its claim may still be under way.
            if let Some(claim) = hold.claim {
                self.finish_claim(claim, hold.expires_at)?;
            }
            let rest_until = hold.expires_at + hold.limits.lock_delay;
            self.end_hold(hold, rest_until)?;
        }
        while let Some(waiter) = self.record.next_waiter_to_end()? {
            if waiter.expires_at > self.now {
                break;
            }
            self.finish_claim(waiter.claim, waiter.expires_at)?;
            self.remove_waiter(&waiter)?;
        }
        self.record.forget_finished(self.now)?;
        if let Some(value) = self.record.value()?
            && value.keep_until.is_some_and(|until| until <= self.now)
        {
            self.record.set_value(None)?;
        }
        Ok(())
    }

    /// Grants from the head of the queue for as long as it fits.
    fn grant_waiters(&mut self) -> Result<(), R::Error> {
        while self.head.waiting > 0
            && let Some(waiter) = self.record.waiter_behind(0)?
            && self.fits(waiter.weight)
            && self.has_tokens(Token::ZERO)
        {
            self.record.remove_waiter(waiter.place)?;
            self.head.waiting -= 1;
            let (claim, client) = (waiter.claim, waiter.client);
            let grant = self.grant(Party::from(waiter), Token::ZERO, false)?;
            self.wakes.push(Woken { claim, client, grant: Some(grant) });
        }
        Ok(())
    }

    fn fits(&self, weight: u32) -> bool {
        self.head.used.checked_add(weight).is_some_and(|used| used <= self.head.capacity)
    }

    /// Whether a larger token exists. A forced floor or a very wrong clock can use them up, and then nothing
    /// is granted any more.
    fn has_tokens(&self, floor: Token) -> bool {
        self.head.last_token.max(floor) < Token::new(u64::MAX)
    }

    fn grant(&mut self, party: Party, floor: Token, is_confirmed: bool) -> Result<Grant, R::Error> {
        assert!(self.fits(party.weight), "a grant must fit the free capacity");
        let token = Token::next(self.head.last_token, self.now, floor);
        assert!(token > self.head.last_token, "tokens must grow");
        self.head.last_token = token;
        self.head.used += party.weight;
        let slot = if self.head.kind == Kind::SlotPool { Some(self.take_slot()?) } else { None };
        let life = if is_confirmed { party.ttl } else { confirm_window(party.ttl) };
        let mut hold = Hold {
            claim: Some(party.claim),
            client: party.client,
            weight: party.weight,
            slot,
            token,
            granted_at: self.now,
            expires_at: self.now,
            is_confirmed,
            ttl: party.ttl,
            limits: party.limits,
            label: party.label,
        };
        extend(&mut hold, self.now + life);
        let grant = self.grant_of(&hold);
        self.record.put_hold(hold)?;
        Ok(grant)
    }

    /// Takes the slot that has been free longest: one never granted, else the first that came free.
    fn take_slot(&mut self) -> Result<u32, R::Error> {
        if self.head.fresh_slots < self.head.capacity {
            self.head.fresh_slots += 1;
            return Ok(self.head.fresh_slots - 1);
        }
        let slot = self.record.pop_free_slot()?;
        Ok(slot.expect("units that fit have a free slot: fewer slots are held than there are"))
    }

    fn grant_of(&self, hold: &Hold) -> Grant {
        Grant { token: hold.token, slot: hold.slot, ends_in: hold.expires_at.since(self.now) }
    }

    /// Ends a hold: its units rest until then, or come free if they have rested already.
    fn end_hold(&mut self, mut hold: Hold, rest_until: Timestamp) -> Result<(), R::Error> {
        if hold.claim.take().is_none() {
            return self.free(&hold);
        }
        if self.record.value()?.is_some_and(|value| value.keep_until.is_none() && value.token == hold.token) {
            self.record.set_value(None)?;
        }
        // A rest that is over already goes through the record too, so that slots come free in the order in
        // which their rests ended.
        if rest_until > self.now.min(hold.expires_at) {
            hold.expires_at = rest_until;
            return self.record.put_hold(hold);
        }
        self.free(&hold)
    }

    fn free(&mut self, hold: &Hold) -> Result<(), R::Error> {
        self.record.remove_hold(hold.token)?;
        self.head.used -= hold.weight;
        match hold.slot {
            // Beyond the capacity of a resize: the slot is gone, until another resize brings it back.
            Some(slot) if slot < self.head.capacity => self.record.push_free_slot(slot),
            _ => Ok(()),
        }
    }

    fn finish_claim(&mut self, claim: ClaimId, at: Timestamp) -> Result<(), R::Error> {
        let until = at + FINISHED_MEMORY;
        if until > self.now { self.record.put_finished(claim, until) } else { Ok(()) }
    }

    /// Removes a waiter that leaves without a grant.
    fn remove_waiter(&mut self, waiter: &Waiter) -> Result<(), R::Error> {
        self.record.remove_waiter(waiter.place)?;
        self.head.waiting -= 1;
        if let Some(next) = self.record.waiter_behind(waiter.place)? {
            self.moved_up.push((next.client, next.claim));
        }
        Ok(())
    }

    fn claim(&mut self, claim: &Claim) -> Result<Outcome, R::Error> {
        let terms = &*claim.terms;
        if self.record.is_finished(claim.id)? {
            return Ok(Outcome::Finished);
        }
        if let Some(outcome) = self.renew_existing(claim.id)? {
            return Ok(match outcome {
                Outcome::Renewed(grant) => Outcome::Granted(grant),
                other => other,
            });
        }
        let is_alike = (terms.kind, terms.capacity) == (self.head.kind, self.head.capacity);
        if !is_alike && !self.head.is_idle() {
            return Ok(Outcome::Conflict { kind: self.head.kind, capacity: self.head.capacity });
        }
        if terms.weight == 0 || terms.weight > terms.capacity {
            return Ok(Outcome::Invalid("the weight does not fit the capacity"));
        }
        if claim.floor.is_ahead_of(self.now) && !claim.floor_forced {
            return Ok(Outcome::FloorAhead { now: self.now });
        }
        if !self.has_tokens(claim.floor) {
            return Ok(Outcome::Invalid(
                "the tokens are used up: a floor or the store's clock was very wrong",
            ));
        }
        if terms.unless_fresh
            && let Some(value) = self.fresh_value()?
        {
            return Ok(Outcome::Fresh(value));
        }
        // Only now, so that a refusal leaves no trace: an idle record grants whatever has come so far.
        if !is_alike {
            self.record.remove_free_slots(0)?;
            self.head.kind = terms.kind;
            self.head.capacity = terms.capacity;
            self.head.fresh_slots = 0;
        }
        if self.head.waiting == 0 && self.fits(terms.weight) {
            return Ok(Outcome::Granted(self.grant(Party::from(claim), claim.floor, true)?));
        }
        if !claim.wait {
            return Ok(Outcome::Busy(self.busy()?));
        }
        if self.head.waiting >= WAITERS_MAX {
            return Ok(Outcome::QueueFull);
        }
        self.enqueue(claim)
    }

    fn enqueue(&mut self, claim: &Claim) -> Result<Outcome, R::Error> {
        // The grant will be larger than the last token, and with this larger than the floor.
        self.head.last_token = self.head.last_token.max(claim.floor);
        let terms = &*claim.terms;
        let waiter = Waiter {
            place: self.head.next_place,
            claim: claim.id,
            client: claim.client,
            weight: terms.weight,
            expires_at: self.now + waiter_life(terms.ttl),
            ttl: terms.ttl,
            limits: terms.limits,
            label: terms.label.clone(),
            unless_fresh: terms.unless_fresh,
        };
        self.head.next_place += 1;
        self.head.waiting += 1;
        self.record.put_waiter(waiter.clone())?;
        self.waiting(&waiter)
    }

    fn waiting(&self, waiter: &Waiter) -> Result<Outcome, R::Error> {
        let ahead = self.record.waiters_ahead(waiter.place, POSITION_EXACT_MAX)?;
        let position = if ahead < POSITION_EXACT_MAX {
            ahead + 1
        } else {
            let first = self.record.waiter_behind(0)?.map_or(waiter.place, |first| first.place);
            u32::try_from(waiter.place - first).unwrap_or(u32::MAX).saturating_add(1)
        };
        let look_in = match self.record.next_hold_to_end()? {
            Some(hold) if position == 1 => Some(hold.expires_at.since(self.now)),
            _ => None,
        };
        Ok(Outcome::Waiting(Waiting { position, horizon: self.head.last_token, look_in }))
    }

    fn busy(&self) -> Result<Busy, R::Error> {
        let mut busy = Busy::new(self.head.last_token, self.head.waiting);
        busy.free_in = self.record.next_hold_to_end()?.map(|hold| {
            // If it is not released, its holder has vanished.
            let rest = if hold.claim.is_some() { hold.limits.lock_delay } else { Duration::ZERO };
            (hold.expires_at + rest).since(self.now)
        });
        let holds = self.record.holds(HOLDERS_READ_MAX)?;
        let shown = holds.iter().find(|hold| hold.claim.is_some()).or(holds.first());
        if let Some(hold) = shown {
            busy.holder = Some(hold.label.clone());
            busy.token = hold.token;
            busy.held_for = self.now.since(hold.granted_at);
            busy.is_resting = hold.claim.is_none();
        }
        Ok(busy)
    }

    fn fresh_value(&self) -> Result<Option<Published>, R::Error> {
        let value = self.record.value()?.filter(|value| value.fresh_until > self.now);
        Ok(value.map(|value| Published {
            fresh_for: value.fresh_until.since(self.now),
            bytes: value.bytes,
            token: value.token,
        }))
    }

    fn renew(&mut self, claim: ClaimId) -> Result<Outcome, R::Error> {
        Ok(self.renew_existing(claim)?.unwrap_or(Outcome::Lost))
    }

    fn renew_existing(&mut self, claim: ClaimId) -> Result<Option<Outcome>, R::Error> {
        if let Some(mut hold) = self.record.hold_of(claim)? {
            assert!(hold.expires_at > self.now, "a hold that has ended is never renewed");
            hold.is_confirmed = true;
            let until = self.now + hold.ttl;
            extend(&mut hold, until);
            let grant = self.grant_of(&hold);
            self.record.put_hold(hold)?;
            return Ok(Some(Outcome::Renewed(grant)));
        }
        if let Some(mut waiter) = self.record.waiter_of(claim)? {
            waiter.expires_at = waiter.expires_at.max(self.now + waiter_life(waiter.ttl));
            self.record.put_waiter(waiter.clone())?;
            return self.waiting(&waiter).map(Some);
        }
        Ok(None)
    }

    fn release(&mut self, release: Release) -> Result<Outcome, R::Error> {
        let outcome = if let Some(hold) = self.record.hold_of(release.claim)? {
            let rest = if release.is_unused { Duration::ZERO } else { hold.limits.min_hold };
            // Counted from now where that is sooner: the clock has been set back since the grant.
            let rest_until = hold.granted_at.min(self.now) + rest;
            self.end_hold(hold, rest_until)?;
            Outcome::Released
        } else if let Some(waiter) = self.record.waiter_of(release.claim)? {
            self.remove_waiter(&waiter)?;
            Outcome::Released
        } else {
            Outcome::AlreadyLost
        };
        if release.maybe_in_flight {
            self.finish_claim(release.claim, self.now)?;
        }
        Ok(outcome)
    }

    fn publish(
        &mut self,
        claim: ClaimId,
        bytes: &std::sync::Arc<[u8]>,
        keep: Keep,
    ) -> Result<Outcome, R::Error> {
        let Some(hold) = self.record.hold_of(claim)? else { return Ok(Outcome::Lost) };
        let (fresh_until, keep_until) = match keep {
            Keep::WhileHeld => (self.now, None),
            Keep::For { fresh, stale } => (self.now + fresh, Some(self.now + fresh + stale)),
        };
        let value = Value { bytes: bytes.clone(), token: hold.token, fresh_until, keep_until };
        self.record.set_value(Some(value))?;
        if fresh_until > self.now {
            for waiter in self.record.waiters(WAITERS_MAX as usize)? {
                if waiter.unless_fresh {
                    self.remove_waiter(&waiter)?;
                    self.wakes.push(Woken { claim: waiter.claim, client: waiter.client, grant: None });
                }
            }
        }
        Ok(Outcome::Published)
    }

    fn break_hold(&mut self, token: Token, at_once: bool) -> Result<Outcome, R::Error> {
        let Some(hold) = self.record.hold(token)? else { return Ok(Outcome::Lost) };
        let (now, expires_at) = (self.now, hold.expires_at);
        if let Some(claim) = hold.claim {
            self.finish_claim(claim, now)?;
        }
        if at_once {
            self.end_hold(hold, now)?;
            return Ok(Outcome::Broken { free_in: Duration::ZERO });
        }
        let free_in = expires_at.since(now);
        if hold.claim.is_none() {
            return Ok(Outcome::Resting { free_in });
        }
        self.end_hold(hold, expires_at)?;
        Ok(Outcome::Broken { free_in })
    }

    fn resize(&mut self, capacity: u32) -> Result<Outcome, R::Error> {
        if !is_capacity(capacity) {
            return Ok(BAD_CAPACITY);
        }
        if !matches!(self.head.kind, Kind::Semaphore | Kind::SlotPool) {
            return Ok(Outcome::Invalid("only semaphores and slot pools have a capacity to change"));
        }
        let old = std::mem::replace(&mut self.head.capacity, capacity);
        if self.head.fresh_slots > capacity {
            self.record.remove_free_slots(capacity)?;
        }
        // Slots that were taken away before, and come back: free since now, for they may just have been held.
        for slot in old..capacity.min(self.head.fresh_slots) {
            if !self.record.is_slot_held(slot)? {
                self.record.push_free_slot(slot)?;
            }
        }
        // What can never fit any more would block every waiter behind it for ever.
        for waiter in self.record.waiters(WAITERS_MAX as usize)? {
            if waiter.weight > capacity {
                self.remove_waiter(&waiter)?;
                self.finish_claim(waiter.claim, self.now)?;
            }
        }
        Ok(Outcome::Resized)
    }

    fn vanish(&mut self, client: ClientId) -> Result<Outcome, R::Error> {
        let now = self.now;
        let (mut holds, mut waiters) = (Vec::new(), Vec::new());
        for claim in self.record.claims_of(client)? {
            holds.extend(self.record.hold_of(claim)?);
            waiters.extend(self.record.waiter_of(claim)?);
        }
        // A store names the claims in any order, but the order in which slots come free is the same for all.
        holds.sort_unstable_by_key(|hold| hold.token);
        waiters.sort_unstable_by_key(|waiter| waiter.place);
        for hold in holds {
            let rest_until = now + hold.limits.lock_delay;
            self.end_hold(hold, rest_until)?;
        }
        for waiter in waiters {
            self.remove_waiter(&waiter)?;
        }
        Ok(Outcome::Settled)
    }

    fn finish(mut self, outcome: Outcome) -> Result<Transition, R::Error> {
        self.grant_waiters()?;
        let was_idle = self.record.head()?.is_some_and(|head| head.is_idle());
        if self.head.is_idle() && !was_idle {
            self.head.idle_since = self.now;
        }
        let is_token_ahead = self.head.last_token.get() > (self.now + TOKEN_AHEAD_WARNING).micros();
        self.record.set_head(self.head)?;
        Ok(Transition { outcome, wakes: self.wakes, moved_up: self.moved_up, is_token_ahead })
    }
}

/// How far the last token may lie ahead of the store's clock unmentioned. Many grants in one microsecond, or
/// an honest floor, put it a little ahead.
const TOKEN_AHEAD_WARNING: Duration = Duration::from_secs(1);

/// How many holds are read to name the holder in a refusal.
const HOLDERS_READ_MAX: usize = 16;

const BAD_CAPACITY: Outcome = Outcome::Invalid("the capacity is out of range");

fn is_capacity(capacity: u32) -> bool {
    (1..=CAPACITY_MAX).contains(&capacity)
}

/// Moves the end of a hold to `until`, never back, and never beyond its `max_hold`.
fn extend(hold: &mut Hold, until: Timestamp) {
    let until = hold.max_until().map_or(until, |max_until| until.min(max_until));
    hold.expires_at = hold.expires_at.max(until);
}

/// What a grant is made to: a claim, or a waiter that was one.
struct Party {
    claim: ClaimId,
    client: ClientId,
    weight: u32,
    ttl: Duration,
    limits: HoldLimits,
    label: Label,
}

impl From<&Claim> for Party {
    fn from(claim: &Claim) -> Party {
        Party {
            claim: claim.id,
            client: claim.client,
            weight: claim.terms.weight,
            ttl: claim.terms.ttl,
            limits: claim.terms.limits,
            label: claim.terms.label.clone(),
        }
    }
}

impl From<Waiter> for Party {
    fn from(waiter: Waiter) -> Party {
        Party {
            claim: waiter.claim,
            client: waiter.client,
            weight: waiter.weight,
            ttl: waiter.ttl,
            limits: waiter.limits,
            label: waiter.label,
        }
    }
}
