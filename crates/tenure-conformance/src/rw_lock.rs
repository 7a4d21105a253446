//! Many readers or one writer.

use tenure_core::model::claim::{CAPACITY_MAX, Kind};

use crate::actor::{SECTIONS, work_in_sections};
use crate::direct::rw_lock;
use crate::form::{Contest, Form};
use crate::history::{Section, over_capacity, stale_tokens};
use crate::stage::{LONG, name, resource};
use crate::{Setup, cancellation, death, loss};

async fn can(setup: &dyn Setup, check: &str) -> bool {
    let has = |capability: &tenure_core::engine::Capability| capability.kinds.contains(&Kind::RwLock);
    setup.can(&format!("rw_lock::{check}"), "read-write locks", has).await
}

/// Readers hold it together.
pub async fn readers_share(setup: &dyn Setup) {
    if !can(setup, "readers_share").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("readers");
    let readers = [(&a, a.trying(&resource, &rw_lock(false))), (&b, b.trying(&resource, &rw_lock(false)))];
    for (direct, reader) in &readers {
        direct.grant(reader).await;
    }
    assert_eq!(a.view(&resource).await.expect("it is held").holds.len(), 2);
    for (direct, reader) in &readers {
        direct.release(reader).await;
    }
}

/// A writer holds it while no other writer and no reader does.
pub async fn a_writer_is_alone(setup: &dyn Setup) {
    if !can(setup, "a_writer_is_alone").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("writer");
    let reader = a.trying(&resource, &rw_lock(false));
    a.grant(&reader).await;
    b.refuse(&b.trying(&resource, &rw_lock(true))).await;
    a.release(&reader).await;
    let writer = b.trying(&resource, &rw_lock(true));
    b.grant(&writer).await;
    a.refuse(&a.trying(&resource, &rw_lock(false))).await;
    a.refuse(&a.trying(&resource, &rw_lock(true))).await;
    b.release(&writer).await;
}

/// Readers that come after a waiting writer wait behind it.
pub async fn a_waiting_writer_is_not_starved(setup: &dyn Setup) {
    if !can(setup, "a_waiting_writer_is_not_starved").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("starved");
    let reader = a.trying(&resource, &rw_lock(false));
    a.grant(&reader).await;
    let writer = b.waiting(&resource, &rw_lock(true));
    b.enqueue(&writer).await;
    a.refuse(&a.trying(&resource, &rw_lock(false))).await;
    let late = a.waiting(&resource, &rw_lock(false));
    a.enqueue(&late).await;
    a.release(&reader).await;
    b.served(&writer, "all readers before it have gone").await;
    a.assert_waits(&late, "a writer holds").await;
    b.release(&writer).await;
    a.served(&late, "the writer has gone").await;
    a.release(&late).await;
}

/// Readers that wait one behind the other are served together, up to the next writer.
pub async fn readers_behind_a_writer_are_served_together(setup: &dyn Setup) {
    if !can(setup, "readers_behind_a_writer_are_served_together").await {
        return;
    }
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("together");
    let writer = a.trying(&resource, &rw_lock(true));
    a.grant(&writer).await;
    let claims = [false, false, true, false].map(|is_writer| b.waiting(&resource, &rw_lock(is_writer)));
    for claim in &claims {
        b.enqueue(claim).await;
    }
    a.release(&writer).await;
    b.served(&claims[0], "the writer has gone").await;
    b.served(&claims[1], "readers share").await;
    b.assert_waits(&claims[2], "readers hold").await;
    b.assert_waits(&claims[3], "a writer waits before it").await;
    for claim in &claims {
        b.release(claim).await;
    }
}

/// A reader of one process shares with those of others, and with no writer; whoever works at the same time as a
/// writer is found.
pub async fn processes_read_together_and_write_alone(setup: &dyn Setup) {
    if !can(setup, "processes_read_together_and_write_alone").await {
        return;
    }
    let (name, client) = (name("sides"), setup.client().await);
    let forms = [Form::Read, Form::Write, Form::Read, Form::Write];
    let mut actors = Vec::new();
    for _ in forms {
        actors.push(setup.actor().await);
    }
    let readers = [
        actors[0].try_acquire(Form::Read, &name, LONG).await,
        actors[2].try_acquire(Form::Read, &name, LONG).await,
    ];
    assert!(
        readers.iter().all(Option::is_some),
        "a reader is refused what a reader of another process holds"
    );
    assert!(
        setup.try_take(Form::Write.of(&client, &name, LONG)).await.is_none(),
        "a writer joins readers of other processes"
    );
    for reader in [0, 2] {
        actors[reader].ask(&["release", "lease"]).await.expect("it lives");
    }
    let sections = work_in_sections(&mut actors, &forms, &name, setup.rounds(SECTIONS).await).await;
    let weight = |section: &Section| forms[section.client].weight();
    assert_eq!(
        over_capacity(&sections, CAPACITY_MAX, weight),
        [],
        "somebody worked beside a writer of {name:?}"
    );
    let writers: Vec<Section> = sections.into_iter().filter(|section| weight(section) > 1).collect();
    assert_eq!(stale_tokens(&writers), [], "a later writer of {name:?} had no larger token");
    setup.assert_nothing_is_left(&name).await;
}

/// A wait that is dropped at any moment leaves no place in the queue, and no later grant.
pub async fn a_wait_dropped_at_any_moment_leaves_nothing(setup: &dyn Setup) {
    if can(setup, "a_wait_dropped_at_any_moment_leaves_nothing").await {
        cancellation::drop_waits(setup, Contest::RW_LOCK).await;
    }
}

/// A lease that is dropped on a thread without any runtime is released.
pub async fn a_lease_dropped_outside_a_runtime_is_released(setup: &dyn Setup) {
    if can(setup, "a_lease_dropped_outside_a_runtime_is_released").await {
        cancellation::drop_outside_a_runtime(setup, Contest::RW_LOCK).await;
    }
}

/// A lease whose hold an operator breaks is lost to its user within its ttl.
pub async fn a_broken_lease_is_lost_to_its_holder(setup: &dyn Setup) {
    if can(setup, "a_broken_lease_is_lost_to_its_holder").await {
        loss::broken_is_lost(setup, Contest::RW_LOCK.holder).await;
    }
}

/// Work under `run` is dropped when its lease is lost.
pub async fn run_drops_its_work_on_loss(setup: &dyn Setup) {
    if can(setup, "run_drops_its_work_on_loss").await {
        loss::run_drops(setup, Contest::RW_LOCK.next).await;
    }
}

/// A holder that is killed is replaced by the next waiter, at once where the engine notices deaths.
pub async fn a_killed_holder_is_replaced(setup: &dyn Setup) {
    if can(setup, "a_killed_holder_is_replaced").await {
        death::killed_holder(setup, Contest::RW_LOCK).await;
    }
}

/// A waiter that is killed is not waited for.
pub async fn a_killed_waiter_is_skipped(setup: &dyn Setup) {
    if can(setup, "a_killed_waiter_is_skipped").await {
        death::killed_waiter(setup, Contest::RW_LOCK).await;
    }
}
