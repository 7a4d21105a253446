//! `cargo xtask lint`: formatting, clippy, the project's own rules, spelling, dependencies.

use crate::args::Args;
use crate::manifest::Manifest;
use crate::run::{Outcome, Run, WORKSPACE};
use crate::{setup, tidy};

const FACADE: &str = "crates/tenure/Cargo.toml";

/// Runs every lint; with `--fix` repairs what can be repaired first.
pub(crate) fn start(run: &mut Run, mut args: Args) -> Outcome<()> {
    let fix = args.flag("--fix");
    let advisories = args.flag("--advisories");
    let each_feature = args.flag("--each-feature");
    args.finish()?;
    if fix {
        repair(run)?;
    }
    all(run)?;
    if each_feature {
        facade(run)?;
    }
    if advisories {
        let mut deny = run.cargo("deny check advisories");
        run.command("deny advisories", &mut deny);
    }
    Ok(())
}

/// Runs every lint that works without a network.
pub(crate) fn all(run: &mut Run) -> Outcome<()> {
    let tools = [&setup::CC, &setup::RUSTFMT, &setup::CLIPPY, &setup::TYPOS, &setup::DENY];
    setup::need(run, &tools)?;
    let mut rustfmt = run.cargo("fmt --all --check");
    run.command("rustfmt", &mut rustfmt);
    run.check("tidy", "cargo xtask tidy", tidy::check);
    let mut typos = run.program(&setup::typos(run).to_string_lossy());
    run.command("typos", &mut typos);
    let mut clippy = run.cargo(&format!("clippy {WORKSPACE} --all-targets -- -D warnings"));
    run.command("clippy", &mut clippy);
    // Each set of features compiles half of all dependencies anew: the others are for `--each-feature`.
    let mut bare =
        run.cargo("clippy --package tenure-cli --package tenure --no-default-features -- -D warnings");
    run.command("clippy, no feature", &mut bare);
    // The advisory database lives on the network: `--advisories` asks it.
    let mut deny = run.cargo("deny check bans licenses sources");
    run.command("deny", &mut deny);
    Ok(())
}

/// Lints the facade with no feature, with each one and with all of them, which finds an engine that compiles only beside another.
fn facade(run: &mut Run) -> Outcome<()> {
    let path = run.root().join(FACADE);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {FACADE}: {error}"))?;
    for (name, flags) in feature_sets(&Manifest::parse(&text)) {
        let mut clippy = run.cargo("clippy --package tenure --lib");
        clippy.args(flags.split_whitespace()).args(["--", "-D", "warnings"]);
        run.command(&format!("clippy tenure, {name}"), &mut clippy);
    }
    Ok(())
}

/// Names and flags of the feature sets to lint.
fn feature_sets(manifest: &Manifest) -> Vec<(String, String)> {
    let none = ("no feature".to_owned(), "--no-default-features".to_owned());
    let all = ("all features".to_owned(), "--all-features".to_owned());
    let features = manifest.section("features").filter(|(name, _)| *name != "default");
    let each = features
        .map(|(name, _)| (format!("feature {name}"), format!("--no-default-features --features {name}")));
    [none].into_iter().chain(each).chain([all]).collect()
}

/// Repairs formatting, what clippy can repair, and spelling with one possible correction.
fn repair(run: &mut Run) -> Outcome<()> {
    setup::need(run, &[&setup::CC, &setup::RUSTFMT, &setup::CLIPPY, &setup::TYPOS])?;
    let mut clippy = run.cargo("clippy --fix --allow-dirty --allow-staged --workspace --all-targets");
    run.command("clippy --fix", &mut clippy);
    let mut typos = run.program(&setup::typos(run).to_string_lossy());
    run.tries("typos --write-changes", typos.arg("--write-changes"));
    let mut rustfmt = run.cargo("fmt --all");
    run.command("rustfmt --fix", &mut rustfmt);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facade_is_linted_with_no_each_and_all_features() {
        let manifest = Manifest::parse(
            "[features]\ndefault = [\"local\"]\nlocal = [\"dep:x\"]\nredis = []\n[dependencies]\n",
        );
        let sets = feature_sets(&manifest);
        let flags: Vec<&str> = sets.iter().map(|(_, flags)| flags.as_str()).collect();
        assert_eq!(
            flags,
            [
                "--no-default-features",
                "--no-default-features --features local",
                "--no-default-features --features redis",
                "--all-features"
            ]
        );
    }
}
