//! A survey shows what all processes do with a store, and costs it little.

use std::future::IntoFuture;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use pollster::block_on;
use tenure_core::clock::{Clock, Instant, Timer, Timestamp};
use tenure_core::counts::Primitive;
use tenure_core::memory::Store;
use tenure_core::model::inspect::Change;
use tenure_core::survey::{NAMES_MAX, StoreCounts, Survey, Surveyor};
use tenure_core::testing::virtual_clock::VirtualClock;
use tenure_core::{Error, ErrorKind, Name, Settings, Tenure};

const SECOND: Duration = Duration::from_secs(1);

/// The clock of a store that needs a while for each thing that it is asked.
struct Slow(VirtualClock, Duration);

impl Clock for Slow {
    fn now(&self) -> Instant {
        self.0.advance(self.1);
        self.0.now()
    }

    fn time_of_day(&self) -> Timestamp {
        self.0.advance(self.1);
        self.0.time_of_day()
    }

    fn timer(&self) -> std::io::Result<Box<dyn Timer>> {
        self.0.timer()
    }

    fn random(&self) -> u64 {
        self.0.random()
    }
}

/// Two clients of a store that needs so long for each thing.
fn clients(slow: Duration, settings: Settings) -> (VirtualClock, Tenure, Tenure) {
    let clock = VirtualClock::new(7);
    let store = match slow.is_zero() {
        true => Store::new(Arc::new(clock.clone())),
        false => Store::new(Arc::new(Slow(clock.clone(), slow))),
    };
    let connect = |settings| {
        let connecting = Tenure::start(store.clone().connector(), Arc::new(clock.clone()), settings);
        block_on(connecting).expect("connects")
    };
    let (one, other) = (connect(settings), connect(Settings::new()));
    (clock, one, other)
}

fn shown(counts: &StoreCounts) -> Vec<String> {
    let scopes = counts.scopes.iter().map(|scope| {
        let (kind, oldest) = (scope.primitive.as_str(), scope.oldest_hold.as_secs());
        format!("{kind} {}: {} {} {} {oldest}s", scope.label, scope.holds, scope.resting, scope.waiting)
    });
    let queues = counts.queues.iter().map(|queue| {
        let ages = [queue.oldest_waiting, queue.oldest_in_flight, queue.oldest_dead];
        let ages = ages.map(|age| age.map(|age| age.as_secs()));
        format!("{}: {} {} {} {ages:?}", queue.label, queue.waiting, queue.in_flight, queue.dead)
    });
    scopes.chain(queues).collect()
}

#[test]
fn a_survey_shows_what_all_processes_hold_and_wait_for() {
    let (clock, tenure, other) = clients(Duration::ZERO, Settings::new().scopes(["jobs/*"]));
    let hour = Duration::from_secs(3600);
    let first = block_on(other.mutex("billing/1").ttl(hour).acquire()).expect("free");
    let second = block_on(tenure.mutex("billing/2").ttl(hour).acquire()).expect("free");
    let leader = block_on(tenure.election("jobs/leader").ttl(hour).campaign()).expect("free");
    let rests = tenure.mutex("billing/3").min_hold(hour);
    block_on(async { rests.acquire().await?.release().await }).expect("free");
    let units = block_on(other.semaphore("api", 3).weight(2).ttl(hour).acquire()).expect("free");
    let reader = block_on(other.rw_lock("map").ttl(hour).read().acquire()).expect("free");
    let slot = block_on(other.slot_pool("ids", 4).ttl(hour).acquire()).expect("free");
    clock.advance(5 * SECOND);
    let other_mutex = other.mutex("billing/1").ttl(hour);
    let mut waiting = std::pin::pin!(other_mutex.acquire());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    crate::client::eventually("a waiter", || {
        block_on(tenure.view("billing/1")).expect("answers").is_some_and(|view| view.waiting == 1)
    });
    let queue = tenure.queue("mails").max_attempts(1).ttl(hour);
    for _ in 0..3 {
        block_on(queue.push("one").into_future()).expect("pushed");
        clock.advance(SECOND);
    }
    block_on(async { queue.next().await?.fail("wrong").await }).expect("given up");
    let delivery = block_on(queue.next()).expect("there is one");

    let surveyor = Surveyor::new(&tenure);
    let survey = block_on(surveyor.latest()).expect("answers");
    let counts = surveyor.count(&survey, &["jobs/*".to_owned()]);
    let expected = [
        "semaphore api: 1 0 0 8s",
        "mutex billing/*: 2 1 1 8s",
        "slot_pool ids: 1 0 0 8s",
        "mutex jobs/*: 1 0 0 0s",
        "rw_lock map: 1 0 0 8s",
        "mails: 1 1 1 [Some(1), Some(2), Some(3)]",
    ];
    assert_eq!(shown(&counts), expected);
    assert_eq!((counts.names, counts.is_whole, counts.unreadable), (8, true, 0));
    let all = shown(&surveyor.count(&survey, &[]));
    assert_eq!(all[3], "mutex jobs/*: 1 0 0 8s", "a leader counts where nobody says that it does not");

    // What comes later is told apart from what was there.
    block_on(second.release()).expect("answers");
    let third = block_on(tenure.mutex("billing/2").ttl(hour).acquire()).expect("free");
    let fourth = block_on(tenure.mutex("new").ttl(hour).acquire()).expect("free");
    block_on(delivery.ack()).expect("done");
    block_on(slot.release()).expect("answers");
    clock.advance(4 * SECOND);
    let later = block_on(surveyor.latest()).expect("answers");
    let changes = later.since(&survey);
    assert_eq!((changes.appeared, changes.vanished, changes.grants), (1, 1, 2));
    assert_eq!((changes.waiting, changes.items, changes.over), (0, -1, 4 * SECOND));
    assert!((changes.rate(changes.grants) - 0.5).abs() < 1e-9);
    drop((first, leader, units, reader, third, fourth));
}

