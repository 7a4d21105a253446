//! What was detached goes from one client to another where it can, and where it cannot that is said.

use std::pin::Pin;
use std::time::Duration;

use futures_util::future::poll_immediate;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::queue::SettleAnswer;
use tenure_core::engine::{Adopts, Capability, HandOver};
use tenure_core::model::claim::Kind;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{
    ClaimId, Delivery, Detached, DetachedDelivery, ErrorKind, Kept, Lease, LossReason, Name, Queue,
    ReleaseAnswer, Result, Tenure,
};

use crate::Setup;
use crate::actor::detached_in;
use crate::stage::{SHORT, assert_passed, name, now, pause};

/// What an engine lacks whose claims end with their clients.
const ADOPTION: &str = "claims that go from one client to another";

fn can_adopt(capability: &Capability) -> bool {
    capability.adopts == Adopts::AnyClient
}

/// Takes a mutex that is free.
async fn lease_of(setup: &dyn Setup, client: &Tenure, name: &str, ttl: Duration) -> Lease {
    let acquire = client.mutex(name).ttl(ttl).acquire();
    setup.within("the claim is granted", acquire).await.expect("the claim is granted")
}

async fn attach(setup: &dyn Setup, client: &Tenure, detached: &Detached) -> Result<Option<Lease>> {
    setup.within("an attachment is answered", client.attach(detached)).await
}

/// Attaches what must still be held, as it was.
async fn attached(setup: &dyn Setup, client: &Tenure, detached: &Detached) -> Lease {
    let lease = attach(setup, client, detached).await.expect("an attachment is answered");
    let lease = lease.expect("a hold that was detached just now is attached");
    assert_eq!(lease.token(), detached.token(), "an adoption changes no token");
    assert_eq!((lease.claim(), lease.slot()), (detached.claim(), detached.slot()));
    lease
}

async fn assert_held(setup: &dyn Setup, client: &Tenure, name: &str, when: &str) {
    assert!(setup.try_take(&client.mutex(name)).await.is_none(), "{when}, another client is not refused");
}

async fn release(setup: &dyn Setup, lease: Lease) {
    let answer = setup.within("a release is answered", lease.release()).await;
    assert_eq!(answer.expect("a release is answered"), ReleaseAnswer::Released);
}

/// A hold that was detached is kept by the client that attaches it, with its token, when the first one has gone.
pub async fn another_client_keeps_what_was_detached(setup: &dyn Setup) {
    if !setup.can("adoption::another_client_keeps_what_was_detached", ADOPTION, can_adopt).await {
        return;
    }
    let (first, second, other) = (setup.client().await, setup.client().await, setup.client().await);
    let (name, ttl) = (name("moves"), setup.ttl(2 * SHORT).await);
    let detached = lease_of(setup, &first, &name, ttl).await.detach().expect("it is held");
    setup.within("the first client ends", first.close()).await;
    let lease = attached(setup, &second, &detached).await;
    pause(ttl * 3).await;
    assert!(!lease.is_lost(), "an attached lease is renewed");
    assert_held(setup, &other, &name, "while an attached lease is held").await;
    let token = lease.token();
    release(setup, lease).await;
    let next = lease_of(setup, &other, &name, ttl).await;
    assert!(next.token() > token, "no larger token after an adoption: {} after {token}", next.token());
}

/// A hold goes from one client to another and back, and stays what it was.
pub async fn a_hold_goes_there_and_back(setup: &dyn Setup) {
    if !setup.can("adoption::a_hold_goes_there_and_back", ADOPTION, can_adopt).await {
        return;
    }
    let (first, second) = (setup.client().await, setup.client().await);
    let (name, ttl) = (name("back"), setup.ttl(2 * SHORT).await);
    let mut detached = lease_of(setup, &first, &name, ttl).await.detach().expect("it is held");
    for client in [&second, &first, &second, &first] {
        let lease = attached(setup, client, &detached).await;
        pause(ttl).await;
        detached = lease.detach().expect("an attached lease is renewed");
    }
    release(setup, attached(setup, &second, &detached).await).await;
    assert!(setup.try_take(&first.mutex(&name)).await.is_some(), "what was released is free");
}

