//! What a client knows of its own claims: what it asked for, so that a heartbeat can ask again, and what it was granted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::clock::Instant;
use tenure_core::model::claim::{Claim, ClaimId};
use tenure_core::model::step::waiter_life;
use tenure_core::model::token::Token;

/// How often claims that are not asked about any more are cleared away.
const TIDY_EVERY: Duration = Duration::from_secs(10);

/// A claim of this client.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) claim: Claim,
    /// How often it was asked for.
    pub(crate) attempt: u32,
    /// Its place among those that wait: the same number on all servers.
    pub(crate) ticket: u64,
    /// The largest horizon that it was told while it waited. Its token lies beyond, although a horizon of a quorum may be larger than all tokens
    /// (unless servers are an hour ahead: then no claim's proposal counts there).
    pub(crate) told: Token,
    /// What it holds.
    pub(crate) held: Option<Held>,
    /// When its user was last heard of.
    pub(crate) heard_at: Instant,
    /// What has become of the present attempt's copies.
    pub(crate) copies: Arc<Copies>,
    /// The servers that may execute a copy of an earlier attempt later than now, and those that an earlier attempt may have reached.
    stray: Servers,
    reached: Servers,
}

/// A set of servers: the lowest bit is the first one. No quorum has more than 64.
pub(crate) type Servers = u64;

/// What has become of the copies of one call, of which each server gets one.
#[derive(Debug)]
pub(crate) struct Copies {
    all: Servers,
    answered: AtomicU64,
    unsent: AtomicU64,
    lost: AtomicU64,
}

/// What has become of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    Answered,
    /// There was no connection.
    Unsent,
    /// It was sent, and will not be answered any more.
    Lost,
}

impl Copies {
    /// Of a call that is about to be made.
    pub(crate) fn new(servers: usize) -> Arc<Copies> {
        let all = (0..servers).fold(0, |all, at| all | 1 << at);
        Arc::new(Copies {
            all,
            answered: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    pub(crate) fn note(&self, server: usize, copy: Copy) {
        let servers = match copy {
            Copy::Answered => &self.answered,
            Copy::Unsent => &self.unsent,
            Copy::Lost => &self.lost,
        };
        servers.fetch_or(1 << server, Ordering::Relaxed);
    }

    fn known(servers: &AtomicU64) -> Servers {
        servers.load(Ordering::Relaxed)
    }

    /// Those that may execute it later than now.
    pub(crate) fn under_way(&self) -> Servers {
        self.all & !(Copies::known(&self.answered) | Copies::known(&self.unsent))
    }

    /// Those that may have executed it.
    pub(crate) fn reached(&self) -> Servers {
        self.all & !Copies::known(&self.unsent)
    }
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
    pub(crate) fn ask(&mut self, claim: &Claim, wall: u64, now: Instant, copies: &Arc<Copies>) -> Own {
        let last_ticket = &mut self.last_ticket;
        let own = self.claims.entry(claim.id).or_insert_with(|| {
            let mut ticket = NO_TICKET;
            if claim.wait {
                *last_ticket = wall.max(*last_ticket + 1);
                ticket = *last_ticket;
            }
            Own::new(claim.clone(), ticket, now, copies)
        });
        if own.attempt > 0 {
            own.stray |= own.copies.under_way();
            own.reached |= own.copies.reached();
            own.copies = copies.clone();
        }
        own.attempt += 1;
        own.heard_at = now;
        own.clone()
    }

    /// Notes a horizon that a claim was told.
    pub(crate) fn note_told(&mut self, claim: ClaimId, horizon: Token) {
        if let Some(own) = self.claims.get_mut(&claim) {
            own.told = own.told.max(horizon);
        }
    }

    pub(crate) fn remove(&mut self, claim: ClaimId) -> Option<Own> {
        self.claims.remove(&claim)
    }

    /// Returns claims that wait although their users were not heard of for too long, and forgets those and all else
    /// that is not asked about any more.
    pub(crate) fn tidy(&mut self, now: Instant) {
        if self.tidied_at.is_some_and(|at| now.since(at) < TIDY_EVERY) {
            return;
        }
        self.tidied_at = Some(now);
        self.claims.retain(|_, own| now.since(own.heard_at) < 2 * own.claim.terms.ttl + TIDY_EVERY);
    }
}

impl Own {
    /// A claim that was not asked for yet, but for what these copies say.
    pub(crate) fn new(claim: Claim, ticket: u64, now: Instant, copies: &Arc<Copies>) -> Own {
        Own {
            claim,
            attempt: 0,
            ticket,
            told: Token::ZERO,
            held: None,
            heard_at: now,
            copies: copies.clone(),
            stray: 0,
            reached: 0,
        }
    }

    /// Whether a server may execute a copy of it after what is sent to that server now. Of a claim that holds, what was not answered yet
    /// is on the connection on which its release follows, or is lost ([`Own::may_follow`]).
    pub(crate) fn has_stray_copy(&self) -> bool {
        let present =
            if self.held.is_some() { Copies::known(&self.copies.lost) } else { self.copies.under_way() };
        self.stray | present != 0
    }

    /// Whether a server that has just answered to its release may still execute it.
    pub(crate) fn may_follow(&self, server: usize) -> bool {
        self.copies.under_way() & 1 << server != 0
    }

    /// The servers on which it may be.
    pub(crate) fn reached(&self) -> Servers {
        self.reached | self.copies.reached()
    }

    /// Whether it waits, and its user was not heard of for so long that its place is lost.
    pub(crate) fn has_gone(&self, now: Instant) -> bool {
        self.held.is_none() && now.since(self.heard_at) > waiter_life(self.claim.terms.ttl)
    }
}
