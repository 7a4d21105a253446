//! Hands events to a recorder of the `metrics` facade.
//!
//! A recorder looks up each metric by its name and labels, with a hash and often a lock. So a handle is kept for each of them: a few for
//! each scope, found by the scope's index.
//!
//! Rows that are no event are not there: what waits, is held or in use now. A program that wants them calls `Tenure::counts`.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use tenure_core::counts::{
    CallEnd, ClaimEnd, DeliveryEnd, Loss, Primitive, ReleaseEnd, Renewal, Scope, Verb,
};
use tenure_core::{Event, Happened, Listener};

use crate::names::{self, Metric};

static METADATA: Metadata<'static> = Metadata::new("tenure", Level::INFO, Some(module_path!()));

/// A [`Listener`] that counts in a recorder of the `metrics` facade.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # use std::sync::Arc;
/// use tenure_core::{Settings, Tenure, memory::Store};
///
/// // After the program has installed its recorder.
/// let settings = Settings::new().listener(Arc::new(tenure_metrics::Bridge::new()));
/// # let tenure = Tenure::connect_with(Store::named("bridge-example").connector(), settings).await?;
/// # drop(tenure);
/// # Ok(()) }) }
/// ```
pub struct Bridge {
    recorder: Option<Arc<dyn Recorder + Send + Sync>>,
    handles: Mutex<Handles>,
}

/// The values of labels that an event brings, in the order in which its metric names them.
type Words = [&'static str; 2];
/// The engine, the metric, the scope and the words.
type Place = (&'static str, &'static str, Option<u16>, Words);

#[derive(Default)]
struct Handles {
    counters: HashMap<Place, Counter>,
    gauges: HashMap<Place, Gauge>,
    histograms: HashMap<Place, Histogram>,
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge").finish_non_exhaustive()
    }
}

impl Default for Bridge {
    fn default() -> Bridge {
        Bridge::new()
    }
}

/// One event on its way into the recorder.
struct Told<'a> {
    bridge: &'a Bridge,
    engine: &'static str,
    scope: Option<&'a Scope>,
}

impl Bridge {
    /// Counts in the recorder of the process, which must be installed before the first event.
    pub fn new() -> Bridge {
        Bridge { recorder: None, handles: Mutex::default() }
    }

    /// Counts in a recorder.
    pub fn of(recorder: Arc<dyn Recorder + Send + Sync>) -> Bridge {
        Bridge { recorder: Some(recorder), handles: Mutex::default() }
    }

    fn with_recorder<T>(&self, work: impl FnOnce(&dyn Recorder) -> T) -> T {
        match &self.recorder {
            Some(recorder) => work(recorder.as_ref()),
            None => metrics::with_recorder(work),
        }
    }
}

