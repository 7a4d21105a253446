//! The ledger's other half: what is answered, what wakes it, and what time brings.

use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::watch::end_of;
use super::{
    AcquireRequest, ClaimOutcome, Entry, Key, Lanes, Ledger, Now, Phase, Sent, deadline, entry_of,
    lease_deadline,
};
use crate::client::backoff;
use crate::client::batch::Lane;
use crate::client::lease_state::LeaseState;
use crate::client::renewal::GRAIN;
use crate::clock::Instant;
use crate::counts::{ClaimEnd, LearnedBy, ReleaseEnd, Verb};
use crate::engine::{ClaimAnswer, Incarnation, ReleaseAnswer, RenewAnswer, Wake};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::model::claim::{Grant, Waiting};
use crate::model::step::{confirm_window, waiter_life};
use crate::model::token::Token;

/// The most due entries that are handled before something is sent: as many as a call takes, so that what was just
/// read is still in the processor's caches when it is sent (`cargo xtask bench scheduler`).
const DUE_MAX: usize = 128;
/// The shortest time to the next heartbeat, so that rounding cannot make a busy loop.
const HEARTBEAT_MIN: Duration = Duration::from_millis(1);

/// Moves a moment to a little earlier, so that a million leases share some hundred buckets of the schedule.
fn coarse(at: Instant, ttl: Duration) -> Instant {
    let grain = (ttl.as_nanos() as u64 / 512).next_power_of_two();
    Instant::from_nanos(at.nanos() & !(grain - 1))
}

/// Returns the entry to which an answer belongs. One that is being released waits for its release only.
fn answered(entries: &mut Slab<Entry>, sent: Sent) -> Option<&mut Entry> {
    let entry = entry_of(entries, sent.key).filter(|entry| entry.lease.claim() == sent.claim)?;
    // It may be between two attempts, and then it must be seen not to be busy when the next one is due.
    if entry.phase != Phase::Releasing {
        entry.is_busy = false;
    }
    Some(entry)
}

/// What is answered.
impl Ledger {
    /// Takes in the answer to a claim.
    pub(crate) fn on_claim(&mut self, now: &Now<'_>, sent: Sent, answer: Result<ClaimAnswer>) {
        let index = sent.key.index;
        let sent = Sent { at: if mutant!("counted-from-receipt") { now.at } else { sent.at }, ..sent };
        let engine = self.identity.engine;
        let Some(entry) = answered(&mut self.entries, sent) else { return };
        let answer = answer.map_err(|error| error.named(engine, Some(entry.lease.resource())));
        match (entry.phase, answer) {
            (Phase::Claiming, Ok(answer)) => {
                entry.attempt = 0;
                self.on_claim_answered(now, index, sent.at, answer);
            }
            (Phase::Claiming, Err(error)) => self.on_claim_failed(now, index, error),
            // A wake was quicker than the answer to the claim. A grant confirms it.
            (Phase::Ready | Phase::Held, Ok(ClaimAnswer::Granted(grant))) => {
                self.on_renewed(now, index, sent.at, grant.ends_in);
            }
            (Phase::Ready | Phase::Held, _) => self.queue_renewal(index),
            _ => {}
        }
    }

    fn on_claim_answered(&mut self, now: &Now<'_>, index: u32, sent: Instant, answer: ClaimAnswer) {
        match answer {
            ClaimAnswer::Granted(grant) => {
                let deadline = lease_deadline(&self.entries[index as usize].lease, sent, grant.ends_in);
                self.on_granted(now, index, deadline, grant, true);
            }
            ClaimAnswer::Waiting(waiting, incarnation) => {
                self.entries[index as usize].phase = Phase::Waiting;
                self.on_waiting(now, index, sent, waiting, incarnation);
                let pending = self.entries[index as usize].pending.as_mut();
                if pending.is_some_and(|pending| std::mem::take(&mut pending.wakes_when_queued)) {
                    self.wake(index);
                }
            }
            ClaimAnswer::Busy(busy) => {
                let resource = self.entries[index as usize].lease.resource().clone();
                self.refuse(now, index, Ok(ClaimOutcome::Busy(resource, Box::new(busy))));
            }
            ClaimAnswer::Fresh(value) => self.refuse(now, index, Ok(ClaimOutcome::Fresh(value, sent))),
            ClaimAnswer::Finished => self.claim_anew(now, index, false),
        }
    }

