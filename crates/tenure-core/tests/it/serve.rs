//! A consumer that goes on: what `Queue::serve` does with work that fails, a store that is away, and a stop.

use std::future::{IntoFuture, pending};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use pollster::block_on;
use tenure_core::memory::{Flaw, Store};
use tenure_core::testing::virtual_clock::VirtualClock;
use tenure_core::{Delivery, ErrorKind, Name, Queue, Result, Settings, Tenure, blocking};
use tokio::sync::{Semaphore, oneshot};

use crate::client::eventually;

const TTL: Duration = Duration::from_secs(9);

/// A store that does not answer takes while this is set.
#[derive(Default)]
struct IsAway(AtomicBool);

impl Flaw for IsAway {
    fn hangs(&self, verb: &'static str, _: &Name) -> bool {
        verb == "take" && self.0.load(Ordering::SeqCst)
    }
}

/// A queue on a clock that stands.
struct Stage {
    clock: VirtualClock,
    store: Arc<IsAway>,
    queue: Queue,
}

impl Stage {
    fn new() -> Stage {
        let (clock, store) = (VirtualClock::new(7), Arc::new(IsAway::default()));
        let shared = Store::with_flaw(Arc::new(clock.clone()), Some(store.clone()));
        let connecting = Tenure::start(shared.connector(), Arc::new(clock.clone()), Settings::new());
        let queue = block_on(connecting).expect("connects").queue("q").ttl(TTL);
        Stage { clock, store, queue }
    }

    fn push(&self, payload: &str) {
        block_on(self.queue.push(payload).into_future()).expect("pushed");
    }

    /// How many wait, and how many are with a consumer.
    fn counts(&self) -> (u64, u64) {
        let stats = block_on(self.queue.stats()).expect("answers");
        (stats.waiting, stats.in_flight)
    }

    /// Lets time pass bit by bit, so that what is due in the background is done, until something is so.
    fn pass_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        eventually(what, || {
            self.clock.advance(Duration::from_millis(100));
            is_so()
        });
    }
}

/// Serves on a thread, until told to stop or let go.
fn serve<E: std::fmt::Display>(
    queue: &Queue,
    work: impl AsyncFn(&Delivery) -> Result<(), E> + Send + 'static,
) -> (oneshot::Sender<()>, JoinHandle<Result<()>>) {
    let (stop, stopped) = oneshot::channel::<()>();
    let queue = queue.clone();
    let serving =
        std::thread::spawn(move || block_on(queue.serve(async { stopped.await.unwrap_or(()) }, work)));
    (stop, serving)
}

fn end(stop: oneshot::Sender<()>, serving: JoinHandle<Result<()>>) {
    stop.send(()).expect("it serves");
    serving.join().expect("no panic").expect("it was told to stop");
}

/// Work that waits for a permit, and how much of it has begun and ended.
#[derive(Default)]
struct Work {
    begun: AtomicUsize,
    done: AtomicUsize,
    most: AtomicUsize,
}

impl Work {
    async fn on(&self, gate: &Semaphore) {
        let running = self.begun.fetch_add(1, Ordering::SeqCst) + 1 - self.done.load(Ordering::SeqCst);
        self.most.fetch_max(running, Ordering::SeqCst);
        gate.acquire().await.expect("it is open").forget();
        self.done.fetch_add(1, Ordering::SeqCst);
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }
}

/// Serves with work that waits for a permit.
struct Gated {
    work: Arc<Work>,
    gate: Arc<Semaphore>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<()>>,
}

fn serve_gated(queue: &Queue) -> Gated {
    let (work, gate) = (Arc::new(Work::default()), Arc::new(Semaphore::new(0)));
    let mine = (work.clone(), gate.clone());
    let (stop, serving) = serve(queue, async move |_: &Delivery| {
        mine.0.on(&mine.1).await;
        Ok::<_, String>(())
    });
    Gated { work, gate, stop, serving }
}

