//! Traces: with the feature `otlp` the library's spans go to a collector, and CMD finds its place among them in `TRACEPARENT`.
//! Without it CMD has what this process was given, or what travelled with its item.

#[cfg(feature = "otlp")]
mod otlp;

/// The targets of the spans of the library, and of requests to a server.
pub(crate) const SPANS: [&str; 2] = ["tenure_core::trace", "tenure_serve::trace"];

#[cfg(feature = "otlp")]
pub(crate) use otlp::{begin, end, here, layer, link, put_below, variables};

#[cfg(not(feature = "otlp"))]
mod none {
    use tenure::Lease;
    use tracing::Span;
    use tracing_subscriber::layer::Identity;

    pub(crate) fn layer() -> Option<Identity> {
        None
    }

    pub(crate) fn begin() {}

    pub(crate) fn variables(_: &Lease) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    pub(crate) fn here() -> Option<String> {
        None
    }

    pub(crate) fn link(_: &Lease, _: &str) {}

    pub(crate) fn put_below(_: &Span, _: &str, _: &str) {}

    pub(crate) fn end() {}
}

#[cfg(not(feature = "otlp"))]
pub(crate) use none::{begin, end, here, layer, link, put_below, variables};

/// What travels with an item that is pushed, called in the span of its push: that span, or where there is none that of the caller.
pub(crate) fn of_push() -> Option<String> {
    here().or_else(|| std::env::var("TRACEPARENT").ok().filter(|parent| is_traceparent(parent)))
}

/// The variables of CMD by what travelled with its item. A producer's span is its parent, unless the work has a span.
pub(crate) fn of_item(context: Option<&str>) -> Vec<(&'static str, String)> {
    let mut variables = vec![("TENURE_CONTEXT", context.unwrap_or_default().to_owned())];
    if let Some(context) = context.filter(|context| is_traceparent(context)) {
        // The state that this process was given is of another trace.
        variables.extend([("TRACEPARENT", context.to_owned()), ("TRACESTATE", String::new())]);
    }
    variables
}

/// Whether a text names a span as the W3C has it: a version, the trace, the span and flags, in hexadecimal digits.
fn is_traceparent(text: &str) -> bool {
    let mut parts = text.split('-');
    let mut next = |length: usize| {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        parts.next().filter(|part| part.len() == length && part.bytes().all(is_hex))
    };
    let is_some = |digits: &str| digits.bytes().any(|digit| digit != b'0');
    let Some(version) = next(2).filter(|version| *version != "ff") else { return false };
    let are_known = next(32).is_some_and(is_some) && next(16).is_some_and(is_some) && next(2).is_some();
    // Later versions may say more.
    are_known && (version != "00" || parts.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_told_from_other_texts() {
        const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067ab0cd902e7-01";
        assert!(is_traceparent(GOOD));
        assert!(is_traceparent(&format!("01{}-more", &GOOD[2..])), "of a later version");
        let none = "0".repeat(32);
        for bad in [
            "",
            "request 7",
            &GOOD[..54],
            &format!("{GOOD}-more"),
            &format!("ff{}", &GOOD[2..]),
            &GOOD.to_uppercase(),
            &format!("00-{none}-00f067ab0cd902e7-01"),
            &format!("{}0000000000000000-01", &GOOD[..36]),
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }
}
