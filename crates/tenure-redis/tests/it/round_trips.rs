//! How many calls a server sees for what is promised to be one.

use std::time::Duration;

use tenure_core::{Settings, Tenure};
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::conformance::connector;

/// Returns how many scripts the server has run by now.
fn scripts(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:calls="));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn several_that_are_free_are_one_call_and_so_is_their_release() {
    let server = RedisServer::start(RedisOptions::default());
    pollster::block_on(async {
        let connected = Tenure::connect_with(connector(&server.url()), Settings::default()).await;
        let tenure = connected.expect("the server is up");
        let names = ["a", "b", "c"];
        let several = tenure.all(names.map(|name| tenure.mutex(name).ttl(Duration::from_secs(60)).into()));
        // The first time the scripts are loaded.
        several.acquire().await.expect("all are free").release().await.expect("answers");
        let before = scripts(&server);
        let leases = several.acquire().await.expect("all are free");
        let claimed = scripts(&server);
        leases.release().await.expect("answers");
        assert_eq!((claimed - before, scripts(&server) - claimed), (1, 1), "to claim, and to release");
    });
}
