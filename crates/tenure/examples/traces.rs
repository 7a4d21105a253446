//! A request in a trace: how long it waited for its lock, what it did while it held it, and who worked on what it left in line.
//! `cargo run --example traces`

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanExporter};
use tenure::Tenure;
use tracing::{Instrument, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;

/// Sends the program's spans, and those of tenure.
fn subscriber(provider: &SdkTracerProvider) -> impl Subscriber + Send + Sync {
    let wanted =
        Targets::new().with_default(LevelFilter::INFO).with_target("tenure_core::trace", LevelFilter::DEBUG);
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    tracing_subscriber::registry().with(spans.with_filter(wanted))
}

/// What a service does for one request.
async fn pay(tenure: &Tenure, order: u32) -> tenure::Result<()> {
    let billing = tenure.mutex(&format!("billing/{order}"));
    // In the span of the hold.
    billing
        .run(async |lease| tracing::info_span!("charge", token = lease.token().get()).in_scope(|| ()))
        .await
}

/// What it leaves for later. The item takes the span of its push with it.
async fn enqueue(tenure: &Tenure) -> tenure::Result<()> {
    let jobs = tenure.queue("receipts");
    let push = jobs.push("order 4711").context_with(|| {
        let mut carried = HashMap::new();
        TraceContextPropagator::new().inject_context(&Span::current().context(), &mut carried);
        carried.remove("traceparent")
    });
    push.await?;
    Ok(())
}

/// What another program does later, in a trace of its own that is linked to the push.
async fn work(tenure: &Tenure) -> tenure::Result<()> {
    let delivery = tenure.queue("receipts").next().await?;
    if let Some(traceparent) = delivery.context() {
        let carried = HashMap::from([("traceparent".to_owned(), traceparent.to_owned())]);
        let push = TraceContextPropagator::new().extract(&carried);
        delivery.lease().span().add_link(push.span().span_context().clone());
    }
    delivery.ack().await
}

/// Serves one request, with its spans to this exporter.
pub(crate) fn served(exporter: impl SpanExporter + 'static) -> Result<(), Box<dyn std::error::Error>> {
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    // Of the whole process: a hold ends on another thread.
    tracing::subscriber::set_global_default(subscriber(&provider))?;
    pollster::block_on(requests())?;
    Ok(provider.shutdown()?)
}

async fn requests() -> tenure::Result<()> {
    let tenure = tenure::connect("memory:").await?;
    let request = async {
        pay(&tenure, 4711).await?;
        enqueue(&tenure).await
    };
    request.instrument(tracing::info_span!("POST /orders")).await?;
    work(&tenure).await?;
    tenure.close().await;
    Ok(())
}

#[allow(dead_code, reason = "a test runs what it does")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    // In a service: `opentelemetry_otlp::SpanExporter::builder().with_http().build()?`, and `with_batch_exporter`.
    served(opentelemetry_stdout::SpanExporter::default())
}
