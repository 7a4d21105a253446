//! What servers say, word for word or nearly, and one real server.

use tenure_core::clock::Timestamp;
use tenure_core::engine::Engine;
use tenure_core::model::claim::ClientId;
use tenure_testkit::redis::{RedisOptions, RedisServer, Topology, shared};

use super::*;
use crate::config::Config;
use crate::engine::Redis;

const GIB: u64 = 1 << 30;

fn good_facts() -> Facts {
    Facts {
        server: Ok("redis_version:7.0.15\r\nredis_mode:standalone\r\n".to_owned()),
        memory: Ok(memory("noeviction", GIB, 0)),
        persistence: Ok("rdb_last_bgsave_status:ok\naof_enabled:1\naof_last_write_status:ok\n".to_owned()),
        replication: Ok("role:master\nconnected_slaves:0\n".to_owned()),
        cluster: Err(Fault::server("s:1", "ERR", Some("This instance has cluster support disabled"))),
        fsync: Some("everysec".to_owned()),
        save: Some(String::new()),
        replicas_min: Some("0".to_owned()),
        full_coverage: None,
        replicas_wanted: 0,
        is_cluster: false,
        is_quorum: false,
    }
}

fn memory(policy: &str, used: u64, most: u64) -> String {
    format!("used_memory:{used}\r\nmaxmemory:{most}\r\nmaxmemory_policy:{policy}\r\n")
}

/// What is found about one thing: how bad it is, what it is, and whether there is a hint.
fn one(facts: &Facts, what: &str) -> (Severity, String, bool) {
    let found = facts.judge();
    let finding = found.iter().find(|finding| finding.what == what).expect("a finding");
    (finding.severity, finding.found.clone(), finding.hint.is_some())
}

#[test]
fn a_server_as_it_should_be_has_nothing_but_good_findings() {
    for finding in good_facts().judge() {
        assert_eq!((finding.severity, &finding.hint), (Severity::Good, &None), "{finding:?}");
    }
}

#[test]
fn old_and_unknown_servers_are_named() {
    for (said, severity, part) in [
        ("redis_version:6.2.14", Severity::Bad, "Redis 6.2.14"),
        ("redis_version:7.0.0", Severity::Good, "Redis 7.0.0"),
        ("redis_version:10.1.0", Severity::Good, "Redis 10.1.0"),
        (
            "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1",
            Severity::Warning,
            "Valkey 8.0.1",
        ),
        ("", Severity::Warning, "not said"),
    ] {
        let (found, text, _) = one(&Facts { server: Ok(said.to_owned()), ..good_facts() }, "version");
        assert!(found == severity && text.starts_with(part), "{said}: {found:?} {text}");
    }
}

#[test]
fn eviction_and_a_full_server_are_told() {
    for (policy, used, most, severity) in [
        ("noeviction", GIB, 0, Severity::Good),
        ("noeviction", GIB, 2 * GIB, Severity::Good),
        ("noeviction", 95, 100, Severity::Warning),
        ("noeviction", 101, 100, Severity::Bad),
        ("allkeys-lru", 1, GIB, Severity::Warning),
        ("volatile-ttl", 1, 0, Severity::Warning),
    ] {
        let (found, text, has_hint) =
            one(&Facts { memory: Ok(memory(policy, used, most)), ..good_facts() }, "memory");
        assert_eq!((found, has_hint), (severity, severity != Severity::Good), "{text}");
        assert!(text.ends_with(policy), "{text}");
    }
}

