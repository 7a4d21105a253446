use std::time::Duration;

use tenure_core::error::ErrorKind;
use tenure_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdServer, shared, shared_cluster};

use super::*;
use crate::client::proto::{
    AlarmRequest, Answered, Compare, CompareResult, MemberListRequest, Operation, RangeRequest, SortOrder,
    SortTarget, Target, end_of_prefix,
};
use crate::test_client::{connect, get, hasty, put, run, soon, txn, unique, within};

/// What a client gives a call.
const CALL: Duration = Duration::from_secs(2);

async fn value(endpoints: &Endpoints, key: &str) -> Option<String> {
    let answer = endpoints.call(get(key), soon()).await.unwrap();
    answer.kvs.first().map(|kv| String::from_utf8(kv.value.clone()).unwrap())
}

/// The server of a connection.
fn serving<'a>(cluster: &'a EtcdCluster, wire: &Wire) -> &'a EtcdServer {
    let serves = |server: &&EtcdServer| wire.endpoint().ends_with(&format!(":{}", server.port()));
    cluster.servers().iter().find(serves).unwrap()
}

/// Repeats a call until it is answered: it does no harm.
async fn insist(endpoints: &Endpoints, key: &str) {
    let until = soon();
    while let Err(fault) = endpoints.call(put(key, "x"), within(CALL)).await {
        assert!(Instant::now() < until, "{fault}");
    }
}

#[test]
fn a_transaction_and_those_in_it_have_one_revision() {
    run(async {
        let endpoints = connect(&shared());
        let at = unique("txn");
        let (one, two, three) = (format!("{at}1"), format!("{at}2"), format!("{at}3"));
        let inner = txn([Compare::is_absent(two.as_str())], [Operation::Put(put(&two, "b"))], []);
        let outer = txn(
            [Compare::is_absent(one.as_str())],
            [Operation::Put(put(&one, "a")), Operation::Txn(inner), Operation::Range(get(&one))],
            [Operation::Range(get(&one))],
        );
        let answer = endpoints.call(outer.clone(), soon()).await.unwrap();
        let revision = answer.header.unwrap().revision;
        assert!(answer.succeeded);
        let Some(Answered::Txn(inner)) = &answer.responses[1].response else { panic!("{answer:?}") };
        assert!(inner.succeeded && inner.responses.len() == 1);
        let Some(Answered::Range(range)) = &answer.responses[2].response else { panic!("{answer:?}") };
        assert_eq!(range.kvs[0].create_revision, revision, "it sees what it has written");

        endpoints.call(put(&three, "c"), soon()).await.unwrap();
        let all = RangeRequest {
            range_end: end_of_prefix(at.as_bytes()),
            sort_order: SortOrder::Descend.into(),
            sort_target: SortTarget::Create.into(),
            ..get(&at)
        };
        let found = endpoints.call(all.clone(), soon()).await.unwrap();
        let revisions: Vec<i64> = found.kvs.iter().map(|kv| kv.create_revision).collect();
        assert_eq!(revisions, [revision + 1, revision, revision]);
        let bounded = RangeRequest { max_create_revision: revision, limit: 1, keys_only: true, ..all };
        let found = endpoints.call(bounded, soon()).await.unwrap();
        assert!(found.kvs.len() == 1 && found.kvs[0].value.is_empty() && found.count == 3);

        // The second time, the first key is there.
        let answer = endpoints.call(outer, soon()).await.unwrap();
        assert!(!answer.succeeded && answer.responses.len() == 1);
    });
}

#[test]
fn every_field_of_a_key_is_compared() {
    run(async {
        let endpoints = connect(&shared());
        let at = unique("compare");
        let revision = endpoints.call(put(&at, "b"), soon()).await.unwrap().header.unwrap().revision;
        use CompareResult::{Equal, Greater, Less, NotEqual};
        for (result, with, expected) in [
            (Equal, Target::Version(1), true),
            (Less, Target::Version(1), false),
            (Equal, Target::Create(revision), true),
            (Greater, Target::Mod(revision - 1), true),
            (NotEqual, Target::Mod(revision), false),
            (Less, Target::Value(b"c".to_vec()), true),
            (Equal, Target::Value(b"c".to_vec()), false),
            (Equal, Target::Lease(0), true),
        ] {
            let request = txn([Compare::of(at.as_str(), result, with.clone())], [], []);
            assert_eq!(
                endpoints.call(request, soon()).await.unwrap().succeeded,
                expected,
                "{result:?} {with:?}"
            );
        }
        let range = |with| {
            let compare = Compare::of(at.as_str(), Less, with);
            txn([Compare { range_end: end_of_prefix(at.as_bytes()), ..compare }], [], [])
        };
        assert!(endpoints.call(range(Target::Create(revision + 1)), soon()).await.unwrap().succeeded);
        assert!(!endpoints.call(range(Target::Create(revision)), soon()).await.unwrap().succeeded);
    });
}

