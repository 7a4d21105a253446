//! First come, first served: a claim that was in line is granted before claims that were sent later.

use std::collections::BTreeMap;

use super::found::{Excuse, Found};
use super::stalls::Stalls;
use crate::history::notes::{Notes, Process, Wait};
use crate::history::{Hold, Kind};

/// A process that stood still for so long may have lost its places: a third of it is the time from one heartbeat to the next.
const STILL_MAX: u64 = 200_000_000;

/// Judges the grants of claims that were seen in line: their tokens say in which order the store made them. Left out are claims that may
/// have lost their place: their client reported that, or stood still and could not report it.
pub(super) fn judge(holds: &[Hold], notes: &Notes, hands_out_slots: bool) -> Found {
    let mut lines: BTreeMap<(Kind, &str), Vec<&Hold>> = BTreeMap::new();
    let mut granted: BTreeMap<(Process, &str, u64), &Hold> = BTreeMap::new();
    for hold in holds {
        lines.entry((hold.kind, line(hold))).or_default().push(hold);
        granted.insert(((hold.client, hold.incarnation), &hold.task, hold.asked), hold);
    }
    let (stalls, told) = (Stalls::of(&notes.stalls), told(notes));
    let mut waits: BTreeMap<(Kind, &str), Vec<(&Wait, &Hold)>> = BTreeMap::new();
    let (mut judged, mut left_out) = (0, 0);
    for wait in notes.waits.iter().filter(|wait| wait.kind != Kind::Slot || hands_out_slots) {
        // A claim without a grant was given up, or its client died.
        let Some(hold) = granted.get(&(wait.process, wait.task.as_str(), wait.asked)) else { continue };
        let has_told = told.get(&(wait.process, wait.resource.as_str())).is_some_and(|times| {
            times.get(times.partition_point(|at| *at < wait.asked)).is_some_and(|at| *at < hold.granted)
        });
        if has_told || stalls.within(wait.process, wait.asked, hold.granted) > STILL_MAX {
            left_out += 1;
            continue;
        }
        judged += 1;
        waits.entry((wait.kind, &wait.resource)).or_default().push((wait, hold));
    }
    let overtaken = waits.into_iter().flat_map(|(key, waits)| overtaken(waits, lines.remove(&key)));
    Found {
        name: "overtaken in line",
        findings: overtaken.collect(),
        seen: format!("{judged} waited in line, {left_out} may have lost their place"),
        excuse: Excuse::Order,
    }
}

/// Of a slot, the line is that of the pool.
fn line(hold: &Hold) -> &str {
    match hold.kind {
        Kind::Slot => hold.resource.rsplit_once('#').map_or(&hold.resource, |(pool, _)| pool),
        _ => &hold.resource,
    }
}

/// When which process told something about a resource, in order.
fn told(notes: &Notes) -> BTreeMap<(Process, &str), Vec<u64>> {
    let mut told: BTreeMap<(Process, &str), Vec<u64>> = BTreeMap::new();
    for one in &notes.told {
        told.entry((one.process, &one.resource)).or_default().push(one.at);
    }
    told.values_mut().for_each(|times| times.sort_unstable());
    told
}

fn overtaken(mut waits: Vec<(&Wait, &Hold)>, holds: Option<Vec<&Hold>>) -> Vec<String> {
    let mut holds = holds.unwrap_or_default();
    waits.sort_unstable_by_key(|(wait, _)| wait.queued);
    holds.sort_unstable_by_key(|hold| hold.asked);
    let mut findings = Vec::new();
    // Of those that asked later, the one that was granted first.
    let mut first: Option<&Hold> = None;
    for (wait, hold) in waits.into_iter().rev() {
        while let Some(later) = holds.pop_if(|later| later.asked > wait.queued) {
            first = first.filter(|first| first.token < later.token).or(Some(later));
        }
        if let Some(later) = first.filter(|first| first.token < hold.token) {
            findings.push(format!(
                "{} of {}.{} {}, in line before {}, token {}, by {}.{} {}, asked {}, token {}",
                wait.resource,
                hold.client,
                hold.incarnation,
                hold.task,
                wait.queued,
                hold.token,
                later.client,
                later.incarnation,
                later.task,
                later.asked,
                later.token
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::notes::{Stall, Told};
    use crate::history::tests::held;

    /// A client that asks, is in line, and is granted under a token.
    fn one(client: usize, asked: u64, queued: u64, token: u64) -> (Wait, Hold) {
        let hold = Hold { client, ..held(token, asked, token * 100, token * 100 + 1) };
        let (resource, task) = (hold.resource.clone(), hold.task.clone());
        (Wait { process: (client, 0), kind: Kind::Mutex, resource, asked, queued, task }, hold)
    }

    fn found(all: &[(Wait, Hold)], notes: Notes) -> usize {
        let holds: Vec<Hold> = all.iter().map(|(_, hold)| hold.clone()).collect();
        let waits = all.iter().map(|(wait, _)| wait.clone()).collect();
        judge(&holds, &Notes { waits, ..notes }, true).findings.len()
    }

    #[test]
    fn those_that_came_later_are_granted_later() {
        let all = [one(0, 1, 5, 2), one(1, 6, 9, 3), one(2, 7, 12, 4)];
        assert_eq!(found(&all, Notes::default()), 0);
    }

    #[test]
    fn those_that_raced_are_in_either_order() {
        assert_eq!(found(&[one(0, 1, 9, 3), one(1, 6, 8, 2)], Notes::default()), 0);
    }

    #[test]
    fn one_that_overtakes_is_found() {
        assert_eq!(found(&[one(0, 1, 5, 3), one(1, 6, 9, 2)], Notes::default()), 1);
        let all = [one(0, 1, 5, 9), one(1, 20, 29, 10), one(2, 30, 31, 2), one(3, 50, 55, 11)];
        assert_eq!(found(&all, Notes::default()), 2);
    }

    #[test]
    fn one_that_never_waited_overtakes_too() {
        let (wait, waiting) = one(0, 1, 5, 3);
        let notes = Notes { waits: vec![wait], ..Notes::default() };
        assert_eq!(judge(&[waiting, one(1, 6, 9, 2).1], &notes, true).findings.len(), 1);
    }

    #[test]
    fn who_may_have_lost_its_place_is_left_out() {
        let all = [one(0, 1, 5, 3), one(1, 6, 9, 2)];
        let (process, resource) = ((0, 0), "m".to_owned());
        let told = vec![Told { process, what: "lost".to_owned(), resource, at: 100 }];
        assert_eq!(found(&all, Notes { told, ..Notes::default() }), 0);
        let long = Stall { process: (1, 0), from: 2, until: 1_000_000_000 };
        assert_eq!(found(&all, Notes { stalls: vec![long], ..Notes::default() }), 1, "of another process");
    }
}
