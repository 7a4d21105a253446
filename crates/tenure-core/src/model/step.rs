//! The whole protocol as a pure function: what is right for every engine.
//!
//! [`step`] takes a resource's record, one [`Command`] and the store's time; it changes the record and returns the command's own
//! answer and the clients to wake. It does no I/O and reads no clock, so a hosted engine runs it inside a transaction of its
//! store, a native engine's scripts are compared with it, and the tests compare it with a naive oracle.
//!
//! Every command but [`inspect`](crate::model::inspect::inspect) first *settles* the record (`step/settle.rs`): what ended by
//! `now` goes, and while the head of the queue fits into the free capacity it is granted. Invariants, kept on every path:
//!
//! * Units held and resting never exceed the capacity when a grant is made.
//! * No claim overtakes the head of the queue.
//! * Each grant's token is larger than every token given before.
//! * A claim id is in at most one place: a hold, a waiter, or among the finished.
//! * A hold's end moves only forward, and only while it has not come.
//!
//! A new command also needs: a line in the oracle of the tests, the scripts of native engines, `docs/concepts/`.

mod settle;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::claim::{
    Busy, CAPACITY_MAX, Claim, ClaimId, ClientId, Grant, Keep, Kind, Published, Terms, WAITERS_MAX, Waiting,
};
use crate::model::record::{Head, Record, Value, Waiter};
use crate::model::step::settle::{Party, extend, is_surely_unconfirmed};
use crate::model::token::Token;

pub use crate::model::step::settle::{
    CONFIRM_WINDOW_MAX, FINISHED_MEMORY, Step, TOKEN_MEMORY, Transition, WAITER_LIFE_MAX, Woken,
    confirm_window, waiter_life,
};

/// One verb of the protocol, which [`step`] carries out: what it is about, what it does to a record, and what it answers.
pub trait Command {
    /// What it answers.
    type Answer;

    /// Returns the claim that it is about. A store that loads parts of a record must load what that claim has.
    fn claim(&self) -> Option<ClaimId> {
        None
    }

    /// Returns the token that it is about, whose hold must be loaded. A command that is about no claim and no token reads all
    /// of the record.
    fn token(&self) -> Option<Token> {
        None
    }

    /// Returns what it asks for, if it is a claim.
    fn terms(&self) -> Option<&Terms> {
        None
    }

    /// Returns the head of the record that it would make where nothing is stored, or breaks with its answer if it would leave
    /// nothing there.
    fn on_nothing(&self) -> ControlFlow<Self::Answer, Head>;

    /// Whether with this answer it has entered nothing, so that no record is made where nothing is stored.
    fn is_refused(answer: &Self::Answer) -> bool {
        let _ = answer;
        false
    }

    /// Does it, on a record that is settled.
    ///
    /// # Errors
    /// Those of the store.
    fn run<R: Record>(&self, step: &mut Step<'_, R>) -> Result<Self::Answer, R::Error>;
}

/// Carries out a command.
///
/// # Errors
/// Those of the store.
pub fn step<R: Record, C: Command>(
    record: &mut R,
    command: &C,
    now: Timestamp,
) -> Result<Transition<C::Answer>, R::Error> {
    let quiet = |answer| Ok(Transition { answer, wakes: Vec::new(), moved_up: Vec::new() });
    if let Some(head) = record.head()? {
        let mut step = Step::new(record, head, now);
        step.settle()?;
        let answer = command.run(&mut step)?;
        return step.finish(answer);
    }
    let head = match command.on_nothing() {
        ControlFlow::Continue(head) => head,
        ControlFlow::Break(answer) => return quiet(answer),
    };
    let mut step = Step::new(record, head, now);
    let answer = command.run(&mut step)?;
    if C::is_refused(&answer) { quiet(answer) } else { step.finish(answer) }
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

/// What became of a claim that was not refused for its terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It holds.
    Granted(Grant),
    /// It waits.
    Waiting(Waiting),
    /// Others hold, and it does not wait.
    Busy(Busy),
    /// A fresh value answers it.
    Fresh(Published),
    /// Its id has been used and has ended.
    Finished,
}

/// Why a claim cannot be granted however long it waits. It has entered nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
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
    /// It does not make sense.
    Invalid(&'static str),
}

/// Grants, queues or refuses the claim.
impl Command for Claim {
    type Answer = Result<Claimed, Refusal>;

