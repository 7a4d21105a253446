//! What the processes use does not grow.

use std::collections::BTreeMap;

use super::found::Found;
use crate::history::notes::{Process, Usage};

/// A process that has told so often what it uses, once a second, is old enough to be judged.
const TOLD_MIN: usize = 20;
/// By how much memory and open files may grow from the second quarter of a process' life to the last one.
const KIB_MAX: u64 = 8 * 1024;
const FILES_MAX: u64 = 32;

/// Judges how much processes used.
pub(super) fn judge(usages: &[Usage]) -> Found {
    let mut of: BTreeMap<Process, Vec<Usage>> = BTreeMap::new();
    usages.iter().for_each(|usage| of.entry(usage.process).or_default().push(*usage));
    let (mut findings, mut judged) = (Vec::new(), 0);
    for ((client, incarnation), mut told) in of.into_iter().filter(|(_, told)| told.len() >= TOLD_MIN) {
        judged += 1;
        told.sort_unstable_by_key(|usage| usage.at);
        let quarter = told.len() / 4;
        let (early, late) = (&told[quarter..2 * quarter], &told[told.len() - quarter..]);
        let median = |some: &[Usage], of: fn(&Usage) -> u64| {
            let mut values: Vec<u64> = some.iter().map(of).collect();
            values.sort_unstable();
            values[values.len() / 2]
        };
        for (what, of, most) in [
            ("KiB", (|usage| usage.kib) as fn(&Usage) -> u64, KIB_MAX),
            ("files", |usage| usage.files, FILES_MAX),
        ] {
            let [early, late] = [early, late].map(|some| median(some, of));
            if late > early + most {
                findings.push(format!("{client}.{incarnation}: from {early} {what} to {late}"));
            }
        }
    }
    let most = |of: fn(&Usage) -> u64| usages.iter().map(of).max().unwrap_or_default();
    let seen = format!(
        "{judged} old processes; the most: {} MiB, {} files",
        most(|usage| usage.kib) / 1024,
        most(|usage| usage.files)
    );
    Found { name: "processes that grow", findings, seen, ..Found::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(seconds: u64, kib: impl Fn(u64) -> u64, files: impl Fn(u64) -> u64) -> usize {
        let usages: Vec<_> =
            (0..seconds).map(|at| Usage { process: (0, 0), at, kib: kib(at), files: files(at) }).collect();
        judge(&usages).findings.len()
    }

    #[test]
    fn what_is_flat_after_a_beginning_is_good() {
        assert_eq!(found(100, |at| 10_000 + at.min(20) * 1000, |at| 50 + at % 10), 0);
    }

    #[test]
    fn what_grows_is_found() {
        assert_eq!(found(100, |at| 10_000 + at * 300, |_| 50), 1);
        assert_eq!(found(100, |_| 10_000, |at| 50 + at), 1);
        assert_eq!(found(10, |at| at * 10_000, |at| at * 100), 0, "too young to be judged");
    }
}
