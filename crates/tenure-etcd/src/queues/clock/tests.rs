use tenure_testkit::etcd::EtcdCluster;

use super::*;
use crate::test_client::{connect, hasty, run, unique};

fn known(least: i128, most: i128) -> Known {
    let dial = Dial { lease: 1, base: Timestamp::from_micros(5_000_000), term: 1, epoch: 1 };
    Known { dial, least, most, at: Instant::from_nanos(0) }
}

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

#[test]
fn readings_close_in_on_the_time_and_never_pass_it() {
    // The lease was granted 300 ms after this machine's clock began; each reading takes 2 ms.
    let granted = 300_000;
    let mut known = known(i128::from(i64::MIN), i128::from(i64::MAX));
    let mut now = 4_000_000u64;
    for reading in 0..12 {
        let seconds = (now - granted).div_ceil(1_000_000);
        known = known.read(seconds as i64, at(now - 1000), at(now + 1000)).expect("no contradiction");
        let right = Timestamp::from_micros(5_000_000 + now + 1000 - granted);
        let moment = known.moment(at(now + 1000));
        assert!(moment.earliest <= right && right <= moment.latest, "{moment:?} {right:?}");
        if reading > 8 {
            assert!(moment.latest.since(moment.earliest) < Duration::from_millis(20), "{moment:?}");
        }
        now = known.next_reading(at(now + 1000)).nanos() / 1000;
    }
}

#[test]
fn a_lease_that_is_younger_than_before_contradicts() {
    let read = known(i128::from(i64::MIN), i128::from(i64::MAX)).read(50, at(60_000_000), at(60_001_000));
    assert!(read.is_some_and(|known| known.read(2, at(61_000_000), at(61_001_000)).is_none()));
}

fn clock(url: &str, key: &str) -> Arc<QueueClock> {
    Arc::new(QueueClock::new(connect(url), key.into(), format!("{key}none/").into_bytes()))
}

/// Asks until there is an answer.
async fn time(clock: &Arc<QueueClock>) -> Moment {
    loop {
        match clock.time().await {
            Ok(moment) => return moment,
            Err(_) => crate::client::endpoints::sleep(Duration::from_millis(100)).await,
        }
    }
}

#[test]
fn a_new_leader_means_a_new_clock_that_is_ahead_of_nobodys() {
    run(async {
        let cluster = EtcdCluster::start(&hasty());
        let (url, key) = (cluster.url(), unique("clock"));
        let old = clock(&url, &key);
        let before = time(&old).await;
        let began = now();
        assert_eq!(time(&clock(&url, &key)).await.epoch, before.epoch, "all have one clock");
        crate::client::endpoints::sleep(Duration::from_secs(3)).await;
        cluster.servers()[cluster.leader()].kill();
        let fresh = clock(&url, &key);
        let after = time(&fresh).await;
        assert_ne!(
            after.epoch, before.epoch,
            "the lease is as new for the new leader, and the clock is the old one"
        );
        let right = before.latest + now().since(began);
        assert!(after.latest <= right, "{after:?} is ahead of {right:?}");
        // A change by the old one is refused, and its client hears of the new one.
        old.forget(after.epoch);
        assert_eq!(time(&old).await.epoch, after.epoch);
    });
}