    fn on_claim_failed(&mut self, now: &Now<'_>, index: u32, error: Error) {
        let answer_timeout = self.identity.answer_timeout;
        let entry = &mut self.entries[index as usize];
        let pending = entry.pending.as_ref().expect("an entry that asks is pending");
        if error.kind() != ErrorKind::Unavailable {
            return match error.has_no_effect() || mutant!("unknown-taken-for-refusal") {
                true => self.refuse(now, index, Err(error)),
                // The call failed, and this claim may have been granted before it did.
                false => self.fail_and_withdraw(now, index, Err(error)),
            };
        }
        // Counted from the present claim: one that queues anew after a long wait has its full patience again.
        let silent_since = pending.first_sent.unwrap_or(pending.asked_at);
        let give_up_at = (silent_since + answer_timeout).min(pending.give_up_at);
        let retry_at = now.at + backoff::delay(entry.attempt, (now.random)());
        if retry_at >= give_up_at {
            return self.fail_and_withdraw(now, index, Err(error));
        }
        self.watch.repeated(Verb::Claim, (entry.scope, None), entry.lease.resource(), &error);
        entry.attempt = entry.attempt.saturating_add(1);
        self.schedule.set(index, retry_at);
    }

    fn on_granted(&mut self, now: &Now<'_>, index: u32, deadline: Instant, grant: Grant, is_confirmed: bool) {
        let entry = &mut self.entries[index as usize];
        entry.lease.grant(grant.token, grant.slot, deadline);
        entry.is_unconfirmed = !is_confirmed;
        if entry.lease.is_over(now.at + GRAIN) {
            // It took so long to get here that it is of no use. Its units must not wait for the ttl.
            return self.claim_anew(now, index, true);
        }
        self.watch.check_token(now, entry.scope, entry.lease.resource(), grant.token);
        if let Some(max_hold) = entry.lease.terms().limits.max_hold {
            self.max_holds.insert(index, now.at + max_hold);
        }
        entry.phase = Phase::Ready;
        entry.collect_by = now.at + entry.lease.terms().ttl;
        let is_told = !entry.awaits_confirmation();
        self.schedule_renewal(now, index);
        if is_told {
            self.wake(index);
        }
    }

    fn on_waiting(
        &mut self,
        now: &Now<'_>,
        index: u32,
        sent: Instant,
        waiting: Waiting,
        incarnation: Incarnation,
    ) {
        let entry = &mut self.entries[index as usize];
        let pending = entry.pending.as_mut().expect("a waiter is pending");
        pending.is_woken = false;
        // Answers may overtake each other: only a later request moves the window.
        if pending.waiting.is_none_or(|(last_sent, _, _)| sent >= last_sent) {
            pending.waiting = Some((sent, waiting, incarnation));
        }
        let ttl = entry.lease.terms().ttl;
        let mut at = sent + confirm_window(ttl) / 3;
        if let Some(look_in) = waiting.look_in {
            at = at.min(now.at + look_in.max(HEARTBEAT_MIN));
        }
        let is_woken_since = std::mem::take(&mut pending.is_woken_since);
        self.schedule.set(index, at.min(pending.give_up_at));
        if is_woken_since && !mutant!("early-wakes-lost") {
            self.ask_woken(index);
        }
    }

