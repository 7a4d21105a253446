//! Releases that a server has still to hear of.
//!
//! A hold that is not wanted any more keeps others out of one vote until it ends by itself, so a server that did not
//! answer to a release gets it again: all that it has missed, in batches, one call at a time, so that a server that
//! comes back is not stormed. There is one entry for a claim, whatever was sent before, and none for a server that
//! the claim never reached or that has started anew since. What does not fit is dropped: the hold ends after its ttl.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_core::clock::Instant;
use tenure_core::engine::Incarnation;
use tenure_core::model::claim::ClaimId;
use tenure_redis::server::pause;
use tokio::sync::Notify;

use super::holds::RELEASE_WITHIN;
use super::node::Request;
use super::own::Own;
use super::text::{self, Ending};
use super::{BATCH_MAX, Quorum};
use crate::library::LIBRARY;

/// The most releases that are kept for one server: some 3 MB, and 128 calls when it is back.
pub(crate) const PENDING_MAX: usize = 16_384;
/// The longest time between two attempts to reach a server that does not answer.
const AGAIN_EVERY: Duration = Duration::from_secs(1);

/// What is still to be sent to one server.
#[derive(Default)]
pub(crate) struct Pending {
    entries: Mutex<BTreeMap<ClaimId, Entry>>,
    /// Before this nothing of what is kept ends, in nanoseconds: while there is no room, every release would look through all of it.
    full_until: AtomicU64,
    wake: Notify,
    is_closing: AtomicBool,
    /// Keeps the quorum until what a client that is gone gave back is sent.
    last: Mutex<Option<Arc<Quorum>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    key: String,
    ending: Ending,
    attempt: u32,
    /// When the hold has ended by itself.
    until: Instant,
    /// Whose memory the hold is in.
    incarnation: Incarnation,
}

impl Entry {
    /// Puts together what was to be sent before and what is to be sent now.
    fn after(mut self, earlier: &Entry) -> Entry {
        self.until = self.until.max(earlier.until);
        self.attempt = self.attempt.max(earlier.attempt);
        self.ending = match (earlier.ending, self.ending) {
            (
                Ending::Released { is_unused: one, is_finished },
                Ending::Released { is_unused: other, is_finished: is_finished_too },
            ) => Ending::Released { is_unused: one && other, is_finished: is_finished || is_finished_too },
            // A release ends whatever any attempt was granted.
            (released @ Ending::Released { .. }, _) => released,
            (_, now) => now,
        };
        self
    }
}

impl Pending {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<ClaimId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    /// Notes how a claim ends, for a server that may hold it by what this incarnation of it remembers.
    pub(crate) fn add(&self, now: Instant, key: String, own: &Own, ending: Ending, incarnation: Incarnation) {
        let entry =
            Entry { key, ending, attempt: own.attempt, until: now + own.claim.terms.ttl, incarnation };
        let mut entries = self.entries();
        let id = own.claim.id;
        if let Some(earlier) = entries.get(&id) {
            let entry = entry.after(earlier);
            entries.insert(id, entry);
        } else {
            if entries.len() >= PENDING_MAX && now.nanos() >= self.full_until.load(Ordering::Relaxed) {
                entries.retain(|_, entry| entry.until > now);
                let next = entries.values().map(|entry| entry.until).min();
                self.full_until.store(next.map_or(0, |next| next.nanos()), Ordering::Relaxed);
            }
            if entries.len() >= PENDING_MAX {
                tracing::debug!(claim = %id, "a server is away for long: the hold ends there by itself");
                return;
            }
            self.full_until.fetch_min(entry.until.nanos(), Ordering::Relaxed);
            entries.insert(id, entry);
        }
        drop(entries);
        self.wake.notify_one();
    }

    /// Lets the task end once all was said, once.
    pub(crate) fn close(&self, quorum: &Arc<Quorum>) {
        self.is_closing.store(true, Ordering::Relaxed);
        if !self.entries().is_empty() {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(quorum.clone());
        }
        self.wake.notify_one();
    }

    /// Returns what is sent next to a server, and forgets what need not be sent any more.
    fn next(&self, now: Instant, incarnation: Option<Incarnation>) -> Vec<(ClaimId, Entry)> {
        let mut entries = self.entries();
        // A server that has started anew does not count before all that it may have read from its disk has ended.
        let is_there = |entry: &Entry| {
            incarnation
                .is_none_or(|present| entry.incarnation == Incarnation(0) || entry.incarnation == present)
        };
        entries.retain(|_, entry| entry.until > now && is_there(entry));
        entries.iter().take(BATCH_MAX).map(|(id, entry)| (*id, entry.clone())).collect()
    }

    /// Forgets what was sent, unless there is something new to send.
    fn forget_sent(&self, batch: &[(ClaimId, Entry)]) {
        let mut entries = self.entries();
        for (id, sent) in batch {
            if entries.get(id) == Some(sent) {
                entries.remove(id);
            }
        }
    }
}

