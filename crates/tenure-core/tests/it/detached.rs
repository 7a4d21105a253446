//! What was detached: how it is written, what is read, and what the store makes of what somebody has changed.

use std::sync::Arc;
use std::time::Duration;

use pollster::block_on;
use serde_json::{Value, json};
use tenure_core::memory::Store;
use tenure_core::testing::virtual_clock::VirtualClock;
use tenure_core::{
    ClaimId, Detached, Error, ErrorKind, Event, Happened, Kept, Lease, Listener, ReleaseAnswer, Settings,
    Tenure,
};

const TTL: Duration = Duration::from_secs(9);

fn connect(store: &Arc<Store>, clock: &VirtualClock, settings: Settings) -> Tenure {
    let connecting = Tenure::start(store.clone().connector(), Arc::new(clock.clone()), settings);
    block_on(connecting).expect("connects")
}

/// Two clients of a store of their own, on a clock that stands.
fn two() -> (VirtualClock, Tenure, Tenure) {
    let clock = VirtualClock::new(7);
    let store = Store::new(Arc::new(clock.clone()));
    let (one, other) = (connect(&store, &clock, Settings::new()), connect(&store, &clock, Settings::new()));
    (clock, one, other)
}

fn held(tenure: &Tenure, name: &str) -> Lease {
    block_on(tenure.mutex(name).ttl(TTL).acquire()).expect("free")
}

fn written(detached: &Detached) -> Value {
    serde_json::to_value(detached).expect("it is written in any format")
}

/// Reads it with other values in these fields.
fn changed(detached: &Detached, with: &Value) -> Result<Detached, String> {
    let mut written = written(detached);
    for (field, value) in with.as_object().expect("an object") {
        written[field] = value.clone();
    }
    serde_json::from_value(written).map_err(|error| error.to_string())
}

#[test]
fn it_is_written_in_format_1() {
    let (_, one, _) = two();
    let slot = block_on(one.slot_pool("ids", 3).ttl(TTL).max_hold(TTL * 2).acquire()).expect("free");
    let (claim, token) = (slot.claim(), slot.token());
    let detached = Lease::from(slot).detach().expect("it is held");
    let expected = json!({
        "format": 1, "engine": "memory", "name": "ids", "claim": claim.to_string(), "token": token.get(), "slot": 0,
        "kind": "slot_pool", "ttl_ms": 9000, "max_hold_left_ms": 18000, "bound_to": null,
    });
    assert_eq!(written(&detached), expected);
    let text = serde_json::to_string(&detached).expect("text");
    assert_eq!(serde_json::from_str::<Detached>(&text).expect("it is read"), detached);
}

#[test]
fn what_cannot_be_right_is_not_read() {
    let (_, one, _) = two();
    let detached = held(&one, "x").detach().expect("it is held");
    for (with, said) in [
        (json!({ "format": 2 }), "its format is 2, and this version reads 1"),
        (json!({ "name": "" }), "the name is empty"),
        (json!({ "claim": "no number" }), "not a hexadecimal number"),
        (json!({ "kind": "lock" }), "no kind that is known"),
        // It is divided by, to find out how often to renew.
        (json!({ "ttl_ms": 0 }), "out of range"),
        (json!({ "ttl_ms": u64::MAX }), "out of range"),
        (json!({ "bound_to": "" }), "not a hexadecimal number"),
        (json!({ "token": -1 }), "u64"),
    ] {
        let refused = changed(&detached, &with).expect_err("it is not read");
        assert!(refused.contains(said), "{with}: {refused}");
    }
}

