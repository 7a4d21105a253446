//! What is said about servers, good and bad.

use tenure_core::engine::{Finding, Severity};

use super::judge::{Facts, Tables, wakes};

/// What makes a good server another one.
type Change = fn(&mut Facts);

fn good() -> Facts {
    Facts {
        version: "15.6".to_owned(),
        version_number: 150_006,
        synchronous_commit: "on".to_owned(),
        fsync: "on".to_owned(),
        autovacuum: "on".to_owned(),
        connections_max: 100,
        connections_reserved: 3,
        connections: 5,
        ..Facts::default()
    }
}

/// What is not good.
fn trouble(facts: &Facts) -> Vec<(Severity, &'static str)> {
    let bad = facts.judge().into_iter().filter(|finding| finding.severity != Severity::Good);
    bad.map(|Finding { severity, what, hint, .. }| {
        assert!(hint.is_some(), "{what} says what to do");
        (severity, what)
    })
    .collect()
}

#[test]
fn a_good_server_is_good() {
    assert_eq!(trouble(&good()), []);
}

#[test]
fn what_endangers_locks_is_said() {
    let (bad, warning) = (Severity::Bad, Severity::Warning);
    let table: [(&str, Change, Severity); 10] = [
        ("version", |facts| facts.version_number = 110_000, bad),
        ("version", |facts| facts.version_number = 130_002, warning),
        ("role", |facts| facts.is_in_recovery = true, bad),
        ("role", |facts| facts.is_read_only = true, bad),
        ("durability", |facts| facts.fsync = "off".to_owned(), warning),
        ("durability", |facts| facts.synchronous_commit = "off".to_owned(), warning),
        ("standbys", |facts| facts.standbys = 1, warning),
        ("connections", |facts| facts.connections = 90, warning),
        ("connections", |facts| facts.connections = 97, warning),
        ("vacuum", |facts| facts.autovacuum = "off".to_owned(), warning),
    ];
    for (what, change, severity) in table {
        let mut facts = good();
        change(&mut facts);
        assert_eq!(trouble(&facts), [(severity, what)], "{facts:?}");
    }
}

#[test]
fn synchronous_standbys_count_only_if_commits_wait() {
    let mut facts = Facts { synchronous_standbys: "ANY 1 (b, c)".to_owned(), standbys: 2, ..good() };
    assert_eq!(trouble(&facts), []);
    facts.synchronous_commit = "local".to_owned();
    assert_eq!(trouble(&facts), [(Severity::Warning, "standbys")]);
}

#[test]
fn tables_are_there_in_the_right_version_and_with_rights() {
    let tables = Tables { prefix: "tenure_".to_owned(), version: Some(2), purges: true, ..Tables::default() };
    assert_eq!((tables.judge().severity, tables.judge().hint), (Severity::Good, None));
    let old = Tables { version: Some(1), ..tables.clone() }.judge();
    assert!(old.severity == Severity::Good && old.hint.is_some_and(|hint| hint.contains("--migrate")));
    assert_eq!(Tables { version: Some(3), ..tables.clone() }.judge().severity, Severity::Bad);
    assert_eq!(Tables { version: None, ..tables.clone() }.judge().severity, Severity::Bad);
    let missing = Tables { missing: vec!["tenure_claim".to_owned()], ..tables.clone() }.judge();
    assert!(missing.severity == Severity::Bad && missing.found.contains("tenure_claim"), "{missing:?}");
    let idle = Tables { idle: 1_000_000, ..tables };
    assert_eq!(idle.judge().severity, Severity::Good, "they are removed");
    assert_eq!(Tables { purges: false, ..idle }.judge().severity, Severity::Warning);
}

#[test]
fn a_pooler_is_said() {
    assert_eq!(wakes(true, true).severity, Severity::Good);
    assert_eq!(wakes(true, false).severity, Severity::Warning);
    assert_eq!(wakes(false, false).severity, Severity::Good, "it was asked for");
}
