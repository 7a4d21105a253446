//! `cargo xtask api`: the public items of each published crate, in a list beside it, so that a change of what users see is
//! seen in review.
//!
//! rustdoc writes them as JSON, and `xtask-api` reads that: a crate of its own, because it has dependencies. The crates
//! that ours depend on are checked, not documented: after `cargo xtask docs` this takes seconds.

use std::path::Path;

use crate::args::Args;
use crate::manifest;
use crate::run::{Outcome, Run};
use crate::tree::Tree;

const LIST: &str = "public-api.txt";

/// Checks the lists; with `--fix` writes them.
pub(crate) fn start(run: &mut Run, mut args: Args) -> Outcome<()> {
    let fix = args.flag("--fix");
    args.finish()?;
    lists(run, fix)
}

/// Compares the list of each crate with its public items, or writes it.
pub(crate) fn lists(run: &mut Run, fix: bool) -> Outcome<()> {
    let tree = Tree::read(run.root())?;
    let libraries = libraries(&tree);
    let target = run.target()?.join("doc");
    let mut rustdoc = run.cargo("doc --quiet --lib --no-deps --all-features");
    for (_, package) in &libraries {
        rustdoc.args(["--package", package]);
    }
    rustdoc.env("RUSTDOC", run.root().join("xtask/api/rustdoc"));
    rustdoc.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    if !run.command("public items", &mut rustdoc) {
        return Ok(());
    }
    let mut lists = run.cargo("run --quiet --package xtask-api --");
    lists.args(fix.then_some("--fix"));
    for (folder, package) in &libraries {
        let json = format!("{}.json", package.replace('-', "_"));
        lists.arg(target.join(json)).arg(Path::new(folder).join(LIST));
    }
    run.command("public-api.txt", &mut lists);
    Ok(())
}

/// Folder and name of each crate that is published and has a library.
fn libraries(tree: &Tree) -> Vec<(String, String)> {
    let published = manifest::crates(tree).into_iter().filter(|(folder, manifest)| {
        folder.starts_with("crates/")
            && manifest.value("package", "publish") != Some("false")
            && tree.has(&format!("{folder}/src/lib.rs"))
    });
    let named = |(folder, manifest): (&str, manifest::Manifest)| {
        Some((folder.to_owned(), manifest.value("package", "name")?.to_owned()))
    };
    published.filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_published_libraries_have_a_list() {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", "[package]\nname = \"a-b\"\n"),
            ("crates/a/src/lib.rs", ""),
            ("crates/b/Cargo.toml", "[package]\nname = \"b\"\npublish = false\n"),
            ("crates/b/src/lib.rs", ""),
            ("crates/c/Cargo.toml", "[package]\nname = \"c\"\n"),
            ("crates/c/src/main.rs", ""),
        ]);
        assert_eq!(libraries(&tree), [("crates/a".to_owned(), "a-b".to_owned())]);
    }
}