#[test]
fn the_store_says_what_is_held_whatever_somebody_has_written() {
    let (_, one, other) = two();
    let others = held(&one, "others");
    let detached = held(&one, "mine").detach().expect("it is held");
    for with in [
        json!({ "token": detached.token().get() + 1 }),
        json!({ "token": 0 }),
        json!({ "name": "others" }),
        json!({ "name": "nobodys" }),
        json!({ "claim": ClaimId::new(4711).to_string() }),
        // Somebody else's lease, by its claim, under a name that is ours.
        json!({ "claim": others.claim().to_string(), "token": others.token().get() }),
    ] {
        let changed = changed(&detached, &with).expect("it can be read");
        assert!(block_on(other.attach(&changed)).expect("it is answered").is_none(), "{with} is attached");
    }
    let lease =
        block_on(other.attach(&detached)).expect("it is answered").expect("what it was is still held");
    assert_eq!((lease.token(), lease.claim()), (detached.token(), detached.claim()));
    assert!(!others.is_lost());
}

#[test]
fn a_longer_ttl_than_the_stores_lengthens_nothing() {
    let (clock, one, other) = two();
    let detached = held(&one, "x").detach().expect("it is held");
    let forged = changed(&detached, &json!({ "ttl_ms": 3_600_000 })).expect("it can be read");
    let lease = block_on(other.attach(&forged)).expect("it is answered").expect("it is held");
    assert!(lease.expires_in() < TTL, "the store keeps it for its own ttl: {:?}", lease.expires_in());
    clock.advance(TTL);
    assert!(lease.is_lost());
}

#[test]
fn what_is_of_another_engine_or_bound_to_another_client_is_refused_before_anything_is_sent() {
    let (_, one, other) = two();
    let detached = held(&one, "x").detach().expect("it is held");
    let refused = |with: Value| -> Error {
        let changed = changed(&detached, &with).expect("it can be read");
        block_on(other.attach(&changed)).expect_err("it is refused")
    };
    let elsewhere = refused(json!({ "engine": "redis" }));
    assert_eq!(elsewhere.kind(), ErrorKind::Invalid);
    assert_eq!(elsewhere.to_string(), "attach \"x\" on memory: it was detached on redis");
    let bound = refused(json!({ "bound_to": "00000000000000ff" }));
    assert_eq!(bound.kind(), ErrorKind::Unsupported, "{bound}");
    assert!(bound.hint().is_some(), "it says what to do");
}

#[test]
fn another_store_has_never_heard_of_it() {
    let (_, one, _) = two();
    let (_, elsewhere, _) = two();
    let detached = held(&one, "x").detach().expect("it is held");
    assert!(block_on(elsewhere.attach(&detached)).expect("it is answered").is_none());
}

#[test]
fn a_lease_that_is_lost_is_not_detached() {
    let (clock, one, _) = two();
    let lease = held(&one, "x");
    clock.advance(TTL);
    let lost = lease.detach().expect_err("it is over");
    assert_eq!(lost.kind(), ErrorKind::Lost, "{lost}");
}

#[test]
fn a_client_that_ends_does_not_release_what_it_has_detached() {
    let (clock, one, other) = two();
    let detached = held(&one, "x").detach().expect("it is held");
    block_on(one.close());
    assert!(block_on(other.mutex("x").try_acquire()).expect("it is answered").is_none(), "it is held on");
    clock.advance(TTL / 2);
    let lease = block_on(other.attach(&detached)).expect("it is answered").expect("it is held");
    assert!(lease.expires_in() > TTL / 2, "it was renewed by the attachment");
    assert_eq!(block_on(lease.release()).expect("it is answered"), ReleaseAnswer::Released);
}

#[test]
fn what_is_detached_and_attached_is_counted_and_told() {
    struct Told(std::sync::Mutex<Vec<String>>);
    impl Listener for Told {
        fn on_event(&self, happened: &Happened) {
            let word = match &happened.event {
                Event::Detached { held, .. } => format!("detached after {held:?}"),
                Event::Attached { .. } => "attached".to_owned(),
                Event::Lost { .. } => "lost".to_owned(),
                _ => return,
            };
            self.0.lock().expect("no panic").push(word);
        }
    }
    let clock = VirtualClock::new(7);
    let store = Store::new(Arc::new(clock.clone()));
    let told = Arc::new(Told(Default::default()));
    let tenure = connect(&store, &clock, Settings::new().counts(true).listener(told.clone()));
    let count = || {
        let counts = tenure.counts();
        let scope = counts.scopes.first().cloned().expect("one mutex was named");
        (scope.leases, scope.detached, scope.attached, scope.hold.count())
    };
    let lease = held(&tenure, "x");
    assert_eq!(count(), (1, 0, 0, 0));
    let detached = lease.detach().expect("it is held");
    assert_eq!(count(), (0, 1, 0, 1), "nobody here holds it");
    let lease = block_on(tenure.attach(&detached)).expect("it is answered").expect("it is held");
    assert_eq!(count(), (1, 1, 1, 1));
    block_on(lease.release()).expect("it is answered");
    assert_eq!(count(), (0, 1, 1, 2));
    assert_eq!(*told.0.lock().expect("no panic"), ["detached after 0ns", "attached"]);
}

