//! One loads, the others get its value.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use tenure_core::engine::{BreakAnswer, Capability, ClaimAnswer, ReleaseAnswer};
use tenure_core::model::claim::Terms;
use tenure_core::{Error, ErrorKind, FetchedFrom, Name};

use crate::Setup;
use crate::cancellation::poll_times;
use crate::direct;
use crate::stage::{LONG, SHORT, name, pause, waiters};

async fn can(setup: &dyn Setup, check: &str) -> bool {
    let keeps = |capability: &Capability| capability.keeps_values;
    setup.can(&format!("single_flight::{check}"), "values that outlive holds", keeps).await
}

/// Waits until a value is fresh no more.
async fn ages(setup: &dyn Setup, key: &str) {
    let direct = setup.direct().await;
    let resource = Name::new(key).expect("a key is a name");
    let terms = Terms { unless_fresh: true, ..direct::mutex() };
    setup
        .eventually("a value is fresh no more", async || {
            let claim = direct.trying(&resource, &terms);
            match direct.claim(&claim).await {
                Ok(ClaimAnswer::Fresh(_)) => false,
                Ok(ClaimAnswer::Granted(_)) => direct.release(&claim).await == ReleaseAnswer::Released,
                other => panic!("a try is granted, or answered by the value: {other:?}"),
            }
        })
        .await;
}

/// Many who want a value that nobody has cause one load, and all get its value.
pub async fn one_loads_for_all(setup: &dyn Setup) {
    if !can(setup, "one_loads_for_all").await {
        return;
    }
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
    let loaded = found.iter().filter(|found| matches!(found.source, FetchedFrom::Loaded(_))).count();
    assert_eq!(loaded, 1, "who loaded is told so");
}

