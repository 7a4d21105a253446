//! A cluster.

use tenure_testkit::Reply;
use tenure_testkit::redis::RedisCluster;

#[test]
fn a_cluster_moves_slots_and_survives_a_master() {
    let cluster = RedisCluster::start();
    assert!(cluster.url().starts_with("redis+cluster://127.0.0.1:"));
    let slot = cluster.slot_of("{a}1");
    let from = cluster.node_of_slot(slot);
    let to = cluster.nodes()[..3].iter().find(|node| node.port() != from.port()).unwrap();
    from.command(&["SET", "{a}1", "one"]);
    from.command(&["SET", "{a}2", "two"]);

    cluster.begin_migration(slot, from, to);
    assert_eq!(from.command(&["GET", "{a}1"]), "one");
    assert!(from.ask(&["GET", "{a}3"]).to_string().starts_with("ASK "));
    assert_eq!(cluster.move_keys(slot, from, to), 2);
    assert!(from.ask(&["GET", "{a}1"]).to_string().starts_with("ASK "));
    cluster.end_migration(slot, from, to);
    assert!(from.ask(&["GET", "{a}1"]).to_string().starts_with("MOVED "));
    assert_eq!(to.command(&["GET", "{a}1"]), "one");
    assert_eq!(cluster.node_of_slot(slot).port(), to.port());

    let second = cluster.failover(to);
    assert_ne!(second.port(), to.port());
    assert_eq!(second.command(&["GET", "{a}2"]), "two");
    assert_eq!(cluster.node_of_slot(slot).port(), second.port());

    // It has just become a replica, and what follows is lost if it does not follow yet.
    let mut connection = second.connect().unwrap();
    connection.ask(&["SET", "{a}2", "three"]).unwrap();
    assert_eq!(connection.ask(&["WAIT", "1", "5000"]).unwrap(), Reply::Integer(1));
    second.kill();
    let third = cluster.wait_for_new_master(slot, second);
    assert_eq!(third.port(), to.port());
    assert_eq!(third.command(&["GET", "{a}2"]), "three");
}
