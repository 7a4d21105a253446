//! Waiters whom nobody can notify: whether they still wait is asked for all of them at once, the more often the nearer their turn is.
//!
//! A heartbeat keeps a place and may lock rows, so it comes each third of a confirm window. To ask whether an entry still stands in its line
//! locks nothing and writes nothing. A waiter that does not stand there any more has been granted what it waits for, or is gone:
//! it is rung, and asks as if it had been notified.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::model::claim::ClaimId;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::database::Database;
use crate::fault::Fault;
use crate::locks::load::claims as claim_list;
use crate::locks::plain::run_text;
use crate::text::{Columns, Dialect};

/// The pause between two looks for the head of a line, as a part of how long it has waited: who has waited for long can wait for a
/// little longer. Behind it the pause is so many times as long as the place says.
const PART: u32 = 40;
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Who would pause for longer is far from its turn, and its heartbeats say how it stands.
const FAR: Duration = Duration::from_secs(1);
/// How many are looked for at once. In a client with more the pauses get longer, and the server's work does not grow.
const MOST: usize = 64;
/// After a look there is none for so many times as long as it took: a server that is slow to answer has much to do.
const REST: u32 = 4;
/// Until when one that cannot be asked is asked again.
const REST_AFTER_FAULT: Duration = Duration::from_secs(1);
/// A waiter that nothing was heard of for so long waits no more: it had several heartbeats meanwhile.
const LIFE: Duration = Duration::from_secs(20);

/// Those of a client that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    all: Mutex<HashMap<ClaimId, Waiter>>,
    changed: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    since: Instant,
    heard_at: Instant,
    /// When it is looked for next; `None`: it is too far from its turn.
    due: Option<Instant>,
}

