//! `cargo xtask rust-version`: the oldest Rust that the manifest promises compiles what is published.

use crate::args::Args;
use crate::manifest::Manifest;
use crate::release;
use crate::run::{Outcome, Run};
use crate::tree::Tree;

/// Where its output goes: beside that of another compiler, each would compile everything anew.
const TARGET: &str = "target/rust-version";

/// Compiles the published crates, and the command with all engines, with that toolchain. It must be installed.
pub(crate) fn start(run: &mut Run, args: Args) -> Outcome<()> {
    args.finish()?;
    let tree = Tree::read(run.root())?;
    let oldest = oldest(&tree).ok_or("the workspace has no `rust-version`")?;
    let mut installed = run.program("rustup");
    if !run.tries("toolchain", installed.args(["run", &oldest, "cargo", "--version"])) {
        return Err(format!(
            "Rust {oldest} is not installed: `rustup toolchain install {oldest} --profile minimal`"
        ));
    }
    let mut check = run.program("rustup");
    check.args(["run", &oldest, "cargo", "check", "--locked", "--target-dir", TARGET]);
    for package in release::publish_order(&tree)? {
        check.args(["--package", &package]);
    }
    run.command(&format!("Rust {oldest}"), &mut check);
    Ok(())
}

/// The oldest Rust that the workspace promises.
pub(crate) fn oldest(tree: &Tree) -> Option<String> {
    let manifest = Manifest::parse(tree.text("Cargo.toml")?);
    manifest.value("workspace.package", "rust-version").map(str::to_owned)
}