    /// Takes in the answer to a renewal or heartbeat.
    pub(crate) fn on_renew(&mut self, now: &Now<'_>, sent: Sent, answer: Result<RenewAnswer>) {
        let Sent { key, at: sent_at, .. } = sent;
        let sent_at = if mutant!("counted-from-receipt") { now.at } else { sent_at };
        let engine = self.identity.engine;
        let Some(entry) = answered(&mut self.entries, sent) else { return };
        let (phase, scope) = (entry.phase, entry.scope);
        if !matches!(phase, Phase::Waiting | Phase::Ready | Phase::Held) {
            return;
        }
        let answer = answer.map_err(|error| error.named(engine, Some(entry.lease.resource())));
        match (phase, answer) {
            (_, Err(error)) => self.on_renew_failed(now, key.index, error),
            (Phase::Waiting, Ok(RenewAnswer::Granted(grant))) => {
                entry.attempt = 0;
                let deadline = lease_deadline(&entry.lease, sent_at, grant.ends_in);
                let is_woken = entry.pending.as_ref().is_some_and(|pending| pending.is_woken);
                let by = if is_woken { LearnedBy::Wake } else { LearnedBy::Heartbeat };
                self.watch.handed_over(scope, entry.lease.resource(), by);
                self.on_granted(now, key.index, deadline, grant, true);
            }
            (Phase::Waiting, Ok(RenewAnswer::Waiting(waiting, incarnation))) => {
                entry.attempt = 0;
                self.on_waiting(now, key.index, sent_at, waiting, incarnation);
            }
            (Phase::Waiting, Ok(RenewAnswer::Lost)) => {
                self.watch.place_lost(scope, entry.lease.resource());
                self.claim_anew(now, key.index, false);
            }
            // An engine that forgets what it was asked: the claim's own id gets its grant by acquire again.
            (Phase::Waiting, Ok(RenewAnswer::Renewed { .. })) => {
                entry.phase = Phase::Claiming;
                entry.is_busy = true;
                self.enqueue(Lane::Claims, key);
            }
            (_, Ok(RenewAnswer::Renewed { ends_in } | RenewAnswer::Granted(Grant { ends_in, .. }))) => {
                let (left, ttl) = (entry.lease.deadline().since(now.at), entry.lease.terms().ttl);
                if !left.is_zero() {
                    let ttl = ttl.min(self.identity.silence_max);
                    self.watch.renewed(scope, entry.lease.resource(), (left, ttl));
                }
                self.on_renewed(now, key.index, sent_at, ends_in);
            }
            // A heartbeat that was answered before the grant whose wake has overtaken it: ask again.
            (_, Ok(RenewAnswer::Waiting(..))) if entry.is_unconfirmed => self.queue_renewal(key.index),
            (_, Ok(_)) => {
                self.watch.renewal_refused(scope, entry.lease.resource());
                match phase {
                    Phase::Ready => self.claim_anew(now, key.index, false),
                    _ => self.lose(now, key.index, LossReason::Ended),
                }
            }
        }
    }

    /// A hold was answered to live on.
    fn on_renewed(&mut self, now: &Now<'_>, index: u32, sent: Instant, ends_in: Duration) {
        let entry = &mut self.entries[index as usize];
        entry.attempt = 0;
        entry.is_unconfirmed = false;
        let mut deadline = lease_deadline(&entry.lease, sent, ends_in);
        // The store counts it, but one that forgot the hold and granted it once more counts from then.
        if let Some(ends_at) = self.max_holds.get(&index) {
            deadline = deadline.min(*ends_at);
        }
        if !entry.lease.extend(deadline, now.at) {
            return self.expire(now, index);
        }
        if !entry.is_busy {
            self.schedule_renewal(now, index);
        }
        // Its user may have waited for this.
        self.wake(index);
    }

