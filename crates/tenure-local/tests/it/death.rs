//! What a machine knows and a network does not: who is dead.

use std::time::Duration;

use rustix::process::{Pid, Signal};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{ClaimAnswer, Engine, ReleaseAnswer, RenewAnswer, Wake};
use tenure_core::error::ErrorKind;
use tenure_core::model::claim::{ClaimId, Kind};
use tenure_core::testing::busy::assert_in_time;

use crate::child::Process;
use crate::world::{Client, PATIENCE, TestPlace, claim_of, run};

/// Longer than this, and not the death was noticed but a heartbeat came or a ttl ended.
const AT_ONCE_US: u64 = 500_000;

/// Every place at which a claim or a release can be killed.
const FAILPOINTS: [&str; 5] = [
    "local.before_begin",
    "local.in_transaction",
    "local.before_commit",
    "local.after_commit",
    "local.before_bell",
];

/// Every place at which connecting to a new directory can be killed.
const SETUP_FAILPOINTS: [&str; 7] = [
    "local.in_setup",
    "local.before_gate",
    "local.before_format",
    "local.before_data",
    "local.before_birth",
    "local.before_life",
    "local.before_listen",
];

fn since(start: u64, end: u64) -> u64 {
    (end - start) / 1000
}

#[test]
fn two_clients_of_one_process_exclude_each_other_and_hand_over() {
    let directory = TestPlace::new();
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
    });
}

#[test]
fn what_a_killed_holder_held_is_free_at_once() {
    let directory = TestPlace::new();
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
fn what_a_closed_client_held_is_free_at_once() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let there = Client::connect(&directory.place()).await;
        there.take("m").await;
        drop(there);
        here.take("m").await;
        let mut process = Process::start(&directory.place());
        assert!(process.ask("try n").starts_with("granted"));
        process.tell("exit");
        assert_eq!(process.read(), "");
        here.take("n").await;
    });
}

/// How soon the next one runs, by half of so many deaths. Half of them: a timer that is longer than twice that is found out, whatever its phase.
const NEXT_RUNS_IN: Duration = Duration::from_millis(20);
const DEATHS: usize = 12;

// page: docs/operating/performance.md "next waiter running"
#[test]
fn a_waiter_runs_within_20_ms_of_the_death_of_the_holder() {
    let directory = TestPlace::new();
    let mut best = Duration::MAX;
    // Another one's work takes a processor for some of these times, and not for all of them.
    for _ in 0..10 {
        let mut times: Vec<Duration> = (0..DEATHS)
            .map(|_| {
                let mut holder = Process::start(&directory.place());
                let mut waiter = Process::start(&directory.place());
                assert!(holder.ask("try m").starts_with("granted"));
                assert_eq!(waiter.ask("wait m"), "waiting");
                let killed_at = SystemClock.now().nanos();
                holder.kill();
                let took = Duration::from_micros(since(killed_at, waiter.woken()));
                assert_eq!(waiter.ask("release m"), "Released");
                took
            })
            .collect();
        times.sort_unstable();
        println!("from the kill of the holder to the next one running: {times:?}");
        best = best.min(times[DEATHS / 2]);
        if best <= NEXT_RUNS_IN {
            return;
        }
    }
    assert_in_time(best, NEXT_RUNS_IN);
}

#[test]
fn a_dead_waiter_is_skipped() {
    let directory = TestPlace::new();
    run(async {
        let holder = Client::connect(&directory.place()).await;
        let (held, _) = holder.take("m").await;
        let mut first = Process::start(&directory.place());
        let mut second = Process::start(&directory.place());
        let mut third = Process::start(&directory.place());
        for waiter in [&mut first, &mut second, &mut third] {
            assert_eq!(waiter.ask("wait m"), "waiting");
        }
        // The middle one first: nobody but the third has a reason to look.
        second.kill();
        first.kill();
        let released_at = SystemClock.now().nanos();
        holder.release("m", held).await;
        assert!(since(released_at, third.woken()) < AT_ONCE_US);
    });
}

