//! Large values and payloads: an answer may be as large as it is allowed to be, and costs nobody a connection.

use std::time::Duration;

use futures_util::future::join_all;
use pollster::block_on;
use tenure_core::{Error, FetchedFrom, Tenure};
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::crew::connect;

/// The largest value and payload.
const LARGEST: usize = 256 * 1024;

async fn load(client: &Tenure, key: &str) -> FetchedFrom {
    let flight = client.single_flight(key).fresh(Duration::from_secs(600));
    let found = flight.get_or_refresh(async |_| Ok::<_, Error>(vec![7; LARGEST])).await.expect("a value");
    assert_eq!(found.bytes.len(), LARGEST);
    found.source
}

#[test]
fn a_crowd_is_served_one_large_value() {
    let server = RedisServer::start(RedisOptions::default());
    let client = connect(&server.url());
    assert!(matches!(block_on(load(&client, "k")), FetchedFrom::Loaded(_)));
    let found = block_on(join_all((0..200).map(|_| load(&client, "k"))));
    assert!(found.iter().all(|source| matches!(source, FetchedFrom::Fresh(_))));
    assert_no_limit_was_met(&server);
}

#[test]
fn many_large_values_at_once_break_no_connection() {
    let server = RedisServer::start(RedisOptions::default());
    let (client, keys) = (connect(&server.url()), (0..160).map(|key| format!("k{key}")));
    let keys: Vec<String> = keys.collect();
    block_on(join_all(keys.iter().map(|key| load(&client, key))));
    let found = block_on(join_all(keys.iter().map(|key| load(&client, key))));
    assert!(found.iter().all(|source| matches!(source, FetchedFrom::Fresh(_))));
    assert_no_limit_was_met(&server);
    let views = block_on(client.inspect("k")).expect("a list");
    assert_eq!(views.iter().filter(|view| view.value.is_some()).count(), keys.len());
    assert_no_limit_was_met(&server);
}

#[test]
fn takes_of_large_items_in_a_row_break_no_connection() {
    let server = RedisServer::start(RedisOptions::default());
    let (client, queues) = (connect(&server.url()), ["a", "b", "c", "d", "e"]);
    for queue in queues {
        let queue = client.queue(queue);
        let pushes = (0..32).map(|_| async { queue.push(vec![7; LARGEST]).await });
        for pushed in block_on(join_all(pushes)) {
            pushed.expect("it is pushed");
        }
    }
    // A client that found nothing is told of what comes: it listens.
    let idle = client.queue("idle");
    assert!(block_on(idle.try_next()).expect("an answer").is_none());
    let queues: Vec<_> = queues.map(|queue| client.queue(queue)).into();
    let taken = block_on(join_all(queues.iter().flat_map(|queue| (0..32).map(|_| queue.next()))));
    for delivery in taken {
        assert_eq!(delivery.expect("an item").attempt(), 1, "an attempt was spent on a lost answer");
    }
    assert_no_limit_was_met(&server);
}

/// The server has not closed a connection since too much was to be sent on it, and with it all that was under way.
fn assert_no_limit_was_met(server: &RedisServer) {
    let log = server.log();
    assert!(!log.contains("output buffer limits"), "{log}");
}
