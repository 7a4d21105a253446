//! What a doctor says to what servers say.

use tenure_core::engine::Severity;

use super::judge::{Facts, rights, tables};

fn facts(changed: &[(&str, &str)]) -> Facts {
    let good = [
        ("version", "10.11.19-MariaDB"),
        ("read_only", "OFF"),
        ("innodb_flush_log_at_trx_commit", "1"),
        ("sync_binlog", "0"),
        ("log_bin", "OFF"),
        ("max_allowed_packet", "16777216"),
        ("max_connections", "151"),
        ("threads_connected", "7"),
    ];
    let variables = good.iter().chain(changed).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Facts { variables: variables.collect(), sysdate_stands: false }
}

#[test]
fn a_good_server_has_only_good_findings() {
    let findings = facts(&[]).judge();
    assert!(findings.iter().all(|finding| finding.severity == Severity::Good), "{findings:#?}");
}

#[test]
fn each_danger_is_named_with_what_to_do() {
    for (changed, what, severity) in [
        (&[("read_only", "ON")][..], "role", Severity::Bad),
        (&[("super_read_only", "ON")], "role", Severity::Bad),
        (&[("innodb_flush_log_at_trx_commit", "2")], "durability", Severity::Warning),
        (&[("log_bin", "ON")], "durability", Severity::Warning),
        (
            &[("log_bin", "ON"), ("sync_binlog", "1"), ("binlog_format", "STATEMENT")],
            "binlog_format",
            Severity::Bad,
        ),
        (&[("sysdate_is_now", "ON")], "sysdate", Severity::Warning),
        (&[("max_allowed_packet", "1048576")], "max_allowed_packet", Severity::Warning),
        (&[("threads_connected", "145")], "connections", Severity::Warning),
        (&[("wsrep_on", "ON")], "cluster", Severity::Warning),
        (&[("version", "8.0.36")], "version", Severity::Warning),
    ] {
        let findings = facts(changed).judge();
        let bad: Vec<_> = findings.iter().filter(|finding| finding.severity != Severity::Good).collect();
        assert_eq!(bad.len(), 1, "{changed:?}: {bad:#?}");
        assert_eq!((bad[0].what, bad[0].severity), (what, severity), "{changed:?}");
        assert!(bad[0].hint.is_some(), "{changed:?}");
    }
}

#[test]
fn missing_rights_and_tables_are_bad() {
    assert_eq!(rights(&[], true).severity, Severity::Good);
    assert_eq!(rights(&["tenure_entry"], true).severity, Severity::Bad);
    let [old, new] = ["1", "2"].map(|version| tables("tenure_", Some(version)));
    assert!(old.severity == Severity::Good && old.hint.is_some_and(|hint| hint.contains("--migrate")));
    assert_eq!((new.severity, new.hint), (Severity::Good, None));
    assert_eq!(tables("tenure_", Some("99")).severity, Severity::Bad);
    assert_eq!(tables("tenure_", None).severity, Severity::Bad);
}
