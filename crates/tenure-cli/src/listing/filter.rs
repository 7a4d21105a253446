//! Which locks are shown.

use std::time::Duration;

use clap::Args;
use tenure::{Kind, View};

use super::{Line, oldest};
use crate::duration::parse_duration;
use crate::output::holder::who;

/// What all of a list must have.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Filter {
    /// Only what has been held for longer than TIME: 10m, 1h30m
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) held_longer: Option<Duration>,
    /// Only what is held by a program, a host or a note in which TEXT is; small and capital letters are the same
    #[arg(long, value_name = "TEXT")]
    pub(crate) holder: Option<String>,
    /// Only locks of this kind
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<KindName>,
}

/// A kind, as a flag names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum KindName {
    /// One holder at a time
    Mutex,
    /// Many readers or one writer
    #[value(alias = "rw_lock", alias = "read-write-lock")]
    RwLock,
    /// So many units
    Semaphore,
    /// Numbered units
    #[value(alias = "slot_pool")]
    SlotPool,
}

impl KindName {
    fn is(self, kind: Kind) -> bool {
        match self {
            KindName::Mutex => kind == Kind::Mutex,
            KindName::RwLock => kind == Kind::RwLock,
            KindName::Semaphore => kind == Kind::Semaphore,
            KindName::SlotPool => kind == Kind::SlotPool,
        }
    }
}

impl Filter {
    /// Whether a lock is shown. What cannot be read is, unless something is asked of it.
    pub(crate) fn admits(&self, (_, view): &Line) -> bool {
        match view {
            Ok(view) => self.admits_view(view),
            Err(_) => self.held_longer.is_none() && self.holder.is_none() && self.kind.is_none(),
        }
    }

    fn admits_view(&self, view: &View) -> bool {
        let is_old = |least: Duration| oldest(view).is_some_and(|hold| hold.held_for > least);
        self.kind.is_none_or(|kind| kind.is(view.kind))
            && self.held_longer.is_none_or(is_old)
            && self.holder.as_ref().is_none_or(|text| has_holder(view, text))
    }
}

/// Whether one of the holders has a text in what is shown of it.
pub(crate) fn has_holder(view: &View, text: &str) -> bool {
    let text = text.to_lowercase();
    view.holds.iter().any(|hold| {
        hold.claim.is_some()
            && (who(&hold.label).to_lowercase().contains(&text)
                || hold.label.program().to_lowercase().contains(&text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::tests::{held, unreadable};

    #[test]
    fn a_filter_admits_what_has_all_that_it_asks_for() {
        let line = held("billing/4711", 600, 0);
        let all = Filter::default();
        assert!(all.admits(&line) && all.admits(&unreadable("x")));
        let older = |seconds| Filter { held_longer: Some(Duration::from_secs(seconds)), ..Filter::default() };
        assert!(older(599).admits(&line) && !older(600).admits(&line) && !older(1).admits(&unreadable("x")));
        let of = |text: &str| Filter { holder: Some(text.to_owned()), ..Filter::default() };
        for text in ["BACKUP", "17", "host", "tenure", ""] {
            assert!(of(text).admits(&line), "{text}");
        }
        assert!(!of("billing").admits(&line), "that is its name");
        let kind = |kind| Filter { kind: Some(kind), ..Filter::default() };
        assert!(kind(KindName::Mutex).admits(&line) && !kind(KindName::SlotPool).admits(&line));
        let both = Filter { kind: Some(KindName::Semaphore), ..of("backup") };
        assert!(!both.admits(&line));
    }

    #[test]
    fn what_rests_has_no_holder() {
        let mut line = held("x", 600, 0);
        line.1.as_mut().expect("a view").holds[0].claim = None;
        assert!(!Filter { holder: Some("backup".to_owned()), ..Filter::default() }.admits(&line));
        assert!(!Filter { held_longer: Some(Duration::from_secs(1)), ..Filter::default() }.admits(&line));
    }
}