/// A hold of each kind is as it was: the slot stays, and so do the units.
pub async fn every_kind_is_attached_as_it_was(setup: &dyn Setup) {
    let (client, other) = (setup.client().await, setup.client().await);
    let by = if can_adopt(client.capability()) { &other } else { &client };
    let (ttl, kinds) = (setup.ttl(2 * SHORT).await, client.capability().kinds);
    let (names, has) = (["writes", "units", "slots"].map(name), |kind| kinds.contains(&kind));
    let mut leases = Vec::new();
    if has(Kind::RwLock) {
        leases.push(client.rw_lock(&names[0]).ttl(ttl).write().acquire().await);
    }
    if has(Kind::Semaphore) {
        leases.push(client.semaphore(&names[1], 3).ttl(ttl).weight(2).acquire().await);
    }
    if has(Kind::SlotPool) {
        leases.push(client.slot_pool(&names[2], 2).ttl(ttl).acquire().await.map(Lease::from));
    }
    let mut again = Vec::new();
    for lease in leases {
        let detached = lease.expect("the claim is granted").detach().expect("it is held");
        again.push(attached(setup, by, &detached).await);
    }
    pause(ttl * 3).await;
    assert!(again.iter().all(|lease| !lease.is_lost()), "an attached lease is renewed");
    if has(Kind::RwLock) {
        let read = other.rw_lock(&names[0]).read().try_acquire().await.expect("a try is answered");
        assert!(read.is_none(), "a reader joins a writer that was attached");
    }
    if has(Kind::Semaphore) {
        let two = other.semaphore(&names[1], 3).weight(2).try_acquire().await.expect("a try is answered");
        assert!(two.is_none(), "units of a lease that was attached are free");
    }
    if has(Kind::SlotPool) {
        let slot = other.slot_pool(&names[2], 2).try_acquire().await.expect("a try is answered");
        let slot = slot.expect("one of two slots is free");
        assert!(again.iter().all(|lease| lease.slot() != Some(slot.number())), "a slot is held twice");
    }
    for lease in again {
        release(setup, lease).await;
    }
}

/// The client that has detached a lease has it again.
pub async fn a_client_attaches_what_it_has_detached(setup: &dyn Setup) {
    let (client, other) = (setup.client().await, setup.client().await);
    let (name, ttl) = (name("comes-back"), setup.ttl(2 * SHORT).await);
    let detached = lease_of(setup, &client, &name, ttl).await.detach().expect("it is held");
    let lease = attached(setup, &client, &detached).await;
    let twice = attach(setup, &client, &detached).await.expect_err("one client has one lease of a claim");
    assert_eq!(twice.kind(), ErrorKind::Invalid, "{twice}");
    pause(ttl * 3).await;
    assert!(!lease.is_lost(), "an attached lease is renewed");
    assert_held(setup, &other, &name, "while an attached lease is held").await;
    release(setup, lease).await;
    assert!(
        attach(setup, &client, &detached).await.expect("it is answered").is_none(),
        "what was released is attached"
    );
}

/// What is detached is renewed by nobody and ends after its ttl, and then it is nobody's, whoever holds.
pub async fn what_is_detached_ends_after_its_ttl(setup: &dyn Setup) {
    let (client, other) = (setup.client().await, setup.client().await);
    let (name, ttl) = (name("ends"), setup.ttl(2 * SHORT).await);
    let start = now();
    let detached = lease_of(setup, &client, &name, ttl).await.detach().expect("it is held");
    let next = setup.within("what was detached ends", other.mutex(&name).ttl(ttl).acquire()).await;
    let next = next.expect("the claim is granted");
    assert_passed(start, ttl, "what was detached ends");
    let mut clients = vec![&client];
    if can_adopt(client.capability()) {
        clients.push(&other);
    }
    for client in clients {
        let attached = attach(setup, client, &detached).await.expect("an attachment is answered");
        assert!(attached.is_none(), "a hold that has ended is attached while another holds");
    }
    pause(ttl * 2).await;
    assert!(!next.is_lost(), "an attachment in vain costs the holder its lease");
}

