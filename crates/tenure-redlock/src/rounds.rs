//! What asks the servers: each verb is one call of all of them side by side, whose answers `quorum` judges.

pub(crate) mod claims;
pub(crate) mod holds;
pub(crate) mod node;
pub(crate) mod notices;
pub(crate) mod observe;
pub(crate) mod own;
pub(crate) mod pending;
mod server_clock;
pub(crate) mod text;
pub(crate) mod values;
pub(crate) mod view;
pub(crate) mod wire;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::select_all;
use tenure_core::clock::Clock;
use tenure_core::engine::Incarnation;
use tenure_core::model::claim::{Claim, Kind, Name};
use tenure_core::{Error, ErrorKind, Result};
use tenure_redis::server::{CALL_TIMEOUT, Fault, Keys};
use tokio::time::Instant;

use crate::quorum::majority;
use node::Node;
use notices::Notices;
use own::Owned;

/// The one word for this engine.
pub(crate) const ENGINE: &str = "redlock";
/// The most claims, renewals or releases in one call.
pub(crate) const BATCH_MAX: usize = 128;
/// The most slots of a pool: each is a lock of its own.
const SLOTS_MAX: u32 = 1024;
/// Why there are no semaphores.
pub(crate) const UNITS: &str = "a majority of servers cannot count units: of two units on three servers, three clients may each be granted one by two \
    servers; a slot pool, whose slots are locks of their own, can be used in place of a semaphore";
/// Servers come and go one by one: the quorum has one life.
pub(crate) const INCARNATION: Incarnation = Incarnation(0);

/// The servers, and what a client keeps about them.
pub(crate) struct Quorum {
    pub(crate) nodes: Vec<Node>,
    pub(crate) keys: Keys,
    pub(crate) shared_keys: [String; 4],
    pub(crate) max_ttl: Duration,
    /// Deadlines of leases are counted by it, and proposals are its time of day.
    pub(crate) clock: Arc<dyn Clock>,
    #[cfg(any(test, feature = "testing"))]
    pub(crate) has_plain_tokens: bool,
    pub(crate) owned: Mutex<Owned>,
    pub(crate) notices: Notices,
    pub(crate) stamps: AtomicU64,
    /// Held while it is decided which of two links has a server's vote.
    pub(crate) counted_once: Mutex<()>,
}

impl Quorum {
    pub(crate) fn owned(&self) -> MutexGuard<'_, Owned> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of a resource; names that have none are refused before.
    pub(crate) fn key_text(&self, resource: &Name) -> String {
        self.keys.of(resource).map(|key| key.text).unwrap_or_default()
    }

    fn note_stamp(&self) {
        self.stamps.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the largest number that any server has granted is the token, without being written back. Tests see what goes wrong
    /// then; no other build can do it.
    fn has_plain_tokens(&self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        return self.has_plain_tokens;
        #[cfg(not(any(test, feature = "testing")))]
        return false;
    }

    /// Refuses what a quorum cannot do.
    pub(crate) fn check(&self, claim: &Claim) -> Result<()> {
        self.keys.of(&claim.resource)?;
        let terms = &claim.terms;
        let refused = |kind, message: String, hint: &str| {
            let refused = Error::new(kind, "claim", message).with_hint(hint);
            Err(refused.with_no_effect())
        };
        if terms.kind == Kind::Semaphore {
            return refused(ErrorKind::Unsupported, UNITS.to_owned(), "use a slot pool, or another engine");
        }
        if terms.kind == Kind::SlotPool && terms.capacity > SLOTS_MAX {
            return refused(
                ErrorKind::Unsupported,
                format!("a pool of {} slots on a quorum", terms.capacity),
                "each slot is a lock of its own: up to 1024 are possible",
            );
        }
        if terms.weight == 0 || terms.weight > terms.capacity {
            return refused(
                ErrorKind::Invalid,
                "the weight does not fit the capacity".to_owned(),
                "see the limits of the kind",
            );
        }
        if let Some(longest) = self.falls_short() {
            let longest = Duration::from_millis(longest);
            return refused(
                ErrorKind::Invalid,
                format!("`max_ttl` is {:?} here and {longest:?} on the servers", self.max_ttl),
                "name theirs in the URL, or raise it for all clients: `tenure doctor --init` with this URL",
            );
        }
        if terms.ttl > self.max_ttl {
            return refused(
                ErrorKind::Unsupported,
                format!(
                    "a ttl of {:?} is longer than `max_ttl` of the engine, {:?}",
                    terms.ttl, self.max_ttl
                ),
                "a server that has forgotten its holds waits for `max_ttl`: raise it in the URL of all clients, or shorten the ttl",
            );
        }
        Ok(())
    }
}

impl Quorum {
    /// Waits until a majority of the servers is connected, or says why it is not.
    pub(crate) async fn wait_for_a_majority(&self) -> Result<()> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let mut coming: Vec<_> = self.nodes.iter().map(|node| Box::pin(node.wire.ready(deadline))).collect();
        let mut up = 0;
        let mut away = BTreeSet::new();
        while up < majority(self.nodes.len()) {
            if coming.is_empty() {
                // One of them alone would look like the one that is to blame.
                let why = away.into_iter().collect::<Vec<_>>().join("; ");
                return Err(Error::new(ErrorKind::Unavailable, "connect", why)
                    .with_hint("are most of the servers running and reachable? try `tenure doctor`")
                    .with_no_effect());
            }
            let (came, _, others) = select_all(coming).await;
            coming = others;
            match came {
                Ok(_) => up += 1,
                // What is wrong with the settings is wrong everywhere.
                Err(fault) if matches!(&fault, Fault::Down { last } if last.is_permanent()) => {
                    return Err(fault.to_error("connect"));
                }
                Err(fault) => {
                    away.insert(fault.to_string());
                }
            }
        }
        Ok(())
    }
}
