//! What is told of a client: everything, to whoever wants it, at the cost of nobody.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use pollster::block_on;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::memory::Store;
use tenure_core::testing::virtual_clock::VirtualClock;
use tenure_core::{Event, Happened, Lease, Listener, Settings, Tenure};
use tracing::field::{Field, Visit};
use tracing::{Metadata, span};

use crate::client::eventually;
use crate::faulty;

const TTL: Duration = Duration::from_secs(9);

/// A gate that those who hear of events stand before.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    changed: Condvar,
    waits: AtomicBool,
}

impl Gate {
    fn set_closed(&self, is_closed: bool) {
        *self.is_closed.lock().expect("no panic") = is_closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let is_closed = self.is_closed.lock().expect("no panic");
        self.waits.store(*is_closed, Ordering::SeqCst);
        drop(self.changed.wait_while(is_closed, |is_closed| *is_closed).expect("no panic"));
    }
}

struct Hears<F>(F);

impl<F: Fn(&Event) + Send + Sync + 'static> Listener for Hears<F> {
    fn on_event(&self, happened: &Happened) {
        assert_eq!(happened.engine, "memory");
        (self.0)(&happened.event);
    }
}

/// A client of a store of its own, on a clock that stands, and somebody who hears of it.
fn one(hears: impl Fn(&Event) + Send + Sync + 'static) -> (VirtualClock, Arc<Store>, Tenure) {
    let clock = VirtualClock::new(7);
    let store = Store::new(Arc::new(clock.clone()));
    let settings = Settings::new().listener(Arc::new(Hears(hears)));
    let connecting = Tenure::start(store.clone().connector(), Arc::new(clock.clone()), settings);
    (clock, store, block_on(connecting).expect("connects"))
}

/// Lets three ttls pass, and asserts that the leases are renewed meanwhile.
fn renewed_for_three_ttls(clock: &VirtualClock, leases: &[Lease]) {
    for _ in 0..12 {
        let before = clock.now();
        clock.advance(TTL / 4);
        eventually("the leases are renewed", || {
            leases.iter().all(|lease| !lease.is_lost() && lease.deadline() > before + TTL / 2)
        });
    }
}

/// Blocks all that is told of some resources, in the log as in a listener; and leases are renewed all the same.
fn nothing_is_lost_behind(clock: &VirtualClock, tenure: &Tenure, gate: &Gate, slow: &str) {
    let name = |n: u32| format!("{slow}/{n}");
    let mutex = |name: &str| tenure.mutex(name).ttl(TTL);
    let leases: Vec<Lease> =
        (0..200).map(|n| block_on(mutex(&format!("held/{n}")).acquire()).expect("free")).collect();
    let broken = block_on(mutex(&name(0)).acquire()).expect("free");
    gate.set_closed(true);
    std::thread::scope(|scope| {
        // A user who stands in what is told of the grant, and the client's own thread, which tells of a loss.
        let user = scope.spawn(|| block_on(mutex(&name(1)).acquire()).expect("free"));
        eventually("a user stands before the gate", || gate.waits.load(Ordering::SeqCst));
        block_on(tenure.break_hold(&name(0), broken.token(), false)).expect("answers");
        renewed_for_three_ttls(clock, &leases);
        assert!(broken.is_lost());
        gate.set_closed(false);
        assert!(!user.join().expect("no panic").is_lost(), "it was renewed before its user had it");
    });
}

#[test]
fn a_listener_that_blocks_loses_no_lease() {
    let gate = Arc::<Gate>::default();
    let before = gate.clone();
    let (clock, _store, tenure) = one(move |event| match event {
        Event::Granted { resource, .. } | Event::Lost { resource, .. }
            if resource.as_str().starts_with("slow/") =>
        {
            before.pass();
        }
        _ => {}
    });
    nothing_is_lost_behind(&clock, &tenure, &gate, "slow");
}

