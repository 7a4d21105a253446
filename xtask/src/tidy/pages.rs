//! Rules about documents.

use super::Finding;
use crate::rust_version;
use crate::tree::{Tree, file_name};

const ADRS: &str = "docs/adr/";
const ADR_INDEX: &str = "docs/adr/README.md";
const CHANGELOG: &str = "CHANGELOG.md";
const README: &str = "README.md";
const GUIDES: &str = "docs/guides/";
/// Where the primitives are.
const FACE: &str = "crates/tenure-core/src/face/";
const EXAMPLE: &str = "crates/tenure/examples/hello.rs";

/// Every primitive, as its file in the core is named. One that is not written yet has no file and no page.
const PRIMITIVES: [&str; 8] =
    ["mutex", "rw_lock", "semaphore", "slot_pool", "all_of", "election", "single_flight", "queue"];

/// The parts of every ADR, in this order.
const ADR_PARTS: [&str; 5] =
    ["**Status**", "## Context", "## Decision", "## Consequences", "## Alternatives"];

/// Finds ADRs that the index does not link to, and ADRs without one of the parts.
pub(crate) fn adr_index(tree: &Tree) -> Vec<Finding> {
    let Some(index) = tree.text(ADR_INDEX) else {
        return vec![Finding::of("adr", ADR_INDEX, "the file does not exist")];
    };
    let mut findings = Vec::new();
    for (path, text) in tree.under(ADRS).filter(|(path, _)| *path != ADR_INDEX && path.ends_with(".md")) {
        if !index.contains(&format!("]({})", file_name(path))) {
            findings.push(Finding::of("adr", path, format!("{ADR_INDEX} does not link to it")));
        }
        let mut lines = text.lines();
        if let Some(part) = ADR_PARTS.iter().find(|part| !lines.any(|line| line.starts_with(**part))) {
            findings.push(Finding::of("adr", path, format!("no {part:?}, or it is out of order")));
        }
    }
    findings
}

/// Finds a change list without a place for the next change.
pub(crate) fn changelog(tree: &Tree) -> Vec<Finding> {
    let text = tree.text(CHANGELOG).unwrap_or_default();
    if text.lines().any(|line| line.starts_with("## [Unreleased]")) {
        return Vec::new();
    }
    vec![Finding::of("changelog", CHANGELOG, "there is no heading `## [Unreleased]`")]
}

/// Finds primitives without a page.
pub(crate) fn primitive_pages(tree: &Tree) -> Vec<Finding> {
    let exists = |name: &&str| tree.has(&format!("{FACE}{name}.rs"));
    let primitives: Vec<&str> = PRIMITIVES.into_iter().filter(exists).collect();
    if primitives.is_empty() {
        return vec![Finding::of("primitive-page", FACE, "there is no primitive")];
    }
    let pages = primitives.iter().map(|name| format!("docs/primitives/{}.md", name.replace('_', "-")));
    let missing = pages.filter(|page| !tree.has(page));
    missing.map(|page| Finding::of("primitive-page", &page, "every primitive has its page")).collect()
}

/// Finds guides that show no command which the tests run, and guides that the README does not link to.
pub(crate) fn guides(tree: &Tree) -> Vec<Finding> {
    let readme = tree.text(README).unwrap_or_default();
    let mut findings = Vec::new();
    for (path, text) in tree.under(GUIDES) {
        if !text.contains("\n```console\n$ ") {
            findings.push(Finding::of(
                "guide",
                path,
                "no block ```console: show what happens, and it is tested",
            ));
        }
        if !readme.contains(&format!("]({path})")) {
            findings.push(Finding::of("guide", path, format!("{README} does not link to it")));
        }
    }
    findings
}

/// Where a newcomer is told how old Rust may be.
const STARTS: [&str; 3] = [README, "README.zh-CN.md", "docs/start.md"];

/// Finds pages that name another oldest Rust than the manifest.
pub(crate) fn rust_version(tree: &Tree) -> Vec<Finding> {
    let Some(oldest) = rust_version::oldest(tree) else {
        return vec![Finding::of("rust-version", "Cargo.toml", "the workspace has no `rust-version`")];
    };
    let said = format!("Rust {oldest} ");
    let says = |page: &&str| tree.text(page).is_some_and(|text| text.contains(&said));
    let missing = STARTS.into_iter().filter(|page| !says(page));
    missing.map(|page| Finding::of("rust-version", page, format!("it does not say `{said}`"))).collect()
}

