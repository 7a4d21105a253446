//! A future that is dropped at any moment leaves nothing held and nobody waiting.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use tenure_core::Tenure;

use crate::Setup;
use crate::form::{Contest, Form, Lock};
use crate::stage::{LONG, SHORT, name, now, pause};

/// Polls a future up to `most` times, each time that it asks to be polled. None: it was not ready by then.
pub(crate) async fn poll_times<F: Future + Unpin>(future: &mut F, most: usize) -> Option<F::Output> {
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == most {
            return Poll::Ready(None);
        }
        polls += 1;
        let polled = std::pin::Pin::new(&mut *future).poll(cx).map(Some);
        if polled.is_pending() && polls == most { Poll::Ready(None) } else { polled }
    })
    .await
}

/// Starts an acquisition and drops it: after every number of polls until it is ready, and after short whiles.
async fn drop_at_every_moment(setup: &dyn Setup, lock: &Lock) {
    for polls in 0.. {
        let mut acquire = lock.acquire();
        let polled = poll_times(&mut acquire, polls);
        if setup.within("an acquisition makes progress", polled).await.is_some() {
            break;
        }
        drop(acquire);
        let mut tried = Box::pin(lock.try_acquire());
        drop(setup.within("a try makes progress", poll_times(&mut tried, polls)).await);
    }
    for step in 0..30u32 {
        let mut acquire = lock.acquire();
        assert!(poll_immediate(&mut acquire).await.is_none_or(|acquired| acquired.is_ok()));
        pause(Duration::from_micros(50) * step).await;
        drop(acquire);
    }
}

async fn waiting(client: &Tenure, name: &str) -> u32 {
    let views = client.inspect(name).await.expect("an inspection is answered");
    views.iter().filter(|view| view.resource.as_str() == name).map(|view| view.waiting).sum()
}

/// An acquisition of a free mutex that is dropped at any moment leaves it free, for whoever comes next.
pub async fn an_acquire_dropped_at_any_moment_leaves_nothing(setup: &dyn Setup) {
    drop_acquires(setup, Form::Mutex).await;
}

/// Drops acquisitions of what is free.
pub(crate) async fn drop_acquires(setup: &dyn Setup, form: Form) {
    let client = setup.client().await;
    let name = name("dropped");
    drop_at_every_moment(setup, &form.of(&client, &name, LONG)).await;
    setup.assert_nothing_is_left(&name).await;
}

/// A wait for a held mutex that is dropped at any moment leaves no place in the queue, and no later grant.
pub async fn a_wait_dropped_at_any_moment_leaves_nothing(setup: &dyn Setup) {
    drop_waits(setup, Contest::MUTEX).await;
}

/// Drops waits for what is held, before and while it is granted.
pub(crate) async fn drop_waits(setup: &dyn Setup, contest: Contest) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("dropped");
    let (held, lock) = (contest.holder.of(&a, &name, LONG), contest.next.of(&b, &name, LONG));
    for step in 0..20u32 {
        let lease = setup.take(&held).await;
        let mut waiting = lock.acquire();
        assert!(poll_immediate(&mut waiting).await.is_none(), "it is held");
        pause(Duration::from_micros(100) * (step % 5)).await;
        // The wait is dropped while the grant is on its way to it.
        let release = lease.release();
        if step % 2 == 0 {
            setup.within("a release", release).await.expect("a release is answered");
            pause(Duration::from_micros(40) * step).await;
            drop(waiting);
        } else {
            let mut release = Box::pin(release);
            let is_released = poll_immediate(&mut release).await.is_some();
            drop(waiting);
            if !is_released {
                setup.within("a release", release).await.expect("a release is answered");
            }
        }
    }
    let lease = setup.take(&held).await;
    for polls in 0..2 {
        let mut waiting = lock.acquire();
        let polled = poll_times(&mut waiting, polls);
        assert!(setup.within("a wait makes progress", polled).await.is_none(), "it is held");
    }
    // One that surely has its place, too. Those before it must have left: it is counted.
    setup.eventually("no place is left", async || waiting(&a, &name).await == 0).await;
    drop(setup.queue(&lock).await);
    setup.eventually("no place is left", async || waiting(&a, &name).await == 0).await;
    setup.within("a release", lease.release()).await.expect("a release is answered");
    setup.assert_nothing_is_left(&name).await;
}

/// A lease that is dropped on a thread without any runtime is released, long before its ttl.
pub async fn a_lease_dropped_outside_a_runtime_is_released(setup: &dyn Setup) {
    drop_outside_a_runtime(setup, Contest::MUTEX).await;
}

/// Drops a lease for which another waits.
pub(crate) async fn drop_outside_a_runtime(setup: &dyn Setup, contest: Contest) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("dropped");
    let lease = setup.take(contest.holder.of(&a, &name, LONG)).await;
    let waiting = setup.queue(contest.next.of(&b, &name, LONG)).await;
    let dropped = now();
    std::thread::spawn(move || drop(lease)).join().expect("dropping a lease does not panic");
    drop(setup.within("the next in the queue is served", waiting).await.expect("served"));
    assert!(now().since(dropped) < LONG / 2, "the lease was released, it did not end by itself");
    setup.assert_nothing_is_left(&name).await;
}

/// A lease is held while the thread of its user does nothing else for three ttls.
pub async fn a_lease_outlives_a_caller_that_is_blocked(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("blocked");
    let ttl = setup.ttl(2 * SHORT).await;
    let lease = setup.take(&a.mutex(&name).ttl(ttl)).await;
    #[allow(clippy::disallowed_methods, reason = "this is what must not harm the lease")]
    std::thread::sleep(3 * ttl);
    assert!(!lease.is_lost(), "the lease is renewed while its user's thread is blocked");
    assert!(setup.try_take(&b.mutex(&name)).await.is_none(), "the engine knows it too");
    setup.within("a release", lease.release()).await.expect("a release is answered");
}

/// A release whose future is dropped, polled or not, goes on.
pub async fn a_dropped_release_still_releases(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("dropped");
    for polls in 0..2 {
        let lease = setup.take(&a.mutex(&name).ttl(LONG)).await;
        let waiting = setup.queue(&b.mutex(&name).ttl(LONG)).await;
        let mut release = Box::pin(lease.release());
        for _ in 0..polls {
            // It may be answered already.
            drop(poll_immediate(&mut release).await);
        }
        drop(release);
        drop(setup.within("the next in the queue is served", waiting).await.expect("served"));
        setup.assert_nothing_is_left(&name).await;
    }
}

/// Many leases that are dropped at once are all released.
pub async fn many_leases_dropped_at_once_are_released(setup: &dyn Setup) {
    const LEASES: usize = 300;
    let (a, b) = (setup.client().await, setup.client().await);
    let stem = name("dropped");
    let mutexes = (0..LEASES).map(|number| a.mutex(&format!("{stem}/{number}")).ttl(LONG));
    let leases = join_all(mutexes.map(|mutex| async move { setup.take(&mutex).await })).await;
    drop(leases);
    setup
        .eventually("all leases are released", async || {
            b.inspect(&stem).await.expect("an inspection is answered").is_empty()
        })
        .await;
}
