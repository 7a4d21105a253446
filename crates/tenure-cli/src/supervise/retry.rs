//! How long a store that does not answer is asked again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tenure::Instant;

use super::supervisor::Supervisor;
use crate::clock;
use crate::duration::format_duration;
use crate::exit::{Ended, Failure};

/// The first pause and the longest one. They double, and each is shortened by up to a half at random: a crowd that a server has
/// refused must not come back as one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Asking again, within the time that the user gave.
pub(crate) struct Retry {
    /// `None`: for ever.
    until: Option<Instant>,
    pause: Duration,
    has_warned: bool,
}

impl Retry {
    /// Begins now; with `None`, without an end.
    pub(crate) fn new(wait: Option<Duration>) -> Retry {
        Retry { until: wait.map(|wait| clock::now() + wait), pause: PAUSE_MIN, has_warned: false }
    }

    /// Returns how much of the time is left; `None` means for ever.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.since(clock::now()))
    }

    /// Begins again with short pauses: the store has answered.
    pub(crate) fn reset(&mut self) {
        (self.pause, self.has_warned) = (PAUSE_MIN, false);
    }

    /// Lets some time pass after a failure, and warns of it the first time. Fails with it when there is no time left.
    pub(crate) fn pause(&mut self, failure: Failure, supervisor: Supervisor<'_>) -> Result<(), Ended> {
        let left = self.left();
        let pause = jittered(self.pause);
        if left.is_some_and(|left| left <= pause) {
            return Err(failure.into());
        }
        if !self.has_warned {
            let how_long =
                left.map_or("until it does".to_owned(), |left| format!("for {}", format_duration(left)));
            supervisor.messages.warning(&format!("{}; asking again {how_long}", failure.message));
        }
        self.has_warned = true;
        self.pause = longer(self.pause);
        supervisor.sleep(pause)
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(PAUSE_MAX)
}

fn jittered(pause: Duration) -> Duration {
    // The keys of a hasher are the randomness that the standard library has.
    let random = RandomState::new().hash_one(0) % 1024;
    pause / 2 + pause.mul_f64(random as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    // page: docs/concepts/backoff.md "ask an engine that does not answer again | 100 ms | 5 s"
    #[test]
    fn pauses_double_from_100_ms_to_5_s() {
        let pauses = std::iter::successors(Some(PAUSE_MIN), |pause| Some(longer(*pause)));
        let millis: Vec<_> = pauses.take(8).map(|pause| pause.as_millis()).collect();
        assert_eq!(millis, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[test]
    fn pauses_differ_and_stay_within_their_bounds() {
        let pauses: Vec<Duration> = (0..64).map(|_| jittered(PAUSE_MAX)).collect();
        assert!(pauses.iter().all(|pause| (PAUSE_MAX / 2..=PAUSE_MAX).contains(pause)), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
