//! What becomes of a request whose outcome is not known, and of a grant that nobody looks at.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, poll_immediate};
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::memory::Store;
use tenure_core::{Error, ErrorKind, FetchedFrom, Settings, Tenure, Token};

use crate::faulty::{Faults, connect};
use tenure_core::testing::busy::assert_in_time;

/// Long enough that nobody takes the end of a ttl for a withdrawal.
const TTL: Duration = Duration::from_secs(30);
/// As long as nobody looks at a grant.
const BRIEF: Duration = Duration::from_millis(300);
const TIMEOUT: Duration = Duration::from_millis(200);

fn now() -> Instant {
    SystemClock.now()
}

fn store() -> Arc<Store> {
    Store::new(Arc::new(SystemClock))
}

fn plain(store: &Arc<Store>) -> Tenure {
    pollster::block_on(Tenure::connect_with(store.clone().connector(), Settings::default()))
        .expect("connects")
}

/// Two clients of one store, the first of which sees faults.
fn two() -> (Arc<Faults>, Tenure, Tenure) {
    two_within(TIMEOUT)
}

fn two_within(answer_timeout: Duration) -> (Arc<Faults>, Tenure, Tenure) {
    let (store, faults) = (store(), Arc::new(Faults::default()));
    let a = connect(&store, &faults, answer_timeout);
    (faults, a, plain(&store))
}

fn internal() -> Error {
    Error::new(ErrorKind::Internal, "ask", "a script failed half way")
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "ask", "the server cannot write")
}

#[test]
fn a_claim_that_was_granted_and_answered_with_a_failure_is_withdrawn() {
    let (faults, a, b) = two();
    faults.claimed.set(1, internal());
    let asked = pollster::block_on(a.mutex("x").ttl(TTL).try_acquire());
    assert_eq!(asked.expect_err("it was answered with a failure").kind(), ErrorKind::Internal);
    let began = now();
    let waiting = b.mutex("x").acquire_within(Duration::from_secs(3));
    drop(pollster::block_on(waiting).expect("nobody holds it"));
    assert_in_time(now().since(began), Duration::from_secs(2));
}

#[test]
fn an_item_whose_take_was_answered_with_a_failure_goes_back() {
    let (faults, a, b) = two();
    pollster::block_on(async {
        a.queue("q").push("work").await.expect("it is pushed");
        faults.taken.set(1, internal());
        let taken = a.queue("q").ttl(TTL).try_next().await;
        assert_eq!(taken.expect_err("it was answered with a failure").kind(), ErrorKind::Internal);
        let delivery = b.queue("q").next_within(Duration::from_secs(3)).await.expect("answers");
        assert_eq!(delivery.expect("it went back").attempt(), 1, "nobody has seen it");
    });
}

#[test]
fn a_settlement_that_was_answered_with_a_failure_is_repeated() {
    let (faults, a, b) = two();
    pollster::block_on(async {
        a.queue("q").push("work").await.expect("it is pushed");
        let delivery = a.queue("q").ttl(TTL).next().await.expect("it is there");
        faults.unsettled.set(2, internal());
        delivery.ack().await.expect("it is repeated");
        assert!(b.queue("q").try_next().await.expect("answers").is_none());
        assert_eq!(b.queue("q").stats().await.expect("answers").in_flight, 0);
    });
}

#[test]
fn an_item_that_is_handed_out_by_a_take_that_was_given_up_goes_back() {
    let (faults, a, b) = two();
    pollster::block_on(async {
        a.queue("q").push("work").await.expect("it is pushed");
        *faults.late_take.lock().expect("no panic") = Some(TIMEOUT * 2);
        let mine = a.queue("q").ttl(TTL);
        let taken = mine.try_next().await;
        assert_eq!(taken.expect_err("it is silent").kind(), ErrorKind::Unavailable);
        // It is carried out now.
        let began = now();
        while b.queue("q").stats().await.expect("answers").in_flight == 0 {
            assert_in_time(now().since(began), Duration::from_secs(2));
            std::thread::yield_now();
        }
        let delivery = b.queue("q").next_within(Duration::from_secs(4)).await.expect("answers");
        assert_eq!(delivery.expect("it went back").attempt(), 1, "nobody has seen it");
    });
}

