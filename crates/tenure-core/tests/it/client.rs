//! The client on the `memory:` engine: what it promises whatever the caller does.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tenure_core::clock::Clock;
use tenure_core::engine::{Connect, ReleaseAnswer};
use tenure_core::memory::{Flaw, Store, Verb};
use tenure_core::model::record::PlainRecord;
use tenure_core::testing::virtual_clock::VirtualClock;
use tenure_core::{Error, ErrorKind, FetchedFrom, Result, Settings, Tenure, blocking};

use crate::nameless::Nameless;

const TTL: Duration = Duration::from_secs(9);

fn start(store: &Arc<Store>, clock: &VirtualClock) -> Tenure {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    pollster::block_on(Tenure::start(store.clone().connector(), clock, Settings::default()))
        .expect("connects")
}

/// Two clients of one store, on a clock that stands.
fn two() -> (VirtualClock, Arc<Store>, Tenure, Tenure) {
    let clock = VirtualClock::new(7);
    let store = Store::new(Arc::new(clock.clone()));
    let (a, b) = (start(&store, &clock), start(&store, &clock));
    (clock, store, a, b)
}

/// Every record is forgotten once the clock has passed the last token.
fn nothing_is_left(clock: &VirtualClock, store: &Arc<Store>) {
    clock.advance(Duration::from_millis(1));
    let look = start(store, clock);
    eventually("nothing is left", || {
        drop(pollster::block_on(look.mutex("look").try_acquire()));
        store.records() <= 1
    });
}

/// Waits in real time for something that another thread is about to do.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..5_000 {
        if is_so() {
            return;
        }
        std::thread::yield_now();
        #[allow(clippy::disallowed_methods, reason = "another thread's progress has no event to await")]
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("never came true: {what}");
}

#[test]
fn a_second_client_is_refused_and_served_after_the_release() {
    let (clock, store, a, b) = two();
    pollster::block_on(async {
        let lease = a.mutex("x").acquire().await.expect("free");
        assert!(b.mutex("x").try_acquire().await.expect("answers").is_none());
        let waiting = b.mutex("x");
        let mut second = std::pin::pin!(waiting.acquire());
        assert!(futures_util::future::poll_immediate(&mut second).await.is_none());
        eventually("b waits", || second.place().is_some_and(|place| place.position == 1));
        assert_eq!(lease.release().await.expect("answers"), ReleaseAnswer::Released);
        let second = second.await.expect("handed over");
        second.release().await.expect("answers");
    });
    nothing_is_left(&clock, &store);
}

#[test]
fn dropping_a_lease_outside_of_any_runtime_releases_it() {
    let (clock, store, a, b) = two();
    drop(pollster::block_on(a.mutex("x").acquire()).expect("free"));
    let again = pollster::block_on(b.mutex("x").acquire()).expect("free again");
    drop(again);
    nothing_is_left(&clock, &store);
}

#[test]
fn a_lease_is_renewed_until_the_engine_is_silent_and_lost_by_its_deadline_when_the_machine_slept() {
    let (clock, _store, a, b) = two();
    let lease = pollster::block_on(a.mutex("x").ttl(TTL).acquire()).expect("free");
    for _ in 0..30 {
        let before = lease.deadline();
        clock.advance(TTL / 3);
        eventually("renewed", || lease.deadline() > before);
        assert!(!lease.is_lost());
    }
    // The machine sleeps: the clock has moved when anybody looks again.
    clock.advance(TTL * 2);
    assert!(lease.is_lost(), "a look needs no thread to have noticed");
    let lost = pollster::block_on(lease.lost());
    assert_eq!(lost.kind(), ErrorKind::Lost);
    let second = pollster::block_on(b.mutex("x").ttl(TTL).acquire()).expect("the hold has ended");
    assert!(second.token() > lease.token());
    let answer = pollster::block_on(lease.release()).expect("a no-op");
    assert_eq!(answer, ReleaseAnswer::AlreadyLost);
    assert!(pollster::block_on(a.mutex("x").try_acquire()).expect("answers").is_none());
}

#[test]
fn a_wait_that_is_over_says_so_and_leaves_no_place_behind() {
    let (clock, store, a, b) = two();
    let lease = pollster::block_on(a.mutex("x").ttl(TTL).acquire()).expect("free");
    let waiter = std::thread::spawn(move || {
        pollster::block_on(b.mutex("x").ttl(TTL).acquire_within(Duration::from_secs(1)))
    });
    eventually("b waits", || {
        pollster::block_on(a.inspect("x")).expect("answers").iter().any(|view| view.waiting == 1)
    });
    clock.advance(Duration::from_millis(1_100));
    let error = waiter.join().expect("no panic").expect_err("still held");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    // Its own place, and the time that was asked for.
    let text = "claim \"x\" on memory: not granted within 1000ms, at place 1 in the queue";
    assert_eq!(error.to_string(), text);
    eventually("the place is gone", || {
        pollster::block_on(a.inspect("x")).expect("answers").iter().all(|view| view.waiting == 0)
    });
    pollster::block_on(lease.release()).expect("answers");
    nothing_is_left(&clock, &store);
}

