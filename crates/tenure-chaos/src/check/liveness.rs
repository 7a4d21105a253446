//! After the last fault everybody is served again.

use std::collections::BTreeMap;

use crate::history::Hold;

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
    fn a_task_that_is_not_served_any_more_is_found() {
        let tasks = [task(0, "t"), task(1, "t")];
        let (unserved, _) = judge(&[held(1, 0, 105, 106)], Some(100), &tasks);
        assert_eq!(unserved, [task(1, "t")]);
        let (unserved, _) = judge(&[held(1, 0, 95, 96)], Some(100), &tasks[..1]);
        assert_eq!(unserved, [task(0, "t")]);
    }
}
