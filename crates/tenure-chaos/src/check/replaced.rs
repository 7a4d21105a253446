//! A holder that is killed is replaced: by the first in line, when its lease has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::model::step::confirm_window;

use super::found::{Excuse, Found};
use super::stalls::Stalls;
use crate::history::notes::{Broken, Process, Wait};
use crate::history::{History, Hold, Kind};

/// How much longer than a ttl that may take.
const LATE_MAX: Duration = Duration::from_millis(200);
/// For how long after its end a fault may still keep a server or a client busy. Restarts and failovers are written down without a length, so
/// this has to cover them.
const AFTERMATH: Duration = Duration::from_secs(2);
/// No fault lasts longer, in nanoseconds.
const BROKEN_MAX: u64 = 20_000_000_000;
/// No task waits longer, in nanoseconds.
const LINE_MAX: u64 = 6_000_000_000;
/// Faults of servers that keep nobody from being granted.
const LIGHT: [&str; 2] = ["scripts", "compact"];

/// Faults of a client's network.
const NETWORK: [&str; 4] = ["cut", "net", "one", "shard"];

/// Judges how long after its death the mutex of a holder that was killed went to one that waited for it. Those before it
/// in line that are dead or stopped may add a confirm window each. Left out is where a server or a network was broken.
pub(super) fn judge(history: &History) -> Found {
    let History { holds, notes, terms, died, .. } = history;
    let stalls = Stalls::of(&notes.stalls);
    let mut of: BTreeMap<&str, (Vec<&Hold>, Vec<&Wait>)> = BTreeMap::new();
    for hold in holds.iter().filter(|hold| hold.kind == Kind::Mutex) {
        of.entry(&hold.resource).or_default().0.push(hold);
    }
    for wait in notes.waits.iter().filter(|wait| wait.kind == Kind::Mutex) {
        of.entry(&wait.resource).or_default().1.push(wait);
    }
    let window = confirm_window(terms.ttl);
    let (mut judged, mut slowest, mut findings) = (0, 0, Vec::new());
    for (holds, waits) in of.values_mut() {
        let granted: BTreeMap<(Process, &str, u64), u64> = holds
            .iter()
            .map(|hold| (((hold.client, hold.incarnation), hold.task.as_str(), hold.asked), hold.granted))
            .collect();
        holds.sort_unstable_by_key(|hold| hold.token);
        waits.sort_unstable_by_key(|wait| wait.asked);
        for pair in holds.windows(2) {
            let [dead, next] = pair else { continue };
            let death = died.get(&(dead.client, dead.incarnation)).filter(|_| !dead.is_ended);
            let Some(&death) = death else { continue };
            let first = waits.partition_point(|wait| wait.asked + LINE_MAX < death);
            let in_line = waits[first..].iter().take_while(|wait| wait.asked < death).filter(|wait| {
                let granted = granted.get(&(wait.process, wait.task.as_str(), wait.asked));
                granted.is_none_or(|granted| *granted > death)
            });
            let in_line: Vec<&Wait> = in_line.copied().collect();
            let is_next = |wait: &&Wait| {
                wait.process == (next.client, next.incarnation)
                    && wait.asked == next.asked
                    && wait.queued < death
            };
            let is_waited_for = in_line.iter().any(is_next);
            if !is_waited_for || is_disturbed(&notes.broken, next, death) {
                continue;
            }
            let before = in_line.iter().filter(|wait| wait.asked < next.asked);
            let is_gone = |wait: &&&Wait| {
                died.get(&wait.process).is_some_and(|died| *died <= next.granted)
                    || is_broken(&notes.broken, wait, death, next)
            };
            let gone = before.filter(is_gone).count() as u32;
            judged += 1;
            let stalled = stalls.within((next.client, next.incarnation), death, next.granted);
            let took = next.granted.saturating_sub(death).saturating_sub(stalled);
            slowest = slowest.max(took);
            if took > (terms.ttl + terms.grain + LATE_MAX + window * gone).as_nanos() as u64 {
                findings.push(format!(
                    "{} after {} ms, {gone} dead or stopped before it: token {} of {}.{}, killed at {death}, then token {} of {}.{}",
                    dead.resource,
                    took / 1_000_000,
                    dead.token,
                    dead.client,
                    dead.incarnation,
                    next.token,
                    next.client,
                    next.incarnation
                ));
            }
        }
    }
    Found {
        name: "killed and not replaced",
        findings,
        seen: format!("{judged} replaced, the slowest after {} ms", slowest / 1_000_000),
        excuse: Excuse::Order,
    }
}