    fn claim(&self) -> Option<ClaimId> {
        Some(self.id)
    }

    fn terms(&self) -> Option<&Terms> {
        Some(&self.terms)
    }

    fn on_nothing(&self) -> ControlFlow<Self::Answer, Head> {
        ControlFlow::Continue(Head::new(self.terms.kind, self.terms.capacity))
    }

    fn is_refused(answer: &Self::Answer) -> bool {
        answer.is_err()
    }

    fn run<R: Record>(&self, step: &mut Step<'_, R>) -> Result<Self::Answer, R::Error> {
        let terms = &*self.terms;
        if step.record.is_finished(self.id)? {
            return Ok(Ok(Claimed::Finished));
        }
        match renew(step, self.id, Some(self.client))? {
            Renewed::Held(grant) => return Ok(Ok(Claimed::Granted(grant))),
            Renewed::Waiting(waiting) => return Ok(Ok(Claimed::Waiting(waiting))),
            Renewed::Lost => {}
        }
        let is_alike = (terms.kind, terms.capacity) == (step.head.kind, step.head.capacity);
        if !is_alike && !step.head.is_idle() {
            return Ok(Err(Refusal::Conflict { kind: step.head.kind, capacity: step.head.capacity }));
        }
        if terms.weight == 0 || terms.weight > terms.capacity {
            return Ok(Err(Refusal::Invalid("the weight does not fit the capacity")));
        }
        if self.floor.is_ahead_of(step.now) && !self.floor_forced {
            return Ok(Err(Refusal::FloorAhead { now: step.now }));
        }
        if !step.has_tokens(self.floor) {
            return Ok(Err(Refusal::Invalid(
                "the tokens are used up: a floor or the store's clock was very wrong",
            )));
        }
        if terms.unless_fresh
            && let Some(value) = step.fresh_value()?
        {
            return Ok(Ok(Claimed::Fresh(value)));
        }
        // Only now, so that a refusal leaves no trace: an idle record grants whatever has come so far.
        if !is_alike {
            step.record.remove_free_slots(0)?;
            step.head.kind = terms.kind;
            step.head.capacity = terms.capacity;
            step.head.fresh_slots = 0;
        }
        if (step.head.waiting == 0 || mutant!("newcomers-overtake")) && step.fits(terms.weight) {
            return Ok(Ok(Claimed::Granted(step.grant(Party::from(self), self.floor, true)?)));
        }
        if !self.wait {
            return Ok(Ok(Claimed::Busy(step.busy()?)));
        }
        if step.head.waiting >= WAITERS_MAX {
            return Ok(Err(Refusal::QueueFull));
        }
        Ok(Ok(Claimed::Waiting(enqueue(self, step)?)))
    }
}

fn enqueue<R: Record>(claim: &Claim, step: &mut Step<'_, R>) -> Result<Waiting, R::Error> {
    // The grant will be larger than the last token, and with this larger than the floor.
    step.head.last_token = step.head.last_token.max(claim.floor);
    let terms = &*claim.terms;
    let waiter = Waiter {
        place: step.head.next_place,
        claim: claim.id,
        client: claim.client,
        weight: terms.weight,
        expires_at: step.now + waiter_life(terms.ttl),
        ttl: terms.ttl,
        limits: terms.limits,
        label: terms.label.clone(),
        unless_fresh: terms.unless_fresh,
    };
    step.head.next_place = step.head.next_place.saturating_add(1);
    step.head.waiting = step.head.waiting.saturating_add(1);
    step.record.put_waiter(waiter.clone())?;
    step.waiting(&waiter)
}

/// Extends a hold, confirms a grant, or keeps a waiter's place.
#[derive(Clone, Copy, Debug)]
pub struct Renew(pub ClaimId);

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The claim holds, and this is its grant as it is now.
    Held(Grant),
    /// It waits.
    Waiting(Waiting),
    /// It neither holds nor waits.
    Lost,
}

impl Command for Renew {
    type Answer = Renewed;

    fn claim(&self) -> Option<ClaimId> {
        Some(self.0)
    }

    fn on_nothing(&self) -> ControlFlow<Renewed, Head> {
        ControlFlow::Break(Renewed::Lost)
    }

    fn run<R: Record>(&self, step: &mut Step<'_, R>) -> Result<Renewed, R::Error> {
        renew(step, self.0, None)
    }
}

