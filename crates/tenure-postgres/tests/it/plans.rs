//! How the server carries out what it is asked for.

use futures_util::future::{try_join, try_join_all};
use tenure_core::{Lease, Tenure};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};

use crate::crew::connect;

/// A server that writes down each plan.
fn explaining() -> PostgresServer {
    PostgresServer::start(&explained())
}

fn explained() -> PostgresOptions {
    let options = PostgresOptions::default().setting("session_preload_libraries", "auto_explain");
    options.setting("auto_explain.log_min_duration", "0")
}

#[track_caller]
fn none_of(server: &PostgresServer, is_bad: impl Fn(&str) -> bool) {
    let log = std::fs::read_to_string(server.directory().join("log")).expect("the server's log");
    let plans = log.split("\tQuery Text: ").skip(1);
    assert!(plans.clone().count() > 0, "plans are written down");
    let bad: Vec<&str> = plans.filter(|plan| is_bad(plan)).collect();
    assert!(bad.is_empty(), "{} plans, of which {}", bad.len(), bad[0]);
}

/// Passes mutexes from one to another, several of them in one transaction.
async fn pass(a: &Tenure, b: &Tenure) -> Result<(), tenure_core::Error> {
    let names: Vec<String> = (0..8).map(|index| format!("m{index}")).collect();
    let held = try_join_all(names.iter().map(|name| a.mutex(name.as_str()).acquire())).await?;
    let waiting = try_join_all(names.iter().map(|name| b.mutex(name.as_str()).acquire()));
    let passing = async {
        for name in &names {
            while a.view(name.as_str()).await?.is_none_or(|view| view.waiting == 0) {}
        }
        try_join_all(held.into_iter().map(Lease::release)).await
    };
    let (taken, _) = try_join(waiting, passing).await?;
    try_join_all(taken.into_iter().map(Lease::release)).await?;
    let pool = a.slot_pool("pool", 3).acquire().await?;
    a.semaphore("s", 2).acquire().await?.release().await?;
    pool.release().await?;
    Ok(())
}

/// Plans of queues are kept, and must not choose to read whole tables; the settings for that are the session's. A statement of
/// locks that has no other plan there is believed to cost 10^10, and the server compiled it for 0.3 s while it kept rows locked.
#[test]
fn locks_are_not_compiled_beside_queues() {
    let server = explaining();
    let url = format!("{}?connections=2", server.url());
    let (a, b) = (connect(&url), connect(&url));
    pollster::block_on(async {
        for _ in 0..8 {
            for tenure in [&a, &b] {
                tenure.queue("q").push("x").await?;
                tenure.queue("q").next().await?.ack().await?;
            }
            pass(&a, &b).await?;
        }
        Ok::<_, tenure_core::Error>(())
    })
    .expect("it works");
    none_of(&server, |plan| plan.contains("cost=10000000") || plan.contains("JIT:"));
}

/// Statements of the short path are kept by the server, and wait for locked rows no longer than their texts do. The session is told so
/// once, and told again when something else follows there.
#[test]
fn the_short_path_is_planned_once_and_waits_little() {
    let options = explained().setting("log_statement", "all");
    let server = PostgresServer::start(&options);
    let tenure = connect(&format!("{}?connections=1", server.url()));
    pollster::block_on(async {
        for _ in 0..3 {
            tenure.mutex("m").acquire().await?.release().await?;
            let names: Vec<String> = (0..8).map(|index| format!("m{index}")).collect();
            let held = try_join_all(names.iter().map(|name| tenure.mutex(name.as_str()).acquire())).await?;
            try_join_all(held.into_iter().map(Lease::release)).await?;
        }
        // The first push makes the tables of queues, and has a new connection then: only the second follows the short path on one.
        for _ in 0..2 {
            tenure.queue("q").push("x").await?;
            tenure.mutex("m").acquire().await?.release().await?;
        }
        Ok::<_, tenure_core::Error>(())
    })
    .expect("it works");
    let log = std::fs::read_to_string(server.directory().join("log")).expect("the server's log");
    for begins in ["WITH v (name, floor, claim", "WITH v (name, claim)"] {
        let plans: Vec<&str> = log.split("\tQuery Text: ").filter(|plan| plan.starts_with(begins)).collect();
        let (of_several, of_one): (Vec<&str>, Vec<&str>) =
            plans.into_iter().partition(|plan| plan.contains("Function Scan on unnest"));
        assert!(of_one.len() >= 3 && !of_several.is_empty(), "{begins}");
        for plan in of_several {
            // In the order in which they come, which is that of their names: what is scanned first is what comes.
            let first = plan.lines().find(|line| line.contains(" Scan on ") && !line.contains("Subquery"));
            assert!(first.is_some_and(|line| line.contains("Function Scan on unnest")), "{plan}");
            assert!(
                !["Hash", "Merge", "Sort", "Materialize"].iter().any(|other| plan.contains(other)),
                "{plan}"
            );
        }
    }
    let said = |what: &str| log.match_indices(what).count();
    // Before the first on a connection, and after the queue: not before each of the sixteen.
    let (little, long) =
        (said("statement: SET lock_timeout = 50"), said("statement: SET lock_timeout = 1000"));
    assert!((2..=5).contains(&little) && (1..=5).contains(&long), "{little} and {long}\n{log}");
}

/// The server has never counted what is in the tables: its planner knows nothing.
#[test]
fn a_long_queue_is_not_read_from_end_to_end() {
    let server = explaining();
    let mut raw = server.connect().expect("the server takes one more");
    let client = connect(&server.url());
    let queue = client.queue("long");
    let work = || {
        pollster::block_on(async {
            queue.push("x").await?;
            queue.push("y").group("g").await?;
            queue.push("z").group("g").await?;
            for _ in 0..2 {
                queue.next().await?.ack().await?;
            }
            queue.next().await?.retry_after(std::time::Duration::ZERO).await?;
            queue.next().await?.ack().await
        })
        .expect("it works");
    };
    // Some of what follows is planned before the queue is long, and some when it is.
    (0..8).for_each(|_| work());
    raw.run(
        "INSERT INTO tenure_queue_item (queue, id, grp, payload, pushed_at, due_at, ready_at) \
         SELECT 'long', 1000000 + i, CASE WHEN i % 2 = 0 THEN ('g' || i % 1000)::bytea END, 'x', 1, 1, \
           CASE WHEN i % 2 = 1 THEN 9000000000000000 + i END FROM generate_series(1, 100000) i",
    );
    (0..3).for_each(|_| work());
    raw.run("ANALYZE tenure_queue_item");
    (0..3).for_each(|_| work());
    none_of(&server, |plan| {
        plan.contains("Seq Scan on tenure_queue_item") && !plan.starts_with("INSERT INTO tenure_queue_item")
    });
}
