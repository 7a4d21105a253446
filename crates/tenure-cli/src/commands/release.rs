//! `tenure release`: an operator breaks a hold.

use std::time::Duration;

use clap::Args;
use tenure::{BreakAnswer, HoldView, Tenure, Token};

use crate::connect::connect_blocking;
use crate::duration::format_duration;
use crate::exit::{self, Failure, Outcome};
use crate::output::audit::{self, Act};
use crate::output::data::write_data;
use crate::output::holder::{held, who};
use crate::output::question;

const RELEASE_HELP: &str = "\
Breaks a hold, for an operator. Its holder learns of it at its next renewal, at the latest after a third of its \
ttl, and ends its work.

Until the hold would have ended, nobody else is granted the lock, so that the holder's work can end first. With \
--now the lock is free at once: then two may work at the same time, and only what checks tokens is safe.";

const RELEASE_AFTER_HELP: &str = "\
Examples:
  tenure release backup                 of its only holder
  tenure release build --token 4711     of one of several, as `tenure status build` shows them

Exit codes:
  0    the hold is broken
  1    the question was answered with no
  64   wrong usage, there is no terminal to ask on, no such hold, or several without --token
  69   the engine is not available";

/// Break somebody's hold
#[derive(Debug, Args)]
#[command(long_about = RELEASE_HELP, after_help = RELEASE_AFTER_HELP)]
pub(crate) struct Release {
    /// The lock
    pub(crate) name: String,
    /// The token of the hold, as `tenure status` shows it [default: that of the only one]
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<u64>,
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
    let view = pollster::block_on(tenure.view(&release.name))?;
    let holds = view.map(|view| view.holds).unwrap_or_default();
    let hold = meant(release, &holds)?;
    // What rests is free by itself later, and only `--now` changes that.
    if hold.claim.is_none() && !release.now {
        return Err(rests(release, hold.ends_in));
    }
    if !release.force && !question::ask(&question(&release.name, hold, release.now))? {
        return Ok(exit::DECLINED);
    }
    let answer = break_hold(&tenure, engine, &release.name, hold.token, release.now);
    let free_in = match answer? {
        BreakAnswer::Broken { free_in } => free_in,
        BreakAnswer::Resting { free_in } => return Err(rests(release, free_in)),
        BreakAnswer::NotHeld if hold.token == Token::ZERO => {
            let message =
                format!("{:?} is of another client of the store, which would not notice", release.name);
            return Err(Failure::new(exit::USAGE, message).with_hint("only `--now` removes it"));
        }
        BreakAnswer::NotHeld => return Err(not_held(release, hold.token, &[])),
    };
    pollster::block_on(tenure.close());
    let when = if free_in.is_zero() {
        "it is free now; whoever held it may still work until it notices".to_owned()
    } else {
        format!("it is free in {} at the latest", format_duration(free_in))
    };
    write_data(&format!("broke the hold of {:?} with token {}: {when}\n", release.name, hold.token))?;
    Ok(0)
}

/// Returns the hold that is to be broken: the one of the token, or the only one.
fn meant<'a>(release: &Release, holds: &'a [HoldView]) -> Result<&'a HoldView, Failure> {
    if let Some(token) = release.token.map(Token::new) {
        return holds.iter().find(|hold| hold.token == token).ok_or_else(|| not_held(release, token, holds));
    }
    // Units that rest stand for nobody, and are meant only where nobody holds.
    let held: Vec<&HoldView> = holds.iter().filter(|hold| hold.claim.is_some()).collect();
    let candidates = if held.is_empty() { holds.iter().collect() } else { held };
    match candidates[..] {
        [hold] => Ok(hold),
        [] => Err(Failure::new(exit::USAGE, format!("nobody holds {:?}", release.name))
            .with_hint("`tenure status` lists what is held")),
        [..] => {
            let tokens: Vec<String> =
                candidates.iter().map(|hold| format!("{} ({})", hold.token, who(&hold.label))).collect();
            let message = format!("{:?} has {} holds", release.name, candidates.len());
            let hint = format!("say which with `--token`: {}", tokens.join(", "));
            Err(Failure::new(exit::USAGE, message).with_hint(hint))
        }
    }
}

/// Breaks a hold, and writes it to the log.
pub(crate) fn break_hold(
    tenure: &Tenure,
    engine: &str,
    name: &str,
    token: Token,
    at_once: bool,
) -> tenure::Result<BreakAnswer> {
    let answer = pollster::block_on(tenure.break_hold(name, token, at_once));
    let detail = format!("token {token}{}", if at_once { ", at once" } else { "" });
    audit::tell(tenure, engine, &Act { what: "release", name, detail: &detail }, &answer, |answer| {
        match answer {
            BreakAnswer::Broken { .. } => "broken".to_owned(),
            BreakAnswer::Resting { .. } | BreakAnswer::NotHeld => "nothing was broken".to_owned(),
        }
    });
    answer
}

/// Asks with what comes of it.
pub(crate) fn question(name: &str, hold: &HoldView, at_once: bool) -> String {
    let ends_in = format_duration(hold.ends_in);
    if hold.claim.is_none() {
        return format!(
            "Nobody holds {name:?}; it rests for {ends_in} more.\nWork that has lost it may not have ended.\nFree it now?"
        );
    }
    let comes = match at_once {
        true => {
            "The lock is free at once, and two may work at the same time until the holder notices.".to_owned()
        }
        false => format!("Its work will be ended, and the lock is free in {ends_in} at the latest."),
    };
    format!("{name:?} is {}.\n{comes}\nBreak it?", held(&hold.label, hold.held_for))
}

/// Returns the failure for a hold that has ended and whose units rest: a break would change nothing.
fn rests(release: &Release, free_in: Duration) -> Failure {
    let message = format!("nobody holds {:?}; it rests for {} more", release.name, format_duration(free_in));
    Failure::new(exit::USAGE, message).with_hint("free it with `--now`")
}

fn not_held(release: &Release, token: Token, holds: &[HoldView]) -> Failure {
    let failure = Failure::new(exit::USAGE, format!("{:?} has no hold with token {token}", release.name));
    let held: Vec<_> = holds.iter().filter(|hold| hold.claim.is_some()).collect();
    failure.with_hint(match held.as_slice() {
        [] => "nobody holds it; see `tenure status`".to_owned(),
        [hold] => format!("it is held under token {} by {}", hold.token, who(&hold.label)),
        [..] => format!("`tenure status {:?}` shows the tokens of its holds", release.name),
    })
}
