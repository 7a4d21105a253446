//! How many requests wait and how many streams are open, in all and of each token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::access::Caller;
use crate::problem::{OVERLOADED, Problem, RATE};

/// How long somebody should wait who is one too many.
const AGAIN_IN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Waiting {
    /// Of what it has places.
    what: &'static str,
    most: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    of_tokens: HashMap<String, usize>,
}

/// The place of one request that waits.
#[derive(Debug)]
pub(crate) struct WaitingPlace {
    waiting: Arc<Waiting>,
    token: Option<String>,
}

impl Waiting {
    pub(crate) fn new(what: &'static str, most: usize) -> Waiting {
        Waiting { what, most, counts: Mutex::default() }
    }

    /// How many wait now, and may at most.
    pub(crate) fn used(&self) -> (usize, usize) {
        (self.counts().all, self.most)
    }

    /// How many of a token wait now.
    pub(crate) fn of_token(&self, name: &str) -> usize {
        self.counts().of_tokens.get(name).copied().unwrap_or_default()
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // A panic elsewhere cannot leave it half-changed.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a request wait, if it may.
    pub(crate) fn enter(self: &Arc<Waiting>, caller: &Caller) -> Result<WaitingPlace, Problem> {
        let mut counts = self.counts();
        if counts.all >= self.most {
            return Err(Problem::new(OVERLOADED, format!("{} {}, and no more may", self.most, self.what))
                .with_retry_after(AGAIN_IN));
        }
        let token = caller.waiting_max();
        if let Some((name, most)) = token {
            let count = counts.of_tokens.entry(name.to_owned()).or_default();
            if *count >= most {
                return Err(Problem::new(RATE, format!("of {name:?} {most} {}, and no more may", self.what))
                    .with_retry_after(AGAIN_IN));
            }
            *count += 1;
        }
        counts.all += 1;
        Ok(WaitingPlace { waiting: self.clone(), token: token.map(|(name, _)| name.to_owned()) })
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        let mut counts = self.waiting.counts();
        counts.all -= 1;
        if let Some(token) = &self.token
            && let Some(count) = counts.of_tokens.get_mut(token)
        {
            *count -= 1;
            if *count == 0 {
                counts.of_tokens.remove(token);
            }
        }
    }
}
