//! What an operator did, in the log: who, what, and to which name. Under the target of the command's own acts.

use tenure_core::Name;

use crate::access::Caller;

/// Tells the log of an act, when the store has answered it or has not: then nobody knows whether it was done.
pub(crate) fn audit(caller: &Caller, act: &str, name: &Name, detail: &str, is_done: bool) {
    let outcome = if is_done { "done" } else { "failed" };
    let (by, name) = (caller.name(), name.as_str());
    tracing::warn!(target: "tenure::audit", act, name, detail, outcome, by, "an operator's act");
}
