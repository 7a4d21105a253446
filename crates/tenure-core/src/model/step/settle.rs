//! What every command's step does: it ends what has ended, grants what fits, and frees what is given back.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::claim::{
    Busy, Claim, ClaimId, ClientId, Grant, HoldLimits, Kind, Label, Published, Waiting,
};
use crate::model::record::{Head, Hold, POSITION_EXACT_MAX, Record, Waiter};
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

/// How many holds are read to name the holder in a refusal.
const HOLDERS_READ_MAX: usize = 16;

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
pub struct Transition<A> {
    /// What the command answers.
    pub answer: A,
    /// The clients to wake.
    pub wakes: Vec<Woken>,
    /// Waiters behind one that left the queue without a grant: another entry is ahead of them now.
    pub moved_up: Vec<(ClientId, ClaimId)>,
}

/// A step under way. A [`Command`](super::Command) runs in it; what it has to offer is for this module's commands only.
#[derive(Debug)]
pub struct Step<'a, R> {
    pub(super) record: &'a mut R,
    pub(super) head: Head,
    pub(super) now: Timestamp,
    pub(super) wakes: Vec<Woken>,
    pub(super) moved_up: Vec<(ClientId, ClaimId)>,
}

impl<'a, R: Record> Step<'a, R> {
    pub(super) fn new(record: &'a mut R, head: Head, now: Timestamp) -> Step<'a, R> {
        Step { record, head, now, wakes: Vec::new(), moved_up: Vec::new() }
    }

    pub(super) fn settle(&mut self) -> Result<(), R::Error> {
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
            let lock_delay =
                if mutant!("lock-delay-ignored") { Duration::ZERO } else { hold.limits.lock_delay };
            let rest_until = hold.expires_at + lock_delay;
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
            && let Some(waiter) = match self.record.waiter_behind(0)? {
                Some(_) if mutant!("last-in-first-out") => self.record.waiters(usize::MAX)?.pop(),
                first => first,
            }
            && self.fits(waiter.weight)
            && self.has_tokens(Token::ZERO)
        {
            self.record.remove_waiter(waiter.place)?;
            self.head.waiting = self.head.waiting.saturating_sub(1);
            let (claim, client) = (waiter.claim, waiter.client);
            let grant = self.grant(Party::from(waiter), Token::ZERO, false)?;
            self.wakes.push(Woken { claim, client, grant: Some(grant) });
        }
        Ok(())
    }

    pub(super) fn fits(&self, weight: u32) -> bool {
        self.head
            .used
            .checked_add(weight)
            .is_some_and(|used| used <= self.head.capacity + u32::from(mutant!("capacity-off-by-one")))
    }

    /// Whether a larger token exists. A forced floor or a very wrong clock can use them up, and then nothing
    /// is granted any more.
    pub(super) fn has_tokens(&self, floor: Token) -> bool {
        self.head.last_token.max(floor) < Token::new(u64::MAX)
    }

    pub(super) fn grant(
        &mut self,
        party: Party,
        floor: Token,
        is_confirmed: bool,
    ) -> Result<Grant, R::Error> {
        assert!(self.fits(party.weight), "a grant must fit the free capacity");
        let token = Token::next(self.head.last_token, self.now, floor);
        assert!(token > self.head.last_token, "tokens must grow");
        self.head.last_token = token;
        self.head.used = self.head.used.saturating_add(party.weight);
        let slot = if self.head.kind == Kind::SlotPool { Some(self.take_slot()?) } else { None };
        let life = if is_confirmed || mutant!("unheard-grants-last") {
            party.ttl
        } else {
            confirm_window(party.ttl)
        };
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
            self.head.fresh_slots = self.head.fresh_slots.saturating_add(1);
            return Ok(self.head.fresh_slots - 1);
        }
        let slot = self.record.pop_free_slot()?;
        Ok(slot.expect("units that fit have a free slot: fewer slots are held than there are"))
    }

    pub(super) fn grant_of(&self, hold: &Hold) -> Grant {
        Grant { token: hold.token, slot: hold.slot, ends_in: hold.expires_at.since(self.now) }
    }

    /// Ends a hold: its units rest until then, or come free if they have rested already.
    pub(super) fn end_hold(&mut self, mut hold: Hold, rest_until: Timestamp) -> Result<(), R::Error> {
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
        self.head.used = self.head.used.saturating_sub(hold.weight);
        match hold.slot {
            // Beyond the capacity of a resize: the slot is gone, until another resize brings it back.
            Some(slot) if slot < self.head.capacity => self.record.push_free_slot(slot),
            _ => Ok(()),
        }
    }

    pub(super) fn finish_claim(&mut self, claim: ClaimId, at: Timestamp) -> Result<(), R::Error> {
        let until = at + FINISHED_MEMORY;
        if until > self.now && !mutant!("finished-claims-forgotten") {
            self.record.put_finished(claim, until)
        } else {
            Ok(())
        }
    }

    /// Removes a waiter that leaves without a grant.
    pub(super) fn remove_waiter(&mut self, waiter: &Waiter) -> Result<(), R::Error> {
        self.record.remove_waiter(waiter.place)?;
        self.head.waiting = self.head.waiting.saturating_sub(1);
        if let Some(next) = self.record.waiter_behind(waiter.place)? {
            self.moved_up.push((next.client, next.claim));
        }
        Ok(())
    }

    /// What a waiter is told.
    pub(super) fn waiting(&self, waiter: &Waiter) -> Result<Waiting, R::Error> {
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
        Ok(Waiting { position, horizon: self.head.last_token, look_in })
    }

    /// What a refused claim is told.
    pub(super) fn busy(&self) -> Result<Busy, R::Error> {
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

    /// The value, while it is fresh.
    pub(super) fn fresh_value(&self) -> Result<Option<Published>, R::Error> {
        let value = self.record.value()?.filter(|value| value.fresh_until > self.now);
        Ok(value.map(|value| Published {
            fresh_for: value.fresh_until.since(self.now),
            bytes: value.bytes,
            token: value.token,
        }))
    }

    /// Grants what the command has made possible, and puts the head away.
    pub(super) fn finish<A>(mut self, answer: A) -> Result<Transition<A>, R::Error> {
        self.grant_waiters()?;
        let was_idle = self.record.head()?.is_some_and(|head| head.is_idle());
        if self.head.is_idle() && !was_idle {
            self.head.idle_since = self.now;
        }
        self.record.set_head(self.head)?;
        Ok(Transition { answer, wakes: self.wakes, moved_up: self.moved_up })
    }
}

/// Moves the end of a hold to `until`, never back, and never beyond its `max_hold`.
pub(super) fn extend(hold: &mut Hold, until: Timestamp) {
    let until = hold
        .max_until()
        .filter(|_| !mutant!("max-hold-ignored"))
        .map_or(until, |max_until| until.min(max_until));
    hold.expires_at = hold.expires_at.max(until);
}

/// Whether a hold is a grant to a waiter of whom nobody has heard since, and its end shows it. Where a renewal would not have moved its end
/// beyond the confirm window, a store that keeps no mark cannot know; and there it ends as soon by itself.
pub(super) fn is_surely_unconfirmed(hold: &Hold) -> bool {
    let is_told = hold.limits.max_hold.is_none_or(|max_hold| max_hold > CONFIRM_WINDOW_MAX);
    is_told && hold.ttl > CONFIRM_WINDOW_MAX && !hold.is_confirmed
}

/// What a grant is made to: a claim, or a waiter that was one.
pub(super) struct Party {
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
