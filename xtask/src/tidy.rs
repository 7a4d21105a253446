//! `cargo xtask tidy`: the project's own rules, in place of review comments.
//!
//! A rule is a function from the tree to what violates it. It has a test on a small tree in memory which
//! shows that it finds a violation, and an entry in [`RULES`].

mod adding;
mod alerts;
mod conformance;
mod engines;
mod examples;
mod figures;
mod manifests;
mod names;
pub(crate) mod pages;
mod text;

use std::fmt;
use std::path::Path;

use crate::args::Args;
use crate::mutants;
use crate::run::{Outcome, Run};
use crate::tree::Tree;

/// What each rule looks like.
type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: [Rule; 23] = [
    adding::lists_are_complete,
    alerts::are_explained_and_tried,
    conformance::checks_are_listed,
    engines::standard_files,
    engines::suite_runs,
    engines::engine_pages,
    examples::are_there,
    figures::are_pinned,
    manifests::core_is_pure,
    manifests::features_stay_in_the_facade,
    mutants::table::are_in_no_release,
    mutants::table::is_complete,
    names::vague_files,
    names::banned_words,
    pages::adr_index,
    pages::changelog,
    pages::guides,
    pages::primitive_pages,
    pages::readme_example,
    pages::rust_version,
    text::unfinished_work,
    text::long_files,
    text::machine_paths,
];

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    rule: &'static str,
    path: String,
    line: Option<usize>,
    text: String,
}

impl Finding {
    /// A violation in one line of a file.
    pub(crate) fn at(rule: &'static str, path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { rule, path: path.to_owned(), line: Some(line), text: text.into() }
    }

    /// A violation of a whole file, or by a file that is missing.
    pub(crate) fn of(rule: &'static str, path: &str, text: impl Into<String>) -> Self {
        Self { rule, path: path.to_owned(), line: None, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.path)?;
        if let Some(line) = self.line {
            write!(out, ":{line}")?;
        }
        write!(out, ": {} [{}]", self.text, self.rule)
    }
}

/// Checks the tree of the workspace.
pub(crate) fn start(run: &mut Run, args: Args) -> Outcome<()> {
    args.finish()?;
    run.check("tidy", "cargo xtask tidy", check);
    Ok(())
}

/// Checks the tree below `root` against every rule.
pub(crate) fn check(root: &Path) -> Outcome<()> {
    let tree = Tree::read(root)?;
    let findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    report(&findings)
}

/// No findings is a success; else the error lists them, one a line.
pub(crate) fn report(findings: &[Finding]) -> Outcome<()> {
    if findings.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    Err(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_the_project_keeps_the_rules() {
        let run = Run::new();
        if let Err(findings) = check(run.root()) {
            panic!("\n{findings}\n");
        }
    }

    #[test]
    fn a_finding_names_the_place_and_the_rule() {
        assert_eq!(Finding::at("r", "a.rs", 3, "bad").to_string(), "a.rs:3: bad [r]");
        assert_eq!(Finding::of("r", "a.rs", "gone").to_string(), "a.rs: gone [r]");
    }
}
