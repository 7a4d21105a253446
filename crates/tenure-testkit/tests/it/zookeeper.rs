//! ZooKeeper: one server, and an ensemble.

use std::process::Command;

use tenure_testkit::zookeeper::{ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer, shared};
use tenure_testkit::{is_alive, wait_for};

#[test]
fn a_killed_server_keeps_what_was_created_and_leaves_no_process() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    assert_eq!(server.url(), format!("zookeeper://127.0.0.1:{}", server.port()));
    assert!(server.port() >= 20_000);
    assert_eq!(server.mode().as_deref(), Some("standalone"));
    server.shell(&["create", "/key", "value"]).unwrap();
    let pid = server.pid();
    server.kill();
    assert!(!is_alive(pid) && server.mode().is_none());
    server.restart();
    assert!(server.shell(&["get", "/key"]).unwrap().contains("value"));
    let (pid, directory) = (server.pid(), server.directory().to_owned());
    drop(server);
    assert!(!is_alive(pid) && !directory.parent().unwrap().exists());
}

#[test]
fn an_empty_container_is_swept_soon() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default());
    server.shell(&["create", "-c", "/container"]).unwrap();
    server.shell(&["create", "/container/child"]).unwrap();
    server.shell(&["delete", "/container/child"]).unwrap();
    wait_for("end of the container", || {
        (!server.shell(&["ls", "/"]).unwrap().contains("container")).then_some(())
    });
}

#[test]
fn a_login_is_checked() {
    let options =
        ZooKeeperOptions::default().login("tenure", "secret").line("sessionRequireClientSASLAuth=true");
    let server = ZooKeeperServer::start(&options);
    server.shell(&["create", "/key", "value", "sasl:tenure:cdrwa"]).unwrap();
    assert!(server.shell(&["getAcl", "/key"]).unwrap().contains("'tenure"));
    let logins = server.directory().join("jaas.conf");
    let wrong =
        std::fs::read_to_string(&logins).unwrap().replace("password=\"secret\"", "password=\"wrong\"");
    std::fs::write(&logins, wrong).unwrap();
    assert!(server.shell(&["get", "/key"]).is_err());
}

#[test]
fn tls_has_a_certificate_by_the_authority() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default().tls());
    assert_eq!(server.url(), format!("zookeepers://127.0.0.1:{}", server.secure_port()));
    let mut client = Command::new("openssl");
    client.args(["s_client", "-verify_return_error", "-verify_ip", "127.0.0.1", "-CAfile"]);
    client.arg(server.authority()).arg("-connect").arg(format!("127.0.0.1:{}", server.secure_port()));
    let output = client.stdin(std::process::Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("Verification: OK"), "{text}");
}

#[test]
fn a_server_that_cannot_start_fails_the_test_with_its_log() {
    let options = ZooKeeperOptions::default().line("secureClientPort=nonsense");
    let failed = std::panic::catch_unwind(|| ZooKeeperServer::start(&options));
    let message = *failed.expect_err("a refused line").downcast::<String>().unwrap();
    assert!(message.contains("ended") && message.contains("nonsense"), "{message}");
}

#[test]
fn an_ensemble_replaces_a_dead_leader() {
    let ensemble = ZooKeeperEnsemble::start(&ZooKeeperOptions::default());
    assert_eq!(ensemble.url().matches("127.0.0.1:").count(), 3);
    let first = ensemble.leader();
    ensemble.servers()[first].shell(&["create", "/key", "value"]).unwrap();
    ensemble.servers()[first].kill();
    let second = ensemble.wait_for_new_leader(first);
    assert!(ensemble.servers()[second].shell(&["get", "/key"]).unwrap().contains("value"));
    ensemble.restart(first);
    assert!(ensemble.servers()[first].shell(&["get", "/key"]).unwrap().contains("value"));
}

#[test]
fn a_server_that_is_cut_off_serves_no_longer_and_comes_back() {
    let ensemble = ZooKeeperEnsemble::start_separable(&ZooKeeperOptions::default());
    let leader = ensemble.leader();
    let follower = (leader + 1) % 3;
    for alone in [follower, leader] {
        ensemble.cut_off(alone);
        wait_for("end of service", || ensemble.servers()[alone].mode().is_none().then_some(()));
        ensemble.wait_for_new_leader(alone);
        assert_eq!(ensemble.servers()[alone].word("ruok").unwrap(), "imok", "clients reach it");
        ensemble.heal();
        // An election may take several attempts.
        ensemble.servers()[alone].wait_for("service", || ensemble.servers()[alone].mode());
    }
}

#[test]
fn a_separable_server_can_be_restarted() {
    let ensemble = ZooKeeperEnsemble::start_separable(&ZooKeeperOptions::default());
    for server in [0, 2] {
        ensemble.servers()[server].kill();
        ensemble.restart(server);
    }
    ensemble.leader();
}

#[test]
fn a_shared_server_is_one() {
    let url = shared();
    assert_eq!(url, shared());
    assert!(url.starts_with("zookeeper://127.0.0.1:"));
}
