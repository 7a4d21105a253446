//! What users are told when something cannot be done, and ways in that need more than an address.

use std::time::Duration;

use tenure_core::engine::Severity;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{Error, ErrorKind, Settings, Tenure};
use tenure_testkit::wait_for;
use tenure_testkit::zookeeper::{ZooKeeperOptions, ZooKeeperServer, shared};

use crate::conformance::{BRIEF, connector};
use crate::crew::{connect, now};

fn try_to_connect(url: &str) -> Result<Tenure, Error> {
    pollster::block_on(Tenure::connect_with(connector(url), Settings::default()))
}

#[test]
fn servers_that_do_not_answer_are_named() {
    let port = tenure_testkit::Port::free();
    let asked_at = now();
    let url = format!("zookeeper://me:hunter2@127.0.0.1:{0},localhost:{0}", port.number());
    let error = try_to_connect(&url).expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{0} or localhost:{0}", port.number())), "{error}");
    assert!(error.hint().is_some() && !format!("{error:?}").contains("hunter2"), "{error:?}");
    assert_in_time(now().since(asked_at), Duration::from_millis(2300));
}

#[test]
fn missing_rights_are_named() {
    let url = shared();
    let owned = url.replace("://", "://me:secret@") + "/owned";
    let client = connect(&format!("{owned}?{BRIEF}"));
    drop(pollster::block_on(client.mutex("m").acquire()).expect("its own path"));
    let stranger = connect(&format!("{url}/owned?{BRIEF}"));
    let error = pollster::block_on(stranger.mutex("m").acquire()).expect_err("another's path");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("delete")), "{error:?}");
    let found = pollster::block_on(stranger.check()).expect("an answer");
    assert!(found.iter().any(|finding| finding.severity == Severity::Bad), "{found:?}");
}

#[test]
fn what_cannot_outlive_its_client_is_refused() {
    let client = connect(&format!("{}/refused?{BRIEF}", shared()));
    let rests = client.mutex("m").min_hold(Duration::from_secs(1));
    let error = pollster::block_on(rests.acquire()).expect_err("nothing rests");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let flight = client.single_flight("v");
    let error = pollster::block_on(flight.get_or_refresh(async |_| Ok::<_, Error>(b"x".to_vec())));
    assert_eq!(error.expect_err("nothing is kept").kind(), ErrorKind::Unsupported);
}

#[test]
fn a_user_may_say_who_it_is_by_sasl_and_a_wrong_password_is_refused() {
    let options = ZooKeeperOptions::default().login("me", "secret").line("sessionRequireClientSASLAuth=true");
    let server = ZooKeeperServer::start(&options);
    let url = |password: &str| {
        let url = server.url().replace("://", &format!("://me:{password}@"));
        format!("{url}/locks?{BRIEF}&auth=sasl")
    };
    let client = connect(&url("secret"));
    drop(pollster::block_on(client.mutex("m").acquire()).expect("its own path"));
    let error = try_to_connect(&url("wrong")).expect_err("a wrong password");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
}

#[test]
fn connections_can_be_private() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::default().tls());
    let authority = server.authority();
    let url = format!("{}?{BRIEF}&ca={}", server.url(), authority.display());
    // The first handshake of a JVM, which loads its cryptography for it, may take longer than a client waits.
    wait_for("a first handshake", || try_to_connect(&url).ok());
    let client = connect(&url);
    drop(pollster::block_on(client.mutex("m").acquire()).expect("it is free"));
    // An authority that did not sign for the server.
    let other = ZooKeeperServer::start(&ZooKeeperOptions::default().tls());
    let error = try_to_connect(&format!("{}?{BRIEF}&ca={}", server.url(), other.authority().display()));
    assert_eq!(error.expect_err("nobody vouches for it").kind(), ErrorKind::Unavailable);
    let error = try_to_connect(&format!("{}?{BRIEF}&ca=/no/such/file", server.url()));
    assert_eq!(error.expect_err("no file").kind(), ErrorKind::Invalid);
}

#[test]
fn the_doctor_says_what_it_finds() {
    let url = shared();
    let client = connect(&format!("{url}/doctor?session_timeout=90s"));
    let found = pollster::block_on(client.check()).expect("an answer");
    let of = |what: &str| found.iter().find(|finding| finding.what == what).expect("a finding");
    for what in ["version", "containers", "clock", "latency"] {
        assert_eq!(of(what).severity, Severity::Good, "{:?}", of(what));
    }
    assert!(of("version").found.starts_with("3."), "{:?}", of("version"));
    assert!(of("ensemble").found.contains("standalone"), "{:?}", of("ensemble"));
    assert!(of("session timeout").found.contains("60s"), "{:?}", of("session timeout"));
    assert_eq!(of("access").severity, Severity::Warning, "{:?}", of("access"));
    assert_eq!(client.capability().silence_max, Duration::from_secs(60), "as it was granted");
}
