//! A list in one line.

use std::fmt;

use super::Line;

/// What is in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) names: usize,
    pub(crate) held: u64,
    pub(crate) resting: u64,
    pub(crate) waiting: u64,
    pub(crate) unreadable: usize,
}

impl Totals {
    /// Adds up a list.
    pub(crate) fn of<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Totals {
        let mut totals = Totals::default();
        lines.into_iter().for_each(|line| totals.add(line));
        totals
    }

    /// Counts a lock.
    pub(crate) fn add(&mut self, (_, view): &Line) {
        self.names += 1;
        let Ok(view) = view else {
            self.unreadable += 1;
            return;
        };
        let resting = view.holds.iter().filter(|hold| hold.claim.is_none()).count() as u64;
        self.resting += resting;
        self.held += view.holds.len() as u64 - resting;
        self.waiting += u64::from(view.waiting);
    }
}

impl fmt::Display for Totals {
    /// Writes `3 names: 2 held, 1 resting, 5 waiting`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { names, held, resting, waiting, unreadable } = self;
        let noun = if *names == 1 { "name" } else { "names" };
        write!(f, "{names} {noun}: {held} held, {resting} resting, {waiting} waiting")?;
        if *unreadable > 0 {
            write!(f, ", {unreadable} unreadable")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::tests::{held, hold, unreadable};

    #[test]
    fn holds_rests_and_waiters_are_counted_apart() {
        let mut shared = held("b", 1, 2);
        shared.1.as_mut().expect("a view").holds.push(hold(2, 2));
        let mut rests = held("c", 1, 0);
        rests.1.as_mut().expect("a view").holds[0].claim = None;
        let lines = [held("a", 1, 3), shared, rests, unreadable("d")];
        assert_eq!(Totals::of(&lines).to_string(), "4 names: 3 held, 1 resting, 5 waiting, 1 unreadable");
        assert_eq!(Totals::of(&lines[..1]).to_string(), "1 name: 1 held, 0 resting, 3 waiting");
    }
}
