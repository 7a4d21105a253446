//! A stampede on a real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::model::claim::VALUE_BYTES_MAX;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{Error, FetchedFrom};
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::crew::{connect, now};

/// Lets others on this thread go on.
async fn yield_once() {
    let mut has_yielded = false;
    std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut has_yielded, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn a_thousand_tasks_of_one_client_get_one_large_value() {
    const TASKS: usize = 1_000;
    let server = RedisServer::start(RedisOptions::default());
    let (loader, crowd) = (connect(&server.url()), connect(&server.url()));
    let came = AtomicUsize::new(0);
    let load = async |_: &tenure_core::Lease| {
        // Until all wait for it, by the claim that one of them has sent for all: one that were answered with the value at once would be for
        // those alone who had asked when it was sent.
        let is_in_line =
            async || loader.view("k").await.is_ok_and(|view| view.is_some_and(|view| view.waiting > 0));
        while came.load(Ordering::Relaxed) < TASKS || !is_in_line().await {
            yield_once().await;
        }
        Ok::<_, Error>(vec![7; VALUE_BYTES_MAX])
    };
    let flight = crowd.single_flight("k").ttl(Duration::from_secs(10));
    let wanted = join_all((0..TASKS).map(|_| async {
        let found = flight.get_or_refresh(async |_: &tenure_core::Lease| Ok::<_, Error>(Vec::new()));
        came.fetch_add(1, Ordering::Relaxed);
        found.await.expect("it is served")
    }));
    let began = now();
    let first = loader.single_flight("k");
    let mut loading = Box::pin(first.get_or_refresh(load));
    // It loads before the others ask.
    while pollster::block_on(crowd.view("k")).expect("an answer").is_none_or(|view| view.holds.is_empty()) {
        assert!(pollster::block_on(futures_util::future::poll_immediate(&mut loading)).is_none());
    }
    let (loaded, found) = pollster::block_on(futures_util::future::join(loading, wanted));
    assert!(matches!(loaded.expect("it loads").source, FetchedFrom::Loaded(_)));
    for one in &found {
        assert!(matches!(one.source, FetchedFrom::Fresh(_)));
        assert!(Arc::ptr_eq(&one.bytes, &found[0].bytes), "one copy came for all");
    }
    assert_in_time(now().since(began), Duration::from_secs(5));
}
