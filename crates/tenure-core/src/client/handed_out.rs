//! An item on its way from the engine to the task that is to have it.

use std::sync::Arc;

use crate::client::connection::Connection;
use crate::client::lease_state::LeaseState;
use crate::client::ledger::Key;
use crate::engine::queue::{Dispatched, Rules, Settle, Settlement};

/// An item that no task has yet. Dropped, it goes back to the head of its group, and the attempt does not count.
pub(crate) struct HandedOut(Option<Parts>);

/// What a delivery is made of.
pub(crate) struct Parts {
    pub(crate) connection: Arc<Connection>,
    pub(crate) state: Arc<LeaseState>,
    pub(crate) key: Key,
    pub(crate) rules: Arc<Rules>,
    pub(crate) item: Dispatched,
}

impl HandedOut {
    pub(crate) fn new(parts: Parts) -> HandedOut {
        HandedOut(Some(parts))
    }

    /// Gives the item to its task. Returns `None` if it has gone back, because it came long before the task looked.
    pub(crate) fn collect(mut self) -> Option<Parts> {
        let Parts { connection, key, item, .. } = self.0.as_ref()?;
        let is_held = connection.shared.with_ledger(|ledger, now| {
            let is_held = ledger.hand_over(now.at, *key);
            if is_held {
                ledger.delivered(*key, item.attempt, item.age);
            }
            is_held
        });
        if is_held { self.0.take() } else { None }
    }
}

impl Drop for HandedOut {
    fn drop(&mut self) {
        let Some(Parts { connection, state, key, item, .. }) = self.0.take() else { return };
        let shared = &connection.shared;
        if shared.update_ledger(|ledger, now| ledger.disown(now, key)).is_none() {
            let (queue, settlement) = (state.resource().clone(), Settlement::Return);
            let settle = Settle { queue, claim: item.claim, settlement };
            drop(shared.start_settling(settle, state.last_deadline(), None));
        }
    }
}
