//! What is held, by whom, and who waits, can be seen from outside.

use futures_util::future::join_all;
use tenure_core::model::claim::Kind;

use crate::Setup;
use crate::direct;
use crate::stage::{LONG, SHORT, name, resource};

/// An inspection lists exactly the names in use that begin with the prefix, in order.
pub async fn inspect_lists_by_prefix_and_in_order(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let stem = name("inspect");
    let names = ["a", "a/1", "a/2", "ab", "b", "b_1"].map(|end| format!("{stem}:{end}"));
    let takes = names.iter().map(|name| async { setup.take(&a.mutex(name)).await });
    let leases = join_all(takes).await;
    for (prefix, ends) in [
        ("", &["a", "a/1", "a/2", "ab", "b", "b_1"][..]),
        ("a", &["a", "a/1", "a/2", "ab"]),
        ("a/", &["a/1", "a/2"]),
        ("b_", &["b_1"]),
        ("%", &[]),
        ("B", &[]),
        ("a/1x", &[]),
    ] {
        let prefix = format!("{stem}:{prefix}");
        let listed =
            setup.within("an inspection", b.inspect(&prefix)).await.expect("an inspection is answered");
        let listed: Vec<&str> = listed.iter().map(|view| view.resource.as_str()).collect();
        let expected: Vec<String> = ends.iter().map(|end| format!("{stem}:{end}")).collect();
        assert_eq!(listed, expected, "what begins with {prefix:?} is listed, by name");
    }
    for lease in leases {
        setup.within("a release", lease.release()).await.expect("a release is answered");
    }
    let listed = setup.within("an inspection", b.inspect(&stem)).await.expect("an inspection is answered");
    assert!(listed.is_empty(), "what was released is not in use: {listed:?}");
}

/// Pages of any size list every name in use once.
pub async fn inspect_pages_miss_nothing(setup: &dyn Setup) {
    let direct = setup.direct().await;
    let stem = name("pages");
    let claims: Vec<_> = (0..10)
        .map(|number| {
            let resource = tenure_core::Name::new(&format!("{stem}/{number}")).expect("a good name");
            direct.trying(&resource, &direct::mutex())
        })
        .collect();
    for claim in &claims {
        direct.grant(claim).await;
    }
    for most in [1, 3, 10, 11] {
        // Of whom nothing is heard for a while does not hold any more.
        for claim in &claims {
            direct.renew(claim).await;
        }
        let mut listed = Vec::new();
        loop {
            let page = direct.inspect(&stem, listed.last().cloned(), most).await;
            if page.is_empty() {
                break;
            }
            assert!(page.len() <= most, "a page of {} names, {most} were asked for", page.len());
            listed.extend(page.into_iter().map(|view| view.resource));
            assert!(listed.len() <= claims.len(), "names are listed twice: {listed:?}");
        }
        let all: Vec<_> = claims.iter().map(|claim| claim.resource.clone()).collect();
        assert_eq!(listed, all, "pages of {most} list every name once");
    }
    for claim in &claims {
        direct.release(claim).await;
    }
}

/// An inspection tells who holds, under which token, since when, and who waits in which order.
pub async fn inspect_tells_holders_and_waiters(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("tells");
    let lease = setup.take(&a.mutex(&name).label("holds").ttl(LONG)).await;
    let first = setup.queue(&b.mutex(&name).label("waits first")).await;
    let second = setup.queue(&a.mutex(&name).label("waits second")).await;
    let views = setup.within("an inspection", b.inspect(&name)).await.expect("an inspection is answered");
    let [view] = &views[..] else { panic!("one name is in use: {views:?}") };
    assert_eq!((view.kind, view.capacity, view.used), (Kind::Mutex, 1, 1));
    assert_eq!(view.last_token, lease.token());
    let [hold] = &view.holds[..] else { panic!("one claim holds: {view:?}") };
    assert_eq!((hold.claim, hold.token), (Some(lease.claim()), lease.token()));
    assert_eq!((hold.label.text(), hold.label.pid()), ("holds", std::process::id()));
    assert!(hold.ends_in <= LONG && hold.ends_in > LONG / 2, "it ends in {:?}", hold.ends_in);
    assert!(hold.held_for < LONG, "it is held for {:?}", hold.held_for);
    let waiters: Vec<&str> = view.waiters.iter().map(|waiter| waiter.label.text()).collect();
    assert_eq!((view.waiting, waiters), (2, vec!["waits first", "waits second"]));
    drop((first, second, lease));
    setup.assert_nothing_is_left(&name).await;
}

/// An observer is told what is, before anything changes.
pub async fn an_observer_sees_the_present_first(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("present");
    let mut changes = b.observe(&name).expect("a good name");
    let first = setup.within("a first view", changes.next()).await.expect("the client lives");
    assert!(first.expect("a view").is_none(), "nobody uses the name");
    let lease = setup.take(&a.mutex(&name)).await;
    let mut changes = b.observe(&name).expect("a good name");
    let first = setup.within("a first view", changes.next()).await.expect("the client lives");
    let view = first.expect("a view").expect("the name is in use");
    assert_eq!(view.holds.first().map(|hold| hold.token), Some(lease.token()));
    setup.within("a release", lease.release()).await.expect("a release is answered");
}

/// An observer that reads slowly misses what is over, but never the latest.
pub async fn an_observer_never_misses_the_latest(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("latest");
    let mut changes = b.observe(&name).expect("a good name");
    setup.within("a first view", changes.next()).await.expect("the client lives").expect("a view");
    for _ in 0..20 {
        let lease = setup.take(&a.mutex(&name)).await;
        setup.within("a release", lease.release()).await.expect("a release is answered");
    }
    let lease = setup.take(&a.mutex(&name)).await;
    let latest = async {
        loop {
            let view = changes.next().await.expect("the client lives").expect("a view");
            if view.is_some_and(|view| view.holds.iter().any(|hold| hold.token == lease.token())) {
                return;
            }
        }
    };
    setup.within("the observer sees the latest hold", latest).await;
    setup.within("a release", lease.release()).await.expect("a release is answered");
    let idle = async { while changes.next().await.expect("the client lives").expect("a view").is_some() {} };
    setup.within("the observer sees that it is idle", idle).await;
}

/// An observer sees the end of a hold that ends by itself.
pub async fn an_observer_sees_an_end_by_itself(setup: &dyn Setup) {
    let direct = setup.direct().await;
    let client = setup.client().await;
    let resource = resource("ends");
    let mut terms = direct::mutex();
    terms.ttl = crate::stage::ttl_of(direct.capability(), SHORT);
    direct.grant(&direct.trying(&resource, &terms)).await;
    let mut changes = client.observe(resource.as_str()).expect("a good name");
    let first = setup.within("a first view", changes.next()).await.expect("the client lives");
    assert!(first.expect("a view").is_some(), "it is held");
    let ended = async { while changes.next().await.expect("the client lives").expect("a view").is_some() {} };
    setup.within("the observer sees the end", ended).await;
}
