//! The state of every claim of a client, as a machine without I/O.
//!
//! The ledger takes in what its users want ([`Ledger::submit`], [`Ledger::cancel`], [`Ledger::release`]), what the
//! engine answered, what woke it and that time has passed. It decides what to send next (the lanes), when to check
//! entries again (the schedule), and what each user is answered. One entry goes through
//!
//! ```text
//! Claiming -> Waiting -> Ready -> Held -> Releasing -> gone        the usual way
//!     \__________\_________\__________________/                    cancelled, or given up
//!             Failed (its user has not polled yet)    Ended (lost; its user has not let go yet)
//!             SetAside (granted, and given back since its user did not poll for a ttl)
//!                                                     LostWithSet (lost with another of its bond; the same)
//! ```
//!
//! An entry exists before its claim is sent and until its release is answered or cannot matter any more, so that
//! every hold has an entry that renews or releases it.
//!
//! Invariants: a deadline is counted from when the answered request was *sent*; a deadline that has passed is
//! never moved; a claim id is never sent again after an answer that it is lost.

mod answers;
mod bonds;
mod detached;
mod lanes;
mod sending;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use crate::client::batch::{Following, Lane};
use crate::client::lease_state::LeaseState;
use crate::client::renewal::{GRAIN, Schedule};
use crate::client::teller::Telling;
use crate::client::trace::SharedSpan;
use crate::clock::{Instant, Timestamp};
use crate::counts::{ClaimEnd, ReleaseEnd};
use crate::engine::{Incarnation, ReleaseAnswer, ReleaseRequest};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::model::claim::{Busy, Claim, ClaimId, ClientId, Name, Published, Terms, Waiting};
use crate::model::token::Token;
pub(crate) use bonds::Bond;
pub(crate) use detached::{Holding, NotEntered, in_use};
pub(crate) use lanes::{Lanes, ShardOf};
pub(crate) use watch::Gauges;
use watch::{Began, Watch};

/// What is taken off a duration for clocks that do not run alike: 1 % and 2 ms.
pub(crate) fn margin(period: Duration) -> Duration {
    if mutant!("no-margin") { Duration::ZERO } else { period / 100 + Duration::from_millis(2) }
}

/// The local end of something that was sent at `sent` and was answered to end after `ends_in`.
pub(crate) fn deadline(sent: Instant, ends_in: Duration) -> Instant {
    sent + ends_in.saturating_sub(margin(ends_in))
}

/// The local end of a hold. No later than its user asked for: a server whose clock was set back answers that it has longer, and it
/// has not, once that clock is right again.
fn lease_deadline(lease: &LeaseState, sent: Instant, ends_in: Duration) -> Instant {
    deadline(sent, ends_in.min(lease.terms().ttl))
}

/// Names an entry; a key outlives its entry without harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// A request that was sent: an answer is matched to the very claim it was about, since an entry that lost its
/// place goes on under a new id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    key: Key,
    claim: ClaimId,
    at: Instant,
}

/// What a user asks for.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) resource: Name,
    /// The id that its user has given to the claim, if not a new one.
    pub(crate) claim: Option<ClaimId>,
    /// Its user lets others repeat the claim, so it is never withdrawn but by its user.
    pub(crate) is_left: bool,
    pub(crate) terms: Arc<Terms>,
    /// How long to queue. `None`: for ever. Zero: not at all.
    pub(crate) wait: Option<Duration>,
    pub(crate) floor: Token,
    /// In which scope it is counted.
    pub(crate) scope: u16,
    /// The span of the claim, which goes to its entry.
    pub(crate) span: Option<SharedSpan>,
}

/// How a request ended, if not in an error.
pub(crate) enum ClaimOutcome {
    Lease(Arc<LeaseState>),
    Busy(Name, Box<Busy>),
    /// With when the call was sent whose answer it is.
    Fresh(Published, Instant),
}

