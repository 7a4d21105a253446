//! Whether the servers can be trusted: what `tenure doctor` prints.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::engine::finding::{Finding, merged};

use crate::boot::Mark;
use crate::library::LIBRARY;
use crate::quorum::majority;
use crate::rounds::Quorum;
use crate::rounds::node::Request;

/// How long one server is waited for.
const WITHIN: Duration = Duration::from_millis(1500);
/// Clocks that differ by more than this are worth a word: expiry does not compare them, but one that jumps is one that is not kept.
const CLOCKS_APART: Duration = Duration::from_secs(1);

impl Quorum {
    /// Looks at every server, and at what they are together.
    pub(crate) async fn check_servers(self: &Arc<Self>) -> Vec<Finding> {
        let found = join_all((0..self.nodes.len()).map(|node| self.check_server(node))).await;
        let (mut marks, mut of_each, mut alike) = (Vec::new(), Vec::new(), Vec::new());
        for ((mark, findings, facts), node) in found.into_iter().zip(&self.nodes) {
            marks.extend(mark.filter(|mark| mark.counts));
            of_each.extend(findings);
            if !facts.is_empty() {
                alike.push((node.name.clone(), facts));
            }
        }
        let (all, count, most) = (self.nodes.len(), marks.len(), majority(self.nodes.len()));
        let counted = format!("{count} of {all} servers count, {most} are needed");
        let mut findings = vec![if count == all {
            Finding::good("quorum", counted)
        } else if count >= most {
            Finding::warning("quorum", counted)
        } else {
            Finding::bad("quorum", counted).hint(
                "start the servers that are away; those of a new quorum, or of one that has forgotten everything, are let in by \
                 `tenure doctor --init`",
            )
        }];
        findings.extend(self.check_longest(&marks));
        findings.extend(of_each);
        findings.extend(merged(alike));
        findings
    }

    /// Whether the servers and this client mean the same longest ttl.
    fn check_longest(&self, marks: &[Mark]) -> Option<Finding> {
        let (least, most) =
            (marks.iter().map(|mark| mark.longest).min()?, marks.iter().map(|mark| mark.longest).max()?);
        let [least_text, most_text] =
            [least, most].map(|longest| format!("{:?}", Duration::from_millis(longest)));
        Some(if least < self.own_longest() {
            Finding::bad(
                "max_ttl",
                format!("{least_text} on the servers and {:?} in the URL: claims are refused", self.max_ttl),
            )
            .hint("name theirs in the URL, or raise it for all clients: `tenure doctor --init`")
        } else if least < most {
            Finding::warning("max_ttl", format!("{least_text} on some servers, {most_text} on others"))
                .hint("`tenure doctor --init` was not done to its end: repeat it")
        } else {
            Finding::good("max_ttl", format!("{most_text} on all servers that count"))
        })
    }

    async fn check_server(self: &Arc<Self>, node: usize) -> (Option<Mark>, Vec<Finding>, Vec<Finding>) {
        let name = &self.nodes[node].name;
        let before = self.clock.time_of_day();
        let said = match self.ask(node, WITHIN, true, &Request::new(&LIBRARY.mark)).await {
            Ok(said) => said,
            Err(fault) => {
                let away = match self.twin_of(node) {
                    Some(twin) => {
                        Finding::bad("server", twin).hint("name each server once: it is counted once")
                    }
                    None => {
                        let error = fault.to_error("check");
                        let hint = error.hint().unwrap_or("is it running and reachable?");
                        Finding::warning("server", fault.to_string()).hint(hint)
                    }
                };
                return (None, vec![away], Vec::new());
            }
        };
        let after = self.clock.time_of_day();
        let mark = Mark::of(&said);
        let mut findings = Vec::new();
        findings.push(if mark.counts {
            Finding::good("marker", format!("{name} counts in its present run {:016x}", said.incarnation.0))
        } else {
            Finding::warning("marker", format!("{name} does not count: it has started anew, or is new")).hint(
                "it waits for `max_ttl`, learns from the others, and is let in; where most are new: `tenure doctor --init`",
            )
        });
        let (least, largest) = (before.micros().min(after.micros()), before.micros().max(after.micros()));
        let apart =
            Duration::from_micros(least.saturating_sub(said.now).max(said.now.saturating_sub(largest)));
        findings.push(if apart <= CLOCKS_APART {
            Finding::good("clock", format!("{name} is within {CLOCKS_APART:?} of this machine"))
        } else {
            Finding::warning("clock", format!("{name} is {apart:?} off this machine")).hint(
                "keep the clocks of all servers by NTP, without steps: a jump forward ends holds too early",
            )
        });
        (Some(mark), findings, self.nodes[node].wire.findings().await)
    }
}
