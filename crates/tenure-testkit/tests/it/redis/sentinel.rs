//! A Sentinel set.

use tenure_testkit::Reply;
use tenure_testkit::redis::RedisSentinel;

#[test]
fn sentinels_replace_a_dead_master_and_hand_over_when_told() {
    let set = RedisSentinel::start();
    assert!(set.url().starts_with("redis+sentinel://127.0.0.1:") && set.url().ends_with("/mymaster"));
    let first = set.master();
    assert_eq!(first.command(&["ROLE"]).lines().next(), Some("master"));
    // WAIT is about the writes of its own connection.
    let mut connection = first.connect().unwrap();
    connection.ask(&["SET", "key", "value"]).unwrap();
    assert_eq!(connection.ask(&["WAIT", "2", "5000"]).unwrap(), Reply::Integer(2));

    first.kill();
    let second = set.wait_for_new_master(first);
    assert_ne!(second.port(), first.port());
    assert_eq!(second.command(&["GET", "key"]), "value");

    let third = set.failover();
    assert_eq!(third.command(&["GET", "key"]), "value");
    assert_eq!(set.master().port(), third.port());
    assert_ne!(second.port(), third.port());
}