/// Extends a hold, confirms a grant, or keeps a waiter's place. Who claims again by another client waits there from now on: that one is
/// told of its grant, and the place no longer ends with the first one.
fn renew<R: Record>(
    step: &mut Step<'_, R>,
    claim: ClaimId,
    claimed_by: Option<ClientId>,
) -> Result<Renewed, R::Error> {
    if let Some(mut hold) = step.record.hold_of(claim)? {
        assert!(hold.expires_at > step.now, "a hold that has ended is never renewed");
        hold.is_confirmed = true;
        let until = step.now + hold.ttl;
        extend(&mut hold, until);
        let grant = step.grant_of(&hold);
        step.record.put_hold(hold)?;
        return Ok(Renewed::Held(grant));
    }
    if let Some(mut waiter) = step.record.waiter_of(claim)? {
        waiter.expires_at = waiter.expires_at.max(step.now + waiter_life(waiter.ttl));
        if let Some(client) = claimed_by
            && !mutant!("places-stay-with-clients")
        {
            waiter.client = client;
        }
        step.record.put_waiter(waiter.clone())?;
        return step.waiting(&waiter).map(Renewed::Waiting);
    }
    Ok(Renewed::Lost)
}

/// As [`Renew`], of a claim of one client alone. Answers `None` if it is another's: for stores in which a claim lives no longer than its
/// client.
#[derive(Clone, Copy, Debug)]
pub struct RenewOwn(pub ClaimId, pub ClientId);

impl Command for RenewOwn {
    type Answer = Option<Renewed>;

    fn claim(&self) -> Option<ClaimId> {
        Some(self.0)
    }

    fn on_nothing(&self) -> ControlFlow<Self::Answer, Head> {
        ControlFlow::Break(Some(Renewed::Lost))
    }

    fn run<R: Record>(&self, step: &mut Step<'_, R>) -> Result<Self::Answer, R::Error> {
        let holder = step.record.hold_of(self.0)?.map(|hold| hold.client);
        let whose = match holder {
            None => step.record.waiter_of(self.0)?.map(|waiter| waiter.client),
            holder => holder,
        };
        if whose.is_some_and(|client| client != self.1) {
            return Ok(None);
        }
        Renew(self.0).run(step).map(Some)
    }
}

/// Ends a hold or withdraws a waiter; and says what is known about other copies of the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The claim.
    pub claim: ClaimId,
    /// A copy of the claim may still be under way: remember the id, so that it is not granted afterwards.
    pub maybe_in_flight: bool,
    /// The grant never reached its user, so `min_hold` does not count.
    pub is_unused: bool,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAnswer {
    /// It held or waited, and does not any more.
    Released,
    /// It had ended before.
    AlreadyLost,
}

impl Command for Release {
    type Answer = ReleaseAnswer;

    fn claim(&self) -> Option<ClaimId> {
        Some(self.claim)
    }

    fn on_nothing(&self) -> ControlFlow<ReleaseAnswer, Head> {
        if self.maybe_in_flight {
            // Kind and capacity of a record that holds nothing but finished claims do not matter: it is idle. A semaphore can
            // be resized, as what is not stored can.
            ControlFlow::Continue(Head::new(Kind::Semaphore, 1))
        } else {
            ControlFlow::Break(ReleaseAnswer::AlreadyLost)
        }
    }

    fn run<R: Record>(&self, step: &mut Step<'_, R>) -> Result<ReleaseAnswer, R::Error> {
        let hold = match step.record.hold_of(self.claim)? {
            None if mutant!("release-of-any-hold") => step.record.next_hold_to_end()?,
            hold => hold,
        };
        let answer = if let Some(hold) = hold {
            let rest = if self.is_unused { Duration::ZERO } else { hold.limits.min_hold };
            // Counted from now where that is sooner: the clock has been set back since the grant.
            let rest_until = hold.granted_at.min(step.now) + rest;
            step.end_hold(hold, rest_until)?;
            ReleaseAnswer::Released
        } else if let Some(waiter) = step.record.waiter_of(self.claim)? {
            step.remove_waiter(&waiter)?;
            ReleaseAnswer::Released
        } else {
            ReleaseAnswer::AlreadyLost
        };
        if self.maybe_in_flight {
            step.finish_claim(self.claim, step.now)?;
        }
        Ok(answer)
    }
}

