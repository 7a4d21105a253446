//! `tenure release`: an operator breaks a hold.

use std::time::Duration;

use clap::Args;
use tenure::{BreakAnswer, Tenure, Token, View};

use crate::connect::connect_blocking;
use crate::duration::format_duration;
use crate::exit::{self, Failure, Outcome};
use crate::output::data::write_data;
use crate::output::question;

const RELEASE_HELP: &str = "\
Breaks a hold, for an operator. Its holder learns of it at its next renewal, at the latest after a third of its \
ttl, and ends its work.

Until the hold would have ended, nobody else is granted the lock, so that the holder's work can end first. With \
--now the lock is free at once: then two may work at the same time, and only what checks tokens is safe.";

const RELEASE_AFTER_HELP: &str = "\
Example:
  tenure release backup --token 4711    with the token that `tenure status backup` shows

Exit codes:
  0    the hold is broken
  1    the question was answered with no
  64   wrong usage, there is no terminal to ask on, or no such hold
  69   the engine is not available";

/// Break somebody's hold
#[derive(Debug, Args)]
#[command(long_about = RELEASE_HELP, after_help = RELEASE_AFTER_HELP)]
pub(crate) struct Release {
    /// The lock
    pub(crate) name: String,
    /// The token of the hold, as `tenure status` shows it
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: u64,
    /// Do not ask for a confirmation
    #[arg(long)]
    pub(crate) force: bool,
    /// Free the lock at once: its holder may still work while the next one does
    #[arg(long)]
    pub(crate) now: bool,
}

/// Breaks a hold.
pub(crate) fn release(release: &Release, engine: &str) -> Outcome {
    question::check_can_ask("breaking a hold", release.force)?;
    let tenure = connect_blocking(engine)?;
    if !release.force && !is_confirmed(&tenure, release)? {
        return Ok(exit::DECLINED);
    }
    let token = Token::new(release.token);
    let answer = pollster::block_on(tenure.break_hold(&release.name, token, release.now))?;
    let free_in = match answer {
        BreakAnswer::Broken { free_in } => free_in,
        BreakAnswer::Resting { free_in } => return Err(rests(release, free_in)),
        BreakAnswer::NotHeld => return Err(not_held(&tenure, release)),
    };
    pollster::block_on(tenure.close());
    let when = if free_in.is_zero() {
        "it is free now; who held it may still work until it notices".to_owned()
    } else {
        format!("it is free in {} at the latest", format_duration(free_in))
    };
    write_data(&format!("broke the hold of {:?} with token {token}: {when}\n", release.name))?;
    Ok(0)
}

/// Shows what would be broken, and asks.
fn is_confirmed(tenure: &Tenure, release: &Release) -> Result<bool, Failure> {
    let view = pollster::block_on(tenure.view(&release.name))?;
    let hold = view.as_ref().and_then(|view| hold(view, release.token));
    let Some(hold) = hold else { return Err(not_held(tenure, release)) };
    if hold.claim.is_none() {
        if !release.now {
            return Err(rests(release, hold.ends_in));
        }
        let (name, rests) = (&release.name, format_duration(hold.ends_in));
        return question::ask(&format!(
            "Nobody holds {name:?}; it rests for {rests} more.\nWork that has lost it may not have ended.\nFree it now?"
        ));
    }
    let risk = if release.now {
        "\nThe lock is free at once, and two may work at the same time until the holder notices."
    } else {
        ""
    };
    let (name, held_for) = (&release.name, format_duration(hold.held_for));
    question::ask(&format!("{name:?} is held by {} for {held_for}.{risk}\nBreak it?", hold.label))
}

fn hold(view: &View, token: u64) -> Option<&tenure::HoldView> {
    view.holds.iter().find(|hold| hold.token.get() == token)
}

/// Returns the failure for a hold that has ended and whose units rest: a break would change nothing.
fn rests(release: &Release, free_in: Duration) -> Failure {
    let message = format!("nobody holds {:?}; it rests for {} more", release.name, format_duration(free_in));
    Failure::new(exit::USAGE, message).with_hint("free it with `--now`")
}

fn not_held(tenure: &Tenure, release: &Release) -> Failure {
    let failure =
        Failure::new(exit::USAGE, format!("{:?} has no hold with token {}", release.name, release.token));
    // Only for the hint: without an answer it says less.
    let view = pollster::block_on(tenure.view(&release.name)).ok().flatten();
    let held: Vec<_> = view.iter().flat_map(|view| &view.holds).filter(|hold| hold.claim.is_some()).collect();
    failure.with_hint(match held.as_slice() {
        [] => "nobody holds it; see `tenure status`".to_owned(),
        [hold] => format!("it is held under token {} by {}", hold.token, hold.label),
        [..] => "see `tenure status` for the tokens of its holds".to_owned(),
    })
}
