//! When each entry of the file of tokens was last used here, and how often: what nobody uses can be taken away.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<HashMap<String, Use>>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) last: Instant,
    pub(crate) requests: u64,
}

impl Uses {
    pub(crate) fn note(&self, name: &str, now: Instant) {
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match uses.get_mut(name) {
            Some(used) => *used = Use { last: now, requests: used.requests + 1 },
            None => drop(uses.insert(name.to_owned(), Use { last: now, requests: 1 })),
        }
    }

    pub(crate) fn of(&self, name: &str) -> Option<Use> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }
}
