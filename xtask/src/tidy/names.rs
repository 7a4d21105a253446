//! Rules about names: files that say what they hold, and the glossary's words only.

use super::Finding;
use crate::tree::{Tree, file_stem};

/// Names that say nothing about what a file holds.
const VAGUE: [&str; 9] =
    ["utils", "util", "common", "helpers", "helper", "manager", "internal", "misc", "shared"];

/// Words that `docs/glossary.md` bans, because another word is in use for the same thing.
const BANNED: [&str; 9] =
    ["session", "guard", "handle", "permit", "owner", "provider", "driver", "backend", "watchdog"];

/// Crates whose names users meet. Inside an engine the store's own words are right: a ZooKeeper session, a lock's guard.
const FACES: [&str; 7] = [
    "crates/tenure/",
    "crates/tenure-cli/",
    "crates/tenure-core/",
    "crates/tenure-fence/",
    "crates/tenure-metrics/",
    "crates/tenure-serve/",
    "crates/tenure-tower/",
];

/// The kinds of items whose names users meet.
const KINDS: [&str; 8] = ["fn", "struct", "enum", "trait", "mod", "type", "union", "static"];

/// Finds files and folders with names that say nothing.
pub(crate) fn vague_files(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _) in tree.with_suffix(".rs") {
        let folders = path.split('/').rev().skip(1);
        if let Some(vague) = folders.chain([file_stem(path)]).find(|name| VAGUE.contains(name)) {
            let text = format!("{vague:?} does not say what is in it: use a word of the glossary");
            findings.push(Finding::of("vague-name", path, text));
        }
    }
    findings
}

/// Finds public items that are named with a word that the glossary bans.
pub(crate) fn banned_words(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let of_users = |path: &str| FACES.iter().any(|face| path.starts_with(face));
    for (path, text) in tree.with_suffix(".rs").filter(|(path, _)| of_users(path)) {
        for (number, line) in text.lines().enumerate() {
            let Some(name) = public_item(line) else { continue };
            if let Some(word) = words(name).into_iter().find(|word| is_banned(word)) {
                let text = format!("`{name}`: the glossary has another word for {word:?}");
                findings.push(Finding::at("glossary", path, number + 1, text));
            }
        }
    }
    findings
}

/// The name of the public item that the line declares.
fn public_item(line: &str) -> Option<&str> {
    let mut words = line.trim_start().strip_prefix("pub ")?.split_whitespace();
    let mut is_const = false;
    loop {
        let name = match words.next()? {
            "async" | "unsafe" | "extern" | "\"C\"" => continue,
            "const" => {
                is_const = true;
                continue;
            }
            kind if KINDS.contains(&kind) => words.next()?,
            name if is_const => name,
            _ => return None,
        };
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
        return Some(&name[..end]);
    }
}

/// The words of an identifier in any spelling, in lower case: `SlotPool`, `slot_pool`, `SLOT_POOL`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_lowercase();
        if let Some(word) = words.last_mut().filter(|_| c != '_') {
            word.extend(c.to_lowercase());
        }
    }
    words
}

fn is_banned(word: &str) -> bool {
    BANNED.iter().any(|banned| word.strip_prefix(banned).is_some_and(|rest| rest.is_empty() || rest == "s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_say_nothing_are_found() {
        let tree = Tree::of(&[("src/utils.rs", ""), ("src/common/mod.rs", ""), ("src/slot_pool.rs", "")]);
        let found: Vec<String> = vague_files(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, ["src/common/mod.rs", "src/utils.rs"]);
    }

    #[test]
    fn banned_words_are_found_in_names_of_public_items() {
        let bad = [
            "pub struct MutexGuard<'a> {",
            "    pub const fn owner(&self) -> u32 {",
            "pub async unsafe fn open_session() {}",
            "pub const PERMITS_MAX: usize = 1;",
            "pub mod watchdog;",
        ];
        for line in bad {
            assert_eq!(banned_words(&Tree::of(&[("crates/tenure/src/a.rs", line)])).len(), 1, "{line}");
            assert_eq!(banned_words(&Tree::of(&[("crates/tenure-zookeeper/src/a.rs", line)])), [], "{line}");
        }
    }

    #[test]
    fn other_words_and_private_items_pass() {
        let good = [
            "pub struct Lease;",
            "pub(crate) fn handle() {}",
            "fn owner() {}",
            "pub fn guardian() {}",
            "pub use x::Session;",
            "    pub permits: Option<u32>,",
            "pub const TTL_MAX: Duration = x;",
        ];
        for line in good {
            assert_eq!(banned_words(&Tree::of(&[("a.rs", line)])), [], "{line}");
        }
    }
}
