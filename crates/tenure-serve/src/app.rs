//! What all requests share.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::engine::Finding;
use tenure_core::survey::Surveyor;
use tenure_core::{Label, Result, Tenure};
use tenure_metrics::Format;

use crate::access::{Access, Caller};
use crate::audit::Audit;
use crate::counting::Counting;
use crate::drain::Drain;
use crate::events::Events;
use crate::health::Health;
use crate::limits::{CALL_MAX, DOCTOR_EVERY};
use crate::open_claims::OpenClaims;
use crate::page::Pages;
use crate::places::Places;
use crate::problem::{Problem, UNAVAILABLE};
use crate::waiting::Waiting;

pub(crate) struct App {
    pub(crate) tenure: Tenure,
    /// For lists: many readers cost the store as much as one.
    pub(crate) surveyor: Arc<Surveyor>,
    /// For streams: many readers cost the store as much as one.
    pub(crate) events: Events,
    /// For Prometheus.
    pub(crate) pages: Arc<Pages>,
    pub(crate) counting: Arc<Counting>,
    pub(crate) access: Arc<Access>,
    pub(crate) drain: Drain,
    pub(crate) health: Health,
    pub(crate) open_claims: Arc<OpenClaims>,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) streams: Arc<Waiting>,
    pub(crate) places: Places,
    pub(crate) audit: Audit,
    pub(crate) began: Instant,
    pub(crate) findings: tokio::sync::Mutex<Option<(Instant, Arc<[Finding]>)>>,
}

impl App {
    /// The label of what somebody holds: the program is the verified name of the token.
    pub(crate) fn label(&self, caller: &Caller, text: &str) -> Label {
        let own = self.tenure.label();
        Label::new(own.host(), own.pid(), caller.name().unwrap_or(own.program()), text)
    }

    /// The page of metrics.
    pub(crate) async fn page(&self, format: Format) -> String {
        let http = self.counting.look(self.waiting.used().0, self.streams.used().0);
        self.pages.page(&http, format).await
    }

    /// Looks whether the store can be trusted, unless somebody has of late. All who ask meanwhile have the same findings.
    pub(crate) async fn findings(&self) -> std::result::Result<Arc<[Finding]>, Problem> {
        let mut last = self.findings.lock().await;
        let now = SystemClock.now();
        if let Some((_, findings)) = last.as_ref().filter(|(at, _)| now.since(*at) < DOCTOR_EVERY) {
            return Ok(findings.clone());
        }
        let findings: Arc<[Finding]> = self.call(self.tenure.check()).await?.into();
        *last = Some((now, findings.clone()));
        Ok(findings)
    }

    /// Asks the store something that waits for nobody, for no longer than a call may take.
    pub(crate) async fn call<T>(
        &self,
        asked: impl Future<Output = Result<T>>,
    ) -> std::result::Result<T, Problem> {
        match tokio::time::timeout(CALL_MAX, asked).await {
            Ok(answer) => self.health.heard(answer).map_err(Problem::from),
            Err(_) => Err(too_long(CALL_MAX)),
        }
    }
}

pub(crate) fn too_long(patience: Duration) -> Problem {
    Problem::new(UNAVAILABLE, format!("the store has not answered within {patience:?}"))
        .with_hint("repeat the same request, with the same id")
}
