//! What came of several soaks, as a table for people, for a page, and for programs.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::report::Report;
use crate::soak::Soak;

/// What came of all soaks of a profile.
#[derive(Default)]
pub(crate) struct Summary {
    pub(crate) soaks: Vec<Ended>,
}

/// What came of one soak.
pub(crate) struct Ended {
    name: String,
    seed: u64,
    seconds: u64,
    /// With the start of its servers.
    took: Duration,
    /// `None` if it could not be judged.
    figures: Option<Figures>,
    /// Why it is not good, in words.
    failures: Vec<String>,
}

struct Figures {
    holds: usize,
    faults: usize,
    rate: f64,
    recovery: Duration,
    standstill: Duration,
    stale_refused: usize,
    /// Each checker, how much it found, and whether that is no more than counted.
    findings: Vec<(&'static str, usize, bool)>,
}

impl Ended {
    pub(crate) fn new(name: String, soak: &Soak, report: Result<Report, String>, took: Duration) -> Ended {
        let ended = Ended {
            name,
            seed: soak.seed,
            seconds: soak.lasts.as_secs(),
            took,
            figures: None,
            failures: Vec::new(),
        };
        let report = match report {
            Ok(report) => report,
            Err(text) => return Ended { failures: vec![text], ..ended },
        };
        let findings = report.findings();
        let failed = findings.iter().filter(|(_, count, is_counted)| *count > 0 && !is_counted);
        let failures: Vec<String> = failed.map(|(checker, count, _)| format!("{checker} {count}")).collect();
        let figures = Figures {
            holds: report.history.holds.len(),
            faults: report.done.faults(),
            rate: report.rate(),
            recovery: Duration::from_nanos(report.verdict.recovery),
            standstill: Duration::from_nanos(report.verdict.standstill.0),
            stale_refused: report.verdict.stale_refused,
            findings,
        };
        Ended { figures: Some(figures), failures, ..ended }
    }

    fn verdict(&self) -> String {
        let Some(figures) = &self.figures else {
            return format!("FAILED: {}", first_line(&self.failures[0]));
        };
        let counted = figures.findings.iter().filter(|(_, count, is_counted)| *count > 0 && *is_counted);
        let counted: Vec<String> = counted.map(|(checker, count, _)| format!("{checker} {count}")).collect();
        let counted =
            if counted.is_empty() { String::new() } else { format!("; counted: {}", counted.join(", ")) };
        match self.failures.is_empty() {
            true => format!("good{counted}"),
            false => format!("BAD: {}{counted}", self.failures.join(", ")),
        }
    }

    fn columns(&self) -> [String; 9] {
        let figure = |of: fn(&Figures) -> String| self.figures.as_ref().map(of).unwrap_or_default();
        [
            self.name.clone(),
            self.seed.to_string(),
            self.seconds.to_string(),
            figure(|figures| figures.holds.to_string()),
            figure(|figures| format!("{} ({:.1}/s)", figures.faults, figures.rate)),
            figure(|figures| figures.stale_refused.to_string()),
            figure(|figures| format!("{:.1} s", figures.recovery.as_secs_f64())),
            figure(|figures| format!("{:.1} s", figures.standstill.as_secs_f64())),
            self.verdict(),
        ]
    }
}

const HEADINGS: [&str; 9] = [
    "engine",
    "seed",
    "seconds",
    "holds",
    "faults",
    "late writes refused",
    "recovery",
    "longest without a lock",
    "verdict",
];

impl Summary {
    /// Whether all promises were kept.
    pub(crate) fn is_good(&self) -> bool {
        self.soaks.iter().all(|soak| soak.failures.is_empty())
    }

    /// The table for a page.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("| {} |\n|{}\n", HEADINGS.join(" | "), " --- |".repeat(HEADINGS.len()));
        for soak in &self.soaks {
            writeln!(text, "| {} |", soak.columns().map(|column| column.replace('|', "\\|")).join(" | "))
                .expect("a text takes all");
        }
        text
    }

