//! What this client knows of its own rows in the table of idle clients: a hint that saves statements, and no truth.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::model::claim::Name;
use tokio::time::Instant;

/// After how long a note is written again: between two polls of a client that is not woken, so that one that was
/// called and did not hear it is called again.
const AGAIN: Duration = Duration::from_secs(4);

/// One queue in which this client is idle.
#[derive(Clone, Copy, Debug)]
struct Note {
    at: Instant,
    /// How many were idle for longer. `None`: some of them have left.
    place: Option<usize>,
}

/// The queues in which this client is idle.
#[derive(Debug, Default)]
pub(crate) struct Idle(Mutex<HashMap<Name, Note>>);

impl Idle {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Note>> {
        // A panic elsewhere cannot leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, queue: &Name, place: usize) {
        self.lock().insert(queue.clone(), Note { at: Instant::now(), place: Some(place) });
    }

    /// Returns how many clients are idle for longer, if this one is noted as idle and need not be again.
    pub(crate) fn place(&self, queue: &Name) -> Option<usize> {
        self.lock().get(queue).filter(|note| note.at.elapsed() < AGAIN)?.place
    }

    /// A client that was idle for longer has left: the place is another one.
    pub(crate) fn advance(&self, queue: &Name) {
        if let Some(note) = self.lock().get_mut(queue) {
            note.place = None;
        }
    }

    pub(crate) fn has(&self, queue: &Name) -> bool {
        self.lock().contains_key(queue)
    }

    /// Forgets a queue, and returns whether it was noted.
    pub(crate) fn forget(&self, queue: &Name) -> bool {
        self.lock().remove(queue).is_some()
    }

    /// Forgets all, and returns which they were.
    pub(crate) fn forget_all(&self) -> Vec<Name> {
        self.lock().drain().map(|(queue, _)| queue).collect()
    }
}
