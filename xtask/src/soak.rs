//! `cargo xtask soak`: runs the package `tenure-chaos`, with the assertions of the tests.

use crate::args::Args;
use crate::engines;
use crate::run::{Outcome, Run};
use crate::setup;

/// Runs a soak with the arguments of the command line, of which the engine is the first.
pub(crate) fn start(run: &mut Run, args: Args) -> Outcome<()> {
    let words = args.rest();
    let name = words.first().ok_or("which engine?\n\nhint: `cargo xtask soak redis --seconds 60`")?;
    // A variant needs what its engine needs.
    let name = if name == "redis-forgetful" { "redis" } else { name };
    let engine = engines::named(name)?;
    setup::need(run, &[&setup::CC])?;
    for engine in engine {
        setup::need(run, engine.tools)?;
    }
    let mut soak = run.cargo("run --quiet --package tenure-chaos -- soak");
    run.command("soak", soak.args(words));
    Ok(())
}
