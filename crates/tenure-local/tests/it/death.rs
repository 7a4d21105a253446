//! What a machine knows and a network does not: who is dead.

use tenure_core::claim::ClaimId;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{ClaimAnswer, ReleaseAnswer};

use crate::child::Process;
use crate::world::{Client, TestDirectory, run};

#[test]
fn two_clients_of_one_process_exclude_each_other_and_hand_over() {
    let directory = TestDirectory::new();
    run(async {
        let a = Client::connect(&directory.place()).await;
        let mut b = Client::connect(&directory.place()).await;
        let (claim, token) = a.take("m").await;
        assert!(matches!(b.try_mutex("m").await.1, ClaimAnswer::Busy(_)));
        let waiting = b.queue("m").await;
        assert_eq!(a.release("m", claim).await, ReleaseAnswer::Released);
        assert!(b.granted("m", waiting).await > token);
        assert_eq!(b.release("m", waiting).await, ReleaseAnswer::Released);
        assert_eq!(b.release("m", ClaimId::new(1)).await, ReleaseAnswer::AlreadyLost);
        assert!(directory.boot().join("data.mdb").exists());
    });
}

#[test]
fn what_a_killed_holder_held_is_free_at_once() {
    let directory = TestDirectory::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let mut there = Process::start(&directory.place());
        assert!(there.ask("try m").starts_with("granted"));
        assert!(matches!(here.try_mutex("m").await.1, ClaimAnswer::Busy(_)));
        there.kill();
        here.take("m").await;
    });
}

#[test]
fn a_waiter_runs_within_milliseconds_of_the_death_of_the_holder() {
    let directory = TestDirectory::new();
    let mut times = Vec::new();
    for _ in 0..10 {
        let mut holder = Process::start(&directory.place());
        let mut waiter = Process::start(&directory.place());
        assert!(holder.ask("try m").starts_with("granted"));
        assert_eq!(waiter.ask("wait m"), "waiting");
        let killed_at = SystemClock.now().nanos();
        holder.kill();
        let answer = waiter.read();
        let woken_at: u64 = answer.strip_prefix("woken ").unwrap().parse().unwrap();
        times.push((woken_at - killed_at) / 1000);
        assert_eq!(waiter.ask("release m"), "Released");
    }
    times.sort_unstable();
    println!("from the kill of the holder to the next one running, us: {times:?}");
    assert!(times[5] < 500_000);
}