/// If the load fails, exactly one of those who wait loads in its place.
pub async fn a_failed_load_passes_to_one_other(setup: &dyn Setup) {
    if !can(setup, "a_failed_load_passes_to_one_other").await {
        return;
    }
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
pub async fn a_stale_value_is_served_while_one_loads(setup: &dyn Setup) {
    if !can(setup, "a_stale_value_is_served_while_one_loads").await {
        return;
    }
    let (a, b) = (setup.client().await, setup.client().await);
    let key = name("stale");
    let period = setup.ttl(SHORT).await;
    let flight = |client: &tenure_core::Tenure| {
        client.single_flight(&key).fresh(period).serve_stale(Duration::from_secs(60))
    };
    let load = async |value: u8| Ok::<_, Error>(vec![value]);
    let first = setup.within("a value", flight(&a).get_or_refresh(async |_| load(1).await)).await;
    assert!(matches!(first.expect("a value").source, FetchedFrom::Loaded(_)), "nobody had it");
    let fresh = setup.within("a value", flight(&b).get_or_refresh(async |_| load(2).await)).await;
    let fresh = fresh.expect("a value");
    assert!(matches!(fresh.source, FetchedFrom::Fresh(_)) && *fresh.bytes == [1], "it is fresh: {fresh:?}");
    ages(setup, &key).await;
    let (b_flight, a_flight) = (flight(&b), flight(&a));
    let slow = a_flight.get_or_refresh(async |_| {
        let stale = b_flight.get_or_refresh(async |_| load(4).await).await?;
        assert!(
            stale.source == FetchedFrom::Stale && *stale.bytes == [1],
            "the old one is served: {stale:?}"
        );
        load(3).await
    });
    let slow = setup.within("a value", slow).await.expect("a value");
    assert!(
        matches!(slow.source, FetchedFrom::Loaded(_)) && *slow.bytes == [3],
        "it was loaded anew: {slow:?}"
    );
    let fresh = setup.within("a value", flight(&b).get_or_refresh(async |_| load(5).await)).await;
    assert_eq!(*fresh.expect("a value").bytes, [3], "the new one is fresh");
}

/// A refresh loads although the value is fresh, after a load that is under way, and everybody gets what it has loaded.
pub async fn a_value_that_is_refreshed_is_loaded_although_it_is_fresh(setup: &dyn Setup) {
    if !can(setup, "a_value_that_is_refreshed_is_loaded_although_it_is_fresh").await {
        return;
    }
    let (a, b) = (setup.client().await, setup.client().await);
    let key = name("refresh");
    let load = async |value: u8| Ok::<_, Error>(vec![value]);
    let first = a.single_flight(&key);
    setup.within("a value", first.get_or_refresh(async |_| load(1).await)).await.expect("a value");
    let second = b.single_flight(&key);
    let found = setup.within("a value", second.refresh(async |_| load(2).await)).await.expect("a value");
    assert!(matches!(found.source, FetchedFrom::Loaded(_)) && *found.bytes == [2], "{found:?}");
    let found = first.get_or_refresh(async |_| load(3).await);
    let found = setup.within("a value", found).await.expect("a value");
    assert!(
        matches!(found.source, FetchedFrom::Fresh(_)) && *found.bytes == [2],
        "the new one is fresh: {found:?}"
    );
}

/// What was loaded before a value is forgotten is served to nobody afterwards, not even as stale.
pub async fn a_value_that_is_forgotten_is_served_to_nobody(setup: &dyn Setup) {
    if !can(setup, "a_value_that_is_forgotten_is_served_to_nobody").await {
        return;
    }
    let (a, b) = (setup.client().await, setup.client().await);
    let key = name("forget");
    let flight =
        |client: &tenure_core::Tenure| client.single_flight(&key).serve_stale(Duration::from_secs(60));
    let load = async |value: u8| Ok::<_, Error>(vec![value]);
    for value in [1, 2] {
        let wanted = flight(&a);
        let found = wanted.get_or_refresh(async |_| load(value).await);
        let found = setup.within("a value", found).await.expect("a value");
        assert!(matches!(found.source, FetchedFrom::Loaded(_)), "nothing was kept: {found:?}");
        // The load waits for its end, and nobody loads twice.
        let gone = async {
            // Where a server is late it is not known.
            while let Err(error) = flight(&b).forget().await {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
        };
        setup.within("it is gone", gone).await;
        let view = setup.direct().await.view(&Name::new(&key).expect("a key is a name")).await;
        assert!(view.is_none_or(|view| view.value.is_none()), "nothing is kept");
    }
    // While one loads, another finds nothing stale, and waits for it.
    let (slow, quick) = (flight(&a), flight(&b));
    let both = futures_util::future::join(
        slow.get_or_refresh(async |_| {
            pause(Duration::from_millis(100)).await;
            load(3).await
        }),
        quick.get_or_refresh(async |_| load(3).await),
    );
    let (slow, quick) = setup.within("values", both).await;
    assert_eq!((&*slow.expect("a value").bytes, &*quick.expect("a value").bytes), (&[3][..], &[3][..]));
}

/// A value that is too large is refused before it is sent, and others may load.
pub async fn a_value_that_is_too_large_is_refused(setup: &dyn Setup) {
    if !can(setup, "a_value_that_is_too_large_is_refused").await {
        return;
    }
    let client = setup.client().await;
    let flight = client.single_flight(&name("large"));
    let large = async |_: &tenure_core::Lease| Ok::<_, Error>(vec![0; 1024 * 1024]);
    let refused = setup.within("an answer", flight.get_or_refresh(large)).await;
    assert_eq!(refused.expect_err("it is too large").kind(), ErrorKind::Invalid);
    let small = async |_: &tenure_core::Lease| Ok::<_, Error>(vec![0; 1024]);
    setup.within("a value", flight.get_or_refresh(small)).await.expect("others may load");
}

/// A thousand tasks in four processes that want a value that has expired cause one load, and all get its value.
pub async fn a_thousand_in_four_processes_cause_one_load(setup: &dyn Setup) {
    if !can(setup, "a_thousand_in_four_processes_cause_one_load").await {
        return;
    }
    const PROCESSES: usize = 4;
    const TASKS: usize = 250;
    let client = setup.client().await;
    let key = name("thousand");
    let flight = client.single_flight(&key).fresh(setup.ttl(SHORT).await);
    let old = flight.get_or_refresh(async |_| Ok::<_, Error>(b"old".to_vec()));
    setup.within("a value", old).await.expect("a value");
    ages(setup, &key).await;
    let mut actors = Vec::new();
    for _ in 0..PROCESSES {
        actors.push(setup.actor().await);
    }
    for (number, actor) in actors.iter_mut().enumerate() {
        actor.tell(&["flights", &key, &TASKS.to_string(), &format!("new {number}")]);
    }
    let (mut loads, mut values) = (0, BTreeSet::new());
    for actor in &mut actors {
        let flown = loop {
            let answer = actor.hear("they have flown").await.expect("an actor lives");
            if answer != "loading" {
                break answer;
            }
        };
        let parts: Vec<&str> = flown.split('\t').collect();
        let &["flown", tasks, loaded, value] = &parts[..] else { panic!("an actor's tasks fly: {flown}") };
        assert_eq!(tasks, TASKS.to_string(), "all tasks got a value");
        loads += loaded.parse::<usize>().expect("a number");
        values.insert(value.to_owned());
    }
    assert_eq!(loads, 1, "more than one loaded");
    assert!(values.len() == 1 && values.iter().all(|value| value.starts_with("new ")), "{values:?}");
}

/// If the process that loads is killed, exactly one of those who wait loads in its place, and all get its value.
pub async fn a_killed_loader_is_replaced_by_one(setup: &dyn Setup) {
    if !can(setup, "a_killed_loader_is_replaced_by_one").await {
        return;
    }
    const TASKS: usize = 40;
    let client = setup.client().await;
    let key = name("dies");
    let ttl = if client.capability().notices_death { LONG } else { setup.ttl(2 * SHORT).await };
    let (mut loader, mut other) = (setup.actor().await, setup.actor().await);
    let loading = loader.ask(&["hang", &key, &ttl.as_millis().to_string()]).await;
    assert_eq!(loading.as_deref(), Some("loading"), "nobody else loads");
    other.tell(&["flights", &key, &TASKS.to_string(), "value"]);
    // Once for all of its tasks.
    setup.eventually("the other waits", async || waiters(&client, &key).await == 1).await;
    loader.kill();
    let loading = other.hear("one loads in its place").await;
    assert_eq!(loading.as_deref(), Some("loading"), "one loads in place of the one that was killed");
    let flown = other.hear("they have flown").await.expect("it lives");
    assert_eq!(flown, format!("flown\t{TASKS}\t1\tvalue"), "exactly one loads, and all get its value");
}

/// A load whose lease is broken is dropped and publishes nothing; another loads.
pub async fn a_loader_that_loses_its_lease_publishes_nothing(setup: &dyn Setup) {
    if !can(setup, "a_loader_that_loses_its_lease_publishes_nothing").await {
        return;
    }
    let (client, operator) = (setup.client().await, setup.client().await);
    let key = name("broken");
    let flight = client.single_flight(&key).ttl(setup.ttl(SHORT).await);
    let late = flight.get_or_refresh(async |lease| {
        let broken = operator.break_hold(&key, lease.token(), true).await;
        assert!(matches!(broken, Ok(BreakAnswer::Broken { .. })), "it is held: {broken:?}");
        Ok::<_, Error>(b"late".to_vec())
    });
    let refused = setup.within("an answer", late).await;
    assert_eq!(refused.expect_err("its lease was broken").kind(), ErrorKind::Lost);
    let hangs = flight.get_or_refresh(async |lease| {
        let broken = operator.break_hold(&key, lease.token(), false).await;
        assert!(matches!(broken, Ok(BreakAnswer::Broken { .. })), "it is held: {broken:?}");
        std::future::pending::<Result<Vec<u8>, Error>>().await
    });
    let dropped = setup.within("a load under a lost lease ends", hangs).await;
    assert_eq!(dropped.expect_err("its lease was broken").kind(), ErrorKind::Lost);
    let next = operator.single_flight(&key);
    let next = next.get_or_refresh(async |_| Ok::<_, Error>(b"next".to_vec()));
    let found = setup.within("a value", next).await.expect("a value");
    assert!(matches!(found.source, FetchedFrom::Loaded(_)) && &*found.bytes == b"next", "{found:?}");
}

/// A call that is dropped at any moment, while it loads or while it waits for who does, leaves nothing behind:
/// others load.
pub async fn a_call_dropped_at_any_moment_leaves_nothing(setup: &dyn Setup) {
    if !can(setup, "a_call_dropped_at_any_moment_leaves_nothing").await {
        return;
    }
    let (a, b) = (setup.client().await, setup.client().await);
    let key = name("dropped");
    let forever = async |_: &tenure_core::Lease| std::future::pending::<Result<Vec<u8>, Error>>().await;
    let (loads, waits) = (a.single_flight(&key).ttl(LONG), b.single_flight(&key).ttl(LONG));
    for polls in 0..6 {
        let mut loading = Box::pin(loads.get_or_refresh(forever));
        let polled = within_while(poll_times(&mut loading, polls)).await;
        assert!(polled.is_none(), "a load that never ends has ended");
        let mut waiting = Box::pin(waits.get_or_refresh(forever));
        let polled = within_while(poll_times(&mut waiting, polls)).await;
        assert!(polled.is_none(), "a load that never ends has ended");
        if polls % 2 == 0 {
            // The other may be granted while it is dropped.
            drop(loading);
            pause(Duration::from_micros(100) * polls as u32).await;
            drop(waiting);
        } else {
            drop(waiting);
            pause(Duration::from_micros(100) * polls as u32).await;
            drop(loading);
        }
    }
    let free = async || b.view(&key).await.expect("a look is answered").is_none();
    setup.eventually("nothing is left", free).await;
    let next = b.single_flight(&key);
    let next = next.get_or_refresh(async |_| Ok::<_, Error>(b"next".to_vec()));
    let found = setup.within("a value", next).await.expect("a value");
    assert!(matches!(found.source, FetchedFrom::Loaded(_)), "others may load: {found:?}");
}

/// Polls until it is ready or nothing happens for a while: work that never ends does not ask to be polled.
async fn within_while<T>(polled: impl Future<Output = Option<T>>) -> Option<T> {
    match select(std::pin::pin!(polled), std::pin::pin!(pause(Duration::from_millis(30)))).await {
        Either::Left((polled, _)) => polled,
        Either::Right(_) => None,
    }
}
