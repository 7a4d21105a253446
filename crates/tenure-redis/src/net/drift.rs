//! Notices that a server's wall clock was set, by which Redis counts how long keys live.
//!
//! A clock that is set forward ends holds before their time, and no client can prevent that. But it can find out
//! soon, by a check of all its holds, and not only when the next renewal is due. Each answer brings the server's
//! time; it was read between the sending and the answer, so two answers between which the distance to the machine's
//! own clock cannot have stayed the same prove a step. A server that is merely slow proves nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::clock::{Instant, Timestamp};
use tenure_core::engine::Incarnation;

/// How far two clocks may drift apart without having been set: this much, and a hundredth of the time in between.
const SLACK: Duration = Duration::from_millis(100);
/// After this long a new distance counts, however inexact.
const REFRESH_AFTER: Duration = Duration::from_secs(10);

/// The distances between each server's clock and the machine's.
#[derive(Debug, Default)]
pub(crate) struct Drift(Mutex<HashMap<Incarnation, Distance>>);

/// Between which two numbers of microseconds a distance lies, and when that was found.
#[derive(Clone, Copy, Debug)]
struct Distance {
    least: i128,
    most: i128,
    at: Instant,
}

/// How far a clock was set, at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Forward(Duration),
    Back(Duration),
}

impl Drift {
    /// Records an answer: when its request was sent, when it came, and what the server's clock said. Returns the step that it proves.
    pub(crate) fn note(
        &self,
        server: Incarnation,
        sent: Instant,
        came: Instant,
        said: Timestamp,
    ) -> Option<Step> {
        let micros = |at: Instant| i128::from(at.nanos() / 1000);
        let said = i128::from(said.micros());
        let new = Distance { least: said - micros(came), most: said - micros(sent), at: came };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let old = all.insert(server, new)?;
        let passed = came.since(old.at);
        let slack = (SLACK + passed / 100).as_micros() as i128;
        let period = |micros: i128| Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        if new.least > old.most + slack {
            return Some(Step::Forward(period(new.least - old.most)));
        }
        if new.most < old.least - slack {
            return Some(Step::Back(period(old.least - new.most)));
        }
        // The more exact distance is kept.
        if new.most - new.least > old.most - old.least && passed < REFRESH_AFTER {
            all.insert(server, old);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Incarnation = Incarnation(1);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn says(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1000)
    }

    #[test]
    fn a_step_is_noticed_whatever_the_answers_take() {
        let drift = Drift::default();
        assert_eq!(drift.note(SERVER, at(0), at(10), says(5)), None);
        let step = drift.note(SERVER, at(20), at(1020), says(2025));
        assert!(
            matches!(step, Some(Step::Forward(period)) if period > Duration::from_millis(900)),
            "{step:?}"
        );
        let step = drift.note(SERVER, at(2000), at(2001), says(1000));
        assert!(matches!(step, Some(Step::Back(_))), "{step:?}");
    }

    #[test]
    fn a_slow_answer_is_no_step() {
        let drift = Drift::default();
        assert_eq!(drift.note(SERVER, at(0), at(1), says(0)), None);
        assert_eq!(drift.note(SERVER, at(10), at(1900), says(1890)), None);
        assert_eq!(drift.note(SERVER, at(2000), at(2001), says(2000)), None);
    }

    #[test]
    fn clocks_may_run_a_little_apart_and_servers_differ() {
        let drift = Drift::default();
        for second in 0..100 {
            let (sent, came) = (at(second * 1000), at(second * 1000 + 1));
            assert_eq!(drift.note(SERVER, sent, came, says(second * 1005)), None, "{second}");
            assert_eq!(drift.note(Incarnation(2), sent, came, says(second * 1000 + 77_000)), None);
        }
    }
}
