//! Never more units held than there are: with one unit, never two at once.

use std::collections::BTreeSet;

use crate::history::Hold;

/// How long a hold counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// As long as it was surely not lost.
    Seen,
    /// Until its last deadline.
    Deadline,
}

/// A hold that began while too many units were held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) hold: Hold,
    /// Who held the others.
    pub(crate) beside: Vec<Hold>,
}

/// Returns the holds of one resource at whose beginning more units were held than the capacity.
pub(crate) fn exceeded(holds: &[&Hold], capacity: u32, extent: Extent) -> Vec<Over> {
    let until = |hold: &Hold| match extent {
        Extent::Seen => hold.until,
        Extent::Deadline => hold.until_deadline,
    };
    // Ends before beginnings, so that those that touch are not together.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (index, hold) in holds.iter().enumerate().filter(|(_, hold)| hold.granted < until(hold)) {
        events.push((hold.granted, true, index));
        events.push((until(hold), false, index));
    }
    events.sort_unstable();
    let (mut running, mut used) = (BTreeSet::new(), 0u64);
    let mut found = Vec::new();
    for (_, begins, index) in events {
        let weight = u64::from(holds[index].weight);
        if begins {
            used += weight;
            if used > u64::from(capacity) {
                let beside = running.iter().map(|other: &usize| holds[*other].clone()).collect();
                found.push(Over { hold: holds[index].clone(), beside });
            }
            running.insert(index);
        } else {
            used -= weight;
            running.remove(&index);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::held;

    fn found(holds: &[Hold], capacity: u32, extent: Extent) -> Vec<u64> {
        let holds: Vec<&Hold> = holds.iter().collect();
        exceeded(&holds, capacity, extent).iter().map(|over| over.hold.token).collect()
    }

    #[test]
    fn holds_that_touch_are_not_together() {
        let holds = [held(2, 0, 20, 30), held(1, 0, 10, 20), held(3, 0, 30, 40)];
        assert_eq!(found(&holds, 1, Extent::Seen), []);
    }

    #[test]
    fn two_at_once_are_found() {
        let holds = [held(1, 0, 10, 100), held(2, 0, 20, 30), held(3, 0, 40, 50), held(4, 0, 100, 110)];
        assert_eq!(found(&holds, 1, Extent::Seen), [2, 3]);
    }

    #[test]
    fn units_beyond_the_capacity_are_found() {
        let heavy = Hold { weight: 2, ..held(2, 0, 20, 40) };
        let holds = [held(1, 0, 10, 50), heavy, held(3, 0, 45, 60)];
        assert_eq!(found(&holds, 2, Extent::Seen), [2]);
        assert_eq!(found(&holds, 3, Extent::Seen), []);
    }

    #[test]
    fn who_was_not_seen_counts_until_its_deadline_only_where_that_is_asked() {
        let stopped = Hold { until_deadline: 50, ..held(1, 0, 10, 20) };
        let holds = [stopped, held(2, 0, 30, 40)];
        assert_eq!(found(&holds, 1, Extent::Seen), []);
        assert_eq!(found(&holds, 1, Extent::Deadline), [2]);
    }
}
