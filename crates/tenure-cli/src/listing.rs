//! Lists of locks: which are shown, in which order, and what fits on a terminal. Nothing here asks a store, a clock or a terminal.

pub(crate) mod alert;
pub(crate) mod filter;
pub(crate) mod order;
pub(crate) mod table;
pub(crate) mod totals;
pub(crate) mod width;

use std::time::Duration;

use tenure::{HoldView, Name, Result, View};

/// A lock of a list: its view, or why it cannot be read.
pub(crate) type Line = (Name, Result<View>);

/// Returns the hold that is the oldest; what rests is held by nobody.
pub(crate) fn oldest(view: &View) -> Option<&HoldView> {
    view.holds.iter().filter(|hold| hold.claim.is_some()).max_by_key(|hold| hold.held_for)
}

/// Returns when the next hold or rest ends unless it is renewed.
pub(crate) fn ends_in(view: &View) -> Option<Duration> {
    view.holds.iter().map(|hold| hold.ends_in).min()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tenure::{ClaimId, Kind, Label, Token};

    /// A mutex that somebody has held for so many seconds, and for which so many wait.
    pub(crate) fn held(name: &str, seconds: u64, waiting: u32) -> Line {
        let name = Name::new(name).expect("a name");
        let mut view = View::new(name.clone(), Kind::Mutex, 1);
        view.holds = vec![hold(seconds, 30)];
        view.waiting = waiting;
        view.last_token = view.holds[0].token;
        (name, Ok(view))
    }

    /// A hold of so many seconds that ends in so many.
    pub(crate) fn hold(seconds: u64, ends_in: u64) -> HoldView {
        let label = Label::new("host", 17, "tenure", "backup.sh");
        let mut hold = HoldView::new(Token::new(1000 + seconds), label, 1);
        hold.claim = Some(ClaimId::new(7));
        (hold.held_for, hold.ends_in) = (Duration::from_secs(seconds), Duration::from_secs(ends_in));
        hold
    }

    /// One that cannot be read.
    pub(crate) fn unreadable(name: &str) -> Line {
        (Name::new(name).expect("a name"), Err(Name::new("").expect_err("it is empty")))
    }

    pub(crate) fn names(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|(name, _)| name.as_str()).collect()
    }
}