/// Sends to one server what is pending, until the client is gone and all is sent.
pub(crate) async fn send_pending(quorum: Weak<Quorum>, pending: Arc<Pending>, node: usize) {
    let (mut attempt, mut kept) = (0, None);
    loop {
        let last = pending.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(this) = kept.take().or(last).or_else(|| quorum.upgrade()) else { return };
        let incarnation = this.nodes[node].wire.incarnation();
        let batch = pending.next(this.clock.now(), incarnation);
        if batch.is_empty() {
            drop(this);
            if pending.is_closing.load(Ordering::Relaxed) {
                return;
            }
            pending.wake.notified().await;
            continue;
        }
        let mut request = Request::new(&LIBRARY.release);
        for (id, entry) in &batch {
            request.ask(entry.key.clone(), *id, vec![text::ending_of(entry.attempt, entry.ending)]);
        }
        if this.ask(node, RELEASE_WITHIN, true, &request).await.is_ok() {
            pending.forget_sent(&batch);
            attempt = 0;
            kept = pending.is_closing.load(Ordering::Relaxed).then_some(this);
            continue;
        }
        if pending.is_closing.load(Ordering::Relaxed) {
            return;
        }
        drop(this);
        pause::briefly(attempt, AGAIN_EVERY).await;
        attempt = attempt.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_core::clock::{Clock, SystemClock};
    use tenure_core::model::claim::{Claim, ClientId, Label, Name, Terms};
    use tenure_core::model::token::Token;

    use super::*;
    use crate::rounds::own::Copies;

    fn own(id: u128, ttl: Duration) -> Own {
        let mut terms = Terms::of_mutex(Label::from_stored("tests"));
        terms.ttl = ttl;
        let claim = Claim {
            resource: Name::new("m").expect("a good name"),
            id: ClaimId::new(id),
            client: ClientId::new(1),
            terms: Arc::new(terms),
            wait: false,
            floor: Token::ZERO,
            floor_forced: false,
            may_be_known: false,
        };
        Own::new(claim, 0, SystemClock.now(), &Copies::new(3))
    }

    fn released(is_unused: bool, is_finished: bool) -> Ending {
        Ending::Released { is_unused, is_finished }
    }

    fn add(pending: &Pending, own: &Own, ending: Ending) {
        pending.add(SystemClock.now(), "tenure:m".to_owned(), own, ending, Incarnation(7));
    }

    #[test]
    fn a_claim_is_told_once_whatever_was_to_be_told_of_it() {
        let (pending, own) = (Pending::default(), own(1, Duration::from_secs(30)));
        add(&pending, &own, Ending::Cancelled);
        add(&pending, &own, released(false, true));
        add(&pending, &own, released(true, false));
        add(&pending, &own, Ending::Cancelled);
        let sent = pending.next(SystemClock.now(), Some(Incarnation(7)));
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].1.ending, released(false, true), "no copy of it is granted later");
        pending.forget_sent(&sent);
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn what_is_new_while_a_call_is_under_way_is_told_by_the_next() {
        let (pending, own) = (Pending::default(), own(1, Duration::from_secs(30)));
        add(&pending, &own, Ending::Cancelled);
        let sent = pending.next(SystemClock.now(), None);
        add(&pending, &own, released(true, true));
        pending.forget_sent(&sent);
        assert_eq!(pending.next(SystemClock.now(), None)[0].1.ending, released(true, true));
    }

    #[test]
    fn what_has_ended_makes_room_for_what_is_new() {
        let (pending, short, long) = (Pending::default(), Duration::from_millis(1), Duration::from_secs(30));
        for id in 1..PENDING_MAX as u128 {
            add(&pending, &own(id, long), released(true, false));
        }
        let mut next = PENDING_MAX as u128..;
        let mut is_kept = |ttl: Duration| {
            let own = own(next.next().expect("an id"), ttl);
            add(&pending, &own, released(true, false));
            let ended = SystemClock.now() + short;
            while SystemClock.now() <= ended {}
            pending.entries().contains_key(&own.claim.id)
        };
        assert!(is_kept(short), "there was room for one");
        assert!(is_kept(short), "the last has ended");
        assert!(is_kept(long), "and so has the one in its place");
        assert!(!is_kept(long) && !is_kept(short), "nothing has ended");
        assert_eq!(pending.len(), PENDING_MAX);
    }

    #[test]
    fn no_more_than_a_bound_is_kept_and_nothing_that_has_ended() {
        let pending = Pending::default();
        for id in 0..PENDING_MAX as u128 + 10 {
            add(&pending, &own(id, Duration::from_secs(30)), released(true, false));
        }
        assert_eq!(pending.len(), PENDING_MAX);
        assert_eq!(pending.next(SystemClock.now(), None).len(), BATCH_MAX);
        assert!(
            pending.next(SystemClock.now(), Some(Incarnation(8))).is_empty(),
            "a server that has started anew knows of none"
        );
        add(&pending, &own(1, Duration::ZERO), released(true, false));
        assert!(pending.next(SystemClock.now(), None).is_empty(), "its hold has ended by itself");
    }
}
