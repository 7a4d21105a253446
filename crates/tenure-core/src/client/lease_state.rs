//! What a lease shares between its user and the ledger: readable without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

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
    /// Made by the first task that waits for the end: most leases have none.
    ended: OnceLock<Box<Notify>>,
}

// A million leases are a million of these.
const _: () = assert!(size_of::<LeaseState>() <= 88);

impl LeaseState {
    pub(crate) fn new(resource: Name, claim: ClaimId, terms: Arc<Terms>) -> LeaseState {
        LeaseState {
            resource,
            claim,
            terms,
            token: AtomicU64::new(0),
            slot: AtomicU32::new(NO_SLOT),
            deadline: AtomicU64::new(OVER),
            ended: OnceLock::new(),
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
        // Either this sees whom a task has made, or that task sees that the lease is over.
        fence(Ordering::SeqCst);
        if let Some(ended) = self.ended.get() {
            ended.notify_waiters();
        }
    }

    /// Waits until the lease is over and the ledger has noticed: at its deadline at the latest.
    pub(crate) async fn ended(&self) {
        loop {
            let ended = self.ended.get_or_init(Box::default).notified();
            fence(Ordering::SeqCst);
            if self.deadline.load(Ordering::Acquire) & OVER != 0 {
                return;
            }
            ended.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::{Mutex, mpsc};
    use std::task::{Context, Wake};
    use std::time::Duration;

    use super::*;
    use crate::model::claim::Label;

    /// A task whose waker goes on with it at once, as some executors do.
    struct GoesOn {
        task: Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>,
        done: mpsc::Sender<()>,
    }

    impl Wake for GoesOn {
        fn wake(self: Arc<Self>) {
            let waker = self.clone().into();
            let mut task = self.task.lock().expect("no panic");
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.done.send(()).expect("the test waits");
            }
        }
    }

    #[test]
    fn a_waker_may_ask_again_about_the_end_that_it_is_woken_for() {
        let terms = Arc::new(Terms::of_mutex(Label::new("here", 1, "test", "")));
        let lease = LeaseState::new(Name::new("x").expect("a good name"), ClaimId::new(1), terms);
        lease.grant(Token::new(1), None, Instant::NEVER);
        let lease = Arc::new(lease);
        let (done, is_done) = mpsc::channel();
        let waits = lease.clone();
        Arc::new(GoesOn { task: Mutex::new(Box::pin(async move { waits.ended().await })), done }).wake();
        assert!(is_done.try_recv().is_err(), "it is held");
        std::thread::spawn(move || {
            lease.end();
            lease.notify_ended();
        });
        is_done
            .recv_timeout(Duration::from_secs(20))
            .expect("nobody waits for a lock that its own thread has");
    }
}
