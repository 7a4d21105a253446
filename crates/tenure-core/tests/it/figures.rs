//! The figures that users are told, each against what happens, or against the constant of which other tests show that it rules.
//! Whoever changes one finds its page by the text beside it.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use pollster::block_on;
use tenure_core::clock::{Clock, Instant};
use tenure_core::memory::{Flaw, Store, Verb};
use tenure_core::model::claim::{
    CAPACITY_MAX, LABEL_BYTES_MAX, NAME_BYTES_MAX, PERIOD_MAX, TTL_MAX, TTL_MIN, VALUE_BYTES_MAX, WAITERS_MAX,
};
use tenure_core::model::queue::item::{
    CONSUMER_LIFE, CONSUMER_LOOK, DEDUP_MEMORY, PAYLOAD_BYTES_MAX, REASON_BYTES_MAX,
};
use tenure_core::model::queue::step::STANDBY;
use tenure_core::model::record::{POSITION_EXACT_MAX, PlainRecord};
use tenure_core::model::step::{FINISHED_MEMORY, TOKEN_MEMORY, confirm_window, waiter_life};
use tenure_core::survey::NAMES_MAX;
use tenure_core::testing::virtual_clock::VirtualClock;
use tenure_core::{ErrorKind, Name, Settings, Tenure};

use crate::client::eventually;
use crate::nameless::Nameless;

const SECOND: Duration = Duration::from_secs(1);

/// A client of a store of its own, on a clock that stands, and how often it has renewed.
fn one() -> (VirtualClock, Tenure, Arc<Renewals>) {
    let (clock, renewals) = (VirtualClock::new(7), Arc::<Renewals>::default());
    let store = Store::with_flaw(Arc::new(clock.clone()), Some(renewals.clone()));
    let connecting = Tenure::start(store.connector(), Arc::new(clock.clone()), Settings::new());
    (clock, block_on(connecting).expect("connects"), renewals)
}

#[derive(Default)]
struct Renewals(AtomicUsize);

impl Flaw for Renewals {
    fn before(&self, _: &mut PlainRecord, verb: Verb<'_>) {
        self.0.fetch_add(usize::from(matches!(verb, Verb::Renew(_))), Ordering::SeqCst);
    }
}

// page: docs/concepts/lease.md "| `ttl` | 30 s"
// page: docs/primitives/queue.md "| 30 s | how long an item waits after its consumer has died"
#[test]
fn a_lease_lasts_for_30_seconds_less_the_margin_of_1_percent_and_2_milliseconds() {
    let (_clock, tenure, _) = one();
    let left = 30 * SECOND - Duration::from_millis(300) - Duration::from_millis(2);
    let queue = tenure.queue("q");
    block_on(queue.push("work").into_future()).expect("pushed");
    assert_eq!(block_on(tenure.mutex("m").acquire()).expect("free").expires_in(), left);
    assert_eq!(block_on(tenure.rw_lock("r").read().acquire()).expect("free").expires_in(), left);
    assert_eq!(block_on(tenure.semaphore("s", 2).acquire()).expect("free").expires_in(), left);
    assert_eq!(block_on(tenure.slot_pool("p", 2).acquire()).expect("free").expires_in(), left);
    assert_eq!(block_on(tenure.election("e").campaign()).expect("free").expires_in(), left);
    assert_eq!(block_on(queue.next()).expect("there is one").lease().expires_in(), left);
}

#[test]
fn a_lease_is_renewed_after_a_third_of_its_ttl_or_up_to_a_tenth_of_that_earlier() {
    for seed in 0..5 {
        let (clock, tenure, renewals) = one();
        let lease = block_on(tenure.mutex(&format!("m{seed}")).acquire()).expect("free");
        let before = lease.deadline();
        // 27 % to 33 % and the grain of the schedule.
        clock.advance(Duration::from_millis(8_900));
        #[allow(clippy::disallowed_methods, reason = "that another thread does nothing has no event")]
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(renewals.0.load(Ordering::SeqCst), 0, "not sooner");
        clock.advance(Duration::from_millis(1_150));
        eventually("it is renewed", || lease.deadline() > before);
        assert_eq!(renewals.0.load(Ordering::SeqCst), 1);
    }
}

