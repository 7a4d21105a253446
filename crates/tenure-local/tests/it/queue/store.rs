//! The store of the queues: what it outlives, who may use it, and what happens when it is full.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock, Timestamp};
use tenure_core::engine::queue::{Interval, Rules, Settle, SettleAnswer, Settlement, Take};
use tenure_core::engine::{Engine, Severity};
use tenure_core::error::{Error, ErrorKind};
use tenure_local::Config;

use super::{TestClock, name, push, text};
use crate::child::Process;
use crate::world::{Client, PATIENCE, TestPlace, run};

const BOOTS: [&str; 3] = [
    "00000000-0000-0000-0000-000000000001",
    "00000000-0000-0000-0000-000000000002",
    "00000000-0000-0000-0000-000000000003",
];

/// A client of a boot. The last one of the boot before may still be closing its store.
async fn boot(place: &Path, boot: usize, clock: Arc<dyn Clock>) -> Client {
    let until = SystemClock.now() + PATIENCE;
    loop {
        let config = Config::in_directory(place).with_boot_id(BOOTS[boot]);
        let client = Client::connect_with(config, clock.clone()).await.unwrap();
        match client.queues().stats(name("any")).await {
            Ok(_) => return client,
            Err(error) => assert!(SystemClock.now() < until, "{error}"),
        }
    }
}

#[test]
fn what_is_queued_outlives_the_boot_and_what_was_in_flight_comes_back() {
    let directory = TestPlace::new();
    run(async {
        let clock = TestClock::new();
        let before = boot(&directory.place(), 0, clock.clone()).await;
        before.push("q", "g", "first").await;
        before.push("q", "g", "second").await;
        let mut late = push("q", "", "late");
        late.delay = Duration::from_secs(60);
        before.try_push(late).await.unwrap();
        let taken = before.take_item("q").await;
        assert_eq!(text(&taken), "first");
        // The client is not closed: its machine went down.
        std::mem::forget(before.engine.share_life(std::process::id()).unwrap());
        drop(before);
        clock.reboot(Duration::from_secs(59));
        let after = boot(&directory.place(), 1, clock.clone()).await;
        let again = after.take_item("q").await;
        assert_eq!((text(&again), again.attempt), ("first", 2));
        assert!(again.token > taken.token);
        assert_eq!(format!("{:?}", after.ack("q", taken.claim).await), "Lost");
        after.ack("q", again.claim).await;
        assert_eq!(text(&after.take_item("q").await), "second");
        assert!(after.take_items("q", 1).await.is_empty(), "it is not due");
        clock.advance(Duration::from_secs(1));
        assert_eq!(text(&after.take_item("q").await), "late");
    });
}

fn earlier(time: Timestamp, period: Duration) -> Timestamp {
    Timestamp::from_micros(time.micros() - period.as_micros() as u64)
}

async fn take_by_interval(client: &Client, period: Duration) -> usize {
    let mut take: Take = client.request_items("q", 1);
    let interval = Interval::Queue(period);
    take.rules = Arc::new(Rules { interval, ..(*take.rules).clone() });
    client.queues().take(vec![take]).await.remove(0).unwrap().items.len()
}

#[test]
fn a_clock_that_is_set_neither_shortens_nor_prolongs_an_interval() {
    const PERIOD: Duration = Duration::from_secs(10);
    const HOUR: Duration = Duration::from_secs(3600);
    let directory = TestPlace::new();
    run(async {
        let clock = TestClock::new();
        let here = boot(&directory.place(), 0, clock.clone()).await;
        for _ in 0..4 {
            here.push("q", "", "item").await;
        }
        assert_eq!(take_by_interval(&here, PERIOD).await, 1);
        for is_ahead in [true, false] {
            let now = clock.time_of_day();
            clock.set_time_of_day(if is_ahead { now + HOUR } else { earlier(now, HOUR + HOUR) });
            clock.advance(Duration::from_secs(9));
            assert_eq!(take_by_interval(&here, PERIOD).await, 0);
            clock.advance(Duration::from_secs(1));
            assert_eq!(take_by_interval(&here, PERIOD).await, 1);
        }
        // Over a reboot the time of day counts, but what has been stored is never in the future.
        drop(here);
        clock.reboot(Duration::ZERO);
        clock.set_time_of_day(earlier(clock.time_of_day(), HOUR));
        let here = boot(&directory.place(), 1, clock.clone()).await;
        assert_eq!(take_by_interval(&here, PERIOD).await, 0);
        clock.advance(Duration::from_secs(9));
        assert_eq!(take_by_interval(&here, PERIOD).await, 0);
        clock.advance(Duration::from_secs(1));
        assert_eq!(take_by_interval(&here, PERIOD).await, 1, "time goes on though the clock was set back");
    });
}

#[test]
fn a_full_store_refuses_pushes_and_can_be_worked_off() {
    let directory = TestPlace::new();
    run(async {
        let config = Config::in_directory(directory.place()).with_queue_map_bytes(2 << 20);
        let here = Client::try_connect(config).await.unwrap();
        for round in 0..3 {
            let mut pushed = 0;
            // Small ones fill the last page.
            let error = loop {
                let pushes = (0..64).map(|_| push("q", "", "small")).collect();
                match here.queues().push(pushes).await.remove(0) {
                    Ok(_) => pushed += 64,
                    Err(error) => break error,
                }
            };
            assert!(pushed > 1000, "round {round}: {pushed}");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("largest size"), "{error}");
            assert!(error.hint().unwrap().contains("nothing is lost"), "{error:?}");
            // A large one has no room either, while what is there goes on.
            here.try_push(push("q", "", &"x".repeat(256 << 10))).await.unwrap_err();
            assert_eq!(here.stats("q").await.waiting, pushed);
            let mut done = 0;
            while done < pushed {
                let items = here.take_items("q", 64).await;
                assert_eq!(items.len(), 64);
                done += 64;
                let settle = |claim| Settle { queue: name("q"), claim, settlement: Settlement::Ack };
                let settlements = items.iter().map(|item| settle(item.claim)).collect();
                for settled in here.queues().settle(settlements).await {
                    assert_eq!(settled.unwrap(), SettleAnswer::Settled);
                }
            }
            assert!(here.take_items("q", 1).await.is_empty());
        }
    });
}

