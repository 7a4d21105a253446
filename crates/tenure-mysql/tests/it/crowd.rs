//! Very many who want one name at the same moment.

use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::testing::busy::stretched;
use tenure_core::{ErrorKind, Settings, Tenure};
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};

use crate::conformance::connector;

const PATIENCE: Duration = Duration::from_secs(5);

/// Each has a connection of its own, and the server takes half of them at a time: the others are asked for again, and nobody is
/// refused.
#[test]
fn a_crowd_that_a_server_has_no_room_for_at_once_is_served() {
    const ROUNDS: usize = 10;
    const CLIENTS: usize = 20;
    let server = MariaDbServer::start(&MariaDbOptions::default().setting("max-connections", "10"));
    let url = format!("{}?connections=1", server.url());
    drop(pollster::block_on(Tenure::connect_with(connector(&url), Settings::default())));
    let visit = |number: usize| {
        let url = url.clone();
        async move {
            let client = Tenure::connect_with(connector(&url), Settings::default()).await?;
            client.mutex(&format!("m{number}")).acquire().await?.release().await
        }
    };
    for _ in 0..ROUNDS {
        let served = pollster::block_on(join_all((0..CLIENTS).map(visit)));
        let failed: Vec<_> = served.iter().filter_map(|one| one.as_ref().err()).collect();
        assert!(failed.is_empty(), "{} of {CLIENTS} were refused: {}", failed.len(), failed[0]);
    }
}

/// All are queued, though nobody's row is free for long. They are served one heartbeat after another, which is not waited for.
#[test]
fn two_hundred_clients_that_claim_one_name_at_once_are_queued() {
    const CLIENTS: usize = 200;
    let server = MariaDbServer::start(&MariaDbOptions::default().setting("max-connections", "500"));
    let url = server.url();
    let mut clients: Vec<Tenure> = Vec::new();
    while clients.len() < CLIENTS {
        // They stand in line for one row, and the server serves them as fast as the machine lets it.
        let settings = || Settings::new().answer_timeout(stretched(Duration::from_secs(2)));
        let some = (0..20).map(|_| Tenure::connect_with(connector(&url), settings()));
        let some = pollster::block_on(join_all(some));
        clients.extend(some.into_iter().map(|client| client.expect("the server answers")));
    }
    let waited = join_all(clients.iter().map(|client| {
        let mutex = client.mutex("one");
        async move { mutex.acquire_within(PATIENCE).await }
    }));
    let waited = pollster::block_on(waited);
    let errors = waited.iter().filter_map(|one| one.as_ref().err());
    let refused: Vec<_> = errors.filter(|error| error.kind() != ErrorKind::Timeout).collect();
    assert!(refused.is_empty(), "{} of {CLIENTS} were refused: {}", refused.len(), refused[0]);
    assert!(waited.iter().any(Result::is_ok), "somebody is served");
}
