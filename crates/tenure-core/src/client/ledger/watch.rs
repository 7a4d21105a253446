//! What the ledger counts, and what it tells of.
//!
//! Counting is an addition under the lock that is held anyway: no atomic, no allocation, no name. Events are kept until the ledger is
//! unlocked, since whoever hears of them may block. Each method is one thing that happens, counted and told in one place, so that
//! the two agree.

use std::time::Duration;

use tracing::Level;

use super::{Key, LeaseState, Ledger, Now, Phase, Sent};
use crate::client::queue_requests::Had;
use crate::client::teller::Telling;
use crate::client::trace::SharedSpan;
use crate::clock::Instant;
use crate::counts::{
    CallEnd, ClaimEnd, Counts, DeliveryEnd, FoundIn, LearnedBy, Loss, PushEnd, ReleaseEnd, Renewal, Scope,
    ScopeCounts, Verb,
};
use crate::error::{Error, ErrorKind, LossReason};
use crate::event::{Event, Happened, LATE_WARNING, is_wanted};
use crate::model::claim::Name;
use crate::model::token::Token;

/// By how much clocks may differ without a word: more than those of machines that keep their time do.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(10);
/// How many entries are looked at in one turn: so long the lock is held, a tenth of a millisecond.
const TURN: usize = 4096;

/// When something began, in 5 bytes, since there are a million of it: steps of 66 us, for 2 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Began([u8; 5]);

const STEP_BITS: u32 = 16;

impl Began {
    fn at(since: Instant, now: Instant) -> Began {
        let steps = (now.nanos().saturating_sub(since.nanos()) >> STEP_BITS).saturating_add(1);
        let [a, b, c, d, e, ..] = steps.to_le_bytes();
        Began([a, b, c, d, e])
    }

    /// Returns how long ago it was; zero if it has not begun.
    fn ago(self, since: Instant, now: Instant) -> Duration {
        let [a, b, c, d, e] = self.0;
        match u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]) {
            0 => Duration::ZERO,
            steps => now.since(Instant::from_nanos(since.nanos() + ((steps - 1) << STEP_BITS))),
        }
    }
}

/// See the top of the file.
pub(crate) struct Watch {
    engine: &'static str,
    has_listener: bool,
    /// A listener or the counts hear of everything. Where neither is there, which is mostly so, a pair asks for this alone: what is heard
    /// lies out of the way.
    is_heard: bool,
    /// There are none unless they are wanted.
    counts: Option<Box<Counts>>,
    happened: Vec<Telling>,
    /// When the client began, which grants are counted from.
    since: Instant,
    /// The time of day at the machine's boot, in microseconds, when it was last looked at: clocks of the day step.
    boot_micros: u64,
}

impl Watch {
    pub(crate) fn new(engine: &'static str, has_listener: bool, is_counting: bool, since: Instant) -> Watch {
        let counts = is_counting.then(|| Box::new(Counts::new(engine)));
        let is_heard = has_listener || counts.is_some();
        Watch { engine, has_listener, is_heard, counts, happened: Vec::new(), since, boot_micros: 0 }
    }

    /// Notes an event, if somebody wants to hear of it.
    fn tell(&mut self, level: Level, scope: Option<u16>, event: impl FnOnce() -> Event) {
        if is_wanted(self.has_listener, level) {
            self.happen(scope, None, event());
        }
    }

    /// Notes an event, if somebody wants to hear of it or it is to be noted in a span.
    fn tell_in(
        &mut self,
        level: Level,
        (scope, span): (u16, Option<SharedSpan>),
        event: impl FnOnce() -> Event,
    ) {
        if span.is_some() || is_wanted(self.has_listener, level) {
            self.happen(Some(scope), span, event());
        }
    }

    fn happen(&mut self, scope: Option<u16>, span: Option<SharedSpan>, event: Event) {
        let counts = self.counts.as_ref();
        let scope = scope.and_then(|scope| Some(&counts?.scopes.get(usize::from(scope))?.scope));
        let happened = Happened { engine: self.engine, scope: scope.cloned(), event };
        self.happened.push(Telling { happened, span });
    }

    /// Counts in a scope.
    fn count(&mut self, scope: u16, count: impl FnOnce(&mut ScopeCounts)) {
        let counts = self.counts.as_mut().and_then(|counts| counts.scopes.get_mut(usize::from(scope)));
        if let Some(counts) = counts {
            count(counts);
        }
    }

