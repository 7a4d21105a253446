//! How many of something a second: a bucket for each key, filled steadily, that holds one second.

use std::collections::HashMap;
use std::hash::Hash;

use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    since: Instant,
}

impl Bucket {
    fn fill(&mut self, most: u32, now: Instant) {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.left = (self.left + passed * f64::from(most)).min(f64::from(most));
        self.since = now;
    }
}

#[derive(Debug)]
pub(crate) struct Rates<K> {
    buckets: HashMap<K, Bucket>,
    keys_max: usize,
}

impl<K: Eq + Hash> Rates<K> {
    pub(crate) fn new(keys_max: usize) -> Rates<K> {
        Rates { buckets: HashMap::new(), keys_max }
    }

    /// Takes one. False: there is none left.
    pub(crate) fn take(&mut self, key: K, most: u32, now: Instant) -> bool {
        if self.buckets.len() >= self.keys_max && !self.buckets.contains_key(&key) {
            self.buckets.clear();
        }
        let full = Bucket { left: f64::from(most), since: now };
        let bucket = self.buckets.entry(key).or_insert(full);
        bucket.fill(most, now);
        let has_one = bucket.left >= 1.0;
        if has_one {
            bucket.left -= 1.0;
        }
        has_one
    }

    /// Whether there is none left.
    pub(crate) fn is_used_up(&mut self, key: &K, most: u32, now: Instant) -> bool {
        let Some(bucket) = self.buckets.get_mut(key) else { return false };
        bucket.fill(most, now);
        bucket.left < 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_second_brings_as_many_as_are_allowed_in_one() {
        let (mut rates, start) = (Rates::new(10), Instant::now());
        let taken = |rates: &mut Rates<u8>, at| (0..100).filter(|_| rates.take(1, 20, at)).count();
        assert_eq!(taken(&mut rates, start), 20);
        assert!(rates.is_used_up(&1, 20, start));
        assert!(!rates.is_used_up(&2, 20, start), "another one has its own");
        assert_eq!(taken(&mut rates, start + Duration::from_millis(500)), 10);
        assert_eq!(taken(&mut rates, start + Duration::from_secs(3600)), 20, "no more than a second's");
    }

    #[test]
    fn a_table_that_is_full_begins_anew() {
        let (mut rates, now) = (Rates::new(3), Instant::now());
        for key in 0..100 {
            assert!(rates.take(key, 1, now));
            assert!(rates.buckets.len() <= 3);
        }
    }
}