// page: docs/concepts/backoff.md "less a random part of up to a tenth of that third"
#[test]
fn leases_that_were_granted_together_are_not_renewed_together() {
    const LEASES: usize = 100;
    let (clock, tenure, renewals) = one();
    let mutexes: Vec<_> = (0..LEASES).map(|at| tenure.mutex(&format!("m{at}"))).collect();
    let leases = block_on(join_all(mutexes.iter().map(|mutex| mutex.acquire())));
    assert!(leases.iter().all(Result::is_ok));
    let renewed = || renewals.0.load(Ordering::SeqCst);
    clock.advance(Duration::from_millis(9_500));
    eventually("some are renewed in the first half of that time", || renewed() > LEASES / 5);
    assert!(renewed() < LEASES * 4 / 5, "and others later: {}", renewed());
    clock.advance(Duration::from_millis(550));
    eventually("all are renewed", || renewed() == LEASES);
}

/// A store that does not answer one verb, from some moment on, and when it was asked.
struct Deaf {
    clock: VirtualClock,
    verb: &'static str,
    is_deaf: AtomicBool,
    asked_at: Mutex<Vec<Instant>>,
}

impl Deaf {
    fn start(verb: &'static str, is_deaf: bool) -> (VirtualClock, Tenure, Arc<Deaf>) {
        let clock = VirtualClock::new(7);
        let deaf = Deaf { clock: clock.clone(), verb, is_deaf: is_deaf.into(), asked_at: Mutex::default() };
        let deaf = Arc::new(deaf);
        let store = Store::with_flaw(Arc::new(clock.clone()), Some(deaf.clone()));
        let connecting = Tenure::start(store.connector(), Arc::new(clock.clone()), Settings::new());
        (clock, block_on(connecting).expect("connects"), deaf)
    }
}

impl Flaw for Deaf {
    fn hangs(&self, verb: &'static str, _: &Name) -> bool {
        let is_deaf = verb == self.verb && self.is_deaf.load(Ordering::SeqCst);
        if is_deaf {
            self.asked_at.lock().expect("no panic").push(self.clock.now());
        }
        is_deaf
    }
}

/// Polls a future while time passes, for as long as `goes_on`. Returns what it ended with.
fn while_time_passes<T>(
    clock: &VirtualClock,
    future: impl Future<Output = T>,
    mut goes_on: impl FnMut() -> bool,
) -> Option<T> {
    let mut future = std::pin::pin!(future);
    while goes_on() {
        if let Some(done) = block_on(futures_util::future::poll_immediate(&mut future)) {
            return Some(done);
        }
        #[allow(clippy::disallowed_methods, reason = "another thread's progress has no event to await")]
        std::thread::sleep(Duration::from_millis(1));
        // Where nobody waits for a time to come, the future has to be polled first.
        if clock.next_timer().is_some_and(|at| at > clock.now()) {
            clock.advance(Duration::from_millis(50));
        }
    }
    None
}

// page: docs/concepts/backoff.md "| a waiter's heartbeat | 15 s (the ttl if that is less)"
#[test]
fn a_waiter_that_is_not_answered_gives_up_after_15_seconds_or_its_ttl() {
    for (ttl, life) in [(30, 15), (9, 9)] {
        let (clock, tenure, _) = Deaf::start("heartbeat", true);
        let _held = block_on(tenure.mutex("m").ttl(TTL_MAX).acquire()).expect("free");
        let mut waiting = tenure.mutex("m").ttl(ttl * SECOND).acquire();
        assert!(block_on(waiting.answered()).is_none());
        let began = clock.now();
        let waited = while_time_passes(&clock, waiting, || true).expect("it ends");
        assert_eq!(waited.expect_err("nobody answers").kind(), ErrorKind::Unavailable);
        let took = clock.now().since(began);
        // It notices at the end of a request, which takes 2 s; and the thread of the client may lag behind the clock.
        assert!((life - 3) * SECOND < took && took < (life + 5) * SECOND, "{took:?}");
    }
}

