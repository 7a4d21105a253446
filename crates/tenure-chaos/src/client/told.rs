//! What the library tells its user's log, in the history.

use std::fmt;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Metadata, Subscriber};

use crate::history::{Journal, now};

/// What is said of each lease, whatever happens.
const DAILY: [&str; 2] = ["granted", "released"];

/// Writes down what the library tells from now on.
pub(super) fn listen(journal: &Arc<Journal>) {
    set_global_default(Listener(journal.clone())).expect("nobody else listens");
}

struct Listener(Arc<Journal>);

/// An event's parts that are of interest.
#[derive(Default)]
struct Parts {
    message: String,
    resource: String,
    why: String,
}

impl Visit for Parts {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let part = match field.name() {
            "message" => &mut self.message,
            "resource" => &mut self.resource,
            "why" => &mut self.why,
            _ => return,
        };
        *part = format!("{value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

impl Subscriber for Listener {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match self.enabled(metadata) {
            true => Interest::always(),
            false => Interest::never(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("tenure")
    }

    fn event(&self, event: &Event<'_>) {
        let mut parts = Parts::default();
        event.record(&mut parts);
        let Parts { message, resource, why } = parts;
        if DAILY.contains(&message.as_str()) {
            return;
        }
        let what = if why.is_empty() { message } else { format!("{message}: {why}") };
        self.0.write(&["told", &what, &resource, &now().to_string()]);
    }

    // Spans say nothing that events do not.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
