//! The checkers: pure functions of a history, O(n log n), each of which is seen to fail on a bad history.

mod capacity;
mod fencing;
mod found;
mod items;
pub(crate) mod liveness;
mod notice;
mod order;
mod pace;
mod replaced;
mod stalls;
mod tokens;
mod usage;
mod values;

use std::collections::BTreeMap;

pub(crate) use capacity::{Extent, Over};
pub(crate) use found::Found;
pub(crate) use items::Items;

use crate::history::{History, Hold, Kind};
use crate::promise::Promises;

/// What the checkers found.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Holds that began while others had all units and had surely not lost them.
    pub(crate) overlaps: Vec<Over>,
    /// The same, counting each hold until its last deadline: what a holder that was stopped or killed was not seen to hold.
    pub(crate) overlaps_until_deadline: Vec<Over>,
    /// Grants whose token was given before, or is not larger than one that had been answered before they were asked for.
    pub(crate) bad_tokens: Vec<String>,
    /// The same of deliveries, for each group.
    pub(crate) bad_delivery_tokens: Vec<String>,
    /// Writes that were accepted after one of a later grant.
    pub(crate) stale_accepted: Vec<String>,
    /// Holds that were refused by the resource and not lost.
    pub(crate) refused_while_held: Vec<Hold>,
    /// Holds that were called valid after their deadline.
    pub(crate) over_deadline: Vec<Hold>,
    /// What became of items.
    pub(crate) items: Items,
    /// Tasks that were not served after all was healed.
    pub(crate) unserved: Vec<String>,
    /// Errors that no fault explains.
    pub(crate) unexplained: Vec<String>,
    /// How long after that the last task was served, in nanoseconds.
    pub(crate) recovery: u64,
    /// The longest time without a grant of a lock, and when it began, in nanoseconds since the first one.
    pub(crate) standstill: (u64, u64),
    /// How many writes of late holders were refused.
    pub(crate) stale_refused: usize,
    /// What the other checkers say.
    pub(crate) found: Vec<Found>,
}

/// Judges a history. `tasks` are those that must be served after the last fault, of each client.
pub(crate) fn judge(history: &History, tasks: &[String], capacity: fn(Kind) -> u32) -> Verdict {
    let mut verdict = Verdict::default();
    let mut by_resource: BTreeMap<(Kind, &str), Vec<&Hold>> = BTreeMap::new();
    for hold in &history.holds {
        by_resource.entry((hold.kind, &hold.resource)).or_default().push(hold);
    }
    for ((kind, _), holds) in &by_resource {
        let capacity = capacity(*kind);
        verdict.overlaps.extend(capacity::exceeded(holds, capacity, Extent::Seen));
        verdict.overlaps_until_deadline.extend(capacity::exceeded(holds, capacity, Extent::Deadline));
        match kind {
            Kind::Delivery => verdict.bad_delivery_tokens.extend(tokens::bad(holds)),
            _ => verdict.bad_tokens.extend(tokens::bad(holds)),
        }
    }
    verdict.stale_accepted = fencing::stale_accepted(&history.accesses);
    verdict.stale_refused = history.accesses.iter().filter(|access| !access.is_accepted).count();
    let chosen =
        |chosen: fn(&Hold) -> bool| history.holds.iter().filter(|hold| chosen(hold)).cloned().collect();
    verdict.refused_while_held = chosen(Hold::is_refused_while_held);
    verdict.over_deadline = chosen(|hold| hold.over_deadline > 0);
    verdict.items = items::judge(&history.pushes, &history.accesses);
    verdict.unexplained = history.unexplained();
    verdict.standstill = liveness::standstill(&history.holds, history.healed);
    (verdict.unserved, verdict.recovery) =
        liveness::judge(&history.holds, &history.notes.fetches, history.healed, tasks);
    verdict.found = others(history);
    verdict
}