#[test]
fn a_thousand_ids_are_renewed_and_each_has_its_own_answer() {
    let (_, one, other) = two();
    let mut held_by_id = Vec::new();
    for number in 0..1000 {
        let detached = held(&one, &format!("x{number}")).detach().expect("it is held");
        held_by_id.push((detached.resource().clone(), detached.claim()));
    }
    // Every third is somebody else's, or nobody's.
    for (_, claim) in held_by_id.iter_mut().step_by(3) {
        *claim = ClaimId::new(claim.bits() ^ 1);
    }
    let kept = block_on(other.detached().renew(held_by_id.clone()));
    assert_eq!(kept.len(), 1000);
    for (at, kept) in kept.into_iter().enumerate() {
        let is_held = matches!(kept.expect("it is answered"), Some(Kept::Held { .. }));
        assert_eq!(is_held, at % 3 != 0, "number {at}");
    }
    let released = block_on(other.detached().release(held_by_id));
    for (at, answer) in released.into_iter().enumerate() {
        let is_released = answer.expect("it is answered") == ReleaseAnswer::Released;
        assert_eq!(is_released, at % 3 != 0, "number {at}");
    }
}

#[test]
fn a_waiter_is_kept_by_its_id() {
    let (_, one, other) = two();
    let lease = held(&one, "x");
    let mut waiting = Box::pin(one.mutex("x").ttl(TTL).acquire());
    assert!(block_on(futures_util::future::poll_immediate(&mut waiting)).is_none(), "it waits");
    crate::client::eventually("it has its place", || waiting.place().is_some());
    let view = block_on(other.view("x")).expect("it is answered").expect("it is held");
    let claim = view.waiters[0].claim;
    let kept = block_on(other.detached().renew(vec![(lease.resource().clone(), claim)]));
    assert_eq!(
        kept.into_iter().next().expect("one").expect("it is answered"),
        Some(Kept::Waiting { position: 1 })
    );
}

#[test]
fn what_travels_with_an_item_goes_along_when_its_delivery_is_detached() {
    let (_, one, other) = two();
    let (from, to) = (one.queue("q"), other.queue("q"));
    block_on(async { from.push("work").context("00-1-2-01").await }).expect("pushed");
    let detached = block_on(from.next()).expect("taken").detach().expect("it is held");
    let mut written = serde_json::to_value(&detached).expect("it is written in any format");
    let detached = serde_json::from_value(written.clone()).expect("it is read");
    let delivery = block_on(to.attach(&detached)).expect("answered").expect("it goes on");
    assert_eq!(delivery.context(), Some("00-1-2-01"));
    drop(delivery.detach().expect("it is held"));
    // As it was written by those who knew no contexts.
    written.as_object_mut().expect("an object").remove("context");
    let detached = serde_json::from_value(written.clone()).expect("it is read");
    let delivery = block_on(from.attach(&detached)).expect("answered").expect("it goes on");
    assert_eq!((delivery.payload(), delivery.context()), (&b"work"[..], None));
    written["context"] = json!("x".repeat(129));
    let refused = serde_json::from_value::<tenure_core::DetachedDelivery>(written).expect_err("it is none");
    assert!(refused.to_string().contains("129 bytes"), "{refused}");
}

