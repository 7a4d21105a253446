//! Each alert is broken in each way, and one of its cases must notice.
//!
//! A rule that is broken stands in a file of its own, with those that it needs and with the cases of the alerts that need it; one call of
//! promtool judges many of them. A case that takes days is asked only where the others have noticed nothing.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use tenure_testkit::TestDirectory;
use tenure_testkit::prometheus::promtool;

use crate::promql::{Expression, Known};
use crate::rules::{self, Rule};

/// A rule that is broken, and how.
struct Breakage {
    how: String,
    rule: Rule,
}

/// Returns an expression with a part replaced.
fn replaced(text: &str, at: std::ops::Range<usize>, by: &str) -> String {
    [&text[..at.start], by, &text[at.end..]].concat()
}

/// All ways to break a rule, but for names.
fn breakages(rule: &Rule) -> Vec<Breakage> {
    let text = &rule.expression;
    let parsed = Expression::parse(text);
    let mut broken: Vec<(String, String)> = Vec::new();
    for number in &parsed.numbers {
        let value: f64 = number.text.parse().expect("a number");
        let others = if value == 0.0 { [2.0, -1.0] } else { [value * 2.0, value / 2.0] };
        // What is recorded is a number as it is: nothing is less than nothing.
        let others = others.into_iter().filter(|other| rule.is_alert || *other >= 0.0);
        broken.extend(others.map(|other| {
            (format!("{} is {other}", number.text), replaced(text, number.at.clone(), &other.to_string()))
        }));
    }
    for comparison in &parsed.comparisons {
        let other = match comparison.text {
            "<" => ">=",
            ">" => "<=",
            ">=" => "<",
            "==" => "!=",
            "!=" => "==",
            other => panic!("what is the contrary of {other}?"),
        };
        broken
            .push((format!("{} is {other}", comparison.text), replaced(text, comparison.at.clone(), other)));
    }
    for selector in &parsed.selectors {
        for matcher in &selector.matchers {
            let other = match matcher.operator.text {
                "=" => "!=",
                "!=" => "=",
                "=~" => "!~",
                _ => "=~",
            };
            let label = matcher.label;
            broken.push((format!("any {label}"), replaced(text, matcher.at.clone(), "")));
            broken.push((format!("{label} {other}"), replaced(text, matcher.operator.at.clone(), other)));
        }
    }
    for list in &parsed.lists {
        for (index, label) in list.labels.iter().enumerate() {
            let others = list.labels.iter().enumerate().filter(|(other, _)| *other != index);
            let others: Vec<&str> = others.map(|(_, label)| label.text).collect();
            let whole = list.labels[0].at.start..list.labels[list.labels.len() - 1].at.end;
            broken.push((format!("without {}", label.text), replaced(text, whole, &others.join(", "))));
        }
    }
    let with = |(how, expression): (String, String)| Breakage {
        how: format!("{}: {how} in {expression}", rule.name),
        rule: Rule { expression, ..rule.clone() },
    };
    let mut broken: Vec<Breakage> = broken.into_iter().map(with).collect();
    for waits in rule.waits.iter().flat_map(|waits| [None, Some(tripled(waits))]) {
        let how = format!("{}: it waits for {waits:?}", rule.name);
        broken.push(Breakage { how, rule: Rule { waits, ..rule.clone() } });
    }
    broken
}

fn tripled(duration: &str) -> String {
    let (number, unit) = duration.split_at(duration.len() - 1);
    format!("{}{unit}", 3 * number.parse::<u32>().expect("a whole number"))
}

/// The names of the rules that a rule is made of, and its own.
fn needed(rule: &Rule, rules: &[Rule]) -> BTreeSet<String> {
    let parsed = Expression::parse(&rule.expression);
    let named = |other: &&Rule| parsed.selectors.iter().any(|selector| selector.metric.text == other.name);
    let mut names: BTreeSet<String> =
        rules.iter().filter(named).flat_map(|other| needed(other, rules)).collect();
    names.insert(rule.name.clone());
    names
}