#[test]
fn a_try_that_is_refused_names_the_holder() {
    let (_clock, _store, a, b) = two();
    let _lease = pollster::block_on(a.mutex("x").label("night run").acquire()).expect("free");
    let error = pollster::block_on(b.mutex("x").acquire_within(Duration::ZERO)).expect_err("held");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let busy = error.busy().expect("says who");
    assert_eq!(busy.holder.as_ref().expect("held").text(), "night run");
}

#[test]
fn bad_input_is_refused_before_anything_is_sent() {
    let (_clock, store, a, _b) = two();
    for mutex in [
        a.mutex(""),
        a.mutex(&"x".repeat(256)),
        a.mutex("a\nb"),
        a.mutex("x").ttl(Duration::from_millis(10)),
        a.mutex("x").ttl(Duration::from_secs(86_401)),
        a.mutex("x").max_hold(Duration::from_millis(1)),
        a.mutex("x").min_hold(Duration::MAX),
    ] {
        let error = pollster::block_on(mutex.try_acquire()).expect_err("bad input");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.hint().is_some(), "{error}");
    }
    assert_eq!(store.records(), 0);
}

/// An engine whose connection fails in another way than a bad setting does.
fn unconnectable() -> Connect {
    Connect::new("unconnectable", async move |_| -> Result<Arc<Nameless>> {
        Err(Error::new(ErrorKind::Internal, "connect", "it was tried"))
    })
}

#[test]
fn a_bad_setting_is_refused_by_its_name_before_anything_is_connected() {
    for bad in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        let connect = unconnectable();
        let settings = Settings::new().answer_timeout(bad);
        let error = pollster::block_on(Tenure::connect_with(connect, settings)).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("an answer_timeout of"), "{error}");
        assert!(error.hint().is_some(), "{error:?}");
    }
    let settings = Settings::new().label("night run").answer_timeout(Duration::from_millis(1));
    let clock = VirtualClock::new(7);
    let store = Store::new(Arc::new(clock.clone()));
    let tenure = pollster::block_on(Tenure::start(store.connector(), Arc::new(clock), settings));
    assert_eq!(tenure.expect("connects").label().text(), "night run");
}

#[test]
fn work_under_run_is_dropped_when_its_lease_is_lost() {
    let (clock, _store, a, _b) = two();
    let (started, has_started) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        pollster::block_on(a.mutex("x").ttl(TTL).run(async |_| {
            started.send(()).expect("the test listens");
            std::future::pending::<()>().await;
        }))
    });
    has_started.recv().expect("the work begins");
    clock.advance(TTL * 2);
    assert_eq!(worker.join().expect("no panic").expect_err("lost").kind(), ErrorKind::Lost);
}

/// A process stands still while an answer lies there: what it goes on with must not pass for an answer to who asks only then.
#[test]
fn an_answer_that_nobody_has_looked_at_is_no_fresh_value_for_who_asks_later() {
    #[derive(Default)]
    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (clock, _store, a, b) = two();
    let load = async |_: &tenure_core::Lease| Ok::<_, Error>(vec![7]);
    let (other, loaded) = (b.single_flight("k").fresh(TTL), AtomicBool::new(false));
    let mut loading = std::pin::pin!(other.get_or_refresh(async |_: &tenure_core::Lease| {
        poll_fn(|_| if loaded.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }).await;
        Ok::<_, Error>(vec![7])
    }));
    let view = || pollster::block_on(a.view("k")).expect("answers");
    eventually("it is loaded", || {
        assert!(loading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        view().is_some_and(|view| view.used == 1)
    });
    let flight = a.single_flight("k").fresh(TTL);
    let mut first = std::pin::pin!(flight.get_or_refresh(load));
    let answered = Arc::new(Flag::default());
    let waker = Waker::from(answered.clone());
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    eventually("it waits", || view().is_some_and(|view| view.waiting == 1));
    loaded.store(true, Ordering::SeqCst);
    pollster::block_on(loading).expect("it is published");
    eventually("it is answered", || answered.0.load(Ordering::SeqCst));
    clock.advance(TTL * 2);
    let second = pollster::block_on(flight.get_or_refresh(load)).expect("it is found");
    assert!(matches!(second.source, FetchedFrom::Loaded(_)), "not fresh any more: {second:?}");
    let first = pollster::block_on(first).expect("it is found");
    assert!(matches!(first.source, FetchedFrom::Fresh(_)), "it was fresh after it had asked");
}