// page: docs/concepts/backoff.md "an election whose `run` has led campaigns again after an error | 1 s, not random"
#[test]
fn an_election_campaigns_again_a_second_after_an_error() {
    let (clock, tenure, deaf) = Deaf::start("claim", false);
    let election = tenure.election("e").ttl(9 * SECOND);
    let led = election.run(async |term| {
        deaf.is_deaf.store(true, Ordering::SeqCst);
        tenure.break_hold("e", term.token(), true).await.expect("it is broken");
        std::future::pending::<()>().await;
    });
    let campaigns = || {
        let mut asked_at = deaf.asked_at.lock().expect("no panic").clone();
        // A campaign asks again and again for 2 s.
        asked_at.dedup_by(|later, earlier| later.since(*earlier) < SECOND / 2);
        asked_at
    };
    let ended = while_time_passes(&clock, led, || campaigns().len() < 3);
    assert!(ended.is_none(), "it campaigns for as long as nobody answers");
    for between in campaigns().windows(2).map(|two| two[1].since(two[0])) {
        // 2 s until an answer is given up, and one more.
        assert!((5 * SECOND / 2..6 * SECOND).contains(&between), "{between:?}");
    }
}

// page: docs/concepts/backoff.md "the answer timeout (2 s by default)"
#[test]
fn an_answer_is_waited_for_for_2_seconds() {
    let clock = VirtualClock::new(7);
    let connecting = Tenure::start(Nameless::connector(), Arc::new(clock.clone()), Settings::new());
    let tenure = block_on(connecting).expect("connects");
    let due = clock.now() + 2 * SECOND;
    let mut asking = Box::pin(async { tenure.view("silent").await });
    let mut ask = || block_on(futures_util::future::poll_immediate(&mut asking));
    assert!(ask().is_none());
    eventually("it is waited for until then", || clock.next_timer() == Some(due));
    clock.advance(2 * SECOND);
    let mut answer = None;
    eventually("it is given up", || {
        answer = answer.take().or_else(&mut ask);
        answer.is_some()
    });
    assert_eq!(answer.map(|answer| answer.expect_err("silence").kind()), Some(ErrorKind::Unavailable));
}

