//! The least time between two dispatches of a queue is kept.

use std::time::Duration;

use super::found::{Excuse, Found};
use crate::history::notes::Dispatch;

/// Judges dispatches of which it is known between which times the store made them. Two are surely too close if the end of each is less
/// than an interval after the beginning of the other.
pub(super) fn judge(dispatches: &[Dispatch], interval: Duration) -> Found {
    let interval = interval.as_nanos() as u64;
    let mut by_asked = dispatches.to_vec();
    by_asked.sort_unstable_by_key(|dispatch| dispatch.asked);
    // Of those that were asked for later, the one that was answered first.
    let mut first: Option<Dispatch> = None;
    let mut findings = Vec::new();
    for one in by_asked.iter().rev() {
        if let Some(other) = first.filter(|other| one.at.max(other.at) - one.asked < interval) {
            let most = Duration::from_nanos(one.at.max(other.at) - one.asked);
            findings.push(format!("{most:?} from {one:?} to {other:?}"));
        }
        first = first.filter(|first| first.at < one.at).or(Some(*one));
    }
    // A wide one says nothing.
    let narrow = dispatches.iter().filter(|one| one.at - one.asked < interval / 2).count();
    Found {
        name: "dispatched too early",
        findings,
        seen: format!("{} dispatches, {narrow} seen exactly", dispatches.len()),
        excuse: Excuse::Order,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(times: &[(u64, u64)]) -> usize {
        let dispatches: Vec<_> =
            times.iter().map(|(asked, at)| Dispatch { asked: *asked, at: *at }).collect();
        judge(&dispatches, Duration::from_nanos(100)).findings.len()
    }

    #[test]
    fn dispatches_that_may_be_an_interval_apart_are_good() {
        assert_eq!(found(&[(0, 5), (100, 105), (201, 204)]), 0);
        assert_eq!(found(&[(0, 50), (60, 120)]), 0, "at 5 and 110, say");
        assert_eq!(found(&[(0, 500), (60, 61)]), 0, "at 61 and 400");
    }

    #[test]
    fn dispatches_that_are_too_close_are_found() {
        assert_eq!(found(&[(0, 5), (90, 98)]), 1);
        assert_eq!(found(&[(90, 98), (0, 5), (20, 700)]), 1, "whatever lies between");
    }
}
