//! The docs of the methods that users call begin with the line of code that calls them, and that line compiles.
//!
//! A doc test for each method would cost minutes: the lines stand together in one doc test of their type.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// The files with what users call.
fn files() -> Vec<(String, String)> {
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let face = std::fs::read_dir(sources.join("face")).expect("the face is there");
    let mut paths: Vec<PathBuf> = face.map(|entry| entry.expect("a file").path()).collect();
    // The blocking face has the same lines without `.await`.
    paths.retain(|path| {
        path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("blocking.rs")
    });
    let read = |path: PathBuf| (path.display().to_string(), std::fs::read_to_string(&path).expect("text"));
    paths.into_iter().map(read).collect()
}

/// The text of a line of documentation.
fn doc(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("///").map(str::trim)
}

/// The lines of all doc tests.
fn compiled(files: &[(String, String)]) -> BTreeSet<&str> {
    let mut lines = BTreeSet::new();
    for (_, text) in files {
        let mut is_code = false;
        for line in text.lines().filter_map(doc) {
            if line.starts_with("```") {
                is_code = !is_code;
            } else if is_code {
                lines.insert(line);
            }
        }
    }
    lines
}

/// The line of code with which the docs above a line begin, after their first paragraph.
fn shown<'a>(above: &[&'a str]) -> Option<&'a str> {
    let is_docs = |line: &&&str| line.trim_start().starts_with("///") || line.trim_start().starts_with("#[");
    let docs = above.iter().rev().take_while(is_docs).count();
    let mut rest = above[above.len() - docs..].iter().skip_while(|line| doc(line) != Some(""));
    doc(rest.nth(1)?)?.strip_prefix('`')?.strip_suffix('`')
}

#[test]
fn a_method_is_shown_by_a_line_that_compiles() {
    let files = files();
    let compiled = compiled(&files);
    let mut count = 0;
    for (path, text) in &files {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if !["pub fn ", "pub async fn "].iter().any(|start| line.trim_start().starts_with(start)) {
                continue;
            }
            let Some(code) = shown(&lines[..at]) else {
                panic!("{path}:{}: no line of code after the first paragraph: {}", at + 1, line.trim());
            };
            assert!(compiled.contains(code), "{path}:{}: in no doc test: {code}", at + 1);
            count += 1;
        }
    }
    assert!(count > 80, "the methods were found: {count}");
}