    /// Counts what has no scope.
    fn count_all(&mut self, count: impl FnOnce(&mut Counts)) {
        if let Some(counts) = &mut self.counts {
            count(counts);
        }
    }

    /// Takes what is to be told.
    pub(super) fn take(&mut self) -> Vec<Telling> {
        std::mem::take(&mut self.happened)
    }

    pub(super) fn began(&self, now: Instant) -> Began {
        Began::at(self.since, now)
    }

    /// A lease has reached its user, who asked for it at a moment.
    #[inline]
    pub(super) fn granted(
        &mut self,
        of: (u16, Option<SharedSpan>),
        lease: &LeaseState,
        (asked_at, now): (Instant, Instant),
    ) {
        if of.1.is_some() || is_wanted(self.is_heard, Level::DEBUG) {
            self.hear_granted(of, (lease.resource(), lease.token()), now.since(asked_at));
        }
    }

    #[cold]
    fn hear_granted(
        &mut self,
        (scope, span): (u16, Option<SharedSpan>),
        (resource, token): (&Name, Token),
        waited: Duration,
    ) {
        self.count(scope, |counts| {
            counts.claims[ClaimEnd::Granted as usize] += 1;
            counts.wait.add_time(waited);
        });
        let event = || Event::Granted { resource: resource.clone(), token, waited };
        self.tell_in(Level::DEBUG, (scope, span), event);
    }

    /// A claim has ended without a lease.
    pub(super) fn claim_ended(
        &mut self,
        (scope, span): (u16, Option<SharedSpan>),
        resource: &Name,
        outcome: ClaimEnd,
        waited: Duration,
    ) {
        self.count(scope, |counts| counts.claims[outcome as usize] += 1);
        let event = || Event::ClaimEnded { resource: resource.clone(), outcome, waited };
        self.tell_in(Level::DEBUG, (scope, span), event);
    }

    /// The user of a lease has let go of it. Its release is to be sent.
    #[inline]
    pub(super) fn let_go(&mut self, scope: u16, began: &Began, now: Instant) {
        if self.is_heard {
            self.hear_let_go(scope, *began, now);
        }
    }

    #[cold]
    fn hear_let_go(&mut self, scope: u16, began: Began, now: Instant) {
        let held = began.ago(self.since, now);
        self.count(scope, |counts| counts.hold.add_time(held));
    }

    /// A release has ended that began so long ago.
    #[inline]
    pub(super) fn released(
        &mut self,
        of: (u16, Option<SharedSpan>),
        what: (&Name, Token),
        outcome: ReleaseEnd,
        when: (Began, Instant),
    ) {
        let level = if outcome == ReleaseEnd::GivenUp { Level::WARN } else { Level::DEBUG };
        if of.1.is_some() || is_wanted(self.is_heard, level) {
            self.hear_released(of, what, outcome, when);
        }
    }

    #[cold]
    fn hear_released(
        &mut self,
        of: (u16, Option<SharedSpan>),
        (resource, token): (&Name, Token),
        outcome: ReleaseEnd,
        (began, let_go_at): (Began, Instant),
    ) {
        self.count_all(|counts| counts.releases[outcome as usize] += 1);
        let (since, resource) = (self.since, || resource.clone());
        match outcome {
            ReleaseEnd::GivenUp => {
                self.tell_in(Level::WARN, of, || Event::ReleaseFailed { resource: resource(), token });
            }
            ReleaseEnd::Released | ReleaseEnd::AlreadyLost => {
                self.tell_in(Level::DEBUG, of, || {
                    let held = began.ago(since, let_go_at);
                    Event::Released { resource: resource(), token, outcome, held }
                });
            }
        }
    }

    /// The user of a lease or a delivery has detached it.
    pub(super) fn detached(
        &mut self,
        (scope, span): (u16, Option<SharedSpan>),
        (resource, token): (&Name, Token),
        (began, now): (Began, Instant),
    ) {
        let held = began.ago(self.since, now);
        self.count(scope, |counts| {
            counts.detached += 1;
            counts.hold.add_time(held);
        });
        let event = || Event::Detached { resource: resource.clone(), token, held };
        self.tell_in(Level::DEBUG, (scope, span), event);
    }