#[test]
fn a_claim_that_is_left_in_the_store_is_never_withdrawn_by_its_client() {
    let (_, one, other) = two();
    let id = ClaimId::new(77);
    let held = held(&one, "a");
    for wait in [false, true] {
        let mut waits = one.mutex("a").ttl(TTL).claim_id(id).left_in_store().acquire();
        assert!(block_on(waits.answered()).is_none(), "it waits");
        match wait {
            true => drop(waits.detach()),
            false => drop(waits),
        }
        let view = block_on(other.view("a")).expect("a view").expect("it is held");
        assert_eq!((view.waiting, view.waiters[0].claim), (1, id));
    }
    block_on(held.release()).expect("released");
    let lease = block_on(other.mutex("a").ttl(TTL).claim_id(id).acquire()).expect("its place was kept");
    let token = lease.token();
    // Another client may hold by the same id: dropping the wait for it must not end that.
    let mut again = one.mutex("a").ttl(TTL).claim_id(id).left_in_store().acquire();
    let same = block_on(again.answered()).expect("an answer").expect("a grant");
    assert_eq!((same.token(), same.is_confirmed()), (token, true));
    same.detach().expect("it is held");
    assert!(!lease.is_lost());
    let kept = block_on(other.detached().renew(vec![(lease.resource().clone(), id)]));
    assert!(matches!(kept[..], [Ok(Some(Kept::Held { .. }))]), "{kept:?}");
}

#[test]
fn what_a_server_sets_is_of_that_claim_alone() {
    let (_, one, _) = two();
    let label = tenure_core::Label::new("b", 7, "billing", "run 7");
    let first = held(&one, "a");
    let floor = tenure_core::Token::new(first.token().get() + 1000);
    block_on(first.release()).expect("released");
    let second = block_on(one.mutex("a").labelled(label.clone()).floor(floor).acquire()).expect("free");
    assert!(second.token() > floor);
    let view = block_on(one.view("a")).expect("a view").expect("it is held");
    assert_eq!(view.holds[0].label, label);
}

#[test]
fn a_value_is_published_by_the_id_that_holds_and_answers_the_next_turn() {
    use tenure_core::LoadTurn;
    use tenure_core::model::claim::Keep;

    let (_, one, other) = two();
    let (loader, reader) = (ClaimId::new(78), ClaimId::new(79));
    let price = one.single_flight("price");
    let turn = block_on(price.turn_within(loader, Duration::ZERO)).expect("a turn");
    let LoadTurn::Load(lease) = turn else { panic!("nothing is loaded") };
    let (name, token) = (lease.resource().clone(), lease.token());
    lease.detach().expect("it is held");
    let keep = Keep::For { fresh: TTL, stale: Duration::ZERO };
    let publish =
        |claim, bytes: &[u8]| block_on(other.detached().publish(name.clone(), claim, bytes.into(), keep));
    assert!(!publish(reader, b"1").expect("an answer"), "who does not hold sets nothing");
    assert!(publish(loader, b"17.50").expect("an answer"));
    let too_large = publish(loader, &[0; 256 * 1024 + 1]).expect_err("it is too large");
    assert_eq!(too_large.kind(), ErrorKind::Invalid);
    match block_on(other.single_flight("price").turn_within(reader, Duration::ZERO)).expect("an answer") {
        LoadTurn::Fresh(value) => assert_eq!((&*value.bytes, value.token), (&b"17.50"[..], token)),
        LoadTurn::Load(_) => panic!("it is fresh"),
    }
}

#[test]
fn a_task_on_any_thread_attaches() {
    fn is_sent<F: Future + Send>(future: F) -> F {
        future
    }

    let (_, one, other) = two();
    let detached = held(&one, "a").detach().expect("it is held");
    assert!(block_on(is_sent(other.attach(&detached))).expect("an answer").is_some());
    block_on(one.queue("q").push(b"1").into_future()).expect("pushed");
    let delivery = block_on(one.queue("q").next()).expect("an item").detach().expect("it is held");
    assert!(block_on(is_sent(other.queue("q").attach(&delivery))).expect("an answer").is_some());
}