/// Ends what the user of a client has left behind: a waiter, or a grant to one that nobody has confirmed. What another client waits for
/// by now stays, and so does a hold of which somebody may know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdraw {
    /// The claim.
    pub claim: ClaimId,
    /// Whose it was when it was left.
    pub client: ClientId,
}

/// The answer to a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithdrawAnswer {
    /// It has ended, and its id is used up.
    Withdrawn,
    /// It neither holds nor waits, and its id is used up.
    AlreadyLost,
    /// It goes on: somebody may hold, or wait, by it.
    InUse,
}

impl Command for Withdraw {
    type Answer = WithdrawAnswer;

    fn claim(&self) -> Option<ClaimId> {
        Some(self.claim)
    }

    fn on_nothing(&self) -> ControlFlow<WithdrawAnswer, Head> {
        // As after a release: a copy of the claim may be under way.
        ControlFlow::Continue(Head::new(Kind::Semaphore, 1))
    }

    fn run<R: Record>(&self, step: &mut Step<'_, R>) -> Result<WithdrawAnswer, R::Error> {
        let answer = if let Some(hold) = step.record.hold_of(self.claim)? {
            if hold.client != self.client || !is_surely_unconfirmed(&hold) {
                return Ok(WithdrawAnswer::InUse);
            }
            let rest_until = hold.granted_at.min(step.now);
            step.end_hold(hold, rest_until)?;
            WithdrawAnswer::Withdrawn
        } else if let Some(waiter) = step.record.waiter_of(self.claim)? {
            if waiter.client != self.client {
                return Ok(WithdrawAnswer::InUse);
            }
            step.remove_waiter(&waiter)?;
            WithdrawAnswer::Withdrawn
        } else {
            WithdrawAnswer::AlreadyLost
        };
        step.finish_claim(self.claim, step.now)?;
        Ok(answer)
    }
}

/// Sets the value under a hold. Answers whether the claim holds.
#[derive(Clone, Debug)]
pub struct Publish {
    /// The claim that holds.
    pub claim: ClaimId,
    /// The bytes.
    pub bytes: Arc<[u8]>,
    /// How long they live.
    pub keep: Keep,
}

impl Command for Publish {
    type Answer = bool;

    fn claim(&self) -> Option<ClaimId> {
        Some(self.claim)
    }

    fn on_nothing(&self) -> ControlFlow<bool, Head> {
        ControlFlow::Break(false)
    }

    fn run<R: Record>(&self, step: &mut Step<'_, R>) -> Result<bool, R::Error> {
        let Some(hold) = step.record.hold_of(self.claim)? else { return Ok(false) };
        let (fresh_until, keep_until) = match self.keep {
            Keep::WhileHeld => (step.now, None),
            Keep::For { fresh, stale } => (step.now + fresh, Some(step.now + fresh + stale)),
        };
        let value = Value { bytes: self.bytes.clone(), token: hold.token, fresh_until, keep_until };
        step.record.set_value(Some(value))?;
        if fresh_until > step.now {
            for waiter in step.record.waiters(WAITERS_MAX as usize)? {
                if waiter.unless_fresh {
                    step.remove_waiter(&waiter)?;
                    step.wakes.push(Woken { claim: waiter.claim, client: waiter.client, grant: None });
                }
            }
        }
        Ok(true)
    }
}

/// An operator ends a hold.
#[derive(Clone, Copy, Debug)]
pub struct Break {
    /// The token of the hold.
    pub token: Token,
    /// Free its units at once; otherwise they rest until the hold's end, so that its work can stop.
    pub at_once: bool,
}

/// How an operator's break of a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakAnswer {
    /// The hold is broken; its units come free after this long (zero: they are).
    Broken {
        /// From when the engine answered.
        free_in: Duration,
    },
    /// Nothing is changed: the hold under that token has ended, and its units rest for this long. It was broken
    /// before, or released before its `min_hold` was over, or its holder vanished (`lock_delay`). A break at once
    /// frees them.
    Resting {
        /// From when the engine answered.
        free_in: Duration,
    },
    /// No hold has that token.
    NotHeld,
}

impl Command for Break {
    type Answer = BreakAnswer;

    fn token(&self) -> Option<Token> {
        Some(self.token)
    }

