//! Waiters are served in the order in which they came, and nobody is waited for who is gone.

use std::time::Duration;

use futures_util::future::{join, join_all, poll_immediate};
use tenure_core::counts::LearnedBy;
use tenure_core::engine::RenewAnswer;
use tenure_core::model::step::confirm_window;
use tenure_core::{Settings, Tenure};

use crate::Setup;
use crate::direct;
use crate::form::Form;
use crate::stage::{LONG, SHORT, name, now, resource, ttl_of};

/// Clients that queue one after the other are served in that order, each once the one before has released.
pub async fn waiters_are_served_in_order_of_arrival(setup: &dyn Setup) {
    if !is_fifo(setup, "waiters_are_served_in_order_of_arrival").await {
        return;
    }
    let clients = [setup.client().await, setup.client().await, setup.client().await];
    let name = name("order");
    let mut lease = setup.take(&clients[0].mutex(&name)).await;
    let mut waiting = std::collections::VecDeque::new();
    for client in clients.iter().cycle().take(7) {
        waiting.push_back(setup.queue(&client.mutex(&name)).await);
    }
    while let Some(next) = waiting.pop_front() {
        setup.within("a release", lease.release()).await.expect("a release is answered");
        lease = setup.within("the next in the queue is served", next).await.expect("served");
        for later in &mut waiting {
            assert!(poll_immediate(later).await.is_none(), "one is served who came later");
        }
    }
    setup.within("a release", lease.release()).await.expect("a release is answered");
    setup.assert_nothing_is_left(&name).await;
}

/// Tasks of one client that all want a mutex from the first moment on hand it over by wakes, whatever is under way when it is released: a
/// claim of the next one that was not answered yet, or its heartbeat. What is not heard waits for a heartbeat, seconds later.
pub async fn tasks_that_begin_at_once_are_told_in_turn(setup: &dyn Setup) {
    const TASKS: usize = 8;
    const ROUNDS: usize = 2;
    let check = "fifo::tasks_that_begin_at_once_are_told_in_turn";
    if !setup.can(check, "wakes", |capability| capability.tells_waiters).await {
        return;
    }
    let counting = Tenure::connect_with(setup.connector(), Settings::default().counts(true));
    let client = setup.within("a client connects", counting).await.expect("a client connects");
    let name = name("rush");
    let mutex = client.mutex(&name);
    // Until all have asked: a store that answers at once would serve each before the next one comes.
    let first = setup.take(&mutex).await;
    let work = (0..TASKS).map(|_| async {
        for _ in 0..ROUNDS {
            let lease = mutex.acquire().await.expect("its turn comes");
            lease.release().await.expect("a release is answered");
        }
    });
    let start = now();
    // The release is sent while their claims are under way.
    let all = async { join(join_all(work), first.release()).await.1.expect("a release is answered") };
    setup.within("all take their turns", all).await;
    let by_heartbeat = client.counts().learned_by[LearnedBy::Heartbeat as usize];
    let took = now().since(start);
    assert_eq!(
        by_heartbeat, 0,
        "so many grants wait for a heartbeat, since the wake was lost; all took {took:?}"
    );
    setup.assert_nothing_is_left(&name).await;
}

/// Processes that queue one after the other are served in that order.
pub async fn processes_are_served_in_order_of_arrival(setup: &dyn Setup) {
    if !is_fifo(setup, "processes_are_served_in_order_of_arrival").await {
        return;
    }
    let client = setup.client().await;
    let name = name("order");
    let lease = setup.take(&client.mutex(&name)).await;
    let mut last = lease.token();
    let mut actors = Vec::new();
    for place in 1..=3 {
        let mut actor = setup.actor().await;
        actor.tell_acquire(Form::Mutex, &name, LONG);
        setup.eventually("a process waits", async || waiting(&client, &name).await == place).await;
        actors.push(actor);
    }
    setup.within("a release", lease.release()).await.expect("a release is answered");
    for actor in &mut actors {
        let token = actor.granted().await.token;
        assert!(token > last, "a process that came later has token {token}, an earlier one had {last}");
        last = token;
        assert_eq!(actor.ask(&["release", "lease"]).await.as_deref(), Some("released\tReleased"));
    }
    setup.assert_nothing_is_left(&name).await;
}

async fn is_fifo(setup: &dyn Setup, check: &str) -> bool {
    setup.can(&format!("fifo::{check}"), "order", |capability| capability.is_fifo).await
}

/// A waiter learns of its grant by a wake, or at the latest by its next heartbeat; not by the end of anything.
pub async fn a_release_reaches_the_next_waiter_by_itself(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("reaches");
    let lease = setup.take(&a.mutex(&name).ttl(LONG)).await;
    let waiting = setup.queue(&b.mutex(&name).ttl(LONG)).await;
    let released = now();
    setup.within("a release", lease.release()).await.expect("a release is answered");
    setup.within("the waiter is served", waiting).await.expect("served");
    let took = now().since(released);
    let most = confirm_window(LONG) / 3 + Duration::from_secs(1);
    assert!(took <= most, "it took {took:?} to reach the waiter, a heartbeat comes within {most:?}");
}

