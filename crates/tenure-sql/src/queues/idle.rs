//! What this client knows of its own rows in the table of idle clients: a hint that saves statements, and no truth.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::model::claim::Name;
use tenure_core::model::queue::step::{STANDBY, TURNS};
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
    /// When something was to be ready, as it was told last.
    due: Option<Instant>,
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
        self.lock().insert(queue.clone(), Note { at: Instant::now(), place: Some(place), due: None });
    }

    /// Returns how many clients are idle for longer, if this one is noted as idle and need not be again.
    pub(crate) fn place(&self, queue: &Name) -> Option<usize> {
        self.lock().get(queue).filter(|note| note.at.elapsed() < AGAIN)?.place
    }

    /// Something is to be ready after a while. Returns when this client is to poll, the `place`th to do so.
    pub(crate) fn turn(&self, queue: &Name, place: usize, next_in: Duration) -> Option<Duration> {
        if let Some(note) = self.lock().get_mut(queue) {
            note.due = Some(Instant::now() + next_in);
        }
        (place < TURNS).then(|| next_in + STANDBY * place as u32)
    }

    /// Whether this client takes in its turn what those have not taken whose turn was before.
    pub(crate) fn is_in_turn(&self, queue: &Name) -> bool {
        let note = self.lock().get(queue).copied();
        let turn = note.and_then(|note| Some((note.due?, note.place.filter(|place| *place > 0)?)));
        turn.is_some_and(|(due, place)| due.elapsed() >= STANDBY * place as u32 - STANDBY / 2)
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