/// Whether a server was broken, or the network of any client, whose claims may be in line unseen, or the client that was granted next.
fn is_disturbed(broken: &[Broken], next: &Hold, death: u64) -> bool {
    meanwhile(broken, death, next.granted).any(|one| match one.client {
        None => !LIGHT.contains(&one.kind.as_str()),
        Some(client) => client == next.client || NETWORK.contains(&one.kind.as_str()),
    })
}

/// Whether the client that waits was broken.
fn is_broken(broken: &[Broken], wait: &Wait, death: u64, next: &Hold) -> bool {
    meanwhile(broken, death, next.granted).any(|one| one.client == Some(wait.process.0))
}

/// What was broken when a holder died, or until another was granted.
fn meanwhile(broken: &[Broken], death: u64, granted: u64) -> impl Iterator<Item = &Broken> {
    let first = broken.partition_point(|one| one.from + BROKEN_MAX < death);
    let some = broken[first..].iter().take_while(move |one| one.from <= granted);
    some.filter(move |one| one.until + AFTERMATH.as_nanos() as u64 > death)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::notes::{Notes, Terms};
    use crate::history::tests::held;

    const MS: u64 = 1_000_000;

    /// Client 0 is killed at 100 ms as it holds, and client 1, which is in line since 50 ms, is granted then.
    fn found(granted: u64, broken: &[(&str, Option<usize>, u64)]) -> Found {
        found_behind(None, granted, broken)
    }

    /// The same, if client 2 waits before it, which is killed at a time.
    fn found_behind(killed: Option<u64>, granted: u64, broken: &[(&str, Option<usize>, u64)]) -> Found {
        let dead = Hold { is_ended: false, ..held(1, 10 * MS, 20 * MS, 90 * MS) };
        let next = Hold { client: 1, ..held(2, 40 * MS, granted * MS, granted * MS + 1) };
        let (resource, task) = (next.resource.clone(), next.task.clone());
        let wait =
            Wait { process: (1, 0), kind: Kind::Mutex, resource, asked: 40 * MS, queued: 50 * MS, task };
        let before = killed.map(|_| Wait { process: (2, 0), asked: 30 * MS, ..wait.clone() });
        let waits = before.into_iter().chain([wait]).collect();
        let broken = broken.iter().map(|(kind, client, at)| {
            let (kind, from) = ((*kind).to_owned(), at * MS);
            Broken { kind, client: *client, from, until: from }
        });
        let notes = Notes { waits, broken: broken.collect(), ..Notes::default() };
        let terms = Terms { ttl: Duration::from_secs(1), ..Terms::default() };
        let killed = killed.map(|at| ((2, 0), at * MS));
        let died = killed.into_iter().chain([((0, 0), 100 * MS)]).collect();
        judge(&History { holds: vec![dead, next], notes, terms, died, ..History::default() })
    }

    #[test]
    fn a_killed_holder_is_replaced_after_its_ttl() {
        assert_eq!(found(1250, &[("kill", Some(0), 100)]).findings.len(), 0);
        assert_eq!(found(1350, &[("kill", Some(0), 100)]).findings.len(), 1);
    }

    #[test]
    fn a_waiter_before_it_costs_a_window_if_it_was_dead_by_then() {
        assert_eq!(found_behind(Some(90), 1350, &[]).findings.len(), 0);
        assert_eq!(found_behind(Some(5000), 1350, &[]).findings.len(), 1, "it lived for longer than that");
    }

    #[test]
    fn where_something_else_was_broken_nothing_is_said() {
        assert_eq!(found(5000, &[("restart", None, 900)]).findings.len(), 0);
        assert_eq!(found(5000, &[("stop", Some(1), 60)]).findings.len(), 0);
        assert_eq!(found(5000, &[("net", Some(2), 60)]).findings.len(), 0, "it may wait, unseen");
        assert_eq!(found(5000, &[("stop", Some(2), 60)]).findings.len(), 1, "one that does not wait");
    }
}
