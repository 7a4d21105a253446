//! A Sentinel set.

use tenure_testkit::redis::RedisSentinel;

#[test]
fn sentinels_make_a_replica_the_master() {
    let set = RedisSentinel::start();
    assert!(set.url().starts_with("redis+sentinel://127.0.0.1:") && set.url().ends_with("/mymaster"));
    let first = set.master();
    assert_eq!(first.command(&["ROLE"]).lines().next(), Some("master"));
    first.command(&["SET", "key", "value"]);
    assert_eq!(first.command(&["WAIT", "2", "5000"]), "2");

    let second = set.failover();
    assert_ne!(second.port(), first.port());
    assert_eq!(second.command(&["GET", "key"]), "value");
    set.wait_until_ready();

    second.kill();
    let third = set.wait_for_new_master(second);
    assert_eq!(third.command(&["GET", "key"]), "value");
    assert_eq!(set.master().port(), third.port());
}