/// A waiter's place, for progress displays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePosition {
    /// 1 is the head of the queue.
    pub position: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Claiming,
    Waiting,
    Ready,
    Held,
    Releasing,
    Ended,
    /// The engine still knows the hold. It is not renewed any more, and released when its user lets go.
    LostWithSet,
    Failed,
    /// It was granted, and its user did not poll for a ttl: no claim is sent before the user polls again.
    SetAside,
}

struct Entry {
    generation: u32,
    phase: Phase,
    /// A request about this entry is in a lane or under way.
    is_busy: bool,
    /// A copy of the claim may be under way unanswered.
    has_stray_copy: bool,
    /// The engine has not heard of the holder since the grant.
    is_unconfirmed: bool,
    /// It is a delivery of a queue, which is renewed there.
    is_delivery: bool,
    /// Its user has given the id, so there is no other that could take its place.
    is_given: bool,
    /// When an uncollected grant goes back: other waiters would wait for ever behind a future that is never polled.
    collect_by: Instant,
    /// In which scope it is counted.
    scope: u16,
    /// When its user got it.
    began: Began,
    /// How often in a row a request has failed.
    attempt: u8,
    /// Why it is lost, once it is.
    loss: Option<LossReason>,
    lease: Arc<LeaseState>,
    /// What only matters before the lease is held, or while it is released.
    pending: Option<Box<Pending>>,
}

// A million leases are a million entries.
const _: () = assert!(size_of::<Entry>() <= 48);

impl Entry {
    /// In which lane it is renewed, if it is.
    fn lane(&self) -> Option<Lane> {
        match self.phase {
            Phase::Waiting => Some(Lane::Heartbeats),
            Phase::Ready | Phase::Held if self.is_delivery => Some(Lane::Deliveries),
            Phase::Ready | Phase::Held => Some(Lane::Renewals),
            _ => None,
        }
    }

    /// Whether its user is told of the grant only when the store has heard of it: others may repeat the claim, and the store may have
    /// passed the grant on before. Who gets no answer is told of the grant as it is.
    fn awaits_confirmation(&self) -> bool {
        let is_left = self.pending.as_ref().is_some_and(|pending| pending.request.is_left);
        is_left && self.is_unconfirmed && self.attempt == 0
    }
}

struct Pending {
    request: AcquireRequest,
    /// Until the claim has ended.
    span: Option<SharedSpan>,
    asked_at: Instant,
    /// When the first copy of the present claim was sent.
    first_sent: Option<Instant>,
    /// When the last request was sent that was answered *waiting*, and what the answer said.
    waiting: Option<(Instant, Waiting, Incarnation)>,
    give_up_at: Instant,
    result: Option<Result<ClaimOutcome>>,
    released: Option<Result<ReleaseAnswer>>,
    is_unused: bool,
    /// Until when a release is repeated.
    release_until: Instant,
    waker: Option<Waker>,
    /// The waker is called when the claim queues, too.
    wakes_when_queued: bool,
    /// The engine woke it since it was last answered.
    is_woken: bool,
    /// The engine woke it since the last request about it was sent, whose answer may be from before.
    is_woken_since: bool,
    /// The user does not wait for the result of the release.
    is_unawaited: bool,
}

/// What a ledger is made for.
pub(crate) struct Identity {
    pub(crate) client: ClientId,
    pub(crate) engine: &'static str,
    /// Whether every event is wanted.
    pub(crate) has_listener: bool,
    /// Whether anything is counted.
    pub(crate) is_counting: bool,
    /// When the client began.
    pub(crate) since: Instant,
    /// How long a request may stay unanswered before its user gets an error.
    pub(crate) answer_timeout: Duration,
    /// How long a hold lives whose client is not heard of, however long its ttl.
    pub(crate) silence_max: Duration,
    /// How calls of one lane to one shard follow each other.
    pub(crate) following: Following,
    pub(crate) shard_of: ShardOf,
}