    fn on_renew_failed(&mut self, now: &Now<'_>, index: u32, error: Error) {
        let entry = &mut self.entries[index as usize];
        let verb = if entry.phase == Phase::Waiting { Verb::Heartbeat } else { Verb::Renew };
        let span = self.spans.get(&index).cloned();
        self.watch.repeated(verb, (entry.scope, span), entry.lease.resource(), &error);
        let mut at = now.at + backoff::delay(entry.attempt, (now.random)());
        entry.attempt = entry.attempt.saturating_add(1);
        if entry.phase == Phase::Waiting {
            let pending = entry.pending.as_ref().expect("a waiter is pending");
            let last_heard = pending.waiting.map_or(pending.asked_at, |(sent, _, _)| sent);
            let patience = waiter_life(entry.lease.terms().ttl).max(self.identity.answer_timeout);
            if at >= last_heard + patience {
                return self.fail_and_withdraw(now, index, Err(error));
            }
            at = at.min(pending.give_up_at);
        } else {
            at = if mutant!("renewed-until-an-error") {
                self.loss_due(index)
            } else {
                at.min(self.loss_due(index))
            };
            // Whose user has waited for the first answer waits no longer.
            self.wake(index);
        }
        self.schedule.set(index, at);
    }

    /// Takes in the answer to a release.
    pub(crate) fn on_release(&mut self, now: &Now<'_>, sent: Sent, answer: Result<ReleaseAnswer>) {
        let engine = self.identity.engine;
        let answer_timeout = self.identity.answer_timeout;
        let key = sent.key;
        let entry = entry_of(&mut self.entries, key).filter(|entry| entry.phase == Phase::Releasing);
        let Some(entry) = entry else { return };
        entry.is_busy = false;
        let (resource, token) = (entry.lease.resource().clone(), entry.lease.token());
        let (scope, began) = (entry.scope, entry.began);
        let pending = entry.pending.as_mut().expect("a release is pending");
        let mut span = || if self.spans.is_empty() { None } else { self.spans.remove(&key.index) };
        match answer.map_err(|error| error.named(engine, Some(&resource))) {
            Ok(answer) => {
                let outcome = match answer {
                    ReleaseAnswer::Released => ReleaseEnd::Released,
                    ReleaseAnswer::AlreadyLost => ReleaseEnd::AlreadyLost,
                };
                if token != Token::ZERO {
                    let when = (began, pending.asked_at);
                    self.watch.released((scope, span()), (&resource, token), outcome, when);
                }
                entry.phase = Phase::Ended;
                pending.released = Some(Ok(answer));
            }
            Err(error) => {
                let retry_at = now.at + backoff::delay(entry.attempt, (now.random)());
                entry.attempt = entry.attempt.saturating_add(1);
                let is_over = retry_at >= pending.release_until;
                if is_over {
                    entry.phase = Phase::Ended;
                    let what = (&resource, token);
                    let when = (began, pending.asked_at);
                    self.watch.released((scope, span()), what, ReleaseEnd::GivenUp, when);
                } else {
                    self.watch.repeated(Verb::Release, (scope, None), &resource, &error);
                }
                if !pending.is_unawaited && (is_over || retry_at >= pending.asked_at + answer_timeout) {
                    pending.released = Some(Err(error));
                }
                if !is_over {
                    self.schedule.set(key.index, retry_at);
                }
            }
        }
        self.wake(key.index);
        let entry = &self.entries[key.index as usize];
        if entry.phase == Phase::Ended {
            self.notices.wakers.append(&mut self.close_waiters);
        }
        let is_unawaited = entry.pending.as_ref().is_none_or(|pending| pending.is_unawaited);
        if entry.phase == Phase::Ended && is_unawaited {
            self.remove(key.index);
        }
    }

    /// Takes in news for waiters.
    pub(crate) fn on_wake(&mut self, now: &Now<'_>, wake: Wake) {
        match wake {
            Wake::Granted { claim, grant, incarnation } => {
                if let Some(&index) = self.by_claim.get(&claim) {
                    self.on_grant_wake(now, index, grant, incarnation);
                }
            }
            Wake::Look(claim) => {
                if let Some(&index) = self.by_claim.get(&claim)
                    && matches!(self.entries[index as usize].phase, Phase::Claiming | Phase::Waiting)
                {
                    self.ask_woken(index);
                }
            }
            Wake::LookAtAll => self.ask_all(|phase| matches!(phase, Phase::Claiming | Phase::Waiting)),
            Wake::RenewAll => {
                self.watch.store_forgot();
                self.ask_all(|phase| {
                    matches!(phase, Phase::Claiming | Phase::Waiting | Phase::Ready | Phase::Held)
                });
            }
            // No claim waits for it: the queue client handles it.
            Wake::Queue(_) => {}
        }
    }