/// Waiters keep their order when the hold before them goes to another client.
pub async fn waiters_keep_their_order(setup: &dyn Setup) {
    let check = "adoption::waiters_keep_their_order";
    let can = |capability: &Capability| can_adopt(capability) && capability.is_fifo;
    if !setup.can(check, "claims that go to other clients past a queue", can).await {
        return;
    }
    let (first, second) = (setup.client().await, setup.client().await);
    let (a, b) = (setup.client().await, setup.client().await);
    let (name, ttl) = (name("line"), setup.ttl(2 * SHORT).await);
    let lease = lease_of(setup, &first, &name, ttl).await;
    let mut one = setup.queue(&a.mutex(&name)).await;
    let mut two = setup.queue(&b.mutex(&name)).await;
    let lease = attached(setup, &second, &lease.detach().expect("it is held")).await;
    pause(ttl * 2).await;
    assert!(poll_immediate(&mut one).await.is_none(), "a waiter is served while an attached lease is held");
    assert!(poll_immediate(&mut two).await.is_none(), "a waiter is served while an attached lease is held");
    let token = lease.token();
    release(setup, lease).await;
    let one = setup.within("the first in line is served", one).await.expect("a wait is answered");
    assert!(one.token() > token, "no larger token after an adoption");
    assert!(poll_immediate(&mut two).await.is_none(), "two hold");
    let released = setup.within("a release", one.release()).await;
    assert_eq!(released.expect("a release is answered"), ReleaseAnswer::Released);
    setup.within("the second in line is served", two).await.expect("a wait is answered");
}

/// A hold that was detached outlives the process that took it, for its ttl, and longer where another attaches it.
pub async fn a_killed_client_leaves_what_it_has_detached(setup: &dyn Setup) {
    if !setup.can("adoption::a_killed_client_leaves_what_it_has_detached", ADOPTION, can_adopt).await {
        return;
    }
    let (second, other) = (setup.client().await, setup.client().await);
    let (kept, left) = (name("kept"), name("left"));
    let (short, ttl) = (setup.ttl(SHORT).await, setup.ttl(4 * SHORT).await);
    let mut actor = setup.actor().await;
    let start = now();
    let mut both = Vec::new();
    for (name, ttl) in [(&kept, ttl), (&left, short)] {
        let answer =
            actor.ask(&["detach", name, &ttl.as_millis().to_string()]).await.expect("an actor lives");
        both.push(detached_in(&answer).unwrap_or_else(|| panic!("an actor detaches: {answer}")));
    }
    actor.kill();
    let lease = attached(setup, &second, &both[0]).await;
    let next = setup.within("what nobody attached ends", other.mutex(&left).acquire()).await;
    drop(next.expect("the claim is granted"));
    assert_passed(start, short, "what a killed process has detached ends");
    pause(ttl * 2).await;
    assert!(!lease.is_lost(), "a lease of a process that was killed lives on with who has attached it");
    assert_held(setup, &other, &kept, "while an attached lease is held").await;
    release(setup, lease).await;
}

/// Where a claim lives with its client, another client is told so, and takes nothing.
pub async fn another_client_is_refused_where_a_claim_cannot_move(setup: &dyn Setup) {
    let check = "adoption::another_client_is_refused_where_a_claim_cannot_move";
    if !setup.can(check, "claims that end with their client", |capability| !can_adopt(capability)).await {
        return;
    }
    let (client, other) = (setup.client().await, setup.client().await);
    let (name, ttl) = (name("stays"), setup.ttl(4 * SHORT).await);
    let detached = lease_of(setup, &client, &name, ttl).await.detach().expect("it is held");
    assert!(detached.bound_to().is_some(), "a hold that ends with its client says so");
    let refused = attach(setup, &other, &detached).await.expect_err("another client cannot keep it");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let by_id = vec![(detached.resource().clone(), detached.claim())];
    let kept = setup.within("a renewal is answered", other.detached().renew(by_id)).await;
    let refused = kept.into_iter().next().expect("an answer for each");
    let refused = refused.expect_err("another client cannot renew what ends with its client");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    attached(setup, &client, &detached).await;
}

