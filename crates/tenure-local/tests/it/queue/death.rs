//! Who is dead is known at once, and a process may die anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::process::Signal;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::Wake;
use tenure_core::engine::queue::{Settlement, Which};
use tenure_core::error::ErrorKind;
use tenure_core::model::claim::ClaimId;

use super::{name, push, text};
use crate::child::Process;
use crate::world::{Client, PATIENCE, TestPlace, run};

/// Longer than this, and not the death was noticed but a look came or a ttl ended.
const AT_ONCE_US: u64 = 500_000;

/// Every place at which a push, a take or a settlement can be killed.
const FAILPOINTS: [&str; 5] = [
    "local.before_begin",
    "local.in_transaction",
    "local.before_commit",
    "local.after_commit",
    "local.before_bell",
];

/// Which item was done under which token, for each group.
type Done = BTreeMap<String, BTreeMap<u64, u32>>;

fn since(start: u64) -> u64 {
    (SystemClock.now().nanos() - start) / 1000
}

#[test]
fn what_a_killed_consumer_had_is_taken_at_once() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        here.push("q", "g", "first").await;
        here.push("q", "g", "second").await;
        let mut there = Process::start(&directory.place());
        assert!(there.ask("get q").starts_with("got first 1 "));
        assert!(here.take_items("q", 1).await.is_empty(), "its group waits");
        there.kill();
        let item = here.take_item("q").await;
        assert_eq!((text(&item), item.attempt), ("first", 2));
        here.ack("q", item.claim).await;
        assert_eq!(text(&here.take_item("q").await), "second");
    });
}

#[test]
fn what_a_killed_consumer_had_does_not_wait_for_the_end_of_a_long_line() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        here.push("q", "g", "first").await;
        let mut there = Process::start(&directory.place());
        assert!(there.ask("get q").starts_with("got first 1 "));
        here.push("q", "", "other").await;
        here.push("q", "", "other").await;
        there.kill();
        // This one notices the death, though it finds what it wants.
        assert_eq!(text(&here.take_item("q").await), "other");
        for _ in 0..20 {
            here.push("q", "", "later").await;
        }
        assert_eq!(text(&here.take_item("q").await), "other");
        assert_eq!(text(&here.take_item("q").await), "first");
    });
}

#[test]
fn an_idle_consumer_is_woken_by_the_death_of_one_that_came_later() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let mut times = Vec::new();
        for round in 0..10 {
            let queue = format!("q{round}");
            let mut late = push(&queue, "", "late");
            late.delay = Duration::from_secs(20);
            here.try_push(late).await.unwrap();
            // It knows when to look for what is late, so the end of a later delivery is no news for it.
            let mut idle = Process::start(&directory.place());
            assert_eq!(idle.ask(&format!("get {queue}")), "nothing");
            let second = Client::connect(&directory.place()).await;
            assert!(second.take_items(&queue, 1).await.is_empty());
            // This one is idle after the others, so it is the one that is told; the model tells the first ones nothing.
            let mut busy = Process::start(&directory.place());
            assert_eq!(busy.ask(&format!("get {queue}")), "nothing");
            here.push(&queue, "", "item").await;
            busy.woken();
            let killed_at = SystemClock.now().nanos();
            busy.kill();
            times.push((idle.woken() - killed_at) / 1000);
        }
        times.sort_unstable();
        println!("from the kill of a consumer to the next one having its item, us: {times:?}");
        assert!(times[times.len() / 2] < AT_ONCE_US);
    });
}

#[test]
fn an_idle_consumer_is_woken_by_the_death_of_one_that_was_busy_before() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        here.push("q", "", "item").await;
        let mut busy = Process::start(&directory.place());
        assert!(busy.ask("get q").starts_with("got item 1 "));
        let mut idle = Process::start(&directory.place());
        let mut second = Process::start(&directory.place());
        assert_eq!(idle.ask("get q"), "nothing");
        assert_eq!(second.ask("get q"), "nothing");
        let killed_at = SystemClock.now().nanos();
        busy.kill();
        assert!((idle.woken() - killed_at) / 1000 < AT_ONCE_US);
        // The second one watches the first, and takes over when that dies with the item.
        let killed_at = SystemClock.now().nanos();
        idle.kill();
        assert!((second.woken() - killed_at) / 1000 < AT_ONCE_US);
    });
}

#[test]
fn an_idle_consumer_is_woken_though_the_one_that_watched_died_first() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        here.push("q", "", "item").await;
        let mut busy = Process::start(&directory.place());
        assert!(busy.ask("get q").starts_with("got item 1 "));
        let mut first = Process::start(&directory.place());
        let mut second = Process::start(&directory.place());
        assert_eq!(first.ask("get q"), "nothing");
        assert_eq!(second.ask("get q"), "nothing");
        let killed_at = SystemClock.now().nanos();
        first.kill();
        busy.kill();
        assert!((second.woken() - killed_at) / 1000 < AT_ONCE_US);
    });
}

