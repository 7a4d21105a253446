//! What operators did: in the log, under the target of the command's own acts, and the last of it in memory for the dashboard.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use tenure_core::Name;
use tenure_core::clock::{Clock, Instant, SystemClock};

use crate::access::Caller;
use crate::limits::ACTS_MAX;
use crate::millis::millis;

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

impl Audit {
    /// Tells of an act, when the store has answered it or has not: then nobody knows whether it was done.
    pub(crate) fn tell(&self, caller: &Caller, act: &str, name: &Name, detail: &str, is_done: bool) {
        let outcome = if is_done { "done" } else { "failed" };
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