/// A waiter that withdraws is not waited for.
pub async fn a_withdrawn_waiter_is_skipped(setup: &dyn Setup) {
    let (a, b, c) = (setup.client().await, setup.client().await, setup.client().await);
    let name = name("withdrawn");
    let lease = setup.take(&a.mutex(&name)).await;
    let withdrawn = setup.queue(&b.mutex(&name)).await;
    let next = setup.queue(&c.mutex(&name)).await;
    drop(withdrawn);
    setup.eventually("the place is gone", async || waiting(&a, &name).await == 1).await;
    let released = now();
    setup.within("a release", lease.release()).await.expect("a release is answered");
    setup.within("the next waiter is served", next).await.expect("served");
    let took = now().since(released);
    assert!(took < confirm_window(LONG), "the withdrawn waiter was waited for: {took:?}");
    setup.assert_nothing_is_left(&name).await;
}

async fn waiting(client: &tenure_core::Tenure, name: &str) -> u32 {
    let views = client.inspect(name).await.expect("an inspection is answered");
    views.iter().map(|view| view.waiting).sum()
}

/// A waiter that is not heard of any more is not waited for.
pub async fn a_dead_waiter_is_skipped(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("dead");
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    let mut brief = direct::mutex();
    brief.ttl = ttl_of(a.capability(), SHORT);
    let dead = b.waiting(&resource, &brief);
    b.enqueue(&dead).await;
    let next = b.waiting(&resource, &direct::mutex());
    b.enqueue(&next).await;
    setup
        .eventually("the dead waiter is gone", async || {
            // However long its ttl, a hold may end when nothing is heard of its user.
            assert!(matches!(a.renew(&held).await, RenewAnswer::Renewed { .. }), "it is held");
            match b.heartbeat(&next).await {
                RenewAnswer::Waiting(waiting, _) => waiting.position == 1,
                other => panic!("a waiter goes on waiting: {other:?}"),
            }
        })
        .await;
    a.release(&held).await;
    let answer = b.heartbeat(&next).await;
    assert!(matches!(answer, RenewAnswer::Granted(_)), "it is served at once: {answer:?}");
    assert_eq!(b.heartbeat(&dead).await, RenewAnswer::Lost, "a place that has ended is lost");
    b.release(&next).await;
}

/// A waiter in the middle that leaves does not make those behind it overtake the head.
pub async fn nobody_is_served_early_when_a_middle_one_leaves(setup: &dyn Setup) {
    if !is_fifo(setup, "nobody_is_served_early_when_a_middle_one_leaves").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("middle");
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    let claims = [0, 1, 2].map(|_| b.waiting(&resource, &direct::mutex()));
    for claim in &claims {
        b.enqueue(claim).await;
    }
    let [first, middle, last] = claims;
    b.release(&middle).await;
    b.assert_waits(&first, "nothing was released").await;
    b.assert_waits(&last, "nothing was released").await;
    a.release(&held).await;
    b.served(&first, "the hold was released").await;
    b.assert_waits(&last, "the first holds").await;
    b.release(&first).await;
    b.served(&last, "the first released").await;
    b.release(&last).await;
}

/// A grant whose wake never arrives is told by the next heartbeat, with all that the wake would have said.
pub async fn a_heartbeat_heals_a_lost_wake(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("heals");
    let held = a.trying(&resource, &direct::mutex());
    let first = a.grant(&held).await;
    let waiting = b.waiting(&resource, &direct::mutex());
    b.enqueue(&waiting).await;
    a.release(&held).await;
    // The engine's wakes are never looked at here.
    let grant = b.served(&waiting, "its wake was lost").await;
    assert!(grant.token > first.token);
    // Where a grant lives with its client, it lives as long as that is sure to.
    let least = confirm_window(LONG).min(b.capability().silence_max / 2);
    assert!(grant.ends_in > least, "a heartbeat confirms: it ends in {:?}", grant.ends_in);
    let again = b.heartbeat(&waiting).await;
    match again {
        RenewAnswer::Granted(again) => assert_eq!(again.token, grant.token, "it is the same grant"),
        other => panic!("a heartbeat of a holder is answered with its grant: {other:?}"),
    }
    b.release(&waiting).await;
}

/// A waiter is told its place, and when it has moved up.
pub async fn a_waiter_is_told_its_place(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("place");
    let held = a.trying(&resource, &direct::mutex());
    a.grant(&held).await;
    let claims = [1, 2, 3].map(|place| (place, b.waiting(&resource, &direct::mutex())));
    for (place, claim) in &claims {
        assert_eq!(b.enqueue(claim).await.position, *place, "the place at which it queued");
    }
    b.release(&claims[0].1).await;
    for (place, claim) in &claims[1..] {
        match b.heartbeat(claim).await {
            RenewAnswer::Waiting(waiting, _) => assert_eq!(waiting.position, place - 1, "it has moved up"),
            other => panic!("a waiter goes on waiting: {other:?}"),
        }
    }
    for (_, claim) in &claims[1..] {
        b.release(claim).await;
    }
    a.release(&held).await;
}
