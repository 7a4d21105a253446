//! etcd: one server, and a cluster.

use std::process::Command;
use std::time::Duration;

use tenure_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdServer, shared};
use tenure_testkit::{is_alive, wait_for};

fn get(server: &EtcdServer, key: &str) -> String {
    server.ctl(&["get", "--print-value-only", key]).trim().to_owned()
}

#[test]
fn a_killed_server_keeps_what_was_put_and_leaves_no_process() {
    let server = EtcdServer::start(&EtcdOptions::default());
    assert_eq!(server.url(), format!("etcd://127.0.0.1:{}", server.port()));
    assert!(server.port() >= 20_000);
    server.ctl(&["put", "key", "value"]);
    let pid = server.pid();
    server.kill();
    assert!(!is_alive(pid));
    assert!(server.try_ctl(&["get", "key"]).is_err());
    server.restart();
    assert_eq!(get(&server, "key"), "value");
    let (pid, directory) = (server.pid(), server.directory().to_owned());
    drop(server);
    assert!(!is_alive(pid) && !directory.parent().unwrap().exists());
}

#[test]
fn a_stopped_server_does_nothing_until_it_continues() {
    let server = EtcdServer::start(&EtcdOptions::default());
    server.stop();
    assert!(server.try_ctl(&["put", "key", "value"]).is_err());
    server.cont();
    wait_for("answer", || server.try_ctl(&["put", "key", "value"]).ok());
}

#[test]
fn a_login_and_tls_are_demanded() {
    let options = EtcdOptions::default().login("tenure", "secret").tls();
    let server = EtcdServer::start(&options);
    assert_eq!(server.url(), format!("etcds://tenure:secret@127.0.0.1:{}", server.port()));
    let call = |arguments: &[&str]| {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", server.endpoint())).args(arguments);
        command.output().unwrap().status.success()
    };
    let authority = format!("--cacert={}", server.authority().display());
    assert!(call(&[&authority, "--user=tenure:secret", "put", "key", "value"]));
    assert!(!call(&[&authority, "--user=tenure:wrong", "put", "key", "value"]));
    assert!(!call(&[&authority, "put", "key", "value"]));
    assert!(!call(&["--user=tenure:secret", "put", "key", "value"]), "nobody trusts the authority");
}

#[test]
fn a_server_that_cannot_start_fails_the_test_with_its_log() {
    let options = EtcdOptions::default().flag("--auth-token=nonsense");
    let failed = std::panic::catch_unwind(|| EtcdServer::start(&options));
    let message = *failed.expect_err("a refused flag").downcast::<String>().unwrap();
    assert!(message.contains("ended") && message.contains("nonsense"), "{message}");
}

#[test]
fn a_cluster_replaces_a_dead_leader_and_hands_over_when_told() {
    let options = EtcdOptions::default().election(Duration::from_millis(50), Duration::from_millis(500));
    let cluster = EtcdCluster::start(&options);
    assert_eq!(cluster.url().matches("127.0.0.1:").count(), 3);
    let first = cluster.leader();
    cluster.servers()[first].ctl(&["put", "key", "value"]);
    cluster.servers()[first].kill();
    let second = cluster.wait_for_new_leader(first);
    assert_eq!(get(&cluster.servers()[second], "key"), "value");
    cluster.servers()[first].restart();
    cluster.move_leader(first);
    assert_eq!(cluster.leader(), first);
}

#[test]
fn a_follower_that_is_cut_off_answers_but_does_not_follow() {
    let options = EtcdOptions::default().election(Duration::from_millis(50), Duration::from_millis(500));
    let cluster = EtcdCluster::start_separable(&options);
    let leader = cluster.leader();
    let (alone, other) = ((leader + 1) % 3, &cluster.servers()[(leader + 2) % 3]);
    let follower = &cluster.servers()[alone];
    other.ctl(&["put", "key", "before"]);
    wait_for("first value", || (get(follower, "key") == "before").then_some(()));
    cluster.cut_off(alone);
    other.ctl(&["put", "key", "after"]);
    let old = follower.ctl(&["get", "--print-value-only", "--consistency=s", "key"]);
    assert_eq!(old.trim(), "before", "it answers what it knows");
    assert!(follower.try_ctl(&["get", "key"]).is_err(), "it knows that it does not know");
    assert!(follower.try_ctl(&["put", "key", "never"]).is_err());
    assert_eq!(get(other, "key"), "after");
    cluster.heal();
    wait_for("second value", || {
        (follower.try_ctl(&["get", "--print-value-only", "key"]).ok()?.trim() == "after").then_some(())
    });
}

#[test]
fn a_leader_that_is_cut_off_is_replaced() {
    let options = EtcdOptions::default().election(Duration::from_millis(50), Duration::from_millis(500));
    let cluster = EtcdCluster::start_separable(&options);
    let first = cluster.leader();
    cluster.cut_off(first);
    let second = cluster.wait_for_new_leader(first);
    wait_for("write", || cluster.servers()[second].try_ctl(&["put", "key", "value"]).ok());
    cluster.heal();
    wait_for("the value", || {
        (cluster.servers()[first].try_ctl(&["get", "--print-value-only", "key"]).ok()?.trim() == "value")
            .then_some(())
    });
}

#[test]
fn a_shared_server_is_one() {
    let url = shared();
    assert_eq!(url, shared());
    assert!(url.starts_with("etcd://127.0.0.1:"));
}