/// A log of what is written under one name, whose lines about some resources stand before a gate, and one of which panics.
struct SlowLog(&'static str, Arc<Gate>);

impl tracing::Subscriber for SlowLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with(self.0)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Resource(String);
        impl Visit for Resource {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                if field.name() == "resource" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut resource = Resource(String::new());
        event.record(&mut resource);
        assert_ne!(resource.0, "panics");
        if resource.0.starts_with("slow-log/") {
            self.1.pass();
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_log_that_blocks_loses_no_lease() {
    let gate = Arc::<Gate>::default();
    tracing::subscriber::set_global_default(SlowLog("tenure_core", gate.clone()))
        .expect("no other test sets one");
    let (clock, _store, tenure) = one(|_| {});
    nothing_is_lost_behind(&clock, &tenure, &gate, "slow-log");
}

#[test]
fn a_log_that_blocks_or_panics_at_the_word_of_an_engine_holds_up_nobody() {
    let gate = Arc::<Gate>::default();
    let store = Store::new(Arc::new(SystemClock));
    let tenure = faulty::connect(&store, &Arc::default(), Duration::from_secs(9));
    // It is there later than the client, as in a program that sets up its log last.
    tracing::subscriber::set_global_default(SlowLog("an_engine", gate.clone()))
        .expect("no other test sets one");
    gate.set_closed(true);
    let claim = |name: &str| block_on(tenure.mutex(name).ttl(TTL).acquire()).expect("free");
    let asked: Vec<Lease> = ["first", "panics", "slow-log/1"].map(claim).into();
    eventually("the log stands before the gate", || gate.waits.load(Ordering::SeqCst));
    let more = claim("more");
    gate.set_closed(false);
    assert!(asked.iter().chain([&more]).all(|lease| !lease.is_lost()));
    assert_eq!(tenure.events_dropped(), 0);
}

#[test]
fn a_listener_that_panics_harms_nothing() {
    let (clock, _store, tenure) = one(|event| panic!("never happy: {event:?}"));
    let held = block_on(tenure.mutex("held").ttl(TTL).acquire()).expect("the lease reaches its user");
    for _ in 0..3 {
        let lease = block_on(tenure.mutex("x").ttl(TTL).acquire()).expect("free");
        block_on(tenure.break_hold("x", lease.token(), true)).expect("answers");
        clock.advance(TTL / 3);
        eventually("the loss is noticed", || lease.is_lost());
    }
    assert!(!held.is_lost());
    block_on(held.release()).expect("released");
}

#[test]
fn a_listener_may_use_the_client() {
    let client = Arc::new(OnceLock::<Tenure>::new());
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (used, keeps) = (client.clone(), kept.clone());
    let (clock, _store, tenure) = one(move |event| {
        let (Event::Granted { resource, .. } | Event::Lost { resource, .. }) = event else { return };
        if let Some(tenure) = used.get()
            && keeps.lock().expect("no panic").len() < 8
        {
            // Each grant in here brings about another event, and so another one.
            let name = format!("{}'", resource.as_str());
            let lease = block_on(tenure.mutex(&name).ttl(TTL).acquire()).expect("free");
            keeps.lock().expect("no panic").push(lease);
        }
    });
    client.set(tenure.clone()).expect("once");
    let lease = block_on(tenure.mutex("x").ttl(TTL).acquire()).expect("free");
    eventually("every grant has brought about another", || kept.lock().expect("no panic").len() == 8);
    kept.lock().expect("no panic").clear();
    // Told by the thread of events, which the client's own thread serves meanwhile.
    block_on(tenure.break_hold("x", lease.token(), true)).expect("answers");
    clock.advance(TTL / 3);
    eventually("the loss has brought about a grant", || kept.lock().expect("no panic").len() == 8);
    assert!(lease.is_lost());
    assert!(kept.lock().expect("no panic").iter().all(|lease| !lease.is_lost()));
}

#[test]
fn the_last_events_are_told_before_a_client_has_ended() {
    let released = Arc::new(AtomicBool::new(false));
    let sees = released.clone();
    let (_clock, _store, tenure) = one(move |event| {
        if matches!(event, Event::Released { .. }) {
            sees.store(true, Ordering::SeqCst);
        }
    });
    drop(block_on(tenure.mutex("x").ttl(TTL).acquire()).expect("free"));
    block_on(tenure.close());
    assert!(released.load(Ordering::SeqCst));
}

#[test]
fn a_token_ahead_of_the_clock_is_told_by_whom_it_is_given_to() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = seen.clone();
    let (clock, _store, tenure) = one(move |event| {
        if let Event::TokenAhead { resource, by, .. } = event {
            sees.lock().expect("no panic").push((resource.clone(), *by));
        }
    });
    let now = clock.time_of_day().micros();
    let floor = |seconds: u64| tenure_core::Token::new(now + seconds * 1_000_000);
    for (name, ahead) in [("honest", 9), ("x", 60)] {
        tenure.raise_floor(name, floor(ahead)).expect("a good name");
        drop(block_on(tenure.mutex(name).ttl(TTL).acquire()).expect("free"));
    }
    let by = Duration::from_secs(60) + Duration::from_micros(1);
    eventually("it is told", || !seen.lock().expect("no panic").is_empty());
    let seen = seen.lock().expect("no panic");
    assert_eq!(seen.iter().map(|(name, by)| (name.as_str(), *by)).collect::<Vec<_>>(), [("x", by)]);
}
