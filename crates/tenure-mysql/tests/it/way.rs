//! The way to a server: TLS, and its socket.

use std::time::Duration;

use tenure_conformance::crew::pass_to_and_fro;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{ErrorKind, Settings, Tenure};
use tenure_testkit::mariadb::{MariaDbOptions, MariaDbServer};

use crate::conformance::connector;
use crate::crew::connect;

fn assert_excludes(url: &str) {
    let (a, b) = (connect(url), connect(url));
    let held = pollster::block_on(a.mutex("m").acquire()).expect("it is free");
    assert!(pollster::block_on(b.mutex("m").try_acquire()).expect("an answer").is_none());
    pollster::block_on(held.release()).expect("it is held");
}

#[test]
fn a_server_behind_tls_is_used_and_its_certificate_checked() {
    let options = || MariaDbOptions::default().tls();
    let (server, other) = (MariaDbServer::start(&options()), MariaDbServer::start(&options()));
    let mut admin = server.connect().expect("it answers");
    admin.run("CREATE USER locks@'%' IDENTIFIED BY 'swordfish' REQUIRE SSL");
    admin.run("GRANT ALL ON test.* TO locks@'%'");
    let url = server.url().replace("//root@", "//locks:swordfish@");
    let with = |ca: &MariaDbServer| format!("{url}?ca={}", ca.ca().display());
    assert_excludes(&with(&server));
    // Somebody else's certificate, one of an unknown authority, and none at all.
    for url in [with(&other), format!("{url}?tls=on"), url.clone()] {
        let connected = pollster::block_on(Tenure::connect_with(connector(&url), Settings::default()));
        let error = connected.expect_err("it cannot connect");
        let kinds = [ErrorKind::Unavailable, ErrorKind::Invalid];
        assert!(kinds.contains(&error.kind()) && error.hint().is_some(), "{error}");
        assert!(!format!("{error:?}").contains("swordfish"), "{error:?}");
    }
}

#[test]
fn a_server_is_used_by_its_socket() {
    // Nobody can reach it otherwise.
    let server = MariaDbServer::start(&MariaDbOptions::default());
    assert_excludes(&format!("mysql://root@/test?socket={}", server.socket().display()));
}

/// Nobody can notify it, so it looks. By its heartbeats alone it takes 33 s.
#[test]
fn a_waiter_of_another_client_learns_of_its_turn_long_before_its_heartbeat() {
    let server = MariaDbServer::start(&MariaDbOptions::default());
    let (a, b) = (connect(&server.url()), connect(&server.url()));
    assert_in_time(pass_to_and_fro(&a, &b, "m", 20), Duration::from_secs(5));
}