/// See the top of the file.
pub(crate) struct Ledger {
    identity: Identity,
    entries: Slab<Entry>,
    generation: u32,
    by_claim: HashMap<ClaimId, u32>,
    /// The entries whose ids users have given, from claiming until their release is answered.
    given_ids: HashMap<ClaimId, u32>,
    schedule: Schedule,
    /// What waits to be sent.
    lanes: Lanes,
    /// The resources that claims under way are about, where calls are executed side by side.
    claiming: HashSet<Name>,
    /// The bonds of the few entries that have one.
    bonds: HashMap<u32, Arc<Bond>>,
    /// When the leases of the few entries with a `max_hold` end at the latest.
    max_holds: HashMap<u32, Instant>,
    /// What is held only until something else is granted, by that.
    stakes: HashMap<u32, Vec<Key>>,
    /// The spans of the holds that have one.
    spans: HashMap<u32, SharedSpan>,
    /// The wakers of tasks that wait for releases to be answered.
    close_waiters: Vec<Waker>,
    /// Why nothing can be asked any more.
    closed: Option<Error>,
    notices: Notices,
    watch: Watch,
}

/// What users must learn of, sent once the ledger is unlocked: a waker may run anything.
#[derive(Default)]
pub(crate) struct Notices {
    wakers: Vec<Waker>,
    ended: Vec<Arc<LeaseState>>,
    /// Deliveries that their users have not polled for, to be given back.
    pub(crate) uncollected: Vec<Arc<LeaseState>>,
    /// What has happened, to be told when all else is done: a listener may block.
    pub(crate) happened: Vec<Telling>,
}

impl Notices {
    /// Wakes the users.
    pub(crate) fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
        self.ended.drain(..).for_each(|lease| lease.notify_ended());
    }
}

/// A moment, and randomness for what is decided in it.
pub(crate) struct Now<'a> {
    pub(crate) at: Instant,
    pub(crate) random: &'a dyn Fn() -> u64,
    pub(crate) time_of_day: &'a dyn Fn() -> Timestamp,
}

impl Now<'_> {
    fn claim_id(&self) -> ClaimId {
        ClaimId::new(u128::from((self.random)()) << 64 | u128::from((self.random)()))
    }
}

impl Ledger {
    pub(crate) fn new(identity: Identity) -> Ledger {
        let lanes = Lanes::new(identity.following);
        let Identity { engine, has_listener, is_counting, since, .. } = identity;
        let watch = Watch::new(engine, has_listener, is_counting, since);
        Ledger {
            identity,
            entries: Slab::new(),
            generation: 0,
            by_claim: HashMap::new(),
            given_ids: HashMap::new(),
            schedule: Schedule::default(),
            lanes,
            claiming: HashSet::new(),
            bonds: HashMap::new(),
            max_holds: HashMap::new(),
            stakes: HashMap::new(),
            spans: HashMap::new(),
            close_waiters: Vec::new(),
            closed: None,
            notices: Notices::default(),
            watch,
        }
    }

    /// Enters a request. Its claim is in the lane, but not yet sent.
    pub(crate) fn submit(&mut self, now: &Now<'_>, request: AcquireRequest) -> Key {
        let key = self.enter(now, request);
        if self.entries[key.index as usize].phase == Phase::Claiming {
            self.entries[key.index as usize].is_busy = true;
            self.enqueue(Lane::Claims, key);
        }
        key
    }

    /// Enters a request whose claim its user sends by itself.
    pub(crate) fn submit_inline(&mut self, now: &Now<'_>, request: AcquireRequest) -> (Key, Sent, Claim) {
        let key = self.enter(now, request);
        self.entries[key.index as usize].is_busy = true;
        let claim = self.claim_to_send(key.index, now.at);
        (key, Sent { key, claim: claim.id, at: now.at }, claim)
    }

