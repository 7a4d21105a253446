//! The rule about conformance checks: each is listed in `suite!`, or no engine runs it.

use super::Finding;
use super::text::has_word;
use crate::tree::{Tree, file_stem};

const CHECKS: &str = "crates/tenure-conformance/src/";
const SUITE: &str = "crates/tenure-conformance/src/lib.rs";

/// Finds checks that the macro `suite!` does not list.
pub(crate) fn checks_are_listed(tree: &Tree) -> Vec<Finding> {
    let lib = tree.text(SUITE).unwrap_or_default();
    let Some((_, suite)) = lib.split_once("macro_rules! suite") else {
        return vec![Finding::of("suite", SUITE, "there is no macro `suite!`")];
    };
    let mut findings = Vec::new();
    for (path, text) in tree.under(CHECKS).filter(|(path, _)| *path != SUITE && path.ends_with(".rs")) {
        let module = file_stem(path);
        for (number, line) in text.lines().enumerate() {
            let Some(name) = check_name(line).filter(|name| !is_listed(suite, module, name)) else {
                continue;
            };
            let text = format!("`suite!` does not list {module}::{name}, so no engine runs it");
            findings.push(Finding::at("suite", path, number + 1, text));
        }
    }
    findings
}

/// The name of the check that the line declares.
fn check_name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub async fn ")?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(&rest[..end])
}

/// Whether the macro has `module::name`, or `name` in brackets that follow `module`.
fn is_listed(suite: &str, module: &str, name: &str) -> bool {
    has_word(suite, &format!("{module}::{name}"))
        || suite.match_indices(module).any(|(at, _)| {
            let after = suite[at + module.len()..].trim_start_matches([' ', ':', '=', '>', '\n']);
            has_word(&suite[at..at + module.len()], module)
                && bracketed(after).is_some_and(|list| has_word(list, name))
        })
}

/// The text in the bracket that starts the text.
fn bracketed(text: &str) -> Option<&str> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(&text[..at]).filter(|list| !list.is_empty());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: (&str, &str) = (
        "crates/tenure-conformance/src/mutex.rs",
        "pub async fn excludes_a_second_holder<S: Setup>(setup: &S) {}\nasync fn aid() {}\n",
    );

    fn found(lib: &str) -> Vec<Finding> {
        checks_are_listed(&Tree::of(&[(SUITE, lib), CHECK]))
    }

    #[test]
    fn a_check_that_is_not_listed_is_found() {
        let findings = found("macro_rules! suite { () => { mutex::excludes_a_second_holder_twice } }");
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].path.as_str(), findings[0].line), (CHECK.0, Some(1)));
        assert_eq!(found("macro_rules! suite { fifo { excludes_a_second_holder } }").len(), 1);
    }

    #[test]
    fn a_check_may_be_listed_by_path_or_in_its_module() {
        for lib in [
            "macro_rules! suite { () => { run!(mutex::excludes_a_second_holder); } }",
            "macro_rules! suite { () => { mutex: [is_free, excludes_a_second_holder,], } }",
            "macro_rules! suite { () => { mod mutex { check!(excludes_a_second_holder); } } }",
        ] {
            assert_eq!(found(lib), [], "{lib}");
        }
    }

    #[test]
    fn a_project_without_the_macro_is_found() {
        assert_eq!(found("//! checks").len(), 1);
    }
}
