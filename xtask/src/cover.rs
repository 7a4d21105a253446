//! `cargo xtask cover`: line coverage per crate, against a floor that only rises.
//!
//! tarpaulin's `llvm` engine reads the profiles itself. `cargo llvm-cov` was rejected: it needs LLVM tools of
//! the same version as rustc's, and those are not everywhere.

use std::collections::BTreeMap;

use crate::args::Args;
use crate::run::{Outcome, Run};
use crate::setup;

/// The least coverage of a crate, in percent of its lines. Raise a floor when the coverage has risen.
const FLOORS: [(&str, f64); 1] = [("xtask", 60.0)];

/// Measures and compares with the floors.
pub(crate) fn start(run: &mut Run, args: Args) -> Outcome<()> {
    args.finish()?;
    setup::need(run, &[&setup::CC, &setup::TMUX, &setup::TARPAULIN])?;
    setup::need(run, &setup::of_engines())?;
    let mut cover = run.cargo("tarpaulin --engine llvm --workspace --skip-clean --out Lcov");
    cover.args(["--output-dir", "target/cover", "--target-dir", "target/tarpaulin"]);
    if run.command("measure", &mut cover) {
        run.check("floors", "cargo xtask cover", |root| {
            let path = root.join("target/cover/lcov.info");
            let report = std::fs::read_to_string(&path).map_err(|error| format!("{path:?}: {error}"))?;
            compare(&parse(&report, &root.to_string_lossy()))
        });
    }
    Ok(())
}

/// Lines of a crate that can run, and that did.
#[derive(Default, Debug, PartialEq)]
struct Lines {
    covered: u32,
    all: u32,
}

impl Lines {
    fn percent(&self) -> f64 {
        if self.all == 0 { 100.0 } else { 100.0 * f64::from(self.covered) / f64::from(self.all) }
    }
}

/// Sums the lines of an lcov report by crate, without the lines of tests and examples.
fn parse(report: &str, root: &str) -> BTreeMap<String, Lines> {
    let mut crates: BTreeMap<String, Lines> = BTreeMap::new();
    let mut current = None;
    for line in report.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let path = path.strip_prefix(root).unwrap_or(path).trim_start_matches('/');
            let name = path.split_once("/src/").map(|(folder, _)| folder.trim_start_matches("crates/"));
            current = name.map(str::to_owned);
        } else if let (Some(data), Some(name)) = (line.strip_prefix("DA:"), &current) {
            let lines = crates.entry(name.clone()).or_default();
            lines.all += 1;
            lines.covered += u32::from(data.split(',').nth(1).is_some_and(|hits| hits != "0"));
        }
    }
    crates
}

/// Prints the table; fails for a crate below its floor.
fn compare(crates: &BTreeMap<String, Lines>) -> Outcome<()> {
    let mut below = Vec::new();
    for (name, lines) in crates {
        let floor = FLOORS.iter().find(|(known, _)| known == name).map_or(0.0, |(_, floor)| *floor);
        let percent = lines.percent();
        println!(
            "{name:<22} {percent:>5.1} %   floor {floor:>5.1} %   {} of {} lines",
            lines.covered, lines.all
        );
        if percent < floor {
            below.push(format!("{name}: {percent:.1} % of the lines are covered, the floor is {floor:.1} %"));
        }
    }
    if below.is_empty() { Ok(()) } else { Err(below.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "SF:/tree/crates/tenure-core/src/step.rs\nDA:1,3\nDA:2,0\nend_of_record\n\
                          SF:/tree/xtask/src/main.rs\nDA:1,0\nend_of_record\n\
                          SF:/tree/crates/tenure-core/tests/it/main.rs\nDA:1,1\nend_of_record\n";

    #[test]
    fn lines_are_summed_by_crate_without_tests() {
        let crates = parse(REPORT, "/tree");
        assert_eq!(crates.len(), 2);
        assert_eq!(crates["tenure-core"], Lines { covered: 1, all: 2 });
    }

    #[test]
    fn a_crate_below_its_floor_fails() {
        let error = compare(&parse(REPORT, "/tree")).unwrap_err();
        assert!(error.starts_with("xtask: 0.0 %"), "{error}");
    }
}