    fn enter(&mut self, now: &Now<'_>, mut request: AcquireRequest) -> Key {
        // Not in the request, which is copied for what withdraws the claim.
        let span = request.span.take();
        self.generation = self.generation.wrapping_add(1);
        let given = request.claim;
        let is_in_use = given.is_some_and(|claim| self.given_ids.contains_key(&claim));
        let claim = given.filter(|_| !is_in_use).unwrap_or_else(|| now.claim_id());
        let lease = Arc::new(LeaseState::new(request.resource.clone(), claim, request.terms.clone()));
        let give_up_at = match request.wait {
            Some(wait) if !wait.is_zero() => now.at + wait,
            _ => Instant::NEVER,
        };
        let may_wait = request.wait != Some(Duration::ZERO);
        let entry = Entry {
            generation: self.generation,
            phase: Phase::Claiming,
            is_busy: false,
            has_stray_copy: false,
            is_unconfirmed: false,
            is_delivery: false,
            is_given: given.is_some(),
            collect_by: Instant::NEVER,
            scope: request.scope,
            began: Began::default(),
            attempt: 0,
            loss: None,
            lease,
            pending: Some(Box::new(Pending {
                wakes_when_queued: span.is_some(),
                request,
                span,
                asked_at: now.at,
                first_sent: None,
                waiting: None,
                give_up_at,
                result: None,
                released: None,
                is_unused: true,
                release_until: Instant::NEVER,
                waker: None,
                is_woken: false,
                is_woken_since: false,
                is_unawaited: false,
            })),
        };
        let index = self.entries.insert(entry) as u32;
        if is_in_use {
            let engine = self.identity.engine;
            let error = in_use().named(engine, Some(self.entries[index as usize].lease.resource()));
            self.fail(now, index, Err(error));
            return Key { index, generation: self.entries[index as usize].generation };
        }
        if given.is_some() {
            self.given_ids.insert(claim, index);
        }
        if may_wait {
            self.by_claim.insert(claim, index);
        }
        if give_up_at != Instant::NEVER {
            self.schedule.set(index, give_up_at);
        }
        Key { index, generation: self.generation }
    }

    /// The user of a delivery has got it. Says whether it is still held.
    pub(crate) fn hand_over(&mut self, now: Instant, key: Key) -> bool {
        let began = self.watch.began(now);
        let Some(entry) = self.entry(key) else { return false };
        (entry.collect_by, entry.began) = (Instant::NEVER, began);
        entry.phase == Phase::Held && (mutant!("late-deliveries-used") || !entry.lease.is_over(now))
    }

    /// Keeps the span of something held, for what happens to it. Returns it if it is over.
    pub(crate) fn keep_span(&mut self, key: Key, span: SharedSpan) -> Option<SharedSpan> {
        match self.entry(key).is_some_and(|entry| entry.phase == Phase::Held) {
            true => self.spans.insert(key.index, span),
            false => Some(span),
        }
    }

    /// Lets go of a delivery. Says why if it is lost.
    pub(crate) fn disown(&mut self, now: &Now<'_>, key: Key) -> Option<LossReason> {
        let loss = self.loss(now, key);
        if self.entry(key).is_some() {
            self.remove(key.index);
        }
        loss
    }

    /// Returns why a lease is lost, or `None` if it is held.
    pub(crate) fn loss(&mut self, now: &Now<'_>, key: Key) -> Option<LossReason> {
        let Some(entry) = self.entry(key) else { return Some(LossReason::NotRenewed) };
        if entry.phase == Phase::Held && entry.lease.is_over(now.at) {
            self.expire(now, key.index);
        }
        self.entries[key.index as usize].loss
    }

