//! What the statements of a transaction do if it has not begun.

use tenure_core::engine::queue::ItemContext;
use tenure_core::model::claim::ClientId;
use tenure_sql::Purpose;
use tenure_testkit::postgres::shared;

use super::*;
use crate::config::Config;

/// The server may cancel BEGIN, and goes on with the next message: what relies on a lock must not do without.
#[test]
fn what_relies_on_a_lock_does_nothing_outside_of_its_transaction() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let config =
            Config::parse(&shared()).and_then(|config| config.with("prefix", "begun_")).expect("a URL");
        let hosted =
            crate::connect(config, ClientId::new(fastrand::u64(..))).await.expect("the server is there");
        let database = hosted.database();
        database.ensure_queues().await.expect("it may");
        let queue = Name::new("q").expect("a name");
        let group = Some(Name::new("g").expect("a name"));
        let push = Push {
            queue: queue.clone(),
            group,
            payload: (*b"x").into(),
            delay: Duration::ZERO,
            dedup: None,
            context: None,
        };
        let entered = database.enter(&[&push], &Calls::default()).await.expect("it is in line");
        let (bytes, items) = (bytes(&queue), vec![signed(entered.pushed[0].item.0)]);
        let values: [Value<'_>; 2] = [&bytes, &items];
        let withdraw: Bound<'_> = (&database.texts().withdraw, &values);
        let lock: Bound<'_> = (&database.texts().lock_groups_of, &values);
        // A setting that was there once is not gone, but empty: before and after a transaction.
        for _ in 0..2 {
            let mut connection = database.connections.lend(Purpose::Any).await.expect("one");
            // One statement alone is sent without BEGIN.
            connection.transact(true, &[withdraw], &[]).await.expect_err("its group is not locked");
            let mut connection = database.connections.lend(Purpose::Any).await.expect("one");
            let rows = connection.transact(true, &[lock, lock], &[]).await.expect("a transaction");
            assert_eq!(rows.len(), 2);
            connection.keep();
        }
        let rows = database.transact_alone(&[lock, withdraw]).await.expect("a transaction");
        assert_eq!(rows.len(), 1, "it was there all the time");
    });
}

async fn database(prefix: &str, keeps_contexts: bool) -> tenure_sql::Hosted<Postgres> {
    let config = Config::parse(&shared()).and_then(|config| config.with("prefix", prefix)).expect("a URL");
    let hosted = crate::connect(config, ClientId::new(fastrand::u64(..))).await.expect("the server is there");
    hosted.database().ensure_queues().await.expect("it may");
    // So it says what a client of before says, in the same words.
    hosted.database().keeps_contexts.store(keeps_contexts, Ordering::Release);
    hosted
}

async fn taken(database: &Postgres, queue: &Name) -> Dispatched {
    let label = tenure_core::Label::new("here", 1, "test", "");
    let (ttl, interval) = (Duration::from_secs(30), Interval::Off);
    let rules = tenure_core::engine::queue::Rules { ttl, interval, attempts_max: 0, label };
    let (claims, floor) = (vec![ClaimId::new(fastrand::u128(..))], tenure_core::Token::ZERO);
    let client = database.inbox().client();
    let take = Take { queue: queue.clone(), client, claims: claims.clone(), rules: rules.into(), floor };
    let mut found = database.hand_out(&take, &claims).await.expect("it takes");
    assert_eq!(found.items.len(), 1, "{found:?}");
    found.items.remove(0)
}

/// Takes the item of this payload; what else comes goes back.
async fn taken_of(database: &Postgres, queue: &Name, payload: &[u8]) -> Dispatched {
    loop {
        let item = taken(database, queue).await;
        if &*item.payload == payload {
            return item;
        }
        settled(database, queue, &item, Settlement::Return).await;
    }
}

async fn settled(database: &Postgres, queue: &Name, item: &Dispatched, settlement: Settlement) {
    let settle = Settle { queue: queue.clone(), claim: item.claim, settlement };
    let settled = database.settle_all(&[&settle]).await.expect("it settles");
    assert_eq!(settled.answers, [SettleAnswer::Settled]);
}

/// A client of before contexts, and one of now, push, take, bury and replay, each beside itself and the other.
#[test]
fn clients_of_before_contexts_share_queues_with_those_of_now() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (new, old) = (database("four_", true).await, database("four_", false).await);
        let context = ItemContext::new("00-1-2-01").expect("a context");
        for (producer, consumer) in [(&new, &new), (&new, &old), (&old, &new), (&old, &old)] {
            for (group, dedup) in [(None, None), (Some("g"), None), (None, Some("d")), (Some("g"), Some("d"))]
            {
                let (is_pushed, is_taken) =
                    (producer.database().keeps_contexts(), consumer.database().keeps_contexts());
                let queue = Name::new(&format!("q{:x}", fastrand::u64(..))).expect("a name");
                let named = |name: &str| Name::new(name).expect("a name");
                let push = |payload: &[u8], context: Option<&ItemContext>| Push {
                    queue: queue.clone(),
                    group: group.map(named),
                    payload: payload.into(),
                    delay: Duration::ZERO,
                    dedup: dedup.map(|dedup: &str| named(&format!("{dedup}{payload:?}"))),
                    context: context.filter(|_| is_pushed).cloned(),
                };
                let pushes = [push(b"1", Some(&context)), push(b"2", None)];
                let said = format!("{group:?} {dedup:?}, pushed {is_pushed}, taken {is_taken}");
                let entered = producer.database().enter(&[&pushes[0], &pushes[1]], &Calls::default()).await;
                assert_eq!(entered.expect("it is pushed").pushed.len(), 2);
                let expected = Some(&context).filter(|_| is_pushed);
                let seen = expected.filter(|_| is_taken);

                let first = taken_of(consumer.database(), &queue, b"1").await;
                assert_eq!(first.context.as_ref(), seen, "{said}");
                settled(consumer.database(), &queue, &first, Settlement::Return).await;
                let again = taken_of(new.database(), &queue, b"1").await;
                assert_eq!(again.context.as_ref(), expected, "it is there still: {said}");
                let fail = Settlement::Fail { reason: "never".to_owned() };
                settled(consumer.database(), &queue, &again, fail).await;
                let second = taken_of(consumer.database(), &queue, b"2").await;
                assert_eq!(second.context, None, "{said}");
                settled(consumer.database(), &queue, &second, Settlement::Ack).await;
                assert_eq!(consumer.database().replay_some(&queue, None, 9).await.expect("it replays"), 1);
                let last = taken(new.database(), &queue).await;
                // What a client of before moves, it moves without.
                assert_eq!((&*last.payload, last.context.as_ref()), (&b"1"[..], seen), "{said}");
                settled(new.database(), &queue, &last, Settlement::Ack).await;
            }
        }
    });
}
