//! What a client counts and tells is what was done: each number, and each event, by what brings it about.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pollster::block_on;
use tenure_core::counts::{
    CallEnd, ClaimEnd, DeliveryEnd, FoundIn, LearnedBy, Loss, Primitive, PushEnd, ReleaseEnd, Renewal,
    ScopeCounts, Verb,
};
use tenure_core::memory::{Flaw, Store};
use tenure_core::model::record::PlainRecord;
use tenure_core::model::step::Woken;
use tenure_core::testing::random::more;
use tenure_core::testing::virtual_clock::VirtualClock;
use tenure_core::{Counts, Error, ErrorKind, Event, Happened, Lease, Listener, Name, Settings, Tenure};

use crate::client::eventually;

const TTL: Duration = Duration::from_secs(9);
const SECOND: Duration = Duration::from_secs(1);

/// A store that may fall silent or lose its wakes.
#[derive(Default)]
struct Moody(Mutex<(BTreeSet<&'static str>, bool)>);

impl Flaw for Moody {
    fn hangs(&self, verb: &'static str, _: &Name) -> bool {
        self.0.lock().expect("no panic").0.contains(verb)
    }

    fn after(&self, _: &mut PlainRecord, wakes: &mut Vec<Woken>) {
        if self.0.lock().expect("no panic").1 {
            wakes.clear();
        }
    }
}

/// Keeps what it hears.
#[derive(Default)]
struct Record(Mutex<Vec<Happened>>);

impl Listener for Record {
    fn on_event(&self, happened: &Happened) {
        self.0.lock().expect("no panic").push(happened.clone());
    }
}

/// A client that counts, and one that does not, of one store on a clock that stands.
struct Stage {
    clock: VirtualClock,
    moody: Arc<Moody>,
    store: Arc<Store>,
    record: Arc<Record>,
    tenure: Tenure,
    other: Tenure,
}

impl Stage {
    fn new() -> Stage {
        let (clock, moody, record) =
            (VirtualClock::new(7), Arc::<Moody>::default(), Arc::<Record>::default());
        let store = Store::with_flaw(Arc::new(clock.clone()), Some(moody.clone()));
        let connect = |settings| {
            let connecting = Tenure::start(store.clone().connector(), Arc::new(clock.clone()), settings);
            block_on(connecting).expect("connects")
        };
        let tenure = connect(Settings::new().counts(true).listener(record.clone()));
        let other = connect(Settings::new());
        Stage { clock, moody, store, record, tenure, other }
    }

    fn hang(&self, verb: &'static str) {
        self.moody.0.lock().expect("no panic").0.insert(verb);
    }

    fn acquire(&self, name: &str) -> Lease {
        block_on(self.tenure.mutex(name).ttl(TTL).acquire()).expect("free")
    }

    /// Asks for something while time passes, in steps, as it is awaited on another thread.
    fn while_time_passes<T: Send>(&self, step: Duration, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let working = scope.spawn(work);
            while !working.is_finished() {
                #[allow(
                    clippy::disallowed_methods,
                    reason = "another thread's progress has no event to await"
                )]
                std::thread::sleep(Duration::from_millis(2));
                self.clock.advance(step);
            }
            working.join().expect("no panic")
        })
    }

    fn counts(&self) -> Counts {
        self.tenure.counts()
    }

    fn scope(&self, primitive: Primitive, label: &str) -> ScopeCounts {
        self.counts()
            .scope(primitive, label)
            .cloned()
            .unwrap_or_else(|| panic!("no {label} in {:?}", self.counts()))
    }

    fn mutexes(&self, label: &str) -> ScopeCounts {
        self.scope(Primitive::Mutex, label)
    }

    /// Waits until an event of this sort has been told.
    fn hears(&self, what: &str, is_it: impl Fn(&Event) -> bool) {
        eventually(what, || {
            let heard = self.record.0.lock().expect("no panic");
            heard.iter().any(|happened| is_it(&happened.event))
        });
    }
}

/// Whether a sum of times is that, but for the steps in which a grant's time is kept.
fn is_about(sum: f64, expected: f64) -> bool {
    (sum - expected).abs() < 0.001
}

