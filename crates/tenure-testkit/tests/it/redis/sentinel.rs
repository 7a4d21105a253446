//! A Sentinel set.

use tenure_testkit::redis::{RedisOptions, RedisSentinel};
use tenure_testkit::{Reply, wait_for};

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

#[test]
fn a_master_whose_replicas_were_left_behind_is_replaced_by_one_that_lacks_its_writes() {
    let set = RedisSentinel::start_separable(&RedisOptions::default());
    let first = set.master();
    first.command(&["SET", "early", "value"]);
    let replica = set.servers().iter().find(|server| server.port() != first.port()).unwrap();
    wait_for("the write on a replica", || (replica.command(&["GET", "early"]) == "value").then_some(()));
    let index = set.servers().iter().position(|server| server.port() == first.port()).unwrap();
    set.leave_behind(index);
    first.command(&["SET", "late", "value"]);
    first.kill();
    let second = set.wait_for_new_master(first);
    assert_eq!(
        (second.command(&["GET", "early"]), second.command(&["GET", "late"])),
        ("value".into(), "".into())
    );
    set.heal();
    first.restart();
    set.wait_until_ready();

    // Sentinels may have replaced it too, on a busy machine.
    let port = set.master().port();
    let second = set.servers().iter().position(|server| server.port() == port).unwrap();
    set.cut_off(second);
    let third = set.wait_for_new_master(&set.servers()[second]);
    assert_eq!(set.servers()[second].info("role").as_deref(), Some("master"), "nobody can tell it");
    assert_ne!(third.port(), set.servers()[second].port());
    set.heal();
    set.wait_until_ready();
}
