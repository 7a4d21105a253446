//! What the statements of a transaction do if it has not begun.

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
        let push =
            Push { queue: queue.clone(), group, payload: (*b"x").into(), delay: Duration::ZERO, dedup: None };
        let entered = database.enter(&[&push], &Calls::default()).await.expect("it is in line");
        let (bytes, items) = (bytes(&queue), vec![signed(entered.pushed[0].item.0)]);
        let values: [Value<'_>; 2] = [(&bytes, Type::BYTEA), (&items, Type::INT8_ARRAY)];
        let withdraw: Bound<'_> = (&database.texts.withdraw, &values);
        let lock: Bound<'_> = (&database.texts.lock_groups_of, &values);
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