#[test]
fn a_cluster_says_what_it_is() {
    run(async {
        let endpoints = connect(&shared_cluster());
        let seen = endpoints.ask_each(soon()).await;
        let statuses: Vec<StatusResponse> = seen.into_iter().map(|seen| seen.status.unwrap()).collect();
        assert!(statuses.len() == 3 && statuses.iter().all(|status| status.leader == statuses[0].leader));
        assert!(statuses[0].version.starts_with("3.") && statuses[0].db_size > 0);
        let members = endpoints.call(MemberListRequest::default(), soon()).await.unwrap().members;
        assert!(members.len() == 3 && members.iter().any(|member| member.id == statuses[0].leader));
        assert_eq!(endpoints.call(AlarmRequest::default(), soon()).await.unwrap().alarms, []);
    });
}

#[test]
fn what_nobody_answers_names_who_was_asked() {
    let server = EtcdServer::start(&EtcdOptions::default());
    server.kill();
    run(async {
        let fault = connect(&server.url()).call(get("a"), within(CALL)).await.unwrap_err();
        assert!(!fault.is_outcome_unknown() && fault.to_string().contains("refused"), "{fault}");
        assert!(fault.to_string().contains(&server.port().to_string()));
        assert_eq!(fault.to_error("claim").kind(), ErrorKind::Unavailable);
    });
}

