//! One of several, whichever is free first.

use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::{AnyOf, ErrorKind, Tenure};

use crate::Setup;
use crate::form::{Form, in_ring};
use crate::stage::{LONG, name, waiters};

/// Names all mutexes of a ring, of which one is wanted.
fn any(client: &Tenure, name: &str) -> AnyOf {
    client.any((0..3).map(|number| client.mutex(&in_ring(name, number)).ttl(LONG).into()))
}

/// Each gets another one, in the order in which they were named; and when none is left, a try says so, and holds nothing.
pub async fn each_takes_the_first_that_is_free(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let mut actor = setup.actor().await;
    let name = name("any");
    let mut held = Vec::new();
    for (number, client) in [&a, &b, &a].into_iter().enumerate() {
        let tried = setup.within("a try", any(client, &name).try_acquire()).await.expect("a try is answered");
        let lease = tried.expect("one is free");
        assert_eq!(lease.resource().as_str(), in_ring(&name, number as u32), "the first that is free");
        let tried = actor.try_acquire(Form::Mutex, lease.resource().as_str(), LONG).await;
        assert!(tried.is_none(), "another process got what is held");
        held.push(lease);
    }
    let tried = setup.within("a try", any(&b, &name).try_acquire()).await.expect("a try is answered");
    assert!(tried.is_none(), "it has one, while all are held");
    let late = any(&b, &name).acquire_within(Duration::from_millis(500)).await.expect_err("all are held");
    assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
    for released in join_all(held.into_iter().map(|lease| lease.release())).await {
        released.expect("a release is answered");
    }
    setup.assert_nothing_is_left(&name).await;
}

/// Who waits for any gets the first that is released, and leaves the queues of the others: whoever waits there is not held up.
pub async fn whoever_waits_is_served_by_the_first(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("any");
    let mut held = Vec::new();
    for number in 0..3 {
        held.push(setup.take(&a.mutex(&in_ring(&name, number)).ttl(LONG)).await);
    }
    let all = any(&b, &name);
    let waiting = setup.within("a wait", all.acquire());
    let releasing = async {
        for number in 0..3 {
            let member = in_ring(&name, number);
            setup.eventually("it waits for each", async || waiters(&a, &member).await == 1).await;
        }
        held.remove(1).release().await.expect("a release is answered")
    };
    let (lease, _) = futures_util::future::join(waiting, releasing).await;
    let lease = lease.expect("one was released");
    assert_eq!(lease.resource().as_str(), in_ring(&name, 1), "the one that was released");
    for number in [0, 2] {
        let member = in_ring(&name, number);
        setup.eventually("it leaves the others", async || waiters(&a, &member).await == 0).await;
    }
    for released in join_all(held.into_iter().map(|lease| lease.release())).await {
        released.expect("a release is answered");
    }
    setup.within("a release", lease.release()).await.expect("a release is answered");
    setup.assert_nothing_is_left(&name).await;
}
