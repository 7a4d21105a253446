//! `cargo xtask snapshots`: rewrites the snapshots of the tests from what the program does now.

use crate::args::Args;
use crate::run::{Outcome, Run, WORKSPACE};
use crate::setup;

/// Runs the tests with snapshots in overwrite mode. The diff shows what changed for users.
pub(crate) fn start(run: &mut Run, args: Args) -> Outcome<()> {
    args.finish()?;
    setup::need(run, &[&setup::CC, &setup::NEXTEST])?;
    let mut tests = run.cargo(&format!("nextest run {WORKSPACE} --no-fail-fast"));
    tests.env("SNAPSHOTS", "overwrite").env("TRYCMD", "overwrite");
    run.command("snapshots", &mut tests);
    let mut changed = run.program("git");
    run.command("what changed", changed.args(["status", "--short"]));
    Ok(())
}
