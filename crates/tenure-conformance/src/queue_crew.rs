//! Producers and consumers of one queue that go on while a test breaks something, and what they saw.
//!
//! What is broken is each engine's own. What must hold is not: no item is lost, none is acknowledged twice, and each group comes
//! in its order.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pollster::block_on;
use tenure_core::testing::random::more;
use tenure_core::{ErrorKind, Tenure, Token};

use crate::crew::{now, pause};

/// How many items each producer pushes: it goes on while something is broken, but no further than the second. A queue on Redis takes hundreds in a
/// second, one on an unoptimized ZooKeeper under load a dozen.
fn items() -> RangeInclusive<usize> {
    more(40, 100)..=400
}

/// How many groups they are in.
const GROUPS: usize = 5;
const PRODUCERS: usize = 2;
const CONSUMERS: usize = 3;
/// The ttl of deliveries.
const TTL: Duration = Duration::from_secs(2);
/// How long all of it may take: three of ZooKeeper's at once, unoptimized, take 80 s on two processors.
const ALL_MAX: Duration = Duration::from_secs(200);

/// A delivery that was acknowledged, and what was answered.
struct Acked {
    token: Token,
    producer: usize,
    number: usize,
    is_sure: bool,
}

/// Has clients push into a queue, and others take and acknowledge, while `disturb` breaks what it likes until it is told that all
/// is over. Some of the answers may be lost. `soon`: within this a push must be taken.
///
/// # Panics
/// If an item is lost, acknowledged twice or out of order within its group, or if what is pushed is refused.
pub fn while_it_works(
    connect: impl Fn() -> Tenure,
    soon: Duration,
    disturb: impl FnOnce(&AtomicBool) + Send,
) {
    let producers: Vec<Tenure> = (0..PRODUCERS).map(|_| connect()).collect();
    let consumers: Vec<Tenure> = (0..CONSUMERS).map(|_| connect()).collect();
    let acked = Mutex::new(Vec::new());
    let (is_over, is_disturbed) = (AtomicBool::new(false), AtomicBool::new(true));
    let (pushing, pushed) = (AtomicUsize::new(PRODUCERS), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            disturb(&is_over);
            is_disturbed.store(false, Ordering::Relaxed);
        });
        for (producer, client) in producers.iter().enumerate() {
            let (pushing, pushed, is_disturbed) = (&pushing, &pushed, &is_disturbed);
            let is_enough =
                |number: usize| number >= *items().start() && !is_disturbed.load(Ordering::Relaxed);
            scope.spawn(move || {
                for number in (0..*items().end()).take_while(|number| !is_enough(*number)) {
                    push(client, producer, number, soon);
                    pushed.fetch_add(1, Ordering::Relaxed);
                }
                pushing.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for client in &consumers {
            let (acked, is_over) = (&acked, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let done = consume(client);
                    acked.lock().expect("no panic").extend(done);
                }
            });
        }
        let until = now() + ALL_MAX;
        let drained = || {
            // Consumers that keep up leave it empty again and again.
            let is_pushed = pushing.load(Ordering::Relaxed) == 0;
            let stats = block_on(consumers[0].queue("q").stats());
            is_pushed && stats.is_ok_and(|stats| stats.waiting + stats.in_flight == 0)
        };
        let mut is_drained = drained();
        while !is_drained && now() < until {
            pause(Duration::from_millis(50));
            is_drained = drained();
        }
        // First of all, for a panic waits for those who work, too.
        is_over.store(true, Ordering::Relaxed);
        let left = || block_on(consumers[0].queue("q").stats());
        assert!(is_drained, "items are left: {:?}", left());
    });
    judge(acked.into_inner().expect("no panic"), pushed.into_inner());
}

/// Disturbs so many times, with pauses between, or until all is over.
pub fn again_and_again(is_over: &AtomicBool, times: usize, every: Duration, mut disturb: impl FnMut(usize)) {
    for round in 0..times {
        disturb(round);
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        pause(every);
    }
}

fn push(client: &Tenure, producer: usize, number: usize, soon: Duration) {
    let (group, payload) = (format!("g{}", number % GROUPS), format!("{producer}/{number}"));
    let until = now() + soon;
    // Under a dedup id, a push whose answer was lost may be repeated.
    let push = || client.queue("q").push(&payload).group(&group).dedup(&payload);
    while let Err(error) = block_on(async { push().await }) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(now() < until, "{error}");
    }
    // It is to last for some faults.
    pause(Duration::from_millis(more(30, 2)));
}

fn consume(client: &Tenure) -> Option<Acked> {
    let queue = client.queue("q").ttl(TTL).max_attempts(0);
    let delivery = block_on(queue.next_within(Duration::from_millis(300))).ok()??;
    let text = String::from_utf8_lossy(delivery.payload()).into_owned();
    let (producer, number) = text.split_once('/').expect("as it was pushed");
    let number_of = |text: &str| text.parse().expect("as it was pushed");
    let (producer, number, token) = (number_of(producer), number_of(number), delivery.token());
    let is_sure = block_on(delivery.ack()).is_ok();
    Some(Acked { token, producer, number, is_sure })
}

fn judge(mut acked: Vec<Acked>, pushed: usize) {
    let unsure = acked.iter().filter(|one| !one.is_sure).count();
    println!("{pushed} items, {} deliveries, {unsure} acknowledgements without an answer", acked.len());
    let seen: BTreeSet<_> = acked.iter().map(|one| (one.producer, one.number)).collect();
    assert_eq!(seen.len(), pushed, "an item was lost");
    acked.sort_by_key(|one| (one.number % GROUPS, one.token));
    let is_later =
        |pair: &[Acked]| pair[0].number % GROUPS < pair[1].number % GROUPS || pair[0].token < pair[1].token;
    assert!(acked.windows(2).all(is_later), "two deliveries of a group have one token");
    let mut last: BTreeMap<_, usize> = BTreeMap::new();
    for one in acked.iter().filter(|one| one.is_sure) {
        let Acked { producer, number, .. } = *one;
        let before = last.insert((producer, number % GROUPS), number);
        assert!(before.is_none_or(|before| before < number), "{producer}/{number} comes after {before:?}");
    }
}
