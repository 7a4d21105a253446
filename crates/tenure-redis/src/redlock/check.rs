//! Whether the servers can be trusted: what `tenure doctor` prints.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{Finding, Severity};

use super::Quorum;
use super::library::LIBRARY;
use super::node::Request;
use crate::answer::number;
use crate::quorum::majority;

/// How long one server is waited for.
const WITHIN: Duration = Duration::from_millis(1500);
/// Clocks that differ by more than this are worth a word: expiry does not compare them, but one that jumps is one that is not kept.
const CLOCKS_APART: Duration = Duration::from_secs(1);

impl Quorum {
    /// Looks at every server, and at what they are together.
    pub(crate) async fn check_servers(self: &Arc<Self>) -> Vec<Finding> {
        let found = join_all((0..self.nodes.len()).map(|node| self.check_server(node))).await;
        let count = found.iter().filter(|(counts, _)| *counts).count();
        let (all, most) = (found.len(), majority(found.len()));
        let mut findings = vec![finding(
            if count == all {
                Severity::Good
            } else if count >= most {
                Severity::Warning
            } else {
                Severity::Bad
            },
            "quorum",
            format!("{count} of {all} servers count, {most} are needed"),
            (count < most).then_some(
                "start the servers that are away; those of a new quorum, or of one that has forgotten everything, are let in by \
                 `tenure doctor --init`",
            ),
        )];
        findings.extend(found.into_iter().flat_map(|(_, findings)| findings));
        findings
    }

    async fn check_server(self: &Arc<Self>, node: usize) -> (bool, Vec<Finding>) {
        let name = &self.nodes[node].name;
        let before = SystemClock.time_of_day();
        let said = match self.ask(node, WITHIN, true, &Request::new(&LIBRARY.mark)).await {
            Ok(said) => said,
            Err(fault) => {
                let error = fault.to_error("check");
                let hint = error.hint().unwrap_or("is it running and reachable?").to_owned();
                let mut away = finding(Severity::Warning, "server", fault.to_string(), None);
                away.hint = Some(hint);
                return (false, vec![away]);
            }
        };
        let after = SystemClock.time_of_day();
        let counts = said.items.first().and_then(|item| number(item).ok()) == Some(1);
        let mut findings = Vec::new();
        findings.push(if counts {
            finding(Severity::Good, "marker", format!("{name} counts in its present run {:016x}", said.incarnation.0), None)
        } else {
            finding(
                Severity::Warning,
                "marker",
                format!("{name} does not count: it has started anew, or is new"),
                Some("it waits for `max_ttl`, learns from the others, and is let in; where most are new: `tenure doctor --init`"),
            )
        });
        let (least, largest) = (before.micros().min(after.micros()), before.micros().max(after.micros()));
        let apart =
            Duration::from_micros(least.saturating_sub(said.now).max(said.now.saturating_sub(largest)));
        findings.push(if apart <= CLOCKS_APART {
            finding(Severity::Good, "clock", format!("{name} is within {CLOCKS_APART:?} of this machine"), None)
        } else {
            finding(
                Severity::Warning,
                "clock",
                format!("{name} is {apart:?} off this machine"),
                Some("keep the clocks of all servers by NTP, without steps: a jump forward ends holds too early"),
            )
        });
        (counts, findings)
    }
}

fn finding(severity: Severity, what: &'static str, found: String, hint: Option<&str>) -> Finding {
    Finding { severity, what, found, hint: hint.map(str::to_owned) }
}
