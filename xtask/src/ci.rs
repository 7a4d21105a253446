//! `cargo xtask ci`: everything that must pass before a change lands.

use crate::args::Args;
use crate::run::{Outcome, Run};
use crate::{api, docs, lint, test};

/// Runs the lints, all tests, those in other languages, the documentation and the lists of public items. A failure does not keep the rest
/// from running.
pub(crate) fn start(run: &mut Run, args: Args) -> Outcome<()> {
    args.finish()?;
    run.build_once();
    lint::all(run)?;
    let tested = test::everywhere(run);
    let beyond = test::beyond(run);
    docs::without_doc_tests(run);
    // After rustdoc, which has checked what our crates depend on.
    api::lists(run, false)?;
    tested.and(beyond)
}
