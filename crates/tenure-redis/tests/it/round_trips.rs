//! How many calls a server sees for what is promised to be one.

use std::time::Duration;

use tenure_core::{Settings, Tenure};
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::conformance::connector;

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
        let before = server.calls("fcall");
        let leases = several.acquire().await.expect("all are free");
        let claimed = server.calls("fcall");
        leases.release().await.expect("answers");
        assert_eq!((claimed - before, server.calls("fcall") - claimed), (1, 1), "to claim, and to release");
    });
}
