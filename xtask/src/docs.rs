//! `cargo xtask docs`: rustdoc without warnings, doc tests, relative links, and the README's example.

mod links;

use crate::args::Args;
use crate::run::{Outcome, Run, WORKSPACE};
use crate::tidy;
use crate::tree::Tree;

/// Checks the documentation.
pub(crate) fn start(run: &mut Run, args: Args) -> Outcome<()> {
    args.finish()?;
    without_doc_tests(run);
    let mut doc_tests = run.cargo(&format!("test --quiet --doc {WORKSPACE}"));
    run.command("doc tests", &mut doc_tests);
    Ok(())
}

/// Checks everything but the doc tests, which `test` runs as well.
pub(crate) fn without_doc_tests(run: &mut Run) {
    // Only libraries: the pages of the program `tenure` would overwrite those of the library `tenure`.
    let mut rustdoc = run.cargo("doc --workspace --lib --no-deps --all-features");
    run.command("rustdoc", rustdoc.env("RUSTDOCFLAGS", "-D warnings"));
    run.check("links", "cargo xtask docs", |root| tidy::report(&links::relative_links(&Tree::read(root)?)));
    run.check("README example", "cargo xtask docs", |root| {
        tidy::report(&tidy::pages::readme_example(&Tree::read(root)?))
    });
}