/// Many are renewed by their ids in one call, each is answered for itself, and what is not renewed any more ends.
pub async fn holds_are_renewed_by_their_ids(setup: &dyn Setup) {
    let (client, other) = (setup.client().await, setup.client().await);
    let by = if can_adopt(client.capability()) { &other } else { &client };
    let ttl = setup.ttl(2 * SHORT).await;
    let names = ["one", "two", "three"].map(name);
    let mut held: Vec<(Name, ClaimId)> = Vec::new();
    for name in &names {
        let detached = lease_of(setup, &client, name, ttl).await.detach().expect("it is held");
        held.push((detached.resource().clone(), detached.claim()));
    }
    // An id that was never given: it is neither held nor made.
    held.push((Name::new(&name("nobody")).expect("a good name"), ClaimId::new(4711)));
    held.push((held[0].0.clone(), ClaimId::new(4711)));
    let start = now();
    while now().since(start) < ttl * 3 {
        let kept = setup.within("renewals are answered", by.detached().renew(held.clone())).await;
        let kept: Vec<Option<Kept>> = kept.into_iter().map(|kept| kept.expect("it is answered")).collect();
        let is_held =
            |kept: &Option<Kept>| matches!(kept, Some(Kept::Held { deadline, .. }) if *deadline > now());
        assert!(kept[..3].iter().all(is_held), "renewed by its id, a hold lives on: {kept:?}");
        assert_eq!(kept[3..], [None, None], "an id that nobody holds is renewed");
        pause(ttl / 4).await;
    }
    for name in &names {
        assert_held(setup, &client, name, "while its id is renewed").await;
    }
    for name in &names {
        let next = setup.within("what is not renewed any more ends", client.mutex(name).acquire()).await;
        drop(next.expect("the claim is granted"));
    }
}

/// A hold is released by its id, once, and others get it at once.
pub async fn holds_are_released_by_their_ids(setup: &dyn Setup) {
    let (client, other) = (setup.client().await, setup.client().await);
    let by = if can_adopt(client.capability()) { &other } else { &client };
    let (name, ttl) = (name("let-go"), setup.ttl(Duration::from_secs(20)).await);
    let detached = lease_of(setup, &client, &name, ttl).await.detach().expect("it is held");
    let by_id = vec![(detached.resource().clone(), detached.claim())];
    for expected in [ReleaseAnswer::Released, ReleaseAnswer::AlreadyLost] {
        let answers = setup.within("a release is answered", by.detached().release(by_id.clone())).await;
        let answer = answers.into_iter().next().expect("an answer for each").expect("it is answered");
        assert_eq!(answer, expected, "of a release by its id");
    }
    assert!(
        setup.try_take(&other.mutex(&name)).await.is_some(),
        "what was released by its id is free at once"
    );
    assert!(
        attach(setup, &client, &detached).await.expect("it is answered").is_none(),
        "what was released is attached"
    );
}

