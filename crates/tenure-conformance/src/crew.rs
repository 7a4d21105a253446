//! Clients that contend for a few names while a test breaks something, and what they saw.
//!
//! What is broken is each engine's own. What must hold is not: nobody holds what another holds, later holders have larger
//! tokens, and once the fault is over everybody is served again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::join;
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::engine::Connect;
use tenure_core::testing::busy::stretched;
use tenure_core::testing::random::more;
use tenure_core::{Error, ErrorKind, Settings, Tenure};

use crate::history::{Section, overlaps, stale_tokens};

/// The ttl of all leases of a crew.
pub const TTL: Duration = Duration::from_secs(2);

/// How long a member waits for its turn before that is an error.
const TURN_MAX: Duration = Duration::from_secs(30);

/// Clients that take turns, each on a thread of its own.
#[derive(Debug)]
pub struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    /// Each with the index of its name.
    sections: Mutex<Vec<(usize, Section)>>,
    errors: Mutex<Vec<String>>,
}

/// What a crew saw.
#[derive(Debug)]
pub struct Report {
    /// The sections of each name.
    pub names: Vec<Vec<Section>>,
    /// What went wrong, as users saw it.
    pub errors: Vec<String>,
}

/// The time by which all processes of this machine measure.
pub fn now() -> Instant {
    SystemClock.now()
}

/// Lets time pass.
#[allow(clippy::disallowed_methods, reason = "real servers have no clock that a test could wait by")]
pub fn pause(period: Duration) {
    std::thread::sleep(period);
}

/// Asserts that an error is one that a busy machine alone excuses: an answer that came too late, or a change that lost to others for
/// as long as a call may take. It may be asked again.
///
/// # Panics
/// If it is another, or this machine is not busy.
#[track_caller]
pub fn assert_excused(error: &Error) {
    let is_busy = stretched(Duration::from_secs(1)) >= Duration::from_secs(2);
    assert!(error.kind() == ErrorKind::Unavailable && is_busy, "{error}");
}

/// Connects one client.
///
/// # Panics
/// If it cannot.
pub fn connect(connector: Connect) -> Tenure {
    pollster::block_on(Tenure::connect_with(connector, Settings::default())).expect("a client connects")
}

/// Connects a member of a crew. A server that starts many of them on a busy machine may miss the time of one call, which users
/// are told to repeat.
fn connect_at_last(connector: impl Fn() -> Connect) -> Tenure {
    let until = now() + stretched(TURN_MAX);
    loop {
        match pollster::block_on(Tenure::connect_with(connector(), Settings::default())) {
            Ok(client) => return client,
            Err(error) if error.kind() == ErrorKind::Unavailable && now() < until => {
                pause(Duration::from_millis(50));
            }
            Err(error) => panic!("a client connects: {error}"),
        }
    }
}

impl Crew {
    /// Starts `clients` clients; client `i` contends for name `i % names.len()`. Returns when each has been served once.
    ///
    /// # Panics
    /// If one is not.
    pub fn start(
        connector: impl Fn() -> Connect + Send + Sync + 'static,
        clients: usize,
        names: &[String],
    ) -> Crew {
        let (shared, connector) = (Arc::new(Shared::default()), Arc::new(connector));
        let threads = (0..clients).map(|client| {
            let (shared, connector) = (shared.clone(), connector.clone());
            let (at, name) = (client % names.len(), names[client % names.len()].clone());
            std::thread::spawn(move || work(&shared, &connect_at_last(&*connector), client, at, &name))
        });
        let crew = Crew { threads: threads.collect(), shared };
        crew.wait_until_served(clients, now(), Duration::from_secs(20), "before any fault");
        crew
    }

    /// Waits until so many clients have begun a section after a moment; returns how long after it that was.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_until_served(
        &self,
        clients: usize,
        after: Instant,
        within: Duration,
        what: &str,
    ) -> Duration {
        loop {
            let served: std::collections::BTreeSet<usize> = {
                let sections = self.shared.sections.lock().expect("no client panics");
                let late = sections.iter().rev().take_while(|(_, section)| section.until > after);
                late.filter(|(_, section)| section.from > after).map(|(_, section)| section.client).collect()
            };
            if served.len() == clients {
                return now().since(after);
            }
            let errors = self.shared.errors.lock().expect("no client panics").clone();
            assert!(
                now().since(after) < stretched(within),
                "{what}: only {served:?} were served within {within:?}; errors: {errors:#?}"
            );
            pause(Duration::from_millis(5));
        }
    }

    /// How many sections there were so far.
    ///
    /// # Panics
    /// If a client panicked.
    pub fn served(&self) -> usize {
        self.shared.sections.lock().expect("no client panics").len()
    }

    /// Ends the work and returns what was seen.
    ///
    /// # Panics
    /// If a client panicked.
    pub fn finish(self, names: usize) -> Report {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a client does not panic");
        }
        let mut by_name = vec![Vec::new(); names];
        for (at, section) in self.shared.sections.lock().expect("no client panics").drain(..) {
            by_name[at].push(section);
        }
        let errors = std::mem::take(&mut *self.shared.errors.lock().expect("no client panics"));
        Report { names: by_name, errors }
    }
}

