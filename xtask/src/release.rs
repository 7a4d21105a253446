//! `cargo xtask release X.Y.Z`: one version for all crates, a dated change list, a commit and a tag.
//!
//! Publishes and pushes nothing: it prints the order in which a person does.

use std::path::Path;

use crate::args::Args;
use crate::manifest::{self, Manifest};
use crate::run::{self, Outcome, Run};
use crate::tree::Tree;

const CHANGELOG: &str = "CHANGELOG.md";
const MANIFEST: &str = "Cargo.toml";
const UNRELEASED: &str = "## [Unreleased]";

/// Checks that the tree can be released, then sets the version, commits and tags.
pub(crate) fn start(run: &mut Run, mut args: Args) -> Outcome<()> {
    let dry_run = args.flag("--dry-run");
    let version = args.word().ok_or("which version? e.g. `cargo xtask release 0.2.0`")?;
    args.finish()?;
    let tree = Tree::read(run.root())?;
    let old = Manifest::parse(tree.text(MANIFEST).unwrap_or_default());
    let old = old.value("workspace.package", "version").ok_or("the workspace has no version")?;
    if parse(&version)? <= parse(old)? {
        return Err(format!("{version} is not newer than {old}"));
    }
    if !run::output(run.program("git").args(["status", "--porcelain"]))?.is_empty() && !dry_run {
        return Err("there are changes that are not committed".to_owned());
    }
    let today = run::output(run.program("date").args(["--utc", "+%F"]))?;
    let changelog = dated(tree.text(CHANGELOG).unwrap_or_default(), &version, today.trim())?;
    let manifest = with_version(tree.text(MANIFEST).unwrap_or_default(), old, &version);
    let order = publish_order(&tree)?;
    if dry_run {
        println!("would set {old} to {version}, commit, and tag v{version}");
    } else if !commit(run, &version, &changelog, &manifest)? {
        return Ok(());
    }
    println!(
        "\nnext:\n  cargo xtask lint --each-feature --advisories\n  cargo xtask test --everything\n  git push origin HEAD v{version}"
    );
    for package in order {
        println!("  cargo publish --package {package}");
    }
    Ok(())
}

/// Writes the files, brings the lock file up to date, commits and tags. Tells whether all of it worked.
fn commit(run: &mut Run, version: &str, changelog: &str, manifest: &str) -> Outcome<bool> {
    write(run.root(), CHANGELOG, changelog)?;
    write(run.root(), MANIFEST, manifest)?;
    let tag = format!("v{version}");
    let message = format!("release: {version}");
    let mut lock = run.cargo("update --workspace --offline");
    let mut commit = run.program("git");
    commit.args(["commit", "--message", &message, "--", CHANGELOG, MANIFEST, "Cargo.lock"]);
    let mut mark = run.program("git");
    mark.args(["tag", "--annotate", &tag, "--message", &message]);
    Ok(run.command("Cargo.lock", &mut lock)
        && run.command("commit", &mut commit)
        && run.command("tag", &mut mark))
}

fn write(root: &Path, path: &str, text: &str) -> Outcome<()> {
    std::fs::write(root.join(path), text).map_err(|error| format!("cannot write {path}: {error}"))
}

/// The three numbers of a version. Versions with a suffix are not released.
fn parse(version: &str) -> Outcome<[u64; 3]> {
    let numbers: Result<Vec<u64>, _> = version.split('.').map(str::parse).collect();
    let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or_else(|| format!("{version:?} is not a version of the form X.Y.Z"))
}

/// The change list with the unreleased changes under the new version, and an empty place for the next ones.
fn dated(changelog: &str, version: &str, today: &str) -> Outcome<String> {
    let (before, after) = changelog
        .split_once(UNRELEASED)
        .ok_or_else(|| format!("{CHANGELOG} has no heading {UNRELEASED:?}"))?;
    let changes = after.split("\n## ").next().unwrap_or_default();
    if changes.trim().is_empty() {
        return Err(format!("{CHANGELOG} lists no change under {UNRELEASED:?}"));
    }
    Ok(format!("{before}{UNRELEASED}\n\n## [{version}] - {today}{after}"))
}

/// The manifest of the workspace with the new version, for the crates and for what they ask of each other.
fn with_version(manifest: &str, old: &str, new: &str) -> String {
    let (old, new) = (format!("version = \"{old}\""), format!("version = \"{new}\""));
    let mut section = "";
    let mut text = String::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let is_ours = section == "[workspace.package]" || line.contains("path = \"crates/");
        text += &if is_ours { line.replace(&old, &new) } else { line.to_owned() };
        text.push('\n');
    }
    text
}

/// The published packages, each after those that it needs. What only its tests need does not count.
pub(crate) fn publish_order(tree: &Tree) -> Outcome<Vec<String>> {
    let mut left: Vec<(String, Vec<String>)> = Vec::new();
    for (_, manifest) in manifest::crates(tree) {
        let Some(name) = manifest.value("package", "name") else { continue };
        if manifest.value("package", "publish") != Some("false") {
            let needs = manifest.section("dependencies").map(|(key, _)| key.split('.').next().unwrap_or(key));
            left.push((name.to_owned(), needs.map(str::to_owned).collect()));
        }
    }
    let mut order = Vec::new();
    while !left.is_empty() {
        let is_free = |needs: &[String]| !left.iter().any(|(name, _)| needs.contains(name));
        let Some(at) = left.iter().position(|(_, needs)| is_free(needs)) else {
            let names: Vec<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
            return Err(format!("these packages need each other: {}", names.join(", ")));
        };
        order.push(left.remove(at).0);
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(parse("0.10.0") > parse("0.9.9"));
        assert!(parse("1.0").is_err() && parse("1.0.0-rc.1").is_err());
    }

    #[test]
    fn unreleased_changes_go_under_the_version() {
        let text =
            dated("# Changes\n\n## [Unreleased]\n\n- cli: x\n\n## [0.1.0] - d\n", "0.2.0", "2030-01-02");
        let text = text.unwrap();
        assert!(text.starts_with("# Changes\n\n## [Unreleased]\n\n## [0.2.0] - 2030-01-02\n\n- cli: x\n"));
        assert!(dated("## [Unreleased]\n\n## [0.1.0]\n- x\n", "0.2.0", "d").is_err());
        assert!(dated("# Changes\n", "0.2.0", "d").is_err());
    }

    #[test]
    fn only_our_own_versions_change() {
        let old = "[workspace.package]\nversion = \"0.1.0\"\n[workspace.dependencies]\n\
                   tenure = { version = \"0.1.0\", path = \"crates/tenure\" }\nx = { version = \"0.1.0\" }\n";
        let new = with_version(old, "0.1.0", "0.2.0");
        assert_eq!(new.matches("0.2.0").count(), 2);
        assert!(new.contains("x = { version = \"0.1.0\" }"));
    }

    #[test]
    fn a_package_is_published_after_those_it_needs() {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n[dependencies]\nb.workspace = true\n"),
            ("crates/b/Cargo.toml", "[package]\nname = \"b\"\n[dev-dependencies]\na.workspace = true\n"),
            ("x/Cargo.toml", "[package]\nname = \"x\"\npublish = false\n"),
        ]);
        assert_eq!(publish_order(&tree), Ok(vec!["b".to_owned(), "a".to_owned()]));
    }
}
