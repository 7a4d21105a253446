//! Values that one user loads for all: which were served, compared with those that were served before, and with how long they are to last.

use std::collections::HashMap;
use std::time::Duration;

use tenure_core::{Error, ErrorKind, Fetched, FetchedFrom, Lease, Result};

use super::users::User;
use super::{World, lock};

/// Two values, of which the second is served when it is no longer fresh. What two that set different periods keep of one value may be there when
/// the newest is not any more.
const KEYS: [&str; 2] = ["value", "value-or-stale"];
/// How long a value is fresh, and for how long after that it is served while another loads.
const FRESH: Duration = Duration::from_millis(300);
const STALE: Duration = Duration::from_millis(600);
/// How much longer a value may be there: clocks that do not run alike, and count milliseconds.
const GRAIN: Duration = Duration::from_millis(15);

/// What was served in a world.
#[derive(Default)]
pub(crate) struct Values {
    /// The largest token of each value that anybody was served.
    newest: [u64; KEYS.len()],
    /// When whoever loaded a value was told that it is kept.
    published: HashMap<(usize, u64), u64>,
}

impl World {
    /// Somebody was served the value of a token. It asked when `before` was the newest that anybody had been served.
    fn served_value(&self, key: usize, found: &Fetched, before: u64, asked: u64) {
        let token: u64 = String::from_utf8_lossy(&found.bytes).parse().expect("the token of its loader");
        self.note(token);
        let mut values = lock(&self.values);
        values.newest[key] = values.newest[key].max(token);
        let lasts = match found.source {
            FetchedFrom::Loaded(_) => {
                values.published.insert((key, token), self.time.now());
                return;
            }
            FetchedFrom::Fresh(_) => FRESH,
            FetchedFrom::Stale => FRESH + STALE,
        };
        if !self.is_promised {
            return;
        }
        if token < before {
            self.fail(format!("{token} was served, {:?}, after {before} had been", found.source));
        }
        let ended = values
            .published
            .get(&(key, token))
            .map(|published| published + (lasts + GRAIN).as_nanos() as u64);
        if let Some(ended) = ended.filter(|ended| *ended < asked) {
            let late = Duration::from_nanos(asked - ended);
            self.fail(format!("{token} was served, {:?}, {late:?} too late", found.source));
        }
    }
}

impl User {
    /// Gets the value, or loads it, or has it loaded anew, or forgotten.
    pub(crate) async fn value(&self) -> Result<()> {
        let world = &self.world;
        let (how, key, is_failing) =
            world.draw(|random| (random.u8(..12), random.usize(..KEYS.len()), random.u8(..10) == 0));
        let flight = self.tenure.single_flight(KEYS[key]).fresh(FRESH).ttl(world.ttl);
        let flight = if key == 1 { flight.serve_stale(STALE) } else { flight };
        let (before, asked) = (lock(&world.values).newest[key], world.time.now());
        let load = async |lease: &Lease| {
            self.clock.sleep(self.period(0.2)).await;
            if is_failing && world.is_faulty() {
                return Err(Error::new(ErrorKind::Unavailable, "load", "it does not want"));
            }
            Ok(lease.token().to_string().into_bytes())
        };
        let found = match how {
            0 if world.is_faulty() => {
                if self.patiently(flight.forget()).await.transpose()?.is_some() {
                    // What was served before is served to nobody any more.
                    let mut values = lock(&world.values);
                    values.newest[key] = values.newest[key].max(before + 1);
                }
                return Ok(());
            }
            1 if world.is_faulty() => self.patiently(flight.refresh(load)).await.transpose()?,
            _ => self.patiently(flight.get_or_refresh(load)).await.transpose()?,
        };
        if let Some(found) = found {
            world.count_served();
            world.served_value(key, &found, before, asked);
        }
        Ok(())
    }
}
