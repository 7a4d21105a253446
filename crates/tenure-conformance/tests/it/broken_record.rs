//! A model of which one rule is broken, inside the store.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::memory::{Flaw, Verb};
use tenure_core::model::claim::{Claim, ClaimId};
use tenure_core::model::record::{Hold, PlainRecord, Record, Waiter};
use tenure_core::model::step::Woken;

/// Which rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Units that are held count as free.
    CapacityIgnored,
    /// A try takes what was granted to a waiter that has not confirmed.
    TriesBarge,
    /// A try does not look whether anybody waits.
    TriesOvertake,
    /// Another kind or capacity is taken for the one in use.
    KindsMixed,
    /// A new waiter becomes the head of the queue.
    LastComeFirstServed,
    /// A waiter that withdraws stays in the queue.
    WithdrawalsIgnored,
    /// Whatever is withdrawn ends, whoever has it and knows of it.
    WithdrawsAnything,
    /// A waiter that is not heard of stays in the queue.
    WaitersNeverEnd,
    /// A waiter that withdraws frees what others hold.
    LeavingFrees,
    /// A heartbeat of a waiter that was granted does not confirm the grant.
    HeartbeatsConfirmNothing,
    /// Of several waiters that fit, the first is granted, and the others are forgotten.
    OneServedOthersLost,
    /// The slot that came free last is given first.
    SlotsLastFreedFirst,
    /// Units never rest.
    RestsSkipped,
    /// Holds live for ever.
    HoldsNeverEnd,
    /// Holds end after half of their ttl, renewed or not.
    HoldsEndEarly,
    /// A grant to a waiter lives for its whole ttl.
    WindowIgnored,
    /// A release of an unknown claim releases whoever holds.
    ReleasesOfAnybody,
    /// Claims that have ended are forgotten.
    FinishedForgotten,
    /// Whoever publishes is taken for the holder.
    ValuesOfAnybody,
    /// Whichever token is named, the holder is broken.
    BreaksOfAnybody,
}

/// Breaks a rule of every record of a store.
pub(crate) struct BrokenRecord {
    rule: Rule,
    /// How many waited before the step that is under way.
    waited: AtomicU32,
}

/// A time that no check lives to see.
const FOR_EVER: Timestamp = Timestamp::from_micros(u64::MAX / 2);

impl BrokenRecord {
    pub(crate) fn new(rule: Rule) -> BrokenRecord {
        BrokenRecord { rule, waited: AtomicU32::new(0) }
    }
}

fn holds(record: &PlainRecord) -> Vec<Hold> {
    let Ok(holds) = record.holds(usize::MAX);
    holds
}

fn waiters(record: &PlainRecord) -> Vec<Waiter> {
    let Ok(waiters) = record.waiters(usize::MAX);
    waiters
}

/// Changes every hold in place.
fn change_holds(record: &mut PlainRecord, change: impl Fn(&mut Hold)) {
    for mut hold in holds(record) {
        change(&mut hold);
        let Ok(()) = record.put_hold(hold);
    }
}

/// Ends the holds that `is_meant` chooses, and frees their units.
fn free(record: &mut PlainRecord, is_meant: impl Fn(&Hold) -> bool) {
    let Ok(Some(mut head)) = record.head() else { return };
    for hold in holds(record).into_iter().filter(is_meant) {
        let Ok(()) = record.remove_hold(hold.token);
        head.used = head.used.saturating_sub(hold.weight);
        if let Some(slot) = hold.slot {
            let Ok(()) = record.push_free_slot(slot);
        }
    }
    let Ok(()) = record.set_head(head);
}

/// Counts units and waiters anew.
fn recount(record: &mut PlainRecord) {
    let Ok(Some(mut head)) = record.head() else { return };
    head.used = holds(record).iter().map(|hold| hold.weight).sum();
    head.waiting = waiters(record).len() as u32;
    let Ok(()) = record.set_head(head);
}

/// Moves the waiter that came last to the place of the first, and everybody else one back.
fn rotate(record: &mut PlainRecord) {
    let mut rotated = waiters(record);
    let places: Vec<u64> = rotated.iter().map(|waiter| waiter.place).collect();
    rotated.rotate_right(1);
    for (mut waiter, place) in rotated.into_iter().zip(places) {
        waiter.place = place;
        let Ok(()) = record.put_waiter(waiter);
    }
}

