use super::*;

#[test]
fn each_error_of_a_server_has_a_kind_and_a_hint() {
    for (code, detail, kind, word) in [
        ("LOADING", "Redis is loading the dataset in memory", ErrorKind::Unavailable, "passes"),
        ("READONLY", "", ErrorKind::Unavailable, "replica"),
        ("MISCONF", "", ErrorKind::Unavailable, "disk"),
        ("OOM", "", ErrorKind::Unavailable, "maxmemory"),
        ("TRYAGAIN", "", ErrorKind::Unavailable, "hash slot"),
        ("CLUSTERDOWN", "", ErrorKind::Unavailable, "lacks nodes"),
        ("MASTERDOWN", "", ErrorKind::Unavailable, "without its master"),
        ("BUSY", "", ErrorKind::Unavailable, "script kill"),
        ("NOREPLICAS", "", ErrorKind::Unavailable, "min-replicas-to-write"),
        ("NOAUTH", "", ErrorKind::Invalid, "password"),
        ("WRONGPASS", "", ErrorKind::Invalid, "password"),
        ("NOPERM", "", ErrorKind::Unsupported, "INFO"),
        ("ERR", "DB index is out of range", ErrorKind::Invalid, "`db`"),
        ("ERR", "max number of clients reached", ErrorKind::Unavailable, "maxclients"),
        ("ERR", "unknown command 'SSUBSCRIBE'", ErrorKind::Unsupported, "Redis 7"),
        ("MOVED", "5 h:2", ErrorKind::Unavailable, "redis://"),
        ("CROSSSLOT", "Keys in request don't hash to the same slot", ErrorKind::Invalid, "redis+cluster://"),
        ("NOPROTO", "unsupported protocol version", ErrorKind::Unsupported, "RESP3"),
        // What a script did before it was refused, killed or failed is not known, nor what these words mean.
        ("UNBLOCKED", "client unblocked via CLIENT UNBLOCK", ErrorKind::Unavailable, "report"),
        (
            "ERR",
            "Error running script: Script killed by user with SCRIPT KILL.",
            ErrorKind::Unavailable,
            "report",
        ),
        ("ERR", "ACL failure in script: The user has no permissions", ErrorKind::Unavailable, "let the user"),
        (
            "ERR",
            "Unknown Redis command called from script script: f, unknown command",
            ErrorKind::Unavailable,
            "report",
        ),
        ("ERR", "something else", ErrorKind::Unavailable, "report"),
        ("WHATEVER", "a proxy in between says", ErrorKind::Unavailable, "report"),
    ] {
        let fault = Fault::server("h:1", code, Some(detail));
        for fault in [fault.clone(), Fault::Down { last: Box::new(fault) }] {
            let error = fault.to_error("claim");
            assert_eq!(error.kind(), kind, "{code} {detail}");
            assert!(error.hint().is_some_and(|hint| hint.contains(word)), "{code}: {:?}", error.hint());
            assert!(error.to_string().starts_with(&format!("claim: h:1 answered {code}")), "{error}");
        }
    }
}

#[test]
fn only_a_sent_command_without_an_answer_may_have_been_executed() {
    let server = || "h:1".to_owned();
    let silent = Fault::Silent { server: server(), after: Duration::from_secs(2) };
    let cut = Fault::Cut { server: server(), why: "reset".to_owned() };
    assert!(silent.is_outcome_unknown() && cut.is_outcome_unknown());
    for fault in [
        Fault::Down { last: Box::new(silent) },
        Fault::Down { last: Box::new(cut) },
        Fault::server("h:1", "NOSCRIPT", None),
        Fault::NotMaster { server: server(), role: "slave".to_owned() },
    ] {
        assert!(!fault.is_outcome_unknown(), "{fault:?}");
    }
    assert!(Fault::server("h:1", "NOSCRIPT", None).is_no_script());
    assert!(!Fault::server("h:1", "ERR", None).is_no_script());
}

#[test]
fn a_command_has_no_effect_only_if_no_server_has_begun_it() {
    let noperm = |detail| Fault::server("h:1", "NOPERM", Some(detail));
    for (fault, is_known) in [
        (
            Fault::Down { last: Box::new(Fault::Cut { server: "h:1".to_owned(), why: "reset".to_owned() }) },
            true,
        ),
        (Fault::Cut { server: "h:1".to_owned(), why: "reset".to_owned() }, false),
        (Fault::server("h:1", "WRONGPASS", None), true),
        (noperm("User u has no permissions to run the 'fcall' command"), true),
        (noperm("User u has no permissions to run the 'set' command script: 5a, on @user_script:1."), false),
        (Fault::server("h:1", "ERR", Some("attempt to index a nil value script: 5a")), false),
        (Fault::server("h:1", "NEWCODE", None), false),
    ] {
        assert_eq!(fault.to_error("claim").has_no_effect(), is_known, "{fault:?}");
    }
}
