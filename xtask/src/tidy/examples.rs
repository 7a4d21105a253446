//! Rules about examples: the docs of a published crate show how each public type and function is used, or say why not.

use super::Finding;
use crate::tree::Tree;

/// Ends the path of the list of a published crate's public items.
const LIST: &str = "public-api.txt";
/// With these words the docs of an item, of its module, of one above it or of the crate say why there is no example.
const REASON: &str = "No example";
/// What begins the declaration of an item, after `pub`.
const KINDS: [&str; 7] = ["struct ", "enum ", "trait ", "union ", "fn ", "async fn ", "const fn "];

/// Finds crates without an example, and public items that no example shows and for which no reason is given.
pub(crate) fn are_there(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, list) in tree.with_suffix(LIST) {
        let sources = format!("{}src/", path.trim_end_matches(LIST));
        let files: Vec<_> = tree.under(&sources).filter(|(path, _)| path.ends_with(".rs")).collect();
        let root = format!("{sources}lib.rs");
        let docs = module_docs(tree.text(&root).unwrap_or_default());
        if !docs.contains("```") && !docs.contains(REASON) {
            findings.push(Finding::of("example", &root, format!("no example; or say `{REASON}: …`")));
        }
        let shown: Vec<&str> = files.iter().flat_map(|(_, text)| examples(text)).collect();
        for name in items(list) {
            // What is declared elsewhere is shown there.
            let Some((path, line, docs)) = declared(&files, name) else { continue };
            let is_shown = docs.contains("```") || shown.iter().any(|line| has_word(line, name));
            if is_shown || docs.contains(REASON) || is_explained(tree, &sources, path) {
                continue;
            }
            let text = format!("no example shows `{name}`; write one, or `{REASON}: …` with the reason");
            findings.push(Finding::at("example", path, line, text));
        }
    }
    findings
}

/// The names of the types and functions of a list of public items. Methods are shown with their types.
fn items(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| {
        let item = line.strip_prefix("pub ")?;
        let path = KINDS.iter().find_map(|kind| item.strip_prefix(kind))?;
        let end = path.find(['<', '(', ' ']).unwrap_or(path.len());
        let (above, name) = path[..end].trim_end_matches(':').rsplit_once("::")?;
        let last = above.rsplit("::").next().unwrap_or_default();
        (!last.starts_with(char::is_uppercase)).then_some(name)
    })
}

/// Where an item is declared, and the docs above it.
fn declared<'a>(files: &[(&'a str, &'a str)], name: &str) -> Option<(&'a str, usize, String)> {
    files.iter().find_map(|(path, text)| {
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|line| {
            let item = line.trim_start().strip_prefix("pub ").unwrap_or_default();
            let rest = KINDS.iter().find_map(|kind| item.strip_prefix(kind)?.strip_prefix(name));
            rest.is_some_and(|rest| !rest.starts_with(is_part_of_word))
        })?;
        let above = lines[..at].iter().rev().map(|line| line.trim_start());
        let docs: Vec<&str> = above
            .take_while(|line| ["///", "#["].iter().any(|start| line.starts_with(start)))
            .filter(|line| line.starts_with("///"))
            .collect();
        Some((*path, at + 1, docs.join("\n")))
    })
}

/// The lines of code in the docs of a file.
fn examples(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let docs = text.lines().map(str::trim_start).filter(|line| line.starts_with("//"));
    docs.filter(|line| {
        let is_fence = line.trim_start_matches(['/', '!']).trim_start().starts_with("```");
        is_code ^= is_fence;
        is_code && !is_fence
    })
    .collect()
}

/// The docs at the top of a file.
fn module_docs(text: &str) -> String {
    text.lines().filter(|line| line.starts_with("//!")).collect::<Vec<_>>().join("\n")
}

/// Whether the module of a file, one above it or the crate gives the reason.
fn is_explained(tree: &Tree, sources: &str, path: &str) -> bool {
    let mut module = path.strip_suffix(".rs").unwrap_or(path);
    loop {
        let docs = module_docs(tree.text(&format!("{module}.rs")).unwrap_or_default());
        if docs.contains(REASON) {
            return true;
        }
        match module.rsplit_once('/').filter(|(above, _)| above.len() > sources.len()) {
            Some((above, _)) => module = above,
            None => break,
        }
    }
    module_docs(tree.text(&format!("{sources}lib.rs")).unwrap_or_default()).contains(REASON)
}

fn is_part_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let (before, behind) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(is_part_of_word) && !behind.starts_with(is_part_of_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: (&str, &str) = (
        "crates/q/public-api.txt",
        "pub mod q\npub struct q::a::Item<T: q::b::Other>(_)\npub trait q::Store: core::marker::Send\npub fn q::Item::new()\npub async fn q::a::open(&str)\n",
    );
    const ROOT: (&str, &str) = ("crates/q/src/lib.rs", "//! A crate.\n//! ```\n//! q();\n//! ```\n");

    fn found(item: &str, store: &str) -> usize {
        are_there(&Tree::of(&[
            LIST,
            ROOT,
            ("crates/q/src/a/item.rs", item),
            ("crates/q/src/store.rs", store),
        ]))
        .len()
    }

    #[test]
    fn a_type_without_an_example_is_found() {
        let store = "/// Keeps.\npub trait Store: Send {}\n";
        let example =
            "/// One.\n/// ```\n/// Item::new();\n/// ```\n#[derive(Debug)]\npub struct Item<T>(T);\n";
        assert_eq!(found("/// One.\npub struct Item<T>(T);\n", store), 2);
        assert_eq!(found(example, store), 1);
        // Of another name, or in code that is no example.
        assert_eq!(
            found("/// ```\n/// MyItem::new();\n/// ```\nfn f() {}\npub struct Item<T>(T);\n", store),
            2
        );
        assert_eq!(found("fn f() -> Item { Item::new() }\npub struct Item<T>(T);\n", store), 2);
        // An example elsewhere, a reason of the module, and one above it.
        assert_eq!(found(example, "//! ```\n//! Store::new();\n//! ```\npub trait Store: Send {}\n"), 0);
        assert_eq!(found(example, "//! No example: too long.\npub trait Store: Send {}\n"), 0);
        let above = ("crates/q/src/a.rs", "//! No example: plain data.\n");
        let item = ("crates/q/src/a/item.rs", "pub struct Item<T>(T);\n");
        assert_eq!(are_there(&Tree::of(&[LIST, ROOT, above, item])), []);
    }

    #[test]
    fn a_function_without_an_example_is_found() {
        let open = "#![no_std]\n/// Opens.\npub async fn open(path: &str) {}\n";
        assert_eq!(found(open, "pub async fn open_all() {}\n"), 1);
        assert_eq!(found(&open.replace("Opens.", "No example: opens."), ""), 0);
        assert_eq!(found(open, "/// ```\n/// open(\"a\");\n/// ```\nfn f() {}\n"), 0);
        // A method is its type's.
        assert_eq!(found("impl Item {\n    pub fn new() -> Item {}\n}\n", ""), 0);
    }

    #[test]
    fn a_crate_without_an_example_is_found() {
        let plain = ("crates/q/src/lib.rs", "//! A crate.\n");
        assert_eq!(are_there(&Tree::of(&[("crates/q/public-api.txt", ""), plain])).len(), 1);
        assert_eq!(are_there(&Tree::of(&[plain])), [], "it is not published");
    }
}
