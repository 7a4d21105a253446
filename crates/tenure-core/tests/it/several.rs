//! Several at once on the `memory:` engine: what is refused, what a wait costs, and what the leases say.

use std::time::Duration;

use futures_util::future::poll_immediate;
use tenure_core::engine::ReleaseAnswer;
use tenure_core::{Error, ErrorKind, Leases, LockRequest, Result, Tenure, blocking, memory};

fn connect(store: &str) -> Tenure {
    pollster::block_on(memory::connect(store)).expect("connects")
}

fn refused(acquired: Result<Leases>) -> Error {
    match acquired {
        Ok(leases) => panic!("it was granted: {leases:?}"),
        Err(error) => error,
    }
}

#[test]
fn what_is_wrong_with_one_is_refused_before_anything_is_sent() {
    let (tenure, other) = (connect("several-invalid"), connect("several-invalid"));
    let good = || LockRequest::from(tenure.mutex("a"));
    let many = (0..129).map(|number| tenure.mutex(&number.to_string()).into());
    for (wanted, limit) in [
        (vec![], "nothing is wanted"),
        (many.collect(), "129 are wanted at once, 128 are allowed"),
        (vec![good(), tenure.mutex("").into()], "1 to 255 bytes"),
        (vec![good(), tenure.semaphore("b", 4).weight(5).into()], "1 to the capacity, 4"),
        (vec![good(), tenure.slot_pool("b", 0).into()], "1 to 1048576"),
        (vec![good(), tenure.mutex("b").ttl(Duration::ZERO).into()], "100ms to 24h"),
        (vec![good(), tenure.mutex("b").into(), good()], "\"a\" is wanted twice"),
        (vec![good(), tenure.slot_pool("a", 4).into()], "\"a\" is wanted twice"),
        (vec![tenure.slot_pool("b", 1).into(); 2], "more than the 1 slots of \"b\""),
        (vec![tenure.slot_pool(&"n".repeat(248), 2).into(); 2], "247 bytes at most"),
        (
            vec![
                tenure.slot_pool("b", 2).into(),
                tenure.slot_pool("b", 2).into(),
                tenure.mutex("b/several").into(),
            ],
            "\"b/several\" is wanted twice",
        ),
        (vec![good(), other.mutex("b").into()], "\"b\" was named from another client"),
        (
            vec![tenure.rw_lock("a").read().into(), tenure.rw_lock("a").write().into()],
            "\"a\" is wanted twice",
        ),
    ] {
        let several = tenure.all(wanted);
        let error = refused(pollster::block_on(several.acquire()));
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let text = format!("{error}; {}", error.hint().unwrap_or_default());
        assert!(text.contains(limit), "{text:?} names {limit:?}");
        let tried = pollster::block_on(several.try_acquire());
        assert_eq!(tried.expect_err("it is as wrong").kind(), ErrorKind::Invalid);
    }
    let views = pollster::block_on(tenure.inspect("")).expect("answers");
    assert!(views.is_empty(), "something was sent: {views:?}");
}

#[test]
fn a_wait_that_is_over_names_who_was_in_the_way_and_holds_nothing() {
    let (a, b) = (connect("several-timeout"), connect("several-timeout"));
    pollster::block_on(async {
        let held = a.mutex("b").label("night run").acquire().await.expect("free");
        let several = b.all(["c", "b", "a"].map(|name| b.mutex(name).into()));
        let at_once = refused(several.acquire_within(Duration::ZERO).await);
        assert_eq!(at_once.kind(), ErrorKind::Timeout);
        let holder = at_once.busy().and_then(|busy| busy.holder.clone()).expect("a refusal names the holder");
        assert_eq!(holder.text(), "night run");
        let later = refused(several.acquire_within(Duration::from_millis(300)).await);
        assert!(later.kind() == ErrorKind::Timeout && later.to_string().contains("\"b\""), "{later}");
        for free in ["a", "c"] {
            // What was given back in the background comes free a moment later.
            drop(a.mutex(free).acquire_within(Duration::from_secs(5)).await.expect("given back"));
        }
        held.release().await.expect("answers");
        let leases = several.acquire_within(Duration::from_secs(5)).await.expect("all are free");
        let names: Vec<String> = leases.iter().map(|lease| lease.resource().to_string()).collect();
        assert_eq!(names, ["a", "b", "c"], "in the order of names");
        assert!(leases.token("b").is_some() && leases.get("d").is_none());
        assert!(leases.expires_in() > Duration::from_secs(20));
        assert_eq!(leases.release().await.expect("answers"), ReleaseAnswer::Released);
    });
}

/// A set waits in the queue of one name, the first that is missing, and holds only what comes before it.
#[test]
fn a_wait_holds_what_comes_before_and_nothing_behind() {
    let (a, b) = (connect("several-prefix"), connect("several-prefix"));
    pollster::block_on(async {
        let held = a.mutex("b").acquire().await.expect("free");
        let several = b.all(["c", "b", "a"].map(|name| b.mutex(name).into()));
        let mut waiting = Box::pin(several.acquire());
        assert!(poll_immediate(&mut waiting).await.is_none());
        let lasting = async {
            loop {
                let waits = a.view("b").await.expect("answers").map_or(0, |view| view.waiting);
                let is_free = a.view("c").await.expect("answers").is_none_or(|view| view.holds.is_empty());
                if waits == 1 && is_free {
                    return;
                }
            }
        };
        let both = futures_util::future::select(Box::pin(lasting), waiting).await;
        let futures_util::future::Either::Left(((), waiting)) = both else { panic!("granted too early") };
        assert!(a.mutex("a").try_acquire().await.expect("answers").is_none(), "it comes before");
        let behind = a.mutex("c").try_acquire().await.expect("answers").expect("it comes behind");
        let behind = std::sync::Mutex::new(Some(behind));
        held.release().await.expect("answers");
        let release = async {
            while a.view("c").await.expect("answers").is_none_or(|view| view.waiting == 0) {}
            drop(behind.lock().expect("no panic").take());
        };
        let (leases, ()) = futures_util::future::join(waiting, release).await;
        assert_eq!(leases.expect("granted").iter().count(), 3);
    });
}

