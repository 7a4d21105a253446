//! The page that Prometheus reads: what this process counts, its requests, and what a survey sees of the store.
//!
//! A reader does not wait for a store that is slow or away: it is shown the last survey with its age. A survey goes on when
//! its reader has gone, since the next one needs it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::Tenure;
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::engine::Finding;
use tenure_core::survey::{Survey, Surveyor};
use tenure_metrics::{Format, HttpCounts, Page};
use tokio::runtime::Handle;

/// How long a reader waits for a survey. Prometheus waits for 10 s.
const READER_MAX: Duration = Duration::from_secs(2);
/// How often the doctor looks.
const CHECK_EVERY: Duration = Duration::from_secs(300);

pub(crate) struct Pages {
    tenure: Tenure,
    surveyor: Arc<Surveyor>,
    pub(crate) runtime: Handle,
    /// What does not count as oldest.
    long_held: Vec<String>,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    /// None: the store does not answer.
    survey: Option<Arc<Survey>>,
    findings: Option<(Instant, Arc<[Finding]>)>,
}

impl Pages {
    pub(crate) fn new(tenure: &Tenure, surveyor: Arc<Surveyor>, long_held: Vec<String>) -> Pages {
        Pages {
            tenure: tenure.clone(),
            surveyor,
            runtime: Handle::current(),
            long_held,
            last: Mutex::default(),
        }
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Last> {
        // A panic elsewhere cannot leave it half-changed.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn page(self: &Arc<Pages>, http: &HttpCounts, format: Format) -> String {
        let looking = self.runtime.spawn(self.clone().look());
        tokio::time::timeout(READER_MAX, looking).await.ok();
        let page = Page::default().clients(&[self.tenure.counts()]).http(http);
        let (survey, findings) = {
            let last = self.last();
            (last.survey.clone(), last.findings.clone())
        };
        let Some(survey) = survey else { return page.text(format) };
        let findings = findings.map(|(_, findings)| findings).unwrap_or_default();
        let counts = self.surveyor.count(&survey, &self.long_held);
        page.store(&counts, &findings, SystemClock.now().since(survey.at)).text(format)
    }

    async fn look(self: Arc<Pages>) {
        let survey = self.surveyor.latest().await.ok();
        let has_store = survey.is_some();
        self.last().survey = survey;
        let now = SystemClock.now();
        let is_old = {
            let last = self.last();
            last.findings.as_ref().is_none_or(|(at, _)| now.since(*at) >= CHECK_EVERY)
        };
        if has_store
            && is_old
            && let Ok(findings) = self.tenure.check().await
        {
            self.last().findings = Some((now, findings.into()));
        }
    }
}