#[test]
fn a_lease_that_was_held_and_released() {
    let stage = Stage::new();
    let lease = stage.acquire("billing/4711");
    stage.clock.advance(2 * SECOND);
    let held = stage.mutexes("billing/*");
    assert_eq!((held.leases, held.waiting), (1, 0));
    assert!(is_about(held.leases_oldest.as_secs_f64(), 2.0));
    block_on(lease.release()).expect("answers");
    let counts = stage.mutexes("billing/*");
    assert_eq!(counts.claims[ClaimEnd::Granted as usize], 1);
    assert_eq!(counts.claims.iter().sum::<u64>(), 1);
    assert_eq!((counts.wait.count(), counts.wait.sum()), (1, 0.0));
    assert_eq!(counts.hold.count(), 1);
    assert!(is_about(counts.hold.sum(), 2.0));
    assert_eq!(counts.leases, 0);
    assert_eq!(stage.counts().releases[ReleaseEnd::Released as usize], 1);
    stage.hears("granted", |event| matches!(event, Event::Granted { waited: Duration::ZERO, .. }));
    stage.hears(
        "released",
        |event| matches!(event, Event::Released { held, .. } if is_about(held.as_secs_f64(), 2.0)),
    );
    let heard = stage.record.0.lock().expect("no panic");
    let granted = heard.iter().find(|happened| matches!(happened.event, Event::Granted { .. }));
    assert_eq!(
        granted.and_then(|granted| granted.scope.as_ref()).map(|scope| &*scope.label),
        Some("billing/*")
    );
}

#[test]
fn every_way_without_a_lease() {
    let stage = Stage::new();
    let theirs = block_on(stage.other.mutex("x").ttl(TTL).acquire()).expect("free");
    let mutex = stage.tenure.mutex("x").ttl(TTL);
    assert!(block_on(mutex.try_acquire()).expect("answers").is_none());
    let timeout = stage.while_time_passes(SECOND, || block_on(mutex.acquire_within(3 * SECOND)));
    assert_eq!(timeout.expect_err("held").kind(), ErrorKind::Timeout);
    {
        let mut dropped = pin!(mutex.acquire());
        assert!(block_on(futures_util::future::poll_immediate(&mut dropped)).is_none());
        eventually("it waits", || dropped.place().is_some());
        stage.clock.advance(SECOND);
        let waiting = stage.mutexes("x");
        assert_eq!((waiting.waiting, waiting.waiting_oldest), (1, SECOND));
    }
    // Drops a claim that was never sent, and makes one that never will be.
    drop(mutex.acquire());
    let refused = block_on(stage.tenure.mutex("x").ttl(Duration::from_millis(1)).try_acquire());
    assert_eq!(refused.expect_err("too short").kind(), ErrorKind::Invalid);
    // The claim is withdrawn, which is not answered either.
    stage.hang("claim");
    stage.hang("release");
    let silent = stage.while_time_passes(SECOND, || block_on(stage.tenure.mutex("x").try_acquire()));
    assert_eq!(silent.expect_err("silent").kind(), ErrorKind::Unavailable);
    let counts = stage.mutexes("x");
    let expected = |end: ClaimEnd| match end {
        ClaimEnd::Busy | ClaimEnd::Timeout | ClaimEnd::Cancelled | ClaimEnd::Refused | ClaimEnd::Failed => 1,
        _ => 0,
    };
    for end in ClaimEnd::ALL.iter().copied() {
        assert_eq!(counts.claims[end as usize], expected(end), "{end:?}");
        if expected(end) == 1 {
            stage.hears(
                end.as_str(),
                |event| matches!(event, Event::ClaimEnded { outcome, .. } if *outcome == end),
            );
        }
    }
    assert_eq!((counts.waiting, counts.wait.count()), (0, 0));
    let claims = &stage.counts().calls[Verb::Claim as usize];
    assert!(claims.ended[CallEnd::Timeout as usize] >= 1, "{claims:?}");
    assert!(!stage.counts().is_store_up);
    stage.hears("a call timed out", |event| matches!(event, Event::Called { outcome: CallEnd::Timeout, .. }));
    drop(theirs);
}

#[test]
fn a_kind_that_is_in_use_otherwise_is_refused_by_the_store() {
    let stage = Stage::new();
    let _theirs = block_on(stage.other.mutex("x").ttl(TTL).acquire()).expect("free");
    block_on(stage.tenure.semaphore("x", 4).try_acquire()).expect_err("another kind");
    let counts = stage.scope(Primitive::Semaphore, "x");
    assert_eq!(counts.claims[ClaimEnd::Refused as usize], 1);
}

