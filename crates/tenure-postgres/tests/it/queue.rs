//! Queues on real servers, beside the model.

use std::sync::Arc;
use std::time::Duration;

use tenure_conformance::queue_model::{Crowd, agrees_with_the_model, crowd};
use tenure_core::engine::DynEngine;
use tenure_core::engine::queue::{Interval, Push, Rules, Take};
use tenure_core::model::claim::ClientId;
use tenure_core::testing::random::{cases, more};
use tenure_core::{ClaimId, ErrorKind, Label, Name, Token};
use tenure_testkit::postgres::{self, PostgresOptions, PostgresServer};
use tenure_testkit::{SqlConnection, wait_for};

use crate::conformance::connector;
use crate::crew::{connect, now, pause};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

async fn engine(url: &str) -> Arc<dyn DynEngine> {
    connector(url).open(ClientId::new(fastrand::u64(..))).await.expect("the server answers")
}

fn with(url: &str, setting: &str) -> String {
    let join = if url.contains('?') { '&' } else { '?' };
    format!("{url}{join}{setting}")
}

/// A name that no other test of the run uses.
fn name(what: &str) -> String {
    format!("{what} {:x}", fastrand::u64(..))
}

#[test]
fn queues_do_what_the_model_says() {
    let runtime = runtime();
    for (url, has_short_ttls) in [
        (postgres::shared(), false),
        (with(&postgres::shared(), "listen=off"), true),
        (postgres::shared_behind_pgbouncer(), true),
    ] {
        let engine = runtime.block_on(engine(&url));
        let queues = engine.queues().expect("it has queues");
        for _ in 0..cases(1) {
            agrees_with_the_model(&runtime, queues, &name("model"), 500, has_short_ttls);
        }
    }
}

#[test]
fn nothing_is_lost_or_doubled_in_a_crowd() {
    let runtime = runtime();
    let engines: Vec<_> = (0..8).map(|_| runtime.block_on(engine(&postgres::shared()))).collect();
    for (groups, items) in more([(50, 120), (3, 60)], [(50, 400), (3, 200)]) {
        crowd(&runtime, &engines, &name("crowd"), Crowd { groups, items, workers: 2 });
    }
}

fn start() -> (PostgresServer, SqlConnection) {
    let server = PostgresServer::start(&PostgresOptions::default());
    let connection = server.connect().expect("the server takes one more");
    (server, connection)
}

const TABLES: &str =
    "SELECT count(*) FROM pg_class WHERE relname LIKE 'tenure_queue_%' AND relkind IN ('r', 'S')";

#[test]
fn tables_of_the_queues_are_made_when_the_first_one_is_used() {
    let (server, mut raw) = start();
    let client = connect(&server.url());
    let lease = pollster::block_on(client.mutex("m").acquire()).expect("it is free");
    assert_eq!(raw.run(TABLES).first(), Some("0"), "who only locks has no use for them");
    // Beside an installation that knows no queues, and whose user may not make any.
    raw.run("CREATE ROLE worker LOGIN");
    raw.run("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO worker");
    let worker = connect(&server.url().replace("//postgres@", "//worker@"));
    let refused = pollster::block_on(async { worker.queue("q").push("x").await }).expect_err("it may not");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    pollster::block_on(async { worker.mutex("n").acquire().await?.release().await }).expect("locks go on");
    let queue = client.queue("q");
    pollster::block_on(async { queue.push("x").await }).expect("they are made");
    assert_ne!(raw.run(TABLES).first(), Some("0"));
    raw.run("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO worker");
    raw.run("GRANT USAGE ON SEQUENCE tenure_queue_number TO worker");
    pollster::block_on(async {
        let queue = worker.queue("q");
        queue.push("y").await?;
        queue.next().await?.ack().await
    })
    .expect("that is all it needs");
    raw.run("UPDATE tenure_queue_version SET version = 99");
    let other = connect(&server.url());
    let refused =
        pollster::block_on(async { other.queue("q").push("x").await }).expect_err("it is not known");
    assert!(refused.to_string().contains("99"), "{refused}");
    pollster::block_on(lease.release()).expect("it is held");
}

