//! The example of traces: the request, its claim, its hold, its work and its push are one trace, to which the work on the item is linked.

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
fn a_request_is_one_trace_and_the_work_on_what_it_pushed_is_linked_to_it() {
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
    let (push, take, work) = (of("push receipts"), of("take receipts"), of("work receipts"));
    assert_eq!(push.parent_span_id, request);
    assert_ne!(work.span_context.trace_id(), push.span_context.trace_id(), "another program's");
    let links: Vec<_> = work.links.iter().map(|link| link.span_context.span_id()).collect();
    assert_eq!(links, [take, push].map(|span| span.span_context.span_id()));
    assert_eq!(of("settle receipts").parent_span_id, work.span_context.span_id());
    assert_eq!(spans.len(), 8, "{spans:#?}");
}
