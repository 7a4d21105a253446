//! Clients that contend for a few names while a test breaks something, and what they saw.
//!
//! What is broken is each engine's own. What must hold is not: nobody holds what another holds, later holders have larger
//! tokens, and once the fault is over everybody is served again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::engine::Connect;
use tenure_core::{ErrorKind, Settings, Tenure};

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

/// Connects one client.
///
/// # Panics
/// If it cannot.
pub fn connect(connector: Connect) -> Tenure {
    pollster::block_on(Tenure::connect_with(connector, Settings::default())).expect("a client connects")
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
            std::thread::spawn(move || work(&shared, &connect(connector()), client, at, &name))
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
                now().since(after) < within,
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
            pause(Duration::from_millis(1));
        }
        shared.sections.lock().expect("no client panics").push((at, section));
        if let Err(error) = pollster::block_on(lease.release()) {
            shared.errors.lock().expect("no client panics").push(format!("{number}: {error}"));
        }
    }
}