#[test]
fn a_waiter_learns_of_its_grant_by_a_wake_or_by_its_heartbeat() {
    for (is_lossy, by) in [(false, LearnedBy::Wake), (true, LearnedBy::Heartbeat)] {
        let stage = Stage::new();
        stage.moody.0.lock().expect("no panic").1 = is_lossy;
        let theirs = block_on(stage.other.mutex("x").ttl(TTL).acquire()).expect("free");
        let mutex = stage.tenure.mutex("x").ttl(TTL);
        let mut waits = pin!(mutex.acquire());
        assert!(block_on(futures_util::future::poll_immediate(&mut waits)).is_none());
        eventually("it waits", || waits.place().is_some());
        stage.clock.advance(SECOND);
        block_on(theirs.release()).expect("answers");
        let lease = match is_lossy {
            true => stage.while_time_passes(SECOND / 2, || block_on(waits)),
            false => block_on(waits),
        };
        let lease = lease.expect("handed over");
        let counts = stage.counts();
        assert_eq!(counts.learned_by[by as usize], 1, "{counts:?}");
        assert_eq!(counts.learned_by.iter().sum::<u64>(), 1);
        assert!(stage.mutexes("x").wait.sum() >= 1.0);
        stage.hears("handed over", |event| matches!(event, Event::HandedOver { by: so, .. } if *so == by));
        drop(lease);
    }
}

#[test]
fn renewals_and_what_was_left() {
    let stage = Stage::new();
    let lease = stage.acquire("x");
    stage.clock.advance(TTL / 3);
    eventually("it is renewed", || stage.counts().renewals[Renewal::Kept as usize] == 1);
    let slack = stage.counts().slack;
    assert_eq!(slack.count(), 1);
    assert!((0.64..0.67).contains(&slack.sum()), "{slack:?}");
    stage.hears("renewed", |event| matches!(event, Event::Renewed { ttl: TTL, .. }));
    assert_eq!(stage.counts().calls[Verb::Renew as usize].ended[CallEnd::Answered as usize], 1);
    stage.hang("renew");
    stage.clock.advance(TTL / 3);
    eventually("it is under way", || stage.store.records() == 1);
    stage.while_time_passes(SECOND / 4, || {
        eventually("it is repeated", || {
            stage.counts().renewals[Renewal::Repeated as usize] > 0 || lease.is_lost()
        })
    });
    assert!(stage.counts().renewals[Renewal::Repeated as usize] > 0);
    stage.hears("it is repeated", |event| matches!(event, Event::Repeated { verb: Verb::Renew, .. }));
}

#[test]
fn losses_by_their_reason() {
    let stage = Stage::new();
    // Nothing is told of in time: the process stood still.
    let late = stage.acquire("late");
    stage.clock.advance(2 * TTL);
    block_on(late.lost());
    // It is noticed at once.
    let deadline = stage.acquire("deadline");
    stage.clock.advance(TTL);
    block_on(deadline.lost());
    let refused = stage.acquire("refused");
    block_on(stage.tenure.break_hold("refused", refused.token(), true)).expect("answers");
    stage.clock.advance(TTL / 3);
    block_on(refused.lost());
    let bound = ["bond", "bond-broken"].map(|name| stage.tenure.mutex(name).ttl(TTL).into());
    let set = block_on(stage.tenure.all(bound).acquire()).expect("free");
    let token = set.token("bond-broken").expect("held");
    block_on(stage.tenure.break_hold("bond-broken", token, true)).expect("answers");
    stage.clock.advance(TTL / 3);
    block_on(set.lost());
    let max_hold =
        block_on(stage.tenure.mutex("max_hold").ttl(TTL).max_hold(TTL / 2).acquire()).expect("free");
    stage.clock.advance(TTL / 2);
    block_on(max_hold.lost());
    for (label, reason) in [
        ("late", Loss::Late),
        ("deadline", Loss::Deadline),
        ("refused", Loss::Refused),
        ("bond", Loss::Bond),
        ("bond-broken", Loss::Refused),
        ("max_hold", Loss::MaxHold),
    ] {
        let counts = stage.mutexes(label);
        let expected = Loss::ALL.iter().map(|loss| u64::from(*loss == reason)).collect::<Vec<_>>();
        assert_eq!(counts.lost.to_vec(), expected, "{label}");
        assert_eq!((counts.hold.count(), counts.leases), (1, 0), "{label}");
        let is_it =
            |event: &Event| matches!(event, Event::Lost { resource, .. } if resource.as_str() == label);
        stage.hears(label, is_it);
    }
    assert!(stage.counts().renewals[Renewal::Refused as usize] >= 2);
    assert!(is_about(stage.mutexes("late").hold.sum(), 2.0 * TTL.as_secs_f64()));
    block_on(late.release()).expect("it is lost");
    assert_eq!(stage.counts().releases[ReleaseEnd::AlreadyLost as usize], 1);
    assert!(stage.counts().late.sum() > TTL.as_secs_f64(), "{:?}", stage.counts().late);
    stage.hears("woke late", |event| matches!(event, Event::Late { by } if *by > TTL));
}

