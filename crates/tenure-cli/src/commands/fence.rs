//! `tenure fence check`: a shell script asks whether its lease is still the latest, before it writes.

use serde::Serialize;
use tenure::fence::{File, Mark, Stale};

use crate::arguments::FenceCheck;
use crate::exit::{self, Failure, Outcome};
use crate::output::write_json;

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
