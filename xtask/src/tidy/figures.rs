//! Rules about numbers: a default or a limit that a page shows in a table is held by a test.
//!
//! A test says which figure it holds, with the words of the page: `// page: docs/primitives/queue.md "| 10 | after how many"`. Only tables
//! of settings are looked through, and those below a line `<!-- each figure is held by a test -->`: elsewhere most numbers are examples, measurements
//! and versions.

use super::Finding;
use crate::tree::Tree;

/// Begins a table whose figures are promises.
const TABLE: &str = "| setting | default |";
/// Says so of the next table.
const PROMISED: &str = "<!-- each figure is held by a test -->";
const DOCS: &str = "docs/";
const MARK: &str = "// page: ";

/// A test's word for a figure.
struct Pin<'a> {
    path: &'a str,
    line: usize,
    page: &'a str,
    words: &'a str,
}

/// Finds figures of tables of settings that no test holds, and tests that hold what no page says any more.
pub(crate) fn are_pinned(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pins = pins(tree, &mut findings);
    for pin in &pins {
        let is_said =
            tree.text(pin.page).is_some_and(|text| text.lines().any(|line| line.contains(pin.words)));
        if !is_said {
            let text = format!("{} does not say {:?} in one line", pin.page, pin.words);
            findings.push(Finding::at("figure", pin.path, pin.line, text));
        }
    }
    for (path, text) in tree.under(DOCS).filter(|(path, _)| path.ends_with(".md")) {
        let (mut is_table, mut is_next) = (false, false);
        for (number, line) in text.lines().enumerate() {
            let is_headings = line.starts_with(TABLE) || is_next && line.starts_with('|');
            is_next = line == PROMISED || is_next && line.is_empty();
            is_table = is_headings || is_table && line.starts_with('|');
            if !is_table || is_headings {
                continue;
            }
            let held: Vec<_> = pins
                .iter()
                .filter(|pin| pin.page == path)
                .flat_map(|pin| line.match_indices(pin.words))
                .map(|(at, words)| at..at + words.len())
                .collect();
            let free = figures(line).filter(|(at, _)| !held.iter().any(|held| held.contains(at)));
            for (_, figure) in free {
                let text =
                    format!("no test holds the {figure}: write `{MARK}{path} \"words of this row\"` at one");
                findings.push(Finding::at("figure", path, number + 1, text));
            }
        }
    }
    findings
}

/// What tests say they hold.
fn pins<'a>(tree: &'a Tree, findings: &mut Vec<Finding>) -> Vec<Pin<'a>> {
    let mut pins = Vec::new();
    let of_rust = tree.with_suffix(".rs").filter(|(path, _)| path.starts_with("crates/"));
    let of_java = tree.with_suffix(".java").filter(|(path, _)| path.contains("/src/test/"));
    for (path, text) in of_rust.chain(of_java) {
        for (number, line) in text.lines().enumerate() {
            let Some(said) = line.trim_start().strip_prefix(MARK) else { continue };
            let pin = said.split_once(" \"").and_then(|(page, rest)| Some((page, rest.strip_suffix('"')?)));
            match pin {
                Some((page, words)) => pins.push(Pin { path, line: number + 1, page, words }),
                None => {
                    let text = format!("not `{MARK}docs/PAGE.md \"words\"`");
                    findings.push(Finding::at("figure", path, number + 1, text));
                }
            }
        }
    }
    pins
}

/// The numbers of a line and where each begins, but for those that are a part of a word.
fn figures(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let words = line.split(move |c: char| !is_part(c)).filter(|word| !word.is_empty());
    words
        .filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))
        .map(move |word| (word.as_ptr() as usize - line.as_ptr() as usize, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "docs/q.md";
    const ROWS: &str = "Of 7 stores.\n| setting | default | effect |\n| --- | --- | --- |\n| `n` | 10 | as `md5`, up to 64 |\n\n| 3 | 4 |\n";

    #[test]
    fn a_figure_without_a_test_and_a_test_without_its_page_are_found() {
        let found = |source: &str| are_pinned(&Tree::of(&[(PAGE, ROWS), ("crates/q/tests/it/q.rs", source)]));
        assert_eq!(found("// page: docs/q.md \"| 10 | as `md5`, up to 64\"\n"), []);
        assert_eq!(found("// page: docs/q.md \"| 10 |\"\n    // page: docs/q.md \"up to 64\"\n"), []);
        assert_eq!(found("").len(), 2);
        // The 64 is held by nothing.
        assert_eq!(found("// page: docs/q.md \"| 10 |\"\n").len(), 1);
        // The page has another number by now, and another page is none.
        assert_eq!(found("// page: docs/q.md \"| 11 | as `md5`, up to 64\"\n").len(), 3);
        assert_eq!(found("// page: docs/none.md \"| 10 | as `md5`, up to 64\"\n").len(), 3);
        assert_eq!(found("// page: docs/q.md, the table\n").len(), 3);
    }

    #[test]
    fn a_table_may_be_marked_as_one_of_promises() {
        let found = |mark: &str| {
            let page = format!("{mark}\n\n| 1st | 2nd |\n| --- | --- |\n| 10 ms | 20 ms |\n\n| 3 | 4 |\n");
            are_pinned(&Tree::of(&[(PAGE, &page)])).len()
        };
        assert_eq!((found(PROMISED), found("Of 7 stores.")), (2, 0));
    }
}