#[test]
fn all_but_the_last_waiter_may_die_with_the_holder() {
    let directory = TestPlace::new();
    let mut processes: Vec<_> = (0..5).map(|_| Process::start(&directory.place())).collect();
    assert!(processes[0].ask("try m").starts_with("granted"));
    for waiter in &mut processes[1..] {
        assert_eq!(waiter.ask("wait m"), "waiting");
    }
    let mut last = processes.pop().unwrap();
    let killed_at = SystemClock.now().nanos();
    processes.into_iter().for_each(Process::kill);
    assert!(since(killed_at, last.woken()) < AT_ONCE_US);
}

#[test]
fn the_head_of_the_queue_watches_every_holder() {
    let directory = TestPlace::new();
    run(async {
        let mut holders: Vec<_> = (0..3).map(|_| Process::start(&directory.place())).collect();
        for holder in &mut holders {
            assert!(holder.ask("semaphore s 3").starts_with("granted"));
        }
        let mut first = Process::start(&directory.place());
        assert_eq!(first.ask("semaphore s 3"), "waiting");
        let mut here = Client::connect(&directory.place()).await;
        let claim = claim_of(here.id, "s", true, Kind::Semaphore, 3);
        let waiting = claim.id;
        assert!(matches!(here.claim(claim).await.unwrap(), ClaimAnswer::Waiting(..)));
        // The first waiter gets the units of the last holder; then this one is the head, and its first answer
        // told it to watch only the one ahead.
        assert_eq!(holders[2].ask("release s"), "Released");
        first.woken();
        let killed_at = SystemClock.now().nanos();
        holders.remove(0).kill();
        here.granted("s", waiting).await;
        assert!(since(killed_at, SystemClock.now().nanos()) < AT_ONCE_US);
    });
}

#[test]
fn a_waiter_that_moved_up_watches_the_holder() {
    let directory = TestPlace::new();
    run(async {
        let mut here = Client::connect(&directory.place()).await;
        let mut holder = Process::start(&directory.place());
        let mut ahead = Process::start(&directory.place());
        assert!(holder.ask("try m").starts_with("granted"));
        assert_eq!(ahead.ask("wait m"), "waiting");
        let waiting = here.queue("m").await;
        assert_eq!(ahead.ask("release m"), "Released");
        let look = here.wake().await;
        assert_eq!(look, Wake::Look(waiting));
        assert!(matches!(here.renew("m", waiting, true).await, RenewAnswer::Waiting(..)));
        let killed_at = SystemClock.now().nanos();
        holder.kill();
        here.granted("m", waiting).await;
        assert!(since(killed_at, SystemClock.now().nanos()) < AT_ONCE_US);
    });
}

#[test]
fn what_is_granted_to_the_dead_is_ended_by_whoever_granted_it() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let (held, _) = here.take("m").await;
        let mut waiter = Process::start(&directory.place());
        assert_eq!(waiter.ask("wait m"), "waiting");
        waiter.kill();
        // Nobody else asks for it, and nobody connects.
        here.release("m", held).await;
        let until = SystemClock.now() + PATIENCE;
        while here.engine.rows().unwrap() > 1 {
            assert!(SystemClock.now() < until);
        }
    });
}

#[test]
fn a_client_lives_as_long_as_any_process_that_shares_its_life() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let mut holder = Process::start(&directory.place());
        let mut waiter = Process::start(&directory.place());
        assert!(holder.ask("try m").starts_with("granted"));
        let keeper: i32 = holder.ask("keeper").parse().unwrap();
        assert_eq!(waiter.ask("wait m"), "waiting");
        holder.kill();
        for _ in 0..20 {
            assert!(matches!(here.try_mutex("m").await.1, ClaimAnswer::Busy(_)));
        }
        let killed_at = SystemClock.now().nanos();
        rustix::process::kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
        assert!(since(killed_at, waiter.woken()) < AT_ONCE_US);
    });
}