// page: docs/concepts/backoff.md "| an item of a queue is retried after a failure | 1 s, not random | 5 min |"
// page: docs/primitives/queue.md "| 10 | after how many deliveries an item becomes a dead letter"
#[test]
fn an_item_has_10_attempts_each_after_twice_the_time_up_to_5_minutes() {
    let (_clock, tenure, _) = one();
    let queue = tenure.queue("q");
    block_on(queue.push("work").into_future()).expect("pushed");
    let mut delays = Vec::new();
    loop {
        let delivery = block_on(queue.next()).expect("it is there");
        delays.push(delivery.retry_delay().as_secs());
        if block_on(delivery.retry_after(Duration::ZERO)).expect("settled") {
            break;
        }
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
    assert_eq!(block_on(queue.stats()).expect("stats").dead, 1);
}

// page: docs/concepts/backoff.md "every third of the confirm window (5 s, or the ttl if that is less): 1.7 s at most"
// page: docs/concepts/backoff.md "| an idle consumer of a queue | a look | every 5 s"
// page: docs/concepts/backoff.md "when something is due, one after the other at 250 ms"
#[test]
fn what_a_store_keeps_of_those_who_are_gone_lasts_as_the_pages_say() {
    // A grant that its waiter has not heard of, and a waiter that is not heard of: the ttl where that is less.
    for (ttl, window, life) in [(1, 1, 1), (9, 5, 9), (30, 5, 15)] {
        let ttl = ttl * SECOND;
        assert_eq!((confirm_window(ttl), waiter_life(ttl)), (window * SECOND, life * SECOND), "{ttl:?}");
    }
    assert_eq!((FINISHED_MEMORY, TOKEN_MEMORY), (60 * SECOND, 3600 * SECOND));
    assert_eq!(STANDBY, SECOND / 4);
    assert_eq!((CONSUMER_LOOK, CONSUMER_LIFE, DEDUP_MEMORY), (5 * SECOND, 15 * SECOND, 300 * SECOND));
}

// page: docs/primitives/queue.md "0: never"
#[test]
fn without_a_number_of_attempts_an_item_is_never_a_dead_letter() {
    let (_clock, tenure, _) = one();
    let queue = tenure.queue("q").max_attempts(0);
    block_on(queue.push("work").into_future()).expect("pushed");
    for _ in 0..30 {
        let delivery = block_on(queue.next()).expect("it is there");
        assert!(!block_on(delivery.retry_after(Duration::ZERO)).expect("settled"));
    }
}

// page: docs/primitives/queue.md "| 1 | how many items `serve` works on at a time, up to 256"
#[test]
fn one_item_is_worked_on_at_a_time_unless_up_to_256_are_wished_for() {
    let most_at_once = |queue: tenure_core::Queue| {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (now, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let stop = std::sync::Mutex::new(Some(stop));
        let served = queue.serve(async { drop(stopped.await) }, async |_| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // All that is taken at a time has begun by then.
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
            now.fetch_sub(1, Ordering::SeqCst);
            if done.fetch_add(1, Ordering::SeqCst) == 3 {
                stop.lock().expect("no panic").take();
            }
            Ok::<_, &str>(())
        });
        block_on(served).map(|()| most.into_inner())
    };
    let (_clock, tenure, _) = one();
    let four = || {
        for _ in 0..4 {
            block_on(tenure.queue("q").push("work").into_future()).expect("pushed");
        }
        tenure.queue("q")
    };
    assert_eq!(most_at_once(four()).expect("served"), 1);
    assert!(most_at_once(four().parallel(256)).expect("served") > 1);
    assert_eq!(most_at_once(four().parallel(257)).expect_err("too many").kind(), ErrorKind::Invalid);
}

// page: docs/primitives/single-flight.md "| `fresh` | 60 s"
// page: docs/primitives/single-flight.md "| `ttl` | 30 s"
#[test]
fn a_value_is_fresh_for_60_seconds_and_its_loader_has_30() {
    let (clock, tenure, _) = one();
    let flight = tenure.single_flight("price");
    let loads = AtomicUsize::new(0);
    let get = || {
        let found = flight.get_or_refresh(async |lease| {
            assert_eq!(lease.expires_in(), 30 * SECOND - Duration::from_millis(302));
            loads.fetch_add(1, Ordering::SeqCst);
            Ok::<_, tenure_core::Error>(Vec::new())
        });
        block_on(found).expect("loaded");
        loads.load(Ordering::SeqCst)
    };
    assert_eq!(get(), 1);
    clock.advance(60 * SECOND - Duration::from_millis(1));
    assert_eq!(get(), 1);
    clock.advance(Duration::from_millis(1));
    assert_eq!(get(), 2);
}

// page: docs/concepts/lease.md "(100 ms to 24 h)"
#[test]
fn limits_are_those_of_the_pages() {
    assert_eq!((TTL_MIN, TTL_MAX), (SECOND / 10, 24 * 3600 * SECOND));
    assert_eq!(PERIOD_MAX, 10 * 365 * 24 * 3600 * SECOND);
    assert_eq!((NAME_BYTES_MAX, LABEL_BYTES_MAX, REASON_BYTES_MAX), (255, 256, 256));
    assert_eq!((VALUE_BYTES_MAX, PAYLOAD_BYTES_MAX), (256 * 1024, 256 * 1024));
    assert_eq!((CAPACITY_MAX, WAITERS_MAX, POSITION_EXACT_MAX), (1_048_576, 100_000, 64));
    assert_eq!(NAMES_MAX, 50_000);
}