#[test]
fn max_hold_ends_a_lease_that_is_renewed() {
    let (clock, _store, a, _b) = two();
    let lease = pollster::block_on(a.mutex("x").ttl(TTL).max_hold(TTL * 2).acquire()).expect("free");
    let mut passed = Duration::ZERO;
    while !lease.is_lost() {
        let before = lease.deadline();
        clock.advance(TTL / 3);
        passed += TTL / 3;
        eventually("renewed or over", || lease.is_lost() || lease.deadline() > before || passed >= TTL);
        assert!(passed <= TTL * 2, "it must end");
    }
    assert!(passed > TTL, "it was renewed at first");
}

#[test]
fn min_hold_rests_after_a_release_but_not_after_a_wait_that_was_given_up() {
    let (clock, _store, a, b) = two();
    let every = |tenure: &Tenure| tenure.mutex("daily").ttl(TTL).min_hold(TTL * 10);
    let lease = pollster::block_on(every(&a).acquire()).expect("free");
    pollster::block_on(lease.release()).expect("answers");
    let error = pollster::block_on(every(&b).acquire_within(Duration::ZERO)).expect_err("rests");
    assert!(error.busy().expect("says so").is_resting);
    clock.advance(TTL * 10);
    drop(pollster::block_on(every(&b).acquire()).expect("the rest is over"));
}

#[test]
fn the_blocking_face_does_the_same_without_a_runtime() {
    let (clock, store, a, b) = two();
    let (a, b) = (blocking::Tenure::from(a), blocking::Tenure::from(b));
    let lease = a.mutex("x").acquire().expect("free");
    assert!(b.mutex("x").try_acquire().expect("answers").is_none());
    let waiter = std::thread::spawn(move || b.mutex("x").run(|lease| lease.token()).expect("handed over"));
    eventually("b waits", || {
        pollster::block_on(a.as_async().inspect("x")).expect("answers").iter().any(|view| view.waiting == 1)
    });
    let first = lease.token();
    assert_eq!(lease.release().expect("answers"), ReleaseAnswer::Released);
    assert!(waiter.join().expect("no panic") > first);
    nothing_is_left(&clock, &store);
}

#[test]
fn a_waiter_that_is_dropped_lets_the_next_one_pass() {
    let (clock, store, a, b) = two();
    pollster::block_on(async {
        let lease = a.mutex("x").acquire().await.expect("free");
        let (first, second) = (b.mutex("x"), b.mutex("x"));
        let mut first = Box::pin(first.acquire());
        assert!(futures_util::future::poll_immediate(&mut first).await.is_none());
        eventually("first in the queue", || first.place().is_some());
        let mut second = Box::pin(second.acquire());
        assert!(futures_util::future::poll_immediate(&mut second).await.is_none());
        eventually("second in the queue", || second.place().is_some_and(|place| place.position == 2));
        drop(first);
        lease.release().await.expect("answers");
        second.await.expect("served").release().await.expect("answers");
    });
    nothing_is_left(&clock, &store);
}

#[test]
fn work_under_run_that_ends_after_the_deadline_is_lost_even_if_nobody_has_noticed_yet() {
    let (clock, _store, a, _b) = two();
    let mutex = a.mutex("x").ttl(TTL);
    // The work leaves no moment in which anybody else could look.
    let ended = pollster::block_on(mutex.run(async |_| clock.advance(TTL * 2)));
    assert_eq!(ended.expect_err("the deadline passed during the work").kind(), ErrorKind::Lost);
}

