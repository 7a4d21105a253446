//! What a client knows of its own claims. The store's lines are the truth; this only says which entries are ours, and
//! when one is not wanted any more although its session goes on for others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Instant;
use tenure_core::model::claim::{ClaimId, Grant, Kind, Terms, Waiting};
use tenure_core::model::step::{FINISHED_MEMORY, confirm_window, waiter_life};

use crate::store::{Leaving, Look, Mine, Resting, SessionId, Wait};

/// A waiter checks whether it has moved up at one heartbeat for so many claims before it: what the waiters of a line
/// of n read for that costs n log n together, and not n².
const PLACES_PER_HEARTBEAT: u32 = 4;
/// Of so many claims before a waiter each is known to it.
const BEFORE_MAX: usize = 8;
/// A waiter that waits for more claims than this reads the line at each heartbeat.
const BLOCKERS_MAX: usize = 8;

/// A claim of this client that has an entry.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) mine: Mine,
    pub(crate) terms: Arc<Terms>,
    /// When it was granted. `None`: it waits.
    pub(crate) granted_at: Option<Instant>,
    /// When it ends unless its user is heard of.
    pub(crate) ends_at: Instant,
    /// An operator has broken it: it only stays until its end.
    pub(crate) is_broken: bool,
    /// It may have published a value.
    pub(crate) has_value: bool,
    /// Its units rest if this client vanishes.
    pub(crate) has_rest: bool,
    /// A copy of its entrance may still be under way.
    pub(crate) may_come_later: bool,
    /// How it stood when its line was read last, while it waits.
    stood: Option<Stood>,
}

/// How a waiter stood.
#[derive(Clone, Debug)]
struct Stood {
    wait: Wait,
    waiting: Waiting,
    /// When it checks whether it has moved up.
    recount_at: Instant,
}

impl Own {
    /// Returns the entry of a claim that waits as far as is known.
    pub(crate) fn waiting(mine: Mine, terms: Arc<Terms>, now: Instant, may_come_later: bool) -> Own {
        let ends_at = now + waiter_life(terms.ttl);
        // Whether it has been prepared already is known to the store alone.
        let has_rest = !terms.limits.lock_delay.is_zero();
        let (granted_at, is_broken, has_value) = (None, false, false);
        Own { mine, terms, granted_at, ends_at, is_broken, has_value, has_rest, may_come_later, stood: None }
    }

    /// Returns an entry that another client has made. Copies of its entrance may be under way from anywhere, and it may have published.
    pub(crate) fn adopted(mine: Mine, terms: Arc<Terms>, now: Instant) -> Own {
        Own { has_value: true, ..Own::waiting(mine, terms, now, true) }
    }

    /// Its line was read at `now`, and it waits in it. Returns what for.
    pub(crate) fn waits(&mut self, waiting: Waiting, look: &Look, now: Instant) -> Wait {
        let blockers = look.line.blockers(self.mine.claim);
        let (before, is_all_before) = look.line.before(self.mine.claim, BEFORE_MAX);
        let entry = look.line.place(self.mine.claim).map(|place| place.entry.clone());
        let (mine, revision, keys) = (self.mine.clone(), look.revision, look.keys);
        let wait = Wait { mine, entry, blockers, before, is_all_before, revision, keys };
        self.stood = Some(Stood { wait: wait.clone(), waiting, recount_at: Instant::default() });
        self.counted(now);
        wait
    }

    /// It checked at `now` whether it has moved up.
    pub(crate) fn counted(&mut self, now: Instant) {
        let heartbeat = confirm_window(self.terms.ttl) / 3;
        if let Some(stood) = self.stood.as_mut().filter(|stood| now >= stood.recount_at) {
            // Half a heartbeat earlier, since they do not come exactly.
            let heartbeats = 2 * (stood.waiting.position / PLACES_PER_HEARTBEAT);
            stood.recount_at = now + (heartbeat / 2) * heartbeats.saturating_sub(1);
        }
    }

    /// Returns what it waits for, whether it checks at `now` if it has moved up, and how it stood; none if its line
    /// must be read.
    pub(crate) fn unread(&self, now: Instant) -> Option<(&Wait, bool, Waiting)> {
        let stood = self.stood.as_ref().filter(|_| self.granted_at.is_none() && !self.terms.unless_fresh)?;
        let is_short = (1..=BLOCKERS_MAX).contains(&stood.wait.blockers.len());
        is_short.then_some((&stood.wait, now >= stood.recount_at, stood.waiting))
    }

