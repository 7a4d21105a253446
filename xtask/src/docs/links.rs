//! Relative links of the Markdown files: the file must exist, and the heading too.

use crate::tidy::Finding;
use crate::tree::Tree;

/// Finds links to files or headings that do not exist.
pub(crate) fn relative_links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_suffix(".md") {
        for (line, target) in targets(text) {
            if let Some(why) = broken(tree, path, &target) {
                findings.push(Finding::at("links", path, line, format!("link to {target:?}: {why}")));
            }
        }
    }
    findings
}

/// Why a link leads nowhere; `None` if it leads somewhere or out of the project.
fn broken(tree: &Tree, page: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').map_or((target, None), |(file, part)| (file, Some(part)));
    let path = if file.is_empty() { page.to_owned() } else { resolve(page, file) };
    if !tree.has(&path) {
        return Some("no such file".to_owned());
    }
    let (text, heading) = (tree.text(&path).filter(|_| path.ends_with(".md"))?, heading?);
    (!anchors(text).iter().any(|anchor| anchor == heading)).then(|| format!("no such heading in {path}"))
}

/// A path relative to a page, relative to the root.
fn resolve(page: &str, file: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// The lines outside of fenced blocks, with their numbers, without code in backticks.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut is_fenced = false;
    let lines = text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    });
    lines.map(|(number, line)| (number + 1, line.split('`').step_by(2).collect::<Vec<_>>().join("``")))
}

/// The targets of the links of a page: `[text](target)` and `[text]: target`.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            found.push((number, target.to_owned()));
        }
        let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        if let Some((_, target)) = definition {
            found.push((number, target.trim().to_owned()));
        }
    }
    found
}

/// The anchors of a page's headings, as code hosts make them.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut is_fenced = false;
    for line in text.lines() {
        is_fenced ^= line.trim_start().starts_with("```");
        let Some((marks, title)) = line.split_once(' ').filter(|_| !is_fenced) else { continue };
        if marks.is_empty() || !marks.chars().all(|c| c == '#') {
            continue;
        }
        let kept = title.trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let slug: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let same = anchors.iter().filter(|anchor| **anchor == slug).count();
        anchors.push(if same == 0 { slug } else { format!("{slug}-{same}") });
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_missing_file_or_heading_is_found() {
        let tree = Tree::of(&[
            ("docs/a.md", "[b](b.md) [gone](../gone.md)\n[c](b.md#why-it-waits) [d](b.md#no)\n"),
            ("docs/b.md", "# Why it `waits`?\n[up](..) [out](https://example.com/x) [self](#why-it-waits)"),
        ]);
        let found: Vec<String> = relative_links(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "docs/a.md:1: link to \"../gone.md\": no such file [links]",
                "docs/a.md:2: link to \"b.md#no\": no such heading in docs/b.md [links]",
            ]
        );
    }

    #[test]
    fn code_is_not_a_link() {
        let tree = Tree::of(&[("a.md", "`[x](y)`\n```rust\nall([..])(gone.md)\n[x](z)\n```\n")]);
        assert!(relative_links(&tree).is_empty());
    }

    #[test]
    fn a_link_definition_is_a_link() {
        let tree = Tree::of(&[("a.md", "[x]: gone.md\n")]);
        assert_eq!(relative_links(&tree).len(), 1);
    }
}