/// Has `a` granted what `b` holds, while nobody polls the future that waits for it.
#[test]
fn a_grant_that_nobody_polls_goes_back_and_is_asked_for_anew() {
    let store = store();
    let (a, b, c) = (plain(&store), plain(&store), plain(&store));
    pollster::block_on(async {
        let held = b.mutex("x").acquire().await.expect("free");
        let mine = a.mutex("x").ttl(BRIEF);
        let mut forgotten = std::pin::pin!(mine.acquire());
        assert!(poll_immediate(&mut forgotten).await.is_none());
        held.release().await.expect("answers");
        let next = c.mutex("x").acquire_within(Duration::from_secs(3)).await.expect("it goes back");
        assert!(poll_immediate(&mut forgotten).await.is_none(), "somebody else holds it");
        next.release().await.expect("answers");
        let late = forgotten.await.expect("it is polled again");
        assert!(!late.is_lost());
    });
}

#[test]
fn a_delivery_that_nobody_polls_goes_back() {
    let store = store();
    let (a, b) = (plain(&store), plain(&store));
    pollster::block_on(async {
        let queue = a.queue("q").ttl(BRIEF);
        let mut forgotten = std::pin::pin!(queue.next());
        assert!(poll_immediate(&mut forgotten).await.is_none());
        b.queue("q").push("work").await.expect("it is pushed");
        let began = now();
        while b.queue("q").stats().await.expect("answers").in_flight == 0 {
            assert_in_time(now().since(began), Duration::from_secs(2));
            std::thread::yield_now();
        }
        let delivery = b.queue("q").next_within(Duration::from_secs(3)).await.expect("answers");
        assert_eq!(delivery.expect("it went back").attempt(), 1, "nobody has seen it");
        b.queue("q").push("more").await.expect("it is pushed");
        let late = forgotten.await.expect("it is polled again");
        assert_eq!(late.payload(), b"more", "what went back is not given to its user");
    });
}

#[test]
fn what_a_set_holds_that_nobody_polls_goes_back() {
    let store = store();
    let (a, b, c) = (plain(&store), plain(&store), plain(&store));
    pollster::block_on(async {
        let held = b.mutex("y").acquire().await.expect("free");
        let both = a.all([a.mutex("x").ttl(BRIEF).into(), a.mutex("y").ttl(BRIEF).into()]);
        let mut forgotten = Box::pin(both.acquire());
        let began = now();
        // It holds the first and waits for the second.
        while b.view("y").await.expect("answers").is_none_or(|view| view.waiting == 0) {
            assert_in_time(now().since(began), Duration::from_secs(2));
            assert!(poll_immediate(&mut forgotten).await.is_none());
        }
        assert!(poll_immediate(&mut forgotten).await.is_none());
        assert!(c.mutex("x").try_acquire().await.expect("answers").is_none(), "it is held");
        held.release().await.expect("answers");
        let first = c.mutex("x").acquire_within(Duration::from_secs(3)).await.expect("it goes back");
        let second = c.mutex("y").acquire_within(Duration::from_secs(3)).await.expect("it goes back");
        drop((first, second));
        let leases = forgotten.await.expect("it is polled again");
        assert!(!leases.is_lost());
    });
}

#[test]
fn closing_a_client_waits_for_releases_although_a_clone_lives() {
    let (faults, a, b) = two();
    *faults.release_delay.lock().expect("no panic") = TIMEOUT / 2;
    let clone = a.clone();
    let lease = pollster::block_on(clone.mutex("x").ttl(TTL).acquire()).expect("free");
    drop(lease);
    pollster::block_on(a.close());
    let free = pollster::block_on(b.mutex("x").try_acquire()).expect("answers");
    assert!(free.is_some(), "the release was answered before");
    drop(pollster::block_on(clone.mutex("y").try_acquire()).expect("a clone goes on").expect("free"));
}

#[test]
fn closing_a_client_does_not_wait_for_ever() {
    let (faults, a, _b) = two();
    *faults.release_delay.lock().expect("no panic") = TTL;
    let clone = a.clone();
    drop(pollster::block_on(clone.mutex("x").ttl(TTL).acquire()).expect("free"));
    let began = now();
    pollster::block_on(a.close());
    assert_in_time(now().since(began), TIMEOUT * 10);
}