#[test]
fn run_releases_when_the_work_is_done() {
    let tenure = connect("several-run");
    pollster::block_on(async {
        let several = tenure.all([tenure.mutex("a").into(), tenure.slot_pool("b", 2).into()]);
        let slot = several.run(async |leases| leases.get("b").and_then(|lease| lease.slot())).await;
        assert_eq!(slot.expect("done"), Some(0));
        assert!(tenure.inspect("").await.expect("answers").iter().all(|view| view.holds.is_empty()));
    });
}

#[test]
fn without_a_runtime_the_verbs_are_the_same() {
    let tenure = blocking::Tenure::from(connect("several-blocking"));
    let (mutex, pool) = (tenure.mutex("a"), tenure.slot_pool("b", 1));
    let both = tenure.all([(&mutex).into(), (&pool).into()]);
    let leases = both.acquire().expect("free");
    assert_eq!(leases.get("b").and_then(|lease| lease.slot()), Some(0));
    assert!(both.try_acquire().expect("answers").is_none());
    assert!(mutex.try_acquire().expect("answers").is_none());
    let error = both.acquire_within(Duration::from_millis(300)).map(drop).expect_err("it is held");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(leases.release().expect("answers"), ReleaseAnswer::Released);
    assert_eq!(both.run(|leases| leases.iter().count()).expect("done"), 2);

    let election = tenure.election("leader").label("first");
    let mut leaders = election.changes().expect("a good name");
    assert_eq!(leaders.next().expect("a state").expect("answers"), None);
    let term = election.campaign().expect("nobody leads");
    term.publish(b"here").expect("it leads");
    assert!(election.try_campaign().expect("answers").is_none());
    let leader = election.leader().expect("answers").expect("there is one");
    assert_eq!((leader.token, leader.value.as_deref()), (term.token(), Some(&b"here"[..])));
    let mut terms = Vec::new();
    assert_eq!(term.resign().expect("answers"), ReleaseAnswer::Released);
    let second = election.ttl(Duration::from_millis(300)).run(|term| {
        terms.push(term.token());
        if terms.len() == 1 {
            let broken = tenure.as_async().break_hold("leader", term.token(), true);
            pollster::block_on(broken).expect("answers");
            pollster::block_on(term.lost());
        }
        terms.len()
    });
    assert_eq!(second.expect("done"), 2, "it campaigned again");

    let flight = tenure.single_flight("price").fresh(Duration::from_secs(60));
    let load = || flight.get_or_refresh(|_| Ok::<_, Error>(b"17.50".to_vec()));
    assert!(matches!(load().expect("loads").source, tenure_core::FetchedFrom::Loaded(_)));
    assert!(matches!(load().expect("found").source, tenure_core::FetchedFrom::Fresh(_)));
}

/// So many tasks as there may be want so many slots as there are, in any mix: nobody waits for ever, and no slot is held twice.
#[test]
fn slots_of_one_pool_are_gathered_without_a_circle() {
    const SLOTS: u32 = 5;
    let (a, b) = (connect("several-slots"), connect("several-slots"));
    let held = std::sync::Mutex::new(std::collections::BTreeSet::new());
    let held = &held;
    let work = (0..400u32).map(|task| {
        let tenure = [&a, &b][task as usize % 2];
        async move {
            let pool = tenure.slot_pool("ids", SLOTS);
            // Nobody waits so long: it ends a circle, where there is one.
            let set = pool.several(1 + task * 7 % SLOTS);
            let leases = set.acquire_within(Duration::from_secs(40)).await.expect("granted");
            let numbers: Vec<u32> = leases.iter().filter_map(|lease| lease.slot()).collect();
            assert_eq!(numbers.len() as u32, 1 + task * 7 % SLOTS, "all or none");
            {
                let mut held = held.lock().expect("nobody panicked");
                assert!(numbers.iter().all(|slot| held.insert(*slot)), "{numbers:?} beside {held:?}");
            }
            tokio::task::yield_now().await;
            held.lock().expect("nobody panicked").retain(|slot| !numbers.contains(slot));
            leases.release().await.expect("answers");
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(futures_util::future::join_all(work));
    let left = pollster::block_on(async {
        drop(a.slot_pool("ids", SLOTS).several(SLOTS).acquire().await.expect("all are free"));
        a.mutex("ids/several").acquire().await.map(drop)
    });
    left.expect("nobody gathers any more");
}

#[test]
fn slots_are_counted_before_anything_is_sent() {
    let tenure = connect("several-slots-count");
    let pool = tenure.slot_pool("ids", 200);
    for (slots, limit) in [(0, "nothing is wanted"), (129, "129 are wanted"), (u32::MAX, "129 are wanted")] {
        let error = refused(pollster::block_on(pool.several(slots).acquire()));
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(limit), "{error}");
    }
    let all = pollster::block_on(pool.several(128).acquire()).expect("all are free");
    assert_eq!(all.iter().filter_map(|lease| lease.slot()).max(), Some(127));
    let blocking = blocking::Tenure::from(tenure);
    let two = blocking.slot_pool("ids", 200).several(2).try_acquire().expect("answers").expect("free");
    assert_eq!(two.iter().count(), 2);
}
