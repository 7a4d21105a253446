//! Queues on a real server, beside the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_conformance::queue_model::{Crowd, agrees_with_the_model, crowd};
use tenure_core::ErrorKind;
use tenure_core::engine::DynEngine;
use tenure_core::model::claim::ClientId;
use tenure_core::testing::random::{cases, more};
use tenure_testkit::SqlConnection;
use tenure_testkit::mariadb::{self, MariaDbOptions, MariaDbServer};

use crate::conformance::connector;
use crate::crew::connect;
use crate::faults::plain_user;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

async fn engine(url: &str) -> Arc<dyn DynEngine> {
    connector(url).open(ClientId::new(fastrand::u64(..))).await.expect("the server answers")
}

/// A name that no other test of the run uses.
fn name(what: &str) -> String {
    format!("{what} {:x}", fastrand::u64(..))
}

#[test]
fn queues_do_what_the_model_says() {
    let runtime = runtime();
    // Tables of its own: a scan of the queue before, in the index, holds this one's first row for a moment, and what is held is
    // passed over, so that the next item is handed out before it.
    let engine = runtime.block_on(engine(&format!("{}?prefix=model_", mariadb::shared())));
    let queues = engine.queues().expect("it has queues");
    for _ in 0..cases(1) {
        agrees_with_the_model(&runtime, queues, &name("model"), 500, true);
    }
}

/// To see that the queue before has ended, in the index, a take from it would lock the first row of the one after it.
#[test]
fn a_take_from_another_queue_hides_nothing() {
    let runtime = runtime();
    let url = format!("{}?prefix=beside_", mariadb::shared());
    let (before, after) = (name("a"), name("b"));
    let [other, client] = [connect(&url), connect(&url)];
    runtime.block_on(async {
        let (other, queue) = (other.queue(&before), client.queue(&after));
        queue.push("0").await.expect("tables are made");
        let is_over = Arc::new(AtomicBool::new(false));
        let takes = tokio::spawn({
            let is_over = is_over.clone();
            async move {
                while !is_over.load(Ordering::Relaxed) {
                    assert!(other.try_next().await.expect("an answer").is_none());
                }
            }
        });
        for at in 1..1000 {
            let delivery = queue.try_next().await.expect("an answer").unwrap_or_else(|| panic!("of {at}"));
            queue.push(at.to_string().as_bytes()).await.expect("a push is answered");
            delivery.ack().await.expect("it is had");
        }
        is_over.store(true, Ordering::Relaxed);
        takes.await.expect("it ends");
    });
}

/// What is locked may be free a moment later, but is not waited for.
#[test]
fn a_take_that_could_lock_nothing_looks_again_while_something_is_ready() {
    let server = MariaDbServer::start(&MariaDbOptions::default());
    let client = connect(&server.url());
    let queue = client.queue("q");
    let mut raw = server.connect().expect("the server takes one more");
    let mut begun = move || {
        let status =
            "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_BEGIN'";
        raw.run(status).first().and_then(|count| count.parse::<u32>().ok()).expect("a count")
    };
    let take = || pollster::block_on(queue.try_next()).expect("an answer");
    assert!(take().is_none(), "the tables are made");
    let before = begun();
    assert!(take().is_none());
    assert_eq!(begun() - before, 1, "nothing is ready");
    pollster::block_on(queue.push("x").into_future()).expect("a push is answered");
    let mut other = server.connect().expect("the server takes one more");
    other.run("BEGIN");
    other.run("SELECT id FROM tenure_queue_item FOR UPDATE");
    let before = begun();
    assert!(take().is_none(), "another has it");
    assert_eq!(begun() - before, 3, "it is looked for three times");
    other.run("ROLLBACK");
    assert!(take().is_some());
}

#[test]
fn nothing_is_lost_or_doubled_in_a_crowd() {
    let runtime = runtime();
    let url = mariadb::shared();
    let engines: Vec<_> = (0..8).map(|_| runtime.block_on(engine(&url))).collect();
    for (groups, items) in more([(50, 120), (3, 60)], [(50, 300), (3, 100)]) {
        crowd(&runtime, &engines, &name("crowd"), Crowd { groups, items, workers: 2 });
    }
}

