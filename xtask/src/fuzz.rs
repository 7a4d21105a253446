//! `cargo xtask fuzz`: has libFuzzer look for bytes that a reader cannot bear.

use std::process::Command;

use crate::args::Args;
use crate::run::{Outcome, Run};
use crate::setup;

/// How long each target is tried, unless the command line says otherwise.
const SECONDS: &str = "60";
/// More than any reader needs for what a store may send, in MiB.
const MEMORY_MAX: &str = "-rss_limit_mb=1024";

/// Tries the targets that the command line names, or all.
pub(crate) fn start(run: &mut Run, mut args: Args) -> Outcome<()> {
    let seconds = args.value("--seconds")?.unwrap_or_else(|| SECONDS.to_owned());
    let seconds: u32 = seconds.parse().map_err(|_| format!("--seconds: {seconds:?} is not a number"))?;
    let folder = run.root().join("fuzz");
    let manifest =
        std::fs::read_to_string(folder.join("Cargo.toml")).map_err(|error| format!("fuzz: {error}"))?;
    let known = targets(&manifest);
    let asked = args.rest();
    if let Some(name) = asked.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("there is no target {name:?}\n\nhint: one of {}", known.join(", ")));
    }
    setup::need(run, &[&setup::CC, &setup::NIGHTLY, &setup::FUZZ])?;
    let chosen: Vec<&str> = if asked.is_empty() { known } else { asked.iter().map(String::as_str).collect() };
    for name in chosen {
        // What is found on the way is kept for the next time, and not in the corpus: only what a reader could not bear goes there.
        let (found, seeds) = (folder.join("target/found").join(name), folder.join("target/seeds").join(name));
        let corpus = folder.join("corpus").join(name);
        for folder in [&found, &seeds] {
            std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        // By rustup: the cargo that runs this is of the toolchain that is in use.
        let mut fuzz = Command::new("rustup");
        fuzz.args(["run", "nightly", "cargo", "fuzz", "run", "--fuzz-dir", "fuzz", name])
            .current_dir(run.root());
        fuzz.args([&found, &seeds]).args(corpus.exists().then_some(&corpus));
        fuzz.args([
            "--",
            &format!("-max_total_time={seconds}"),
            MEMORY_MAX,
            "-verbosity=1",
            "-print_final_stats=1",
        ]);
        run.command(name, &mut fuzz);
    }
    Ok(())
}

/// The names of the programs in a manifest.
fn targets(manifest: &str) -> Vec<&str> {
    let programs = manifest.split("[[bin]]").skip(1);
    programs.filter_map(|program| program.split("name = \"").nth(1)?.split('"').next()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::tree::Tree;

    /// A reader without a program would never be fuzzed.
    #[test]
    fn each_target_of_a_crate_has_a_program() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).expect("the programs");
        let tree = Tree::read(&root).expect("the tree");
        let sources = tree.under("crates/").filter(|(path, _)| path.ends_with("/fuzz.rs"));
        let name = |target: &str| Some(target.split("name: \"").nth(1)?.split('"').next()?.to_owned());
        let listed: BTreeSet<String> =
            sources.flat_map(|(_, text)| text.split("Target {").skip(1)).filter_map(name).collect();
        assert!(listed.len() > 20, "{listed:?}");
        assert_eq!(listed, targets(&manifest).into_iter().map(str::to_owned).collect());
    }
}
