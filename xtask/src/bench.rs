//! `cargo xtask bench`: runs the package `tenure-bench` as it would be handed out; `bench python` compares the Python package, and `bench anchors` all of it
//! with the locks that people use.

use crate::anchors;
use crate::args::Args;
use crate::python;
use crate::run::{Outcome, Run};
use crate::setup;

/// Runs the benchmarks with the arguments of the command line.
pub(crate) fn start(run: &mut Run, mut args: Args) -> Outcome<()> {
    if args.flag("python") {
        return python::bench(run, args);
    }
    let of_anchors = args.flag("anchors");
    if !run.root().join("crates/tenure-bench/Cargo.toml").exists() {
        return Err("there are no benchmarks: the package crates/tenure-bench does not exist".to_owned());
    }
    setup::need(run, &[&setup::CC, &setup::FLOCK])?;
    // One of the benches runs the program `tenure`, which must lie beside it. `cargo run` would compile all of it anew, with fewer features.
    let mut build = run.cargo("build --profile dist --package tenure-bench --package tenure-cli");
    if !run.command("build", &mut build) {
        return Ok(());
    }
    if of_anchors {
        return anchors::bench(run, args);
    }
    let program = run.target()?.join("dist/tenure-bench");
    let mut bench = run.program(&program.to_string_lossy());
    run.command("bench", bench.args(args.rest()));
    Ok(())
}
