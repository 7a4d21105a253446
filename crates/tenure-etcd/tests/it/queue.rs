//! Queues while servers fail: nothing is lost, nothing comes early, and nothing out of order.

use std::future::IntoFuture;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use tenure_core::clock::Instant;
use tenure_core::{ErrorKind, Tenure};
use tenure_testkit::etcd::EtcdCluster;

use crate::crew::{connect, hasty, now, pause, with_hasty};

const GROUPS: usize = 5;
const ITEMS: usize = 150;
const INTERVAL: Duration = Duration::from_secs(2);

/// Pushes, under an id, until it is answered.
fn push(client: &Tenure, queue: &str, group: &str, payload: &str, delay: Duration) {
    loop {
        let push = client.queue(queue).push(payload).group(group).dedup(payload).delay(delay);
        match pollster::block_on(push.into_future()) {
            Ok(_) => return,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    }
}

/// Takes and acknowledges until nothing has come for a while. Notes what was handed out, and when.
fn consume(queue: &tenure_core::Queue, patience: Duration, seen: &Mutex<Vec<(u64, String, Instant)>>) {
    let mut last = now();
    while now().since(last) < patience {
        match pollster::block_on(queue.next_within(Duration::from_millis(500))) {
            Ok(Some(delivery)) => {
                last = now();
                let text = String::from_utf8_lossy(delivery.payload()).into_owned();
                seen.lock().expect("nobody panics with it").push((delivery.token().get(), text, last));
                // If it is refused, it comes again.
                if let Err(error) = pollster::block_on(delivery.ack()) {
                    println!("an ack failed: {error}");
                }
            }
            Ok(None) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    }
}

#[test]
fn a_killed_leader_loses_no_item_and_changes_no_order() {
    let cluster = EtcdCluster::start(&hasty());
    let url = with_hasty(&cluster.url());
    let clients: Vec<Tenure> = (0..4).map(|_| connect(&url)).collect();
    let seen = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for client in &clients[1..] {
            let queue = client.queue("q").ttl(Duration::from_secs(2)).max_attempts(0);
            let seen = &seen;
            scope.spawn(move || consume(&queue, Duration::from_secs(8), seen));
        }
        for item in 0..ITEMS {
            if item == ITEMS / 3 {
                cluster.servers()[cluster.leader()].kill();
            }
            let group = format!("g{}", item % GROUPS);
            push(&clients[0], "q", &group, &format!("{group} {item:04}"), Duration::ZERO);
        }
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort();
    for group in 0..GROUPS {
        let prefix = format!("g{group} ");
        let mut of_group: Vec<&str> =
            seen.iter().map(|(_, text, _)| text.as_str()).filter(|text| text.starts_with(&prefix)).collect();
        // One whose ack was not answered comes again, before the next one.
        of_group.dedup();
        let expected: Vec<String> = (0..ITEMS)
            .filter(|item| item % GROUPS == group)
            .map(|item| format!("{prefix}{item:04}"))
            .collect();
        assert_eq!(of_group, expected, "by their tokens");
    }
    let stats = pollster::block_on(clients[0].queue("q").stats()).expect("a count");
    assert_eq!((stats.waiting, stats.in_flight, stats.dead), (0, 0, 0));
}

#[test]
fn an_interval_and_a_delay_are_not_cut_short_by_an_election() {
    let cluster = EtcdCluster::start(&hasty());
    let url = with_hasty(&cluster.url());
    let clients: Vec<Tenure> = (0..3).map(|_| connect(&url)).collect();
    for item in 0..4 {
        push(&clients[0], "spaced", &format!("g{item}"), &format!("{item}"), Duration::ZERO);
    }
    let delay = Duration::from_secs(5);
    let pushed = now();
    push(&clients[0], "delayed", "g", "late", delay);
    let (seen, late) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for client in &clients {
            let queue = client.queue("spaced").interval(INTERVAL);
            let seen = &seen;
            scope.spawn(move || consume(&queue, Duration::from_secs(9), seen));
        }
        let (client, late) = (&clients[1], &late);
        scope.spawn(move || consume(&client.queue("delayed"), Duration::from_secs(14), late));
        pause(Duration::from_secs(3));
        cluster.servers()[cluster.leader()].kill();
    });
    let mut times: Vec<Instant> = seen.into_inner().unwrap().into_iter().map(|(_, _, at)| at).collect();
    times.sort();
    println!("{:?}", times.iter().map(|at| at.since(pushed)).collect::<Vec<_>>());
    assert!(times.len() >= 4, "each item");
    assert!(times.windows(2).all(|pair| pair[1].since(pair[0]) >= INTERVAL), "the interval is undercut");
    let late = late.into_inner().unwrap();
    assert!(!late.is_empty() && late[0].2.since(pushed) >= delay, "{late:?} after {pushed:?}");
}

#[test]
fn a_clock_that_was_set_anew_makes_nobody_wait_for_what_was_long_before() {
    let cluster = EtcdCluster::start(&hasty());
    let url = with_hasty(&cluster.url());
    let old = connect(&url);
    push(&old, "q", "g", "first", Duration::ZERO);
    // The clock's lease grows old; the next leader takes it for new.
    pause(Duration::from_secs(12));
    let (pushed, delay) = (now(), Duration::from_secs(2));
    push(&old, "q", "h", "late", delay);
    drop(old);
    cluster.servers()[cluster.leader()].kill();
    let fresh = connect(&url);
    let seen = Mutex::new(Vec::new());
    consume(&fresh.queue("q"), Duration::from_secs(9), &seen);
    let seen = seen.into_inner().unwrap();
    let late = seen.iter().find(|(_, text, _)| text == "late").expect("it comes, and soon");
    assert!(late.2.since(pushed) >= delay, "{:?} is too early", late.2.since(pushed));
    println!("{:?} after its push", late.2.since(pushed));
}

#[test]
fn intervals_that_cannot_be_kept_are_refused() {
    let client = connect(&tenure_testkit::etcd::shared());
    for interval in [Duration::from_secs(1), Duration::from_millis(2500)] {
        let refused = pollster::block_on(client.queue("grain").interval(interval).try_next());
        assert_eq!(refused.map(|_| ()).map_err(|error| error.kind()), Err(ErrorKind::Unsupported));
    }
}

#[test]
fn large_payloads_are_pushed_in_as_many_transactions_as_they_need() {
    let client = connect(&tenure_testkit::etcd::shared());
    let queue = client.queue("large");
    let payload = |item: u8| vec![item; 256 * 1024];
    thread::scope(|scope| {
        for item in 0..12 {
            let queue = &queue;
            scope.spawn(move || pollster::block_on(queue.push(payload(item)).into_future()).expect("a push"));
        }
    });
    let mut seen = Vec::new();
    while let Some(delivery) = pollster::block_on(queue.try_next()).expect("an answer") {
        assert!(delivery.payload() == payload(delivery.payload()[0]));
        seen.push(delivery.payload()[0]);
        pollster::block_on(delivery.ack()).expect("an ack");
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..12).collect::<Vec<u8>>());
}