/// `max_hold` counts from the grant, whoever holds.
pub async fn max_hold_counts_on(setup: &dyn Setup) {
    let (client, other) = (setup.client().await, setup.client().await);
    let by = if can_adopt(client.capability()) { &other } else { &client };
    // A renewal that is late by a third of it is no end yet.
    let ttl = setup.ttl(4 * SHORT).await;
    let (name, max_hold) = (name("long"), ttl * 2);
    // Elsewhere a client counts it, and another one that has only the id does not know of it.
    let store_counts = client.capability().hand_over == HandOver::Window || !can_adopt(client.capability());
    let lock = client.mutex(&name).ttl(ttl).max_hold(max_hold);
    let start = now();
    let lease = setup.within("the claim is granted", lock.acquire()).await.expect("it is granted");
    pause(ttl / 2).await;
    let lease = attached(setup, by, &lease.detach().expect("it is held")).await;
    let lost = setup.within("max_hold ends an attached lease", lease.lost()).await;
    assert_eq!(lost.loss_reason(), Some(LossReason::MaxHold), "{lost}");
    if !store_counts {
        return;
    }
    // The store says the same, to whoever renews by the id alone.
    let by_id = vec![(lease.resource().clone(), lease.claim())];
    setup
        .eventually("max_hold ends what is renewed by its id", async || {
            let kept = by.detached().renew(by_id.clone()).await;
            kept.into_iter().all(|kept| kept.expect("it is answered").is_none())
        })
        .await;
    assert_in_time(now().since(start), max_hold + ttl / 2);
}

/// A claim under an id of the caller's own.
fn new_id() -> ClaimId {
    ClaimId::new(u128::from(SystemClock.random()) << 64 | u128::from(SystemClock.random()))
}

/// An id that the caller has chosen is one claim: repeated it gets the same grant, and once it has ended, nothing.
pub async fn an_id_of_the_callers_own_is_one_claim(setup: &dyn Setup) {
    let (client, other) = (setup.client().await, setup.client().await);
    let by = if can_adopt(client.capability()) { &other } else { &client };
    let (name, ttl, id) = (name("asked-twice"), setup.ttl(Duration::from_secs(20)).await, new_id());
    let lock = client.mutex(&name).ttl(ttl).claim_id(id);
    let lease = setup.within("the claim is granted", lock.acquire()).await.expect("the claim is granted");
    assert_eq!(lease.claim(), id, "the id is the caller's");
    let twice = setup.within("a claim is answered", lock.try_acquire()).await;
    let twice = twice.expect_err("a client has one claim of an id");
    assert_eq!(twice.kind(), ErrorKind::Invalid, "{twice}");
    // The client has ended, say: another one is asked the same.
    let detached = lease.detach().expect("it is held");
    let lock = by.mutex(&name).ttl(ttl).claim_id(id);
    let again = setup.within("a repeated claim is answered", lock.acquire()).await;
    let again = again.expect("a claim that holds is granted again");
    assert_eq!(again.token(), detached.token(), "a repeated claim is another grant");
    release(setup, again).await;
    let finished = setup.within("a claim is answered", lock.acquire_within(SHORT)).await;
    let finished = finished.expect_err("an id that is used up is granted");
    assert_eq!(finished.kind(), ErrorKind::Finished, "{finished}");
    drop(lease_of(setup, &other, &name, ttl).await);
}

/// A repeated claim keeps its place, also where another client repeats it.
pub async fn an_id_of_the_callers_own_is_one_place(setup: &dyn Setup) {
    let check = "adoption::an_id_of_the_callers_own_is_one_place";
    if !setup.can(check, "order among its waiters", |capability| capability.is_fifo).await {
        return;
    }
    let (client, other) = (setup.client().await, setup.client().await);
    let by = if can_adopt(client.capability()) { &other } else { &client };
    let (name, ttl, id) = (name("place"), setup.ttl(Duration::from_secs(20)).await, new_id());
    let lease = lease_of(setup, &client, &name, ttl).await;
    let waiting = {
        let mut waiting = Box::pin(client.mutex(&name).ttl(ttl).claim_id(id).acquire());
        assert!(poll_immediate(&mut waiting).await.is_none(), "a claim is not granted in no time");
        setup.eventually("a waiter has its place", async || waiting.place().is_some()).await;
        *Pin::into_inner(waiting)
    };
    let second = setup.queue(&other.mutex(&name).ttl(ttl)).await;
    assert_eq!(waiting.detach(), Some(id), "a wait that was asked for has an id");
    let mut again = Box::pin(by.mutex(&name).ttl(ttl).claim_id(id).acquire());
    assert!(poll_immediate(&mut again).await.is_none(), "a claim is not granted in no time");
    setup.eventually("a repeated claim has its place", async || again.place().is_some()).await;
    assert_eq!(again.place().map(|place| place.position), Some(1), "a repeated claim keeps its place");
    release(setup, lease).await;
    let first = setup.within("a repeated claim is served", again).await.expect("a wait is answered");
    release(setup, first).await;
    drop(setup.within("the second in line is served", second).await.expect("a wait is answered"));
}