#[test]
fn a_client_that_is_closed_leaves_its_life_to_those_who_share_it() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let there = Client::connect(&directory.place()).await;
        there.take("m").await;
        let shared = there.engine.share_life(std::process::id()).unwrap().unwrap();
        drop(there);
        assert!(matches!(here.try_mutex("m").await.1, ClaimAnswer::Busy(_)));
        drop(shared);
        // A process that another test is starting just now has a copy of everything until it runs its program.
        let until = SystemClock.now() + PATIENCE;
        while matches!(here.try_mutex("m").await.1, ClaimAnswer::Busy(_)) {
            assert!(SystemClock.now() < until);
        }
    });
}

#[test]
fn a_forked_child_neither_lives_for_its_parent_nor_uses_its_client() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        let mut parent = Process::start(&directory.place());
        assert!(parent.ask("try m").starts_with("granted"));
        assert!(parent.ask("push q g item").starts_with("pushed"));
        let answer = parent.ask("fork");
        let (child, answer) = answer.split_once(' ').unwrap();
        // Of the claim, and of the push.
        assert_eq!(answer.matches("this process was forked").count(), 2, "{answer}");
        assert_eq!(here.stats("q").await.waiting, 1);
        assert!(answer.contains("connect in the child only"), "{answer}");
        assert!(parent.ask("try n").starts_with("granted"), "the parent goes on");
        assert!(matches!(here.try_mutex("m").await.1, ClaimAnswer::Busy(_)));
        parent.kill();
        let child = Pid::from_raw(child.parse().unwrap()).unwrap();
        assert!(rustix::process::test_kill_process(child).is_ok(), "the child lives on");
        here.take("m").await;
        rustix::process::kill_process(child, Signal::KILL).unwrap();
    });
}

#[test]
fn a_kill_during_a_claim_leaves_no_trace_or_a_hold_of_the_dead() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        for failpoint in FAILPOINTS {
            let mut there = Process::start(&directory.place());
            there.tell(&format!("at kill {failpoint}"));
            there.tell("try m");
            there.died();
            let (claim, _) = here.take("m").await;
            assert_eq!(here.release("m", claim).await, ReleaseAnswer::Released, "{failpoint}");
        }
    });
}

#[test]
fn a_kill_during_a_release_hands_over_all_the_same() {
    let directory = TestPlace::new();
    run(async {
        let mut here = Client::connect(&directory.place()).await;
        for failpoint in FAILPOINTS {
            let mut there = Process::start(&directory.place());
            assert!(there.ask("try m").starts_with("granted"));
            let waiting = here.queue("m").await;
            let killed_at = SystemClock.now().nanos();
            there.tell(&format!("at kill {failpoint}"));
            there.tell("release m");
            here.granted("m", waiting).await;
            assert!(since(killed_at, SystemClock.now().nanos()) < AT_ONCE_US, "{failpoint}");
            there.died();
            assert_eq!(here.release("m", waiting).await, ReleaseAnswer::Released);
        }
    });
}

#[test]
fn a_kill_while_connecting_leaves_a_place_that_works() {
    for failpoint in SETUP_FAILPOINTS {
        let directory = TestPlace::new();
        Process::start_to_die_at(failpoint, &directory.place()).died();
        let mut there = Process::start(&directory.place());
        assert!(there.ask("try m").starts_with("granted"), "{failpoint}");
        run(async {
            let here = Client::connect(&directory.place()).await;
            assert!(matches!(here.try_mutex("m").await.1, ClaimAnswer::Busy(_)), "{failpoint}");
        });
    }
}

#[test]
fn a_process_stopped_in_a_transaction_is_named() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        for failpoint in &FAILPOINTS[1..4] {
            let mut there = Process::start(&directory.place());
            there.tell(&format!("at stop {failpoint}"));
            there.tell("try m");
            there.stopped();
            let asked_at = SystemClock.now().nanos();
            let error = here.claim(here.request("n", false)).await.unwrap_err();
            let waited = since(asked_at, SystemClock.now().nanos());
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            let text = format!("{error:?}");
            assert!(
                text.contains(&format!("process {} ", there.pid())) && text.contains("stopped"),
                "{text}"
            );
            assert!(text.contains(&format!("kill -CONT {}", there.pid())), "{text}");
            assert!((1_900_000..3_000_000).contains(&waited), "{waited} us");
            there.signal(Signal::CONT);
            assert!(there.read().starts_with("granted"));
            let (claim, _) = here.take("n").await;
            here.release("n", claim).await;
            there.kill();
        }
    });
}

