//! The span of a request, for whoever follows one through many programs: below the span that its client names in `traceparent`, and above what
//! the library does for it. Where nobody listens it costs one comparison.

use hyper::{HeaderMap, Method, StatusCode};
use tracing::Span;
use tracing::field::Empty;

use crate::answer::Noted;
use crate::counting::word;

/// The target of these spans: `tenure_serve::trace=debug` has a filter let them pass.
const TARGET: &str = "tenure_serve::trace";

/// Puts a span below one of another program: the span, and what its client sent in `traceparent` and `tracestate`, which may be anything.
pub type Below = fn(&Span, &str, &str);

/// Begins the span of a request. `route` is its pattern: no name of a span holds what is somebody's.
pub(crate) fn begin(
    method: &Method,
    route: &'static str,
    id: &str,
    headers: &HeaderMap,
    below: Option<Below>,
) -> Span {
    let method = word(method);
    let span = tracing::debug_span!(
        target: TARGET, parent: None, "tenure request", otel.name = format!("{method} {route}"),
        otel.kind = "server", otel.status_code = Empty, http.request.method = method, http.route = route,
        http.response.status_code = Empty, tenure.request_id = id, tenure.resource = Empty,
        tenure.waited_ms = Empty
    );
    let sent = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if let (Some(below), Some(parent), false) = (below, sent("traceparent"), span.is_disabled()) {
        below(&span, parent, sent("tracestate").unwrap_or_default());
    }
    span
}

/// Notes how it was answered.
pub(crate) fn end(span: &Span, status: StatusCode, noted: Option<&Noted>) {
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    if let Some(Noted { resource: Some(resource), waited_ms }) = noted {
        span.record("tenure.resource", resource);
        span.record("tenure.waited_ms", waited_ms);
    }
}
