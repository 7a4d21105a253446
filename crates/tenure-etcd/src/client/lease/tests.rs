use tenure_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdServer, shared};

use super::*;
use crate::client::endpoints::sleep;
use crate::client::proto::PutRequest;
use crate::test_client::{connect, get, hasty, put, run, soon, unique, within};

/// What a client gives a call.
const CALL: Duration = Duration::from_secs(2);

async fn keeps(leases: &Leases, id: i64) -> Duration {
    let until = soon();
    loop {
        match leases.keep_alive(id, within(CALL)).await {
            Ok(ttl) => return ttl,
            Err(fault) => {
                assert!(Instant::now() < until && !matches!(fault, Fault::NoLease { .. }), "{fault}")
            }
        }
    }
}

#[test]
fn a_lease_takes_its_keys_with_it() {
    run(async {
        let endpoints = connect(&shared());
        let leases = Leases::start(&endpoints);
        let granted = leases.grant(Duration::from_millis(59_001), soon()).await.unwrap();
        assert_eq!(granted.ttl, Duration::from_secs(60));
        let key = unique("lease");
        let on_it = PutRequest { lease: granted.id, ..put(&key, "a") };
        endpoints.call(on_it.clone(), soon()).await.unwrap();
        let found = endpoints.call(get(&key), soon()).await.unwrap().kvs;
        assert_eq!(found.iter().map(|kv| kv.lease).collect::<Vec<_>>(), [granted.id]);
        leases.revoke(granted.id, soon()).await.unwrap();
        assert_eq!(endpoints.call(get(&key), soon()).await.unwrap().kvs, []);
        let gone = Fault::NoLease { id: granted.id };
        assert_eq!(leases.revoke(granted.id, soon()).await.unwrap_err(), gone);
        assert_eq!(leases.keep_alive(granted.id, soon()).await.unwrap_err(), gone);
        assert!(endpoints.call(on_it, soon()).await.unwrap_err().is_no_lease());
    });
}

#[test]
fn many_keep_alives_at_once_have_each_their_answer() {
    run(async {
        let leases = Leases::start(&connect(&shared()));
        let mut ids = Vec::new();
        for seconds in 100..120 {
            ids.push((leases.grant(Duration::from_secs(seconds), soon()).await.unwrap().id, seconds));
        }
        let asked = ids.iter().map(|(id, seconds)| {
            let (leases, id, seconds) = (leases.clone(), *id, *seconds);
            tokio::spawn(async move {
                for _ in 0..10 {
                    assert_eq!(leases.keep_alive(id, soon()).await.unwrap().as_secs(), seconds);
                }
            })
        });
        for asked in asked.collect::<Vec<_>>() {
            asked.await.unwrap();
        }
        for (id, _) in ids {
            leases.revoke(id, soon()).await.unwrap();
        }
    });
}

#[test]
fn a_server_that_is_gone_for_a_while_keeps_the_lease() {
    let server = EtcdServer::start(&EtcdOptions::default());
    run(async {
        let leases = Leases::start(&connect(&server.url()));
        let id = leases.grant(Duration::from_secs(30), soon()).await.unwrap().id;
        keeps(&leases, id).await;
        server.stop();
        let fault = leases.keep_alive(id, within(Duration::from_millis(300))).await.unwrap_err();
        assert_eq!(fault.to_error("renew").kind(), tenure_core::error::ErrorKind::Unavailable);
        server.cont();
        keeps(&leases, id).await;
        server.kill();
        leases.keep_alive(id, within(Duration::from_millis(300))).await.unwrap_err();
        server.restart();
        keeps(&leases, id).await;
    });
}

#[test]
fn keep_alives_go_on_at_another_endpoint_and_with_another_leader() {
    let cluster = EtcdCluster::start(&hasty());
    run(async {
        let leases = Leases::start(&connect(&cluster.url()));
        let id = leases.grant(Duration::from_secs(60), soon()).await.unwrap().id;
        for leader in [1, 0] {
            cluster.move_leader(leader);
            keeps(&leases, id).await;
        }
        // The leader, and the one in use.
        cluster.servers()[0].kill();
        assert_eq!(keeps(&leases, id).await, Duration::from_secs(60));
    });
}

mod alone {
    use super::*;

    #[test]
    fn a_lease_that_nobody_keeps_alive_expires_with_its_keys() {
        run(async {
            let endpoints = connect(&shared());
            let leases = Leases::start(&endpoints);
            let granted = leases.grant(Duration::from_secs(1), soon()).await.unwrap();
            assert!(granted.ttl >= Duration::from_secs(1), "no less than an election: {granted:?}");
            let key = unique("expiry");
            let on_it = PutRequest { lease: granted.id, ..put(&key, "a") };
            endpoints.call(on_it, soon()).await.unwrap();
            for _ in 0..5 {
                sleep(granted.ttl / 2).await;
                leases.keep_alive(granted.id, soon()).await.unwrap();
            }
            assert_eq!(endpoints.call(get(&key), soon()).await.unwrap().kvs.len(), 1);
            let began = Instant::now();
            while !endpoints.call(get(&key), soon()).await.unwrap().kvs.is_empty() {
                sleep(Duration::from_millis(20)).await;
            }
            let lasted = began.elapsed();
            // The server finds expired leases each 500 ms.
            assert!(lasted < granted.ttl + Duration::from_millis(1500), "{lasted:?}");
            assert_eq!(
                leases.keep_alive(granted.id, soon()).await.unwrap_err(),
                Fault::NoLease { id: granted.id }
            );
        });
    }

    /// The length of an election, here.
    const ELECTION: Duration = Duration::from_millis(500);

    /// A leader that is cut off does not know it at once. What it promises meanwhile, the next one does not know.
    #[test]
    fn a_leader_that_is_cut_off_promises_less_than_two_elections_too_much() {
        let cluster = EtcdCluster::start_separable(&hasty());
        run(async {
            let leader = cluster.leader();
            let there = connect(&cluster.servers()[leader].url());
            let elsewhere = connect(&cluster.servers()[(leader + 1) % 3].url());
            let leases = Leases::start(&there);
            let granted = leases.grant(Duration::from_secs(3), soon()).await.unwrap();
            let on_it = PutRequest { lease: granted.id, ..put("k", "a") };
            there.call(on_it, soon()).await.unwrap();
            cluster.cut_off(leader);
            let cut = Instant::now();
            let mut promised = cut;
            loop {
                let asked = Instant::now();
                match leases.keep_alive(granted.id, within(ELECTION)).await {
                    Ok(ttl) => promised = asked + ttl,
                    Err(fault) => break assert!(!matches!(fault, Fault::NoLease { .. }), "{fault}"),
                }
            }
            loop {
                match elsewhere.call(get("k"), within(CALL)).await {
                    Ok(answer) if answer.kvs.is_empty() => break,
                    _ => sleep(Duration::from_millis(10)).await,
                }
            }
            let gone = cut.elapsed();
            assert!(gone + ELECTION * 2 > promised - cut, "{gone:?} {:?}", promised - cut);
        });
    }
}
