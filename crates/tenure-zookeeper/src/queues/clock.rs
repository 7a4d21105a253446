//! The queues' clock: what the leader's says.
//!
//! ZooKeeper shows no clock, but the `mtime` of a node is the time of day at which the leader prepared the last write of it,
//! in whole milliseconds. So a client learns the time when it writes. Each change of a queue is such a reading, and a client
//! that has none that is fresh writes the queues' own node. Between readings a client counts on with its monotonic clock, and
//! knows how much it may be wrong: as long as the write took, and a millisecond, less what later readings rule out.
//!
//! The number of a transaction says in which *epoch* it was made, that is under which leader. Another leader has another clock: of
//! earlier readings nothing is known then. A queue's own clock never goes back (its head says what time it was last), so a leader that
//! is behind makes what is due come later, by as much as it is behind. One that is ahead makes it come earlier by as much, which is
//! why the servers' clocks must agree.
//!
//! Rejected: the clients' clocks, of which there are more; and a count of the leader's ticks, which is never shown.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::clock::{Instant, Timestamp};
use tenure_ordered::Moment;
use zookeeper_client::Stat;

/// For so long one counts on from a reading: the leader may be another by then, and a clock may have been set.
const FRESH: Duration = Duration::from_secs(3);
/// How far two clocks that count seconds go apart in a second: each is slewed by 500 parts in a million at most.
const DRIFT_PART: u128 = 1000;
/// How exactly a node says when it was written, in microseconds.
const GRAIN: i128 = 1000;

/// What is known of the time: how far the leader's clock is ahead of this machine's, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    epoch: i64,
    least: i128,
    most: i128,
    at: Instant,
}

fn micros(instant: Instant) -> i128 {
    i128::from(instant.nanos() / 1000)
}

impl Known {
    /// Reads the time of a write: it was made at some moment from `sent` to `heard`.
    fn read(stat: &Stat, sent: Instant, heard: Instant) -> Known {
        let written = i128::from(stat.mtime) * 1000;
        // Rounded so that neither is too narrow.
        let (least, most) = (written - micros(heard) - 1, written + GRAIN - micros(sent) + 1);
        Known { epoch: stat.mzxid >> 32, least, most, at: heard }
    }

    /// What is still sure of it.
    fn at(self, now: Instant) -> Known {
        let drift = i128::try_from(now.since(self.at).as_micros() / DRIFT_PART).unwrap_or(i128::MAX);
        Known { least: self.least - drift, most: self.most + drift, at: now.max(self.at), ..self }
    }

    /// Takes in a later reading.
    fn and(self, later: Known) -> Known {
        let earlier = self.at(later.at);
        let both =
            Known { least: earlier.least.max(later.least), most: earlier.most.min(later.most), ..later };
        // If they contradict, the clock was set, or is another one.
        if self.epoch == later.epoch && both.least <= both.most { both } else { later }
    }

    fn moment(self, now: Instant) -> Moment {
        let Known { epoch, least, most, .. } = self.at(now);
        let stamp =
            |ahead: i128| Timestamp::from_micros(u64::try_from(micros(now) + ahead).unwrap_or_default());
        Moment { earliest: stamp(least), latest: stamp(most + 1), epoch }
    }
}

/// The clock of one client's queues.
#[derive(Debug, Default)]
pub(crate) struct QueueClock(Mutex<Option<Known>>);

impl QueueClock {
    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time, if it was read lately.
    pub(crate) fn time(&self, now: Instant) -> Option<Moment> {
        let known = *self.known();
        known.filter(|known| now.since(known.at) < FRESH).map(|known| known.moment(now))
    }

    /// A write was made at some moment from `sent` to `heard`.
    pub(crate) fn note(&self, stat: &Stat, sent: Instant, heard: Instant) {
        let later = Known::read(stat, sent, heard);
        let mut known = self.known();
        *known = Some(match *known {
            // Of two at once, the one that was heard first.
            Some(known) if known.at > heard => known,
            Some(known) => known.and(later),
            None => later,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leader's clock: it shows 100 s when this machine counts 10 s.
    fn leader(at: Instant) -> i64 {
        i64::try_from(at.nanos() / 1_000_000).unwrap() + 90_000
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn stat(epoch: i64, mtime: i64) -> Stat {
        Stat {
            czxid: 0,
            mzxid: epoch << 32 | 7,
            pzxid: 0,
            ctime: 0,
            mtime,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        }
    }

    fn bounds(clock: &QueueClock, now: Instant) -> (i128, i128) {
        let moment = clock.time(now).expect("it is fresh");
        let of = |time: Timestamp| i128::from(time.micros()) - micros(now) - 90_000_000;
        (of(moment.earliest), of(moment.latest))
    }

    #[test]
    fn the_time_is_between_the_bounds_and_readings_narrow_them() {
        let clock = QueueClock::default();
        assert_eq!(clock.time(at(10_000_000)), None, "nothing was read");
        let mut last = i128::MAX;
        for (sent, made, heard) in [
            (10_000_000, 10_030_700, 10_040_000),
            (10_050_000, 10_050_100, 10_052_000),
            (10_060_000, 10_060_900, 10_061_000),
        ] {
            clock.note(&stat(1, leader(at(made))), at(sent), at(heard));
            let (least, most) = bounds(&clock, at(heard));
            assert!(least <= 0 && most >= 0, "{least} {most}");
            assert!(most - least < last, "a reading tells more");
            last = most - least;
        }
        assert!(last < 2100, "{last}");
        let (least, most) = bounds(&clock, at(11_061_000));
        assert_eq!(most - least, last + 2000, "less is known with time");
        assert_eq!(clock.time(at(13_061_000)), None, "and then nothing");
    }

    #[test]
    fn a_clock_that_was_set_is_another_one() {
        for (epoch, set) in [(1, -500), (1, 500), (2, 3)] {
            let clock = QueueClock::default();
            clock.note(&stat(1, leader(at(10_000_000))), at(10_000_000), at(10_001_000));
            clock.note(&stat(epoch, leader(at(10_100_000)) + set), at(10_090_000), at(10_110_000));
            let (least, most) = bounds(&clock, at(10_110_000));
            let set = i128::from(set) * 1000;
            assert!(least <= set && most >= set, "{least} {most} {set}");
            assert!(most - least > 20_000, "nothing of what was known before counts");
            assert_eq!(clock.time(at(10_110_000)).map(|moment| moment.epoch), Some(epoch));
        }
    }

    #[test]
    fn an_answer_that_comes_late_does_not_make_the_time_older() {
        let clock = QueueClock::default();
        clock.note(&stat(2, leader(at(10_100_000))), at(10_090_000), at(10_110_000));
        let before = clock.time(at(10_120_000));
        clock.note(&stat(1, leader(at(10_000_000)) + 700), at(10_000_000), at(10_105_000));
        assert_eq!(clock.time(at(10_120_000)), before);
    }
}
