//! Very many who want one name at the same moment.

use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::{Settings, Tenure};
use tenure_testkit::postgres::{PostgresOptions, PostgresServer};

use crate::conformance::connector;
use crate::crew::now;

/// All are queued, though nobody's row is free for long, and served.
#[test]
fn two_hundred_clients_that_claim_one_name_at_once_are_all_served() {
    const CLIENTS: usize = 200;
    let server = PostgresServer::start(&PostgresOptions::default().setting("max_connections", "500"));
    let url = server.url();
    let mut clients: Vec<Tenure> = Vec::new();
    while clients.len() < CLIENTS {
        // They stand in line for one row, and the server serves them as fast as the machine lets it.
        let settings = || Settings::new().answer_timeout(Duration::from_secs(10));
        let some = (0..20).map(|_| Tenure::connect_with(connector(&url), settings()));
        let some = pollster::block_on(join_all(some));
        clients.extend(some.into_iter().map(|client| client.expect("the server answers")));
    }
    assert!(clients.iter().all(|client| client.capability().tells_waiters), "all hear");
    let began = now();
    let served = join_all(clients.iter().map(|client| {
        let mutex = client.mutex("one");
        async move {
            let lease = mutex.acquire().await?;
            lease.release().await
        }
    }));
    let served = pollster::block_on(served);
    println!("all were answered after {:?}", now().since(began));
    let failed: Vec<_> = served.iter().filter_map(|one| one.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} of {CLIENTS} were refused: {}", failed.len(), failed[0]);
}