/// Two tests break a client down: its engine panics when it is asked for this.
struct Panics(fn(&Verb<'_>) -> bool);

impl Flaw for Panics {
    fn before(&self, _: &mut PlainRecord, verb: Verb<'_>) {
        assert!(!self.0(&verb), "this test breaks the client's thread down here");
    }
}

#[test]
fn a_lease_whose_client_has_broken_down_is_lost() {
    let clock = VirtualClock::new(7);
    let panics = Panics(|verb| matches!(verb, Verb::Renew(_)));
    let store = Store::with_flaw(Arc::new(clock.clone()), Some(Arc::new(panics)));
    let a = start(&store, &clock);
    let lease = pollster::block_on(a.mutex("x").ttl(TTL).acquire()).expect("free");
    let (told, is_told) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send((pollster::block_on(lease.lost()).kind(), lease.is_lost())));
    clock.advance(TTL / 3);
    let told = is_told.recv_timeout(Duration::from_secs(10)).expect("nobody renews it any more");
    assert_eq!(told, (ErrorKind::Lost, true));
    let error = pollster::block_on(a.mutex("y").acquire()).expect_err("nobody sends anything any more");
    assert_eq!(error.kind(), ErrorKind::Internal);
    let error = blocking::Tenure::from(a).mutex("y").acquire().expect_err("nobody would renew it");
    assert_eq!(error.kind(), ErrorKind::Internal);
}

#[test]
fn a_task_that_waits_for_an_item_learns_that_its_client_has_broken_down() {
    let clock = VirtualClock::new(7);
    let panics = Panics(|verb| matches!(verb, Verb::Renew(_)));
    let store = Store::with_flaw(Arc::new(clock.clone()), Some(Arc::new(panics)));
    let a = start(&store, &clock);
    let lease = pollster::block_on(a.mutex("x").ttl(TTL).acquire()).expect("free");
    let queue = a.queue("q");
    let mut taking = Box::pin(async move { queue.next().await.map(drop) });
    assert!(pollster::block_on(futures_util::future::poll_immediate(&mut taking)).is_none());
    clock.advance(TTL / 3);
    let (told, is_told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let queue = a.queue("q");
        let answers =
            async { [taking.await, queue.next().await.map(drop), queue.push("work").await.map(drop)] };
        told.send(pollster::block_on(answers))
    });
    let answers = is_told.recv_timeout(Duration::from_secs(10)).expect("nobody asks the store any more");
    for answer in answers {
        assert_eq!(answer.expect_err("nobody asks the store any more").kind(), ErrorKind::Internal);
    }
    drop(lease);
}

#[test]
fn a_release_during_which_the_client_breaks_down_says_so() {
    let clock = VirtualClock::new(7);
    let panics = Panics(|verb| matches!(verb, Verb::Release(_)));
    let store = Store::with_flaw(Arc::new(clock.clone()), Some(Arc::new(panics)));
    let a = start(&store, &clock);
    let lease = pollster::block_on(a.mutex("x").acquire()).expect("free");
    let (told, is_told) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(pollster::block_on(lease.release())));
    let told = is_told.recv_timeout(Duration::from_secs(10)).expect("a release does not wait for ever");
    assert_eq!(told.expect_err("nobody answered it").kind(), ErrorKind::Internal);
}

#[test]
fn an_observer_that_is_dropped_leaves_nothing_behind() {
    let (_clock, store, a, _b) = two();
    for _ in 0..3 {
        let mut changes = a.observe("x").expect("a good name");
        assert!(pollster::block_on(changes.next()).expect("connected").expect("answers").is_none());
    }
    eventually("nobody observes", || store.observers() == 0);
}

/// A waker as an executor may have it: it runs what it wakes, at once, on the thread that wakes it.
struct RunsAtOnce {
    tenure: Tenure,
    has_run: std::sync::atomic::AtomicBool,
}

impl std::task::Wake for RunsAtOnce {
    fn wake(self: Arc<Self>) {
        let other = self.tenure.mutex("other");
        let mut asking = std::pin::pin!(other.acquire());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(asking.as_mut().poll(&mut context).is_pending());
        self.has_run.store(true, std::sync::atomic::Ordering::Release);
    }
}

#[test]
fn a_waker_may_use_the_client() {
    let (_clock, _store, a, b) = two();
    let lease = pollster::block_on(a.mutex("x").acquire()).expect("free");
    let runs_at_once = Arc::new(RunsAtOnce { tenure: b.clone(), has_run: false.into() });
    let waker = std::task::Waker::from(runs_at_once.clone());
    let waiting = b.mutex("x");
    let mut asking = std::pin::pin!(waiting.acquire());
    assert!(asking.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    eventually("b waits", || asking.place().is_some());
    pollster::block_on(lease.release()).expect("answers");
    eventually("the waker has run", || runs_at_once.has_run.load(std::sync::atomic::Ordering::Acquire));
    drop(pollster::block_on(asking).expect("handed over"));
}

/// How many files this process has open.
#[cfg(target_os = "linux")]
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[test]
#[cfg(target_os = "linux")]
fn an_acknowledgement_leaves_no_timer_behind() {
    pollster::block_on(async {
        let tenure = tenure_core::memory::connect("timers").await.expect("connects");
        let queue = tenure.queue("q");
        let before = open_files();
        for _ in 0..400 {
            queue.push("work").await.expect("it is pushed");
            queue.next().await.expect("it is there").ack().await.expect("it is in flight");
        }
        let left = open_files().saturating_sub(before);
        // Other tests of this process open some, too.
        assert!(left < 200, "400 acknowledgements have left {left} timers");
    });
}
