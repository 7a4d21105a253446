//! What a survey has seen of a store, as a page.

use std::time::Duration;

use tenure_core::engine::{Finding, Severity};
use tenure_core::survey::StoreCounts;

use crate::names;
use crate::render::{Format, Page};

/// Writes what a survey has counted that was over so long ago, and what the doctor has found.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// use std::time::Duration;
/// use tenure_core::survey::Surveyor;
/// use tenure_metrics::{Format, render_store};
///
/// # let tenure = tenure_core::memory::connect("store-example").await?;
/// # let _held = tenure.mutex("billing/4711").acquire().await?;
/// let surveyor = Surveyor::new(&tenure);
/// let survey = surveyor.latest().await?;
/// let findings = tenure.check().await?;
/// let page = render_store(&surveyor.count(&survey, &[]), &findings, Duration::ZERO, Format::Prometheus);
/// assert!(page.contains(r#"tenure_store_holds{engine="memory",kind="mutex",scope="billing/*"} 1"#), "{page}");
/// # Ok(()) }) }
/// ```
pub fn render_store(counts: &StoreCounts, findings: &[Finding], age: Duration, format: Format) -> String {
    Page::default().store(counts, findings, age).text(format)
}

impl Page {
    pub(crate) fn add_store(&mut self, counts: &StoreCounts, findings: &[Finding], age: Duration) {
        let engine = counts.engine;
        for scope in &counts.scopes {
            let labels = [engine, scope.primitive.as_str(), &*scope.label];
            self.add(names::STORE_HOLDS, &labels, scope.holds as f64);
            self.add(names::STORE_RESTING, &labels, scope.resting as f64);
            self.add(names::STORE_WAITING, &labels, scope.waiting as f64);
            self.add(names::STORE_OLDEST_HOLD, &labels, scope.oldest_hold.as_secs_f64());
        }
        for queue in &counts.queues {
            for (state, items, oldest) in [
                ("waiting", queue.waiting, queue.oldest_waiting),
                ("in_flight", queue.in_flight, queue.oldest_in_flight),
                ("dead", queue.dead, queue.oldest_dead),
            ] {
                let labels = [engine, &*queue.label, state];
                self.add(names::STORE_QUEUE_ITEMS, &labels, items as f64);
                if let Some(oldest) = oldest {
                    self.add(names::STORE_QUEUE_OLDEST, &labels, oldest.as_secs_f64());
                }
            }
        }
        for finding in findings {
            let severity = match finding.severity {
                Severity::Good => "good",
                Severity::Warning => "warning",
                Severity::Bad => "bad",
            };
            self.add(names::STORE_FINDINGS, &[engine, severity, finding.what], 1.0);
        }
        self.add(names::STORE_NAMES, &[engine], counts.names as f64);
        self.add(names::SURVEY_TIME, &[engine], counts.took.as_secs_f64());
        self.add(names::SURVEY_AGE, &[engine], age.as_secs_f64());
    }
}
