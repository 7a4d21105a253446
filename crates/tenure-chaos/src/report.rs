//! What a soak says in the end.

use std::fmt;
use std::time::Duration;

use crate::check::{Over, Verdict};
use crate::history::{History, Hold, Kind};
use crate::nemesis::Done;
use crate::promise::Promises;

/// How many of each finding are shown.
const SHOWN: usize = 10;

/// What there is to say.
pub(crate) struct Report {
    pub(crate) engine: String,
    pub(crate) seed: u64,
    pub(crate) worked: Duration,
    pub(crate) done: Done,
    pub(crate) history: History,
    pub(crate) promises: Promises,
    pub(crate) verdict: Verdict,
    /// Clients that failed or did not end.
    pub(crate) failed: Vec<String>,
    /// What was left in the store.
    pub(crate) found: Vec<String>,
    /// How much is left that may be.
    pub(crate) kept: usize,
}

impl Report {
    /// Whether all promises were kept.
    pub(crate) fn is_good(&self) -> bool {
        self.verdict.keeps(self.promises) && self.failed.is_empty() && self.found.is_empty()
    }

    /// Each checker, how much it found, and whether that is counted alone.
    pub(crate) fn findings(&self) -> Vec<(&'static str, usize, bool)> {
        let (verdict, promises) = (&self.verdict, self.promises);
        let mut findings = vec![
            ("overlaps", verdict.overlaps.len(), promises.counts_overlaps),
            ("refused while held", verdict.refused_while_held.len(), promises.counts_overlaps),
            ("valid after the deadline", verdict.over_deadline.len(), false),
            ("stale writes accepted", verdict.stale_accepted.len(), false),
            ("bad tokens", verdict.bad_tokens.len(), false),
            ("bad tokens of deliveries", verdict.bad_delivery_tokens.len(), promises.counts_delivery_tokens),
            ("items lost", verdict.items.lost.len(), promises.counts_items),
            ("items out of order", verdict.items.out_of_order.len(), promises.counts_order),
            ("not served", verdict.unserved.len(), false),
            ("unexplained errors", verdict.unexplained.len(), false),
            ("left in the store", self.found.len(), false),
            ("clients that failed", self.failed.len(), false),
        ];
        findings.extend(
            verdict.found.iter().map(|found| (found.name, found.findings.len(), found.is_counted(promises))),
        );
        findings
    }

    /// How many faults there were in a second.
    pub(crate) fn rate(&self) -> f64 {
        self.done.faults() as f64 / self.worked.as_secs_f64().max(1.0)
    }

    fn held(&self, kind: Kind) -> usize {
        self.history.holds.iter().filter(|hold| hold.kind == kind).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { items, .. } = &self.verdict;
        let Done { by_kind, skipped } = &self.done;
        writeln!(
            f,
            "\n{}, seed {}: {}",
            self.engine,
            self.seed,
            if self.is_good() { "good" } else { "BAD" }
        )?;
        let mut line = |name: &str, value: String| writeln!(f, "  {name:26}{value}");
        let kinds = Kind::ALL.map(|kind| format!("{} {}", self.held(kind), kind.as_str()));
        line("holds", format!("{} ({})", self.history.holds.len(), kinds.join(", ")))?;
        let faults = self.done.faults();
        let rate = self.rate();
        let kinds: Vec<String> = by_kind.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        line("faults", format!("{faults}, {rate:.2} a second ({}; {skipped} left out)", kinds.join(", ")))?;
        if self.promises != Promises::ALL {
            line("counted, not promised", self.promises.to_string())?;
        }
        line("overlaps", self.verdict.overlaps.len().to_string())?;
        line("overlaps until deadlines", self.verdict.overlaps_until_deadline.len().to_string())?;
        line("refused while held", self.verdict.refused_while_held.len().to_string())?;
        line("valid after the deadline", self.verdict.over_deadline.len().to_string())?;
        line("stale writes refused", self.verdict.stale_refused.to_string())?;
        line("stale writes accepted", self.verdict.stale_accepted.len().to_string())?;
        line("bad tokens", self.verdict.bad_tokens.len().to_string())?;
        line("bad tokens of deliveries", self.verdict.bad_delivery_tokens.len().to_string())?;
        line(
            "items",
            format!(
                "{}, lost {}, out of order {}, begun again {}",
                items.pushed,
                items.lost.len(),
                items.out_of_order.len(),
                items.repeated
            ),
        )?;
        for found in &self.verdict.found {
            line(found.name, format!("{} ({})", found.findings.len(), found.seen))?;
        }
        line("left in the store", format!("{} ({} that may be)", self.found.len(), self.kept))?;
        let recovery = Duration::from_nanos(self.verdict.recovery);
        line(
            "recovery",
            format!("{:.2} s, not served {}", recovery.as_secs_f64(), self.verdict.unserved.len()),
        )?;
        let [pause, began] = [self.verdict.standstill.0, self.verdict.standstill.1].map(Duration::from_nanos);
        line(
            "longest without a lock",
            format!("{:.2} s, after {:.0} s", pause.as_secs_f64(), began.as_secs_f64()),
        )?;
        line("clients that failed", self.failed.len().to_string())?;
        self.tell_findings(f)?;
        writeln!(f, "  errors told to users:")?;
        for (error, count) in &self.history.errors {
            writeln!(f, "    {count:6}  {error}")?;
        }
        Ok(())
    }
}

impl Report {
    fn tell_findings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { items, .. } = &self.verdict;
        let overs = |overs: &[Over]| -> Vec<String> { overs.iter().map(told_over).collect() };
        let holds = |holds: &[Hold]| -> Vec<String> { holds.iter().map(told).collect() };
        for (name, findings) in [
            ("overlap", overs(&self.verdict.overlaps)),
            ("overlap until a deadline", overs(&self.verdict.overlaps_until_deadline)),
            ("refused while held", holds(&self.verdict.refused_while_held)),
            ("valid after the deadline", holds(&self.verdict.over_deadline)),
            ("stale write accepted", self.verdict.stale_accepted.clone()),
            ("bad token", self.verdict.bad_tokens.clone()),
            ("bad token of a delivery", self.verdict.bad_delivery_tokens.clone()),
            ("item lost", items.lost.clone()),
            ("item out of order", items.out_of_order.clone()),
            ("not served", self.verdict.unserved.clone()),
            ("error that no fault explains", self.verdict.unexplained.clone()),
            ("left in the store", self.found.clone()),
            ("failed", self.failed.clone()),
        ] {
            for finding in findings.iter().take(SHOWN) {
                writeln!(f, "  {name}: {finding}")?;
            }
        }
        for found in &self.verdict.found {
            for finding in found.findings.iter().take(SHOWN) {
                writeln!(f, "  {}: {finding}", found.name)?;
            }
        }
        Ok(())
    }
}

fn told_over(over: &Over) -> String {
    let beside: Vec<String> = over.beside.iter().map(told).collect();
    format!("{}\n    beside {}", told(&over.hold), beside.join("\n    beside "))
}

fn told(hold: &Hold) -> String {
    let Hold { resource, client, incarnation, task, weight, token, asked, granted, .. } = hold;
    let Hold { until, until_deadline, refused, .. } = hold;
    format!(
        "{resource} ({weight}) by {client}.{incarnation} {task}, token {token}: asked {asked}, granted {granted}, \
         until {until}, deadline {until_deadline}, refused {refused:?}"
    )
}