#[test]
fn a_process_stopped_outside_of_a_transaction_blocks_nobody() {
    let directory = TestPlace::new();
    run(async {
        let here = Client::connect(&directory.place()).await;
        for failpoint in ["local.before_begin", "local.before_bell"] {
            let mut there = Process::start(&directory.place());
            there.tell(&format!("at stop {failpoint}"));
            there.tell("try m");
            there.stopped();
            let (claim, _) = here.take("n").await;
            here.release("n", claim).await;
            let findings = here.engine.check().await;
            let clients = findings.iter().find(|finding| finding.what == "clients").unwrap();
            assert!(clients.found.contains(&there.pid().to_string()), "{clients:?}");
            there.kill();
        }
    });
}

#[test]
fn a_panic_in_a_transaction_is_an_answer() {
    let directory = TestPlace::new();
    let mut there = Process::start(&directory.place());
    there.tell("at panic local.in_transaction");
    let answer = there.ask("try m");
    assert!(answer.contains("internal") && answer.contains("a failpoint said so"), "{answer}");
    assert!(there.ask("try m").starts_with("granted"));
    // The gate is left, and the thread lives on, even where no panic was expected.
    there.tell("at panic local.before_commit");
    let answer = there.ask("try n");
    assert!(answer.contains("internal") && answer.contains("panicked"), "{answer}");
    let mut other = Process::start(&directory.place());
    assert!(other.ask("try n").starts_with("granted"), "nothing was stored");
    assert!(there.ask("try n").contains("Busy"));
}

#[test]
fn what_the_dead_leave_is_swept_by_the_next_who_connects() {
    let directory = TestPlace::new();
    let mut there = Process::start(&directory.place());
    for number in 0..100 {
        assert!(there.ask(&format!("try m{number}")).starts_with("granted"));
    }
    there.kill();
    let mut closed = Process::start(&directory.place());
    assert!(closed.ask("try n").starts_with("granted"));
    closed.tell("exit");
    assert_eq!(closed.read(), "");
    run(async {
        let here = Client::connect(&directory.place()).await;
        let until = SystemClock.now() + PATIENCE;
        while here.engine.rows().unwrap() > 1 {
            assert!(SystemClock.now() < until, "{} rows are left", here.engine.rows().unwrap());
            std::thread::yield_now();
        }
        for left in ["alive", "bell"] {
            let path = directory.boot().join(left);
            while std::fs::read_dir(&path).unwrap().count() > 1 {
                assert!(SystemClock.now() < until, "{left}: {:?}", std::fs::read_dir(&path).unwrap());
            }
        }
    });
}

#[test]
fn no_increment_is_lost_among_processes_that_are_killed() {
    let directory = TestPlace::new();
    let path = directory.path().join("number");
    std::fs::write(&path, "0").unwrap();
    let start = || {
        let mut process = Process::start(&directory.place());
        process.tell(&format!("count {} 100", path.display()));
        process
    };
    let mut processes: Vec<_> = (0..3).map(|_| start()).collect();
    let mut victims: Vec<_> = (0..6).map(|_| start()).collect();
    // Each is killed after a few increments, wherever it is just then.
    for (number, victim) in victims.iter_mut().enumerate() {
        for _ in 0..=number {
            assert_eq!(victim.read(), "counted");
        }
    }
    let mut counted: u32 = 0;
    for mut victim in victims {
        victim.signal(Signal::KILL);
        while victim.read() == "counted" {
            counted += 1;
        }
    }
    counted += (1..=6).sum::<u32>();
    for process in &mut processes {
        for _ in 0..100 {
            assert_eq!(process.read(), "counted");
            counted += 1;
        }
        assert_eq!(process.read(), "done");
    }
    let number: u32 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
    println!("{counted} increments were told of, {number} were done");
    // A victim may have been killed between the increment and the telling.
    assert!((counted..=counted + 6).contains(&number), "{counted} of {number}");
}