#[test]
fn many_dead_consumers_are_noticed_by_one_take() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let mut dead: Vec<_> = (0..7).map(|_| Process::start(&directory.place())).collect();
        for there in &mut dead {
            here.push("q", "", "item").await;
            assert!(there.ask("get q").starts_with("got item 1 "));
        }
        dead.into_iter().for_each(Process::kill);
        assert_eq!(here.take_items("q", 7).await.len(), 7);
    });
}

#[test]
fn a_push_wakes_a_living_consumer_though_a_dead_one_is_idle_too() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let mut idle = Process::start(&directory.place());
        assert_eq!(idle.ask("get q"), "nothing");
        for _ in 0..3 {
            let mut dead = Process::start(&directory.place());
            assert_eq!(dead.ask("get q"), "nothing");
            dead.kill();
        }
        let pushed_at = SystemClock.now().nanos();
        here.push("q", "", "item").await;
        assert!((idle.woken() - pushed_at) / 1000 < AT_ONCE_US);
    });
}

#[test]
fn what_a_closed_client_had_is_taken_at_once() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let there = Client::connect(&directory.place()).await;
        here.push("q", "g", "item").await;
        there.take_item("q").await;
        drop(there);
        assert_eq!(here.take_item("q").await.attempt, 2);
    });
}

#[test]
fn a_push_wakes_an_idle_client_and_one_that_left_is_not_idle() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let mut idle = Client::connect(&directory.place()).await;
        let gone = Client::connect(&directory.place()).await;
        assert!(idle.take_items("q", 2).await.is_empty());
        assert!(gone.take_items("q", 1).await.is_empty());
        assert!(gone.take_items("q", 0).await.is_empty());
        here.push("q", "", "item").await;
        assert_eq!(idle.wake().await, Wake::Queue(name("q")));
        assert_eq!(idle.take_items("q", 2).await.len(), 1);
    });
}

#[test]
fn a_process_killed_anywhere_in_a_push_loses_nothing_that_was_answered() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        for failpoint in FAILPOINTS {
            let mut there = Process::start(&directory.place());
            assert!(there.ask("push q g answered").starts_with("pushed"));
            there.tell(&format!("at kill {failpoint}"));
            there.tell("push q g unknown");
            there.died();
            let is_pushed = ["local.after_commit", "local.before_bell"].contains(&failpoint);
            let items = here.queues().items(name("q"), Which::Live, None, 10).await.unwrap();
            let payloads: Vec<_> = items.iter().map(|item| &item.payload[..]).collect();
            let expected: &[&[u8]] = if is_pushed { &[b"answered", b"unknown"] } else { &[b"answered"] };
            assert_eq!(payloads, expected, "{failpoint}");
            assert_eq!(here.queues().purge(name("q"), Which::Live, None, 10).await.unwrap(), expected.len());
        }
    });
}

#[test]
fn a_process_killed_anywhere_in_a_take_or_a_settlement_leaves_its_item_to_the_next() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        for failpoint in FAILPOINTS {
            let is_done = ["local.after_commit", "local.before_bell"].contains(&failpoint);
            here.push("q", "g", "item").await;
            let mut there = Process::start(&directory.place());
            // So that the queues are open there.
            assert_eq!(there.ask("get other"), "nothing");
            there.tell(&format!("at kill {failpoint}"));
            there.tell("get q");
            there.died();
            let item = here.take_item("q").await;
            assert_eq!((text(&item), item.attempt), ("item", 1 + u32::from(is_done)), "{failpoint}");
            here.settle("q", item.claim, Settlement::Return).await;

            let mut there = Process::start(&directory.place());
            assert!(there.ask("get q").starts_with("got item"));
            there.tell(&format!("at kill {failpoint}"));
            there.tell("ack q item");
            there.died();
            let left = here.take_items("q", 1).await;
            assert_eq!(left.len(), usize::from(!is_done), "{failpoint}");
            for item in left {
                here.ack("q", item.claim).await;
            }
        }
    });
}

#[test]
fn an_item_pushed_by_a_process_killed_before_it_told_is_found() {
    let directory = TestPlace::new();
    run(async {
        let idle = Client::connect(&directory.place()).await;
        assert!(idle.take_items("q", 1).await.is_empty());
        let mut there = Process::start(&directory.place());
        there.tell("at kill local.before_bell");
        there.tell("push q g item");
        there.died();
        // It was told nothing, and looks again by itself.
        assert_eq!(text(&idle.take_item("q").await), "item");
    });
}

