//! The example of traces: the request, its claim, its hold and its work are one trace.

#[path = "../../examples/traces.rs"]
mod example;

use std::sync::{Arc, Mutex};

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Kept {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().expect("no panic").extend(batch);
        Ok(())
    }
}

#[test]
fn a_request_its_claim_its_hold_and_its_work_are_one_trace() {
    let kept = Kept::default();
    example::served(kept.clone()).expect("served");
    let spans = kept.0.lock().expect("no panic");
    let of = |name: &str| {
        spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}: {spans:#?}"))
    };
    let request = of("POST /orders").span_context.span_id();
    assert_eq!(of("tenure acquire").parent_span_id, request);
    assert_eq!(of("tenure hold").parent_span_id, request);
    assert_eq!(of("charge").parent_span_id, of("tenure hold").span_context.span_id());
    assert_eq!(spans.len(), 4, "{spans:#?}");
}
