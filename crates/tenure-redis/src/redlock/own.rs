//! What a client knows of its own claims: what it asked for, so that a heartbeat can ask again, and what it was granted.

use std::collections::HashMap;
use std::time::Duration;

use tenure_core::claim::{Claim, ClaimId};
use tenure_core::clock::Instant;
use tenure_core::step::waiter_life;
use tenure_core::token::Token;

/// How often what nobody asks about any more is looked for.
const TIDY_EVERY: Duration = Duration::from_secs(10);

/// A claim of this client.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) claim: Claim,
    /// How often it was asked for.
    pub(crate) attempt: u32,
    /// Its place among those that wait: the same number on all servers.
    pub(crate) ticket: u64,
    /// What it holds.
    pub(crate) held: Option<Held>,
    /// When its user was last heard of.
    pub(crate) heard_at: Instant,
    /// Some server has not answered to it: a copy may be under way.
    pub(crate) has_stray_copy: bool,
}

/// What a claim was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) token: Token,
    pub(crate) slot: Option<u32>,
}

/// All claims of a client.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    claims: HashMap<ClaimId, Own>,
    last_ticket: u64,
    tidied_at: Option<Instant>,
}

/// The place of a claim that does not wait: behind all that do.
pub(crate) const NO_TICKET: u64 = (1 << 53) - 1;

impl Owned {
    pub(crate) fn get(&self, claim: ClaimId) -> Option<&Own> {
        self.claims.get(&claim)
    }

    pub(crate) fn get_mut(&mut self, claim: ClaimId) -> Option<&mut Own> {
        self.claims.get_mut(&claim)
    }

    /// Notes that a claim is about to be asked for, once more or for the first time. `wall` is the time of day in microseconds.
    pub(crate) fn ask(&mut self, claim: &Claim, wall: u64, now: Instant) -> Own {
        let last_ticket = &mut self.last_ticket;
        let own = self.claims.entry(claim.id).or_insert_with(|| {
            let mut ticket = NO_TICKET;
            if claim.wait {
                *last_ticket = wall.max(*last_ticket + 1);
                ticket = *last_ticket;
            }
            Own { claim: claim.clone(), attempt: 0, ticket, held: None, heard_at: now, has_stray_copy: false }
        });
        own.attempt += 1;
        own.heard_at = now;
        let asked = own.clone();
        // Until it is answered: whoever waits for the answer may give up.
        own.has_stray_copy = true;
        asked
    }

    pub(crate) fn remove(&mut self, claim: ClaimId) -> Option<Own> {
        self.claims.remove(&claim)
    }

    /// Returns claims that wait although their users were not heard of for too long, and forgets those and all else that
    /// nobody asks about any more.
    pub(crate) fn tidy(&mut self, now: Instant) {
        if self.tidied_at.is_some_and(|at| now.since(at) < TIDY_EVERY) {
            return;
        }
        self.tidied_at = Some(now);
        self.claims.retain(|_, own| now.since(own.heard_at) < 2 * own.claim.terms.ttl + TIDY_EVERY);
    }
}

impl Own {
    /// Whether it waits, and its user was not heard of for so long that its place is lost.
    pub(crate) fn has_gone(&self, now: Instant) -> bool {
        self.held.is_none() && now.since(self.heard_at) > waiter_life(self.claim.terms.ttl)
    }
}
