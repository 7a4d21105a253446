//! Rules about `CONTRIBUTING.md`: what it says must be touched to add an engine, a primitive or a command is all that must be.
//!
//! A file that names every engine lists the engines, so a new one must be added to it; and a file that bears the name of the
//! last engine outside of that engine's crate is one that each engine has. Neither depends on what a file is for, so a new
//! place that lists them is found as soon as it is written.

use super::Finding;
use crate::tree::{Tree, file_stem};

const PAGE: &str = "CONTRIBUTING.md";
/// Made by a tool, about the past, or this rule, which need not know what is new.
const LEFT_OUT: [&str; 3] = ["Cargo.lock", "docs/adr/", "xtask/src/tidy/adding.rs"];

/// What can be added.
struct Kind {
    /// The heading of its part of the page.
    heading: &'static str,
    /// Some that every version of the project has, the last one last. What is newer need not be here.
    names: &'static [&'static str],
    /// The folder that is one's own.
    own: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind {
        heading: "## An engine",
        names: &["local", "redis", "postgres", "mysql", "etcd", "zookeeper"],
        own: "crates/tenure-zookeeper/",
    },
    Kind {
        heading: "## A primitive",
        names: &[
            "mutex",
            "rw_lock",
            "semaphore",
            "queue",
            "election",
            "single_flight",
            "all_of",
            "slot_pool",
        ],
        own: "crates/tenure-core/src/face/slot_pool/",
    },
    Kind {
        heading: "## A command",
        names: &[
            "run",
            "elect",
            "queue",
            "cache",
            "fence",
            "status",
            "watch",
            "release",
            "doctor",
            "completions",
            "resize",
        ],
        own: "crates/tenure-cli/src/commands/resize/",
    },
];

/// Finds files that a part of the page should name, and paths in it that do not exist.
pub(crate) fn lists_are_complete(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.text(PAGE) else {
        return vec![Finding::of("adding", PAGE, "the file does not exist")];
    };
    KINDS.iter().flat_map(|kind| compare(tree, kind, page)).collect()
}

fn compare(tree: &Tree, kind: &Kind, page: &str) -> Vec<Finding> {
    let last = forms(kind.names[kind.names.len() - 1]);
    let listed: Vec<String> = paths(page, kind.heading)
        .into_iter()
        .flat_map(|path| last.clone().map(|name| path.replace("NAME", &name)))
        .collect();
    let is_listed = |path: &str| listed.iter().any(|pattern| matches(pattern, path));
    let mut findings = Vec::new();
    for (path, text) in tree.files() {
        let is_left_out = LEFT_OUT.iter().any(|prefix| path.starts_with(prefix));
        if is_left_out || path == PAGE || path.starts_with(kind.own) || is_listed(path) {
            continue;
        }
        let bears_the_name = is_written(path) && last.iter().any(|name| name == file_stem(path));
        if bears_the_name || kind.names.iter().all(|name| names(text, name)) {
            let text =
                format!("add it to {:?} of {PAGE}: each new one must be added to this file", kind.heading);
            findings.push(Finding::of("adding", path, text));
        }
    }
    for path in paths(page, kind.heading) {
        let exists = |name: &String| {
            let pattern = path.replace("NAME", name);
            tree.files().any(|(path, _)| matches(&pattern, path))
        };
        if !last.iter().any(exists) {
            let text = format!("{:?} names `{path}`, which does not exist", kind.heading);
            findings.push(Finding::of("adding", PAGE, text));
        }
    }
    findings
}

/// The paths in a part of the page: what stands in backticks, is no command and has a slash or the ending of a page or a manifest.
fn paths<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let lines = page.lines().skip_while(|line| *line != heading).skip(1);
    let part = lines.take_while(|line| !line.starts_with("## "));
    let quoted = part.flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_at_the_root = |text: &str| text.ends_with(".toml") || text.ends_with(".md");
    quoted
        .filter(|text| {
            ![" ", "::", "{"].iter().any(|other| text.contains(other))
                && (text.contains('/') || is_at_the_root(text))
        })
        .collect()
}

/// Whether a path is that of code or of a page.
fn is_written(path: &str) -> bool {
    path.ends_with(".rs") || path.ends_with(".md")
}

/// Whether a path is what the pattern says: `*` is any text, and what ends with a slash is all below it.
fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => {
            path.len() >= start.len() + end.len() && path.starts_with(start) && path.ends_with(end)
        }
        None if pattern.ends_with('/') => path.starts_with(pattern),
        None => path == pattern,
    }
}

/// A name as it is written in code, in the name of a page, as a type and in prose.
fn forms(name: &str) -> [String; 4] {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    let kind = name.split('_').map(capital).collect();
    [name.to_owned(), name.replace('_', "-"), kind, name.replace('_', " ")]
}

/// Whether a text names it as a word of its own or as part of an identifier.
fn names(text: &str, name: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric());
    forms(name).iter().any(|form| {
        text.match_indices(form.as_str()).any(|(at, _)| {
            is_edge(text[..at].chars().next_back()) && is_edge(text[at + form.len()..].chars().next())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { heading: "## A", names: &["first", "the_last"], own: "crates/the_last/" };

    fn found(page: &str, files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(files);
        compare(&tree, &KIND, page).into_iter().map(|finding| finding.path).collect()
    }

    #[test]
    fn a_file_that_names_all_of_a_kind_must_be_listed() {
        let files = [
            ("x/a.rs", "mod first;\nuse x::TheLast;"),
            ("b.rs", "mod first;"),
            ("crates/the_last/x.rs", "first the_last"),
        ];
        assert_eq!(found("## A\nsee `x/a.rs`\n## B\n", &files), Vec::<String>::new());
        assert_eq!(found("## A\n\n## B\nsee `x/a.rs`\n", &files), ["x/a.rs"]);
        assert_eq!(
            found("## A\n", &[("x/a.rs", "firsts the_last"), ("docs/adr/1.md", "first the_last")]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_file_with_the_name_of_the_last_one_must_be_listed() {
        let files = [("docs/the-last.md", "")];
        assert_eq!(found("## A\n", &files), ["docs/the-last.md"]);
        assert_eq!(found("## A\n`docs/NAME.md`\n", &files), Vec::<String>::new());
        assert_eq!(found("## A\n`docs/*NAME.md`\n", &[("docs/x/the_last.md", "")]), Vec::<String>::new());
    }

    #[test]
    fn a_listed_path_must_exist() {
        assert_eq!(found("## A\n`gone.md`, `connect.rs`, `cargo xtask tidy`, `a::b`\n", &[]), [PAGE]);
        assert_eq!(found("## A\n`crates/NAME/`\n", &[("crates/the_last/x.rs", "")]), Vec::<String>::new());
    }
}