    /// What was detached has a user here.
    pub(super) fn attached(&mut self, scope: u16, resource: &Name, token: Token) {
        self.count(scope, |counts| counts.attached += 1);
        self.tell(Level::DEBUG, Some(scope), || Event::Attached { resource: resource.clone(), token });
    }

    /// A lease or a delivery was lost.
    pub(super) fn lost(
        &mut self,
        (scope, is_delivery): (u16, bool),
        span: Option<SharedSpan>,
        (resource, token): (&Name, Token),
        (reason, (began, deadline, now)): (LossReason, (Began, Instant, Instant)),
    ) {
        let (held, noticed_after) = (began.ago(self.since, now), now.since(deadline));
        // What was lost before its user had it is handed out again, and is no end of what the user has.
        if began != Began::default() {
            self.count(scope, |counts| {
                counts.hold.add_time(held);
                match is_delivery {
                    true => counts.deliveries[DeliveryEnd::Lost as usize] += 1,
                    false => counts.lost[Loss::of(reason, noticed_after) as usize] += 1,
                }
            });
        }
        let event = || Event::Lost { resource: resource.clone(), token, reason, held, noticed_after };
        self.tell_in(Level::WARN, (scope, span), event);
    }

    pub(super) fn place_lost(&mut self, scope: u16, resource: &Name) {
        self.count(scope, |counts| counts.places_lost += 1);
        self.tell(Level::WARN, Some(scope), || Event::PlaceLost { resource: resource.clone() });
    }

    pub(super) fn set_aside(&mut self, scope: u16, resource: &Name) {
        self.tell(Level::WARN, Some(scope), || Event::SetAside { resource: resource.clone() });
    }

    pub(super) fn repeated(
        &mut self,
        verb: Verb,
        of: (u16, Option<SharedSpan>),
        resource: &Name,
        error: &Error,
    ) {
        if verb == Verb::Renew {
            self.count_all(|counts| counts.renewals[Renewal::Repeated as usize] += 1);
        }
        let event = || Event::Repeated { verb, resource: resource.clone(), error: error.clone() };
        self.tell_in(Level::TRACE, of, event);
    }

    /// A renewal was kept, with so much of its ttl left.
    pub(super) fn renewed(&mut self, scope: u16, resource: &Name, (left, ttl): (Duration, Duration)) {
        self.count_all(|counts| {
            counts.renewals[Renewal::Kept as usize] += 1;
            let ttl_micros = ttl.as_micros().max(1);
            counts.slack.add((left.as_micros() * 1_000_000 / ttl_micros) as u64);
        });
        self.tell(Level::TRACE, Some(scope), || Event::Renewed { resource: resource.clone(), left, ttl });
    }

    /// A renewal was refused: the engine knows no such hold.
    pub(super) fn renewal_refused(&mut self, scope: u16, resource: &Name) {
        self.count_all(|counts| counts.renewals[Renewal::Refused as usize] += 1);
        self.tell(Level::TRACE, Some(scope), || Event::RenewalRefused { resource: resource.clone() });
    }

    /// A waiter has learned of its grant.
    pub(super) fn handed_over(&mut self, scope: u16, resource: &Name, by: LearnedBy) {
        self.count_all(|counts| counts.learned_by[by as usize] += 1);
        self.tell(Level::TRACE, Some(scope), || Event::HandedOver { resource: resource.clone(), by });
    }

    pub(super) fn store_forgot(&mut self) {
        self.count_all(|counts| counts.store_forgot += 1);
        self.tell(Level::WARN, None, || Event::StoreForgot);
    }

    /// A token was granted. Tells if it lies ahead of the time of day: tokens follow the store's clock, so one of the two is or was
    /// wrong.
    pub(super) fn check_token(&mut self, now: &Now<'_>, scope: u16, resource: &Name, token: Token) {
        let (micros, slack) = (now.at.nanos() / 1000, CLOCKS_APART_MAX.as_micros() as u64);
        // Nearly always so, without reading another clock.
        if token.get() <= self.boot_micros + micros + slack {
            return;
        }
        let time_of_day = (now.time_of_day)().micros();
        self.boot_micros = time_of_day.saturating_sub(micros);
        if token.get() > time_of_day + slack {
            let by = Duration::from_micros(token.get() - time_of_day);
            self.count_all(|counts| counts.tokens_ahead += 1);
            self.tell(Level::WARN, Some(scope), || Event::TokenAhead {
                resource: resource.clone(),
                token,
                by,
            });
        }
    }
}

