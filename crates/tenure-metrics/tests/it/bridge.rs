//! What is counted in a recorder of the facade is what the client counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tenure_core::Settings;
use tenure_metrics::{Bridge, Format, render};

use crate::page::{client, lose, work};

#[derive(Default)]
struct Kept {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<String, Arc<Values>>>,
}

#[derive(Default)]
struct Values(AtomicU64);

impl HistogramFn for Values {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn line(key: &Key, suffix: &str) -> String {
    let labels: Vec<String> =
        key.labels().map(|label| format!("{}=\"{}\"", label.key(), label.value())).collect();
    format!("{}{suffix}{{{}}}", key.name(), labels.join(","))
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let counter = Arc::<AtomicU64>::default();
        let before = self.counters.lock().expect("no panic").insert(line(key, ""), counter.clone());
        assert!(before.is_none(), "{key} is registered once");
        Counter::from_arc(counter)
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let values = Arc::<Values>::default();
        self.histograms.lock().expect("no panic").insert(line(key, "_count"), values.clone());
        Histogram::from_arc(values)
    }
}

#[test]
fn a_recorder_has_the_same_numbers_as_the_page() {
    let kept = Arc::<Kept>::default();
    let (clock, _store, tenure) = client(Settings::new().listener(Arc::new(Bridge::of(kept.clone()))));
    work(&clock, &tenure);
    lose(&clock, &tenure);
    let counts = tenure.counts();
    // What the client's own thread has told of is told by then.
    pollster::block_on(tenure.close());
    let page = render(&[counts], Format::Prometheus);
    let shown: BTreeMap<&str, u64> = page
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, number)| Some((name, number.parse().ok()?)))
        .collect();
    let counters = kept.counters.lock().expect("no panic");
    let histograms = kept.histograms.lock().expect("no panic");
    let counters = counters.iter().map(|(name, count)| (name, count.load(Ordering::SeqCst)));
    let told: Vec<(&String, u64)> = counters
        .chain(histograms.iter().map(|(name, values)| (name, values.0.load(Ordering::SeqCst))))
        .collect();
    assert!(told.len() > 20, "{told:?}");
    let refused = r#"tenure_renewals_total{engine="memory",outcome="refused"}"#;
    assert!(told.iter().any(|(name, _)| *name == refused), "{told:?}");
    for (name, count) in told {
        // The client's end makes a call and a wake more, which the page is too old for.
        if !name.contains("request") && !name.contains("tenure_late") {
            assert_eq!(shown.get(name.as_str()), Some(&count), "{name} of\n{page}");
        }
    }
}