fn others(history: &History) -> Vec<Found> {
    let History { holds, notes, terms, .. } = history;
    let mut found = vec![notice::judge(holds, notes), notice::swallowed(holds, notes)];
    found.push(usage::judge(&notes.usages));
    found.extend(liveness::progress(history));
    found.extend(terms.is_fifo.then(|| replaced::judge(history)));
    found.extend(terms.is_fifo.then(|| order::judge(holds, notes, terms.hands_out_slots)));
    found.extend((!terms.interval.is_zero()).then(|| pace::judge(&notes.dispatches, terms.interval)));
    if terms.has_values {
        found.extend(values::judge(holds, &notes.fetches, terms.grain));
    }
    found
}

impl Verdict {
    /// Whether all promises were kept. Overlaps until a deadline are told beside it: who was told of a loss between two looks, and was
    /// stopped or killed before the second one, had no deadline any more.
    pub(crate) fn keeps(&self, promises: Promises) -> bool {
        let is_exclusive = self.overlaps.is_empty() && self.refused_while_held.is_empty();
        (is_exclusive || promises.counts_overlaps)
            && self.bad_tokens.is_empty()
            && (self.bad_delivery_tokens.is_empty() || promises.counts_delivery_tokens)
            && (self.items.lost.is_empty() || promises.counts_items)
            && (self.items.out_of_order.is_empty() || promises.counts_order)
            && self.stale_accepted.is_empty()
            && self.over_deadline.is_empty()
            && self.unserved.is_empty()
            && self.unexplained.is_empty()
            && self.found.iter().all(|found| found.keeps(promises))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Verdict {
        fn is_good(&self) -> bool {
            self.keeps(Promises::ALL)
        }
    }

    #[test]
    fn what_an_engine_does_not_promise_is_counted() {
        let holds = vec![held(1, 0, 1, 10), held(2, 5, 6, 20)];
        let verdict = judge(&History { holds, healed: Some(0), ..History::default() }, &[], |_| 1);
        assert_eq!(verdict.overlaps.len(), 1);
        assert!(!verdict.keeps(Promises::ALL) && verdict.keeps(Promises::BUT_MEMORY));
        let verdict = Verdict { stale_accepted: vec!["a late write".to_owned()], ..Verdict::default() };
        assert!(!verdict.keeps(Promises::BUT_MEMORY));
    }
    use crate::history::tests::held;

    #[test]
    fn each_resource_is_judged_by_itself() {
        let other = |kind, resource: &str| Hold { kind, resource: resource.to_owned(), ..held(2, 5, 6, 20) };
        let holds = vec![held(1, 0, 1, 10), other(Kind::Mutex, "n"), other(Kind::Semaphore, "m")];
        let history = History { holds, healed: Some(0), ..History::default() };
        let capacity = |kind| if kind == Kind::Semaphore { 2 } else { 1 };
        assert!(judge(&history, &[], capacity).is_good());
        let holds = vec![held(1, 0, 1, 10), other(Kind::Mutex, "m")];
        assert!(!judge(&History { holds, ..history }, &[], capacity).is_good());
    }

    #[test]
    fn a_writer_beside_a_reader_is_found() {
        let side =
            |token, weight, granted| Hold { kind: Kind::ReadWrite, weight, ..held(token, 0, granted, 50) };
        let judged = |holds| judge(&History { holds, healed: Some(0), ..History::default() }, &[], |_| 9);
        assert!(judged(vec![side(1, 1, 10), side(2, 1, 20)]).is_good(), "readers share");
        assert_eq!(judged(vec![side(1, 1, 10), side(2, 9, 20)]).overlaps.len(), 1);
    }

    #[test]
    fn a_hold_that_is_valid_after_its_deadline_is_found() {
        let holds = vec![Hold { over_deadline: 1, ..held(1, 0, 1, 10) }];
        let verdict = judge(&History { holds, healed: Some(0), ..History::default() }, &[], |_| 1);
        assert_eq!(verdict.over_deadline.len(), 1);
        assert!(!verdict.is_good());
    }

    #[test]
    fn a_hold_that_is_refused_and_not_lost_is_found() {
        let holds = vec![Hold { refused: Some(5), ..held(1, 0, 1, 10) }];
        let verdict = judge(&History { holds, healed: Some(0), ..History::default() }, &[], |_| 1);
        assert_eq!(verdict.refused_while_held.len(), 1);
        assert!(!verdict.is_good());
    }
}