/// How long the waiter at a place pauses between two looks; `None` where its heartbeats will do.
fn pause_at(place: u32, waited: Duration) -> Option<Duration> {
    let pause = (waited / PART).clamp(PAUSE_MIN, PAUSE_MAX).checked_mul(place.max(1))?;
    (pause <= FAR).then_some(pause)
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Waiter>> {
        // A panic elsewhere cannot leave it half-changed.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim stands at this place in its line.
    pub(crate) fn stands(&self, claim: ClaimId, place: u32) {
        self.stands_since(claim, place, Instant::now());
    }

    fn stands_since(&self, claim: ClaimId, place: u32, now: Instant) {
        let mut all = self.lock();
        let waiter = all.entry(claim).or_insert(Waiter { since: now, heard_at: now, due: None });
        waiter.heard_at = now;
        let pause = pause_at(place, now.saturating_duration_since(waiter.since));
        waiter.due = pause.map(|pause| now + pause);
        drop(all);
        self.changed.notify_one();
    }

    /// A claim stands in no line any more.
    pub(crate) fn remove(&self, claim: ClaimId) {
        self.lock().remove(&claim);
    }

    /// When somebody is looked for next.
    fn next_due(&self) -> Option<Instant> {
        self.lock().values().filter_map(|waiter| waiter.due).min()
    }

    /// Those that are to be looked for, the longest due first. Who was not heard of for long is forgotten.
    fn due(&self, now: Instant) -> Vec<ClaimId> {
        let mut all = self.lock();
        all.retain(|_, waiter| now.saturating_duration_since(waiter.heard_at) < LIFE);
        let due =
            |(claim, waiter): (&ClaimId, &Waiter)| Some((waiter.due.filter(|due| *due <= now)?, *claim));
        let mut due: Vec<(Instant, ClaimId)> = all.iter().filter_map(due).collect();
        due.sort_unstable();
        due.into_iter().take(MOST).map(|(_, claim)| claim).collect()
    }

    /// Looks for a client's waiters for as long as it is polled.
    pub(crate) async fn keep_looking<D: Database>(self: Arc<Self>, database: Arc<D>) {
        loop {
            let changed = self.changed.notified();
            match self.next_due() {
                None => {
                    changed.await;
                    continue;
                }
                Some(due) if due > Instant::now() => {
                    // Somebody may be due earlier by then.
                    let _ = timeout_at(due, changed).await;
                    continue;
                }
                Some(_) => {}
            }
            let began = Instant::now();
            let rest = match self.look(&*database, &self.due(began)).await {
                Ok(()) => REST * began.elapsed(),
                Err(fault) => {
                    tracing::debug!(engine = D::ENGINE, ?fault, "nobody can be looked for now");
                    REST_AFTER_FAULT
                }
            };
            sleep_until(Instant::now() + rest.min(REST_AFTER_FAULT)).await;
        }
    }

    async fn look<D: Database>(&self, database: &D, claims: &[ClaimId]) -> Result<(), Fault> {
        if claims.is_empty() {
            return Ok(());
        }
        let found = run_text(database, still_waiting::<D>(database, claims)).await?;
        let mut places = HashMap::new();
        for row in &found {
            let mut columns = Columns::of(row);
            let Some(claim) = columns.maybe_claim()? else { continue };
            places.insert(claim, columns.small()?);
        }
        let now = Instant::now();
        for claim in claims {
            match places.get(claim) {
                Some(ahead) => self.moved(*claim, ahead.saturating_add(1), now),
                None => {
                    self.remove(*claim);
                    database.inbox().ring(*claim);
                }
            }
        }
        Ok(())
    }

    /// A claim was seen at this place. It may have been removed meanwhile.
    fn moved(&self, claim: ClaimId, place: u32, now: Instant) {
        if let Some(waiter) = self.lock().get_mut(&claim) {
            let pause = pause_at(place, now.saturating_duration_since(waiter.since));
            waiter.due = pause.map(|pause| now + pause);
        }
    }
}

/// Those of these claims that stand in a line, and how many are before them there.
fn still_waiting<D: Database>(database: &D, claims: &[ClaimId]) -> String {
    let (table, by) = (&database.tables().claim, D::Dialect::BY_CLAIM);
    let list = claim_list::<D::Dialect>(claims.iter().copied());
    format!(
        "SELECT {}, (SELECT count(*) FROM {table} a {by} WHERE a.name = w.name AND a.place > 0 AND a.place < w.place) \
         FROM {table} w {by} WHERE w.claim IN ({list}) AND w.place > 0",
        D::Dialect::hex("w.claim")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_head_is_looked_for_often_and_less_often_when_it_has_waited_for_long() {
        assert_eq!(pause_at(1, Duration::ZERO), Some(millis(20)));
        assert_eq!(pause_at(1, millis(4000)), Some(millis(100)));
        assert_eq!(pause_at(1, Duration::from_secs(3600)), Some(millis(200)));
        assert_eq!(pause_at(3, millis(100)), Some(millis(60)));
        assert_eq!(pause_at(50, Duration::ZERO), Some(FAR));
        assert_eq!(pause_at(51, Duration::ZERO), None);
        assert_eq!(pause_at(u32::MAX, Duration::from_secs(3600)), None);
    }

    #[test]
    fn those_that_are_due_come_first_and_who_was_not_heard_of_is_forgotten() {
        let (waiters, start) = (Waiters::default(), Instant::now());
        assert_eq!((waiters.next_due(), waiters.due(start)), (None, Vec::new()), "nobody waits");
        let [head, second, far] = [1, 2, 3].map(ClaimId::new);
        for (claim, place) in [(head, 1), (second, 2), (far, 60)] {
            waiters.stands_since(claim, place, start);
        }
        assert_eq!(waiters.next_due(), Some(start + millis(20)));
        assert_eq!(waiters.due(start + millis(19)), []);
        assert_eq!(waiters.due(start + millis(40)), [head, second], "who is far has heartbeats");
        // A heartbeat of the one that is far.
        waiters.stands_since(far, 1, start + Duration::from_secs(10));
        assert_eq!(waiters.due(start + Duration::from_secs(25)), [far], "the others are gone");
        waiters.remove(far);
        assert_eq!(waiters.next_due(), None);
    }

    #[test]
    fn a_client_with_many_waiters_looks_for_some_at_a_time() {
        let (waiters, start) = (Waiters::default(), Instant::now());
        (0..1000).for_each(|number| waiters.stands_since(ClaimId::new(number), 1, start));
        let first = waiters.due(start + millis(20));
        assert_eq!(first.len(), MOST);
        first.iter().for_each(|claim| waiters.moved(*claim, 1, start + millis(20)));
        let next = waiters.due(start + millis(21));
        assert!(next.len() == MOST && next.iter().all(|claim| !first.contains(claim)), "each has its turn");
    }
}