#[test]
fn closing_a_client_waits_for_settlements_although_a_clone_lives() {
    let (faults, a, b) = two();
    pollster::block_on(async {
        a.queue("q").push("work").await.expect("it is pushed");
        let delivery = a.queue("q").ttl(TTL).next().await.expect("it is there");
        faults.unsettled.set(2, unavailable());
        let clone = a.clone();
        drop(delivery);
        a.close().await;
        assert_eq!(b.queue("q").stats().await.expect("answers").in_flight, 0);
        drop(clone);
    });
}

/// How many files this process has open.
#[cfg(target_os = "linux")]
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[test]
#[cfg(target_os = "linux")]
fn settlements_that_are_repeated_share_one_timer() {
    let (faults, a, _b) = two();
    pollster::block_on(async {
        let queue = a.queue("q").ttl(TTL);
        join_all((0..3_000).map(|_| queue.push("work").into_future())).await;
        let taken = join_all((0..3_000).map(|_| queue.next())).await;
        let before = open_files();
        faults.unsettled.set(usize::MAX, unavailable());
        let settling: Vec<_> =
            taken.into_iter().map(|delivery| delivery.expect("it is there").ack()).collect();
        let mut settling = std::pin::pin!(join_all(settling));
        assert!(poll_immediate(&mut settling).await.is_none());
        let (began, mut most) = (now(), 0);
        while faults.settlements.load(Ordering::Relaxed) < 12_000 {
            most = most.max(open_files().saturating_sub(before));
            assert_in_time(now().since(began), Duration::from_secs(2));
        }
        assert!(most < 100, "3,000 settlements that are repeated have {most} timers");
    });
}

#[test]
fn a_thousand_tasks_of_one_client_ask_once() {
    let (faults, a, _b) = two_within(TTL);
    let (loads, came) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let flight = a.single_flight("k");
    let load = async |_: &tenure_core::Lease| {
        loads.fetch_add(1, Ordering::Relaxed);
        // Until all have come.
        std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if came.load(Ordering::Relaxed) == 1_000 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Ok::<_, Error>(vec![7; 1024])
    };
    let found = pollster::block_on(join_all((0..1_000).map(|_| async {
        let found = flight.get_or_refresh(load);
        came.fetch_add(1, Ordering::Relaxed);
        found.await
    })));
    let loaded = found.iter().filter(|found| {
        let found = found.as_ref().expect("it is found");
        assert_eq!(found.bytes.len(), 1024);
        matches!(found.source, FetchedFrom::Loaded(_))
    });
    assert_eq!(loaded.count(), 1);
    assert_eq!(loads.load(Ordering::Relaxed), 1);
    assert_eq!(faults.claims.load(Ordering::Relaxed), 1, "the others join it");
    // It is not a cache: whoever asks later asks the store.
    let later = pollster::block_on(flight.get_or_refresh(load)).expect("it is found");
    assert!(matches!(later.source, FetchedFrom::Fresh(_)));
    assert_eq!(faults.claims.load(Ordering::Relaxed), 2);
}

#[test]
fn another_task_takes_over_whether_the_first_is_dropped_fails_or_is_not_polled() {
    let (faults, a, b) = two_within(TTL);
    pollster::block_on(async {
        let flight = a.single_flight("k");
        let load = async |_: &tenure_core::Lease| Ok::<_, Error>(vec![7]);
        // The first loads for ever.
        let mut first = Box::pin(flight.get_or_refresh(async |_: &tenure_core::Lease| {
            std::future::pending::<()>().await;
            Ok::<_, Error>(Vec::new())
        }));
        let began = now();
        while b.view("k").await.expect("answers").is_none_or(|view| view.holds.is_empty()) {
            assert!(poll_immediate(&mut first).await.is_none());
            assert_in_time(now().since(began), Duration::from_secs(2));
        }
        assert!(poll_immediate(&mut first).await.is_none());
        let mut others: Vec<_> = (0..3).map(|_| Box::pin(flight.get_or_refresh(load))).collect();
        for other in &mut others {
            assert!(poll_immediate(other).await.is_none());
        }
        assert_eq!(faults.claims.load(Ordering::Relaxed), 1, "they wait for the first");
        drop(first);
        // The second is not polled, and holds up nobody.
        let third = others.pop().expect("there are three").await.expect("it is found");
        assert!(matches!(third.source, FetchedFrom::Loaded(_)));
        let found = others.pop().expect("there are two").await.expect("it is found");
        assert!(matches!(found.source, FetchedFrom::Fresh(_)), "{found:?}");

        let failing = a.single_flight("other");
        let fail = async |_: &tenure_core::Lease| Err::<Vec<u8>, _>(internal());
        let (one, two) =
            futures_util::future::join(failing.get_or_refresh(fail), failing.get_or_refresh(load)).await;
        assert_eq!(one.expect_err("its own failure").kind(), ErrorKind::Internal);
        assert!(matches!(two.expect("it loads in its place").source, FetchedFrom::Loaded(_)));
    });
}

