//! What a server of requests has counted: by patterns of routes, never by paths, since names must not become labels.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::names;
use crate::render::Page;

/// The bounds of times, in seconds: those of calls of the store, which most requests wait for.
const BOUNDS: [f64; 12] = [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5];

/// What a server has counted.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tenure_metrics::{Format, HttpCounts, Page};
///
/// let mut http = HttpCounts::default();
/// http.answered("/v1/claims/{claim}", "PUT", 200, Duration::from_millis(3));
/// let statuses = http.statuses();
/// assert_eq!(statuses[&200], 1);
/// let page = Page::default().http(&http).text(Format::Prometheus);
/// let answered = r#"tenure_http_requests_total{route="/v1/claims/{claim}",method="PUT",status="200"} 1"#;
/// assert!(page.contains(answered), "{page}");
/// ```
#[derive(Clone, Debug)]
pub struct HttpCounts {
    requests: BTreeMap<(&'static str, &'static str, u16), u64>,
    times: BTreeMap<&'static str, Times>,
    refused: BTreeMap<&'static str, u64>,
    reloads: BTreeMap<&'static str, u64>,
    open: BTreeMap<&'static str, usize>,
}

#[derive(Clone, Debug, Default)]
struct Times {
    /// How many were no more than each bound, and not than the one before.
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum: Duration,
}

impl Default for HttpCounts {
    /// What is known beforehand begins at zero, so that the first one is an increase.
    fn default() -> HttpCounts {
        HttpCounts {
            requests: BTreeMap::new(),
            times: BTreeMap::new(),
            refused: HttpCounts::REFUSALS.into_iter().map(|reason| (reason, 0)).collect(),
            reloads: ["done", "failed"].into_iter().map(|outcome| (outcome, 0)).collect(),
            open: ["connection", "waiting", "stream"].into_iter().map(|what| (what, 0)).collect(),
        }
    }
}

impl HttpCounts {
    /// Why something is refused.
    pub const REFUSALS: [&'static str; 7] =
        ["unauthorized", "forbidden", "rate", "overload", "too_large", "slow", "origin"];

    /// Counts an answer.
    ///
    /// `counts.answered("/v1/claims/{claim}", "PUT", 200, Duration::from_millis(3));`
    pub fn answered(&mut self, route: &'static str, method: &'static str, status: u16, took: Duration) {
        *self.requests.entry((route, method, status)).or_default() += 1;
        let times = self.times.entry(route).or_default();
        if let Some(bucket) = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound) {
            times.counts[bucket] += 1;
        }
        times.count += 1;
        times.sum += took;
    }

    /// Returns how many answers had each status, whichever their route was.
    ///
    /// `let statuses = http.statuses();`
    pub fn statuses(&self) -> BTreeMap<u16, u64> {
        let mut statuses = BTreeMap::new();
        for ((_, _, status), count) in &self.requests {
            *statuses.entry(*status).or_default() += count;
        }
        statuses
    }

    /// Counts a refusal, by its reason.
    ///
    /// `counts.refused("rate");`
    pub fn refused(&mut self, reason: &'static str) {
        *self.refused.entry(reason).or_default() += 1;
    }

    /// Counts a look at a file of tokens that has changed.
    ///
    /// `counts.reloaded("done");`
    pub fn reloaded(&mut self, outcome: &'static str) {
        *self.reloads.entry(outcome).or_default() += 1;
    }

    /// Says how many of something are open now.
    ///
    /// `counts.open("stream", 3);`
    pub fn open(&mut self, what: &'static str, count: usize) {
        self.open.insert(what, count);
    }

    pub(crate) fn show(&self, page: &mut Page) {
        for ((route, method, status), count) in &self.requests {
            page.add(names::HTTP_REQUESTS, &[route, method, &status.to_string()], *count as f64);
        }
        for (route, times) in &self.times {
            let mut sum = 0;
            let cumulative = BOUNDS.iter().zip(times.counts).map(|(bound, count)| {
                sum += count;
                (*bound, sum)
            });
            let cumulative = cumulative.collect();
            page.set_histogram(names::HTTP_TIME, &[route], cumulative, times.count, times.sum.as_secs_f64());
        }
        for (metric, counts) in [(names::HTTP_REFUSED, &self.refused), (names::HTTP_RELOADS, &self.reloads)] {
            counts.iter().for_each(|(word, count)| page.add(metric, &[word], *count as f64));
        }
        self.open.iter().for_each(|(what, count)| page.add(names::HTTP_OPEN, &[what], *count as f64));
    }
}
