//! Rules about engine crates: knowing one means knowing all.

use super::Finding;
use crate::tree::Tree;

/// The crate that defines what an engine is; every other crate with a `src/engine.rs` is an engine.
const CORE: &str = "crates/tenure-core";

/// The engine that every version of the project has.
const FIRST: &str = "crates/tenure-local";

/// The files of every engine crate: what it does, and its URL.
const FILES: [&str; 2] = ["engine", "config"];

/// The headings of every engine's page, in this order. A heading may go on after these words.
const HEADINGS: [&str; 7] = [
    "What it needs",
    "Example URL",
    "How a claim is stored",
    "What is guaranteed, and when it is not",
    "What happens when",
    "Settings",
    "What to watch",
];

/// The folders of the engine crates.
fn folders(tree: &Tree) -> Vec<&str> {
    let found = tree.with_suffix("/src/engine.rs").map(|(path, _)| path.trim_end_matches("/src/engine.rs"));
    let mut folders: Vec<&str> = found.filter(|folder| *folder != CORE).chain([FIRST]).collect();
    folders.sort_unstable();
    folders.dedup();
    folders
}

/// Finds engine crates without one of the standard files.
pub(crate) fn standard_files(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in folders(tree) {
        for path in FILES.map(|name| format!("{folder}/src/{name}.rs")) {
            if !tree.has(&path) {
                findings.push(Finding::of("engine-files", &path, "every engine crate has this file"));
            }
        }
    }
    findings
}

/// Finds engine crates that do not run the conformance suite.
pub(crate) fn suite_runs(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in folders(tree) {
        let tests = format!("{folder}/tests/it/");
        if !tree.under(&tests).any(|(_, text)| text.contains("suite!")) {
            findings.push(Finding::of("engine-suite", &tests, "no file calls `suite!`"));
        }
    }
    findings
}

/// Finds engines without a page, and pages without the standard headings in their order.
pub(crate) fn engine_pages(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in folders(tree) {
        let name = folder.trim_start_matches("crates/tenure-");
        let path = format!("docs/engines/{name}.md");
        let Some(text) = tree.text(&path) else {
            findings.push(Finding::of("engine-page", &path, "every engine has its page"));
            continue;
        };
        let mut titles = text.lines().filter_map(title);
        for heading in HEADINGS {
            if !titles.any(|title| title.starts_with(heading)) {
                let text = format!("no heading {heading:?}, or it is out of order");
                findings.push(Finding::of("engine-page", &path, text));
                break;
            }
        }
    }
    findings
}

/// The text of a heading.
fn title(line: &str) -> Option<&str> {
    let (marks, title) = line.split_once(' ')?;
    (!marks.is_empty() && marks.chars().all(|c| c == '#')).then(|| title.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_standard_file_is_found() {
        let tree = Tree::of(&[
            ("crates/tenure-core/src/engine.rs", ""),
            ("crates/tenure-local/src/lib.rs", ""),
            ("crates/tenure-local/src/engine.rs", ""),
        ]);
        let found = standard_files(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "crates/tenure-local/src/config.rs");
    }

    #[test]
    fn an_engine_without_the_suite_is_found() {
        let with = ("crates/tenure-local/tests/it/main.rs", "tenure_conformance::suite!(Local);");
        assert_eq!(suite_runs(&Tree::of(&[with])), []);
        let second = ("crates/tenure-redis/src/engine.rs", "");
        let found = suite_runs(&Tree::of(&[with, second]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "crates/tenure-redis/tests/it/");
    }

    #[test]
    fn a_missing_page_or_heading_is_found() {
        let page: String = HEADINGS.map(|heading| format!("## {heading}\n")).concat();
        let path = "docs/engines/local.md";
        assert_eq!(engine_pages(&Tree::of(&[(path, &page)])), []);
        assert_eq!(engine_pages(&Tree::of(&[(path, &page.replace("## Settings", "## Options"))])).len(), 1);
        assert_eq!(engine_pages(&Tree::of(&[])).len(), 1);
    }
}
