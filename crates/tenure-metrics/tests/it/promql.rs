//! As much of Prometheus's expressions as it takes to see which metrics and labels they name, and whether there are such.

use std::collections::{BTreeMap, BTreeSet};
use std::future::IntoFuture;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use pollster::block_on;
use tenure_core::Settings;
use tenure_core::counts::Primitive;
use tenure_core::engine::{Finding, Severity};
use tenure_core::survey::Surveyor;
use tenure_metrics::{Format, HttpCounts, METRICS, MetricType, Page, render, render_store};

use crate::page::{client, work};

/// Labels that Prometheus adds to whatever it scrapes.
const OF_TARGETS: [&str; 2] = ["instance", "job"];
/// Labels whose values are anything.
const FREE: [&str; 8] = ["scope", "queue", "election", "name", "version", "what", "instance", "job"];
/// Words before a list of labels.
const LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// A part of an expression, and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) text: &'a str,
    pub(crate) at: Range<usize>,
}

/// A condition on a label.
#[derive(Debug)]
pub(crate) struct Matcher<'a> {
    pub(crate) label: &'a str,
    pub(crate) operator: Part<'a>,
    pub(crate) value: &'a str,
    /// With the comma, if there is one.
    pub(crate) at: Range<usize>,
}

/// A metric, and which of its series.
#[derive(Debug)]
pub(crate) struct Selector<'a> {
    pub(crate) metric: Part<'a>,
    pub(crate) matchers: Vec<Matcher<'a>>,
}

/// A list of labels behind a word, and what is in parentheses after it.
#[derive(Debug)]
pub(crate) struct Labels<'a> {
    pub(crate) labels: Vec<Part<'a>>,
    inner: &'a str,
}

/// What an expression consists of.
#[derive(Debug, Default)]
pub(crate) struct Expression<'a> {
    pub(crate) selectors: Vec<Selector<'a>>,
    pub(crate) lists: Vec<Labels<'a>>,
    /// Numbers, but for those of durations, labels and names.
    pub(crate) numbers: Vec<Part<'a>>,
    /// Comparisons.
    pub(crate) comparisons: Vec<Part<'a>>,
}

impl<'a> Expression<'a> {
    pub(crate) fn parse(text: &'a str) -> Expression<'a> {
        let mut found = Expression::default();
        let mut at = 0;
        while let Some(first) = text[at..].chars().next() {
            let is_word = first.is_ascii_alphabetic() || first == '_';
            let end = match first {
                '"' => at + 2 + text[at + 1..].find('"').expect("a text ends"),
                '[' => at + 1 + text[at..].find(']').expect("a range ends"),
                '>' | '<' | '=' | '!' => {
                    let end = at + text[at..].find(|c| !"<>=!".contains(c)).unwrap_or(1);
                    found.comparisons.push(Part { text: &text[at..end], at: at..end });
                    end
                }
                _ if is_word => found.word(text, at),
                _ if first.is_ascii_digit() => {
                    let length = text[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '.');
                    let end = length.map_or(text.len(), |length| at + length);
                    let part = Part { text: &text[at..end], at: at..end };
                    // `15m` is a duration.
                    found.numbers.extend(part.text.parse::<f64>().is_ok().then_some(part));
                    end
                }
                _ => at + first.len_utf8(),
            };
            at = end;
        }
        found
    }

    /// Reads a word and what belongs to it, and returns where that ends.
    fn word(&mut self, text: &'a str, at: usize) -> usize {
        let length = text[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        let end = length.map_or(text.len(), |length| at + length);
        let word = &text[at..end];
        let next = end + (text[end..].len() - text[end..].trim_start().len());
        if LISTS.contains(&word) && text[next..].starts_with('(') {
            let close = closing(text, next);
            let labels = parts(text, next + 1..close).into_iter().filter(|part| !part.text.is_empty());
            let after = close + 1;
            let open = after + (text[after..].len() - text[after..].trim_start().len());
            let is_inner = text[open..].starts_with('(');
            let inner = if is_inner { &text[open..=closing(text, open)] } else { "" };
            self.lists.push(Labels { labels: labels.collect(), inner });
            return after;
        }
        if !word.starts_with("tenure_") && !word.contains(':') {
            return end;
        }
        let metric = Part { text: word, at: at..end };
        let (mut matchers, mut end) = (Vec::new(), end);
        if text[end..].starts_with('{') {
            let close = end + text[end..].find('}').expect("matchers end");
            for part in parts(text, end + 1..close) {
                let operator = part.text.find(['=', '!']).expect("a matcher has an operator");
                let value = part.text.find('"').expect("a value is in quotation marks");
                let place = part.at.start + operator..part.at.start + value;
                let comma = part.at.end + usize::from(text[part.at.end..].starts_with(','));
                matchers.push(Matcher {
                    label: &part.text[..operator],
                    operator: Part { text: &text[place.clone()], at: place },
                    value: part.text[value..].trim_matches('"'),
                    at: part.at.start..comma,
                });
            }
            end = close + 1;
        }
        self.selectors.push(Selector { metric, matchers });
        end
    }
}

/// Where the parenthesis ends that begins there.
fn closing(text: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, c) in text[open..].char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 {
            return open + at;
        }
    }
    panic!("no end of {}", &text[open..]);
}