    /// Its user was heard of at `now`.
    pub(crate) fn heard_of(&mut self, now: Instant) {
        let life = if self.granted_at.is_some() { self.terms.ttl } else { waiter_life(self.terms.ttl) };
        self.ends_at = self.ends_at.max(now + life).min(self.max_until());
    }

    /// It holds from `now` on.
    pub(crate) fn granted(&mut self, now: Instant) {
        self.granted_at.get_or_insert(now);
        self.ends_at = (now + self.terms.ttl).min(self.max_until());
    }

    fn max_until(&self) -> Instant {
        let max_hold = self.terms.limits.max_hold.zip(self.granted_at);
        max_hold.map_or(Instant::NEVER, |(max_hold, granted_at)| granted_at + max_hold)
    }

    /// Returns the grant for its user, if its session goes on until `alive_until`.
    ///
    /// Its user believes in no more than that, and gives up releasing it then. So unless it is heard of again within
    /// `silence_max`, its end is then, even if its ttl is longer and its session goes on.
    pub(crate) fn grant(&mut self, now: Instant, alive_until: Instant, silence_max: Duration) -> Grant {
        self.ends_at = self.ends_at.min(alive_until.max(now + silence_max));
        let ends_in = self.ends_at.min(alive_until).since(now).min(self.terms.ttl);
        Grant { token: self.mine.token, slot: self.mine.slot, ends_in }
    }

    /// Returns for how long its units rest when it is released at `now`.
    pub(crate) fn rest(&self, now: Instant, is_unused: bool) -> Option<Duration> {
        let granted_at = self.granted_at.filter(|_| !is_unused)?;
        let rest = (granted_at + self.terms.limits.min_hold).since(now);
        Some(rest).filter(|rest| !rest.is_zero())
    }

    /// Returns how it leaves when its user lets go.
    pub(crate) fn leaving(self, rest: Option<Duration>) -> Leaving {
        let terms = self.terms;
        let rest = rest.map(|period| Resting { period, terms: terms.clone() });
        Leaving {
            is_over: false,
            resource: self.mine.resource.clone(),
            claim: self.mine.claim,
            may_have_slot: terms.kind == Kind::SlotPool && self.mine.slot.is_none(),
            may_come_later: self.may_come_later,
            rest,
            has_value: self.has_value,
            has_rest: self.has_rest,
            mine: Some(self.mine),
        }
    }
}

impl Own {
    /// Returns how it leaves when its user was not heard of in time.
    pub(crate) fn over(self) -> Leaving {
        let vanished = self.has_rest && self.granted_at.is_some() && !self.is_broken;
        let rest = vanished.then_some(self.terms.limits.lock_delay);
        Leaving { is_over: true, ..self.leaving(rest) }
    }
}

/// All that a client knows of its claims.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    claims: HashMap<ClaimId, Own>,
    /// Entrances that are not answered, and since when.
    unsure: HashMap<ClaimId, Instant>,
    /// Ids that have ended, and when.
    ended: HashMap<ClaimId, Instant>,
    /// What must leave and has not yet.
    leaving: HashMap<ClaimId, Leaving>,
    /// Entries that were to be taken over from other clients, which is not answered; and when they leave unless it is by then.
    moving: HashMap<ClaimId, (Instant, Leaving)>,
}

impl Owned {
    pub(crate) fn get(&self, claim: ClaimId) -> Option<&Own> {
        self.claims.get(&claim)
    }

    pub(crate) fn get_mut(&mut self, claim: ClaimId) -> Option<&mut Own> {
        self.claims.get_mut(&claim)
    }

    pub(crate) fn put(&mut self, own: Own) {
        self.unsure.remove(&own.mine.claim);
        self.moving.remove(&own.mine.claim);
        self.claims.insert(own.mine.claim, own);
    }

    /// A claim has ended: its id is not used again.
    pub(crate) fn end(&mut self, claim: ClaimId, now: Instant) -> Option<Own> {
        self.ended.insert(claim, now);
        self.unsure.remove(&claim);
        self.claims.remove(&claim)
    }

    pub(crate) fn has_ended(&self, claim: ClaimId) -> bool {
        self.ended.contains_key(&claim)
    }