    /// Returns how a request ended, once; until then keeps the caller's waker.
    pub(crate) fn poll(
        &mut self,
        now: &Now<'_>,
        key: Key,
        waker: Option<&Waker>,
    ) -> Option<Result<ClaimOutcome>> {
        let is_open = self.closed.is_none();
        let Some(entry) = entry_of(&mut self.entries, key) else {
            let gone = Error::new(ErrorKind::Internal, "claim", "the claim is gone from the ledger");
            return Some(Err(gone));
        };
        match entry.phase {
            Phase::Failed => {
                let result = entry.pending.as_mut().and_then(|pending| pending.result.take());
                self.remove(key.index);
                result
            }
            // The moment at which the lease reaches its user: the last one to find that it came too late.
            Phase::Ready if is_open && entry.lease.is_over(now.at + GRAIN) => {
                self.claim_anew(now, key.index, true);
                if self.entries[key.index as usize].phase == Phase::Failed {
                    return self.poll(now, key, waker);
                }
                self.keep_waker(key.index, waker);
                None
            }
            Phase::Ready if is_open && entry.awaits_confirmation() => {
                self.keep_waker(key.index, waker);
                None
            }
            // A lease that the client's thread can no longer renew is not given out.
            Phase::Ready if is_open => {
                entry.phase = Phase::Held;
                entry.collect_by = Instant::NEVER;
                let pending = entry.pending.take();
                let (asked_at, span) =
                    pending.map_or((now.at, None), |pending| (pending.asked_at, pending.span));
                let lease = entry.lease.clone();
                entry.began = self.watch.began(now.at);
                self.watch.granted((entry.scope, span), &lease, (asked_at, now.at));
                self.by_claim.remove(&lease.claim());
                self.stakes.remove(&key.index);
                Some(Ok(ClaimOutcome::Lease(lease)))
            }
            Phase::SetAside if is_open => {
                self.claim_again(key);
                self.keep_waker(key.index, waker);
                None
            }
            _ => match &self.closed {
                Some(closed) => {
                    let closed = closed.clone();
                    self.claim_ended(now, key.index, ClaimEnd::Failed);
                    self.remove(key.index);
                    Some(Err(closed))
                }
                None => {
                    self.keep_waker(key.index, waker);
                    None
                }
            },
        }
    }

    fn keep_waker(&mut self, index: u32, waker: Option<&Waker>) {
        if let Some(pending) = &mut self.entries[index as usize].pending
            && let Some(waker) = waker
        {
            match &mut pending.waker {
                Some(kept) => kept.clone_from(waker),
                empty => *empty = Some(waker.clone()),
            }
        }
    }

    /// Returns the place of a request that waits.
    pub(crate) fn place(&mut self, key: Key) -> Option<QueuePosition> {
        let entry = self.entry(key).filter(|entry| entry.phase == Phase::Waiting)?;
        let (_, waiting, _) = entry.pending.as_ref()?.waiting.as_ref()?;
        Some(QueuePosition { position: waiting.position })
    }

    /// Returns whether a claim is in its queue by now. If it is not, its waker is called when it is.
    pub(crate) fn is_queued(&mut self, key: Key) -> bool {
        let Some(entry) = self.entry(key) else { return false };
        let is_queued = entry.phase == Phase::Waiting;
        if let Some(pending) = &mut entry.pending {
            pending.wakes_when_queued = !is_queued;
        }
        is_queued
    }

    /// Drops a request whose user is gone. What it may hold is released.
    pub(crate) fn cancel(&mut self, now: &Now<'_>, key: Key) {
        let Some(entry) = self.entry(key) else { return };
        if entry.pending.as_ref().is_some_and(|pending| pending.request.is_left)
            && entry.phase != Phase::Releasing
        {
            self.leave(now, key);
            return;
        }
        let (phase, is_unsent) =
            (entry.phase, entry.pending.as_ref().is_some_and(|pending| pending.first_sent.is_none()));
        if matches!(phase, Phase::Claiming | Phase::Waiting | Phase::Ready | Phase::SetAside) {
            self.claim_ended(now, key.index, ClaimEnd::Cancelled);
        }
        match phase {
            Phase::Failed | Phase::Ended | Phase::SetAside => self.remove(key.index),
            Phase::Releasing => {}
            Phase::Claiming if is_unsent => self.remove(key.index),
            _ => self.start_release(now, key.index, true),
        }
    }

    /// Begins to release a held lease. Returns the answer if there is nothing to send.
    pub(crate) fn release(&mut self, now: &Now<'_>, key: Key, is_unawaited: bool) -> Option<ReleaseAnswer> {
        let answer = self.begin_release(now, key, is_unawaited);
        if answer.is_none() {
            self.enqueue(Lane::Releases, key);
        }
        answer
    }