/// Whoever claims again by another client waits there: that one is told of the grant, although the first one was killed.
pub async fn who_waits_on_at_another_client_is_served(setup: &dyn Setup) {
    let check = "adoption::who_waits_on_at_another_client_is_served";
    if !setup.can(check, ADOPTION, |capability| can_adopt(capability) && capability.is_fifo).await {
        return;
    }
    let (client, by) = (setup.client().await, setup.client().await);
    let (name, ttl, id) = (name("waits-on"), setup.ttl(Duration::from_secs(20)).await, new_id());
    let lease = lease_of(setup, &client, &name, ttl).await;
    let mut gone = setup.actor().await;
    let left = gone.ask(&["leave", &id.to_string(), &name, &ttl.as_millis().to_string()]).await;
    assert_eq!(left.as_deref(), Some("left"), "a claim that waits has a place");
    gone.kill();
    let mut again = Box::pin(by.mutex(&name).ttl(ttl).claim_id(id).acquire());
    assert!(poll_immediate(&mut again).await.is_none(), "a claim is not granted in no time");
    setup.eventually("a repeated claim has its place", async || again.place().is_some()).await;
    assert_eq!(again.place().map(|place| place.position), Some(1), "a repeated claim keeps its place");
    release(setup, lease).await;
    let served = setup.within("who waits on at another client is served", again).await;
    release(setup, served.expect("who waits on at another client is served")).await;
}

/// Where a claim lives with its client, the id of another client's claim is refused, and that claim is as it was.
pub async fn an_id_of_another_client_is_refused_where_a_claim_cannot_move(setup: &dyn Setup) {
    let check = "adoption::an_id_of_another_client_is_refused_where_a_claim_cannot_move";
    if !setup.can(check, "claims that end with their client", |capability| !can_adopt(capability)).await {
        return;
    }
    let (client, other) = (setup.client().await, setup.client().await);
    let (name, ttl, id) = (name("elsewhere"), setup.ttl(2 * SHORT).await, new_id());
    let lock = client.mutex(&name).ttl(ttl).claim_id(id);
    let lease = setup.within("the claim is granted", lock.acquire()).await.expect("the claim is granted");
    let refused =
        setup.within("a claim is answered", other.mutex(&name).ttl(ttl).claim_id(id).acquire()).await;
    let refused = refused.expect_err("a client takes the id of another");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    pause(ttl * 2).await;
    assert!(!lease.is_lost(), "a refused claim costs the holder its lease");
    release(setup, lease).await;
}

/// Which clients can renew a delivery, if the engine has queues; if not, the skip is noted.
async fn queues(setup: &dyn Setup, check: &str, wanted: Option<Adopts>) -> Option<Adopts> {
    let adopts = setup.client().await.queue_capability().map(|capability| capability.adopts);
    let is_meant = adopts.is_some() && wanted.is_none_or(|wanted| adopts == Some(wanted));
    let what = match wanted {
        None => "queues",
        Some(Adopts::AnyClient) => "queues whose deliveries go to other clients",
        Some(Adopts::SameClient) => "queues whose deliveries end with their client",
    };
    setup.can(check, what, |_| is_meant).await;
    adopts.filter(|_| is_meant)
}

async fn next(setup: &dyn Setup, queue: &Queue) -> Delivery {
    setup.within("an item is handed out again", queue.next()).await.expect("an item is handed out")
}