#[test]
fn a_store_that_forgets_loses_places() {
    let stage = Stage::new();
    let _theirs = block_on(stage.other.mutex("x").ttl(TTL).acquire()).expect("free");
    let mutex = stage.tenure.mutex("x").ttl(TTL);
    let mut waits = pin!(mutex.acquire());
    assert!(block_on(futures_util::future::poll_immediate(&mut waits)).is_none());
    eventually("it waits", || waits.place().is_some());
    stage.store.restart(None);
    let _lease = block_on(waits).expect("it queues anew, and nobody holds");
    assert_eq!((stage.counts().store_forgot, stage.mutexes("x").places_lost), (1, 1));
    stage.hears("the store forgot", |event| matches!(event, Event::StoreForgot));
    stage.hears("the place is lost", |event| matches!(event, Event::PlaceLost { .. }));
}

#[test]
fn a_release_that_is_given_up() {
    let stage = Stage::new();
    let lease = stage.acquire("x");
    stage.hang("release");
    stage.while_time_passes(SECOND, || {
        block_on(lease.release()).expect_err("silent");
        eventually("it is given up", || stage.counts().releases[ReleaseEnd::GivenUp as usize] == 1);
    });
    stage.hears("given up", |event| matches!(event, Event::ReleaseFailed { .. }));
}

#[test]
fn a_grant_that_is_not_collected() {
    let stage = Stage::new();
    let theirs = block_on(stage.other.mutex("x").ttl(TTL).acquire()).expect("free");
    let mutex = stage.tenure.mutex("x").ttl(TTL);
    let mut forgotten = pin!(mutex.acquire());
    assert!(block_on(futures_util::future::poll_immediate(&mut forgotten)).is_none());
    eventually("it waits", || forgotten.place().is_some());
    block_on(theirs.release()).expect("answers");
    eventually("it is granted", || stage.counts().learned_by[LearnedBy::Wake as usize] == 1);
    for _ in 0..5 {
        stage.clock.advance(TTL / 4);
        #[allow(clippy::disallowed_methods, reason = "another thread's progress has no event to await")]
        std::thread::sleep(Duration::from_millis(20));
    }
    stage.hears("set aside", |event| matches!(event, Event::SetAside { .. }));
}

#[test]
fn values_that_one_loads_for_all() {
    let stage = Stage::new();
    let price = stage.tenure.single_flight("price/4711").ttl(TTL).fresh(60 * SECOND).serve_stale(60 * SECOND);
    let load = async |_: &Lease| {
        stage.clock.advance(SECOND);
        Ok::<_, Error>(b"17.50".to_vec())
    };
    block_on(price.get_or_refresh(load)).expect("loaded");
    block_on(price.get_or_refresh(load)).expect("fresh");
    stage.clock.advance(61 * SECOND);
    let theirs = stage.other.single_flight("price/4711").ttl(TTL).fresh(60 * SECOND);
    let while_they_load = async |_: &Lease| {
        price.get_or_refresh(load).await.expect("stale");
        Ok::<_, Error>(b"18.00".to_vec())
    };
    block_on(theirs.get_or_refresh(while_they_load)).expect("loaded");
    let failing = async |_: &Lease| Err(Error::new(ErrorKind::Internal, "load", "no price today"));
    block_on(price.refresh(failing)).expect_err("failed");
    let counts = stage.scope(Primitive::SingleFlight, "price/*");
    for source in FoundIn::ALL.iter().copied() {
        assert_eq!(counts.found[source as usize], 1, "{source:?}");
        stage.hears(
            source.as_str(),
            |event| matches!(event, Event::Found { source: so, .. } if *so == source),
        );
    }
    assert_eq!((counts.load.count(), counts.load.sum()), (1, 1.0));
    assert_eq!(counts.claims[ClaimEnd::Fresh as usize], 1);
}

