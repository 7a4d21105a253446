//! What an engine finds out about its store, for `tenure doctor`, and judgements that several engines share.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Error;

/// How much a finding of [`Engine::check`](crate::engine::Engine::check) matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Good,
    /// Worth knowing; promises hold, or the page of the engine says which do not.
    Warning,
    /// The engine cannot be used, or must not.
    Bad,
}

/// One thing that an engine found out about its store.
///
/// # Examples
/// ```
/// use tenure_core::engine::Finding;
///
/// let finding = Finding::warning("vacuum", "autovacuum is off").hint("set `autovacuum = on`");
/// assert_eq!(finding.hint.as_deref(), Some("set `autovacuum = on`"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What was checked: "version", "clock".
    pub what: &'static str,
    /// What was found.
    pub found: String,
    /// What to do about it, where something should be done.
    pub hint: Option<String>,
}

impl Finding {
    /// Makes a finding without a hint.
    pub fn new(severity: Severity, what: &'static str, found: impl Into<String>) -> Finding {
        Finding { severity, what, found: found.into(), hint: None }
    }

    /// Something is as it should be.
    pub fn good(what: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(Severity::Good, what, found)
    }

    /// Something is worth knowing.
    pub fn warning(what: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, what, found)
    }

    /// The engine cannot be used, or must not.
    pub fn bad(what: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(Severity::Bad, what, found)
    }

    /// Something could not be checked. The hint is that of the error, if it has one.
    pub fn unseen(severity: Severity, what: &'static str, error: &Error) -> Finding {
        Finding::new(severity, what, format!("cannot be looked at: {error}")).hint_of(error)
    }

    /// Adds what to do about it. An empty text is none.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Finding {
        self.hint = Some(hint.into()).filter(|hint| !hint.is_empty());
        self
    }

    /// Adds the hint of an error, if it has one.
    #[must_use]
    pub fn hint_of(self, error: &Error) -> Finding {
        self.hint(error.hint().unwrap_or_default())
    }
}

/// How far the store's clock is from this machine's, and which way: "ahead of" or "behind" it.
pub fn clock_difference(store: Timestamp, here: Timestamp) -> (Duration, &'static str) {
    let (ahead, behind) = (store.since(here), here.since(store));
    if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") }
}

/// How long several answers took: the one in the middle and the slowest; zero for no answers.
pub fn middle_and_worst(mut took: Vec<Duration>) -> (Duration, Duration) {
    took.sort_unstable();
    let at = |place: usize| took.get(place).copied().unwrap_or_default();
    (at(took.len() / 2), at(took.len().saturating_sub(1)))
}

/// Puts the findings about several servers together: what all say alike is said once, the rest with the servers' names.
pub fn merged(found: Vec<(String, Vec<Finding>)>) -> Vec<Finding> {
    let count = found.len();
    let mut order: Vec<&'static str> = Vec::new();
    let mut alike: Vec<(Finding, Vec<String>)> = Vec::new();
    for (server, findings) in found {
        for finding in findings {
            if !order.contains(&finding.what) {
                order.push(finding.what);
            }
            match alike.iter_mut().find(|(other, _)| *other == finding) {
                Some((_, servers)) => servers.push(server.clone()),
                None => alike.push((finding, vec![server.clone()])),
            }
        }
    }
    alike.sort_by_key(|(finding, _)| order.iter().position(|what| *what == finding.what));
    let name = |(finding, servers): (Finding, Vec<String>)| {
        if servers.len() == count {
            return finding;
        }
        Finding { found: format!("{}: {}", servers.join(", "), finding.found), ..finding }
    };
    alike.into_iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_finding_has_a_hint_only_if_there_is_something_to_do() {
        let error = Error::new(ErrorKind::Unavailable, "look", "no answer within 2s").with_engine("etcd");
        let finding = Finding::unseen(Severity::Bad, "server", &error);
        assert_eq!(finding, Finding::bad("server", "cannot be looked at: look on etcd: no answer within 2s"));
        let hinted = Finding::unseen(Severity::Bad, "server", &error.with_hint("is it running?"));
        assert_eq!(hinted, finding.clone().hint("is it running?"));
        assert_eq!(finding.clone().hint(""), finding);
    }

    #[test]
    fn clocks_differ_both_ways() {
        let (early, late) = (Timestamp::from_micros(1_000_000), Timestamp::from_micros(1_500_000));
        assert_eq!(clock_difference(late, early), (Duration::from_millis(500), "ahead of"));
        assert_eq!(clock_difference(early, late), (Duration::from_millis(500), "behind"));
        assert_eq!(clock_difference(late, late).0, Duration::ZERO);
    }

    #[test]
    fn one_slow_answer_is_the_worst_and_not_the_middle() {
        let took =
            |millis: &[u64]| middle_and_worst(millis.iter().map(|ms| Duration::from_millis(*ms)).collect());
        assert_eq!(took(&[1, 200, 2]), (Duration::from_millis(2), Duration::from_millis(200)));
        assert_eq!(took(&[]), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn what_all_servers_say_is_said_once() {
        let good = Finding::good("version", "7");
        let old = Finding::bad("version", "6");
        let role = Finding::good("role", "master");
        let found = merged(vec![
            ("a".to_owned(), vec![good.clone(), role.clone()]),
            ("b".to_owned(), vec![old, role.clone()]),
            ("c".to_owned(), vec![good, role.clone()]),
        ]);
        assert_eq!(found, [Finding::good("version", "a, c: 7"), Finding::bad("version", "b: 6"), role]);
    }
}