#[test]
fn a_thousand_tasks_of_one_client_share_a_stale_value() {
    let (faults, a, b) = two_within(TTL);
    pollster::block_on(async {
        let other = b.single_flight("k").fresh(Duration::ZERO).serve_stale(TTL);
        let old = other.get_or_refresh(async |_: &tenure_core::Lease| Ok::<_, Error>(vec![7])).await;
        old.expect("it is loaded");
        let mut loading = std::pin::pin!(other.get_or_refresh(async |_: &tenure_core::Lease| {
            std::future::pending::<()>().await;
            Ok::<_, Error>(Vec::new())
        }));
        let began = now();
        while b.view("k").await.expect("answers").is_none_or(|view| view.holds.is_empty()) {
            assert!(poll_immediate(&mut loading).await.is_none());
            assert_in_time(now().since(began), Duration::from_secs(2));
        }
        let flight = a.single_flight("k").serve_stale(TTL);
        // Until all have come.
        *faults.claim_delay.lock().expect("no panic") = BRIEF;
        let load = async |_: &tenure_core::Lease| Ok::<_, Error>(Vec::new());
        let found = join_all((0..1_000).map(|_| flight.get_or_refresh(load))).await;
        for found in found {
            assert_eq!(found.expect("it is found").source, FetchedFrom::Stale);
        }
        assert_eq!(faults.claims.load(Ordering::Relaxed), 1);
        assert!(loading.now_or_never().is_none());
    });
}

/// Polls something until a count is reached.
async fn poll_until<T>(mut work: Pin<&mut impl Future<Output = T>>, count: &AtomicUsize, reached: usize) {
    let began = now();
    while count.load(Ordering::Relaxed) < reached {
        assert!(poll_immediate(&mut work).await.is_none());
        assert_in_time(now().since(began), Duration::from_secs(2));
    }
}

/// A task that joins what another one has asked may have been told since that there is something newer.
#[test]
fn who_joins_a_look_is_served_nothing_older_than_what_was_there_when_it_asked() {
    let (faults, a, b) = two_within(TTL);
    pollster::block_on(async {
        let other = b.single_flight("k").fresh(Duration::ZERO).serve_stale(TTL);
        let load = async |value: u8| {
            other.get_or_refresh(async move |_: &tenure_core::Lease| Ok::<_, Error>(vec![value])).await
        };
        load(1).await.expect("it is loaded");
        let mut loading = std::pin::pin!(other.get_or_refresh(async |_: &tenure_core::Lease| {
            // Until the other client has looked.
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if faults.looks.load(Ordering::Relaxed) > 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            Ok::<_, Error>(vec![2])
        }));
        let began = now();
        while b.view("k").await.expect("answers").is_none_or(|view| view.holds.is_empty()) {
            assert!(poll_immediate(&mut loading).await.is_none());
            assert_in_time(now().since(began), Duration::from_secs(2));
        }
        *faults.look_delay.lock().expect("no panic") = BRIEF;
        let flight = a.single_flight("k").serve_stale(TTL);
        let nobody = async |_: &tenure_core::Lease| Ok::<_, Error>(Vec::new());
        let mut first = std::pin::pin!(flight.get_or_refresh(nobody));
        poll_until(first.as_mut(), &faults.looks, 1).await;
        assert_eq!(loading.await.expect("it is loaded").bytes[..], [2]);
        // Somebody loads the next one, so that what is there is served.
        let mut loading = std::pin::pin!(other.get_or_refresh(async |_: &tenure_core::Lease| {
            std::future::pending::<()>().await;
            Ok::<_, Error>(Vec::new())
        }));
        while b.view("k").await.expect("answers").is_none_or(|view| view.holds.is_empty()) {
            assert!(poll_immediate(&mut loading).await.is_none());
        }
        let second = flight.get_or_refresh(nobody);
        let (first, second) = futures_util::future::join(first, second).await;
        assert_eq!(first.expect("it is found").bytes[..], [1], "it had asked before");
        assert_eq!(second.expect("it is found").bytes[..], [2], "it asked when that was there");
    });
}

