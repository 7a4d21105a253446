//! A store on several servers of which one hangs, or hangs for one verb: what has nothing to do with it goes on.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::poll_immediate;
use pollster::block_on;
use tenure_core::clock::Clock;
use tenure_core::engine::{ReleaseAnswer, Shard};
use tenure_core::memory::{Flaw, Store};
use tenure_core::testing::virtual_clock::VirtualClock;
use tenure_core::{ErrorKind, Lease, Name, Settings, Tenure};

use crate::client::eventually;

const BRIEF: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);
/// How long the store says that its queues may take: longer than the client's answer timeout.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is named `hung/…` is on a server of its own.
#[derive(Default)]
struct TwoServers {
    is_hung: AtomicBool,
    /// No heartbeat is answered, wherever it goes.
    has_no_heartbeats: AtomicBool,
    /// Nothing but renewals and heartbeats is answered, wherever it goes.
    only_renews: AtomicBool,
    /// How many pushes the store was asked for.
    pushes: AtomicUsize,
}

impl Flaw for TwoServers {
    fn shard(&self, resource: &Name) -> Shard {
        Shard(u16::from(resource.as_str().starts_with("hung/")))
    }

    fn answer_max(&self) -> Duration {
        PATIENCE
    }

    fn hangs(&self, verb: &'static str, resource: &Name) -> bool {
        self.pushes.fetch_add(usize::from(verb == "push"), Ordering::Relaxed);
        verb == "heartbeat" && self.has_no_heartbeats.load(Ordering::Relaxed)
            || !["renew", "heartbeat"].contains(&verb) && self.only_renews.load(Ordering::Relaxed)
            || self.is_hung.load(Ordering::Relaxed) && resource.as_str().starts_with("hung/")
    }
}

fn start() -> (VirtualClock, Arc<TwoServers>, Tenure, Tenure) {
    let (clock, servers) = (VirtualClock::new(7), Arc::new(TwoServers::default()));
    let store = Store::with_flaw(Arc::new(clock.clone()), Some(servers.clone()));
    let client = || {
        let clock: Arc<dyn Clock> = Arc::new(clock.clone());
        block_on(Tenure::start(store.clone().connector(), clock, Settings::default())).expect("connects")
    };
    let (a, b) = (client(), client());
    (clock, servers, a, b)
}

fn hold(client: &Tenure, name: &str, ttl: Duration) -> Lease {
    block_on(client.mutex(name).ttl(ttl).acquire()).expect("it is free")
}

/// Lets a third of the brief ttl pass and a little more, until the lease has been renewed.
fn pass(clock: &VirtualClock, lease: &Lease) {
    let before = lease.deadline();
    clock.advance(BRIEF * 7 / 20);
    eventually("renewed", || lease.deadline() > before);
    assert!(!lease.is_lost());
}

#[test]
fn a_server_that_hangs_costs_only_what_is_on_it() {
    let (clock, servers, client, other) = start();
    let lost = hold(&client, "hung/brief", BRIEF);
    let kept = hold(&client, "brief", BRIEF);
    let (queue, hung_queue) = (client.queue("queue").ttl(BRIEF), client.queue("hung/queue").ttl(BRIEF));
    let delivery = block_on(async {
        queue.push("work").await.expect("it is pushed");
        queue.next().await.expect("it is there")
    });
    let busy = [hold(&other, "busy", LONG), hold(&other, "hung/busy", LONG)];
    let (waits, waits_there) = (client.mutex("busy"), client.mutex("hung/busy"));
    let (mut waiting, mut waiting_there) = (Box::pin(waits.acquire()), Box::pin(waits_there.acquire()));
    assert!(block_on(poll_immediate(&mut waiting)).is_none());
    assert!(block_on(poll_immediate(&mut waiting_there)).is_none());
    eventually("they wait", || waiting.place().is_some() && waiting_there.place().is_some());
    servers.is_hung.store(true, Ordering::Relaxed);
    let (mut asked, mut pushed) = (Vec::new(), Vec::new());
    for round in 0..30 {
        // Something of each verb is always under way there.
        let (there, mut push) =
            (client.mutex(&format!("hung/{round}")), Box::pin(hung_queue.push("more").into_future()));
        let mut asking = Box::pin(async move { there.acquire().await });
        assert!(block_on(poll_immediate(&mut asking)).is_none());
        assert!(block_on(poll_immediate(&mut push)).is_none());
        asked.push(asking);
        pushed.push(push);
        pass(&clock, &kept);
        block_on(async {
            let lease = client.mutex("free").acquire().await.expect("it is free");
            assert_eq!(lease.release().await.expect("answers"), ReleaseAnswer::Released);
            queue.push("work").await.expect("it is pushed");
            queue.next().await.expect("it is there").ack().await.expect("it is in flight");
        });
        assert!(!delivery.lease().is_lost(), "a delivery of the other server");
    }
    assert!(lost.is_lost());
    drop(busy);
    drop(block_on(waiting).expect("it is handed over"));
}

