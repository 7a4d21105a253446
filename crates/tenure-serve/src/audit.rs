//! What operators did: in the log, under the target of the command's own acts, and the last of it in memory for the dashboard.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use tenure_core::Name;
use tenure_core::clock::{Clock, Instant, SystemClock};

use crate::access::Caller;
use crate::limits::ACTS_MAX;
use crate::millis::millis;
use crate::problem::Problem;

/// The last acts, the latest first.
#[derive(Debug, Default)]
pub(crate) struct Audit(Mutex<VecDeque<Act>>);

#[derive(Clone, Debug)]
struct Act {
    at: Instant,
    by: Option<String>,
    act: String,
    name: Name,
    detail: String,
    outcome: &'static str,
}

/// `refused`: nothing was changed. `failed`: nobody knows whether it was done.
fn outcome_of<T>(answer: &Result<T, Problem>) -> &'static str {
    match answer {
        Ok(_) => "done",
        Err(problem) if problem.kind.status < 500 => "refused",
        Err(_) => "failed",
    }
}

impl Audit {
    /// Tells of an act when its call has ended.
    pub(crate) fn tell<T>(
        &self,
        caller: &Caller,
        (act, name): (&str, &Name),
        detail: &str,
        answer: &Result<T, Problem>,
    ) {
        let outcome = outcome_of(answer);
        tracing::warn!(
            target: "tenure::audit",
            act,
            name = name.as_str(),
            detail,
            outcome,
            by = caller.name(),
            "an operator's act"
        );
        let mut acts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        acts.truncate(ACTS_MAX - 1);
        let (at, by) = (SystemClock.now(), caller.name().map(str::to_owned));
        acts.push_front(Act {
            at,
            by,
            act: act.to_owned(),
            name: name.clone(),
            detail: detail.to_owned(),
            outcome,
        });
    }

    /// The last acts, as they are answered.
    pub(crate) fn last(&self) -> Vec<Value> {
        let acts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemClock.now();
        let shown = |act: &Act| {
            json!({
                "ago_ms": millis(now.since(act.at)),
                "by": act.by,
                "act": act.act,
                "name": act.name.as_str(),
                "detail": act.detail,
                "outcome": act.outcome,
            })
        };
        acts.iter().map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{CONFLICT, UNAVAILABLE};

    #[test]
    fn what_was_refused_is_not_told_as_if_nobody_knew() {
        let outcome = |answer: Result<(), Problem>| outcome_of(&answer);
        assert_eq!(outcome(Ok(())), "done");
        assert_eq!(outcome(Err(Problem::new(CONFLICT, "a mutex has no capacity"))), "refused");
        assert_eq!(outcome(Err(Problem::new(UNAVAILABLE, "no answer"))), "failed");
    }
}
