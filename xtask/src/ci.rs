//! `cargo xtask ci`: everything that must pass before a change lands. `cargo xtask check` is that without the tests that `cargo xtask test --all` runs.

use crate::args::Args;
use crate::run::{Outcome, Run};
use crate::{api, docs, lint, test};

/// Runs both: what failed of the tests is named last.
pub(crate) fn start(run: &mut Run, args: Args) -> Outcome<()> {
    args.finish()?;
    let checked = everything_else(run);
    let tested = test::everywhere(run);
    checked.and(tested)
}

/// Runs what `test --all` does not.
pub(crate) fn check(run: &mut Run, args: Args) -> Outcome<()> {
    args.finish()?;
    everything_else(run)
}

/// Runs the lints, more of what is random, the tests in other languages, the documentation and the lists of public items. A failure does not
/// keep the rest from running.
fn everything_else(run: &mut Run) -> Outcome<()> {
    run.build_once();
    lint::all(run)?;
    let tested = test::beyond(run);
    docs::without_doc_tests(run);
    // After rustdoc, which has checked what our crates depend on.
    api::lists(run, false)?;
    tested
}