    /// As [`Ledger::release`], for a caller that sends the request itself.
    fn begin_release(&mut self, now: &Now<'_>, key: Key, is_unawaited: bool) -> Option<ReleaseAnswer> {
        let Some(entry) = self.entry(key) else { return Some(ReleaseAnswer::AlreadyLost) };
        let is_over = match entry.phase {
            Phase::Held | Phase::Ended => entry.lease.is_over(now.at),
            Phase::LostWithSet => now.at >= entry.lease.last_deadline(),
            _ => return Some(ReleaseAnswer::AlreadyLost),
        };
        if is_over {
            self.expire(now, key.index);
            let Entry { scope, began, lease, .. } = &self.entries[key.index as usize];
            let what = (lease.resource(), lease.token());
            self.watch.released((*scope, None), what, ReleaseEnd::AlreadyLost, (*began, now.at));
            self.remove(key.index);
            return Some(ReleaseAnswer::AlreadyLost);
        }
        self.prepare_release(now, key.index, false);
        if let Some(pending) = &mut self.entries[key.index as usize].pending {
            pending.is_unawaited = is_unawaited;
        }
        None
    }

    /// As [`Ledger::release`], for a grant that was not used: it does not count for `min_hold`.
    pub(crate) fn give_back(&mut self, now: &Now<'_>, key: Key, is_unawaited: bool) -> Option<ReleaseAnswer> {
        let answer = self.release(now, key, is_unawaited);
        if answer.is_none()
            && let Some(pending) = &mut self.entries[key.index as usize].pending
        {
            pending.is_unused = true;
        }
        answer
    }

    /// Begins to release a held lease that its user releases by itself.
    pub(crate) fn release_inline(&mut self, now: &Now<'_>, key: Key) -> Option<(Sent, ReleaseRequest)> {
        if self.begin_release(now, key, false).is_some() {
            return None;
        }
        let request = self.release_to_send(key.index);
        Some((Sent { key, claim: request.release.claim, at: now.at }, request))
    }

    /// Returns how a release ended, once; until then keeps the caller's waker.
    pub(crate) fn poll_release(&mut self, key: Key, waker: Option<&Waker>) -> Option<Result<ReleaseAnswer>> {
        let closed = self.closed.clone();
        let Some(entry) = self.entry(key) else { return Some(Ok(ReleaseAnswer::AlreadyLost)) };
        let released = entry.pending.as_mut().and_then(|pending| pending.released.take());
        let released = released.or(closed.map(Err));
        match released {
            Some(released) => {
                if entry.phase == Phase::Ended {
                    self.remove(key.index);
                } else if let Some(pending) = &mut entry.pending {
                    pending.is_unawaited = true;
                }
                Some(released)
            }
            None => {
                self.keep_waker(key.index, waker);
                None
            }
        }
    }

    /// The user does not wait for the result of this release any more.
    pub(crate) fn stop_awaiting(&mut self, key: Key) {
        let Some(entry) = self.entry(key) else { return };
        if entry.phase == Phase::Ended {
            self.remove(key.index);
        } else if let Some(pending) = &mut entry.pending {
            pending.is_unawaited = true;
            pending.waker = None;
        }
    }

    /// A claim has ended without a lease.
    fn claim_ended(&mut self, now: &Now<'_>, index: u32, outcome: ClaimEnd) {
        let Entry { scope, lease, pending, .. } = &mut self.entries[index as usize];
        let (asked_at, span) =
            pending.as_mut().map_or((now.at, None), |pending| (pending.asked_at, pending.span.take()));
        self.watch.claim_ended((*scope, span), lease.resource(), outcome, now.at.since(asked_at));
    }

    fn start_release(&mut self, now: &Now<'_>, index: u32, is_unused: bool) {
        self.prepare_release(now, index, is_unused);
        let key = Key { index, generation: self.entries[index as usize].generation };
        self.enqueue(Lane::Releases, key);
    }

