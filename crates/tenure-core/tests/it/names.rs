//! A bad name is refused by the first verb at the latest, by everything that has a name, in the same words.

use std::future::IntoFuture;
use std::time::Duration;

use pollster::block_on;
use tenure_core::{Error, ErrorKind, LockRequest, Result, Tenure, Token, blocking};

/// The error of each verb; `None` where a verb took the name.
type Refusals = Vec<(&'static str, Option<Error>)>;

fn refusal<T>(verb: &'static str, result: Result<T>) -> (&'static str, Option<Error>) {
    (verb, result.err())
}

/// The four verbs of a lock, async and blocking, and as one of several.
macro_rules! lock {
    ($all:ident, $tenure:ident, $of:expr) => {{
        let of = $of;
        let lock = of(&$tenure);
        $all.extend([
            refusal(concat!(stringify!($of), ".try_acquire"), block_on(lock.try_acquire())),
            refusal(concat!(stringify!($of), ".acquire"), block_on(lock.acquire())),
            refusal(
                concat!(stringify!($of), ".acquire_within"),
                block_on(lock.acquire_within(Duration::ZERO)),
            ),
            refusal(concat!(stringify!($of), ".run"), block_on(lock.run(async |_| ()))),
        ]);
    }};
    (blocking $all:ident, $tenure:ident, $of:expr) => {{
        let of = $of;
        let lock = of(&$tenure);
        $all.extend([
            refusal(concat!("blocking ", stringify!($of), ".try_acquire"), lock.try_acquire()),
            refusal(concat!("blocking ", stringify!($of), ".acquire"), lock.acquire()),
            refusal(
                concat!("blocking ", stringify!($of), ".acquire_within"),
                lock.acquire_within(Duration::ZERO),
            ),
            refusal(concat!("blocking ", stringify!($of), ".run"), lock.run(|_| ())),
        ]);
    }};
}

fn locks(tenure: &Tenure, name: &str) -> Refusals {
    let mut all = Vec::new();
    lock!(all, tenure, |tenure: &Tenure| tenure.mutex(name));
    lock!(all, tenure, |tenure: &Tenure| tenure.rw_lock(name).read());
    lock!(all, tenure, |tenure: &Tenure| tenure.rw_lock(name).write());
    lock!(all, tenure, |tenure: &Tenure| tenure.semaphore(name, 4));
    lock!(all, tenure, |tenure: &Tenure| tenure.slot_pool(name, 4));
    let both =
        |tenure: &Tenure| -> [LockRequest; 2] { [tenure.mutex("good").into(), tenure.mutex(name).into()] };
    lock!(all, tenure, |tenure: &Tenure| tenure.all(both(tenure)));
    lock!(all, tenure, |tenure: &Tenure| tenure.any(both(tenure)));
    let tenure = blocking::Tenure::from(tenure.clone());
    lock!(blocking all, tenure, |tenure: &blocking::Tenure| tenure.mutex(name));
    lock!(blocking all, tenure, |tenure: &blocking::Tenure| tenure.rw_lock(name).read());
    lock!(blocking all, tenure, |tenure: &blocking::Tenure| tenure.rw_lock(name).write());
    lock!(blocking all, tenure, |tenure: &blocking::Tenure| tenure.semaphore(name, 4));
    lock!(blocking all, tenure, |tenure: &blocking::Tenure| tenure.slot_pool(name, 4));
    lock!(blocking all, tenure, |tenure: &blocking::Tenure| tenure.all([tenure.mutex(name).into()]));
    lock!(blocking all, tenure, |tenure: &blocking::Tenure| tenure.any([tenure.mutex(name).into()]));
    all
}

fn others(tenure: &Tenure, name: &str) -> Refusals {
    let (election, value) = (tenure.election(name), tenure.single_flight(name));
    let sync = blocking::Tenure::from(tenure.clone());
    let load = || Ok::<_, Error>(Vec::new());
    vec![
        refusal("election.campaign", block_on(election.campaign())),
        refusal("election.try_campaign", block_on(election.try_campaign())),
        refusal("election.run", block_on(election.run(async |_| ()))),
        refusal("election.leader", block_on(election.leader())),
        refusal("election.changes", election.changes()),
        refusal("blocking election.campaign", sync.election(name).campaign()),
        refusal("blocking election.run", sync.election(name).run(|_| ())),
        refusal("blocking election.leader", sync.election(name).leader()),
        refusal("single_flight", block_on(value.get_or_refresh(async |_| load()))),
        refusal(
            "single_flight, stale",
            block_on(value.serve_stale(Duration::from_secs(1)).get_or_refresh(async |_| load())),
        ),
        refusal("blocking single_flight", sync.single_flight(name).get_or_refresh(|_| load())),
        refusal("view", block_on(tenure.view(name))),
        refusal("observe", tenure.observe(name)),
        refusal("break_hold", block_on(tenure.break_hold(name, Token::new(1), true))),
        refusal("resize", block_on(tenure.resize(name, 4))),
        refusal("raise_floor", tenure.raise_floor(name, Token::new(1))),
    ]
}

fn queues(tenure: &Tenure, name: &str) -> Refusals {
    let queue = tenure.queue(name);
    let sync = blocking::Tenure::from(tenure.clone()).queue(name);
    vec![
        refusal("queue.name", queue.name()),
        refusal("queue.push", block_on(queue.push("x").into_future())),
        refusal("queue.next", block_on(queue.next())),
        refusal("queue.try_next", block_on(queue.try_next())),
        refusal("queue.next_within", block_on(queue.next_within(Duration::from_secs(9)))),
        refusal("queue.run", block_on(queue.run(async |_| Ok::<_, Error>(())))),
        refusal("queue.serve", block_on(queue.serve(std::future::pending(), async |_| Ok::<_, Error>(())))),
        refusal("queue.stats", block_on(queue.stats())),
        refusal("queue.is_empty", block_on(queue.is_empty())),
        refusal("queue.depth", block_on(queue.depth())),
        refusal("queue.items", block_on(queue.items(None, 9))),
        refusal("queue.dead_letters", block_on(queue.dead_letters(None, 9))),
        refusal("queue.replay", block_on(queue.replay(None))),
        refusal("queue.purge_dead", block_on(queue.purge_dead(None))),
        refusal("queue.purge", block_on(queue.purge(None))),
        refusal("blocking queue.push", sync.push("x").send()),
        refusal("blocking queue.next", sync.next()),
        refusal("blocking queue.run", sync.run(|_| Ok::<_, Error>(()))),
        refusal("blocking queue.serve", sync.serve(|| false, |_| Ok::<_, Error>(()))),
        refusal("blocking queue.stats", sync.stats()),
    ]
}

#[test]
fn a_bad_name_is_refused_by_every_verb_of_everything_in_the_same_words() {
    let tenure = block_on(tenure_core::memory::connect("bad names")).expect("connects");
    let long = "x".repeat(256);
    for (bad, words) in [
        ("", "name a resource: the name is empty"),
        (&*long, "name a resource: the name has 256 bytes, 255 are allowed"),
        ("a\nb", "name a resource: the name holds a control character"),
    ] {
        for (verb, error) in [locks(&tenure, bad), others(&tenure, bad), queues(&tenure, bad)].concat() {
            let error = error.unwrap_or_else(|| panic!("{verb} takes {bad:?}"));
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Invalid, words), "{verb}");
            assert!(error.hint().is_some_and(|hint| hint.starts_with("a name has 1 to 255 bytes")), "{verb}");
        }
    }
    assert!(block_on(tenure.inspect("")).expect("answers").is_empty(), "nothing was sent");
}

#[test]
fn a_bad_group_or_dedup_id_is_called_by_what_it_is() {
    let tenure = block_on(tenure_core::memory::connect("bad groups")).expect("connects");
    let queue = tenure.queue("q");
    for (push, words) in [
        (queue.push("x").group(""), "push \"q\": the group is empty"),
        (queue.push("x").dedup("a\tb"), "push \"q\": the dedup id holds a control character"),
    ] {
        let error = block_on(push.into_future()).expect_err("refused");
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Invalid, words));
    }
}
