//! Spans of claims, holds and items: whoever follows a request sees them, and no subscriber is called by the thread that renews.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use pollster::block_on;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::memory::Store;
use tenure_core::{Acquire, Error, ErrorKind, Settings, Tenure};
use tracing::field::{Field, Visit};
use tracing::{Metadata, Subscriber, span};

use crate::client::eventually;
use crate::faulty::{self, Faults};

/// What a subscriber was told of a span.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    parent: Option<u64>,
    follows: Vec<u64>,
    fields: BTreeMap<String, String>,
    events: Vec<String>,
    copies: usize,
}

impl Seen {
    fn is(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }
}

/// Keeps everything. It sees the spans alone, as behind the filter `tenure_core::trace=debug`, and the user's.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Seen>>>);

/// Panics whenever it is told of a span.
struct Panics;

impl Subscriber for Panics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tenure_core::trace"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        panic!("never happy")
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

thread_local! {
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Recorder {
    fn start() -> Recorder {
        let recorder = Recorder::default();
        tracing::subscriber::set_global_default(recorder.clone()).expect("each test has a process");
        recorder
    }

    fn with<T>(&self, work: impl FnOnce(&mut Vec<Seen>) -> T) -> T {
        let thread = std::thread::current();
        assert_ne!(thread.name(), Some("tenure-io"), "a subscriber may block, and this thread renews leases");
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn on<T>(&self, id: &span::Id, work: impl FnOnce(&mut Seen) -> T) -> T {
        self.with(|seen| work(&mut seen[id.into_u64() as usize - 1]))
    }

    /// The spans of this name that have ended, with their numbers.
    fn ended(&self, name: &str) -> Vec<(u64, Seen)> {
        let all = self.with(|seen| seen.clone());
        let all = (1..).zip(all);
        all.filter(|(_, seen)| seen.name == name && seen.copies == 0).collect()
    }

    /// Waits until so many spans of this name have ended.
    fn wait(&self, name: &str, count: usize) -> Vec<(u64, Seen)> {
        eventually("the spans end", || self.ended(name).len() == count);
        self.ended(name)
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tenure_core::trace" || metadata.target() == "user"
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let entered = ENTERED.with_borrow(|entered| entered.last().copied());
        let explicit = attributes.parent().map(span::Id::into_u64);
        let parent = if attributes.is_contextual() { entered } else { explicit };
        let mut seen = Seen { name: attributes.metadata().name(), parent, copies: 1, ..Seen::default() };
        attributes.record(&mut seen);
        self.with(|all| {
            all.push(seen);
            span::Id::from_u64(all.len() as u64)
        })
    }

    fn record(&self, span: &span::Id, values: &span::Record<'_>) {
        self.on(span, |seen| values.record(seen));
    }

    fn record_follows_from(&self, span: &span::Id, follows: &span::Id) {
        self.on(span, |seen| seen.follows.push(follows.into_u64()));
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let entered = ENTERED.with_borrow(|entered| entered.last().copied());
        let within = event.parent().map(span::Id::into_u64).or(entered).expect("an event of a span");
        let mut said = Seen::default();
        event.record(&mut said);
        self.on(&span::Id::from_u64(within), |seen| seen.events.push(said.is("message").to_owned()));
    }

    fn enter(&self, span: &span::Id) {
        self.on(span, |_| ());
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }

    fn exit(&self, span: &span::Id) {
        self.on(span, |_| ());
        ENTERED.with_borrow_mut(|entered| assert_eq!(entered.pop(), Some(span.into_u64())));
    }

    fn clone_span(&self, span: &span::Id) -> span::Id {
        self.on(span, |seen| seen.copies += 1);
        span.clone()
    }

    fn try_close(&self, span: span::Id) -> bool {
        self.on(&span, |seen| {
            seen.copies -= 1;
            seen.copies == 0
        })
    }
}

fn connect() -> Tenure {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let store = Store::new(clock.clone());
    block_on(Tenure::start(store.connector(), clock, Settings::new())).expect("connects")
}

#[test]
fn a_claim_and_its_hold_are_spans_of_who_asked() {
    let recorder = Recorder::start();
    let tenure = connect();
    let mutex = tenure.mutex("billing/4711");

    let user = tracing::info_span!(target: "user", "request");
    let (token, claim) = user.in_scope(|| {
        let work = async |lease: &tenure_core::Lease| {
            tracing::info_span!(target: "user", "work").in_scope(|| (lease.token(), lease.claim()))
        };
        block_on(mutex.run(work)).expect("free")
    });
    let [(acquire_id, acquire)] = &recorder.wait("tenure acquire", 1)[..] else { panic!("one") };
    let [(hold_id, hold)] = &recorder.wait("tenure hold", 1)[..] else { panic!("one") };
    let user = user.id().map(|id| id.into_u64());
    assert_eq!((acquire.parent, hold.parent, &hold.follows[..]), (user, user, &[*acquire_id][..]));
    for span in [acquire, hold] {
        assert_eq!((span.is("tenure.engine"), span.is("tenure.kind")), ("memory", "mutex"));
        assert_eq!(span.is("tenure.resource"), "billing/4711");
        assert_eq!(span.is("tenure.token"), token.to_string());
        assert_eq!(span.is("tenure.claim"), claim.to_string());
    }
    assert_eq!((acquire.is("tenure.outcome"), hold.is("tenure.ended")), ("granted", "released"));
    assert!(acquire.is("tenure.waited_ms").parse::<u64>().is_ok(), "{acquire:?}");
    assert_eq!(recorder.ended("work")[0].1.parent, Some(*hold_id), "the work is done within the hold");
}

/// Polls a claim until it queues, and once more: its span learns of its place when its task looks.
fn queue(mut waits: Pin<&mut Acquire>) {
    let look = |waits: &mut Pin<&mut Acquire>| {
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        waits.place().is_some()
    };
    eventually("it queues", || look(&mut waits));
    look(&mut waits);
}

#[test]
fn a_span_says_where_a_claim_queued_and_how_it_ended() {
    let recorder = Recorder::start();
    let tenure = connect();
    let mutex = tenure.mutex("m");
    let ended = |count: usize| recorder.wait("tenure acquire", count).pop().expect("one at least").1;

    let held = block_on(mutex.acquire()).expect("free");
    assert_eq!(ended(1).is("tenure.position"), "", "it did not queue");
    assert!(block_on(mutex.try_acquire()).expect("answers").is_none());
    assert_eq!(ended(2).is("tenure.outcome"), "busy");
    let mut waits = Box::pin(mutex.acquire_within(Duration::from_secs(1)));
    queue(waits.as_mut());
    assert_eq!(block_on(waits).expect_err("it is held").kind(), ErrorKind::Timeout);
    let timeout = ended(3);
    assert_eq!((timeout.is("tenure.outcome"), timeout.is("otel.status_code")), ("timeout", "ERROR"));
    assert_eq!(timeout.is("tenure.position"), "1");

    let mut dropped = Box::pin(mutex.acquire());
    queue(dropped.as_mut());
    drop(dropped);
    assert_eq!(ended(4).is("tenure.outcome"), "cancelled");

    let mut waits = Box::pin(mutex.acquire());
    queue(waits.as_mut());
    block_on(held.release()).expect("released");
    drop(block_on(waits).expect("granted"));
    let granted = ended(5);
    assert_eq!((granted.is("tenure.outcome"), granted.is("tenure.position")), ("granted", "1"));
    assert_eq!(granted.is("otel.status_code"), "");
    recorder.wait("tenure hold", 2);
}

#[test]
fn a_hold_says_what_became_of_it() {
    let recorder = Recorder::start();
    let (store, faults) = (Store::new(Arc::new(SystemClock)), Arc::<Faults>::default());
    let tenure = faulty::connect(&store, &faults, Duration::from_secs(2));

    let lease = block_on(tenure.mutex("m").ttl(Duration::from_millis(300)).acquire()).expect("free");
    faults.unrenewed.set(1, Error::new(ErrorKind::Unavailable, "renew", "no answer"));
    let deadline = lease.deadline();
    eventually("it is renewed", || lease.deadline() > deadline);
    block_on(tenure.break_hold("m", lease.token(), true)).expect("broken");
    block_on(lease.lost());
    drop(lease);

    let [(_, hold)] = &recorder.wait("tenure hold", 1)[..] else { panic!("one") };
    assert_eq!((hold.is("tenure.ended"), hold.is("tenure.loss_reason")), ("lost", "refused"), "{hold:?}");
    assert_eq!(hold.is("otel.status_code"), "ERROR");
    assert_eq!(hold.events, ["renewal repeated", "lost"]);

    // Both of a set are lost together.
    let all = tenure.all(["a", "b"].map(|name| tenure.mutex(name).ttl(Duration::from_millis(300)).into()));
    let leases = block_on(all.acquire()).expect("free");
    let token = leases.token("a").expect("held");
    block_on(tenure.break_hold("a", token, true)).expect("broken");
    block_on(leases.lost());
    drop(leases);
    let mut why: Vec<_> = recorder.wait("tenure hold", 3).into_iter().map(|(_, hold)| hold).collect();
    why.sort_by_key(|hold| hold.is("tenure.resource").to_owned());
    let why = Vec::from_iter(why.iter().map(|hold| hold.is("tenure.loss_reason")));
    assert_eq!(why, ["refused", "bond", "refused"]);
}

#[test]
fn an_item_is_followed_from_its_push_to_its_settlement() {
    let recorder = Recorder::start();
    let tenure = connect();
    let queue = tenure.queue("refunds");
    let context = || ENTERED.with_borrow(|entered| Some(format!("span {}", entered.last()?)));
    let push = async { queue.push("order 4711").group("merchant 17").context_with(context).await };
    let pushed = block_on(push).expect("pushed");
    let work = async |_: &tenure_core::Delivery| {
        tracing::info_span!(target: "user", "work").in_scope(|| Ok::<_, String>(()))
    };
    block_on(queue.run(work)).expect("taken").expect("done");

    let one = |name: &str| recorder.wait(name, 1).remove(0);
    let (push_id, push) = one("tenure push");
    let ((take_id, take), (work_id, work)) = (one("tenure take"), one("tenure work"));
    let (_, settle) = one("tenure settle");
    for (span, operation, kind) in [
        (&push, ("push", "send"), "producer"),
        (&take, ("take", "receive"), "client"),
        (&work, ("work", "process"), "consumer"),
        (&settle, ("settle", "settle"), "client"),
    ] {
        assert_eq!(span.is("otel.name"), format!("{} refunds", operation.0));
        assert_eq!((span.is("otel.kind"), span.is("messaging.system")), (kind, "tenure"));
        let said = (span.is("messaging.operation.name"), span.is("messaging.operation.type"));
        assert_eq!(said, operation);
        assert_eq!(span.is("messaging.destination.name"), "refunds");
        assert_eq!(span.is("messaging.message.id"), pushed.item.to_string());
    }
    assert_eq!((push.is("messaging.message.body.size"), push.is("tenure.outcome")), ("10", "pushed"));
    assert_eq!((push.is("tenure.group"), work.is("tenure.group")), ("merchant 17", "merchant 17"));
    assert_eq!((work.is("tenure.attempt"), work.is("tenure.ended")), ("1", "done"));
    assert_eq!((&work.follows[..], settle.parent), (&[take_id][..], Some(work_id)));
    assert_eq!(one("work").1.parent, Some(work_id), "the work is done within its span");
    assert_eq!(
        work.is("tenure.context"),
        format!("span {push_id}"),
        "the push is the span that was asked for"
    );

    // One that its consumer lets go of, and one that is lost.
    block_on(async { queue.push("order 1").await }).expect("pushed");
    drop(block_on(queue.next()).expect("taken"));
    let ended = |count: usize| recorder.wait("tenure work", count).pop().expect("one").1;
    assert_eq!(ended(2).is("tenure.ended"), "retried");
}

#[test]
fn a_subscriber_that_panics_takes_no_lease_and_no_item() {
    tracing::subscriber::set_global_default(Panics).expect("each test has a process");
    let tenure = connect();
    let mutex = tenure.mutex("m");
    for _ in 0..2 {
        let lease = block_on(mutex.acquire()).expect("free");
        block_on(lease.release()).expect("released");
    }
    let queue = tenure.queue("refunds");
    for _ in 0..2 {
        block_on(async { queue.push("order").await }).expect("pushed");
    }
    block_on(async { queue.next().await?.ack().await }).expect("done");
    block_on(async { queue.next().await?.put_back().await }).expect("returned");
    assert_eq!(block_on(queue.depth()).expect("answers"), 1);
}

#[test]
fn the_work_on_an_item_ends_as_its_settlement_does_though_nobody_waits_for_that() {
    let recorder = Recorder::start();
    let tenure = connect();
    let queue = tenure.queue("refunds");
    // The answer may come before the first poll returns: then with another one.
    for count in 1.. {
        block_on(async { queue.push("order").await }).expect("pushed");
        let delivery = block_on(queue.next()).expect("taken");
        let mut acknowledged = Box::pin(delivery.ack());
        let is_dropped = acknowledged.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        drop(acknowledged);
        assert_eq!(recorder.wait("tenure work", count)[count - 1].1.is("tenure.ended"), "done");
        if is_dropped {
            break;
        }
    }
}
