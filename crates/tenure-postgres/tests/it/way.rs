//! The way to a server: TLS, a pooler, and a standby that takes over.

use std::time::Duration;

use tenure_conformance::crew::pass_to_and_fro;
use tenure_core::engine::Severity;
use tenure_core::testing::busy::assert_in_time;
use tenure_core::{ErrorKind, Settings, Tenure};
use tenure_testkit::postgres::{PgBouncer, PostgresOptions, PostgresServer};
use tenure_testkit::wait_for;

use crate::conformance::connector;
use crate::crew::{TTL, connect, now};

fn refused(url: &str) -> tenure_core::Error {
    let connected = pollster::block_on(Tenure::connect_with(connector(url), Settings::default()));
    connected.expect_err("it cannot connect")
}

#[test]
fn a_server_behind_tls_is_used_and_its_certificate_checked() {
    let options = || PostgresOptions::default().tls();
    let (server, other) = (PostgresServer::start(&options()), PostgresServer::start(&options()));
    let mut admin = server.connect().expect("it answers");
    admin.run("CREATE ROLE locks LOGIN PASSWORD 'swordfish'");
    admin.run("GRANT CREATE ON SCHEMA public TO locks");
    let access = server.directory().join("data/pg_hba.conf");
    let rules = "host all postgres all trust\nhostssl all all all scram-sha-256\n";
    std::fs::write(&access, rules).expect("a file of the server");
    admin.run("SELECT pg_reload_conf()");
    let url = server.url().replace("//postgres@", "//locks:swordfish@");
    let with = |ca: &PostgresServer| format!("{url}?sslmode=require&ca={}", ca.ca().display());
    let (a, b) = (connect(&with(&server)), connect(&with(&server)));
    let _held = pollster::block_on(a.mutex("m").acquire()).expect("it is free");
    assert!(pollster::block_on(b.mutex("m").try_acquire()).expect("an answer").is_none());
    assert!(b.capability().tells_waiters, "the connection that listens is private, too");
    let private = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'locks' AND NOT ssl";
    assert_eq!(admin.run(private).first(), Some("0"));
    // Somebody else's certificate, one of an unknown authority, and none at all.
    for url in [with(&other), format!("{url}?sslmode=require"), url.clone()] {
        let error = refused(&url);
        let kinds = [ErrorKind::Unavailable, ErrorKind::Invalid];
        assert!(kinds.contains(&error.kind()) && error.hint().is_some(), "{error}");
        assert!(!format!("{error:?}").contains("swordfish"), "{error:?}");
    }
}

#[test]
fn a_standby_grants_nothing_until_it_takes_over() {
    let primary = PostgresServer::start(&PostgresOptions::default());
    let first = connect(&primary.url());
    let standby = primary.start_standby(&PostgresOptions::default());
    // A standby alone: everything is refused with a hint.
    let told = refused(&standby.url());
    assert_eq!(told.kind(), ErrorKind::Unavailable, "{told}");
    assert!(told.hint().is_some_and(|hint| hint.contains("standby")), "{told:?}");
    let on_standby = connect(&format!("{}?listen=off", standby.url()));
    let told = pollster::block_on(on_standby.mutex("m").try_acquire()).expect_err("it is read-only");
    assert_eq!(told.kind(), ErrorKind::Unavailable, "{told}");
    assert!(told.hint().is_some_and(|hint| hint.contains("standby")), "{told:?}");
    let found = pollster::block_on(on_standby.check()).expect("an answer");
    let role = found.iter().find(|finding| finding.what == "role").expect("a finding");
    assert!(role.severity == Severity::Bad && role.found.contains("standby"), "{role:?}");
    // With both in the URL the primary is found, and the standby once it has taken over.
    let both =
        format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", standby.port(), primary.port());
    let client = connect(&both);
    let replicated = pollster::block_on(client.mutex("replicated").ttl(Duration::from_secs(30)).acquire());
    let replicated = replicated.expect("it is free");
    let count = |name: &str| {
        let mut raw = standby.connect().ok()?;
        let count = raw.run(&format!("SELECT count(hold_claim) FROM tenure_resource WHERE name = '{name}'"));
        (count.first() == Some("1")).then_some(())
    };
    wait_for("the hold on the standby", || count("replicated"));
    // What follows does not reach it any more.
    let mut raw = standby.connect().expect("it answers");
    raw.run("ALTER SYSTEM SET primary_conninfo = ''");
    raw.run("SELECT pg_reload_conf()");
    wait_for("end of the stream", || {
        let receivers = standby.connect().ok()?.run("SELECT count(*) FROM pg_stat_wal_receiver");
        (receivers.first() == Some("0")).then_some(())
    });
    let forgotten = pollster::block_on(client.mutex("forgotten").ttl(TTL).acquire()).expect("it is free");
    drop(first);
    primary.kill();
    let killed_at = now();
    standby.promote();
    let mutex = client.mutex("n");
    let lease = wait_for("grant by the new primary", || pollster::block_on(mutex.try_acquire()).ok()?);
    println!("granted {:?} after the failover", now().since(killed_at));
    pollster::block_on(lease.release()).expect("it is held");
    pollster::block_on(forgotten.lost());
    assert_in_time(now().since(killed_at), TTL + Duration::from_millis(300));
    assert!(!replicated.is_lost(), "the new primary knows it");
    pollster::block_on(replicated.release()).expect("it is held");
}

/// No notification comes through, so it looks. By its heartbeats alone it takes 33 s.
#[test]
fn behind_a_pooler_a_waiter_learns_of_its_turn_long_before_its_heartbeat() {
    let server = PostgresServer::start(&PostgresOptions::default());
    let bouncer = PgBouncer::start(&server);
    let (a, b) = (connect(&bouncer.url()), connect(&bouncer.url()));
    assert!(!b.capability().tells_waiters);
    assert_in_time(pass_to_and_fro(&a, &b, "m", 20), Duration::from_secs(5));
}
