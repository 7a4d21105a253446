//! When which process did nothing.

use std::collections::BTreeMap;

use crate::history::notes::{Process, Stall};

/// The stalls of each process, in order.
pub(super) struct Stalls(BTreeMap<Process, Vec<Stall>>);

impl Stalls {
    pub(super) fn of(stalls: &[Stall]) -> Stalls {
        let mut of: BTreeMap<Process, Vec<Stall>> = BTreeMap::new();
        stalls.iter().for_each(|stall| of.entry(stall.process).or_default().push(*stall));
        of.values_mut().for_each(|stalls| stalls.sort_unstable_by_key(|stall| stall.from));
        Stalls(of)
    }

    /// Returns for how long a process did nothing between two times, in nanoseconds: not at all, if the second comes first.
    pub(super) fn within(&self, process: Process, from: u64, until: u64) -> u64 {
        let stalls = self.0.get(&process).map_or(&[][..], Vec::as_slice);
        // They do not overlap: one thread has seen them.
        let first = stalls.partition_point(|stall| stall.until <= from);
        let some = stalls[first..].iter().take_while(|stall| stall.from < until);
        some.map(|stall| stall.until.min(until).saturating_sub(stall.from.max(from))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_within_counts() {
        let stall = |from, until| Stall { process: (0, 0), from, until };
        let stalls = Stalls::of(&[stall(50, 60), stall(10, 20), stall(90, 100)]);
        assert_eq!(stalls.within((0, 0), 15, 95), 5 + 10 + 5);
        assert_eq!(stalls.within((0, 0), 20, 50), 0);
        assert_eq!(stalls.within((1, 0), 0, 100), 0);
        assert_eq!(stalls.within((0, 0), 58, 52), 0, "a product that is broken does things in a wrong order");
    }
}