#[test]
fn a_lease_does_not_wait_for_the_heartbeats_of_others() {
    let (clock, servers, client, other) = start();
    let busy = hold(&other, "busy", LONG);
    let kept = hold(&client, "brief", BRIEF);
    let waits = client.mutex("busy");
    let mut waiting = Box::pin(waits.acquire());
    assert!(block_on(poll_immediate(&mut waiting)).is_none());
    eventually("it waits", || waiting.place().is_some());
    servers.has_no_heartbeats.store(true, Ordering::Relaxed);
    for _ in 0..30 {
        pass(&clock, &kept);
    }
    servers.has_no_heartbeats.store(false, Ordering::Relaxed);
    // The one that is under way has to be given up first.
    for _ in 0..8 {
        pass(&clock, &kept);
    }
    drop(busy);
    drop(block_on(waiting).expect("it is handed over"));
}

#[test]
fn a_lease_and_a_delivery_do_not_wait_for_claims_releases_pushes_or_settlements() {
    let (clock, servers, client, _other) = start();
    let kept = hold(&client, "brief", BRIEF);
    let let_go = hold(&client, "let-go", LONG);
    let queue = client.queue("queue").ttl(BRIEF);
    let [delivery, done] = [0, 1].map(|_| {
        block_on(async {
            queue.push("work").await.expect("it is pushed");
            queue.next().await.expect("it is there")
        })
    });
    servers.only_renews.store(true, Ordering::Relaxed);
    let mutex = client.mutex("free");
    let mut asked = Box::pin(mutex.acquire());
    let mut pushed = Box::pin(queue.push("more").into_future());
    let mut settled = Box::pin(done.ack());
    assert!(block_on(poll_immediate(&mut asked)).is_none());
    assert!(block_on(poll_immediate(&mut pushed)).is_none());
    assert!(block_on(poll_immediate(&mut settled)).is_none());
    drop(let_go);
    for _ in 0..30 {
        pass(&clock, &kept);
        assert!(!delivery.lease().is_lost());
    }
}

#[test]
fn pushes_go_out_one_call_after_the_other() {
    let (clock, servers, client, _other) = start();
    let kept = hold(&client, "brief", BRIEF);
    servers.is_hung.store(true, Ordering::Relaxed);
    let queue = client.queue("hung/queue");
    let mut pushes = [(); 5].map(|()| Box::pin(queue.push("work").into_future()));
    for push in &mut pushes {
        assert!(block_on(poll_immediate(push)).is_none());
        // The client's thread has sent what it may.
        pass(&clock, &kept);
    }
    assert_eq!(servers.pushes.load(Ordering::Relaxed), 1, "the others would overtake the first");
}

#[test]
fn a_push_is_waited_for_as_long_as_the_store_says_that_it_may_take() {
    let (clock, servers, client, _other) = start();
    let queue = client.queue("hung/queue");
    block_on(queue.push("first").into_future()).expect("it is pushed");
    servers.is_hung.store(true, Ordering::Relaxed);
    let mut pushed = Box::pin(queue.push("second").into_future());
    assert!(block_on(poll_immediate(&mut pushed)).is_none());
    let mut answer = None;
    eventually("it is given up", || {
        clock.advance(Duration::from_secs(1));
        answer = block_on(poll_immediate(&mut pushed));
        answer.is_some()
    });
    let error = answer.expect("an answer").expect_err("nothing was pushed");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.to_string().contains(&format!("within {PATIENCE:?}")),
        "not after the answer timeout: {error}"
    );
}
