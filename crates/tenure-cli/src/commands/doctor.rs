//! `tenure doctor`: whether the engine can be trusted.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::{Finding, Severity, Tenure};

use crate::clock;
use crate::connect::connect_blocking;
use crate::duration::thousandths;
use crate::exit::{self, Failure, Outcome};
use crate::output::audit::{self, Act};
use crate::output::data::{write_data, write_json};

const AFTER_HELP: &str = "\
Examples:
  tenure doctor              check the engine of TENURE_ENGINE
  tenure doctor --migrate    make its tables first

Exit codes:
  0    no finding is bad
  64   wrong usage
  69   a finding is bad, or the engine is not available";

/// How often one name is looked at.
const LOOKS: usize = 3;

/// What other commands say of this one.
const OWN_HINT: &str = "try `tenure doctor`";

/// Check that the engine is safe to use for locks
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Doctor {
    /// Make the tables first, where the engine needs some (PostgreSQL, MySQL), as a user with that right; the same as `--init`
    #[arg(long)]
    pub(crate) migrate: bool,
    /// Let the servers of a new quorum in first (Redlock), or those of one that has forgotten everything
    #[arg(long)]
    pub(crate) init: bool,
    /// Then remove the rows of idle resources, where they stay behind (with `?purge=off`)
    #[arg(long)]
    pub(crate) purge: bool,
    /// Write a JSON array of objects with `severity` (good, warning, bad), `what`, `found`, `hint` and, one of them, `answer_ms`
    #[arg(long)]
    pub(crate) json: bool,
}

/// A finding in JSON. Field names are stable.
#[derive(Debug, Serialize)]
struct FindingJson {
    severity: &'static str,
    what: String,
    found: String,
    hint: Option<String>,
    /// How long a call took, in milliseconds and thousandths of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer_ms: Option<f64>,
}

impl FindingJson {
    fn of(finding: Finding) -> FindingJson {
        FindingJson {
            severity: match finding.severity {
                Severity::Good => "good",
                Severity::Warning => "warning",
                Severity::Bad => "bad",
            },
            what: finding.what.to_owned(),
            found: finding.found,
            hint: finding.hint,
            answer_ms: None,
        }
    }
}

fn good(what: &str, found: String) -> FindingJson {
    FindingJson { severity: "good", what: what.to_owned(), found, hint: None, answer_ms: None }
}

/// Looks at one name several times, and tells how long the quickest answer took: the first ones also load what the store runs. `None` if
/// it cannot be looked at: why, and what to do, is for the engine's own look to say.
fn answer(tenure: &Tenure) -> Option<FindingJson> {
    let mut quickest = Duration::MAX;
    for _ in 0..LOOKS {
        let began = clock::now();
        pollster::block_on(tenure.view("tenure")).ok()?;
        quickest = quickest.min(clock::now().since(began));
    }
    let answer_ms = thousandths(quickest);
    Some(FindingJson { answer_ms: Some(answer_ms), ..good("answer", format!("after {answer_ms} ms")) })
}

/// Shows what the engine found out about its store.
pub(crate) fn doctor(doctor: &Doctor, engine: &str) -> Outcome {
    // A wrong URL is wrong usage. Whatever comes of one that can be read is what a doctor is asked for, and so is data.
    tenure::connector(engine)?;
    let found = connect_blocking(engine).and_then(|tenure| {
        let mut done = Vec::new();
        if doctor.migrate || doctor.init {
            let made = pollster::block_on(tenure.migrate())?;
            let what = if doctor.init { "init" } else { "migrate" };
            done.push(good(
                what,
                made.unwrap_or("there is nothing to do: the engine needs nothing".to_owned()),
            ));
        }
        if doctor.purge {
            let answer = pollster::block_on(tenure.purge());
            let act = Act { what: "doctor --purge", name: "", detail: "idle resources" };
            audit::tell(&tenure, engine, &act, &answer, |count| {
                format!("{} removed", count.unwrap_or_default())
            });
            let count = answer?;
            let text = count.map(|count| format!("{count} idle resource(s) removed"));
            done.push(good(
                "purge",
                text.unwrap_or("there is nothing to do: nothing stays behind".to_owned()),
            ));
        }
        done.extend(answer(&tenure));
        let found = pollster::block_on(tenure.check())?;
        Ok(done.into_iter().chain(found.into_iter().map(FindingJson::of)).collect::<Vec<_>>())
    });
    let mut findings = vec![good("engine", tenure::redact(engine))];
    match found {
        Ok(found) => findings.extend(found),
        Err(Failure { message, hint, .. }) => {
            let hint = hint.map(|hint| hint.replace(OWN_HINT, "").trim_end().to_owned());
            let hint = hint.filter(|hint| !hint.is_empty());
            findings.push(FindingJson {
                severity: "bad",
                what: "connect".to_owned(),
                found: message,
                hint,
                answer_ms: None,
            });
        }
    }
    if doctor.json {
        write_json(&findings)?;
    } else {
        write_data(&text(&findings))?;
    }
    let is_bad = findings.iter().any(|finding| finding.severity == "bad");
    Ok(if is_bad { exit::UNAVAILABLE } else { 0 })
}

fn text(findings: &[FindingJson]) -> String {
    let mut text = String::new();
    for FindingJson { severity, what, found, hint, .. } in findings {
        text.push_str(&format!("{severity:<7}  {what}: {found}\n"));
        if let Some(hint) = hint {
            text.push_str(&format!("         hint: {hint}\n"));
        }
    }
    text
}