    fn ask_all(&mut self, is_meant: impl Fn(Phase) -> bool) {
        let meant = self.entries.iter().filter(|(_, entry)| is_meant(entry.phase));
        let meant: Vec<u32> = meant.map(|(index, _)| index as u32).collect();
        for index in meant {
            self.ask_now(index);
        }
    }

    /// Asks about an entry: at once, or as soon as what is under way about it is answered, which may be from before.
    fn ask_now(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if let Some(pending) = entry.pending.as_mut().filter(|_| entry.is_busy) {
            pending.is_woken_since = true;
        }
        self.queue_renewal(index);
    }

    /// Asks for a waiter that the engine woke.
    fn ask_woken(&mut self, index: u32) {
        if let Some(pending) = &mut self.entries[index as usize].pending {
            pending.is_woken = true;
        }
        self.ask_now(index);
    }

    /// The hand-over rule: a grant may be used before it is confirmed only if it was made after the last
    /// request that was answered *waiting* was sent, and by the same incarnation of the store; then it lives
    /// at least one window from that sending. With no answer yet, the first copy of the claim takes its place.
    fn on_grant_wake(&mut self, now: &Now<'_>, index: u32, grant: Grant, incarnation: Incarnation) {
        let entry = &mut self.entries[index as usize];
        if !matches!(entry.phase, Phase::Claiming | Phase::Waiting) {
            return;
        }
        let pending = entry.pending.as_ref().expect("a waiter is pending");
        let base = match (&pending.waiting, pending.first_sent) {
            (Some((sent, waiting, heard_from)), _) => {
                let is_same_store = *heard_from == incarnation || mutant!("wakes-of-a-lost-store");
                let is_later = grant.token > waiting.horizon || mutant!("old-wakes-believed");
                (is_same_store && is_later).then_some(*sent)
            }
            (None, first_sent) => first_sent,
        };
        let window = confirm_window(entry.lease.terms().ttl);
        let usable_until = base.map(|base| deadline(base, window)).filter(|until| *until > now.at + GRAIN);
        match usable_until {
            Some(until) => {
                self.watch.handed_over(entry.scope, entry.lease.resource(), LearnedBy::Wake);
                self.on_granted(now, index, until, grant, false);
                self.queue_renewal(index);
            }
            // The answer that is still to come may say the same, or be from before.
            None => self.ask_woken(index),
        }
    }

    /// Looks at every entry whose time has come. Call again if it returns true.
    pub(crate) fn on_due(&mut self, now: &Now<'_>) -> bool {
        let mut due = Vec::new();
        self.schedule.take_due(now.at, DUE_MAX, &mut due);
        let is_more = due.len() == DUE_MAX;
        self.prefetch(&due);
        for index in due {
            self.on_entry_due(now, index);
        }
        is_more
    }

    /// Reads what is about to be used. Among a million leases every read misses the caches; here the misses overlap,
    /// which halves the time of a round of renewals (`cargo xtask bench scheduler`).
    fn prefetch(&self, due: &[u32]) {
        let mut sum = 0;
        for &index in due {
            let lease = &self.entries[index as usize].lease;
            sum ^= lease.deadline().nanos() ^ u64::from(lease.resource().as_str().as_bytes()[0]);
        }
        std::hint::black_box(sum);
    }