async fn try_next(setup: &dyn Setup, queue: &Queue) -> Option<Delivery> {
    setup.within("a try is answered", queue.try_next()).await.expect("a try is answered")
}

async fn attach_delivery(
    setup: &dyn Setup,
    queue: &Queue,
    detached: &DetachedDelivery,
) -> Result<Option<Delivery>> {
    setup.within("an attachment is answered", queue.attach(detached)).await
}

/// Has what one queue has handed out finished from the other one.
async fn finish_elsewhere(setup: &dyn Setup, by: &Queue, detached: &DetachedDelivery, ttl: Duration) {
    let delivery = attach_delivery(setup, by, detached).await.expect("an attachment is answered");
    let delivery = delivery.expect("a delivery that was detached just now is attached");
    assert_eq!((delivery.payload(), delivery.attempt()), (&b"work"[..], 1));
    assert_eq!((delivery.claim(), delivery.group()), (detached.claim(), Some("g")));
    pause(ttl * 3).await;
    assert!(!delivery.lease().is_lost(), "an attached delivery is renewed");
    assert!(try_next(setup, by).await.is_none(), "two consumers have one item");
    setup.within("an ack is answered", delivery.ack()).await.expect("an attached delivery is settled");
    setup
        .eventually("what was acknowledged is done", async || by.is_empty().await.expect("it is answered"))
        .await;
}

/// A delivery that was detached is finished by the client that attaches it, when the first one has gone.
pub async fn another_client_finishes_a_delivery(setup: &dyn Setup) {
    let check = "adoption::another_client_finishes_a_delivery";
    let Some(_) = queues(setup, check, Some(Adopts::AnyClient)).await else { return };
    let (first, second) = (setup.client().await, setup.client().await);
    let (name, ttl) = (name("taken"), 4 * SHORT);
    first.queue(&name).push("work").group("g").await.expect("a push is answered");
    let detached = next(setup, &first.queue(&name).ttl(ttl)).await.detach().expect("it is held");
    setup.within("the first client ends", first.close()).await;
    finish_elsewhere(setup, &second.queue(&name), &detached, ttl).await;
}

/// The client that has detached a delivery has it again.
pub async fn a_client_finishes_what_it_has_detached(setup: &dyn Setup) {
    let check = "adoption::a_client_finishes_what_it_has_detached";
    let Some(_) = queues(setup, check, None).await else { return };
    let client = setup.client().await;
    let (queue, ttl) = (client.queue(&name("again")).ttl(2 * SHORT), 2 * SHORT);
    queue.push("work").group("g").await.expect("a push is answered");
    let detached = next(setup, &queue).await.detach().expect("it is held");
    finish_elsewhere(setup, &queue, &detached, ttl).await;
    let attached = attach_delivery(setup, &queue, &detached).await.expect("it is answered");
    assert!(attached.is_none(), "what was acknowledged is attached");
}

/// What nobody attaches is handed out again after its ttl, and is not attached then.
pub async fn a_detached_delivery_comes_again(setup: &dyn Setup) {
    let check = "adoption::a_detached_delivery_comes_again";
    let Some(_) = queues(setup, check, None).await else { return };
    let client = setup.client().await;
    let ttl = 2 * SHORT;
    let queue = client.queue(&name("unattached")).ttl(ttl);
    queue.push("work").group("g").await.expect("a push is answered");
    let start = now();
    let detached = next(setup, &queue).await.detach().expect("it is held");
    let again = next(setup, &queue).await;
    assert_passed(start, ttl, "what was detached is handed out again");
    assert_eq!(again.attempt(), 2, "it counts as an attempt");
    let attached = attach_delivery(setup, &queue, &detached).await.expect("it is answered");
    assert!(attached.is_none(), "a delivery that has ended is attached");
    setup.within("an ack is answered", again.ack()).await.expect("the later delivery is as it was");
}