/// Writes the rules with one of them broken, and the cases that should notice. Returns the name of the file of cases.
fn write(number: usize, broken: &Breakage, rules: &[Rule], cases: &[&String], directory: &Path) -> String {
    let name = &broken.rule.name;
    let concerned: Vec<&Rule> =
        rules.iter().filter(|rule| rule.is_alert && needed(rule, rules).contains(name)).collect();
    let names: BTreeSet<String> = concerned.iter().flat_map(|rule| needed(rule, rules)).collect();
    let of_file = rules.iter().filter(|rule| names.contains(&rule.name));
    let of_file: Vec<Rule> =
        of_file.map(|rule| if rule.name == *name { broken.rule.clone() } else { rule.clone() }).collect();
    let cases: Vec<&str> = cases
        .iter()
        .filter(|case| concerned.iter().any(|rule| case.starts_with(&format!("{} ", rule.name))))
        .map(|case| case.as_str())
        .collect();
    let cases: String = cases.iter().map(|case| format!("  - name: {case}")).collect();
    let text = format!("rule_files: [{number}.rules.yml]\nevaluation_interval: 1m\ntests:\n{cases}");
    std::fs::write(directory.join(format!("{number}.rules.yml")), rules::file(&of_file)).expect("a file");
    let name = format!("{number}.test.yml");
    std::fs::write(directory.join(&name), text).expect("a file");
    name
}

/// Returns which files of cases promtool finds nothing wrong with.
fn pass(directory: &Path, files: &[String]) -> Vec<bool> {
    // What it says of a failure goes to stderr, and of what to stdout: one file has both in their order.
    let said = directory.join(format!("{}.said", files[0]));
    let output = File::create(&said).expect("a file");
    let mut call = promtool(directory);
    call.args(["test", "rules"]).args(files).stderr(output.try_clone().expect("a file")).stdout(output);
    call.status().expect("promtool starts");
    let text = std::fs::read_to_string(said).expect("it was written");
    let passed = |file: &String| {
        let (_, said) = text.split_once(&format!("Unit Testing:  {file}\n")).expect("it was tried");
        let said = said.split("Unit Testing:  ").next().expect("it says something").trim_start();
        assert!(said.starts_with("SUCCESS") || said.contains("exp:"), "a breakage is a rule itself: {said}");
        said.starts_with("SUCCESS")
    };
    files.iter().map(passed).collect()
}

/// Returns those of the breakages that no case notices.
fn survivors<'a>(broken: Vec<&'a Breakage>, rules: &[Rule], cases: &[&String]) -> Vec<&'a Breakage> {
    let directory = TestDirectory::new();
    let directory = directory.path();
    let write = |(number, broken): (usize, &&Breakage)| write(number, broken, rules, cases, directory);
    let files: Vec<String> = broken.iter().enumerate().map(write).collect();
    let half = files.len().div_ceil(2).max(1);
    let passed: Vec<bool> = std::thread::scope(|scope| {
        let calls: Vec<_> =
            files.chunks(half).map(|files| scope.spawn(move || pass(directory, files))).collect();
        calls.into_iter().flat_map(|call| call.join().expect("promtool answers")).collect()
    });
    broken.into_iter().zip(passed).filter(|(_, passed)| *passed).map(|(broken, _)| broken).collect()
}

#[test]
fn each_breakage_of_the_rules_is_caught() {
    let (rules, cases) = (rules::rules(), rules::cases());
    let whole = |rule: &Rule| Breakage { how: rule.name.clone(), rule: rule.clone() };
    let whole: Vec<Breakage> = rules.iter().map(whole).collect();
    let broken: Vec<Breakage> = rules.iter().flat_map(breakages).collect();
    println!("{} rules, {} breakages", rules.len(), broken.len());
    let short: Vec<&String> = cases.iter().filter(|case| !case.contains("interval: 5m")).collect();
    let left = survivors(whole.iter().chain(&broken).collect(), &rules, &short);
    let (unbroken, left) = left.split_at(rules.len());
    let is_whole = |(left, rule): (&&Breakage, &Rule)| left.how == rule.name;
    assert!(unbroken.iter().zip(&rules).all(is_whole), "nothing is wrong with a rule that is not broken");
    let left = survivors(left.to_vec(), &rules, &cases.iter().collect::<Vec<_>>());
    let left: Vec<&str> = left.iter().map(|broken| broken.how.as_str()).collect();
    assert!(left.is_empty(), "no case notices:\n{}", left.join("\n"));
}

#[test]
fn a_metric_that_is_called_otherwise_is_found() {
    let known: Known = rules::known();
    for rule in rules::rules() {
        for selector in Expression::parse(&rule.expression).selectors {
            let at = selector.metric.at;
            let broken = replaced(&rule.expression, at.end..at.end, "s");
            assert!(!known.unknown(&broken).is_empty(), "{}: {broken}", rule.name);
        }
    }
}
