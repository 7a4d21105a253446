//! After the last fault everybody is served again.

use std::collections::BTreeMap;

use crate::history::{Hold, Kind};

/// Returns the tasks that were not served after all was healed, and when the last one was, counted from then.
pub(crate) fn judge(holds: &[Hold], healed: Option<u64>, tasks: &[String]) -> (Vec<String>, u64) {
    let Some(healed) = healed else { return (vec!["it was never healed".to_owned()], 0) };
    let mut first: BTreeMap<String, u64> = BTreeMap::new();
    for hold in holds.iter().filter(|hold| hold.granted > healed) {
        let after = first.entry(task(hold.client, &hold.task)).or_insert(u64::MAX);
        *after = (*after).min(hold.granted - healed);
    }
    let unserved = tasks.iter().filter(|task| !first.contains_key(*task)).cloned().collect();
    let recovery = tasks.iter().filter_map(|task| first.get(task)).max();
    (unserved, recovery.copied().unwrap_or(0))
}

/// Returns the longest time in which nobody was granted a lock, until all was healed, in nanoseconds, and when it began. Deliveries do
/// not count: nobody is handed an item while there is none.
pub(crate) fn standstill(holds: &[Hold], healed: Option<u64>) -> (u64, u64) {
    let locks = holds.iter().filter(|hold| hold.kind != Kind::Delivery).map(|hold| hold.granted);
    let mut granted: Vec<u64> =
        locks.filter(|granted| healed.is_none_or(|healed| *granted < healed)).collect();
    granted.sort_unstable();
    let first = granted.first().copied().unwrap_or_default();
    let pauses = granted.windows(2).map(|pair| (pair[1] - pair[0], pair[0] - first));
    pauses.max().unwrap_or_default()
}

/// The name of a client's task.
pub(crate) fn task(client: usize, task: &str) -> String {
    format!("client {client}, {task}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::held;

    #[test]
    fn the_slowest_task_counts() {
        let other = |client, granted| Hold { client, ..held(1, 0, granted, granted + 1) };
        let tasks = [task(0, "t"), task(1, "t")];
        let holds = [other(0, 50), other(0, 105), other(1, 130), other(0, 190)];
        assert_eq!(judge(&holds, Some(100), &tasks), (Vec::new(), 30));
    }

    #[test]
    fn the_longest_time_without_a_lock_is_found() {
        let delivery = Hold { kind: Kind::Delivery, ..held(1, 0, 60, 61) };
        let holds =
            [held(1, 0, 90, 91), held(1, 0, 10, 11), delivery, held(1, 0, 30, 31), held(1, 0, 500, 501)];
        assert_eq!(standstill(&holds, Some(100)), (60, 20));
        assert_eq!(standstill(&[], None), (0, 0));
    }

    #[test]
    fn a_task_that_is_not_served_any_more_is_found() {
        let tasks = [task(0, "t"), task(1, "t")];
        let (unserved, _) = judge(&[held(1, 0, 105, 106)], Some(100), &tasks);
        assert_eq!(unserved, [task(1, "t")]);
        let (unserved, _) = judge(&[held(1, 0, 95, 96)], Some(100), &tasks[..1]);
        assert_eq!(unserved, [task(0, "t")]);
    }
}
