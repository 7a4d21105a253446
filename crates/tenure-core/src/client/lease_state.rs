//! What a lease shares between its user and the ledger: readable without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use event_listener::{Event, listener};

use crate::clock::Instant;
use crate::model::claim::{ClaimId, Name, Terms};
use crate::model::token::Token;

/// Set in a deadline that has passed for good. The other bits stay, for callers that must end work by then.
const OVER: u64 = 1 << 63;
const NO_SLOT: u32 = u32::MAX;

/// One acquisition. The deadline moves forward only until any thread has seen it to be over.
pub(crate) struct LeaseState {
    resource: Name,
    claim: ClaimId,
    terms: Arc<Terms>,
    token: AtomicU64,
    slot: AtomicU32,
    deadline: AtomicU64,
    ended: Event,
}

// A million leases are a million of these.
const _: () = assert!(size_of::<LeaseState>() <= 80);

impl LeaseState {
    pub(crate) fn new(resource: Name, claim: ClaimId, terms: Arc<Terms>) -> LeaseState {
        LeaseState {
            resource,
            claim,
            terms,
            token: AtomicU64::new(0),
            slot: AtomicU32::new(NO_SLOT),
            deadline: AtomicU64::new(OVER),
            ended: Event::new(),
        }
    }

    pub(crate) fn resource(&self) -> &Name {
        &self.resource
    }

    pub(crate) fn claim(&self) -> ClaimId {
        self.claim
    }

    pub(crate) fn terms(&self) -> &Arc<Terms> {
        &self.terms
    }

    pub(crate) fn token(&self) -> Token {
        Token::new(self.token.load(Ordering::Relaxed))
    }

    pub(crate) fn slot(&self) -> Option<u32> {
        Some(self.slot.load(Ordering::Relaxed)).filter(|slot| *slot != NO_SLOT)
    }

    /// Notes the grant, before another thread can see the lease.
    pub(crate) fn grant(&self, token: Token, slot: Option<u32>, deadline: Instant) {
        self.token.store(token.get(), Ordering::Relaxed);
        self.slot.store(slot.unwrap_or(NO_SLOT), Ordering::Relaxed);
        self.deadline.store(deadline.nanos() & !OVER, Ordering::Release);
    }

    /// Returns the deadline; zero if the lease is over.
    pub(crate) fn deadline(&self) -> Instant {
        let deadline = self.deadline.load(Ordering::Acquire);
        Instant::from_nanos(if deadline & OVER == 0 { deadline } else { 0 })
    }

    /// Returns the last deadline that the lease had, even if it ended sooner.
    pub(crate) fn last_deadline(&self) -> Instant {
        Instant::from_nanos(self.deadline.load(Ordering::Acquire) & !OVER)
    }

    /// Whether the lease is over. Once true, it stays so, whatever a late answer says.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let mut deadline = self.deadline.load(Ordering::Acquire);
        loop {
            if deadline & OVER != 0 {
                return true;
            }
            if now.nanos() < deadline {
                return false;
            }
            match self.deadline.compare_exchange(
                deadline,
                deadline | OVER,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(moved) => deadline = moved,
            }
        }
    }

    /// Moves the deadline forward. Returns false if the lease is over.
    pub(crate) fn extend(&self, deadline: Instant, now: Instant) -> bool {
        if self.is_over(now) && !mutant!("late-answers-revive") {
            return false;
        }
        let moved = self.deadline.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
            (old & OVER == 0 || mutant!("late-answers-revive"))
                .then_some((old & !OVER).max(deadline.nanos() & !OVER))
        });
        moved.is_ok()
    }

    /// Ends the lease now. [`LeaseState::notify_ended`] wakes the tasks that wait for that.
    pub(crate) fn end(&self) {
        self.deadline.fetch_or(OVER, Ordering::AcqRel);
    }

    /// Wakes the tasks that wait for the end.
    pub(crate) fn notify_ended(&self) {
        self.ended.notify(usize::MAX);
    }

    /// Waits until the lease is over and the ledger has noticed: at its deadline at the latest.
    pub(crate) async fn ended(&self) {
        loop {
            listener!(self.ended => ended);
            if self.deadline.load(Ordering::Acquire) & OVER != 0 {
                return;
            }
            ended.await;
        }
    }
}
