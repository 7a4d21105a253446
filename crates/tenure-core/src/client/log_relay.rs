//! Keeps what is logged on the client's own thread from holding it up.
//!
//! Engines, and the libraries that they are made of, write lines to `tracing` where they stand: on `tenure-io`, which renews every
//! lease. A subscriber is the user's code, and may block or panic. So that thread has one of its own in its place, which copies a line
//! and has it written by `tenure-events` (`client/teller.rs`), where it reaches the subscriber of the program.
//!
//! Spans of libraries are disabled there: whoever follows one would be called at each step of it.

use std::cell::RefCell;
use std::fmt::Debug;

use tracing::dispatcher::{DefaultGuard, Dispatch, get_default, has_been_set, set_default};
use tracing::field::{Field, Value, Visit, display};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, span};

/// The most fields of a line: the last ones of a longer one are lost. For years `tracing` took no more.
const FIELDS_MAX: usize = 32;

/// Returns a subscriber that hands each line on. It makes the program's own one look again at every place that logs, so this is called on a
/// thread that may be held up.
pub(crate) fn relay(hand_on: impl Fn(LogLine) + Send + Sync + 'static) -> Dispatch {
    Dispatch::new(Relay(hand_on))
}

thread_local! {
    /// What takes the place of the program's subscriber on this thread, and since when it does.
    static RELAY: RefCell<Option<(Dispatch, Option<DefaultGuard>)>> = const { RefCell::new(None) };
}

/// Has the lines of this thread go through a relay, once [`follow`] finds that the program has a subscriber.
pub(crate) fn begin(relay: Dispatch) {
    RELAY.set(Some((relay, None)));
    follow();
}

/// Puts the relay of this thread, if it has one, into its place as soon as the program has a subscriber. Not before: where it has none, `tracing`
/// may write to the `log` of another library, and any subscriber at all would end that in the whole program.
pub(crate) fn follow() {
    RELAY.with_borrow_mut(|relay| {
        if let Some((relay, placed @ None)) = relay
            && has_been_set()
        {
            *placed = Some(set_default(relay));
        }
    });
}

struct Relay<F>(F);

impl<F: Fn(LogLine) + Send + Sync + 'static> Subscriber for Relay<F> {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // It wants what others want, and no more: what they never want is passed over everywhere at no cost.
        Interest::never()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::OFF)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // A filter is the user's code, too, and is asked when the line is written.
        metadata.is_event() && *metadata.level() <= LevelFilter::current()
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine { metadata: event.metadata(), fields: Vec::new() };
        event.record(&mut line);
        (self.0)(line);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A line of a log that owns what it says.
pub(crate) struct LogLine {
    metadata: &'static Metadata<'static>,
    fields: Vec<(Field, Box<dyn Value + Send>)>,
}

impl LogLine {
    /// Writes it to the subscriber of this thread, if its filter lets it pass.
    pub(crate) fn write(&self) {
        let Some((any, _)) = self.fields.first() else { return };
        let values: [(&Field, Option<&dyn Value>); FIELDS_MAX] =
            std::array::from_fn(|index| match self.fields.get(index) {
                Some((field, value)) => (field, Some(value as &dyn Value)),
                None => (any, None),
            });
        let values = self.metadata.fields().value_set(&values);
        // As the macros of `tracing` do. A filter of one layer remembers what it has answered, and would let everything pass unasked.
        get_default(|subscriber| {
            if subscriber.enabled(self.metadata) {
                subscriber.event(&Event::new(self.metadata, &values));
            }
        });
    }

    fn keep(&mut self, field: &Field, value: impl Value + Send + 'static) {
        self.fields.push((field.clone(), Box::new(value)));
    }
}

impl Visit for LogLine {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.keep(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.keep(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(field, value);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.keep(field, value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.keep(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.keep(field, display(format!("{value:?}")));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A log that keeps what it is told, each value with the type that it came in.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Log {
        fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
            Interest::sometimes()
        }

        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() != "unwanted"
        }

        fn event(&self, event: &Event<'_>) {
            struct Told(String);
            impl Visit for Told {
                fn record_f64(&mut self, field: &Field, value: f64) {
                    self.0 += &format!(" {field}={value}f64");
                }
                fn record_i64(&mut self, field: &Field, value: i64) {
                    self.0 += &format!(" {field}={value}i64");
                }
                fn record_u64(&mut self, field: &Field, value: u64) {
                    self.0 += &format!(" {field}={value}u64");
                }
                fn record_i128(&mut self, field: &Field, value: i128) {
                    self.0 += &format!(" {field}={value}i128");
                }
                fn record_u128(&mut self, field: &Field, value: u128) {
                    self.0 += &format!(" {field}={value}u128");
                }
                fn record_bool(&mut self, field: &Field, value: bool) {
                    self.0 += &format!(" {field}={value}bool");
                }
                fn record_str(&mut self, field: &Field, value: &str) {
                    self.0 += &format!(" {field}={value}str");
                }
                fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                    self.0 += &format!(" {field}={value:?}");
                }
            }
            let metadata = event.metadata();
            let mut told = Told(format!("{} {}", metadata.level(), metadata.target()));
            event.record(&mut told);
            self.0.lock().expect("no panic").push(told.0);
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            self.0.lock().expect("no panic").push("a span".to_owned());
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn a_line_arrives_as_it_was_written_and_a_span_does_not() {
        let log = Log::default();
        let log_all = || {
            let why = std::io::Error::other("why");
            let error: &(dyn std::error::Error + 'static) = &why;
            tracing::info!(n = -1, m = 2_u64, x = 0.5, is = true, word = "a word", "what {}", "happened");
            tracing::warn!(target: "a::library", %why, error, asked = ?Some(3), none = tracing::field::Empty);
            tracing::info!(target: "unwanted", "nobody is told of this");
            tracing::trace!(big = u128::MAX, small = i128::MIN, text = String::from("owned"));
        };
        tracing::subscriber::with_default(log.clone(), log_all);
        let at_once = std::mem::take(&mut *log.0.lock().expect("no panic"));
        assert_eq!(at_once.len(), 3, "{at_once:?}");

        let lines = Arc::new(Mutex::new(Vec::new()));
        let relay = relay({
            let lines = lines.clone();
            move |line| lines.lock().expect("no panic").push(line)
        });
        tracing::subscriber::with_default(log.clone(), || {
            tracing::dispatcher::with_default(&relay, || {
                log_all();
                tracing::info_span!("a span").in_scope(|| ());
            });
            assert_eq!(*log.0.lock().expect("no panic"), Vec::<String>::new(), "nothing at once");
            lines.lock().expect("no panic").iter().for_each(LogLine::write);
        });
        assert_eq!(*log.0.lock().expect("no panic"), at_once);
    }
}