/// Makes of the tables what an older version made, which knew no contexts.
fn age(raw: &mut SqlConnection, database: &str) {
    raw.run(&format!("ALTER TABLE {database}.tenure_queue_item DROP COLUMN context"));
    raw.run(&format!("ALTER TABLE {database}.tenure_queue_dead DROP COLUMN context"));
}

/// Pushes an item with a context, and says with what it comes.
async fn carried(queue: &tenure_core::Queue) -> tenure_core::Result<Option<String>> {
    queue.push("x").context("c").await?;
    let delivery = queue.next().await?;
    let context = delivery.context().map(str::to_owned);
    delivery.ack().await?;
    Ok(context)
}

#[test]
fn tables_of_an_older_version_get_their_column_of_contexts() {
    let server = MariaDbServer::start(&MariaDbOptions::default());
    let mut raw = server.connect().expect("the server takes one more");
    let (of_worker, url) = plain_user(&server, "SELECT, INSERT, UPDATE, DELETE");
    pollster::block_on(async { connect(&url).queue("q").is_empty().await }).expect("the tables are made");
    age(&mut raw, "locks");
    let worker = connect(&of_worker);
    let queue = worker.queue("q");
    pollster::block_on(async {
        queue.push("x").await?;
        queue.push("y").group("g").dedup("y").await?;
        assert_eq!(queue.items(None, 9).await?.len(), 2);
        queue.next().await?.retry_after(std::time::Duration::ZERO).await?;
        queue.next().await?.fail("never").await?;
        queue.next().await?.ack().await?;
        assert_eq!(queue.replay(None).await?, 1);
        queue.next().await?.ack().await
    })
    .expect("who may not change the tables goes on without");
    let refused = pollster::block_on(carried(&queue)).expect_err("it would be lost");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("doctor --migrate")), "{refused:?}");
    assert!(pollster::block_on(queue.is_empty()).expect("an answer"), "it was pushed");
    let unasked = pollster::block_on(async {
        queue.push("x").context_with(|| Some("c".to_owned())).await?;
        let delivery = queue.next().await?;
        let context = delivery.context().map(str::to_owned);
        delivery.ack().await.map(|()| context)
    });
    assert_eq!(unasked.expect("who traces breaks nothing"), None);

    // While somebody reads the whole table, say for a backup, all goes on, and nobody waits for long.
    let mut reader = server.connect().expect("the server takes one more");
    reader.run("BEGIN");
    reader.run("SELECT count(*) FROM locks.tenure_queue_item");
    let owner = connect(&url);
    pollster::block_on(async {
        owner.queue("q").push("x").await?;
        owner.queue("q").next().await?.ack().await
    })
    .expect("it goes on without");
    reader.run("COMMIT");
    let carries = pollster::block_on(carried(&owner.queue("q"))).expect("the tables are changed");
    assert_eq!(carries.as_deref(), Some("c"));
    // A client that has not noticed yet behaves like an old one.
    pollster::block_on(async {
        let of_owner = owner.queue("q");
        of_owner.push("x").context("c").await?;
        let delivery = queue.next().await?;
        assert_eq!((delivery.payload(), delivery.context()), (&b"x"[..], None));
        delivery.put_back().await?;
        let delivery = of_owner.next().await?;
        assert_eq!(delivery.context(), Some("c"), "it is there still");
        delivery.ack().await?;
        queue.push("y").await?;
        let delivery = of_owner.next().await?;
        assert_eq!((delivery.payload(), delivery.context()), (&b"y"[..], None));
        delivery.ack().await
    })
    .expect("they share the queue");
    let carries = pollster::block_on(carried(&queue)).expect("that is noticed");
    assert_eq!(carries.as_deref(), Some("c"), "and by who began without");
}

#[test]
fn an_operator_gives_tables_their_column_of_contexts() {
    let server = MariaDbServer::start(&MariaDbOptions::default());
    let mut raw = server.connect().expect("the server takes one more");
    pollster::block_on(async { connect(&server.url()).queue("q").is_empty().await }).expect("they are made");
    age(&mut raw, "test");
    pollster::block_on(connect(&server.url()).migrate()).expect("it may");
    let columns = "SELECT count(*) FROM information_schema.columns WHERE column_name = 'context' AND table_schema = 'test'";
    assert_eq!(raw.run(columns).first(), Some("2"));
}
