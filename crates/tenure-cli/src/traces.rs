//! Traces: with the feature `otlp` the library's spans go to a collector, and CMD finds its place among them in `TRACEPARENT`.
//! Without it CMD has what this process was given.

#[cfg(feature = "otlp")]
mod otlp;

/// The target of the library's spans.
pub(crate) const SPANS: &str = "tenure_core::trace";

#[cfg(feature = "otlp")]
pub(crate) use otlp::{begin, end, layer, variables};

#[cfg(not(feature = "otlp"))]
mod none {
    use tenure::Lease;
    use tracing_subscriber::layer::Identity;

    pub(crate) fn layer() -> Option<Identity> {
        None
    }

    pub(crate) fn begin() {}

    pub(crate) fn variables(_: &Lease) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    pub(crate) fn end() {}
}

#[cfg(not(feature = "otlp"))]
pub(crate) use none::{begin, end, layer, variables};
