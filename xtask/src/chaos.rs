//! `cargo xtask chaos`: runs the package `tenure-chaos`, with the assertions of the tests.

use crate::args::Args;
use crate::engines::{self, ENGINES, Engine};
use crate::run::{Outcome, Run, output};
use crate::setup;

/// Of how many parts of a profile `--third` is one.
const PARTS: u64 = 3;

/// Runs one soak of the engine that comes first on the command line, or those of a profile.
pub(crate) fn start(run: &mut Run, mut args: Args) -> Outcome<()> {
    let profile = args.value("--profile")?;
    let third = args.value("--third")?;
    let mut words = args.rest();
    let needed: Vec<&Engine> = match (&profile, words.first()) {
        (Some(_), _) => ENGINES.iter().collect(),
        // A variant (`redis-cluster`) needs what its engine needs.
        (None, Some(name)) => engines::named(name.split('-').next().unwrap_or(name))?,
        (None, None) => {
            return Err("which engine?\n\nhint: `cargo xtask chaos redis --seconds 60`, or `--profile gate`"
                .to_owned());
        }
    };
    setup::need(run, &[&setup::CC])?;
    for engine in needed {
        setup::need(run, engine.tools)?;
    }
    let what = profile.map_or(vec!["soak".to_owned()], |profile| vec!["profile".to_owned(), profile]);
    words.splice(0..0, what);
    if let Some(third) = third {
        let third = if third == "commit" { of_commit(run)? } else { third };
        words.extend(["--third".to_owned(), third]);
    }
    let mut chaos = run.cargo("run --quiet --profile test --package tenure-chaos --");
    run.command("chaos", chaos.args(words));
    Ok(())
}

/// The third whose turn it is at the commit that is checked out: any commit has one, and all have their turn.
fn of_commit(run: &Run) -> Outcome<String> {
    let hash = output(run.program("git").args(["rev-parse", "HEAD"]))?;
    let last = hash.trim().get(32..).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    Ok((last.ok_or("git names no commit")? % PARTS).to_string())
}
