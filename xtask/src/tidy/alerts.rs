//! Rules about alerts: each has what somebody needs who is woken by it, and cases in which it is tried.

use super::Finding;
use crate::tree::Tree;

const RULES: &str = "docs/operating/tenure.rules.yml";
const CASES: &str = "docs/operating/tenure.rules.test.yml";
const RUNBOOK: &str = "docs/operating/runbook.md";

/// How a rule that is an alert begins.
const ALERT: &str = "      - alert: ";
/// How a case begins.
const CASE: &str = "  - name: ";
/// How a section of the runbook begins.
const SECTION: &str = "## ";
/// The parts of each section, in this order.
const PARTS: [&str; 4] =
    ["**What it means.**", "**What to look at.**", "**What to do.**", "**When it is harmless.**"];
/// What an alert says of itself.
const FIELDS: [&str; 3] = ["severity: ", "summary: ", "description: "];

/// What begins with a word at the beginning of a line: the line it is in, its name and its text.
fn blocks<'a>(text: &'a str, start: &str) -> Vec<(usize, &'a str, &'a str)> {
    let mut blocks = Vec::new();
    for (at, _) in text.match_indices(start) {
        let line = text[..at].matches('\n').count() + 1;
        if at != 0 && !text[..at].ends_with('\n') {
            continue;
        }
        let block = &text[at + start.len()..];
        let block = block.find(&format!("\n{start}")).map_or(block, |end| &block[..end]);
        blocks.push((line, block.lines().next().unwrap_or_default().trim(), block));
    }
    blocks
}

/// Finds alerts without a section, without a case of each kind or without a text, and sections and cases of no alert.
pub(crate) fn are_explained_and_tried(tree: &Tree) -> Vec<Finding> {
    let Some(rules) = tree.text(RULES) else {
        return vec![Finding::of("alert", RULES, "the file does not exist")];
    };
    let (cases, runbook) = (tree.text(CASES).unwrap_or_default(), tree.text(RUNBOOK).unwrap_or_default());
    let (alerts, cases) = (blocks(rules, ALERT), blocks(cases, CASE));
    let sections = blocks(runbook, SECTION);
    let mut findings = Vec::new();
    for (line, name, text) in &alerts {
        let mut find = |said: String| findings.push(Finding::at("alert", RULES, *line, said));
        for field in FIELDS.iter().filter(|field| !text.contains(**field)) {
            find(format!("{name} has no `{field}`"));
        }
        let url = format!("runbook_url: {RUNBOOK}#{}\n", name.to_lowercase());
        if !format!("{text}\n").contains(&url) {
            find(format!("{name} has no `{}`", url.trim()));
        }
        if !sections.iter().any(|(_, section, _)| section == name) {
            find(format!("{RUNBOOK} has no `{SECTION}{name}`"));
        }
        for kind in ["fires", "is silent"] {
            if !cases.iter().any(|(_, case, _)| case.starts_with(&format!("{name} {kind} "))) {
                find(format!("{CASES} has no case `{name} {kind} when …`"));
            }
        }
    }
    let is_alert = |name: &str| alerts.iter().any(|(_, alert, _)| *alert == name);
    for (line, name, text) in &sections {
        let mut find = |said: String| findings.push(Finding::at("alert", RUNBOOK, *line, said));
        if !is_alert(name) {
            find(format!("{name} is no alert of {RULES}"));
        }
        let mut lines = text.lines();
        if let Some(part) = PARTS.iter().find(|part| !lines.any(|line| line.starts_with(**part))) {
            find(format!("{name} has no {part}, or it is out of order"));
        }
    }
    for (line, case, text) in &cases {
        let mut find = |said: String| findings.push(Finding::at("alert", CASES, *line, said));
        let name = case.split(' ').next().unwrap_or_default();
        if !is_alert(name) || !text.contains(&format!("alertname: {name}\n")) {
            find(format!("{name} is no alert of {RULES}, or is not asked for"));
        }
        let fires = case.starts_with(&format!("{name} fires "));
        if fires != text.contains("exp_labels:") {
            find(format!(
                "this case says in its name that {name} fires, or is silent, and expects the other"
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str = "groups:\n      - alert: Slow\n        severity: warning\n          summary: It is slow.\n          description: Very.\n          runbook_url: docs/operating/runbook.md#slow\n";
    const TRIED: &str = "tests:\n  - name: Slow fires when it is\n    alertname: Slow\n    exp_labels:\n  - name: Slow is silent when it is not\n    alertname: Slow\n    exp_alerts: []\n";
    const SAID: &str = "# Runbook\n\n## Slow\n\n**What it means.** a\n\n**What to look at.** b\n\n**What to do.** c\n\n**When it is harmless.** d\n";

    fn found(rules: &str, cases: &str, runbook: &str) -> usize {
        are_explained_and_tried(&Tree::of(&[(RULES, rules), (CASES, cases), (RUNBOOK, runbook)])).len()
    }

    #[test]
    fn an_alert_without_a_section_a_case_or_a_text_is_found() {
        assert_eq!(found(RULE, TRIED, SAID), 0);
        assert_eq!(are_explained_and_tried(&Tree::of(&[])).len(), 1);
        // The section and two cases of the first are of no alert.
        let other = RULE.replace("Slow", "Late").replace("#slow", "#late");
        assert_eq!(found(&format!("{RULE}{other}"), TRIED, SAID), 3);
        assert_eq!(found(&other, TRIED, SAID), 6);
        for field in ["severity: ", "summary: ", "description: ", "#slow"] {
            assert_eq!(found(&RULE.replace(field, "x"), TRIED, SAID), 1, "{field}");
        }
        assert_eq!(
            found(RULE, &TRIED.replace("Slow fires", "Slow is silent"), SAID),
            2,
            "and one expects it"
        );
        assert_eq!(found(RULE, &TRIED.replace("exp_alerts: []", "exp_labels:"), SAID), 1);
        assert_eq!(found(RULE, TRIED, &SAID.replace("**What to do.** c\n", "")), 1);
        assert_eq!(found(RULE, TRIED, &format!("{SAID}\n## Gone\n")), 2, "no alert, and no parts");
    }
}