    fn on_nothing(&self) -> ControlFlow<BreakAnswer, Head> {
        ControlFlow::Break(BreakAnswer::NotHeld)
    }

    fn run<R: Record>(&self, step: &mut Step<'_, R>) -> Result<BreakAnswer, R::Error> {
        let Some(hold) = step.record.hold(self.token)? else { return Ok(BreakAnswer::NotHeld) };
        let (now, expires_at) = (step.now, hold.expires_at);
        if let Some(claim) = hold.claim {
            step.finish_claim(claim, now)?;
        }
        if self.at_once {
            step.end_hold(hold, now)?;
            return Ok(BreakAnswer::Broken { free_in: Duration::ZERO });
        }
        let free_in = expires_at.since(now);
        if hold.claim.is_none() {
            return Ok(BreakAnswer::Resting { free_in });
        }
        step.end_hold(hold, expires_at)?;
        Ok(BreakAnswer::Broken { free_in })
    }
}

/// An operator changes the capacity. Answers with the reason where that cannot be.
#[derive(Clone, Copy, Debug)]
pub struct Resize(pub u32);

impl Resize {
    fn check(self) -> Result<(), &'static str> {
        let is_capacity = (1..=CAPACITY_MAX).contains(&self.0);
        if is_capacity { Ok(()) } else { Err("the capacity is out of range") }
    }
}

impl Command for Resize {
    type Answer = Result<(), &'static str>;

    fn on_nothing(&self) -> ControlFlow<Self::Answer, Head> {
        ControlFlow::Break(self.check())
    }

    fn run<R: Record>(&self, step: &mut Step<'_, R>) -> Result<Self::Answer, R::Error> {
        if let Err(why) = self.check() {
            return Ok(Err(why));
        }
        if !matches!(step.head.kind, Kind::Semaphore | Kind::SlotPool) {
            return Ok(Err("only semaphores and slot pools have a capacity to change"));
        }
        let capacity = self.0;
        step.head.used = if mutant!("resize-forgets-holders") { 0 } else { step.head.used };
        let old = std::mem::replace(&mut step.head.capacity, capacity);
        if step.head.fresh_slots > capacity {
            step.record.remove_free_slots(capacity)?;
        }
        // Slots that were taken away before, and come back: free since now, for they may just have been held.
        for slot in old..capacity.min(step.head.fresh_slots) {
            if !step.record.is_slot_held(slot)? {
                step.record.push_free_slot(slot)?;
            }
        }
        // What can never fit any more would block every waiter behind it for ever.
        for waiter in step.record.waiters(WAITERS_MAX as usize)? {
            if waiter.weight > capacity {
                step.remove_waiter(&waiter)?;
                step.finish_claim(waiter.claim, step.now)?;
            }
        }
        Ok(Ok(()))
    }
}

/// An engine knows that a client is dead: all that it holds or waits for here ends now.
#[derive(Clone, Copy, Debug)]
pub struct Vanish(pub ClientId);

impl Command for Vanish {
    type Answer = ();

    fn on_nothing(&self) -> ControlFlow<(), Head> {
        ControlFlow::Break(())
    }

    fn run<R: Record>(&self, step: &mut Step<'_, R>) -> Result<(), R::Error> {
        let (mut holds, mut waiters) = (Vec::new(), Vec::new());
        for claim in step.record.claims_of(self.0)? {
            holds.extend(step.record.hold_of(claim)?);
            waiters.extend(step.record.waiter_of(claim)?);
        }
        // A store names the claims in any order, but the order in which slots come free is the same for all.
        holds.sort_unstable_by_key(|hold| hold.token);
        waiters.sort_unstable_by_key(|waiter| waiter.place);
        for hold in holds {
            let rest_until = step.now + hold.limits.lock_delay;
            step.end_hold(hold, rest_until)?;
        }
        for waiter in waiters {
            step.remove_waiter(&waiter)?;
        }
        Ok(())
    }
}

/// Nothing but settle.
#[derive(Clone, Copy, Debug)]
pub struct Settle;

impl Command for Settle {
    type Answer = ();

    fn on_nothing(&self) -> ControlFlow<(), Head> {
        ControlFlow::Break(())
    }

    fn run<R: Record>(&self, _: &mut Step<'_, R>) -> Result<(), R::Error> {
        Ok(())
    }
}
