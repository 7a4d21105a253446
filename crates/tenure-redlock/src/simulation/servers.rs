//! The servers of a world: their keys, clocks and lives, and what goes wrong with them.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::Lease;

use super::MAX_TTL;
use super::store::{Data, Key, Keys};
use super::time::Time;

/// The most snapshots that a server may start from.
const SNAPSHOTS_MAX: usize = 4;
/// For how long a server waits that has started anew, by its clock.
const QUARANTINE: Duration = Duration::from_secs(MAX_TTL.as_secs() + 2);

/// A server.
pub(crate) struct Server {
    pub(crate) keys: Keys,
    snapshots: Vec<Keys>,
    /// Which run it is.
    pub(crate) incarnation: u64,
    pub(crate) is_up: bool,
    pub(crate) hung_until: u64,
    /// How much faster its clock runs, in millionths, and how far it is ahead, in microseconds.
    rate: i64,
    ahead: i64,
}

impl Server {
    pub(crate) fn new(incarnation: u64, rate: i64) -> Server {
        let (keys, snapshots) = (Keys::default(), Vec::new());
        Server { keys, snapshots, incarnation, is_up: true, hung_until: 0, rate, ahead: 0 }
    }

    /// What its clock shows, in microseconds.
    pub(crate) fn clock(&self, time: Time) -> u64 {
        time.of_day(self.rate, self.ahead)
    }

    pub(crate) fn step(&mut self, micros: i64) {
        self.ahead += micros;
    }

    /// Keeps what it has now, so that it may start from it.
    pub(crate) fn save(&mut self) {
        if self.snapshots.len() == SNAPSHOTS_MAX {
            self.snapshots.remove(0);
        }
        self.snapshots.push(self.keys.clone());
    }

    /// It starts again: with all that it had, with nothing, or with each key as it was in any of its snapshots.
    pub(crate) fn start_again(&mut self, incarnation: u64, random: &mut fastrand::Rng) {
        (self.incarnation, self.is_up) = (incarnation, true);
        match random.u8(..4) {
            0 => {}
            1 => self.keys.keys.clear(),
            _ => {
                self.save();
                let names: BTreeSet<&Vec<u8>> =
                    self.snapshots.iter().flat_map(|keys| keys.keys.keys()).collect();
                let of_a_snapshot = |name: &&Vec<u8>| {
                    let keys = &random.choice(&self.snapshots)?.keys;
                    Some(((*name).clone(), keys.get(*name)?.clone()))
                };
                self.keys.keys = names.iter().filter_map(of_a_snapshot).collect();
            }
        }
    }

    /// A key goes by itself. Not what says for how long the server waits: without it tokens may repeat, as its page says.
    pub(crate) fn lose_a_key(&mut self, random: &mut fastrand::Rng) {
        let is_lost = |name: &&Vec<u8>| !name.ends_with(b"wait") && !name.ends_with(b"seen");
        let names: Vec<Vec<u8>> = self.keys.keys.keys().filter(is_lost).cloned().collect();
        if let Some(name) = random.choice(&names) {
            self.keys.keys.remove(name);
        }
    }

    fn text(&self, key: &str) -> Option<String> {
        match &self.keys.keys.get(key.as_bytes())?.data {
            Data::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        }
    }

    /// Whether its word counts.
    pub(crate) fn counts(&self) -> bool {
        let marker = self.text("tenure.1.boot").unwrap_or_default();
        let run = marker.split(' ').next().and_then(|run| run.parse().ok());
        run == Some(self.incarnation) && self.text("tenure.1.max").is_some()
    }

    /// For how much of the world's time it grants a resource to nobody else than this claim, in nanoseconds at the
    /// least.
    pub(crate) fn keeps(&self, time: Time, lease: &Lease) -> u64 {
        let now = self.clock(time);
        let in_world = |micros: u64| {
            let left = micros.saturating_sub(now) as f64 * 1000.0;
            (left / (1.0 + self.rate as f64 / 1e6)) as u64
        };
        let left_of = |key: &Key| key.ends.map_or(0, |ends| in_world((ends + 1) * 1000));
        let mut kept = self.hold_ends(lease).map_or(0, |millis| in_world(millis * 1000));
        if !self.is_up {
            // Whenever it is back, it waits.
            return QUARANTINE.as_nanos() as u64;
        }
        if !self.counts() {
            let waits = if self.text("tenure.1.seen") == Some(self.incarnation.to_string()) {
                self.keys.keys.get(&b"tenure.1.wait"[..]).map_or(0, left_of)
            } else {
                QUARANTINE.as_nanos() as u64
            };
            kept = kept.max(waits);
        }
        kept
    }

    /// When its hold of a claim comes free, in milliseconds of its clock.
    fn hold_ends(&self, lease: &Lease) -> Option<u64> {
        let id = lease.claim().to_string();
        let key = format!("tenure:{}", lease.resource());
        if let Some(Key { data: Data::Text(text), ends: Some(ends) }) = self.keys.keys.get(key.as_bytes()) {
            return text.starts_with(id.as_bytes()).then_some(ends + 1);
        }
        let beside =
            |letter: char| Some(&self.keys.keys.get(format!("tenure.1.{letter}:{key}").as_bytes())?.data);
        // Of a pool, a hold of another slot keeps nobody out of this one.
        if let (Some(slot), Some(Data::Hash(texts))) = (lease.slot(), beside('T')) {
            let text = String::from_utf8_lossy(texts.get(id.as_bytes())?);
            if text.split(' ').nth(10) != Some(&slot.to_string()) {
                return None;
            }
        }
        match beside('H')? {
            Data::Sorted(ends) => ends.get(id.as_bytes()).map(|ends| *ends as u64),
            _ => None,
        }
    }
}
