use tenure_testkit::etcd::shared;

use super::*;
use crate::client::endpoints::{Endpoints, sleep};
use crate::client::proto::PutRequest;
use crate::test_client::{connect, get, put, run, soon, unique};

const MARGIN: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(20);

fn etcd_leases() -> (Endpoints, EtcdLeases) {
    let endpoints = connect(&shared());
    let etcd_leases = EtcdLeases::new(Leases::start(&endpoints), MARGIN);
    (endpoints, etcd_leases)
}

#[test]
fn entries_of_one_ttl_share_a_lease() {
    run(async {
        let (_, etcd_leases) = etcd_leases();
        let session_id = etcd_leases.of(TTL).await.unwrap();
        assert_eq!(etcd_leases.of(TTL).await.unwrap(), session_id);
        assert_eq!(
            etcd_leases.of(TTL - Duration::from_millis(300)).await.unwrap(),
            session_id,
            "rounded up to seconds"
        );
        assert_ne!(etcd_leases.of(TTL * 2).await.unwrap(), session_id);
    });
}

#[test]
fn entries_live_for_the_ttl_after_a_heartbeat_and_never_longer_than_the_margin_allows() {
    run(async {
        let (_, etcd_leases) = etcd_leases();
        let before = now();
        let session_id = etcd_leases.of(TTL).await.unwrap();
        let until = etcd_leases.heartbeat(session_id).await.unwrap().unwrap();
        assert!(until.since(before) >= TTL, "{:?}", until.since(before));
        // What is granted is the ttl and the margin; the margin is taken off again.
        assert!(until.since(now()) <= TTL, "{:?}", until.since(now()));
    });
}

#[test]
fn a_lease_that_somebody_revoked_is_noticed_and_replaced() {
    run(async {
        let (_, etcd_leases) = etcd_leases();
        let session_id = etcd_leases.of(TTL).await.unwrap();
        assert!(etcd_leases.heartbeat(session_id).await.unwrap().is_some());
        etcd_leases.revoke(lease_of(session_id)).await.unwrap();
        etcd_leases.check_ended(session_id).await;
        assert_eq!(etcd_leases.heartbeat(session_id).await.unwrap(), None);
        let next = etcd_leases.of(TTL).await.unwrap();
        assert_ne!(next, session_id);
        assert!(etcd_leases.heartbeat(next).await.unwrap().is_some());
        assert_eq!(etcd_leases.heartbeat(SessionId(1)).await.unwrap(), None, "nobody's");
    });
}

#[test]
fn ids_that_are_finished_share_a_lease_too() {
    run(async {
        let (_, etcd_leases) = etcd_leases();
        let done = etcd_leases.done().await.unwrap();
        assert_eq!(etcd_leases.done().await.unwrap(), done);
    });
}

mod alone {
    use super::*;

    /// A lease of 2 s, of which no heartbeat is sent but for the other.
    #[test]
    fn a_companion_lives_on_with_the_heartbeats_of_the_other() {
        run(async {
            let (endpoints, etcd_leases) = etcd_leases();
            let session_id = etcd_leases.of(Duration::from_millis(500)).await.unwrap();
            let companion = etcd_leases.of(Duration::from_millis(1500)).await.unwrap();
            etcd_leases.accompany(session_id, companion).await;
            let key = unique("companion");
            let on_it = PutRequest { lease: lease_of(companion), ..put(&key, "") };
            endpoints.call(on_it, soon()).await.unwrap();
            let until = now() + Duration::from_secs(6);
            while now() < until {
                assert!(etcd_leases.heartbeat(session_id).await.unwrap().is_some());
                sleep(Duration::from_millis(400)).await;
            }
            assert_eq!(endpoints.call(get(&key), soon()).await.unwrap().kvs.len(), 1);
        });
    }

    /// An entry is not put on a lease that is about to end.
    #[test]
    fn a_lease_that_nobody_used_for_a_while_is_asked_before_it_is_used() {
        run(async {
            let (_, etcd_leases) = etcd_leases();
            let session_id = etcd_leases.of(MARGIN).await.unwrap();
            sleep(Duration::from_millis(1500)).await;
            assert_eq!(etcd_leases.of(MARGIN).await.unwrap(), session_id, "it was kept alive");
            let left = etcd_leases.heartbeat(session_id).await.unwrap().unwrap().since(now());
            assert!(left > MARGIN / 2, "{left:?}");
            sleep(Duration::from_secs(4)).await;
            assert_ne!(etcd_leases.of(MARGIN).await.unwrap(), session_id, "it has ended");
        });
    }
}