    /// Makes an entry one whose release is to be sent. It is not in line yet.
    fn prepare_release(&mut self, now: &Now<'_>, index: u32, is_unused: bool) {
        let entry = &mut self.entries[index as usize];
        if entry.phase == Phase::Held {
            self.watch.let_go(entry.scope, &entry.began, now.at);
        }
        // The hold ends by itself at the latest one ttl after the last thing that was sent.
        let until = now.at + entry.lease.terms().ttl.max(self.identity.answer_timeout);
        let request = AcquireRequest {
            resource: entry.lease.resource().clone(),
            claim: None,
            is_left: false,
            terms: entry.lease.terms().clone(),
            wait: None,
            floor: Token::ZERO,
            scope: entry.scope,
            span: None,
        };
        let pending = entry.pending.get_or_insert_with(|| {
            Box::new(Pending {
                request,
                span: None,
                asked_at: now.at,
                first_sent: None,
                waiting: None,
                give_up_at: Instant::NEVER,
                result: None,
                released: None,
                is_unused,
                release_until: until,
                waker: None,
                wakes_when_queued: false,
                is_woken: false,
                is_woken_since: false,
                is_unawaited: is_unused,
            })
        });
        pending.is_unused = is_unused;
        pending.is_unawaited = is_unused;
        pending.release_until = until;
        pending.asked_at = now.at;
        // A claim that is in its lane or under way is a copy that may arrive after this release.
        entry.has_stray_copy |= entry.phase == Phase::Claiming;
        entry.phase = Phase::Releasing;
        entry.is_busy = true;
        entry.attempt = 0;
        entry.lease.end();
        let claim = entry.lease.claim();
        self.by_claim.remove(&claim);
        if !self.bonds.is_empty() {
            self.bonds.remove(&index);
        }
        self.schedule.remove(index);
    }

    fn entry(&mut self, key: Key) -> Option<&mut Entry> {
        entry_of(&mut self.entries, key)
    }

    fn remove(&mut self, index: u32) {
        self.schedule.remove(index);
        if !self.bonds.is_empty() {
            self.bonds.remove(&index);
        }
        if !self.stakes.is_empty() {
            self.stakes.remove(&index);
        }
        if !self.max_holds.is_empty() {
            self.max_holds.remove(&index);
        }
        if !self.spans.is_empty() {
            // Not the last copy, which would end the span here: the end of a lease has taken it, and a delivery has one.
            self.spans.remove(&index);
        }
        let entry = self.entries.remove(index as usize);
        self.by_claim.remove(&entry.lease.claim());
        if !self.given_ids.is_empty() && self.given_ids.get(&entry.lease.claim()) == Some(&index) {
            self.given_ids.remove(&entry.lease.claim());
        }
        entry.lease.end();
    }
}

/// Returns the entry of a key, if it is still there.
fn entry_of(entries: &mut Slab<Entry>, key: Key) -> Option<&mut Entry> {
    entries.get_mut(key.index as usize).filter(|entry| entry.generation == key.generation)
}

/// What others ask about it.
impl Ledger {
    /// Takes what users must learn of.
    pub(crate) fn take_notices(&mut self) -> Notices {
        Notices { happened: self.watch.take(), ..std::mem::take(&mut self.notices) }
    }

    /// When the next entry is due.
    pub(crate) fn next_due(&self) -> Instant {
        self.schedule.next()
    }

    /// Whether anything is left to be sent or answered that matters to the store.
    pub(crate) fn has_releases(&self) -> bool {
        self.entries.iter().any(|(_, entry)| entry.phase == Phase::Releasing)
    }

    /// Returns the releases that have begun and are not answered.
    pub(crate) fn releases_begun(&self) -> Vec<Key> {
        let begun = self.entries.iter().filter(|(_, entry)| entry.phase == Phase::Releasing);
        begun.map(|(index, entry)| Key { index: index as u32, generation: entry.generation }).collect()
    }

    /// Takes those of the releases off the list that are answered. Says whether all are; until then keeps the waker.
    pub(crate) fn poll_answered(&mut self, begun: &mut Vec<Key>, waker: &Waker) -> bool {
        begun.retain(|key| self.entry(*key).is_some_and(|entry| entry.phase == Phase::Releasing));
        if !begun.is_empty() && self.closed.is_none() {
            self.close_waiters.push(waker.clone());
            return false;
        }
        true
    }
}