    fn on_entry_due(&mut self, now: &Now<'_>, index: u32) {
        let entry = &mut self.entries[index as usize];
        let give_up_at = entry.pending.as_ref().map_or(Instant::NEVER, |pending| pending.give_up_at);
        let key = Key { index, generation: entry.generation };
        match entry.phase {
            Phase::Claiming | Phase::Waiting if now.at >= give_up_at => self.give_up(now, index),
            Phase::Claiming if !entry.is_busy && mutant!("repeated-under-a-new-id") => {
                self.claim_anew(now, index, false);
            }
            Phase::Claiming if !entry.is_busy => {
                entry.is_busy = true;
                self.enqueue(Lane::Claims, key);
                self.schedule.set(index, give_up_at);
            }
            Phase::Waiting => {
                self.queue_renewal(index);
                self.schedule.set(index, give_up_at);
            }
            Phase::Ready | Phase::Held if entry.lease.is_over(now.at + GRAIN) => {
                self.expire(now, index);
            }
            Phase::Ready if now.at >= entry.collect_by && !mutant!("never-set-aside") => {
                self.set_aside(now, index)
            }
            Phase::Held if now.at >= entry.collect_by => {
                self.notices.uncollected.push(entry.lease.clone());
                self.watch.set_aside(entry.scope, entry.lease.resource());
                // Its user has not collected it yet: for the user it is no loss.
                (entry.phase, entry.loss) = (Phase::Ended, Some(LossReason::NotRenewed));
                self.lose(now, index, LossReason::NotRenewed);
            }
            Phase::SetAside if now.at >= give_up_at => self.give_up(now, index),
            Phase::Ready | Phase::Held => {
                let ttl = entry.lease.terms().ttl;
                if !mutant!("never-renewed") {
                    self.queue_renewal(index);
                }
                // A coarse time that comes too early becomes an exact one.
                let exact = self.loss_due(index);
                let at = Some(coarse(exact, ttl)).filter(|at| *at > now.at).unwrap_or(exact);
                self.schedule.set(index, at);
            }
            Phase::Releasing if !entry.is_busy => {
                entry.is_busy = true;
                self.enqueue(Lane::Releases, key);
            }
            _ => {}
        }
    }

    /// When to check whether a lease is over: not after its deadline.
    fn loss_due(&self, index: u32) -> Instant {
        self.entries[index as usize].lease.deadline() - GRAIN
    }

    pub(super) fn schedule_renewal(&mut self, now: &Now<'_>, index: u32) {
        let entry = &self.entries[index as usize];
        let ttl = entry.lease.terms().ttl;
        let mut third = ttl.min(self.identity.silence_max) / 3;
        if !self.is_held_out(index) {
            // A store that was silent for long may know of less: it is asked again before that is over.
            let left = entry.lease.deadline().since(now.at);
            third = third.min((left / 2).max(third / 16));
        }
        // Up to a tenth earlier, so that leases that began together do not stay together.
        let jitter = Duration::from_nanos((now.random)() % (third.as_nanos() as u64 / 10));
        let at = coarse(now.at + third - jitter, ttl).min(self.loss_due(index));
        self.schedule.set(index, at);
    }

    /// Whether a lease is renewed until its `max_hold`, a little before which it ends, since deadlines have a margin.
    fn is_held_out(&self, index: u32) -> bool {
        let lease = &self.entries[index as usize].lease;
        let near = lease.terms().ttl / 20;
        self.max_holds.get(&index).is_some_and(|ends_at| lease.last_deadline() + near >= *ends_at)
    }

    fn queue_renewal(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if let Some(lane) = entry.lane()
            && !entry.is_busy
        {
            entry.is_busy = true;
            let key = Key { index, generation: entry.generation };
            self.enqueue(lane, key);
        }
    }

    /// Starts a request over with a new claim id, at the end of the queue. The old one is withdrawn if it may be held, now or when
    /// a copy of it arrives.
    pub(super) fn claim_anew(&mut self, now: &Now<'_>, index: u32, may_hold: bool) {
        if self.entries[index as usize].is_given {
            return self.end_given(now, index, may_hold);
        }
        self.start_over(now, index, may_hold);
        let key = Key { index, generation: self.entries[index as usize].generation };
        self.enqueue(Lane::Claims, key);
    }

