//! After the last fault everybody is served again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::found::Found;
use crate::history::notes::Fetch;
use crate::history::{History, Hold};

/// Returns the tasks that were not served after all was healed, and when the last one was, counted from then.
pub(super) fn judge(
    holds: &[Hold],
    fetches: &[Fetch],
    healed: Option<u64>,
    tasks: &[String],
) -> (Vec<String>, u64) {
    let Some(healed) = healed else { return (vec!["it was never healed".to_owned()], 0) };
    let mut first: BTreeMap<String, u64> = BTreeMap::new();
    let of_holds = holds.iter().map(|hold| (hold.granted, hold.client, &hold.task));
    let of_fetches = fetches.iter().map(|fetch| (fetch.at, fetch.process.0, &fetch.task));
    for (at, client, name) in of_holds.chain(of_fetches).filter(|(at, ..)| *at > healed) {
        let after = first.entry(task(client, name)).or_insert(u64::MAX);
        *after = (*after).min(at - healed);
    }
    let unserved = tasks.iter().filter(|task| !first.contains_key(*task)).cloned().collect();
    let recovery = tasks.iter().filter_map(|task| first.get(task)).max();
    (unserved, recovery.copied().unwrap_or(0))
}

/// Returns the longest time in which nobody was granted a lock, from the first grant until all was healed, in nanoseconds, and how long
/// after the first grant it began. Deliveries and loads do not count: nobody is handed an item while there is none, nor loads a value while
/// it is fresh.
pub(crate) fn standstill(holds: &[Hold], healed: Option<u64>) -> (u64, u64) {
    let locks = holds.iter().filter(|hold| hold.is_lock()).map(|hold| hold.granted);
    let mut granted: Vec<u64> =
        locks.filter(|granted| healed.is_none_or(|healed| *granted < healed)).collect();
    granted.sort_unstable();
    if !granted.is_empty() {
        // A store that is dead to the end is not over by the last grant.
        granted.extend(healed);
    }
    let first = granted.first().copied().unwrap_or_default();
    let pauses = granted.windows(2).map(|pair| (pair[1] - pair[0], pair[0] - first));
    pauses.max().unwrap_or_default()
}

/// How long clients go on as before when all is healed, in a soak that is long enough.
pub(crate) const GOES_ON: Duration = Duration::from_secs(10);
/// The last part of that is compared with the time before the first fault.
const COMPARED: Duration = Duration::from_secs(5);

/// Compares how much is granted after all was healed with how much was before anything was broken: a half at least. Both are counted for
/// the time in which the clients' processes could work. Nothing, if the soak was too short for that.
pub(super) fn progress(history: &History) -> Option<Found> {
    let ((began, ended), healed) = (history.notes.free?, history.healed?);
    let until = healed + GOES_ON.as_nanos() as u64;
    let before = rate(history, began, ended);
    let after = rate(history, until - COMPARED.as_nanos() as u64, until);
    let mut found = Found { name: "slower than before", ..Found::default() };
    found.seen = format!("{before:.0} locks a second before the first fault, {after:.0} after the last");
    if after * 2.0 < before {
        found.findings.push(found.seen.clone());
    }
    Some(found)
}

/// How many locks were granted in a second in which the processes were not held up.
fn rate(history: &History, from: u64, until: u64) -> f64 {
    let granted = history.holds.iter().filter(|hold| hold.is_lock() && (from..until).contains(&hold.granted));
    let count = granted.count() as f64;
    let stalls = history.notes.stalls.iter();
    let stalled: u64 = stalls.map(|stall| stall.until.min(until).saturating_sub(stall.from.max(from))).sum();
    let clients = history.subject.as_ref().map_or(1, |subject| subject.clients) as u64;
    let awake = (until - from).saturating_sub(stalled / clients);
    count / Duration::from_nanos(awake).as_secs_f64().max(0.1)
}

/// The name of a client's task.
pub(crate) fn task(client: usize, task: &str) -> String {
    format!("client {client}, {task}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Kind;
    use crate::history::notes::{Notes, Stall};
    use crate::history::tests::held;

    #[test]
    fn the_slowest_task_counts() {
        let other = |client, granted| Hold { client, ..held(1, 0, granted, granted + 1) };
        let tasks = [task(0, "t"), task(1, "t")];
        let holds = [other(0, 50), other(0, 105), other(1, 130), other(0, 190)];
        assert_eq!(judge(&holds, &[], Some(100), &tasks), (Vec::new(), 30));
    }

    #[test]
    fn the_longest_time_without_a_lock_is_found() {
        let delivery = Hold { kind: Kind::Delivery, ..held(1, 0, 60, 61) };
        let holds =
            [held(1, 0, 90, 91), held(1, 0, 10, 11), delivery, held(1, 0, 30, 31), held(1, 0, 500, 501)];
        assert_eq!(standstill(&holds, Some(100)), (60, 20));
        assert_eq!(standstill(&holds, Some(400)), (310, 80), "nobody was served to the end");
        assert_eq!(standstill(&[], None), (0, 0));
    }

    #[test]
    fn clients_that_stay_slow_are_found() {
        const S: u64 = 1_000_000_000;
        let notes = Notes { free: Some((0, 10 * S)), ..Notes::default() };
        let mut history = History { notes, healed: Some(100 * S), ..History::default() };
        history.holds = (0..100).map(|at| held(1, 0, at * S / 10, at * S / 10 + 1)).collect();
        history.holds.extend((0..24).map(|at| held(1, 0, 105 * S + at * S / 5, 200 * S)));
        assert_eq!(progress(&history).expect("it is long").findings.len(), 1);
        history.notes.stalls = vec![Stall { process: (0, 0), from: 104 * S, until: 106 * S }];
        assert_eq!(progress(&history).expect("it is long").findings.len(), 0, "they were held up");
        history.notes.free = None;
        assert!(progress(&history).is_none());
    }

    #[test]
    fn a_task_that_is_not_served_any_more_is_found() {
        let tasks = [task(0, "t"), task(1, "t")];
        let (unserved, _) = judge(&[held(1, 0, 105, 106)], &[], Some(100), &tasks);
        assert_eq!(unserved, [task(1, "t")]);
        let (unserved, _) = judge(&[held(1, 0, 95, 96)], &[], Some(100), &tasks[..1]);
        assert_eq!(unserved, [task(0, "t")]);
    }
}
