//! `tenure doctor`: whether the engine can be trusted.

use serde::Serialize;
use tenure::{Finding, Severity};

use crate::arguments::Doctor;
use crate::exit::{self, Failure, Outcome};
use crate::output::{write_data, write_json};

/// A finding in JSON. Field names are stable.
#[derive(Debug, Serialize)]
struct FindingJson {
    severity: &'static str,
    what: String,
    found: String,
    hint: Option<String>,
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
        }
    }
}

/// Shows what the engine found out about its store.
pub(crate) fn doctor(doctor: &Doctor, engine: &str) -> Outcome {
    let found = crate::connect(engine, None).and_then(|tenure| Ok(pollster::block_on(tenure.check())?));
    let mut findings = vec![FindingJson {
        severity: "good",
        what: "engine".to_owned(),
        found: tenure::redact(engine),
        hint: None,
    }];
    match found {
        Ok(found) => findings.extend(found.into_iter().map(FindingJson::of)),
        // That the engine cannot be used is what a doctor is asked for, so it is data. A wrong URL is not.
        Err(Failure { code: exit::UNAVAILABLE, message, hint }) => {
            findings.push(FindingJson { severity: "bad", what: "connect".to_owned(), found: message, hint });
        }
        Err(failure) => return Err(failure),
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
    for FindingJson { severity, what, found, hint } in findings {
        text.push_str(&format!("{severity:<7}  {what}: {found}\n"));
        if let Some(hint) = hint {
            text.push_str(&format!("         hint: {hint}\n"));
        }
    }
    text
}
