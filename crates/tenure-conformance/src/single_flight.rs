//! One loads, the others get its value.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::{Error, ErrorKind, Source};

use crate::Setup;
use crate::stage::{SHORT, Stage, name, pause};

/// Many who want a value that nobody has cause one load, and all get its value.
pub async fn one_loads_for_all(setup: &impl Setup) {
    let clients = [setup.client().await, setup.client().await];
    let key = name("load");
    let loads = AtomicUsize::new(0);
    let want = async |client: &tenure_core::Tenure| {
        let flight = client.single_flight(&key);
        let found = flight.get_or_refresh(async |_| {
            loads.fetch_add(1, Ordering::Relaxed);
            pause(Duration::from_millis(100)).await;
            Ok::<_, Error>(b"value".to_vec())
        });
        setup.within("a value", found).await.expect("a value")
    };
    let found = futures_util::future::join_all((0..40).map(|index| want(&clients[index % 2]))).await;
    assert_eq!(loads.load(Ordering::Relaxed), 1, "more than one loaded");
    assert!(found.iter().all(|found| &*found.bytes == b"value"), "everybody gets the value");
    let loaded = found.iter().filter(|found| matches!(found.source, Source::Loaded(_))).count();
    assert_eq!(loaded, 1, "who loaded is told so");
}

/// If the load fails, exactly one of those who wait loads in its place.
pub async fn a_failed_load_passes_to_one_other(setup: &impl Setup) {
    let clients = [setup.client().await, setup.client().await];
    let key = name("fail");
    let loads = AtomicUsize::new(0);
    let want = async |client: &tenure_core::Tenure| {
        let flight = client.single_flight(&key);
        let found = flight.get_or_refresh(async |_| {
            let load = loads.fetch_add(1, Ordering::Relaxed);
            pause(Duration::from_millis(50)).await;
            if load == 0 { Err(Error::new(ErrorKind::Internal, "load", "it failed")) } else { Ok(vec![7]) }
        });
        setup.within("an answer", found).await
    };
    let found = futures_util::future::join_all((0..10).map(|index| want(&clients[index % 2]))).await;
    assert_eq!(loads.load(Ordering::Relaxed), 2, "one loads in place of the one that failed");
    assert_eq!(found.iter().filter(|found| found.is_err()).count(), 1, "who failed is told so");
}

/// A value is fresh for its time and loaded anew afterwards; meanwhile the stale one is served, if wished.
pub async fn a_stale_value_is_served_while_one_loads(setup: &impl Setup) {
    if !setup
        .can("a_stale_value_is_served_while_one_loads", "values that outlive holds", |can| can.keeps_values)
        .await
    {
        return;
    }
    let (a, b) = (setup.client().await, setup.client().await);
    let key = name("stale");
    let flight = |client: &tenure_core::Tenure| {
        client.single_flight(&key).fresh(SHORT).serve_stale(Duration::from_secs(60))
    };
    let load = async |value: u8| Ok::<_, Error>(vec![value]);
    let first = setup.within("a value", flight(&a).get_or_refresh(async |_| load(1).await)).await;
    assert!(matches!(first.expect("a value").source, Source::Loaded(_)), "nobody had it");
    let fresh = setup.within("a value", flight(&b).get_or_refresh(async |_| load(2).await)).await;
    let fresh = fresh.expect("a value");
    assert!(matches!(fresh.source, Source::Fresh(_)) && *fresh.bytes == [1], "it is fresh: {fresh:?}");
    pause(SHORT + Duration::from_millis(50)).await;
    let (b_flight, a_flight) = (flight(&b), flight(&a));
    let slow = a_flight.get_or_refresh(async |_| {
        let stale = b_flight.get_or_refresh(async |_| load(4).await).await?;
        assert!(stale.source == Source::Stale && *stale.bytes == [1], "the old one is served: {stale:?}");
        load(3).await
    });
    let slow = setup.within("a value", slow).await.expect("a value");
    assert!(matches!(slow.source, Source::Loaded(_)) && *slow.bytes == [3], "it was loaded anew: {slow:?}");
    let fresh = setup.within("a value", flight(&b).get_or_refresh(async |_| load(5).await)).await;
    assert_eq!(*fresh.expect("a value").bytes, [3], "the new one is fresh");
}

/// A value that is too large is refused before it is sent, and others may load.
pub async fn a_value_that_is_too_large_is_refused(setup: &impl Setup) {
    let client = setup.client().await;
    let flight = client.single_flight(&name("large"));
    let large = async |_: &tenure_core::Lease| Ok::<_, Error>(vec![0; 1024 * 1024]);
    let refused = setup.within("an answer", flight.get_or_refresh(large)).await;
    assert_eq!(refused.expect_err("it is too large").kind(), ErrorKind::Invalid);
    let small = async |_: &tenure_core::Lease| Ok::<_, Error>(vec![0; 1024]);
    setup.within("a value", flight.get_or_refresh(small)).await.expect("others may load");
}
