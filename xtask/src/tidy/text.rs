//! Rules about the text of files.

use super::Finding;
use crate::tree::Tree;

/// A Rust file that is longer hides more than one thing.
const LINES_MAX: usize = 800;

/// Words of unfinished work, put together here so that the rule does not find itself.
const UNTIL_FIXED: &str = concat!("FIX", "ME");
const LATER: &str = concat!("TO", "DO");
const DEBUG_PRINT: &str = concat!("db", "g!");

/// Paths that exist on one developer's machine only.
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("../sha", "red")];

/// Finds work that was left for later without a number, and debugging prints.
pub(crate) fn unfinished_work(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| is_code(path)) {
        for (number, line) in text.lines().enumerate() {
            if let Some(why) = unfinished(line) {
                findings.push(Finding::at("unfinished", path, number + 1, why));
            }
        }
    }
    findings
}

/// Finds Rust files that are too long.
pub(crate) fn long_files(tree: &Tree) -> Vec<Finding> {
    let counted = tree.with_suffix(".rs").map(|(path, text)| (path, text.lines().count()));
    let long = counted.filter(|(_, lines)| *lines > LINES_MAX);
    long.map(|(path, lines)| {
        Finding::of("long-file", path, format!("{lines} lines, the most is {LINES_MAX}"))
    })
    .collect()
}

fn is_code(path: &str) -> bool {
    let endings = [".rs", ".toml", ".sh", ".lua", ".sql", ".yml", ".yaml"];
    endings.iter().any(|ending| path.ends_with(ending)) || path.starts_with(".ci/")
}

fn unfinished(line: &str) -> Option<String> {
    if has_word(line, UNTIL_FIXED) {
        return Some(format!("{UNTIL_FIXED}: fix it now"));
    }
    if has_word(line, DEBUG_PRINT) {
        return Some(format!("{DEBUG_PRINT} is for debugging"));
    }
    let (_, rest) = line.split_once(LATER).filter(|_| has_word(line, LATER))?;
    let has_number = rest.split('#').skip(1).any(|part| part.starts_with(|c: char| c.is_ascii_digit()));
    (!has_number).then(|| format!("{LATER} without #N"))
}

/// Whether a text has a word that is not part of a longer identifier.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Finds paths that mean nothing on another machine.
pub(crate) fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files() {
        for (number, line) in text.lines().enumerate() {
            for needle in MACHINE_PATHS.iter().filter(|needle| starts_path(line, needle)) {
                let text = format!("{needle} is a path of one machine");
                findings.push(Finding::at("machine-path", path, number + 1, text));
            }
        }
    }
    findings
}

/// Whether the needle stands at the start of a path; in `docs/home/` it does not.
fn starts_path(line: &str, needle: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "_-.}>*~".contains(c);
    line.match_indices(needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        needle.starts_with('.') || !before.is_some_and(continues)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_found(rule: fn(&Tree) -> Vec<Finding>, path: &str, text: &str) -> Vec<Option<usize>> {
        rule(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unfinished_work_is_found() {
        let text = format!("// {LATER}: later\n// {LATER}(#12): later\n{DEBUG_PRINT}(x)\n// {UNTIL_FIXED}\n");
        assert_eq!(lines_found(unfinished_work, "a.rs", &text), [Some(1), Some(3), Some(4)]);
    }

    #[test]
    fn documents_may_speak_of_unfinished_work() {
        assert!(lines_found(unfinished_work, "STYLE.md", LATER).is_empty());
    }

    #[test]
    fn a_long_file_is_found() {
        let lines = "//\n".repeat(LINES_MAX);
        assert!(lines_found(long_files, "a.rs", &lines).is_empty());
        assert_eq!(lines_found(long_files, "a.rs", &(lines + "//\n")), [None]);
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        let [work, .., shared] = MACHINE_PATHS;
        let text = format!("see {work}x\nsee docs{work}x\n`{shared}/y`\n");
        assert_eq!(lines_found(machine_paths, "a.md", &text), [Some(1), Some(3)]);
    }
}
