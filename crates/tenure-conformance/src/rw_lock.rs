//! Many readers or one writer. Driven at the engine.

use tenure_core::claim::Kind;

use crate::Setup;
use crate::direct::rw_lock;
use crate::stage::{Stage, resource};

async fn can(setup: &impl Setup, check: &str) -> bool {
    let has = |capability: &tenure_core::engine::Capability| capability.kinds.contains(&Kind::RwLock);
    setup.can(&format!("rw_lock::{check}"), "read-write locks", has).await
}

/// Readers hold it together.
pub async fn readers_share(setup: &impl Setup) {
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
pub async fn a_writer_is_alone(setup: &impl Setup) {
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
pub async fn a_waiting_writer_is_not_starved(setup: &impl Setup) {
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
pub async fn readers_behind_a_writer_are_served_together(setup: &impl Setup) {
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
