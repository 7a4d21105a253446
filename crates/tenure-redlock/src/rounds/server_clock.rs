//! What a client knows of the clock of one server, from its answers.

use std::sync::{Mutex, PoisonError};

use tenure_core::clock::Instant;

/// The clocks of a server and of a client go apart by no more than one part of so many.
const APART: i64 = 100;
/// A clock that seems to be behind by more than any answer takes was set back, in microseconds.
const SET_BACK: i64 = 3_000_000;

/// How far a server's clock is ahead of this client's at the least, in microseconds, and when it was. `None`: it has never answered.
#[derive(Default)]
pub(crate) struct ServerClock(Mutex<Option<(i64, Instant)>>);

impl ServerClock {
    /// Takes in what it showed, in microseconds, before this client's clock showed `heard`. Returns what this client's showed then, or a little
    /// later.
    ///
    /// An answer that took long says little: an earlier one counts, less what clocks may have gone apart since.
    pub(crate) fn note(&self, theirs: u64, heard: Instant) -> Instant {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let by_this = theirs.cast_signed() - micros(heard);
        let by_earlier = known.map(|(ahead, then)| ahead - (micros(heard) - micros(then)) / APART);
        let ahead = by_earlier.filter(|ahead| ahead - by_this < SET_BACK).unwrap_or(by_this).max(by_this);
        *known = Some((ahead, heard));
        Instant::from_nanos((theirs.cast_signed() - ahead).max(0).cast_unsigned() * 1_000)
    }

    /// What it showed when this client's showed that, or a little earlier, in ms: 0 if it has never answered.
    pub(crate) fn at(&self, moment: Instant) -> u64 {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.map_or(0, |(ahead, _)| ((micros(moment) + ahead) / 1_000).max(0).cast_unsigned())
    }
}

fn micros(moment: Instant) -> i64 {
    (moment.nanos() / 1_000).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn the_quickest_answer_counts_until_clocks_may_have_gone_apart_or_one_is_set() {
        let clock = ServerClock::default();
        assert_eq!(clock.at(ms(10)), 0, "it has never answered");
        assert_eq!(clock.note(500_000, ms(100)), ms(100));
        assert_eq!(clock.at(ms(110)), 510);
        // Another answer was under way for 40 ms.
        assert_eq!(clock.note(600_000, ms(240)), Instant::from_nanos(201_400_000));
        assert_eq!(clock.at(ms(240)), 638, "less what clocks go apart in 140 ms");
        // It was set ahead, and then back.
        clock.note(9_000_000, ms(300));
        assert_eq!(clock.at(ms(300)), 9_000);
        assert_eq!(clock.note(700_000, ms(400)), ms(400));
        assert_eq!(clock.at(ms(400)), 700);
    }
}