/// Deliveries are renewed and ended by their ids, each with an answer of its own.
pub async fn deliveries_are_renewed_and_settled_by_their_ids(setup: &dyn Setup) {
    let check = "adoption::deliveries_are_renewed_and_settled_by_their_ids";
    let Some(adopts) = queues(setup, check, None).await else { return };
    let (client, other) = (setup.client().await, setup.client().await);
    let by = if adopts == Adopts::AnyClient { &other } else { &client };
    // Four are taken one after the other before any is renewed.
    let (name, ttl) = (name("by-id"), 4 * SHORT);
    let (queue, by) = (client.queue(&name).ttl(ttl), by.queue(&name).max_attempts(1));
    let mut claims = Vec::new();
    for payload in ["acknowledged", "retried", "failed", "put back"] {
        queue.push(payload).await.expect("a push is answered");
        claims.push(next(setup, &queue).await.detach().expect("it is held").claim());
    }
    let start = now();
    while now().since(start) < ttl * 2 {
        let mut asked = claims.clone();
        asked.push(ClaimId::new(4711));
        let kept = setup.within("renewals are answered", by.detached().renew(asked)).await;
        let kept: Vec<bool> = kept.into_iter().map(|kept| kept.expect("it is answered").is_some()).collect();
        assert_eq!(kept, [true, true, true, true, false], "what goes on does, and what nobody has does not");
        pause(ttl / 4).await;
    }
    assert!(try_next(setup, &queue).await.is_none(), "two consumers have one item");
    let (deliveries, one) = (by.detached(), |at: usize| vec![claims[at]]);
    let answers = [
        setup.within("an answer", deliveries.ack(one(0))).await,
        setup.within("an answer", deliveries.retry(one(1), Duration::ZERO, "no answer")).await,
        setup.within("an answer", deliveries.fail(one(2), "no such order")).await,
        setup.within("an answer", deliveries.put_back(one(3))).await,
        setup.within("an answer", deliveries.ack(vec![ClaimId::new(4711)])).await,
    ];
    let answers: Vec<SettleAnswer> =
        answers.into_iter().flatten().map(|answer| answer.expect("it is answered")).collect();
    let (settled, buried) = (SettleAnswer::Settled, SettleAnswer::Buried);
    assert_eq!(answers, [settled, buried, settled, settled, SettleAnswer::Lost], "one answer for each");
    let dead = by.dead_letters(None, 10).await.expect("it is answered");
    assert_eq!(dead.len(), 2, "two are dead letters");
    let back = next(setup, &queue).await;
    assert_eq!(
        (back.payload(), back.attempt()),
        (&b"put back"[..], 1),
        "what is put back was not handed out"
    );
    setup.within("an ack is answered", back.ack()).await.expect("it is held");
    assert_eq!(by.depth().await.expect("it is answered"), 0, "what is done is counted");
}

/// Where a delivery ends with its client, another client is told so.
pub async fn a_delivery_of_another_client_is_refused_where_it_cannot_move(setup: &dyn Setup) {
    let check = "adoption::a_delivery_of_another_client_is_refused_where_it_cannot_move";
    let Some(_) = queues(setup, check, Some(Adopts::SameClient)).await else { return };
    let (client, other) = (setup.client().await, setup.client().await);
    let name = name("stays");
    client.queue(&name).push("work").group("g").await.expect("a push is answered");
    let detached = next(setup, &client.queue(&name).ttl(4 * SHORT)).await.detach().expect("it is held");
    assert!(detached.bound_to().is_some(), "a delivery that ends with its client says so");
    let queue = other.queue(&name);
    let refused = attach_delivery(setup, &queue, &detached).await.expect_err("another client cannot keep it");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let kept = setup.within("a renewal is answered", queue.detached().renew(vec![detached.claim()])).await;
    let refused = kept.into_iter().next().expect("an answer for each");
    let refused = refused.expect_err("another client cannot renew what ends with its client");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let mine = attach_delivery(setup, &client.queue(&name), &detached).await.expect("it is answered");
    assert!(mine.is_some(), "a delivery that was detached just now is attached");
}