/// What becomes of a push.
fn refusal(place: &Path) -> Error {
    run(async {
        let here = Client::connect(place).await;
        here.try_push(push("q", "", "item")).await.expect_err("it was pushed")
    })
}

#[track_caller]
fn assert_says(error: &Error, kind: ErrorKind, words: &[&str]) {
    let text = format!("{error} / {}", error.hint().expect("it gives a hint"));
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[test]
fn a_place_of_queues_that_cannot_be_trusted_is_refused() {
    let directory = TestPlace::new();
    let queue = directory.place().join("queue");
    run(async { drop(Client::connect(&directory.place()).await) });
    assert!(!queue.exists(), "who uses no queue makes no store of queues");
    symlink("/tmp", &queue).unwrap();
    assert_says(&refusal(&directory.place()), ErrorKind::Unsupported, &["symbolic link"]);
    std::fs::remove_file(&queue).unwrap();
    std::fs::create_dir(&queue).unwrap();
    std::fs::set_permissions(&queue, PermissionsExt::from_mode(0o755)).unwrap();
    assert_says(&refusal(&directory.place()), ErrorKind::Unsupported, &["755", "chmod 700"]);
    std::fs::set_permissions(&queue, PermissionsExt::from_mode(0o700)).unwrap();
    chown(&queue, Some(65534), None).expect("this test runs as root");
    assert_says(&refusal(&directory.place()), ErrorKind::Unsupported, &["user 65534"]);
    chown(&queue, Some(0), None).unwrap();
    run(async {
        let here = Client::connect(&directory.place()).await;
        here.push("q", "", "item").await;
        assert_eq!(queue.join("data.mdb").metadata().unwrap().permissions().mode() & 0o077, 0);
    });
}

#[test]
fn clients_of_another_boot_are_refused_while_the_store_is_in_use() {
    let directory = TestPlace::new();
    run(async {
        let here = boot(&directory.place(), 0, Arc::new(SystemClock)).await;
        here.push("q", "", "item").await;
        let config = Config::in_directory(directory.place()).with_boot_id(BOOTS[1]);
        let other = Client::try_connect(config).await.unwrap();
        let error = other.try_push(push("q", "", "item")).await.unwrap_err();
        assert_says(&error, ErrorKind::Unsupported, &[BOOTS[0], BOOTS[1]]);
        drop(here);
        let here = boot(&directory.place(), 2, Arc::new(SystemClock)).await;
        assert_eq!(here.stats("q").await.waiting, 1);
    });
}

#[test]
fn half_a_format_file_loses_nothing() {
    let directory = TestPlace::new();
    let mut there = Process::start(&directory.place());
    assert!(there.ask("push q g item").starts_with("pushed"));
    there.kill();
    for text in ["", "tenure-lo"] {
        std::fs::write(directory.place().join("queue/format"), text).unwrap();
        let mut there = Process::start(&directory.place());
        assert!(there.ask("get q").starts_with("got item"), "{text:?}");
        there.kill();
    }
    std::fs::write(directory.place().join("queue/format"), "tenure-local 99\n").unwrap();
    assert_says(&refusal(&directory.place()), ErrorKind::Unsupported, &["format 99"]);
}

#[test]
fn a_store_that_is_removed_in_use_is_an_error() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        here.push("q", "", "item").await;
        std::fs::remove_dir_all(directory.place().join("queue")).unwrap();
        let until = SystemClock.now() + PATIENCE;
        let error = loop {
            match here.try_push(push("q", "", "item")).await {
                Err(error) => break error,
                Ok(_) => assert!(SystemClock.now() < until),
            }
        };
        assert_says(&error, ErrorKind::Unavailable, &["removed", "queue"]);
    });
}

#[test]
fn the_doctor_says_where_the_queues_are() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let found = async || {
            let findings = here.engine.check().await;
            findings.into_iter().find(|finding| finding.what == "queues").unwrap()
        };
        let place = directory.place().join("queue").display().to_string();
        assert!(found().await.found.contains("none yet"), "{:?}", found().await);
        here.push("q", "", "item").await;
        let finding = found().await;
        assert!(finding.found.contains(&place) && finding.found.contains("KiB of at most"), "{finding:?}");
        assert_eq!(finding.severity, Severity::Good, "{finding:?}");
    });
    let Some(memory) = Some(Path::new("/dev/shm")).filter(|path| path.is_dir()) else { return };
    let place = memory.join(format!("tenure-test-{}", std::process::id()));
    run(async {
        let here = Client::connect(&place).await;
        here.push("q", "", "item").await;
        let findings = here.engine.check().await;
        let finding = findings.iter().find(|finding| finding.what == "queues").unwrap();
        assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
        assert!(finding.found.contains("tmpfs") && finding.hint.is_some(), "{finding:?}");
    });
    std::fs::remove_dir_all(&place).unwrap();
}
