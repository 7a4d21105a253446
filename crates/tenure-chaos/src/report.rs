//! What a soak says in the end.

use std::fmt;
use std::time::Duration;

use crate::check::{Over, Verdict};
use crate::history::{History, Hold, Kind};
use crate::nemesis::Done;

/// How many of each finding are shown.
const SHOWN: usize = 10;

/// What there is to say.
pub(crate) struct Report {
    pub(crate) engine: String,
    pub(crate) seed: u64,
    pub(crate) worked: Duration,
    pub(crate) done: Done,
    pub(crate) history: History,
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
        self.verdict.is_good() && self.failed.is_empty() && self.found.is_empty()
    }

    fn held(&self, kind: Kind) -> usize {
        self.history.holds.iter().filter(|hold| hold.kind == kind).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { items, .. } = &self.verdict;
        let Done { stops, kills, cuts, troubles, restarts, hangs, skipped } = self.done;
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
        let rate = faults as f64 / self.worked.as_secs_f64().max(1.0);
        line(
            "faults",
            format!(
                "{faults}, {rate:.2} a second ({stops} stops, {kills} kills, {cuts} cuts, {troubles} of networks, {restarts} restarts, {hangs} hangs; {skipped} left out)"
            ),
        )?;
        line("overlaps", self.verdict.overlaps.len().to_string())?;
        line("overlaps until deadlines", self.verdict.overlaps_until_deadline.len().to_string())?;
        line("refused while held", self.verdict.refused_while_held.len().to_string())?;
        line("valid after the deadline", self.verdict.over_deadline.len().to_string())?;
        line("stale writes refused", self.verdict.stale_refused.to_string())?;
        line("stale writes accepted", self.verdict.stale_accepted.len().to_string())?;
        line("bad tokens", self.verdict.bad_tokens.len().to_string())?;
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