#[test]
fn items_of_a_queue() {
    let stage = Stage::new();
    let queue = stage.tenure.queue("refunds").ttl(TTL).max_attempts(9);
    for _ in 0..6 {
        block_on(queue.push("work").into_future()).expect("pushed");
    }
    block_on(queue.push("once").dedup("once").into_future()).expect("pushed");
    block_on(queue.push("once").dedup("once").into_future()).expect("a duplicate");
    block_on(queue.push("x").group("").into_future()).expect_err("no group");
    let next = || block_on(queue.next()).expect("there is one");
    let done = next();
    stage.clock.advance(SECOND);
    let held = stage.scope(Primitive::Queue, "refunds");
    assert_eq!(held.leases, 1);
    block_on(done.ack()).expect("done");
    assert!(!block_on(next().retry_after(3600 * SECOND)).expect("retried"));
    block_on(next().fail("no such order")).expect("dead");
    let lost = next();
    block_on(next().put_back()).expect("returned");
    stage.clock.advance(2 * TTL);
    eventually("it is lost", || lost.lease().is_lost());
    block_on(lost.ack()).expect_err("lost");
    let counts = stage.scope(Primitive::Queue, "refunds");
    for end in DeliveryEnd::ALL.iter().copied() {
        assert_eq!(counts.deliveries[end as usize], 1, "{end:?}");
        if end != DeliveryEnd::Lost {
            stage.hears(
                end.as_str(),
                |event| matches!(event, Event::Settled { outcome, .. } if *outcome == end),
            );
        }
    }
    assert_eq!(counts.hold.count(), 5);
    assert!(is_about(counts.hold.sum(), 1.0 + 2.0 * TTL.as_secs_f64()));
    let expected = [(PushEnd::Pushed, 7), (PushEnd::Duplicate, 1), (PushEnd::Failed, 1)];
    for (end, count) in expected {
        assert_eq!(counts.pushes[end as usize], count, "{end:?}");
        stage.hears(end.as_str(), |event| matches!(event, Event::Pushed { outcome, .. } if *outcome == end));
    }
    assert_eq!(counts.lost, [0; Loss::COUNT], "a delivery is no lease");
    stage.hears("delivered", |event| matches!(event, Event::Delivered { attempt: 1, .. }));
    stage.hears("delivered late", |event| matches!(event, Event::Delivered { age: SECOND, .. }));
    assert_eq!((counts.delay.count(), counts.delay.sum()), (5, 4.0), "four of them a second late");
    let calls = stage.counts().calls;
    for verb in [Verb::Push, Verb::Take, Verb::Settle] {
        assert!(calls[verb as usize].ended[CallEnd::Answered as usize] > 0, "{verb:?}");
    }
}

#[test]
fn elections_are_known_by_their_whole_names() {
    let stage = Stage::new();
    let _theirs = block_on(stage.other.election("scheduler-1").campaign()).expect("free");
    let _ours = block_on(stage.tenure.election("scheduler-2").campaign()).expect("free");
    assert!(block_on(stage.tenure.election("scheduler-1").try_campaign()).expect("answers").is_none());
    let counts = stage.counts();
    let mut standings: Vec<_> =
        counts.elections.iter().map(|one| (one.election.to_string(), one.is_leading)).collect();
    standings.sort();
    assert_eq!(standings, [("scheduler-1".to_owned(), false), ("scheduler-2".to_owned(), true)]);
    let scope = stage.scope(Primitive::Election, "scheduler-*");
    assert_eq!((scope.claims[ClaimEnd::Granted as usize], scope.claims[ClaimEnd::Busy as usize]), (1, 1));
    assert_eq!((counts.labels, counts.folded), (3, 0));
}

#[test]
fn a_client_that_does_not_count_has_no_numbers() {
    let stage = Stage::new();
    drop(block_on(stage.other.mutex("x").acquire()).expect("free"));
    let counts = stage.other.counts();
    assert!(counts.scopes.is_empty() && counts.elections.is_empty());
    assert_eq!((counts.releases, counts.labels), ([0; ReleaseEnd::COUNT], 0));
}

#[test]
fn names_without_end_are_a_hundred_scopes() {
    let stage = Stage::new();
    let names = more(100_000, 1_000_000);
    for n in 0..names {
        drop(stage.tenure.mutex(&format!("tenant{}/{n}", n % 1000)));
    }
    for n in 0..500 {
        drop(stage.acquire(&format!("tenant{n}/0")));
    }
    let counts = stage.counts();
    assert_eq!((counts.labels, counts.scopes.len()), (100, 101));
    assert_eq!(stage.mutexes("other").claims[ClaimEnd::Granted as usize], 400);
    assert_eq!(counts.folded, names / 10 * 9 + 400);
}

#[test]
fn settings_of_scopes_out_of_range_are_refused_where_the_client_connects() {
    let clock = VirtualClock::new(7);
    let store = Store::new(Arc::new(clock.clone()));
    let long = "x".repeat(65);
    for settings in [
        Settings::new().scopes([""]),
        Settings::new().scopes([long.as_str()]),
        Settings::new().scopes_max(0),
        Settings::new().scopes_max(10_001),
    ] {
        let connecting = Tenure::start(store.clone().connector(), Arc::new(clock.clone()), settings);
        assert_eq!(block_on(connecting).expect_err("out of range").kind(), ErrorKind::Invalid);
    }
}