impl Report {
    /// How many sections there were.
    pub fn served(&self) -> usize {
        self.names.iter().map(Vec::len).sum()
    }

    /// Asserts that nobody held what another held, and that later holders had larger tokens.
    ///
    /// # Panics
    /// If it was otherwise.
    pub fn assert_exclusive(&self) {
        for sections in &self.names {
            assert_eq!(overlaps(sections), [], "two held it at once");
            assert_eq!(stale_tokens(sections), [], "a later holder has no larger token");
        }
    }
}

fn work(shared: &Shared, client: &Tenure, number: usize, at: usize, name: &str) {
    let mutex = client.mutex(name).ttl(TTL);
    while !shared.is_over.load(Ordering::Relaxed) {
        let lease = match pollster::block_on(mutex.acquire_within(TURN_MAX)) {
            Ok(lease) => lease,
            Err(error) => {
                shared.errors.lock().expect("no client panics").push(format!("{number}: {error}"));
                assert_ne!(error.kind(), ErrorKind::Internal, "{error}");
                pause(Duration::from_millis(20));
                continue;
            }
        };
        let mut section =
            Section { client: number, token: lease.token(), slot: None, from: now(), until: now() };
        for _ in 0..3 {
            let seen = now();
            if lease.is_lost() {
                break;
            }
            section.until = seen;
            pause(more(Duration::from_millis(5), Duration::from_millis(1)));
        }
        shared.sections.lock().expect("no client panics").push((at, section));
        if let Err(error) = pollster::block_on(lease.release()) {
            shared.errors.lock().expect("no client panics").push(format!("{number}: {error}"));
        }
    }
}

/// Has two clients hold, wait, hand over, renew and give up every kind of claim: whatever a user of a store needs a right for.
///
/// # Panics
/// If anything fails.
pub fn use_every_kind(a: &Tenure, b: &Tenure) {
    pollster::block_on(async {
        for round in 0..2 {
            let held = a.mutex("m").ttl(TTL).acquire().await.expect("it is free");
            assert!(b.mutex("m").try_acquire().await.expect("an answer").is_none(), "round {round}");
            let waits = b.mutex("m");
            let next = join(waits.acquire(), async {
                wait_for_waiter(a, "m").await;
                held.release().await.expect("it is held");
            });
            next.await.0.expect("its turn").release().await.expect("it is held");
            // Nothing but a rest remains of this one, and then nothing.
            let rests = a.mutex("rests").min_hold(Duration::from_millis(50)).acquire().await;
            rests.expect("it has rested").release().await.expect("it is held");
            let units = a.semaphore("s", 3);
            let two = units.weight(2).acquire().await.expect("two of three");
            let gives_up = b.semaphore("s", 3).weight(2).acquire_within(Duration::from_millis(100)).await;
            assert!(gives_up.is_err(), "one is left");
            two.release().await.expect("they are held");
            let slots = [a.slot_pool("p", 3), b.slot_pool("p", 3), b.slot_pool("p", 3)];
            let [one, two, three] = slots.each_ref().map(|pool| pool.acquire());
            let (one, two, three) = (one.await, two.await, three.await);
            for slot in [two, one, three] {
                slot.expect("three of three").release().await.expect("it is held");
            }
            let book = a.rw_lock("book");
            let (first, second) = (book.read().acquire().await, b.rw_lock("book").read().acquire().await);
            drop((first.expect("readers share"), second.expect("readers share")));
            b.rw_lock("book").write().acquire().await.expect("its turn").release().await.expect("it is held");
        }
        let renewed = a.mutex("renewed").ttl(TTL).acquire().await.expect("it is free");
        pause(2 * TTL);
        assert!(!renewed.is_lost(), "it was renewed");
        renewed.release().await.expect("it is held");
    });
}

async fn wait_for_waiter(client: &Tenure, name: &str) {
    while client.view(name).await.expect("an answer").is_none_or(|view| view.waiting == 0) {
        pause(Duration::from_millis(5));
    }
}

/// Has two clients pass a mutex to and fro so many times, each waiting in the queue for it, and returns how long the passing took: from a
/// release to the next holder's grant.
///
/// # Panics
/// If a claim or a release fails.
pub fn pass_to_and_fro(a: &Tenure, b: &Tenure, name: &str, times: usize) -> Duration {
    pollster::block_on(async {
        let mutexes = [a.mutex(name), b.mutex(name)];
        let mut lease = mutexes[0].acquire().await.expect("it is free");
        let mut took = Duration::ZERO;
        for turn in 1..=times {
            let waits = mutexes[turn % 2].acquire();
            let passes = async {
                wait_for_waiter(a, name).await;
                let released_at = now();
                lease.release().await.expect("it is held");
                released_at
            };
            let (next, released_at) = join(waits, passes).await;
            lease = next.expect("its turn");
            took += now().since(released_at);
        }
        lease.release().await.expect("it is held");
        took
    })
}
