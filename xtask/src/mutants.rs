//! `cargo xtask mutants`: breaks the product on purpose, in each way of the [`table`], and asserts that the check of that row finds it.
//!
//! One build has all mutants; the environment chooses one. First each check runs without a mutant, and must pass. Then a mutant that its
//! check does not find within [`WITHIN_SECONDS`] has survived, which is a failure: of the check, not of the mutant. A panic of an assertion
//! in the product counts as found, a build that fails does not.

pub(crate) mod table;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::run::{Outcome, Run};
use crate::{engines, setup, test};
use table::{Catcher, MUTANTS, Mutant};

/// How long a check may take to find a mutant.
const WITHIN_SECONDS: u64 = 60;
/// How long it may take where there is nothing to find: it looks at everything, on a machine that may have other work.
const WITHOUT_SECONDS: u64 = 900;
/// What is built, once: with other packages the same crates would be built with other features.
const BUILD: &str = "nextest run --cargo-quiet --cargo-profile thorough --features tenure-core/mutants --package tenure-core --package tenure-fence \
                     --package tenure-redis --package tenure-redlock --package tenure-etcd --package tenure-chaos";
/// The exit code of nextest when a test has failed.
const TEST_FAILED: i32 = 100;

/// Runs the mutants that the command line names, or all.
pub(crate) fn start(run: &mut Run, args: Args) -> Outcome<()> {
    let names = args.rest();
    if let Some(name) = names.iter().find(|name| MUTANTS.iter().all(|mutant| mutant.name != **name)) {
        return Err(format!("there is no mutant {name:?}\n\nhint: docs/operating/proof.md lists them"));
    }
    let is_asked = |mutant: &&Mutant| names.is_empty() || names.iter().any(|name| name == mutant.name);
    all(run, &MUTANTS.iter().filter(is_asked).collect::<Vec<_>>())
}

/// Runs these mutants, and prints what became of each.
pub(crate) fn all(run: &mut Run, mutants: &[&Mutant]) -> Outcome<()> {
    setup::need(run, &[&setup::CC, &setup::NEXTEST])?;
    // The quorum's servers are Redis, too.
    for engine in engines::named("redis,etcd")? {
        setup::need(run, engine.tools)?;
    }
    let mut build = run.cargo(BUILD);
    if !run.command("build with mutants", build.arg("--no-run")) {
        return Ok(());
    }
    let catchers: BTreeSet<Catcher> = mutants.iter().map(|mutant| mutant.catcher).collect();
    let mut broken = BTreeSet::new();
    for catcher in catchers {
        let name = format!("without a mutant: {}", catcher.name());
        let is_good = run.check(&name, "cargo xtask mutants", |root| match judge(root, catcher, None)?.0 {
            Verdict::Passed => Ok(()),
            verdict => Err(format!("it is to pass: {verdict:?}")),
        });
        if !is_good {
            broken.insert(catcher);
        }
    }
    let mut rows = Vec::new();
    for mutant in mutants.iter().filter(|mutant| !broken.contains(&mutant.catcher)) {
        let repeat = format!("cargo xtask mutants {}", mutant.name);
        run.check(mutant.name, &repeat, |root| {
            let (verdict, took) = judge(root, mutant.catcher, Some(mutant.name))?;
            rows.push(format!("{} {:.1} |", mutant.row(), took.as_secs_f64()));
            match verdict {
                Verdict::Found(what) => {
                    eprintln!("{what}");
                    Ok(())
                }
                Verdict::Passed => Err(format!("it survived {}", mutant.catcher.name())),
                Verdict::Late => Err(format!("{} did not find it in time", mutant.catcher.name())),
            }
        });
    }
    println!("| mutant | what is broken | caught by | s |\n| --- | --- | --- | --- |");
    rows.iter().for_each(|row| println!("{row}"));
    Ok(())
}

/// What a check says.
#[derive(Debug)]
enum Verdict {
    Passed,
    /// The first line that says why.
    Found(String),
    Late,
}

