//! `tenure fence check`: a shell script asks whether its lease is still the latest, before it writes.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use tenure::fence::{File, Mark, Stale};

use crate::exit::{self, Failure, Outcome};
use crate::output::data::write_json;

#[derive(Debug, Subcommand)]
pub(crate) enum Fence {
    Check(FenceCheck),
}

const FENCE_CHECK_HELP: &str = "\
Accepts a write if no later lease has been seen in FILE, and keeps its token there; a holder may repeat it. \
FILE is made when it is first used, and must not be removed while a holder with an old token may still come.

Check just before each write, under a lock of the file system that the write is under as well:

  flock data.lock sh -c 'tenure fence check --file data.fence && cp new data'

Needs no engine.";

const FENCE_CHECK_CODES: &str = "\
Exit codes:
  0    accepted: write
  64   wrong usage
  69   FILE cannot be used, or is damaged: do not write
  76   refused: a later lease has been seen; the lease of this token is over";

/// Ask a file whether a later lease has been here, and leave a mark there
#[derive(Debug, Args)]
#[command(long_about = FENCE_CHECK_HELP, after_help = FENCE_CHECK_CODES)]
pub(crate) struct FenceCheck {
    /// The file that keeps the largest token
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The fencing token of the lease
    #[arg(long, value_name = "TOKEN", env = "TENURE_TOKEN", hide_env_values = true)]
    pub(crate) token: String,
    /// The id of its claim
    #[arg(long, value_name = "CLAIM", env = "TENURE_CLAIM", hide_env_values = true)]
    pub(crate) claim: String,
    /// What is written to: FILE keeps a token for each name
    #[arg(long, value_name = "NAME", env = "TENURE_NAME", hide_env_values = true)]
    pub(crate) name: String,
    /// Check a read under a lock that readers share: only a later writer refuses it
    #[arg(long)]
    pub(crate) read: bool,
    /// Write a JSON object with `name`, `token`, `accepted` and `max`, the largest token seen
    #[arg(long)]
    pub(crate) json: bool,
}

/// The answer of `--json`.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    name: &'a str,
    token: u64,
    accepted: bool,
    /// The largest token that has been seen.
    max: u64,
}

/// Checks a mark against a file.
pub(crate) fn check(check: &FenceCheck) -> Outcome {
    let mark = Mark::parse(&check.token, &check.claim).map_err(|error| {
        let hint = "`tenure run` gives CMD both as TENURE_TOKEN and TENURE_CLAIM";
        Failure::from(error).with_hint(hint)
    })?;
    let file = File::new(&check.file);
    let answer = match check.read {
        true => file.check_read(&check.name, mark),
        false => file.check(&check.name, mark),
    }?;
    if check.json {
        let max = answer.map_or_else(|Stale { max, .. }| max, |()| mark.token());
        let token = mark.token().get();
        write_json(&Answer { name: &check.name, token, accepted: answer.is_ok(), max: max.get() })?;
        return Ok(if answer.is_ok() { 0 } else { exit::LOST });
    }
    match answer {
        Ok(()) => Ok(0),
        Err(stale) => Err(Failure::new(
            exit::LOST,
            format!("token {} is refused for {:?}: {stale}", mark.token(), check.name),
        )
        .with_hint("stop: somebody with a later lease has been here")),
    }
}