    /// Gives a request a new claim id, which is not asked for yet.
    fn start_over(&mut self, now: &Now<'_>, index: u32, may_hold: bool) {
        let entry = &mut self.entries[index as usize];
        let old = entry.lease.clone();
        let request = entry.pending.as_ref().expect("a request is pending").request.clone();
        entry.lease = Arc::new(LeaseState::new(old.resource().clone(), now.claim_id(), old.terms().clone()));
        let pending = entry.pending.as_mut().expect("a request is pending");
        pending.first_sent = None;
        pending.waiting = None;
        let (had_stray_copy, give_up_at) = (entry.has_stray_copy, pending.give_up_at);
        entry.phase = Phase::Claiming;
        entry.has_stray_copy = false;
        entry.is_unconfirmed = false;
        entry.attempt = 0;
        entry.is_busy = true;
        let claim = entry.lease.claim();
        self.by_claim.remove(&old.claim());
        if request.wait != Some(Duration::ZERO) {
            self.by_claim.insert(claim, index);
        }
        self.schedule.set(index, give_up_at);
        if may_hold || had_stray_copy && !mutant!("repeated-under-a-new-id") {
            self.release_orphan(now, old, request, had_stray_copy);
        }
    }

    /// Gives back a grant that its user has not collected for a ttl, and with it what is held only for its sake. No
    /// claim is sent before its user polls: a future that is never polled must not take a turn again and again.
    fn set_aside(&mut self, now: &Now<'_>, index: u32) {
        if self.entries[index as usize].is_given {
            let Entry { scope, lease, .. } = &self.entries[index as usize];
            self.watch.set_aside(*scope, lease.resource());
            return self.end_given(now, index, true);
        }
        self.start_over(now, index, true);
        let entry = &mut self.entries[index as usize];
        entry.phase = Phase::SetAside;
        entry.is_busy = false;
        self.watch.set_aside(entry.scope, entry.lease.resource());
        self.give_back_stakes(now, index);
    }

    /// Queues the claim of a user that polls again.
    pub(super) fn claim_again(&mut self, key: Key) {
        let entry = &mut self.entries[key.index as usize];
        entry.phase = Phase::Claiming;
        entry.is_busy = true;
        self.enqueue(Lane::Claims, key);
    }

    /// Releases a claim that is not used, in an entry of its own.
    fn release_orphan(
        &mut self,
        now: &Now<'_>,
        lease: Arc<LeaseState>,
        mut request: AcquireRequest,
        has_stray_copy: bool,
    ) {
        let given = request.claim.take();
        let key = self.enter(now, request);
        let entry = &mut self.entries[key.index as usize];
        self.by_claim.remove(&entry.lease.claim());
        if let Some(claim) = given {
            // Nobody else here can use it before the release is answered.
            entry.is_given = true;
            self.given_ids.insert(claim, key.index);
        }
        entry.lease = lease;
        entry.has_stray_copy = has_stray_copy;
        entry.phase = Phase::Ready;
        self.start_release(now, key.index, true);
    }

    fn give_up(&mut self, now: &Now<'_>, index: u32) {
        let entry = &self.entries[index as usize];
        let pending = entry.pending.as_ref().expect("a request is pending");
        let waited = now.at.since(pending.asked_at);
        let resource = entry.lease.resource();
        let error = match &pending.waiting {
            Some((_, waiting, _)) => Error::new(
                ErrorKind::Timeout,
                "claim",
                // As it was asked for: this thread wakes a little later.
                format!(
                    "not granted within {}ms, at place {} in the queue",
                    pending.give_up_at.since(pending.asked_at).as_millis(),
                    waiting.position
                ),
            ),
            None if entry.phase == Phase::SetAside => Error::new(
                ErrorKind::Timeout,
                "claim",
                format!(
                    "it was granted, and given back since nobody looked within {:?}",
                    entry.lease.terms().ttl
                ),
            ),
            None => Error::new(
                ErrorKind::Unavailable,
                "claim",
                format!("no answer within {}ms", waited.as_millis()),
            ),
        };
        let error = error.named(self.identity.engine, Some(resource));
        match entry.phase {
            Phase::SetAside => self.fail(now, index, Err(error)),
            _ => self.fail_and_withdraw(now, index, Err(error)),
        }
    }