/// Runs a check with a mutant, or without one.
fn judge(root: &Path, catcher: Catcher, mutant: Option<&str>) -> Outcome<(Verdict, Duration)> {
    let within = if mutant.is_some() { WITHIN_SECONDS } else { WITHOUT_SECONDS };
    // It ends the whole group: a test, the clients of a soak, and their servers.
    let mut command = Command::new("timeout");
    command.current_dir(root).args(["--kill-after=10", &within.to_string()]);
    command.env_remove("TENURE_SEED").env("RUST_BACKTRACE", "0");
    // What a mutant breaks is no case to be kept.
    command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
    match mutant {
        Some(name) => command.env("TENURE_MUTANT", name),
        None => command.env_remove("TENURE_MUTANT"),
    };
    match catcher {
        Catcher::Worlds(seeds) => {
            tests(
                &mut command,
                "tenure-core",
                "in_every_world_a_believed_lease_is_held_and_everybody_is_served",
            );
            command.env("TENURE_SEEDS", seeds.to_string());
        }
        Catcher::QuorumWorlds(seeds) => {
            tests(
                &mut command,
                "tenure-redlock",
                "in_every_world_tokens_grow_and_what_is_believed_is_kept_by_a_majority",
            );
            command.env("TENURE_QUORUMS", seeds.to_string());
        }
        Catcher::Tests(package, filter) => {
            tests(&mut command, package, filter);
            command.envs(test::CHECK);
        }
        Catcher::Soak(engine, seconds, seed, more) => {
            let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
            command.arg(target.join("thorough/tenure-chaos")).args(["soak", engine, "--quiet"]);
            command.args(["--seconds", &seconds.to_string(), "--seed", &seed.to_string()]);
            command.args(more.split_whitespace());
        }
    }
    #[allow(clippy::disallowed_methods, reason = "how long a check takes is what is measured")]
    let now = Instant::now;
    let started_at = now();
    let output = command.output().map_err(|error| format!("cannot start `timeout`: {error}"))?;
    let took = now().duration_since(started_at);
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // A soak says that promises are broken; that its own clients or servers failed to start is no such thing.
    let is_soak = matches!(catcher, Catcher::Soak(..));
    let verdict = match output.status.code() {
        Some(0) => Verdict::Passed,
        Some(TEST_FAILED) if !is_soak => Verdict::Found(why(&said)),
        Some(1) if is_soak && said.contains(": BAD") => Verdict::Found(why(&said)),
        Some(124 | 137) => Verdict::Late,
        _ => return Err(format!("{said}\n{}", output.status)),
    };
    Ok((verdict, took))
}

fn tests(command: &mut Command, package: &str, filter: &str) {
    command.arg("cargo").args(BUILD.split_whitespace());
    command.args(["--max-fail=1", "--no-tests=fail", "--success-output=never"]);
    command.args(["-E", &format!("package(={package}) & test({filter})")]);
}

/// What a check has found, in a line: the world that is broken, or the panic of a test, or the first bad number of a soak.
fn why(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    let panics = lines.iter().zip(lines.iter().skip(1)).filter(|(line, _)| line.contains(" panicked at "));
    let panic = panics.map(|(_, what)| (*what).to_owned()).next();
    let seed = lines.iter().find_map(|line| line.split_once("TENURE_SEED=")?.1.split(' ').next());
    match (panic, seed) {
        (Some(panic), Some(seed)) => format!("  TENURE_SEED={seed}: {panic}"),
        (Some(panic), None) => format!("  {panic}"),
        _ => lines
            .iter()
            .skip_while(|line| !line.contains(": BAD"))
            .map(|line| format!("  {line}\n"))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_said_in_a_line() {
        let said = "thread 'x' (1) panicked at a.rs:1:1:\nr0: 2, then 1: tokens grow\nnote: ..\n\
                    thread 'x' panicked at b.rs\nthe world of TENURE_SEED=8 is broken\n";
        assert_eq!(why(said), "  TENURE_SEED=8: r0: 2, then 1: tokens grow");
        assert_eq!(
            why("engine redis\nredis, seed 7: BAD\n  overlaps 4\n"),
            "  redis, seed 7: BAD\n  overlaps 4\n"
        );
    }
}