impl BrokenRecord {
    fn before_claim(&self, record: &mut PlainRecord, claim: &Claim) {
        let Ok(Some(mut head)) = record.head() else { return };
        match self.rule {
            Rule::CapacityIgnored => head.used = 0,
            Rule::TriesBarge if !claim.wait => return free(record, |hold| !hold.is_confirmed),
            Rule::TriesOvertake if !claim.wait => head.waiting = 0,
            Rule::KindsMixed => (head.kind, head.capacity) = (claim.terms.kind, claim.terms.capacity),
            Rule::SlotsLastFreedFirst => {
                let mut slots = Vec::new();
                while let Ok(Some(slot)) = record.pop_free_slot() {
                    slots.push(slot);
                }
                for slot in slots.into_iter().rev() {
                    let Ok(()) = record.push_free_slot(slot);
                }
            }
            _ => return,
        }
        let Ok(()) = record.set_head(head);
    }
}

impl Flaw for BrokenRecord {
    fn before(&self, record: &mut PlainRecord, verb: Verb<'_>) {
        self.waited.store(waiters(record).len() as u32, Ordering::Relaxed);
        let holder = holds(record).first().cloned();
        let waits = |record: &PlainRecord, claim| matches!(record.waiter_of(claim), Ok(Some(_)));
        match (self.rule, verb) {
            (_, Verb::Claim(claim)) => self.before_claim(record, claim),
            (Rule::WithdrawalsIgnored, Verb::Release(release)) if waits(record, release.claim) => {
                // Released is what nobody claimed.
                (release.claim, release.maybe_in_flight) = (ClaimId::new(0), false);
            }
            (Rule::LeavingFrees, Verb::Release(release)) if waits(record, release.claim) => {
                free(record, |_| true);
            }
            (Rule::HeartbeatsConfirmNothing, Verb::Renew(claim)) => {
                // Renewed as if it had just been granted to a waiter.
                if let Ok(Some(mut hold)) = record.hold_of(claim) {
                    hold.ttl = Duration::from_secs(5);
                    let Ok(()) = record.put_hold(hold);
                }
            }
            (Rule::ReleasesOfAnybody, Verb::Release(release)) if !waits(record, release.claim) => {
                if let Some(held) = holder.and_then(|hold| hold.claim) {
                    release.claim = held;
                }
            }
            (Rule::WithdrawsAnything, Verb::Withdraw(withdraw)) => {
                for hold in holds(record) {
                    let Ok(()) = record.put_hold(Hold { is_confirmed: false, ..hold });
                }
                if let Ok(Some(hold)) = record.hold_of(withdraw.claim) {
                    withdraw.client = hold.client;
                }
                if let Ok(Some(waiter)) = record.waiter_of(withdraw.claim) {
                    withdraw.client = waiter.client;
                }
            }
            (Rule::ValuesOfAnybody, Verb::Publish(publish)) => {
                if let Some(held) = holder.and_then(|hold| hold.claim) {
                    publish.claim = held;
                }
            }
            (Rule::BreaksOfAnybody, Verb::Break(hold)) => {
                if let Some(holder) = holder {
                    hold.token = holder.token;
                }
            }
            _ => {}
        }
    }

    fn after(&self, record: &mut PlainRecord, wakes: &mut Vec<Woken>) {
        match self.rule {
            Rule::CapacityIgnored | Rule::TriesOvertake => recount(record),
            Rule::LastComeFirstServed
                if waiters(record).len() as u32 > self.waited.load(Ordering::Relaxed) =>
            {
                rotate(record);
            }
            Rule::WaitersNeverEnd => {
                for waiter in waiters(record) {
                    let Ok(()) = record.put_waiter(Waiter { expires_at: FOR_EVER, ..waiter });
                }
            }
            Rule::OneServedOthersLost if wakes.len() > 1 => {
                let lost: Vec<_> = wakes.drain(1..).map(|woken| Some(woken.claim)).collect();
                free(record, |hold| lost.contains(&hold.claim));
            }
            Rule::RestsSkipped => free(record, |hold| hold.claim.is_none()),
            Rule::HoldsNeverEnd => change_holds(record, |hold| hold.expires_at = FOR_EVER),
            Rule::HoldsEndEarly => change_holds(record, |hold| {
                hold.expires_at = hold.expires_at.min(hold.granted_at + hold.ttl / 2);
            }),
            Rule::WindowIgnored => change_holds(record, |hold| {
                hold.expires_at = hold.expires_at.max(hold.granted_at + hold.ttl);
            }),
            Rule::FinishedForgotten => {
                let Ok(()) = record.forget_finished(FOR_EVER);
            }
            _ => {}
        }
    }
}