    /// All figures, a soak a line in an array.
    pub(crate) fn json(&self) -> String {
        let soaks: Vec<String> = self.soaks.iter().map(Ended::json).collect();
        format!("[\n{}\n]\n", soaks.join(",\n"))
    }
}

impl Ended {
    fn json(&self) -> String {
        let Ended { name, seed, seconds, took, figures, failures } = self;
        let mut text = format!(
            "{{\"engine\": {}, \"seed\": {seed}, \"seconds\": {seconds}, \"took_s\": {:.1}, \"is_good\": {}",
            quoted(name),
            took.as_secs_f64(),
            failures.is_empty()
        );
        if let Some(Figures { holds, faults, rate, recovery, standstill, stale_refused, findings }) = figures
        {
            let found = findings.iter().map(|(checker, count, is_counted)| {
                format!("{}: {{\"found\": {count}, \"is_counted\": {is_counted}}}", quoted(checker))
            });
            let found: Vec<String> = found.collect();
            write!(
                text,
                ", \"holds\": {holds}, \"faults\": {faults}, \"faults_per_s\": {rate:.2}, \"recovery_s\": {:.2}, \
                 \"longest_without_a_lock_s\": {:.2}, \"late_writes_refused\": {stale_refused}, \"checkers\": {{{}}}",
                recovery.as_secs_f64(),
                standstill.as_secs_f64(),
                found.join(", ")
            )
            .expect("a text takes all");
        }
        let failures: Vec<String> = failures.iter().map(|failure| quoted(failure)).collect();
        write!(text, ", \"failures\": [{}]}}", failures.join(", ")).expect("a text takes all");
        text
    }
}

/// For a terminal.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<[String; 9]> = std::iter::once(HEADINGS.map(str::to_owned))
            .chain(self.soaks.iter().map(Ended::columns))
            .collect();
        for row in &rows {
            for (column, cell) in row[..HEADINGS.len() - 1].iter().enumerate() {
                let width = rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
                write!(f, "{cell:width$}  ")?;
            }
            writeln!(f, "{}", row[HEADINGS.len() - 1])?;
        }
        let took: Duration = self.soaks.iter().map(|soak| soak.took).sum();
        writeln!(f, "{:.0} s in all", took.as_secs_f64())
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(findings: Vec<(&'static str, usize, bool)>, failures: &[&str]) -> Ended {
        let figures = Figures {
            holds: 10,
            faults: 4,
            rate: 2.0,
            recovery: Duration::from_millis(1500),
            standstill: Duration::ZERO,
            stale_refused: 3,
            findings,
        };
        Ended {
            name: "redis".to_owned(),
            seed: 7,
            seconds: 2,
            took: Duration::from_secs(9),
            figures: Some(figures),
            failures: failures.iter().map(|failure| (*failure).to_owned()).collect(),
        }
    }

    #[test]
    fn what_is_counted_is_told_and_is_no_failure() {
        let summary =
            Summary { soaks: vec![ended(vec![("overlaps", 2, true), ("bad tokens", 0, false)], &[])] };
        assert!(summary.is_good());
        assert!(summary.markdown().ends_with(
            "| redis | 7 | 2 | 10 | 4 (2.0/s) | 3 | 1.5 s | 0.0 s | good; counted: overlaps 2 |\n"
        ));
        assert!(summary.json().contains("\"overlaps\": {\"found\": 2, \"is_counted\": true}"));
    }

    #[test]
    fn one_that_failed_fails_all() {
        let could_not_start = Ended { figures: None, ..ended(Vec::new(), &["no \"answer\"\nlog"]) };
        let summary = Summary { soaks: vec![ended(Vec::new(), &[]), could_not_start] };
        assert!(!summary.is_good());
        assert!(summary.to_string().contains("FAILED: no \"answer\"\n"));
        assert!(summary.json().contains(r#""is_good": false, "failures": ["no \"answer\"\u000alog"]}"#));
        let broken = Summary { soaks: vec![ended(vec![("overlaps", 2, false)], &["overlaps 2"])] };
        assert!(broken.to_string().contains("BAD: overlaps 2\n"));
    }
}