/// What is between commas, but for those within quotation marks. No value in the rules has one.
fn parts(text: &str, range: Range<usize>) -> Vec<Part<'_>> {
    let mut at = range.start;
    text[range]
        .split(',')
        .map(|part| {
            let start = at + (part.len() - part.trim_start().len());
            at += part.len() + 1;
            Part { text: part.trim(), at: start..start + part.trim().len() }
        })
        .collect()
}

/// What a page of ours may hold.
pub(crate) struct Known {
    labels: BTreeMap<String, BTreeSet<String>>,
    /// By metric and label; only of labels that are no names.
    values: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Known {
    /// What [`METRICS`] says, and a page of a client that has done something of each sort.
    pub(crate) fn new() -> Known {
        let mut known = Known { labels: BTreeMap::new(), values: BTreeMap::new() };
        for metric in METRICS {
            let labels: BTreeSet<String> =
                metric.labels.iter().chain(&OF_TARGETS).map(ToString::to_string).collect();
            let endings: &[&str] =
                if metric.of == MetricType::Histogram { &["_sum", "_count"] } else { &[""] };
            for ending in endings {
                known.labels.insert(format!("{}{ending}", metric.name), labels.clone());
            }
            if metric.of == MetricType::Histogram {
                let labels = labels.into_iter().chain(["le".to_owned()]).collect();
                known.labels.insert(format!("{}_bucket", metric.name), labels);
            }
        }
        known.add_page();
        known
    }

    fn add_page(&mut self) {
        let (clock, _store, tenure) = client(Settings::new().counts(true));
        work(&clock, &tenure);
        let page = render(&[tenure.counts()], Format::Prometheus);
        block_on(tenure.queue("refunds").push("two").into_future()).expect("pushed");
        let finding = |severity| Finding::new(severity, "persistence", "");
        let findings = [Severity::Good, Severity::Warning, Severity::Bad].map(finding);
        let surveyor = Surveyor::new(&tenure);
        let counts = surveyor.count(&block_on(surveyor.latest()).expect("a survey"), &[]);
        let page = page + &render_store(&counts, &findings, Duration::ZERO, Format::Prometheus);
        let mut http = HttpCounts::default();
        // A route without braces, which this reader takes for the end of a selector.
        http.answered("/v1/claims/renew", "POST", 200, Duration::from_millis(3));
        let page = page + &Page::default().http(&http).text(Format::Prometheus);
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let selector = &Expression::parse(line).selectors[0];
            for matcher in &selector.matchers {
                let key = (selector.metric.text.to_owned(), matcher.label.to_owned());
                self.values.entry(key).or_default().insert(matcher.value.to_owned());
            }
        }
    }

    /// Adds a series that is recorded, with the labels of its first list.
    pub(crate) fn record(&mut self, name: &str, expression: &str) {
        let parsed = Expression::parse(expression);
        let mut labels: BTreeSet<String> = match parsed.lists.first() {
            Some(list) => list.labels.iter().map(|label| label.text.to_owned()).collect(),
            None => self.labels.get(parsed.selectors[0].metric.text).cloned().unwrap_or_default(),
        };
        // A quantile has no buckets.
        if !name.contains("_bucket:") {
            labels.remove("le");
        }
        self.labels.insert(name.to_owned(), labels);
    }

