//! What nextest reports of a run of all tests: how many passed, and where the time went.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::run::Outcome;

/// Where nextest puts the report of profile `ci`, whatever the target folder is.
const REPORT: &str = "target/nextest/ci/junit.xml";

/// A test that takes longer is named long. Half of a suite's time is in those, so they are what to look at first.
const LONG_SECONDS: f64 = 5.0;

/// How many of the slowest tests are named.
const NAMED: usize = 10;

/// How many lines of what a failed test said are repeated.
const LINES: usize = 12;

/// What a run of all tests came to.
#[derive(Debug, PartialEq)]
pub(crate) struct Report {
    passed: u64,
    failed: u64,
    /// Those that failed each time: the log of a run that failed may be cut before them.
    failures: Vec<Failure>,
    /// Those among the passed that failed first.
    passed_again: Vec<Failure>,
    /// The slowest first.
    tests: Vec<Test>,
}

/// A test that failed.
#[derive(Debug, PartialEq)]
struct Failure {
    /// Its package and its own.
    name: String,
    /// What it said.
    why: String,
}

#[derive(Debug, PartialEq)]
struct Test {
    name: String,
    /// Its package.
    package: String,
    seconds: f64,
}

impl Report {
    /// Removes what an earlier run left, which must not be taken for the next one's. There may be none.
    pub(crate) fn forget(root: &Path) {
        drop(std::fs::remove_file(root.join(REPORT)));
    }

    /// Reads what the last run left.
    pub(crate) fn read(root: &Path) -> Outcome<Report> {
        let report = std::fs::read_to_string(root.join(REPORT)).ok();
        let parsed = report.and_then(|report| Report::parse(&report));
        parsed.ok_or_else(|| format!("no test ran: {REPORT} has no counts"))
    }

    fn parse(report: &str) -> Option<Report> {
        let head = between(report, "<testsuites ", ">")?;
        let count = |name: &str| between(head, &format!("{name}=\""), "\"")?.parse::<u64>().ok();
        let failed = count("failures")? + count("errors")?;
        let cases = || report.split("<testcase ").skip(1);
        let marked = |marks: [&str; 2]| -> Vec<Failure> {
            let marked = |case| marks.iter().find_map(|mark| Failure::parse(case, mark));
            cases().filter_map(marked).collect()
        };
        let passed_again = marked(["<flakyFailure ", "<flakyError "]);
        let failures = marked(["<failure ", "<error "]);
        let mut tests: Vec<Test> = cases().filter_map(Test::parse).collect();
        tests.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Some(Report { passed: count("tests")?.saturating_sub(failed), failed, failures, passed_again, tests })
    }

    fn packages(&self) -> Vec<(&str, f64)> {
        let mut seconds: BTreeMap<&str, f64> = BTreeMap::new();
        for test in &self.tests {
            *seconds.entry(&test.package).or_default() += test.seconds;
        }
        let mut seconds: Vec<_> = seconds.into_iter().collect();
        seconds.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        seconds
    }
}

impl Failure {
    /// Reads a case that has this mark of a failure.
    fn parse(case: &str, mark: &str) -> Option<Self> {
        let (_, failure) = case.split_once(mark)?;
        let Test { name, package, .. } = Test::parse(case)?;
        // The call stack is ours to walk; what was said comes before it.
        let (_, said) = failure.split_once('>')?;
        let ends = ["stack backtrace:", "<"];
        let said =
            ends.iter().fold(said, |said, end| said.split_once(end).map_or(said, |(before, _)| before));
        let lines: Vec<_> = said.trim().lines().take(LINES).map(|line| format!("    {line}\n")).collect();
        let why = [("&lt;", "<"), ("&gt;", ">"), ("&apos;", "'"), ("&quot;", "\""), ("&amp;", "&")]
            .into_iter()
            .fold(lines.concat(), |text, (escaped, plain)| text.replace(escaped, plain));
        Some(Failure { name: format!("{package} {name}"), why })
    }
}

impl Test {
    fn parse(case: &str) -> Option<Test> {
        // `classname="` ends in `name="`, too.
        let name = between(case, "name=\"", "\"")?.to_owned();
        let binary = between(case, "classname=\"", "\"")?;
        let package = binary.split_once("::").map_or(binary, |(package, _)| package).to_owned();
        let seconds = between(case, " time=\"", "\"")?.parse().ok()?;
        Some(Test { name, package, seconds })
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}

/// What takes long is told, and fails nothing: on a busy machine each test takes longer.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole: f64 = self.tests.iter().map(|test| test.seconds).sum();
        let by_package: Vec<_> =
            self.packages().iter().map(|(package, seconds)| format!("{package} {seconds:.0} s")).collect();
        writeln!(f, "time of tests: {whole:.0} s: {}", by_package.join(", "))?;
        let long: Vec<_> = self.tests.iter().take_while(|test| test.seconds > LONG_SECONDS).collect();
        let of_long: f64 = long.iter().map(|test| test.seconds).sum();
        writeln!(f, "over {LONG_SECONDS:.0} s each: {} tests, {of_long:.0} s; the slowest are", long.len())?;
        for Test { name, package, seconds } in long.into_iter().take(NAMED) {
            writeln!(f, "  {seconds:6.1} s  {package} {name}")?;
        }
        for Failure { name, why } in &self.passed_again {
            write!(f, "passed the second time only: {name}\n{why}")?;
        }
        for Failure { name, why } in &self.failures {
            write!(f, "failed: {name}\n{why}")?;
        }
        let Report { passed, failed, failures, passed_again, .. } = self;
        write!(
            f,
            "tests: {passed} passed ({} of them the second time), {failed} failed",
            passed_again.len()
        )?;
        if failures.is_empty() {
            Ok(())
        } else {
            let names: Vec<_> = failures.iter().map(|failure| &*failure.name).collect();
            write!(f, ": {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<testsuites name="r" tests="12" failures="1" errors="2" uuid="x">
        <testsuite name="tenure-redis::it" tests="2">
        <testcase name="good" classname="tenure-redis::it" timestamp="t" time="0.500"></testcase>
        <testcase name="late" classname="tenure-redis" timestamp="t" time="7.250"><flakyFailure type="t">late &lt;
        stack backtrace: 1
        <system-out>x</system-out></flakyFailure></testcase>
        <testcase name="bad" classname="tenure-core" timestamp="t" time="0.2"><failure type="t">no</failure></testcase>
        <testcase name="quick" classname="tenure-core" timestamp="t" time="0.1"/>"#;

    #[test]
    fn counts_come_from_the_head_of_the_report() {
        let report = Report::parse(REPORT).expect("it has counts");
        assert_eq!((report.passed, report.failed), (9, 3));
        let said = report.to_string();
        assert!(said.contains("only: tenure-redis late\n    late <\n"), "{said}");
        assert!(said.contains("\nfailed: tenure-core bad\n    no\n"), "{said}");
        assert!(said.ends_with("9 passed (1 of them the second time), 3 failed: tenure-core bad"), "{said}");
        assert_eq!(Report::parse("<nothing>"), None);
    }

    #[test]
    fn where_the_time_went_is_told_by_package_and_for_the_slowest() {
        let said = Report::parse(REPORT).expect("it has counts").to_string();
        assert!(said.contains("time of tests: 8 s: tenure-redis 8 s, tenure-core 0 s\n"), "{said}");
        assert!(
            said.contains("over 5 s each: 1 tests, 7 s; the slowest are\n     7.2 s  tenure-redis late\n"),
            "{said}"
        );
        assert!(!said.contains("good"), "{said}");
    }
}
