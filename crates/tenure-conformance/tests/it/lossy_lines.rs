//! Clients over lines that lose a third of what is sent: nobody holds twice, and nothing is left behind.

use std::time::Duration;

use tenure_conformance::Setup;
use tenure_conformance::history::{Section, overlaps, stale_tokens};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::{ErrorKind, Settings, Tenure};

use crate::broken_engine::Call;
use crate::broken_setup::{Breakage, Broken};

const CLIENTS: usize = 4;
const ROUNDS: usize = 150;
/// What is not released stays for much longer than the test waits.
const TTL: Duration = Duration::from_secs(60);

fn connect(setup: &Broken) -> Tenure {
    pollster::block_on(Tenure::connect_with(setup.connector(), Settings::default())).expect("connects")
}

/// Takes and releases a mutex, gives up on it and drops it, and records each time that it was held.
fn work(tenure: &Tenure, client: usize) -> Vec<Section> {
    let mut sections = Vec::new();
    let mutex = tenure.mutex("x").ttl(TTL);
    for _ in 0..ROUNDS {
        let wait = Duration::from_micros(SystemClock.random() % 4_000);
        let acquired = match SystemClock.random() % 3 {
            0 => pollster::block_on(mutex.try_acquire()),
            1 => pollster::block_on(mutex.acquire_within(wait)).map(Some),
            _ => pollster::block_on(async {
                let mut acquire = mutex.acquire();
                let polled = futures_util::future::poll_immediate(&mut acquire).await;
                #[allow(clippy::disallowed_methods, reason = "the claim gets as far as it does meanwhile")]
                std::thread::sleep(wait);
                match polled {
                    Some(acquired) => acquired.map(Some),
                    None => futures_util::future::poll_immediate(acquire).await.transpose(),
                }
            }),
        };
        let lease = match acquired {
            Ok(Some(lease)) => lease,
            Ok(None) => continue,
            Err(error) if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable) => continue,
            Err(error) => panic!("no other error is to be expected: {error}"),
        };
        let from = SystemClock.now();
        std::thread::yield_now();
        let until = SystemClock.now();
        if !lease.is_lost() {
            sections.push(Section { client, token: lease.token(), slot: None, from, until });
        }
        if SystemClock.random().is_multiple_of(2) {
            // An answer that was lost is an error; the release goes on.
            pollster::block_on(lease.release()).ok();
        }
    }
    sections
}

#[test]
fn clients_over_lossy_lines_exclude_each_other_and_leave_nothing() {
    let setup = Broken::new(Breakage::Calls(Call::LinesLossy));
    let clients: Vec<Tenure> = (0..CLIENTS).map(|_| connect(&setup)).collect();
    let sections: Vec<Section> = std::thread::scope(|scope| {
        let works: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(client, tenure)| scope.spawn(move || work(tenure, client)))
            .collect();
        works.into_iter().flat_map(|work| work.join().expect("no panic")).collect()
    });
    assert!(sections.len() > CLIENTS, "some work was done: {}", sections.len());
    assert_eq!(overlaps(&sections), [], "two clients worked at once");
    assert_eq!(stale_tokens(&sections), [], "a later lease had no larger token");
    let until = SystemClock.now() + Duration::from_secs(20);
    while !pollster::block_on(clients[0].inspect("x")).expect("answers").is_empty() {
        assert!(SystemClock.now() < until, "something is left that nobody holds or waits for");
        std::thread::yield_now();
    }
}