    /// Returns what an expression names that there is not.
    pub(crate) fn unknown(&self, expression: &str) -> Vec<String> {
        let parsed = Expression::parse(expression);
        let mut unknown = Vec::new();
        for selector in &parsed.selectors {
            let metric = selector.metric.text;
            let Some(labels) = self.labels.get(metric) else {
                unknown.push(format!("{metric} is no metric"));
                continue;
            };
            for matcher in &selector.matchers {
                let Matcher { label, value, .. } = matcher;
                match labels.contains(*label) {
                    false => unknown.push(format!("{metric} has no label {label}")),
                    true => unknown.extend(self.unknown_values(metric, label, value)),
                }
            }
        }
        for list in &parsed.lists {
            let inner = Expression::parse(if list.inner.is_empty() { expression } else { list.inner });
            for label in &list.labels {
                let has = |selector: &&Selector<'_>| {
                    self.labels.get(selector.metric.text).is_some_and(|labels| labels.contains(label.text))
                };
                if inner.selectors.iter().find(has).is_none() {
                    unknown.push(format!("nothing in it has the label {}: {}", label.text, list.inner));
                }
            }
        }
        unknown
    }

    fn unknown_values(&self, metric: &str, label: &str, value: &str) -> Vec<String> {
        // What the reader of a dashboard chooses.
        if FREE.contains(&label) || value.starts_with('$') {
            return Vec::new();
        }
        let known = match label {
            "engine" => engines(),
            "kind" => Primitive::ALL.iter().map(|kind| kind.as_str().to_owned()).collect(),
            _ => {
                let names = [metric, metric.trim_end_matches("_bucket").trim_end_matches("_count")];
                let of = |name: &&str| self.values.get(&((*name).to_owned(), label.to_owned()));
                names.iter().find_map(of).cloned().unwrap_or_default()
            }
        };
        let words = value.split('|').filter(|word| !known.contains(*word));
        words.map(|word| format!("{label} of {metric} is never {word}: {known:?}")).collect()
    }
}

/// The engines' words, which are the names of their pages.
fn engines() -> BTreeSet<String> {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/engines");
    let pages = std::fs::read_dir(pages).expect("the pages of the engines").flatten();
    pages.filter_map(|page| Some(page.path().file_stem()?.to_string_lossy().into_owned())).collect()
}

#[test]
fn what_we_do_not_have_is_found_in_an_expression() {
    let mut known = Known::new();
    known.record("scope:x:rate", "sum by (engine, scope) (rate(tenure_claims_total[10m]))");
    for right in [
        r#"sum by (scope, le) (rate(tenure_wait_seconds_bucket{kind!="election", le="30"}[10m])) > 5"#,
        r#"scope:x:rate{scope="any"} > on (engine) group_left () tenure_store_up"#,
        r#"tenure_claims_total{outcome=~"busy|granted", engine="mysql", instance="x", scope=~"$scope"}"#,
        "1 + time()",
    ] {
        assert_eq!(known.unknown(right), Vec::<String>::new(), "{right}");
    }
    for wrong in [
        "tenure_claim_total",
        "tenure_wait_seconds",
        "tenure_claims_total_bucket",
        r#"tenure_store_up{scope="x"}"#,
        r#"tenure_claims_total{outcome=~"busy|grunted"}"#,
        r#"tenure_wait_seconds_bucket{le="31"}"#,
        r#"tenure_store_up{engine="mssql"}"#,
        r#"tenure_leases{kind="mutexes"}"#,
        "sum by (scope) (tenure_store_up)",
        "sum by (engine, le) (tenure_wait_seconds_count)",
        "scope:x:rate > on (kind) scope:x:rate",
        "scope:y:rate",
    ] {
        assert_eq!(known.unknown(wrong).len(), 1, "{wrong}: {:?}", known.unknown(wrong));
    }
}
