//! Clearing up after the dead: what they held and no client asked for again, and their files.
//!
//! A client that waits for something that a dead client holds ends it at once. But a name may never be asked for
//! again. So the thread of every store, once it has nothing better to do, finds the files of dead clients,
//! walks over all records to end what was theirs, and then removes the files. The walk is done in steps of a few
//! records, each a transaction, between jobs; one process of the directory sweeps at a time.

use std::os::fd::OwnedFd;

use tenure_core::model::claim::{ClientId, Name};
use tenure_core::model::step::Vanish;

use crate::client::liveness;
use crate::error::Fault;
use crate::store::Store;

/// How many files, and how many records, one step reads.
const STEP_MAX: usize = 32;

/// A sweep under way.
pub(crate) enum Sweep {
    /// Looking for the dead.
    Looking { lock: OwnedFd, clients: Vec<ClientId>, dead: Vec<ClientId> },
    /// Walking over the records.
    Walking { lock: OwnedFd, dead: Vec<ClientId>, after: Option<Name> },
    /// Nothing is left to do.
    Done,
}

impl Sweep {
    /// Begins, unless another process is at it.
    pub(crate) fn begin(store: &Store) -> Sweep {
        match store.directory.lock_sweep() {
            Some(lock) => {
                let clients = liveness::clients(&store.directory);
                Sweep::Looking { lock, clients, dead: Vec::new() }
            }
            None => Sweep::Done,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Sweep::Done)
    }

    /// Does a little.
    pub(crate) fn step(self, store: &Store) -> Sweep {
        match self {
            Sweep::Looking { lock, mut clients, mut dead } => {
                let some = clients.split_off(clients.len().saturating_sub(STEP_MAX));
                dead.extend(some.into_iter().filter(|client| store.is_dead(*client)));
                match (clients.is_empty(), dead.is_empty()) {
                    (false, _) => Sweep::Looking { lock, clients, dead },
                    (true, true) => Sweep::Done,
                    (true, false) => Sweep::Walking { lock, dead, after: None },
                }
            }
            Sweep::Walking { lock, dead, after } => match walk(store, &dead, after.as_ref()) {
                Ok(Some(last)) => Sweep::Walking { lock, dead, after: Some(last) },
                Ok(None) => {
                    for client in dead {
                        liveness::remove_file(&store.directory, client);
                    }
                    Sweep::Done
                }
                // The next process that connects tries again.
                Err(_) => Sweep::Done,
            },
            Sweep::Done => Sweep::Done,
        }
    }
}

/// Ends what the dead hold in some records. Returns the last one that was read; none at the end.
fn walk(store: &Store, dead: &[ClientId], after: Option<&Name>) -> Result<Option<Name>, Fault> {
    let (last, refused) = store.transact(|transaction| {
        let names = transaction.names("", after, STEP_MAX)?;
        for name in &names {
            for client in transaction.clients_among(name, dead)? {
                transaction.step(name, &Vanish(client))?;
            }
        }
        Ok(names.last().cloned())
    })?;
    store.reap(refused)?;
    Ok(last)
}
