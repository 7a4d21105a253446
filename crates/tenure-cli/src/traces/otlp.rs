//! Spans for a collector of OpenTelemetry.
//!
//! On if `OTEL_EXPORTER_OTLP_ENDPOINT` is set, as in any program with OpenTelemetry. The SDK collects spans on a thread of its own and
//! drops what a slow collector does not take: nobody who renews a lease waits for it. Its crates break with each release, so they
//! are behind the feature `otlp` of the command, and nowhere in the library.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::CommandFactory;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tenure::Lease;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use super::SPANS;
use crate::arguments::Arguments;
use crate::output::messages::Messages;
use collector::Collector;

mod collector;

/// The target of the command's own span.
const COMMAND: &str = "tenure::command";
/// The variables by which programs tell those that they start of their span, as OpenTelemetry has it.
const CARRIERS: [(&str, &str); 2] = [("traceparent", "TRACEPARENT"), ("tracestate", "TRACESTATE")];
/// How long the end of the command waits for a collector.
const SHUT_DOWN_MAX: Duration = Duration::from_secs(1);

/// What is ended with the command.
struct Traces {
    provider: SdkTracerProvider,
    collector: Collector,
    /// The span of the command, which all of the library's are below.
    command: Span,
}

static TRACES: Mutex<Option<Traces>> = Mutex::new(None);

fn traces() -> MutexGuard<'static, Option<Traces>> {
    // A panic elsewhere cannot leave it half-changed.
    TRACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a collector is named.
fn is_wanted() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_off = std::env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    !is_off && (is_set("OTEL_EXPORTER_OTLP_ENDPOINT") || is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
}

fn provider(collector: Collector) -> Result<SdkTracerProvider, String> {
    let exporter = SpanExporter::builder().with_http().with_http_client(collector);
    // What it says of a URL may have a password in it.
    let exporter =
        exporter.build().map_err(|_| "a variable OTEL_EXPORTER_OTLP_.. is not understood".to_owned())?;
    let resource = match std::env::var_os("OTEL_SERVICE_NAME") {
        Some(name) if !name.is_empty() => Resource::builder(),
        _ => Resource::builder().with_service_name("tenure"),
    };
    Ok(SdkTracerProvider::builder().with_resource(resource.build()).with_batch_exporter(exporter).build())
}

/// Makes the layer that sends spans to the collector, if one is named. For a process that forks no more.
pub(crate) fn layer<S>() -> Option<impl Layer<S>>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span>,
{
    let mut traces = traces();
    if !is_wanted() || traces.is_some() {
        return None;
    }
    let collector = Collector::new().map_err(|error| error.to_string());
    let begun = collector.and_then(|collector| Ok((provider(collector.clone())?, collector)));
    let (provider, collector) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            Messages::TEXT.warning(&format!("no spans are sent: {error}"));
            return None;
        }
    };
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("tenure"));
    *traces = Some(Traces { provider, collector, command: Span::none() });
    let spans = SPANS.map(|target| (target, LevelFilter::DEBUG));
    Some(layer.with_filter(Targets::new().with_targets(spans).with_target(COMMAND, LevelFilter::INFO)))
}

/// Returns what the span of the command is called: `tenure run`.
fn name() -> String {
    let known = Arguments::command();
    let command = std::env::args().skip(1).find(|argument| known.find_subcommand(argument).is_some());
    format!("tenure {}", command.unwrap_or_default()).trim_end().to_owned()
}

/// Begins the span of the command, below the one in `TRACEPARENT`: what this thread asks the library for is shown below it.
pub(crate) fn begin() {
    let mut traces = traces();
    let Some(traces) = traces.as_mut().filter(|traces| traces.command.is_none()) else { return };
    let span =
        tracing::info_span!(target: COMMAND, "tenure command", otel.name = name(), otel.kind = "internal");
    let carried =
        |(carrier, variable): (&str, &str)| Some((carrier.to_owned(), std::env::var(variable).ok()?));
    let carried: HashMap<String, String> = CARRIERS.into_iter().filter_map(carried).collect();
    // It fails without a layer, which there is.
    drop(span.set_parent(TraceContextPropagator::new().extract(&carried)));
    // For as long as the command lasts, and so without a guard.
    span.with_subscriber(|(id, dispatch)| dispatch.enter(id));
    traces.command = span;
}

/// Returns what tells others of a span.
fn carried_by(span: &Span) -> HashMap<String, String> {
    let mut carried = HashMap::new();
    TraceContextPropagator::new().inject_context(&span.context(), &mut carried);
    carried
}

/// Returns what tells others of the span that this is called in, if there is a collector.
pub(crate) fn here() -> Option<String> {
    traces().as_ref()?;
    carried_by(&Span::current()).remove("traceparent")
}

/// Links the work on an item to the push that its context names.
pub(crate) fn link(lease: &Lease, context: &str) {
    let carried = HashMap::from([("traceparent".to_owned(), context.to_owned())]);
    let context = TraceContextPropagator::new().extract(&carried);
    let push = context.span().span_context().clone();
    if push.is_valid() {
        lease.span().add_link(push);
    }
}

/// Puts a span below the one that another program names, if that is one.
pub(crate) fn put_below(span: &Span, traceparent: &str, tracestate: &str) {
    let carried = HashMap::from([
        ("traceparent".to_owned(), traceparent.to_owned()),
        ("tracestate".to_owned(), tracestate.to_owned()),
    ]);
    let context = TraceContextPropagator::new().extract(&carried);
    if context.span().span_context().is_valid() {
        // It fails without a layer, which there is.
        drop(span.set_parent(context));
    }
}

/// Returns the variables by which CMD learns of the span in which it works. Without a collector it keeps those of this process.
pub(crate) fn variables(lease: &Lease) -> Vec<(&'static str, String)> {
    let span = lease.span();
    if span.is_disabled() || traces().is_none() {
        return Vec::new();
    }
    let mut carried = carried_by(&span);
    let variable = |(carrier, variable)| Some((variable, carried.remove(carrier)?));
    CARRIERS.into_iter().filter_map(variable).collect()
}

/// Sends what is left, for a second at most.
pub(crate) fn end() {
    let Some(Traces { provider, collector, command }) = traces().take() else { return };
    command.with_subscriber(|(id, dispatch)| dispatch.exit(id));
    drop(command);
    let ended = provider.shutdown_with_timeout(SHUT_DOWN_MAX).err().map(|error| error.to_string());
    let error = collector.last_error().or(ended);
    // To drop its runtime would wait for a resolver that hangs.
    std::mem::forget(collector);
    if let Some(error) = error {
        Messages::TEXT.warning(&format!("no spans are sent: {error}"));
    }
}
