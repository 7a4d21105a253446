//! One of several servers that hangs, or a slot that moves for long, while one client uses all of them: what is elsewhere must
//! not notice.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pollster::block_on;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{Lease, Tenure};
use tenure_testkit::redis::{RedisCluster, RedisServer};

use crate::crew::{connect, now, pause};

/// How long the master hangs: another one takes over meanwhile, and the client finds it.
const LASTS: Duration = Duration::from_secs(4);
/// How long a call may take that has nothing to do with the hung master. One that waits for it takes 1.9 s.
const SOON: Duration = Duration::from_secs(1);
const TTLS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// A cluster of which one part goes on without another: by default all of it refuses everything until a master has been
/// replaced.
fn start() -> RedisCluster {
    let cluster = RedisCluster::start();
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    cluster
}

/// A name that is on a master.
fn on(cluster: &RedisCluster, master: &RedisServer, what: &str) -> String {
    let is_there = |name: &String| {
        let slot = cluster.slot_of(&format!("tenure:{name}"));
        cluster.node_of_slot(slot).port() == master.port()
    };
    (0..).map(|number| format!("{what}-{number}")).find(is_there).expect("a name on each master")
}

/// Names on one master.
struct Names {
    held: [String; 2],
    busy: String,
    free: String,
    queue: String,
}

impl Names {
    fn on(cluster: &RedisCluster, master: &RedisServer) -> Names {
        let on = |what| on(cluster, master, what);
        Names { held: [on("brief"), on("long")], busy: on("busy"), free: on("free"), queue: on("queue") }
    }

    fn hold(&self, client: &Tenure) -> Vec<Lease> {
        let hold = |(name, ttl): (&String, Duration)| {
            block_on(client.mutex(name).ttl(ttl).acquire()).expect("it is free")
        };
        self.held.iter().zip(TTLS).map(hold).collect()
    }

    fn deliver(&self, client: &Tenure) -> tenure_core::Delivery {
        block_on(client.queue(&self.queue).push("held").into_future()).expect("it is pushed");
        block_on(client.queue(&self.queue).ttl(TTLS[0]).next()).expect("it is there")
    }

    /// Takes and gives back a lock, and does all that is done with queues.
    async fn use_up(&self, client: &Tenure) -> tenure_core::Result<()> {
        client.mutex(&self.free).acquire_within(Duration::from_secs(5)).await?.release().await?;
        let queue = client.queue(&self.queue).ttl(TTLS[0]);
        queue.push("work").await?;
        if let Some(delivery) = queue.try_next().await? {
            delivery.ack().await?;
        }
        Ok(())
    }
}

#[test]
fn a_master_that_hangs_costs_only_what_is_on_it() {
    let cluster = start();
    let masters: Vec<&RedisServer> = cluster.nodes().iter().take(3).collect();
    let names: Vec<Names> = masters.iter().map(|master| Names::on(&cluster, master)).collect();
    let (hung, others) = names.split_first().expect("three masters");
    let (client, other) = (connect(&cluster.url()), connect(&cluster.url()));
    let lost = hung.hold(&client);
    let leases: Vec<Lease> = others.iter().flat_map(|names| names.hold(&client)).collect();
    let deliveries: Vec<_> = names.iter().map(|names| names.deliver(&client)).collect();
    let busy: Vec<Lease> =
        names.iter().map(|names| block_on(other.mutex(&names.busy).acquire()).expect("it is free")).collect();
    let (is_over, slowest) = (AtomicBool::new(false), std::sync::Mutex::new(Duration::ZERO));
    std::thread::scope(|scope| {
        let waiters: Vec<_> = names
            .iter()
            .map(|names| {
                let client = &client;
                scope.spawn(|| block_on(client.mutex(&names.busy).acquire_within(Duration::from_secs(60))))
            })
            .collect();
        for names in others {
            tenure_testkit::wait_for("a waiter", || {
                (block_on(client.view(&names.busy)).expect("an answer")?.waiting == 1).then_some(())
            });
        }
        masters[0].stop();
        // Something of each verb is always under way to it.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(block_on(hung.use_up(&client)));
            }
        });
        scope.spawn(|| {
            let queue = client.queue(&hung.queue);
            while !is_over.load(Ordering::Relaxed) {
                drop(block_on(queue.push("more").into_future()));
            }
        });
        for names in others {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let asked = now();
                    block_on(names.use_up(&client)).expect("its master does not hang");
                    let mut slowest = slowest.lock().expect("no panic");
                    *slowest = now().since(asked).max(*slowest);
                    drop(slowest);
                    pause(Duration::from_millis(20));
                }
            });
        }
        pause(LASTS);
        is_over.store(true, Ordering::Relaxed);
        masters[0].cont();
        let freed = now();
        for lease in busy {
            // The first of them is on the master that hung.
            drop(block_on(lease.release()));
        }
        for waiter in waiters.into_iter().skip(1) {
            drop(waiter.join().expect("no panic").expect("it is handed over"));
            assert_in_time(now().since(freed), 2 * SOON);
        }
    });
    let kept = leases.iter().filter(|lease| !lease.is_lost()).count();
    assert_eq!(kept, leases.len(), "leases on masters that do not hang");
    for delivery in deliveries.iter().skip(1) {
        assert!(!delivery.lease().is_lost(), "a delivery on a master that does not hang");
    }
    let slowest = slowest.into_inner().expect("no panic");
    assert!(slowest < SOON, "a call to a master that does not hang took {slowest:?}");
    drop(lost);
}

#[test]
fn a_slot_that_moves_takes_no_delivery_of_another_one() {
    let cluster = start();
    let (from, to) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    let client = connect(&cluster.url());
    let names = ["moving", "staying"].map(|what| on(&cluster, from, what));
    let deliveries = names.each_ref().map(|name| {
        block_on(client.queue(name).push("held").into_future()).expect("it is pushed");
        block_on(client.queue(name).ttl(TTLS[0]).next()).expect("it is there")
    });
    // While it moves, the server refuses every call that names several keys of it, some of which are not there.
    cluster.begin_migration(cluster.slot_of(&format!("tenure:{}", names[0])), from, to);
    pause(LASTS);
    let [moving, staying] = deliveries.map(|delivery| delivery.lease().is_lost());
    assert!(moving, "nobody could renew it");
    assert!(!staying, "the one that could be renewed has waited for the one that could not");
}