/// What the client tells the ledger of, so that it is counted with the rest.
impl Ledger {
    /// Begins to count in a scope, the next one.
    pub(crate) fn begin_scope(&mut self, scope: Scope) {
        self.watch.count_all(|counts| counts.scopes.push(ScopeCounts::new(scope)));
    }

    /// A claim was refused before it was entered.
    pub(crate) fn refused(&mut self, scope: u16, resource: &Name) {
        self.watch.claim_ended((scope, None), resource, ClaimEnd::Refused, Duration::ZERO);
    }

    /// A call of the engine has ended.
    pub(crate) fn called(&mut self, verb: Verb, items: usize, took: Duration, outcome: CallEnd) {
        self.watch.count_all(|counts| {
            let calls = &mut counts.calls[verb as usize];
            calls.ended[outcome as usize] += 1;
            calls.took.add_time(took);
            calls.items.add(items as u64);
            counts.is_store_up = outcome == CallEnd::Answered;
        });
        self.watch.tell(Level::TRACE, None, || Event::Called { verb, items, took, outcome });
    }

    /// A call has ended that a user made on its own thread.
    #[inline]
    pub(crate) fn called_inline<T>(
        &mut self,
        verb: Verb,
        now: &Now<'_>,
        sent: Sent,
        answer: &Result<T, Error>,
    ) {
        if is_wanted(self.watch.is_heard, Level::TRACE) {
            self.hear_called(verb, now.at.since(sent.at), CallEnd::of(std::iter::once(answer)));
        }
    }

    /// As [`Ledger::called`], out of the way of a pair that nobody hears of.
    #[cold]
    fn hear_called(&mut self, verb: Verb, took: Duration, outcome: CallEnd) {
        self.called(verb, 1, took, outcome);
    }

    /// The client's thread woke at a moment that it had waited for, so much later.
    pub(crate) fn woke_late(&mut self, by: Duration) {
        self.watch.count_all(|counts| counts.late.add_time(by));
        let level = if by < LATE_WARNING { Level::TRACE } else { Level::WARN };
        self.watch.tell(level, None, || Event::Late { by });
    }

    /// A single-flight has a value, or an error in its place. `load`: how long the load took, if this call has loaded.
    pub(crate) fn found(
        &mut self,
        (scope, key): (u16, &Name),
        source: FoundIn,
        took: Duration,
        load: Option<Duration>,
    ) {
        self.watch.count(scope, |counts| {
            counts.found[source as usize] += 1;
            if let Some(load) = load {
                counts.load.add_time(load);
            }
        });
        let event = || Event::Found { key: key.clone(), source, took, load };
        self.watch.tell(Level::DEBUG, Some(scope), event);
    }

    /// The user of a push has an answer.
    pub(crate) fn pushed(&mut self, scope: u16, queue: &Name, outcome: PushEnd) {
        self.watch.count(scope, |counts| counts.pushes[outcome as usize] += 1);
        self.watch.tell(Level::DEBUG, Some(scope), || Event::Pushed { queue: queue.clone(), outcome });
    }

    /// A delivery has reached its user, so long after its item was due.
    pub(crate) fn delivered(&mut self, key: Key, attempt: u32, age: Duration) {
        let Some(entry) = self.entries.get(key.index as usize) else { return };
        let queue = entry.lease.resource();
        if attempt == 1 {
            self.watch.count(entry.scope, |counts| counts.delay.add_time(age));
        }
        let event = || Event::Delivered { queue: queue.clone(), attempt, age };
        self.watch.tell(Level::DEBUG, Some(entry.scope), event);
    }

    /// A delivery that its user had was settled. A loss that the ledger has noticed is counted there.
    pub(crate) fn settled(&mut self, had: Had, queue: &Name, outcome: DeliveryEnd) {
        let Had { scope, took, span } = had;
        self.watch.count(scope, |counts| {
            counts.deliveries[outcome as usize] += 1;
            counts.hold.add_time(took);
        });
        let event = || Event::Settled { queue: queue.clone(), outcome, took };
        self.watch.tell_in(Level::DEBUG, (scope, span), event);
    }