#[test]
fn what_a_restart_forgets_is_told() {
    let none = "rdb_last_bgsave_status:ok\naof_enabled:0\n";
    let log = "rdb_last_bgsave_status:ok\naof_enabled:1\naof_last_write_status:ok\n";
    let full = "rdb_last_bgsave_status:ok\naof_enabled:1\naof_last_write_status:err\n";
    let failing = "rdb_last_bgsave_status:err\naof_enabled:0\n";
    for (said, fsync, save, severity, part) in [
        (none, Some("everysec"), Some(""), Severity::Warning, "none: a restart forgets every hold"),
        (none, Some("everysec"), Some("3600 1"), Severity::Warning, "snapshots only"),
        (none, None, None, Severity::Warning, "no log; whether"),
        (log, Some("always"), Some(""), Severity::Good, "log, synced before each answer"),
        (log, Some("everysec"), Some("3600 1"), Severity::Good, "log, synced every second"),
        (log, Some("no"), Some(""), Severity::Warning, "log, synced when the system likes"),
        (log, None, None, Severity::Warning, "log; when it is synced is not known"),
        (full, Some("everysec"), Some(""), Severity::Bad, "the server cannot write"),
        (failing, Some("everysec"), Some("3600 1"), Severity::Bad, "the server cannot write"),
        // Snapshots that are not configured may fail.
        (failing, Some("everysec"), Some(""), Severity::Warning, "none"),
    ] {
        let facts = Facts {
            persistence: Ok(said.to_owned()),
            fsync: fsync.map(str::to_owned),
            save: save.map(str::to_owned),
            ..good_facts()
        };
        let (found, text, has_hint) = one(&facts, "persistence");
        assert!(found == severity && text.starts_with(part), "{said} {fsync:?} {save:?}: {found:?} {text}");
        assert_eq!(has_hint, severity != Severity::Good, "{text}");
    }
}

#[test]
fn replicas_that_lack_or_lag_are_told() {
    let line = |number: u32, state: &str, lag: u32| {
        format!("slave{number}:ip=127.0.0.1,port=6380,state={state},offset=42,lag={lag}\r\n")
    };
    for (lines, min, wanted, is_cluster, severity, part) in [
        (String::new(), Some("0"), 0, false, Severity::Good, "none"),
        (String::new(), Some("1"), 0, false, Severity::Bad, "none; `min-replicas-to-write` is 1"),
        (String::new(), None, 1, false, Severity::Warning, "none; the URL wants 1"),
        (line(0, "wait_bgsave", 0), None, 1, false, Severity::Warning, "none"),
        (line(0, "online", 1), Some("1"), 1, false, Severity::Good, "1, the slowest was heard of 1 s ago"),
        (line(0, "online", 1), Some("0"), 0, false, Severity::Warning, "1, "),
        (line(0, "online", 1), Some("0"), 0, true, Severity::Good, "1, "),
        (
            line(0, "online", 1) + &line(1, "online", 9),
            Some("1"),
            0,
            false,
            Severity::Warning,
            "2, the slowest was heard of 9 s",
        ),
        (line(0, "online", 1), None, 0, false, Severity::Good, "1, "),
    ] {
        let facts = Facts {
            replication: Ok(format!("role:master\r\n{lines}")),
            replicas_min: min.map(str::to_owned),
            replicas_wanted: wanted,
            is_cluster,
            ..good_facts()
        };
        let (found, text, _) = one(&facts, "replicas");
        assert!(found == severity && text.starts_with(part), "{lines} {min:?} {wanted}: {found:?} {text}");
    }
    let facts = Facts { replication: Ok("role:slave".to_owned()), ..good_facts() };
    assert_eq!(one(&facts, "role").0, Severity::Bad);
}

#[test]
fn a_cluster_that_is_not_whole_is_told() {
    let said = |state: &str, slots: u32| {
        Ok(format!(
            "cluster_state:{state}\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:{slots}\r\n\
             cluster_known_nodes:6\r\ncluster_size:3\r\n"
        ))
    };
    for (state, slots, severity) in
        [("ok", 16384, Severity::Good), ("ok", 10923, Severity::Warning), ("fail", 10923, Severity::Bad)]
    {
        let facts = Facts {
            server: Ok("redis_version:7.0.15\nredis_mode:cluster".to_owned()),
            cluster: said(state, slots),
            is_cluster: true,
            ..good_facts()
        };
        let (found, text, _) = one(&facts, "topology");
        assert_eq!(found, severity, "{text}");
        assert!(text.contains("3 masters of 6 nodes"), "{text}");
    }
    for (setting, severity) in
        [(Some("yes"), Severity::Warning), (Some("no"), Severity::Good), (None, Severity::Good)]
    {
        let facts = Facts {
            server: Ok("redis_mode:cluster".to_owned()),
            cluster: said("ok", 16384),
            full_coverage: setting.map(str::to_owned),
            is_cluster: true,
            ..good_facts()
        };
        let (found, text, has_hint) = one(&facts, "topology");
        assert_eq!((found, has_hint), (severity, severity == Severity::Warning), "{text}");
    }
    let single = Facts { server: Ok("redis_mode:cluster".to_owned()), ..good_facts() };
    assert_eq!(one(&single, "topology").0, Severity::Bad);
}

