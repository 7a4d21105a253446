//! The rules of the documents, as texts: a rule begins with `- alert:` or `- record:`, a case with `- name:`.

use std::path::{Path, PathBuf};

use crate::promql::Known;

/// Where the rules, their cases and the dashboard are.
pub(crate) fn place() -> PathBuf {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating");
    place.canonicalize().expect("the documents are there")
}

pub(crate) fn text(file: &str) -> String {
    std::fs::read_to_string(place().join(file)).expect("a file of the documents")
}

/// One rule, as it is written.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) is_alert: bool,
    pub(crate) expression: String,
    /// How long an alert waits before it fires.
    pub(crate) waits: Option<String>,
    /// The lines of its labels.
    pub(crate) labels: String,
    /// The lines of its annotations.
    pub(crate) annotations: String,
}

impl Rule {
    /// Writes it as a part of a list of rules.
    pub(crate) fn text(&self) -> String {
        let kind = if self.is_alert { "alert" } else { "record" };
        let lines: String = self.expression.lines().map(|line| format!("          {line}\n")).collect();
        let waits = self.waits.iter().map(|waits| format!("        for: {waits}\n")).collect::<String>();
        let Rule { name, labels, annotations, .. } = self;
        format!("      - {kind}: {name}\n        expr: |\n{lines}{waits}{labels}{annotations}")
    }

    fn parse(block: &str) -> Rule {
        let kind = block.split_once(": ").expect("a rule has a kind").0;
        let field = |name: &str| {
            let mut lines = block.lines().skip_while(|line| !line.trim_start().starts_with(name));
            let first = lines.next()?.trim_start().strip_prefix(name)?.trim();
            let of_field = |line: &&str| line.starts_with("          ") && !line.trim().is_empty();
            let more: Vec<&str> = lines.take_while(of_field).map(|line| &line[10..]).collect();
            Some((first.to_owned(), more.join("\n")))
        };
        let (line, lines) = field("expr:").expect("a rule has an expression");
        let indented = |(_, lines): (String, String)| {
            lines.lines().map(|line| format!("          {line}\n")).collect::<String>()
        };
        let labels = field("labels:").map(indented).map(|lines| format!("        labels:\n{lines}"));
        let notes = field("annotations:").map(indented).map(|lines| format!("        annotations:\n{lines}"));
        Rule {
            name: field(kind).map(|(name, _)| name.trim_start_matches(": ").to_owned()).expect("its name"),
            is_alert: kind == "- alert",
            expression: if line == "|" { lines } else { line },
            waits: field("for:").map(|(waits, _)| waits),
            labels: labels.unwrap_or_default(),
            annotations: notes.unwrap_or_default(),
        }
    }
}

/// Returns all rules, in their order.
pub(crate) fn rules() -> Vec<Rule> {
    let text = text("tenure.rules.yml");
    let starts: Vec<usize> = ["      - alert: ", "      - record: "]
        .iter()
        .flat_map(|start| text.match_indices(start).map(|(at, _)| at + 6))
        .chain([text.len()])
        .collect();
    let mut starts = starts;
    starts.sort_unstable();
    starts.windows(2).map(|pair| Rule::parse(&text[pair[0]..pair[1]])).collect()
}

/// Returns the cases: the text of each, which begins with its name.
pub(crate) fn cases() -> Vec<String> {
    let text = text("tenure.rules.test.yml");
    let (_, cases) = text.split_once("\ntests:\n").expect("there are cases");
    cases.split("  - name: ").skip(1).map(str::to_owned).collect()
}

/// Writes a file of rules.
pub(crate) fn file(rules: &[Rule]) -> String {
    let rules: String = rules.iter().map(Rule::text).collect();
    format!("groups:\n  - name: test\n    rules:\n{rules}")
}

/// What there is, and what the rules record.
pub(crate) fn known() -> Known {
    let mut known = Known::new();
    for rule in rules().iter().filter(|rule| !rule.is_alert) {
        known.record(&rule.name, &rule.expression);
    }
    known
}

#[test]
fn the_rules_name_only_what_we_render() {
    let known = known();
    let rules = rules();
    assert!(rules.iter().filter(|rule| rule.is_alert).count() > 15, "{rules:?}");
    for rule in rules {
        let unknown = known.unknown(&rule.expression);
        assert!(unknown.is_empty(), "{}: {unknown:?} in {}", rule.name, rule.expression);
    }
}

#[test]
fn no_text_of_an_alert_has_a_hole() {
    for case in cases() {
        assert!(!case.contains("<no value>"), "{case}");
    }
}