    /// Returns how long the user of a delivery has had it.
    pub(crate) fn had_for(&self, now: &Now<'_>, key: Key) -> Option<(u16, Duration)> {
        let entry =
            self.entries.get(key.index as usize).filter(|entry| entry.generation == key.generation)?;
        Some((entry.scope, entry.began.ago(self.watch.since, now.at)))
    }

    /// Copies what was counted.
    pub(crate) fn counts(&self) -> Counts {
        self.watch.counts.as_deref().cloned().unwrap_or_else(|| Counts::new(self.watch.engine))
    }

    /// Looks at the entries of one turn, from the `from`th on. Returns where the next turn begins, if there is one.
    pub(crate) fn look_over(&self, now: Instant, from: usize, gauges: &mut Gauges) -> Option<usize> {
        let end = self.entries.capacity().min(from + TURN);
        for entry in (from..end).filter_map(|index| self.entries.get(index)) {
            let is_handed_over = entry.collect_by == Instant::NEVER;
            match (entry.phase, &entry.pending) {
                (Phase::Held, _) if is_handed_over => {
                    let gauge = gauges.of(entry.scope);
                    gauge.leases += 1;
                    gauge.leases_oldest = gauge.leases_oldest.max(entry.began.ago(self.watch.since, now));
                }
                (Phase::Claiming | Phase::Waiting | Phase::Ready | Phase::SetAside, Some(pending)) => {
                    let gauge = gauges.of(entry.scope);
                    gauge.waiting += 1;
                    gauge.waiting_oldest = gauge.waiting_oldest.max(now.since(pending.asked_at));
                }
                _ => {}
            }
        }
        (end < self.entries.capacity()).then_some(end)
    }
}

/// What there is now, by scope.
#[derive(Default)]
pub(crate) struct Gauges(Vec<Gauge>);

#[derive(Clone, Default)]
struct Gauge {
    waiting: u64,
    waiting_oldest: Duration,
    leases: u64,
    leases_oldest: Duration,
}

impl Gauges {
    fn of(&mut self, scope: u16) -> &mut Gauge {
        let index = usize::from(scope);
        if self.0.len() <= index {
            self.0.resize(index + 1, Gauge::default());
        }
        &mut self.0[index]
    }

    /// Enters them in a copy of what was counted.
    pub(crate) fn enter(self, counts: &mut Counts) {
        for (counts, gauge) in counts.scopes.iter_mut().zip(self.0) {
            (counts.waiting, counts.waiting_oldest) = (gauge.waiting, gauge.waiting_oldest);
            (counts.leases, counts.leases_oldest) = (gauge.leases, gauge.leases_oldest);
        }
    }
}

/// Tells how a claim ended, of what its user is told.
pub(super) fn end_of<T>(result: &Result<T, Error>, of_answer: impl FnOnce(&T) -> ClaimEnd) -> ClaimEnd {
    match result {
        Ok(answer) => of_answer(answer),
        Err(error) => match error.kind() {
            ErrorKind::Timeout => ClaimEnd::Timeout,
            ErrorKind::Finished | ErrorKind::Conflict | ErrorKind::Invalid | ErrorKind::Unsupported => {
                ClaimEnd::Refused
            }
            _ => ClaimEnd::Failed,
        },
    }
}

impl CallEnd {
    /// Tells how a call ended, of its answers: one that was not answered says so for each request.
    pub(crate) fn of<'a, T: 'a>(mut answers: impl Iterator<Item = &'a Result<T, Error>>) -> CallEnd {
        let is_silent = |error: &Error| matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Internal);
        match answers.all(|answer| answer.as_ref().is_err_and(is_silent)) {
            true => CallEnd::Failed,
            false => CallEnd::Answered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_is_known_to_66_microseconds_for_two_years() {
        let since = Instant::from_nanos(3_600_000_000_000);
        assert_eq!(Began::default().ago(since, since + Duration::from_secs(9)), Duration::ZERO);
        for seconds in [0, 1, 86_400, 2 * 365 * 86_400] {
            let at = since + Duration::from_secs(seconds) + Duration::from_micros(70);
            let ago = Began::at(since, at).ago(since, at + Duration::from_millis(10));
            let most = Duration::from_millis(10) + Duration::from_nanos(1 << STEP_BITS);
            assert!(ago >= Duration::from_millis(10) && ago <= most, "{ago:?} after {seconds} s");
        }
    }
}