#[test]
fn a_producer_killed_in_the_midst_of_pushing_loses_nothing_that_was_answered() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        for round in 0..5 {
            let queue = format!("q{round}");
            let mut there = Process::start(&directory.place());
            there.tell(&format!("pour {queue} g 100000"));
            let mut answered = String::new();
            for _ in 0..20 + round * 17 {
                answered = there.read();
            }
            there.kill();
            let answered: usize = answered.strip_prefix("poured ").unwrap().parse().unwrap();
            let items = here.queues().items(name(&queue), Which::Live, None, usize::MAX).await.unwrap();
            assert!(items.len() > answered, "{} of {answered}", items.len());
            for (number, item) in items.iter().enumerate() {
                assert_eq!(&item.payload[..], number.to_string().as_bytes());
            }
        }
    });
}

#[test]
fn several_processes_keep_the_order_of_each_group_though_some_are_killed() {
    const COUNT: u32 = 60;
    let directory = TestPlace::new();
    let groups = ["a", "b", "c", "-"];
    let mut workers: Vec<_> = (0..3).map(|_| Process::start(&directory.place())).collect();
    workers.iter_mut().for_each(|worker| worker.tell("work q"));
    let mut producers: Vec<_> = groups.iter().map(|_| Process::start(&directory.place())).collect();
    for (producer, group) in producers.iter_mut().zip(groups) {
        producer.tell(&format!("pour q {group} {COUNT}"));
    }
    // Each item under each of its tokens; one that was done by a worker that died before its acknowledgement has two.
    let mut done = Done::new();
    let count = |done: &mut Done, answer: &str| {
        let words: Vec<_> = answer.split(' ').collect();
        let ["did", group, payload, token] = words[..] else { panic!("{answer:?}") };
        let before = done
            .entry(group.to_owned())
            .or_default()
            .insert(token.parse().unwrap(), payload.parse().unwrap());
        assert_eq!(before, None, "two deliveries under one token");
        let distinct = done.values().map(|group| group.values().collect::<BTreeSet<_>>().len());
        distinct.sum::<usize>()
    };
    let mut victim = workers.pop().unwrap();
    count(&mut done, &victim.read());
    for answer in victim.last_words() {
        count(&mut done, &answer);
    }
    let until = SystemClock.now() + PATIENCE;
    let mut turn = 0;
    loop {
        turn += 1;
        let Some(answer) = workers[turn % 2].try_read() else {
            assert!(SystemClock.now() < until, "{done:?}");
            continue;
        };
        if count(&mut done, &answer) == groups.len() * COUNT as usize {
            break;
        }
    }
    for (group, items) in done.iter().filter(|(group, _)| *group != "-") {
        let order: Vec<_> = items.values().collect();
        assert!(order.is_sorted(), "{group}: {order:?}");
    }
}

#[test]
fn a_process_stopped_in_a_transaction_is_named() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        here.push("q", "", "first").await;
        let mut there = Process::start(&directory.place());
        assert!(there.ask("get q").starts_with("got"));
        there.tell("at stop local.before_commit");
        there.tell("push q g second");
        there.stopped();
        let error = here.try_push(push("q", "", "third")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains(&format!("process {} ", there.pid())), "{error}");
        // Locks have another gate.
        let (claim, _) = here.take("m").await;
        here.release("m", claim).await;
        there.signal(Signal::CONT);
        assert!(there.read().starts_with("pushed"));
        here.push("q", "", "third").await;
    });
}

#[test]
fn a_consumer_that_is_only_stopped_keeps_its_item() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        here.push("q", "g", "item").await;
        let mut there = Process::start(&directory.place());
        assert!(there.ask("get q").starts_with("got"));
        there.signal(Signal::STOP);
        there.stopped();
        assert!(here.take_items("q", 1).await.is_empty());
        there.signal(Signal::CONT);
        assert_eq!(there.ask("ack q item"), "Settled");
        assert_eq!(format!("{:?}", here.ack("q", ClaimId::new(1)).await), "Lost");
    });
}

#[test]
fn a_death_is_noticed_though_the_dead_was_not_told_of() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        here.push("q", "g", "item").await;
        let mut there = Process::start(&directory.place());
        assert!(there.ask("get q").starts_with("got"));
        let begun_at = SystemClock.now().nanos();
        there.kill();
        // Nobody was idle, so nobody watched: whoever takes next looks.
        assert_eq!(here.take_item("q").await.attempt, 2);
        assert!(since(begun_at) < AT_ONCE_US);
    });
}