/// Finds a README whose first Rust block is not the example that is compiled.
pub(crate) fn readme_example(tree: &Tree) -> Vec<Finding> {
    let Some(block) = tree.text(README).and_then(first_rust_block) else {
        return vec![Finding::of("readme", README, "there is no block of Rust")];
    };
    let Some(example) = tree.text(EXAMPLE) else {
        return vec![Finding::of("readme", EXAMPLE, "the file does not exist")];
    };
    if code(&block) == code(example) {
        return Vec::new();
    }
    vec![Finding::of("readme", README, format!("the first block of Rust differs from {EXAMPLE}"))]
}

/// The lines of the first block that is fenced as Rust.
fn first_rust_block(page: &str) -> Option<String> {
    let mut lines = page.lines().skip_while(|line| !line.starts_with("```rust"));
    lines.next()?;
    Some(lines.take_while(|line| !line.starts_with("```")).collect::<Vec<_>>().join("\n"))
}

/// The text without the crate's doc comment, which a README does not need.
fn code(text: &str) -> &str {
    let mut rest = text.trim();
    while rest.starts_with("//!") {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest.trim_start());
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_names_another_rust_is_found() {
        let manifest = ("Cargo.toml", "[workspace.package]\nrust-version = \"1.88\"\n");
        let pages = STARTS.map(|page| (page, "On Linux with Rust 1.88 or newer"));
        assert_eq!(rust_version(&Tree::of(&[&[manifest][..], &pages].concat())), []);
        let old = (STARTS[2], "You need Rust 1.85 or newer");
        assert_eq!(rust_version(&Tree::of(&[manifest, pages[0], pages[1], old])).len(), 1);
        assert_eq!(rust_version(&Tree::of(&pages)).len(), 1);
    }

    #[test]
    fn an_adr_outside_the_index_or_without_a_part_is_found() {
        let whole = "# 1\n**Status**: accepted\n## Context\n## Decision\n## Consequences\n## Alternatives\n";
        let index = (ADR_INDEX, "- [one](0001-one.md)\n");
        assert_eq!(adr_index(&Tree::of(&[index, ("docs/adr/0001-one.md", whole)])), []);
        assert_eq!(adr_index(&Tree::of(&[index, ("docs/adr/0002-two.md", whole)])).len(), 1);
        assert_eq!(adr_index(&Tree::of(&[index, ("docs/adr/0001-one.md", "# 1\n## Context\n")])).len(), 1);
        assert_eq!(adr_index(&Tree::of(&[])).len(), 1);
    }

    #[test]
    fn a_changelog_without_unreleased_is_found() {
        assert_eq!(changelog(&Tree::of(&[(CHANGELOG, "# Changes\n## [Unreleased]\n")])), []);
        assert_eq!(changelog(&Tree::of(&[(CHANGELOG, "# Changes\n## [1.0.0]\n")])).len(), 1);
    }

    #[test]
    fn a_primitive_without_a_page_is_found() {
        let core = ("crates/tenure-core/src/face/rw_lock.rs", "");
        assert_eq!(primitive_pages(&Tree::of(&[core, ("docs/primitives/rw-lock.md", "")])), []);
        assert_eq!(primitive_pages(&Tree::of(&[core])).len(), 1);
    }

    #[test]
    fn a_guide_without_commands_or_links_is_found() {
        let guide = ("docs/guides/a.md", "# A\n\n```console\n$ tenure run a -- true\n```\n");
        let readme = (README, "[a](docs/guides/a.md)\n");
        assert_eq!(guides(&Tree::of(&[guide, readme])), []);
        assert_eq!(guides(&Tree::of(&[guide])).len(), 1);
        assert_eq!(guides(&Tree::of(&[("docs/guides/a.md", "# A\n\n```sh\ntrue\n```\n"), readme])).len(), 1);
    }

    #[test]
    fn a_readme_that_differs_from_the_example_is_found() {
        let readme = (README, "# x\n```console\n$ x\n```\n```rust\nfn main() {}\n```\n```rust\nother\n```\n");
        assert_eq!(readme_example(&Tree::of(&[readme, (EXAMPLE, "//! Says hello.\n\nfn main() {}\n")])), []);
        assert_eq!(readme_example(&Tree::of(&[readme, (EXAMPLE, "fn main() { }\n")])).len(), 1);
        assert_eq!(readme_example(&Tree::of(&[readme])).len(), 1);
    }
}
