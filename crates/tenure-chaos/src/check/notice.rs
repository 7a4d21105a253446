//! A user is told of a loss in time: at the deadline of the lease at the latest, which is never more than a ttl away.

use std::collections::BTreeMap;

use super::found::Found;
use super::stalls::Stalls;
use crate::history::notes::{Notes, Told};
use crate::history::{Hold, Loss};

/// How much later than the deadline that may be on a busy machine, in nanoseconds. Time in which the process stood still does not count.
const LATE_MAX: u64 = 250_000_000;

/// Judges how users learned that what they held was lost.
pub(super) fn judge(holds: &[Hold], notes: &Notes) -> Found {
    let stalls = Stalls::of(&notes.stalls);
    let mut findings = Vec::new();
    let (mut lost, mut latest) = (0, 0);
    for hold in holds {
        let name = || {
            format!(
                "{} of {}.{} {}, token {}",
                hold.resource, hold.client, hold.incarnation, hold.task, hold.token
            )
        };
        if let Some(at) = hold.beyond {
            findings.push(format!("a deadline more than a ttl after {at}: {}", name()));
        }
        let Some(Loss { at, deadline, told, reason }) = &hold.lost else { continue };
        lost += 1;
        let Some(told) = told else {
            findings.push(format!("not told, seen at {at}: {}", name()));
            continue;
        };
        if reason == "no reason" {
            findings.push(format!("without a reason: {}", name()));
        }
        let stalled = stalls.within((hold.client, hold.incarnation), *deadline, *told);
        let late = told.saturating_sub(*deadline).saturating_sub(stalled);
        latest = latest.max(late);
        if late > LATE_MAX {
            findings.push(format!("told {} ms after its deadline: {}", late / 1_000_000, name()));
        }
    }
    Found {
        name: "losses not told in time",
        findings,
        seen: format!("{lost} lost, the latest told {} ms after its deadline", latest / 1_000_000),
        ..Found::default()
    }
}

/// How long after its end a fault may still be told of: servers come back, and clients wait longer and longer before they try again.
const TOLD_WITHIN: u64 = 5_000_000_000;
/// A kind of fault that was done so often must have been told of at least once.
const OFTEN: usize = 10;
/// A process that is killed tells nothing; another checker judges its holds. Clients need not notice the other two.
const UNTOLD: [&str; 3] = ["kill", "scripts", "compact"];

/// Judges whether faults of each kind were told of: in the log, or as a loss.
pub(super) fn swallowed(holds: &[Hold], notes: &Notes) -> Found {
    let of_losses = holds.iter().filter_map(|hold| Some((hold.lost.as_ref()?.at, hold.client)));
    let of_told = notes.told.iter().map(|Told { at, process, .. }| (*at, process.0));
    let mut told: Vec<(u64, usize)> = of_losses.chain(of_told).collect();
    told.sort_unstable();
    let mut kinds: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for broken in notes.broken.iter().filter(|broken| !UNTOLD.contains(&broken.kind.as_str())) {
        let first = told.partition_point(|(at, _)| *at < broken.from);
        let mut some = told[first..].iter().take_while(|(at, _)| *at < broken.until + TOLD_WITHIN);
        let is_told = some.any(|(_, client)| broken.client.is_none_or(|broken| broken == *client));
        let (count, told) = kinds.entry(&broken.kind).or_default();
        *count += 1;
        *told += usize::from(is_told);
    }
    let swallowed = kinds.iter().filter(|(_, (count, told))| *count >= OFTEN && *told == 0);
    let findings = swallowed.map(|(kind, (count, _))| format!("{kind}: none of {count}")).collect();
    let seen: Vec<String> =
        kinds.iter().map(|(kind, (count, told))| format!("{kind} {told} of {count}")).collect();
    Found { name: "faults never told of", findings, seen: seen.join(", "), ..Found::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::notes::{Broken, Stall};
    use crate::history::tests::held;

    const MS: u64 = 1_000_000;

    fn lost(deadline: u64, told: u64) -> Hold {
        let told = Some(told * MS).filter(|told| *told > 0);
        let loss = Loss { at: 900 * MS, deadline: deadline * MS, told, reason: "x".to_owned() };
        Hold { lost: Some(loss), ..held(1, 0, 1, 2) }
    }

    fn found(hold: Hold, stalls: Vec<Stall>) -> usize {
        judge(&[hold], &Notes { stalls, ..Notes::default() }).findings.len()
    }

    #[test]
    fn a_loss_that_is_told_at_the_deadline_or_before_is_good() {
        assert_eq!(found(lost(500, 501), Vec::new()), 0);
        assert_eq!(found(lost(500, 400), Vec::new()), 0);
    }

    #[test]
    fn a_loss_that_is_told_late_or_never_is_found() {
        assert_eq!(found(lost(500, 900), Vec::new()), 1);
        assert_eq!(found(lost(500, 0), Vec::new()), 1);
    }

    #[test]
    fn a_process_that_was_stopped_is_told_as_it_goes_on() {
        let stall = |until| vec![Stall { process: (0, 0), from: 100 * MS, until: until * MS }];
        assert_eq!(found(lost(500, 900), stall(890)), 0);
        assert_eq!(found(lost(500, 900), stall(550)), 1);
    }

    #[test]
    fn a_deadline_that_is_too_far_away_is_found() {
        assert_eq!(found(Hold { beyond: Some(5), ..held(1, 0, 1, 2) }, Vec::new()), 1);
    }

    #[test]
    fn a_kind_of_fault_that_is_never_told_of_is_found() {
        let broken = |kind: &str, from, client| {
            let (kind, from, until) = (kind.to_owned(), from * MS, from * MS + 1);
            Broken { kind, client: Some(client), from, until }
        };
        let told = |at, client| {
            let (what, resource) = ("it".to_owned(), String::new());
            Told { process: (client, 0), what, resource, at: at * MS }
        };
        let cuts: Vec<Broken> = (0..10).map(|cut| broken("cut", cut * 10_000, 0)).collect();
        let count = |told: Vec<Told>| {
            swallowed(&[], &Notes { broken: cuts.clone(), told, ..Notes::default() }).findings.len()
        };
        assert_eq!(count(vec![told(20_010, 1), told(29_000, 0)]), 1);
        assert_eq!(count(vec![told(20_010, 0)]), 0);
    }
}
