//! Every chore of the project, as `cargo xtask NAME`.
//!
//! One file per chore, and what they share: [`args`] (the command line), [`run`] (steps with progress,
//! times and a command to repeat), [`tree`] (the files under version control) and [`manifest`] (what is
//! read from a `Cargo.toml`). No dependencies: a fresh clone compiles this in seconds, before anything else.
//!
//! A new chore also needs: an entry in [`CHORES`], a row of the table in `STYLE.md`.

mod anchors;
mod api;
mod args;
mod bench;
mod chaos;
mod ci;
mod clients;
mod cover;
mod docs;
mod engines;
mod fuzz;
mod java;
mod lint;
mod manifest;
mod mutants;
mod package;
mod python;
mod release;
mod report;
mod run;
mod rust_version;
mod setup;
mod snapshots;
mod test;
mod tidy;
mod tree;

use std::process::ExitCode;

use args::Args;
use run::{Outcome, Run};

/// A command of `cargo xtask`.
struct Chore {
    name: &'static str,
    arguments: &'static str,
    summary: &'static str,
    start: fn(&mut Run, Args) -> Outcome<()>,
}

const CHORES: [Chore; 18] = [
    Chore {
        name: "setup",
        arguments: "",
        summary: "installs what is missing and prints versions",
        start: setup::start,
    },
    Chore {
        name: "test",
        arguments: "[--engine A,B | --python [--long] | --java [--long] | --clients | --anchors | --all | --everything]",
        summary: "runs the tests: all that need no server, those of some engines, of the Python package, of Java and Spring, of the clients for Node and PHP, of what `bench anchors` compares with, of all, or of all ways to each too",
        start: test::start,
    },
    Chore {
        name: "lint",
        arguments: "[--fix] [--advisories] [--each-feature]",
        summary: "rustfmt, clippy, tidy, typos, deny; --advisories needs the network, --each-feature ten times as long",
        start: lint::start,
    },
    Chore { name: "tidy", arguments: "", summary: "checks the project's own rules", start: tidy::start },
    Chore {
        name: "snapshots",
        arguments: "",
        summary: "runs the tests and rewrites their snapshots",
        start: snapshots::start,
    },
    Chore {
        name: "cover",
        arguments: "",
        summary: "line coverage per crate; fails below the floor",
        start: cover::start,
    },
    Chore {
        name: "bench",
        arguments: "[ARGUMENTS]",
        summary: "runs the benchmarks in release and prints ratios",
        start: bench::start,
    },
    Chore {
        name: "chaos",
        arguments: "ENGINE | --profile gate|nightly [--third commit]",
        summary: "has clients work while processes, connections and servers fail, and judges it",
        start: chaos::start,
    },
    Chore {
        name: "mutants",
        arguments: "[NAME...]",
        summary: "breaks the product on purpose in many ways, and asserts that the checks find each",
        start: mutants::start,
    },
    Chore {
        name: "fuzz",
        arguments: "[TARGET...] [--seconds N]",
        summary: "has libFuzzer look for bytes that a reader cannot bear; needs a nightly toolchain",
        start: fuzz::start,
    },
    Chore {
        name: "docs",
        arguments: "",
        summary: "rustdoc, doc tests, relative links, README == example",
        start: docs::start,
    },
    Chore {
        name: "api",
        arguments: "[--fix]",
        summary: "compares the public items of each crate with its public-api.txt; --fix writes it",
        start: api::start,
    },
    Chore {
        name: "rust-version",
        arguments: "",
        summary: "compiles what is published with the oldest Rust that is promised; needs that toolchain",
        start: rust_version::start,
    },
    Chore {
        name: "check",
        arguments: "",
        summary: "what must pass beside the tests: lint, tests with a browser and other programs, more of what is random, test --java, test --python, docs, api",
        start: ci::check,
    },
    Chore { name: "ci", arguments: "", summary: "check, and test --all", start: ci::start },
    Chore {
        name: "package",
        arguments: "[deb | image] [--check]",
        summary: "makes the package for Debian and the image for containers; --check installs and runs them, as root",
        start: package::start,
    },
    Chore {
        name: "release",
        arguments: "X.Y.Z [--dry-run]",
        summary: "sets the version, commits, tags, prints the publish order",
        start: release::start,
    },
    Chore { name: "help", arguments: "", summary: "prints this list", start: help },
];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_else(|| "help".to_owned());
    let name = if matches!(name.as_str(), "--help" | "-h") { "help" } else { &name };
    let args = Args::new(words);
    let Some(chore) = CHORES.iter().find(|chore| chore.name == name) else {
        eprintln!("error: no chore named {name:?}\n\nhint: `cargo xtask` lists them");
        return ExitCode::FAILURE;
    };
    if args.asks_for_help() {
        println!("cargo xtask {} {}\n\n{}", chore.name, chore.arguments, chore.summary);
        return ExitCode::SUCCESS;
    }
    let mut run = Run::new();
    let ended = (chore.start)(&mut run, args);
    let code = run.finish();
    match ended {
        Ok(()) => code,
        Err(text) => {
            eprintln!("error: {text}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the list of chores.
fn help(_run: &mut Run, args: Args) -> Outcome<()> {
    args.finish()?;
    println!("cargo xtask CHORE\n");
    for chore in &CHORES {
        let call = format!("{} {}", chore.name, chore.arguments);
        println!("  {:<30}  {}", call.trim_end(), chore.summary);
    }
    Ok(())
}