#[test]
fn who_may_not_delete_is_told_that_queues_must() {
    let (server, _) = start();
    let client = connect(&with(&server.url(), "purge=off"));
    let refused =
        pollster::block_on(async { client.queue("q").push("x").await }).expect_err("nothing may go");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("DELETE")), "{refused:?}");
}

#[test]
fn what_was_handed_out_is_not_lost_when_its_client_cannot_be_noted_as_idle() {
    let (server, mut raw) = start();
    let client = connect(&server.url());
    let queue = client.queue("q");
    pollster::block_on(async { queue.push("only").await }).expect("it is pushed");
    raw.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'",
    );
    raw.run(
        "CREATE TRIGGER refuse BEFORE INSERT ON tenure_queue_idle FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    // Asked for in one take, which finds one item, and is to note then that its client wants more.
    let wait = Duration::from_secs(1);
    let (one, other) =
        pollster::block_on(futures_util::future::join(queue.next_within(wait), queue.next_within(wait)));
    let taken: Vec<_> = [one, other].into_iter().filter_map(|taken| taken.ok().flatten()).collect();
    assert_eq!(taken.len(), 1, "the item is with one of them");
    assert_eq!(taken[0].attempt(), 1, "at the first attempt");
}

#[test]
fn a_client_that_dies_in_a_transaction_keeps_nothing() {
    let (server, mut raw) = start();
    let client = connect(&server.url());
    let queue = client.queue("q");
    pollster::block_on(async {
        queue.push("a1").group("a").await?;
        queue.push("b1").group("b").await
    })
    .expect("they are pushed");
    // Somebody is stopped in the midst of a take of the first item, and of an acknowledgement in the other group.
    raw.run("BEGIN");
    raw.run("SELECT id FROM tenure_queue_item ORDER BY id LIMIT 1 FOR UPDATE");
    raw.run("SELECT grp FROM tenure_queue_group WHERE grp = 'b' FOR UPDATE");
    pollster::block_on(async {
        let taken = queue.next().await.expect("what is locked is passed over");
        assert_eq!(taken.payload(), b"b1");
        let refused = queue.push("b2").group("b").await.expect_err("the group is locked");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        queue.push("c1").group("c").await.expect("another group is not");
        let mut killer = server.connect().expect("the server takes one more");
        killer.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'",
        );
        taken.ack().await.expect("it is held");
        for payload in ["a1", "c1"] {
            let taken = queue.next().await.expect("nobody has it");
            assert_eq!(taken.payload(), payload.as_bytes());
            taken.ack().await.expect("it is held");
        }
        assert_eq!(queue.depth().await.expect("a count"), 0);
    });
    let groups = server.connect().expect("one more").run("SELECT count(*) FROM tenure_queue_group");
    assert_eq!(groups.first(), Some("0"), "an empty group costs nothing");
}

mod alone {
    use std::future::IntoFuture;

    use super::*;

    /// A push sees which clients are idle when it begins, and takes a while to be committed.
    #[test]
    fn whoever_becomes_idle_while_an_item_is_pushed_is_called() {
        let (server, mut raw) = start();
        let (pusher, consumer) = (connect(&server.url()), connect(&server.url()));
        let (push_to, queue) = (pusher.queue("q"), consumer.queue("q"));
        pollster::block_on(async {
            push_to.push("first").await?;
            queue.next().await?.ack().await
        })
        .expect("the tables are made");
        raw.run(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END'",
        );
        raw.run("CREATE TRIGGER slow AFTER INSERT ON tenure_queue_item EXECUTE FUNCTION slow()");
        let pushing = std::thread::spawn(move || pollster::block_on(push_to.push("second").into_future()));
        // It has its number before it is there.
        let mut number = String::new();
        while number != "2" {
            number = raw.run("SELECT last_value FROM tenure_queue_number").first().unwrap_or("").to_owned();
        }
        // Nothing is there yet, and nobody was idle when the push began.
        let delivery = pollster::block_on(queue.next_within(Duration::from_secs(2)));
        pushing.join().expect("no panic").expect("it is pushed");
        assert!(
            delivery.expect("the server answers").is_some(),
            "it is not told, and looks for itself after 5 s"
        );
    }
}

