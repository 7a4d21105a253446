//! The page that a server of metrics reads.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

use tenure_core::Counts;
use tenure_core::counts::{
    CallEnd, ClaimEnd, DeliveryEnd, FoundIn, Histogram, LearnedBy, Loss, Primitive, PushEnd, ReleaseEnd,
    Renewal, ScopeCounts, Verb,
};
use tenure_core::engine::Finding;
use tenure_core::survey::StoreCounts;

use crate::http::HttpCounts;
use crate::names::{self, Fold, METRICS, Metric, MetricType};

/// In which text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's text, version 0.0.4, which everything reads.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format that a reader asks for by its header `Accept`.
    pub fn accepted(accept: &str) -> Format {
        match accept.contains("application/openmetrics-text") {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    /// Returns the content type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes what clients have counted. Clients of one engine are added up.
pub fn render(clients: &[Counts], format: Format) -> String {
    Page::default().clients(clients).text(format)
}

enum Value {
    Number(f64),
    Histogram { cumulative: Vec<(f64, u64)>, count: u64, sum: f64 },
}

/// The numbers of a page, by metric and labels: of clients, of a store and of a server of requests, each once.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// use tenure_metrics::{Format, HttpCounts, Page};
///
/// # use tenure_core::{Settings, Tenure, memory::Store};
/// # let settings = Settings::new().counts(true);
/// # let tenure = Tenure::connect_with(Store::named("page-example").connector(), settings).await?;
/// let mut http = HttpCounts::default();
/// http.refused("rate");
/// let page = Page::default().clients(&[tenure.counts()]).http(&http).text(Format::Prometheus);
/// assert!(page.contains(r#"tenure_http_refused_total{reason="rate"} 1"#), "{page}");
/// # Ok(()) }) }
/// ```
#[derive(Default)]
pub struct Page(BTreeMap<&'static str, BTreeMap<Vec<String>, Value>>);

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

impl Page {
    /// Adds what clients have counted. Clients of one engine are added up.
    ///
    /// `let page = Page::default().clients(&[tenure.counts()]);`
    #[must_use]
    pub fn clients(mut self, clients: &[Counts]) -> Page {
        self.add(names::INFO, &[env!("CARGO_PKG_VERSION")], 1.0);
        clients.iter().for_each(|counts| self.add_counts(counts));
        self
    }

    /// Adds what a server of requests has counted.
    ///
    /// `let page = Page::default().http(&counts);`
    #[must_use]
    pub fn http(mut self, counts: &HttpCounts) -> Page {
        counts.show(&mut self);
        self
    }

    /// Adds what a survey has counted, and what the doctor has found. `age`: how long ago the survey ended.
    ///
    /// `let page = Page::default().store(&surveyor.count(&survey, &[]), &findings, age);`
    #[must_use]
    pub fn store(mut self, counts: &StoreCounts, findings: &[Finding], age: Duration) -> Page {
        self.add_store(counts, findings, age);
        self
    }

    /// Adds a number, to that of another client with the same labels if there is one.
    pub(crate) fn add(&mut self, metric: Metric, labels: &[&str], number: f64) {
        debug_assert_eq!(metric.labels.len(), labels.len(), "{}", metric.name);
        let key = labels.iter().map(|&label| label.to_owned()).collect();
        // Not a number: nothing was added yet. Zero would be wrong for the least of several.
        let value = self.0.entry(metric.name).or_default().entry(key).or_insert(Value::Number(f64::NAN));
        if let Value::Number(sum) = value {
            *sum = match metric.fold {
                _ if sum.is_nan() => number,
                Fold::Sum => *sum + number,
                Fold::Most => sum.max(number),
                Fold::Least => sum.min(number),
            };
        }
    }

    fn add_histogram(&mut self, metric: Metric, labels: &[&str], histogram: &Histogram) {
        debug_assert_eq!(metric.labels.len(), labels.len(), "{}", metric.name);
        let key = labels.iter().map(|&label| label.to_owned()).collect();
        let empty = || Value::Histogram {
            cumulative: histogram.cumulative().map(|(bound, _)| (bound, 0)).collect(),
            count: 0,
            sum: 0.0,
        };
        let value = self.0.entry(metric.name).or_default().entry(key).or_insert_with(empty);
        if let Value::Histogram { cumulative, count, sum } = value {
            cumulative.iter_mut().zip(histogram.cumulative()).for_each(|(to, (_, more))| to.1 += more);
            *count += histogram.count();
            *sum += histogram.sum();
        }
    }

    /// Sets a histogram, in place of one with the same labels.
    pub(crate) fn set_histogram(
        &mut self,
        metric: Metric,
        labels: &[&str],
        cumulative: Vec<(f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        let key = labels.iter().map(|&label| label.to_owned()).collect();
        self.0.entry(metric.name).or_default().insert(key, Value::Histogram { cumulative, count, sum });
    }

    /// Adds an array that is counted by the words of a label, which comes last.
    fn add_words(
        &mut self,
        metric: Metric,
        labels: &[&str],
        words: impl Iterator<Item = &'static str>,
        counts: &[u64],
    ) {
        for (word, count) in words.zip(counts) {
            let labels: Vec<&str> = labels.iter().copied().chain([word]).collect();
            self.add(metric, &labels, *count as f64);
        }
    }

    fn add_counts(&mut self, counts: &Counts) {
        let engine = counts.engine;
        for counts in &counts.scopes {
            let labels = [engine, counts.scope.primitive.as_str(), &*counts.scope.label];
            // Most programs do neither, and have no series of it.
            if counts.detached + counts.attached > 0 {
                self.add(names::DETACHED, &labels, counts.detached as f64);
                self.add(names::ATTACHED, &labels, counts.attached as f64);
            }
            match counts.scope.primitive {
                Primitive::Queue => self.add_queue(engine, counts),
                _ => self.add_locks(engine, counts),
            }
        }
        self.add_words(
            names::RELEASES,
            &[engine],
            ReleaseEnd::ALL.iter().map(|end| end.as_str()),
            &counts.releases,
        );
        self.add_words(
            names::RENEWALS,
            &[engine],
            Renewal::ALL.iter().map(|end| end.as_str()),
            &counts.renewals,
        );
        self.add_histogram(names::SLACK, &[engine], &counts.slack);
        let words = LearnedBy::ALL.iter().map(|by| by.as_str());
        self.add_words(names::HAND_OVERS, &[engine], words, &counts.learned_by);
        for (verb, calls) in Verb::ALL.iter().zip(&counts.calls) {
            let labels = [engine, verb.as_str()];
            self.add_words(
                names::REQUESTS,
                &labels,
                CallEnd::ALL.iter().map(|end| end.as_str()),
                &calls.ended,
            );
            self.add_histogram(names::REQUEST_TIME, &labels, &calls.took);
            self.add_histogram(names::REQUEST_ITEMS, &labels, &calls.items);
        }
        for standing in &counts.elections {
            let labels = [engine, &*standing.election];
            self.add(names::LEADING, &labels, f64::from(u8::from(standing.is_leading)));
        }
        self.add(names::STORE_UP, &[engine], f64::from(u8::from(counts.is_store_up)));
        self.add_histogram(names::LATE, &[engine], &counts.late);
        for (metric, number) in [
            (names::STORE_FORGOT, counts.store_forgot),
            (names::TOKENS_AHEAD, counts.tokens_ahead),
            (names::SCOPES, counts.labels),
            (names::FOLDED, counts.folded),
            (names::EVENTS_DROPPED, counts.events_dropped),
        ] {
            self.add(metric, &[engine], number as f64);
        }
    }

    fn add_locks(&mut self, engine: &str, counts: &ScopeCounts) {
        let (kind, scope) = (counts.scope.primitive.as_str(), &*counts.scope.label);
        let labels = [engine, kind, scope];
        self.add_words(names::CLAIMS, &labels, ClaimEnd::ALL.iter().map(|end| end.as_str()), &counts.claims);
        self.add_words(names::LOST, &labels, Loss::ALL.iter().map(|loss| loss.as_str()), &counts.lost);
        self.add_histogram(names::WAIT, &labels, &counts.wait);
        self.add_histogram(names::HOLD, &labels, &counts.hold);
        self.add(names::WAITING, &labels, counts.waiting as f64);
        self.add(names::WAITING_OLDEST, &labels, counts.waiting_oldest.as_secs_f64());
        self.add(names::LEASES, &labels, counts.leases as f64);
        self.add(names::LEASES_OLDEST, &labels, counts.leases_oldest.as_secs_f64());
        self.add(names::PLACES_LOST, &[engine, scope], counts.places_lost as f64);
        if counts.scope.primitive == Primitive::SingleFlight {
            let words = FoundIn::ALL.iter().map(|source| source.as_str());
            self.add_words(names::FOUND, &[engine, scope], words, &counts.found);
            self.add_histogram(names::LOAD, &[engine, scope], &counts.load);
        }
    }

    fn add_queue(&mut self, engine: &str, counts: &ScopeCounts) {
        let labels = [engine, &*counts.scope.label];
        self.add_words(names::PUSHES, &labels, PushEnd::ALL.iter().map(|end| end.as_str()), &counts.pushes);
        let words = DeliveryEnd::ALL.iter().map(|end| end.as_str());
        self.add_words(names::DELIVERIES, &labels, words, &counts.deliveries);
        self.add(names::IN_FLIGHT, &labels, counts.leases as f64);
        self.add_histogram(names::DELAY, &labels, &counts.delay);
        self.add_histogram(names::WORK, &labels, &counts.hold);
    }

    /// Writes the page.
    ///
    /// `let text = page.text(Format::Prometheus);`
    pub fn text(&self, format: Format) -> String {
        let mut text = String::new();
        for metric in METRICS {
            if let Some(values) = self.0.get(metric.name) {
                write_metric(metric, values, format, &mut text);
            }
        }
        if format == Format::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

fn write_metric(metric: &Metric, values: &BTreeMap<Vec<String>, Value>, format: Format, text: &mut String) {
    // OpenMetrics names the counter without its suffix.
    let family = match (format, metric.of) {
        (Format::OpenMetrics, MetricType::Counter) => {
            metric.name.strip_suffix("_total").unwrap_or(metric.name)
        }
        _ => metric.name,
    };
    let name = metric.name;
    // Writing into a text does not fail.
    let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").unwrap_or_default();
    line(format_args!("# HELP {family} {}", metric.help));
    line(format_args!("# TYPE {family} {}", metric.of.as_str()));
    for (labels, value) in values {
        let pairs = metric.labels.iter().zip(labels);
        let pairs: Vec<String> =
            pairs.map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let pairs = pairs.join(",");
        match value {
            Value::Number(number) => line(format_args!("{name}{{{pairs}}} {number}")),
            Value::Histogram { cumulative, count, sum } => {
                for (bound, count) in cumulative {
                    // OpenMetrics wants a bound to be a float.
                    let bound = match format {
                        Format::OpenMetrics => format!("{bound:?}"),
                        Format::Prometheus => bound.to_string(),
                    };
                    line(format_args!("{name}_bucket{{{pairs},le=\"{bound}\"}} {count}"));
                }
                line(format_args!("{name}_bucket{{{pairs},le=\"+Inf\"}} {count}"));
                line(format_args!("{name}_sum{{{pairs}}} {sum}"));
                line(format_args!("{name}_count{{{pairs}}} {count}"));
            }
        }
    }
}

/// Escapes a label's value. A name may hold anything but control characters.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