#[test]
fn as_many_items_are_worked_on_at_a_time_as_was_said_and_no_more() {
    let stage = Stage::new();
    (0..7).for_each(|number| stage.push(&number.to_string()));
    let Gated { work, gate, stop, serving } = serve_gated(&stage.queue.clone().parallel(3));
    eventually("three have begun", || work.begun() == 3);
    assert_eq!(stage.counts(), (4, 3));
    gate.add_permits(7);
    eventually("all are done", || stage.counts() == (0, 0));
    end(stop, serving);
    assert_eq!((work.done(), work.most.load(Ordering::SeqCst)), (7, 3));
}

#[test]
fn a_stop_finishes_what_is_in_hand_and_takes_nothing_more() {
    let stage = Stage::new();
    (0..5).for_each(|number| stage.push(&number.to_string()));
    let Gated { work, gate, stop, serving } = serve_gated(&stage.queue.clone().parallel(2));
    eventually("two have begun", || work.begun() == 2);
    stop.send(()).expect("it serves");
    gate.add_permits(1);
    eventually("one is done", || stage.counts() == (3, 1));
    assert!(!serving.is_finished(), "the other is in hand");
    gate.add_permits(1);
    serving.join().expect("no panic").expect("it was told to stop");
    assert_eq!((work.begun(), stage.counts()), (2, (3, 0)));
}

#[test]
fn an_item_whose_work_fails_is_handed_out_again_and_then_is_dead_with_the_reason() {
    let stage = Stage::new();
    stage.push("work");
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let (stop, serving) = serve(&stage.queue.clone().max_attempts(2), async move |delivery: &Delivery| {
        counted.fetch_add(1, Ordering::SeqCst);
        Err(format!("attempt {} failed", delivery.attempt()))
    });
    eventually("it is worked on", || stage.counts() == (1, 0) && attempts.load(Ordering::SeqCst) == 1);
    stage.pass_until("it is dead", || stage.counts() == (0, 0));
    end(stop, serving);
    let dead = block_on(stage.queue.dead_letters(None, 9)).expect("answers");
    assert!(format!("{dead:?}").contains("attempt 2 failed"), "{dead:?}");
}

#[test]
fn a_store_that_is_away_ends_nothing() {
    let stage = Stage::new();
    stage.store.0.store(true, Ordering::SeqCst);
    let Gated { work, gate, stop, serving } = serve_gated(&stage.queue);
    gate.add_permits(9);
    // It waits in the same line, and is told when the others are.
    let bystander = stage.queue.clone();
    let bystander = std::thread::spawn(move || block_on(bystander.next()));
    stage.pass_until("a take is given up", || bystander.is_finished());
    let error = bystander.join().expect("no panic").expect_err("the store is away");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    stage.store.0.store(false, Ordering::SeqCst);
    stage.push("work");
    stage.pass_until("the item is done", || work.done() == 1 && stage.counts() == (0, 0));
    end(stop, serving);
}

#[test]
fn a_stop_does_not_wait_for_a_store_that_is_away() {
    let stage = Stage::new();
    stage.store.0.store(true, Ordering::SeqCst);
    let Gated { stop, serving, .. } = serve_gated(&stage.queue);
    end(stop, serving);
}