    /// An entrance is sent: until it is answered, the claim may be in, also if the caller is dropped meanwhile.
    pub(crate) fn begin_entering(&mut self, claim: ClaimId, now: Instant) {
        self.unsure.entry(claim).or_insert(now);
    }

    /// Another client's entry is asked for at `now`. If nobody hears of the answer it is this client's, whose session goes on for
    /// others, and nobody renews it: so it leaves when nobody can believe in it any more.
    pub(crate) fn begin_moving(&mut self, own: Own, holds: bool, now: Instant) {
        let (claim, ends_at) = (own.mine.claim, now + own.terms.ttl);
        let rest = (holds && own.has_rest).then_some(own.terms.limits.lock_delay);
        // A note that its id is finished would end a claim that was not moved. Where it is another's still, it does not leave.
        let leaving = Leaving { may_come_later: false, may_have_slot: false, ..own.leaving(rest) };
        self.moving.insert(claim, (ends_at, leaving));
    }

    /// An entrance was answered: the claim is not in.
    pub(crate) fn end_entering(&mut self, claim: ClaimId) {
        self.unsure.remove(&claim);
    }

    /// Whether an earlier entrance of a claim was not answered.
    pub(crate) fn may_be_in(&self, claim: ClaimId) -> bool {
        self.unsure.contains_key(&claim)
    }

    /// A claim could not leave: it is tried again, once for all callers that asked for it, and as thoroughly as any
    /// of them did.
    pub(crate) fn leave_later(&mut self, leaving: Leaving) {
        let Leaving { may_have_slot, may_come_later, has_value, has_rest, .. } = leaving;
        let known = self.leaving.entry(leaving.claim).or_insert(leaving);
        known.may_have_slot |= may_have_slot;
        known.may_come_later |= may_come_later;
        known.has_value |= has_value;
        known.has_rest |= has_rest;
    }

    /// A session has ended, and with it all that was entered in it. Returns the claims that ended.
    pub(crate) fn died(&mut self, session_id: SessionId, now: Instant) -> Vec<ClaimId> {
        let gone: Vec<ClaimId> = self
            .claims
            .values()
            .filter(|own| own.mine.session_id == session_id)
            .map(|own| own.mine.claim)
            .collect();
        gone.iter().for_each(|claim| drop(self.end(*claim, now)));
        self.leaving
            .retain(|_, leaving| leaving.mine.as_ref().is_none_or(|mine| mine.session_id != session_id));
        self.moving
            .retain(|_, (_, leaving)| leaving.mine.as_ref().is_none_or(|mine| mine.session_id != session_id));
        gone
    }

    /// Takes what is not wanted any more, or could not leave before.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<Leaving> {
        self.ended.retain(|_, at| now.since(*at) < FINISHED_MEMORY);
        self.unsure.retain(|_, at| now.since(*at) < FINISHED_MEMORY);
        let due: Vec<ClaimId> =
            self.claims.values().filter(|own| own.ends_at <= now).map(|own| own.mine.claim).collect();
        let mut leaving: Vec<Leaving> = std::mem::take(&mut self.leaving).into_values().collect();
        leaving.extend(due.into_iter().filter_map(|claim| self.end(claim, now)).map(Own::over));
        leaving.extend(self.moving.extract_if(|_, (at, _)| *at <= now).map(|(_, (_, leaving))| leaving));
        leaving
    }

    /// Whether there is nothing to sweep.
    pub(crate) fn is_idle(&self) -> bool {
        self.claims.is_empty()
            && self.leaving.is_empty()
            && self.ended.is_empty()
            && self.unsure.is_empty()
            && self.moving.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::model::claim::Name;

    use super::*;

    #[test]
    fn what_leaves_later_leaves_once_and_as_thoroughly_as_anybody_asked() {
        let leaving = |may_come_later, has_value| Leaving {
            resource: Name::new("m").unwrap(),
            claim: ClaimId::new(1),
            mine: None,
            may_have_slot: false,
            may_come_later,
            is_over: false,
            rest: None,
            has_value,
            has_rest: false,
        };
        let mut owned = Owned::default();
        owned.leave_later(leaving(false, true));
        owned.leave_later(leaving(true, false));
        let due = owned.take_due(Instant::default());
        assert_eq!(due.len(), 1, "once for both");
        assert!(due[0].may_come_later && due[0].has_value, "{due:?}");
        assert!(owned.is_idle(), "it is nobody's any more until it fails again");
    }
}