#[test]
fn a_survey_of_a_prefix_looks_at_nothing_else() {
    let (_clock, tenure, other) = clients(Duration::ZERO, Settings::new());
    let names = ["billing/1", "billing/2", "other"];
    let held = names.map(|name| block_on(other.mutex(name).acquire()).expect("free"));
    for name in ["billing/mails", "mails"] {
        block_on(other.queue(name).push("one").into_future()).expect("pushed");
    }
    let survey = block_on(Surveyor::new(&tenure).prefix("billing/").latest()).expect("answers");
    let seen: Vec<&str> = survey.locks.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(seen, names[..2]);
    assert!(survey.queues.len() == 1 && survey.queues[0].name.as_str() == "billing/mails");
    drop(held);
}

#[test]
fn what_is_held_is_listed_page_by_page_each_name_once() {
    let (_clock, tenure, other) = clients(Duration::ZERO, Settings::new());
    let names: Vec<String> = (0..300).map(|number| format!("n{number:03}")).collect();
    let held: Vec<_> =
        names.iter().map(|name| block_on(other.mutex(name).acquire()).expect("free")).collect();
    let mut pages = tenure.inspect_pages("n");
    let (mut seen, mut count) = (Vec::new(), 0);
    while let Some(page) = block_on(pages.next()) {
        let page = page.expect("answers");
        count += usize::from(!page.is_empty());
        seen.extend(page.into_iter().map(|(name, _)| name.to_string()));
    }
    assert!(count > 1, "the first are there before the last are known");
    assert_eq!(seen, names);
    drop(held);
}

#[test]
fn a_survey_that_is_young_is_not_taken_again() {
    let (clock, tenure, _other) = clients(Duration::ZERO, Settings::new());
    let surveyor = Surveyor::new(&tenure);
    let latest = || block_on(surveyor.latest()).expect("answers");
    let first = latest();
    assert!(Arc::ptr_eq(&first, &latest()));
    clock.advance(SECOND + SECOND / 2);
    assert!(Arc::ptr_eq(&first, &latest()));
    clock.advance(SECOND / 2);
    assert!(!Arc::ptr_eq(&first, &latest()), "2 s later there may be another");
}

#[test]
fn surveys_take_a_twentieth_of_the_time_at_most() {
    let (clock, tenure, _other) = clients(SECOND / 4, Settings::new());
    // Nothing is held: each renewal would cost time as well.
    let surveyor = Surveyor::new(&tenure);
    let latest = || block_on(surveyor.latest()).expect("answers");
    let first = latest();
    assert_eq!(first.took, SECOND / 2, "a page of queues, and one of locks");
    clock.advance(first.took * 19);
    assert!(Arc::ptr_eq(&first, &latest()), "after 19 times as long");
    clock.advance(first.took);
    assert!(!Arc::ptr_eq(&first, &latest()), "after 20 times as long");
}