#[test]
fn a_question_that_is_refused_is_a_warning() {
    let refused = || Err(Fault::server("s:1", "NOPERM", Some("this user has no permissions")));
    let facts = Facts {
        server: refused(),
        memory: refused(),
        persistence: refused(),
        replication: refused(),
        ..good_facts()
    };
    for finding in facts.judge() {
        assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
        assert!(finding.found.contains("NOPERM") && finding.hint.is_some(), "{finding:?}");
    }
}

#[test]
fn clocks_and_delays_are_measured() {
    let at = |millis: u64| Timestamp::from_micros(1_700_000_000_000_000 + millis * 1000);
    for (server, here, severity, text) in [
        (at(20), at(0), Severity::Good, "20.0ms ahead of this machine's"),
        (at(0), at(300), Severity::Good, "300.0ms behind this machine's"),
        (at(2000), at(0), Severity::Warning, "2.0s ahead of this machine's"),
        (at(0), at(90_000), Severity::Warning, "90.0s behind this machine's"),
    ] {
        let finding = judge::clock(server, here);
        assert_eq!((finding.severity, finding.found.as_str()), (severity, text));
    }
    let millis = |of: [u64; 5]| judge::latency(of.map(Duration::from_millis).to_vec());
    let (quick, slow) = (millis([1, 9, 2, 3, 1]), millis([1, 1, 1, 1, 700]));
    assert_eq!(quick.found, "2.0ms, at worst 9.0ms of 5 PINGs");
    assert_eq!((quick.severity, slow.severity), (Severity::Good, Severity::Warning));
}

#[test]
fn scripts_and_the_prefix_are_judged() {
    let fault = |code, detail| Err(Fault::server("s:1", code, Some(detail)));
    let yes = || Ok("yes".to_owned());
    let (no, unknown) = (fault("NOPERM", "no permissions to run"), fault("NOSCRIPT", ""));
    let (no_function, no_library) =
        (fault("ERR", "Function not found"), fault("ERR", "Missing library metadata"));
    let (functions, scripts) = ([&no_function, &no_library], [&unknown, &yes()]);
    let severity = |functions, scripts| judge::scripts(functions, scripts).severity;
    assert_eq!(severity(functions, scripts), Severity::Good);
    assert_eq!(severity(functions, [&unknown, &no]), Severity::Good);
    assert_eq!(severity([&no_function, &no], [&no, &no]), Severity::Bad);
    let slower = judge::scripts([&no, &no], scripts);
    assert!(
        slower.severity == Severity::Good && slower.hint.is_some_and(|hint| hint.contains("FUNCTION LOAD"))
    );
    assert_eq!(judge::prefix("tenure:"), None);
    assert!(judge::prefix("").is_some_and(|finding| finding.found.starts_with("none")));
    assert!(judge::prefix("app:").is_some_and(|finding| finding.found.starts_with("\"app:\"")));
}

/// Checks a server as a client does that connects with a URL.
fn checked(url: &str) -> Vec<Finding> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let config = Config::parse(url).expect("a right URL");
        let redis = Redis::connect(config, ClientId::new(7)).await.expect("a server");
        redis.check().await
    })
}

fn severity(findings: &[Finding], what: &str) -> Severity {
    let found = findings.iter().find(|finding| finding.what == what);
    found.unwrap_or_else(|| panic!("nothing about {what}: {findings:?}")).severity
}