#[test]
fn users_and_tls_are_asked_for_and_given() {
    let server = EtcdServer::start(&EtcdOptions::default().login("tenure", "secret").tls());
    let at = server.url().replace("tenure:secret@", "");
    let with = |login: &str| {
        format!("{}?ca={}", at.replace("://", &format!("://{login}")), server.authority().display())
    };
    run(async {
        let endpoints = connect(&with("tenure:secret@"));
        endpoints.call(put("a", "1"), soon()).await.unwrap();
        for (login, words, kind) in [
            ("tenure:wrong-secret@", "authentication failed", ErrorKind::Invalid),
            ("", "user name is empty", ErrorKind::Invalid),
        ] {
            let fault = connect(&with(login)).call(put("a", "1"), soon()).await.unwrap_err();
            assert!(fault.to_string().contains(words), "{fault}");
            assert_eq!(fault.to_error("claim").kind(), kind);
            assert!(!fault.to_string().contains("secret"));
        }
        let fault = connect(&server.url()).call(get("a"), within(CALL)).await.unwrap_err();
        assert!(fault.to_string().contains("certificate"), "nobody trusts the authority: {fault}");

        // A restart forgets the tokens.
        server.restart();
        insist(&endpoints, "a").await;
        server.ctl(&["role", "revoke-permission", "--prefix=true", "every-key", ""]);
        let fault = endpoints.call(put("a", "1"), soon()).await.unwrap_err();
        assert!(fault.to_string().contains("permission denied") && !fault.is_outcome_unknown(), "{fault}");
        assert_eq!(fault.to_error("claim").kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn a_token_that_has_expired_is_replaced_without_a_fault() {
    let options = EtcdOptions::default().login("tenure", "secret").flag("--auth-token-ttl=1");
    let server = EtcdServer::start(&options);
    run(async {
        let endpoints = connect(&server.url());
        let wire = endpoints.wire(soon()).await.unwrap();
        let token = wire.token();
        for round in 0.. {
            assert!(round < 20, "a token that does not expire");
            sleep(Duration::from_millis(1500)).await;
            endpoints.call(put("a", "1"), soon()).await.unwrap();
            if wire.token() != token {
                break;
            }
        }
    });
}

#[test]
fn a_user_of_a_server_without_users_is_told_so() {
    run(async {
        let url = shared().replace("://", "://ann:secret@");
        let fault = connect(&url).call(get("a"), soon()).await.unwrap_err();
        assert!(fault.to_string().contains("authentication is not enabled"), "{fault}");
        assert_eq!(fault.to_error("connect").kind(), ErrorKind::Invalid);
    });
}

#[test]
fn a_server_without_space_says_what_to_do() {
    let server = EtcdServer::start(&EtcdOptions::default().flag("--quota-backend-bytes=1000000"));
    run(async {
        let endpoints = connect(&server.url());
        let large = "x".repeat(200_000);
        let until = soon();
        // The file grows with what is written to it each 100 ms.
        let fault = loop {
            assert!(Instant::now() < until, "a quota that is never full");
            match endpoints.call(put("large", &large), soon()).await {
                Ok(_) => sleep(Duration::from_millis(20)).await,
                Err(fault) => break fault,
            }
        };
        assert!(fault.is_full() && fault.is_outcome_unknown(), "{fault}");
        let error = fault.to_error("claim");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.hint().unwrap().contains("disarm"), "{error}");
        assert!(value(&endpoints, "large").await.is_some(), "it can be read");
        let alarms = endpoints.call(AlarmRequest::default(), soon()).await.unwrap().alarms;
        assert_eq!(alarms[0].alarm, crate::client::proto::AlarmType::NoSpace as i32);
    });
}

#[test]
fn a_call_to_a_stopped_endpoint_fails_in_time_and_the_next_one_goes_elsewhere() {
    let cluster = EtcdCluster::start(&hasty());
    run(async {
        let endpoints = connect(&cluster.url());
        insist(&endpoints, "a").await;
        let before = endpoints.wire(soon()).await.unwrap();
        let used = serving(&cluster, &before);
        used.stop();
        let fault = endpoints.call(put("a", "2"), within(Duration::from_millis(300))).await.unwrap_err();
        assert!(matches!(fault, Fault::Silent { .. }) && fault.is_outcome_unknown(), "{fault}");
        assert_eq!(fault.to_error("claim").kind(), ErrorKind::Unavailable);
        let after = endpoints.wire(soon()).await.unwrap();
        assert_ne!(after.endpoint(), before.endpoint());
        insist(&endpoints, "a").await;
        used.cont();
    });
}

#[test]
fn a_killed_endpoint_is_replaced() {
    let cluster = EtcdCluster::start(&hasty());
    run(async {
        let endpoints = connect(&cluster.url());
        for round in 0..2 {
            insist(&endpoints, "a").await;
            let wire = endpoints.wire(soon()).await.unwrap();
            let used = serving(&cluster, &wire);
            used.kill();
            insist(&endpoints, "a").await;
            assert_ne!(endpoints.wire(soon()).await.unwrap().endpoint(), wire.endpoint(), "{round}");
            used.restart();
        }
    });
}

#[test]
fn an_endpoint_without_a_leader_is_left() {
    let cluster = EtcdCluster::start_separable(&hasty());
    run(async {
        let endpoints = connect(&cluster.url());
        insist(&endpoints, "a").await;
        cluster.cut_off(0);
        insist(&endpoints, "a").await;
        let wire = endpoints.wire(soon()).await.unwrap();
        assert_ne!(wire.endpoint(), format!("127.0.0.1:{}", cluster.servers()[0].port()));
        // It cannot be used at all.
        let alone = connect(&cluster.servers()[0].url());
        let fault = alone.call(get("a"), within(CALL)).await.unwrap_err();
        assert!(fault.to_string().contains("knows no leader"), "{fault}");
        cluster.heal();
        insist(&alone, "a").await;
    });
}

#[test]
fn a_new_leader_is_no_fault_for_those_who_repeat() {
    let cluster = EtcdCluster::start(&hasty());
    run(async {
        let endpoints = connect(&cluster.url());
        for to in [1, 2, 0] {
            cluster.move_leader(to);
            insist(&endpoints, "a").await;
        }
    });
}

#[test]
fn callers_who_wait_for_one_another_all_learn_why() {
    let server = EtcdServer::start(&EtcdOptions::default());
    server.kill();
    run(async {
        let endpoints = connect(&server.url());
        let calls = (0..8).map(|_| {
            let endpoints = endpoints.clone();
            tokio::spawn(async move {
                endpoints.call(get("a"), within(Duration::from_millis(500))).await.unwrap_err()
            })
        });
        for call in calls.collect::<Vec<_>>() {
            let fault = call.await.unwrap();
            assert!(fault.to_string().contains("refused"), "{fault}");
        }
    });
}

#[test]
fn an_endpoint_is_found_although_no_caller_waits_until_it_is() {
    let server = EtcdServer::start(&EtcdOptions::default());
    let proxy = tenure_testkit::Proxy::start(([127, 0, 0, 1], server.port()));
    proxy.delay(Duration::from_millis(50));
    run(async {
        let endpoints = connect(&format!("etcd://127.0.0.1:{}", proxy.port()));
        let until = soon();
        while tokio::time::timeout(Duration::from_millis(20), endpoints.wire(soon())).await.is_err() {
            assert!(Instant::now() < until, "each caller begins anew");
        }
    });
}

mod alone {
    use super::*;

    #[test]
    fn silent_endpoints_cost_little() {
        let server = EtcdServer::start(&EtcdOptions::default());
        let silent = || {
            let proxy = tenure_testkit::Proxy::start(([127, 0, 0, 1], server.port()));
            proxy.black_hole();
            proxy
        };
        let proxies = [silent(), silent()];
        let url = format!(
            "etcd://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}",
            proxies[0].port(),
            proxies[1].port(),
            server.port()
        );
        run(async {
            let began = Instant::now();
            connect(&url).call(put("a", "1"), soon()).await.unwrap();
            let took = began.elapsed();
            assert!(took >= STAGGER * 2 && took < STAGGER * 2 + Duration::from_millis(250), "{took:?}");
        });
    }
}
