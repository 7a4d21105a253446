//! Entries that belong together: leases of which none is held longer than another, and those that are held only until
//! something else is granted.

use std::sync::{Arc, OnceLock};

use super::{Key, Ledger, Now, Phase, entry_of};
use crate::error::LossReason;

/// Entries of which none is held longer than another.
pub(crate) struct Bond {
    keys: Vec<Key>,
    /// Which of them was lost first, once one is.
    lost_first: OnceLock<usize>,
}

impl Bond {
    /// Returns which of the entries was lost first, counted as they were given to [`Ledger::bind`].
    pub(crate) fn lost_first(&self) -> Option<usize> {
        self.lost_first.get().copied()
    }
}

impl Ledger {
    /// Binds held leases together: when one is lost, all are. Returns `None` if one is lost already.
    pub(crate) fn bind(&mut self, now: &Now<'_>, keys: Vec<Key>) -> Option<Arc<Bond>> {
        for key in &keys {
            self.entry(*key).filter(|entry| entry.phase == Phase::Held && !entry.lease.is_over(now.at))?;
        }
        let bond = Arc::new(Bond { keys, lost_first: OnceLock::new() });
        self.bonds.extend(bond.keys.iter().map(|key| (key.index, bond.clone())));
        Some(bond)
    }

    /// A user has seen the deadline of a bound lease pass before the client's thread did.
    pub(crate) fn check_bond(&mut self, now: &Now<'_>, bond: &Bond) {
        for key in &bond.keys {
            let held = self.entry(*key).filter(|entry| entry.phase == Phase::Held);
            if held.is_some_and(|entry| entry.lease.is_over(now.at)) {
                return self.expire(now, key.index);
            }
        }
    }

    /// A lease is lost, and so are those that are bound to it. Their holds are not released: the work under them may
    /// still be ending. They are not renewed any more, so they end even if their user never lets go.
    pub(super) fn lose_bound(&mut self, now: &Now<'_>, index: u32) {
        let Some(bond) = self.bonds.remove(&index).filter(|_| !mutant!("sets-held-in-part")) else { return };
        for (number, key) in bond.keys.iter().enumerate() {
            if key.index == index {
                // Only the first loss comes here: it ends the bond for all.
                bond.lost_first.get_or_init(|| number);
                continue;
            }
            self.bonds.remove(&key.index);
            let entry = entry_of(&mut self.entries, *key).filter(|entry| entry.phase == Phase::Held);
            let Some(entry) = entry else { continue };
            let what = (entry.lease.resource(), entry.lease.token());
            let when = (entry.began, entry.lease.last_deadline(), now.at);
            let span = self.spans.remove(&key.index);
            self.watch.lost((entry.scope, false), span, what, (LossReason::LostWithSet, when));
            entry.phase = Phase::LostWithSet;
            entry.loss = Some(LossReason::LostWithSet);
            entry.lease.end();
            let lease = entry.lease.clone();
            self.notices.ended.push(lease);
            self.schedule.remove(key.index);
        }
    }

    /// Binds held leases to a claim: they go back if it fails, or is granted and not collected.
    pub(crate) fn stake(&mut self, on: Key, keys: Vec<Key>) {
        if !keys.is_empty() && self.entry(on).is_some() {
            self.stakes.insert(on.index, keys);
        }
    }

    /// Gives back what was held only for the sake of something else. Its user finds it lost.
    pub(super) fn give_back_stakes(&mut self, now: &Now<'_>, index: u32) {
        for key in self.stakes.remove(&index).unwrap_or_default() {
            let Some(entry) = self.entry(key).filter(|entry| entry.phase == Phase::Held) else { continue };
            let lease = entry.lease.clone();
            self.start_release(now, key.index, true);
            self.notices.ended.push(lease);
        }
    }
}
