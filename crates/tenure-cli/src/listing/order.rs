//! In which order locks are shown.

use std::cmp::Reverse;
use std::time::Duration;

use super::{Line, ends_in, oldest};

/// What a list is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// Names
    Name,
    /// What has been held for longest comes first
    Held,
    /// What most wait for comes first
    Waiting,
    /// What ends first unless it is renewed comes first
    Ends,
}

impl Sort {
    /// The orders, in the order in which one follows the other.
    pub(crate) const ALL: [Sort; 4] = [Sort::Held, Sort::Waiting, Sort::Ends, Sort::Name];

    /// Returns the one that follows.
    pub(crate) fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or_default();
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }

    /// Returns the word for it, as its flag has it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::Held => "held",
            Sort::Waiting => "waiting",
            Sort::Ends => "ends",
        }
    }

    /// Sorts a list. What is alike is in the order of names.
    pub(crate) fn sort(self, lines: &mut [Line]) {
        lines.sort_by_cached_key(|line| self.key(line));
    }

    /// Returns what is compared. What cannot be read comes last.
    pub(crate) fn key(
        self,
        (name, view): &Line,
    ) -> (bool, Reverse<Duration>, Reverse<u32>, Duration, tenure::Name) {
        let view = view.as_ref().ok();
        let (mut held, mut waiting, mut ends) = (Duration::ZERO, 0, Duration::ZERO);
        match self {
            Sort::Name => {}
            Sort::Held => held = view.and_then(oldest).map_or(held, |hold| hold.held_for),
            Sort::Waiting => waiting = view.map_or(0, |view| view.waiting),
            Sort::Ends => ends = view.and_then(ends_in).unwrap_or(Duration::MAX),
        }
        let is_last = view.is_none() && self != Sort::Name;
        (is_last, Reverse(held), Reverse(waiting), ends, name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::tests::{held, hold, names, unreadable};

    #[test]
    fn each_order_puts_first_what_it_is_named_for() {
        let mut lines = vec![held("c", 5, 0), held("b", 7200, 1), unreadable("x"), held("a", 5, 9)];
        if let (_, Ok(view)) = &mut lines[0] {
            view.holds = vec![hold(5, 2), hold(1, 60)];
        }
        let mut sorted = |sort: Sort| {
            sort.sort(&mut lines);
            names(&lines).concat()
        };
        assert_eq!(sorted(Sort::Name), "abcx");
        assert_eq!(sorted(Sort::Held), "bacx");
        assert_eq!(sorted(Sort::Waiting), "abcx");
        assert_eq!(sorted(Sort::Ends), "cabx");
    }

    #[test]
    fn what_rests_is_not_held() {
        let mut lines = vec![held("rests", 7200, 0), held("held", 1, 0)];
        if let (_, Ok(view)) = &mut lines[0] {
            view.holds[0].claim = None;
        }
        Sort::Held.sort(&mut lines);
        assert_eq!(names(&lines), ["held", "rests"]);
    }

    #[test]
    fn the_orders_follow_each_other_in_a_circle() {
        let mut seen = vec![Sort::Held];
        while seen.len() < 5 {
            seen.push(seen[seen.len() - 1].next());
        }
        assert_eq!((&seen[..4], seen[4]), (&Sort::ALL[..], Sort::Held));
    }
}