#[test]
fn a_real_server_is_looked_at() {
    let options = RedisOptions::default().line("maxmemory 100mb").line("maxmemory-policy allkeys-lru");
    let server = RedisServer::start(options);
    let findings = checked(&format!("{}?prefix=app:", server.url()));
    for (what, expected) in [
        ("version", Severity::Good),
        ("topology", Severity::Good),
        ("role", Severity::Good),
        ("replicas", Severity::Good),
        ("memory", Severity::Warning),
        ("persistence", Severity::Warning),
        ("clock", Severity::Good),
        ("scripts", Severity::Good),
        ("keys", Severity::Good),
        ("prefix", Severity::Good),
    ] {
        assert_eq!(severity(&findings, what), expected, "{what}: {findings:?}");
    }
    let policy = findings.iter().find(|finding| finding.what == "memory").expect("a finding");
    assert!(policy.found.ends_with(" of at most 100 MiB used, policy allkeys-lru"), "{policy:?}");
}

#[test]
fn a_real_cluster_and_a_real_sentinel_set_are_looked_at() {
    let of = |findings: &[Finding], what: &str| {
        let texts = findings.iter().filter(|finding| finding.what == what).map(|finding| &finding.found);
        texts.cloned().collect::<Vec<_>>()
    };
    let cluster = checked(&shared(Topology::Cluster));
    assert_eq!(of(&cluster, "version").len(), 1, "what all masters say is said once: {cluster:?}");
    let whole = "cluster, state ok: 16384 of 16384 slots served, 3 masters of 6 nodes; \
        `cluster-require-full-coverage` is yes";
    assert_eq!(severity(&cluster, "topology"), Severity::Warning);
    assert_eq!(of(&cluster, "topology"), [whole], "{cluster:?}");
    assert_eq!(of(&cluster, "latency").len(), 3, "{cluster:?}");
    assert_eq!(severity(&cluster, "keys"), Severity::Good);
    let sentinel = checked(&shared(Topology::Sentinel));
    assert_eq!(severity(&sentinel, "role"), Severity::Good);
    assert!(of(&sentinel, "replicas")[0].starts_with("2, "), "{sentinel:?}");
}

#[test]
fn a_real_server_that_refuses_questions_is_still_looked_at() {
    let server = RedisServer::start(RedisOptions::default().line("maxmemory-policy allkeys-lru"));
    // All that the engine needs, and nothing more. `INFO server` and the like are what a connection begins with.
    server.command(&[
        "ACL",
        "SETUSER",
        "locks",
        "on",
        ">secret",
        "resetchannels",
        "&tenure.1.*",
        "~tenure:*",
        "~tenure.1.*",
        "+@connection",
        "+info|server",
        "+info|replication",
        "+info|persistence",
        "+role",
        "+evalsha",
        "+eval",
        "+subscribe",
        "+unsubscribe",
        "+publish",
        "+time",
        "+exists",
        "+get",
        "+set",
        "+del",
        "+type",
        "+pexpire",
        "+pexpireat",
        "+pexpiretime",
        "+pttl",
        "+hget",
        "+hmget",
        "+hset",
        "+hdel",
        "+hexists",
        "+hincrby",
        "+zadd",
        "+zrem",
        "+zcard",
        "+zscore",
        "+zpopmin",
        "+zrank",
        "+zrange",
        "+zrangebyscore",
        "+zremrangebyscore",
        "+rpush",
        "+lpop",
        "+lrange",
        "+scan",
    ]);
    let findings = checked(&format!("redis://locks:secret@127.0.0.1:{}", server.port()));
    assert_eq!(severity(&findings, "memory"), Severity::Warning);
    assert_eq!(severity(&findings, "keys"), Severity::Good);
    assert_eq!(severity(&findings, "scripts"), Severity::Good);
    let bad = findings.iter().find(|finding| finding.severity == Severity::Bad);
    assert_eq!(bad, None, "{findings:?}");
    let text = format!("{findings:?}");
    assert!(text.contains("NOPERM") && !text.contains("secret"), "{text}");
}