#[test]
fn a_survey_that_is_given_up_is_paid_for_too() {
    let (clock, tenure, _other) = clients(Duration::ZERO, Settings::new());
    let surveyor = Surveyor::new(&tenure);
    let mut last = block_on(surveyor.latest()).expect("answers");
    // The client's thread may be so quick that there is nothing to give up.
    crate::client::eventually("a survey that is under way", || {
        clock.advance(3 * SECOND);
        let mut given_up = std::pin::pin!(surveyor.latest());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match given_up.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(survey) => {
                last = survey.expect("answers");
                false
            }
        }
    });
    assert!(Arc::ptr_eq(&last, &block_on(surveyor.latest()).expect("answers")), "it has begun and ended");
}

#[test]
fn of_more_names_than_it_may_look_at_a_survey_says_so() {
    let (_clock, tenure, _other) = clients(Duration::ZERO, Settings::new().scopes(["r/*"]));
    let hold = |n: usize| tenure.mutex(&format!("r/{n}")).acquire();
    let held = block_on(futures_util::future::try_join_all((0..NAMES_MAX).map(hold))).expect("free");
    let look = || {
        let surveyor = Surveyor::new(&tenure);
        let survey = block_on(surveyor.latest()).expect("answers");
        surveyor.count(&survey, &[])
    };
    let whole = look();
    assert_eq!((whole.names, whole.is_whole, whole.scopes[0].holds), (NAMES_MAX, true, NAMES_MAX as u64));
    let one_more = block_on(hold(NAMES_MAX)).expect("free");
    let cut = look();
    assert_eq!((cut.names, cut.is_whole, cut.scopes[0].holds), (NAMES_MAX, false, NAMES_MAX as u64));
    // A queue is never left out for locks.
    block_on(tenure.queue("mails").push("one").into_future()).expect("pushed");
    let with_queue = look();
    assert_eq!((with_queue.queues.len(), with_queue.is_whole), (1, false));
    assert_eq!(with_queue.scopes[0].primitive, Primitive::Mutex);
    drop((held, one_more));
}

#[test]
fn what_happened_between_two_surveys_is_told_and_of_what_is_not_known_nothing() {
    let (clock, one, other) = clients(Duration::ZERO, Settings::new());
    let (surveyor, wait) = (Surveyor::new(&one), || clock.advance(60 * SECOND));
    let stays = block_on(other.mutex("stays").ttl(600 * SECOND).acquire()).expect("a lease");
    let goes = block_on(other.mutex("goes").ttl(600 * SECOND).acquire()).expect("a lease");
    let before = block_on(surveyor.latest()).expect("a survey");
    block_on(goes.release()).expect("its end");
    let _comes = block_on(other.mutex("comes").ttl(600 * SECOND).acquire()).expect("a lease");
    wait();
    let after = block_on(surveyor.latest()).expect("a survey");
    let told = |before: &Survey, after: &Survey| {
        let words = |change: &Change<'_>| match change {
            Change::Granted(_) => "granted",
            Change::Ended(_) => "ended",
            Change::Idle => "idle",
            _ => "more",
        };
        let changes = after.changes(before).into_iter();
        let line = |(name, changes): (&Name, Vec<Change<'_>>)| {
            format!("{name:?} {}", changes.iter().map(words).collect::<Vec<_>>().join(" "))
        };
        changes.map(line).collect::<Vec<_>>()
    };
    assert_eq!(told(&before, &after), ["\"comes\" granted", "\"goes\" ended idle"]);
    // One that has left names out says nothing of those.
    let mut cut = Survey::clone(&before);
    (cut.is_whole, cut.locks) = (false, Vec::new());
    assert_eq!((told(&cut, &after), told(&before, &cut)), (Vec::new(), Vec::new()));
    // One that cannot be read is neither gone nor new.
    let mut damaged = Survey::clone(&before);
    damaged
        .locks
        .iter_mut()
        .for_each(|(_, view)| *view = Err(Error::new(ErrorKind::Internal, "view", "damaged")));
    assert_eq!(told(&before, &damaged), Vec::<String>::new());
    assert_eq!(told(&damaged, &after), ["\"comes\" granted"]);
    drop(stays);
}