/// Makes of the tables what an older version made, which knew no contexts.
fn age(raw: &mut SqlConnection) {
    raw.run("ALTER TABLE tenure_queue_item DROP COLUMN context");
    raw.run("ALTER TABLE tenure_queue_dead DROP COLUMN context");
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
    let (server, mut raw) = start();
    let (url, of_worker) = (server.url(), server.url().replace("//postgres@", "//worker@"));
    pollster::block_on(async { connect(&url).queue("q").is_empty().await }).expect("the tables are made");
    age(&mut raw);
    raw.run("CREATE ROLE worker LOGIN");
    raw.run("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO worker");
    raw.run("GRANT USAGE ON SEQUENCE tenure_queue_number TO worker");
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
    reader.run("SELECT count(*) FROM tenure_queue_item");
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
    let (server, mut raw) = start();
    pollster::block_on(async { connect(&server.url()).queue("q").is_empty().await }).expect("they are made");
    age(&mut raw);
    let client = connect(&server.url());
    pollster::block_on(client.migrate()).expect("it may");
    let columns = "SELECT count(*) FROM pg_attribute WHERE attname = 'context' AND NOT attisdropped \
                   AND attrelid IN ('tenure_queue_item'::regclass, 'tenure_queue_dead'::regclass)";
    assert_eq!(raw.run(columns).first(), Some("2"));
}

#[test]
fn whoever_does_not_come_in_turn_is_idle_no_more() {
    const INTERVAL: Duration = Duration::from_secs(3);
    let (server, mut connection) = start();
    let (runtime, queue) = (runtime(), Name::new("paced").expect("a good name"));
    let engines: Vec<_> = (0..3).map(|_| runtime.block_on(engine(&server.url()))).collect();
    let label = Label::new("here", 1, "test", "");
    let rules = Rules { ttl: 10 * INTERVAL, interval: Interval::Queue(INTERVAL), attempts_max: 0, label };
    let rules = Arc::new(rules);
    let take = |client: usize| {
        let (queue, rules, claims) = (queue.clone(), rules.clone(), vec![ClaimId::new(fastrand::u128(..))]);
        let take = Take { queue, client: ClientId::new(client as u64), claims, rules, floor: Token::ZERO };
        let queues = engines[client].queues().expect("it has queues");
        let mut taken = runtime.block_on(queues.take(vec![take]));
        taken.pop().expect("an answer").expect("items, or none")
    };
    for payload in [b"1", b"2"] {
        let (queue, payload) = (queue.clone(), Arc::from(&payload[..]));
        let push = Push { queue, group: None, payload, delay: Duration::ZERO, dedup: None, context: None };
        let queues = engines[0].queues().expect("it has queues");
        runtime.block_on(queues.push(vec![push])).pop().expect("an answer").expect("an item");
    }
    assert_eq!(take(2).items.len(), 1);
    // The moments, since to ask each takes its time.
    let began = now();
    let looks = (0..3).map(|client| take(client).look_in.expect("something is due") + now().since(began));
    let looks: Vec<Duration> = looks.collect();
    assert!(looks[0] < looks[1] && looks[1] < looks[2], "each has its turn: {looks:?}");
    let idle = |connection: &mut SqlConnection| {
        connection.run("SELECT count(*) FROM tenure_queue_idle").first().map(str::to_owned)
    };
    assert_eq!(idle(&mut connection).as_deref(), Some("3"));
    // Two have died.
    pause(looks[2]);
    let last = wait_for("its turn", || Some(take(2)).filter(|taken| !taken.items.is_empty()));
    assert_eq!(&*last.items[0].payload, b"2");
    assert_eq!(idle(&mut connection).as_deref(), Some("0"), "nobody waits for the dead any more");
}