    /// Ends a request that the engine has refused. An earlier copy of its claim may still come, and be granted.
    fn refuse(&mut self, now: &Now<'_>, index: u32, result: Result<ClaimOutcome>) {
        match self.entries[index as usize].has_stray_copy {
            true => self.fail_and_withdraw(now, index, result),
            false => self.fail(now, index, result),
        }
    }

    /// Ends a request of which nothing is held.
    pub(super) fn fail(&mut self, now: &Now<'_>, index: u32, result: Result<ClaimOutcome>) {
        let outcome = end_of(&result, |outcome| match outcome {
            ClaimOutcome::Lease(_) => ClaimEnd::Granted,
            ClaimOutcome::Busy(..) => ClaimEnd::Busy,
            ClaimOutcome::Fresh(..) => ClaimEnd::Fresh,
        });
        self.claim_ended(now, index, outcome);
        let entry = &mut self.entries[index as usize];
        entry.phase = Phase::Failed;
        if let Some(pending) = &mut entry.pending {
            pending.result = Some(result);
        }
        let claim = entry.lease.claim();
        self.by_claim.remove(&claim);
        self.schedule.remove(index);
        if !self.stakes.is_empty() {
            self.give_back_stakes(now, index);
        }
        self.wake(index);
    }

    /// Ends a request that the engine may know of.
    pub(super) fn fail_and_withdraw(&mut self, now: &Now<'_>, index: u32, result: Result<ClaimOutcome>) {
        let entry = &self.entries[index as usize];
        let lease = entry.lease.clone();
        let request = entry.pending.as_ref().expect("a request is pending").request.clone();
        let has_stray_copy = entry.has_stray_copy || entry.phase == Phase::Claiming;
        self.fail(now, index, result);
        // Another client may hold by it: what this one knows is too old to end that.
        if !request.is_left && !mutant!("failed-claims-not-withdrawn") {
            self.release_orphan(now, lease, request, has_stray_copy);
        }
    }

    /// The deadline of a held lease has passed.
    pub(super) fn expire(&mut self, now: &Now<'_>, index: u32) {
        let reason = if self.is_held_out(index) { LossReason::MaxHold } else { LossReason::NotRenewed };
        self.lose(now, index, reason);
    }

    /// A held lease has ended. Its entry stays until its user lets go.
    pub(super) fn lose(&mut self, now: &Now<'_>, index: u32, reason: LossReason) {
        let entry = &mut self.entries[index as usize];
        if entry.phase == Phase::Ready {
            return self.claim_anew(now, index, true);
        }
        if entry.phase == Phase::Held {
            entry.phase = Phase::Ended;
            entry.loss = Some(reason);
            let (what, of) =
                ((entry.lease.resource(), entry.lease.token()), (entry.scope, entry.is_delivery));
            let when = (entry.began, entry.lease.last_deadline(), now.at);
            let span = self.spans.remove(&index);
            self.watch.lost(of, span, what, (reason, when));
        }
        entry.lease.end();
        self.notices.ended.push(entry.lease.clone());
        self.schedule.remove(index);
        if !self.bonds.is_empty() {
            self.lose_bound(now, index);
        }
    }

    fn wake(&mut self, index: u32) {
        if let Some(waker) =
            self.entries[index as usize].pending.as_mut().and_then(|pending| pending.waker.take())
        {
            self.notices.wakers.push(waker);
        }
    }

    /// Nothing can be claimed or renewed any more: leases are lost, and waiting users are woken to learn it. Those of
    /// queues learn it when the lanes are dropped.
    pub(crate) fn close(&mut self, now: &Now<'_>, error: Error) -> Lanes {
        self.closed = Some(error);
        let all: Vec<u32> = self.entries.iter().map(|(index, _)| index as u32).collect();
        for index in all {
            if self.entries[index as usize].phase == Phase::Held {
                self.lose(now, index, LossReason::ClientEnded);
            }
            self.wake(index);
        }
        self.notices.wakers.append(&mut self.close_waiters);
        self.close_lanes()
    }
}
