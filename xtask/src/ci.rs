//! `cargo xtask ci`: everything that must pass before a change lands.

use crate::args::Args;
use crate::run::{Outcome, Run};
use crate::{docs, lint, test};

/// Runs the lints, all tests and the documentation. A failure does not keep the rest from running.
pub(crate) fn start(run: &mut Run, args: Args) -> Outcome<()> {
    args.finish()?;
    lint::all(run)?;
    let counts = test::counted(run);
    docs::without_doc_tests(run);
    println!("{}", counts?);
    Ok(())
}