#[test]
fn dropping_it_hands_out_again_what_is_in_hand() {
    let stage = Stage::new();
    stage.push("work");
    {
        let work = Work::default();
        let gate = Semaphore::new(0);
        let mut serving = pin!(stage.queue.serve(pending(), async |_| {
            work.on(&gate).await;
            Ok::<_, String>(())
        }));
        eventually("it is worked on", || {
            assert!(serving.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            work.begun() == 1
        });
        assert_eq!(stage.counts(), (0, 1));
    }
    eventually("it goes back", || stage.counts() == (1, 0));
    assert!(block_on(stage.queue.try_next()).expect("answers").is_none(), "not at once");
    stage.clock.advance(Duration::from_secs(1));
    let again = block_on(stage.queue.try_next()).expect("answers").expect("it is there");
    assert_eq!(again.attempt(), 2);
}

#[test]
fn work_whose_delivery_is_lost_is_dropped_and_the_loop_goes_on() {
    let stage = Stage::new();
    stage.push("work");
    let Gated { work, gate, stop, serving } = serve_gated(&stage.queue);
    eventually("it is worked on", || work.begun() == 1);
    stage.clock.advance(TTL * 2);
    stage.pass_until("it is handed out again", || work.begun() == 2);
    assert_eq!(work.done(), 0);
    gate.add_permits(1);
    eventually("it is done", || stage.counts() == (0, 0));
    end(stop, serving);
}

#[test]
fn what_no_repetition_can_mend_ends_it() {
    let stage = Stage::new();
    let served = |queue: Queue| block_on(queue.serve(pending(), async |_| Ok::<_, String>(())));
    for bad in [
        stage.queue.clone().parallel(0),
        stage.queue.clone().parallel(257),
        stage.queue.clone().ttl(Duration::ZERO),
    ] {
        assert_eq!(served(bad).expect_err("refused").kind(), ErrorKind::Invalid);
    }
}

#[test]
fn it_can_be_spawned() {
    fn is_send<T: Send>(_: T) {}
    let stage = Stage::new();
    is_send(stage.queue.serve(pending(), async |delivery| {
        tokio::task::yield_now().await;
        if delivery.attempt() > 1 { Err("again") } else { Ok(()) }
    }));
    is_send(stage.queue.run(async |delivery| {
        tokio::task::yield_now().await;
        if delivery.attempt() > 1 { Err("again") } else { Ok(()) }
    }));
}

#[test]
fn one_item_may_fail_with_any_error_that_has_a_text() {
    let stage = Stage::new();
    stage.push("work");
    let said = block_on(stage.queue.run(async |_| Err::<(), _>("no such order".to_owned())));
    assert_eq!(said.expect("it was taken"), Err("no such order".to_owned()));
    assert_eq!(stage.counts(), (1, 0), "it is tried again");
    stage.clock.advance(Duration::from_secs(1));
    let fail = || Err::<u8, Box<dyn std::error::Error>>("no such order".into());
    let said = block_on(stage.queue.run(async |_| fail()));
    assert!(said.expect("it was taken").is_err());
    stage.clock.advance(Duration::from_secs(2));
    let said = block_on(stage.queue.run(async |_| Ok::<_, String>(7)));
    assert_eq!((said.expect("it was taken"), stage.counts()), (Ok(7), (0, 0)));
}

/// Passes time until a thread has ended.
fn finish<T>(stage: &Stage, serving: JoinHandle<T>) -> std::thread::Result<T> {
    stage.pass_until("it ends", || serving.is_finished());
    serving.join()
}

#[test]
fn threads_serve_side_by_side_and_stop_when_asked() {
    let stage = Stage::new();
    (0..2).for_each(|number| stage.push(&number.to_string()));
    let (queue, is_over) =
        (blocking::Queue::from(stage.queue.clone()).parallel(2), Arc::new(AtomicBool::new(false)));
    let asked = is_over.clone();
    let serving = std::thread::spawn(move || {
        let both = Barrier::new(2);
        queue.serve(
            || asked.load(Ordering::SeqCst),
            |_| {
                both.wait();
                Ok::<_, String>(())
            },
        )
    });
    eventually("both are done", || stage.counts() == (0, 0));
    is_over.store(true, Ordering::SeqCst);
    finish(&stage, serving).expect("no panic").expect("it was told to stop");
}

#[test]
fn a_thread_whose_work_panics_ends_the_others() {
    let stage = Stage::new();
    stage.push("work");
    let queue = blocking::Queue::from(stage.queue.clone()).parallel(2);
    let serving = std::thread::spawn(move || {
        queue.serve(|| false, |_| -> Result<(), String> { panic!("this test's work panics") })
    });
    assert!(finish(&stage, serving).is_err());
    eventually("the item goes back", || stage.counts() == (1, 0));
}