impl Told<'_> {
    fn key(&self, metric: Metric, words: Words) -> Key {
        let mut words = words.into_iter();
        let mut label = |name: &&'static str| {
            let value = match (*name, self.scope) {
                ("engine", _) => self.engine.to_owned(),
                ("kind", Some(scope)) => scope.primitive.as_str().to_owned(),
                ("scope" | "queue", Some(scope)) => scope.label.to_string(),
                ("scope" | "queue" | "kind", None) => "other".to_owned(),
                _ => words.next().unwrap_or_default().to_owned(),
            };
            Label::new(*name, value)
        };
        Key::from_parts(metric.name, metric.labels.iter().map(&mut label).collect::<Vec<_>>())
    }

    /// Uses the handle of a metric, which is made at its first use.
    fn with<H: Clone>(
        &self,
        (metric, words): (Metric, Words),
        handles: impl FnOnce(&mut Handles) -> &mut HashMap<Place, H>,
        make: impl FnOnce(&dyn Recorder, &Key) -> H,
    ) -> H {
        let is_scoped = metric.labels.contains(&"scope") || metric.labels.contains(&"queue");
        let scope = self.scope.filter(|_| is_scoped).map(|scope| scope.index);
        let place = (self.engine, metric.name, scope, words);
        // A panic in a recorder cannot leave it half-changed.
        let mut kept = self.bridge.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = handles(&mut kept).entry(place).or_insert_with(|| {
            let key = self.key(metric, words);
            self.bridge.with_recorder(|recorder| make(recorder, &key))
        });
        handle.clone()
    }

    fn count(&self, metric: Metric, word: &'static str) {
        self.count_by(metric, [word, ""]);
    }

    fn count_by(&self, metric: Metric, words: Words) {
        let make = |recorder: &dyn Recorder, key: &Key| recorder.register_counter(key, &METADATA);
        self.with((metric, words), |handles| &mut handles.counters, make).increment(1);
    }

    fn set(&self, metric: Metric, number: f64) {
        let make = |recorder: &dyn Recorder, key: &Key| recorder.register_gauge(key, &METADATA);
        self.with((metric, [""; 2]), |handles| &mut handles.gauges, make).set(number);
    }

    fn add(&self, metric: Metric, word: &'static str, number: f64) {
        let make = |recorder: &dyn Recorder, key: &Key| recorder.register_histogram(key, &METADATA);
        self.with((metric, [word, ""]), |handles| &mut handles.histograms, make).record(number);
    }

    fn add_time(&self, metric: Metric, time: Duration) {
        self.add(metric, "", time.as_secs_f64());
    }

    fn is_of_queue(&self) -> bool {
        self.scope.is_some_and(|scope| scope.primitive == Primitive::Queue)
    }

    fn tell(&self, event: &Event) {
        match event {
            Event::Granted { waited, .. } => {
                self.count(names::CLAIMS, ClaimEnd::Granted.as_str());
                self.add_time(names::WAIT, *waited);
            }
            Event::ClaimEnded { outcome, .. } => self.count(names::CLAIMS, outcome.as_str()),
            Event::Released { outcome, held, .. } => {
                self.count(names::RELEASES, outcome.as_str());
                // What nobody had is no hold, and the hold of what was lost has been told with the loss.
                if *outcome == ReleaseEnd::Released && !held.is_zero() {
                    self.add_time(names::HOLD, *held);
                }
            }
            Event::Detached { held, .. } => {
                self.count(names::DETACHED, "");
                self.add_time(if self.is_of_queue() { names::WORK } else { names::HOLD }, *held);
            }
            Event::Attached { .. } => self.count(names::ATTACHED, ""),
            Event::ReleaseFailed { .. } => self.count(names::RELEASES, ReleaseEnd::GivenUp.as_str()),
            // What was lost before its user had it is no loss to anybody, and is not counted by the client either.
            Event::Lost { held, .. } if held.is_zero() => {}
            Event::Lost { held, .. } if self.is_of_queue() => {
                self.count(names::DELIVERIES, DeliveryEnd::Lost.as_str());
                self.add_time(names::WORK, *held);
            }
            Event::Lost { reason, held, noticed_after, .. } => {
                self.count(names::LOST, Loss::of(*reason, *noticed_after).as_str());
                self.add_time(names::HOLD, *held);
            }
            Event::Repeated { verb: Verb::Renew, .. } => {
                self.count(names::RENEWALS, Renewal::Repeated.as_str());
            }
            Event::PlaceLost { .. } => self.count(names::PLACES_LOST, ""),
            Event::Renewed { left, ttl, .. } => {
                self.count(names::RENEWALS, Renewal::Kept.as_str());
                self.add(names::SLACK, "", left.as_secs_f64() / ttl.as_secs_f64());
            }
            Event::RenewalRefused { .. } => self.count(names::RENEWALS, Renewal::Refused.as_str()),
            Event::HandedOver { by, .. } => self.count(names::HAND_OVERS, by.as_str()),
            Event::StoreForgot => self.count(names::STORE_FORGOT, ""),
            Event::TokenAhead { .. } => self.count(names::TOKENS_AHEAD, ""),
            Event::Late { by } => self.add_time(names::LATE, *by),
            _ => self.tell_more(event),
        }
    }

    /// The rest of [`Told::tell`].
    fn tell_more(&self, event: &Event) {
        match event {
            Event::Called { verb, items, took, outcome } => {
                let word = verb.as_str();
                self.count_by(names::REQUESTS, [word, outcome.as_str()]);
                self.set(names::STORE_UP, f64::from(u8::from(*outcome == CallEnd::Answered)));
                self.add(names::REQUEST_TIME, word, took.as_secs_f64());
                self.add(names::REQUEST_ITEMS, word, *items as f64);
            }
            Event::Found { source, load, .. } => {
                self.count(names::FOUND, source.as_str());
                if let Some(load) = load {
                    self.add_time(names::LOAD, *load);
                }
            }
            Event::Pushed { outcome, .. } => self.count(names::PUSHES, outcome.as_str()),
            Event::Delivered { attempt: 1, age, .. } => self.add_time(names::DELAY, *age),
            Event::Settled { outcome, took, .. } => {
                self.count(names::DELIVERIES, outcome.as_str());
                self.add_time(names::WORK, *took);
            }
            // Nothing is counted of the others, and of what later versions tell.
            _ => {}
        }
    }
}

impl Listener for Bridge {
    fn on_event(&self, happened: &Happened) {
        let told = Told { bridge: self, engine: happened.engine, scope: happened.scope.as_deref() };
        told.tell(&happened.event);
    }
}