#[test]
fn who_joins_a_claim_is_not_served_what_was_forgotten_before_it_asked() {
    let (faults, a, b) = two_within(TTL);
    pollster::block_on(async {
        let other = b.single_flight("k").fresh(TTL);
        let load = async |_: &tenure_core::Lease| Ok::<_, Error>(vec![1]);
        other.get_or_refresh(load).await.expect("it is loaded");
        *faults.claim_delay.lock().expect("no panic") = BRIEF;
        let flight = a.single_flight("k").fresh(TTL);
        let again = async |_: &tenure_core::Lease| Ok::<_, Error>(vec![2]);
        let mut first = std::pin::pin!(flight.get_or_refresh(again));
        poll_until(first.as_mut(), &faults.claims, 1).await;
        other.forget().await.expect("it is gone");
        let (first, second) = futures_util::future::join(first, flight.get_or_refresh(again)).await;
        assert_eq!(first.expect("it is found").bytes[..], [1], "it had asked before");
        assert_eq!(second.expect("it is found").bytes[..], [2], "it asked after that");
    });
}

#[test]
fn a_floor_far_ahead_of_the_store_is_refused_and_poisons_no_tokens() {
    let (_faults, a, b) = two();
    pollster::block_on(async {
        a.queue("q").push("work").await.expect("it is pushed");
        a.raise_floor("q", Token::new((1 << 53) - 2)).expect("a good name");
        let refused = a.queue("q").ttl(TTL).try_next().await.expect_err("one of the clocks is wrong");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        let delivery = b.queue("q").next_within(Duration::from_secs(3)).await.expect("answers");
        let delivery = delivery.expect("it went back");
        assert_eq!(delivery.attempt(), 1, "nobody has seen it");
        assert!(
            delivery.token() < Token::new(1 << 52),
            "its token is the store's clock: {}",
            delivery.token()
        );
    });
}

/// If it were not, all who wait would load again, one after the other.
#[test]
fn a_value_is_published_although_the_store_was_too_busy_at_first() {
    let (faults, a, b) = two_within(Duration::from_secs(2));
    faults.unpublished.set(3, unavailable());
    let load = async |_: &tenure_core::Lease| Ok::<_, Error>(vec![7]);
    let flight = a.single_flight("k").fresh(TTL);
    let loaded = pollster::block_on(flight.get_or_refresh(load)).expect("it is published at last");
    assert!(matches!(loaded.source, FetchedFrom::Loaded(_)), "{loaded:?}");
    let found =
        pollster::block_on(b.single_flight("k").fresh(TTL).get_or_refresh(load)).expect("it is found");
    assert!(matches!(found.source, FetchedFrom::Fresh(_)), "{found:?}");
}

// page: docs/concepts/backoff.md "| the publication of a value that was loaded | five answer timeouts"
#[test]
fn a_value_that_cannot_be_published_is_told_after_five_answer_timeouts() {
    let (faults, a, _) = two();
    faults.unpublished.set(usize::MAX, unavailable());
    let asked = now();
    let flight = a.single_flight("k").fresh(TTL).ttl(TTL);
    let refused = pollster::block_on(flight.get_or_refresh(async |_| Ok::<_, Error>(vec![7])));
    assert_eq!(refused.expect_err("nobody keeps it").kind(), ErrorKind::Unavailable);
    // The next delay would lead beyond, and is 500 ms at most.
    assert!(now().since(asked) + Duration::from_millis(500) >= 5 * TIMEOUT);
}
