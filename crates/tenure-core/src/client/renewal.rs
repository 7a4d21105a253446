//! One scheduler for all leases and waiters of a process.
//!
//! Made for a million leases: no task, thread or timer for each, but buckets of about a millisecond in one
//! ordered map. Setting, moving and removing cost one look-up among the buckets (a few thousand of them at
//! most), and nothing stale is left behind. A binary heap was rejected: either it keeps an entry for every
//! lease that was released meanwhile, or it pays twenty cache misses for each change.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Instant;

/// The width of a bucket is 2^20 ns, 1.05 ms: less than the margin of every deadline.
const GRAIN_BITS: u32 = 20;

/// How late an entry may come up: the width of one bucket.
pub(crate) const GRAIN: Duration = Duration::from_nanos(1 << GRAIN_BITS);

/// When which entry is due. An entry is a small number, dense from 0, as a slab gives them out.
#[derive(Default)]
pub(crate) struct Schedule {
    buckets: BTreeMap<u64, Vec<u32>>,
    /// For each entry its bucket and its index in it. Bucket 0: not scheduled.
    places: Vec<(u64, u32)>,
}

impl Schedule {
    /// Makes `entry` due at `at`, wherever it stood before. It comes up within [`GRAIN`] after that.
    pub(crate) fn set(&mut self, entry: u32, at: Instant) {
        let bucket = (at.nanos() >> GRAIN_BITS).saturating_add(1);
        if self.places.len() <= entry as usize {
            self.places.resize(entry as usize + 1, (0, 0));
        }
        if self.places[entry as usize].0 == bucket {
            return;
        }
        self.remove(entry);
        let entries = self.buckets.entry(bucket).or_default();
        self.places[entry as usize] = (bucket, entries.len() as u32);
        entries.push(entry);
    }

    /// Takes `entry` out.
    pub(crate) fn remove(&mut self, entry: u32) {
        let Some(place) = self.places.get_mut(entry as usize) else { return };
        let (bucket, index) = std::mem::take(place);
        if bucket == 0 {
            return;
        }
        let entries = self.buckets.get_mut(&bucket).expect("a scheduled entry's bucket exists");
        entries.swap_remove(index as usize);
        if let Some(&moved) = entries.get(index as usize) {
            self.places[moved as usize].1 = index;
        } else if entries.is_empty() {
            self.buckets.remove(&bucket);
        }
    }

    /// Moves up to `most` entries that are due at `now` to `due`, the earliest first.
    pub(crate) fn take_due(&mut self, now: Instant, most: usize, due: &mut Vec<u32>) {
        let this_bucket = now.nanos() >> GRAIN_BITS;
        while due.len() < most
            && let Some(mut first) = self.buckets.first_entry()
            && *first.key() <= this_bucket
        {
            let entries = first.get_mut();
            let keep = entries.len().saturating_sub(most - due.len());
            for entry in entries.drain(keep..) {
                self.places[entry as usize] = (0, 0);
                due.push(entry);
            }
            if entries.is_empty() {
                first.remove();
            }
        }
    }

    /// Returns when the next entry is due; [`Instant::NEVER`] if none is.
    pub(crate) fn next(&self) -> Instant {
        self.buckets
            .first_key_value()
            .map_or(Instant::NEVER, |(bucket, _)| Instant::from_nanos(bucket.saturating_mul(1 << GRAIN_BITS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[derive(Clone, Debug)]
    enum Change {
        Set(u32, u64),
        Remove(u32),
        Take(u64),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            (0u32..20, 0u64..200).prop_map(|(entry, at)| Change::Set(entry, at)),
            (0u32..20).prop_map(Change::Remove),
            (0u64..200).prop_map(Change::Take),
        ]
    }

    proptest! {
        #[test]
        fn every_entry_comes_up_once_in_time_and_never_early(
            changes in prop::collection::vec(change(), 0..200)
        ) {
            let mut schedule = Schedule::default();
            let mut expected = BTreeMap::new();
            for change in changes {
                match change {
                    Change::Set(entry, at) => {
                        schedule.set(entry, ms(at));
                        expected.insert(entry, at);
                    }
                    Change::Remove(entry) => {
                        schedule.remove(entry);
                        expected.remove(&entry);
                    }
                    Change::Take(now) => {
                        let mut due = Vec::new();
                        schedule.take_due(ms(now), usize::MAX, &mut due);
                        for entry in due {
                            let at = expected.remove(&entry).expect("only what is scheduled comes up");
                            prop_assert!(ms(at) <= ms(now));
                        }
                        for at in expected.values() {
                            prop_assert!(ms(*at) + GRAIN + GRAIN > ms(now));
                        }
                    }
                }
                let first = expected.values().min().map(|at| ms(*at));
                match first {
                    None => prop_assert_eq!(schedule.next(), Instant::NEVER),
                    Some(at) => prop_assert!(schedule.next() >= at && schedule.next() <= at + GRAIN),
                }
            }
        }
    }

    #[test]
    fn what_is_due_is_taken_in_portions() {
        let mut schedule = Schedule::default();
        (0..10).for_each(|entry| schedule.set(entry, ms(1)));
        let mut due = Vec::new();
        schedule.take_due(ms(5), 4, &mut due);
        assert_eq!(due.len(), 4);
        schedule.take_due(ms(5), usize::MAX, &mut due);
        assert_eq!(due.len(), 10);
        assert_eq!(schedule.next(), Instant::NEVER);
    }
}
