//! What users believe, compared with what the servers keep, and the tokens that they were given.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Lease, Slot};

use super::World;
use super::time::ClientClock;
use crate::quorum::majority;

/// What is measured in whole milliseconds may be believed for so much longer than it is kept.
const GRAIN: Duration = Duration::from_millis(1);

/// What a user has.
pub(crate) enum Had {
    Lease(Lease),
    Slot(Slot),
}

impl Had {
    pub(crate) fn lease(&self) -> &Lease {
        match self {
            Had::Lease(lease) => lease,
            Had::Slot(slot) => slot.deref(),
        }
    }
}

/// Who shares a resource with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    Alone,
    Reader,
    Slot(u32),
}

impl Share {
    fn excludes(self, other: Share) -> bool {
        match (self, other) {
            (Share::Reader, Share::Reader) => false,
            (Share::Slot(one), Share::Slot(other)) => one == other,
            _ => true,
        }
    }
}

struct Belief {
    had: Had,
    share: Share,
    clock: Arc<ClientClock>,
}

impl Belief {
    /// For how much longer it is believed, in the world's time.
    fn lasts(&self) -> Duration {
        self.clock.in_world(self.had.lease().expires_in())
    }
}

/// All that users have now, and all tokens that they were ever given.
#[derive(Default)]
pub(crate) struct Beliefs {
    had: BTreeMap<u64, Belief>,
    next: u64,
    tokens: HashSet<(String, u64)>,
    largest: HashMap<String, u64>,
}

impl World {
    /// Returns the largest token of a resource that anybody was given: who asks from now on gets a larger one.
    pub(crate) fn largest(&self, resource: &str) -> u64 {
        self.beliefs().largest.get(resource).copied().unwrap_or(0)
    }

    /// A user has got something just now, for which it asked when `before` was the largest token. Returns the number under which it is
    /// kept.
    pub(crate) fn got(&self, had: Had, share: Share, clock: &Arc<ClientClock>, before: u64) -> u64 {
        let mut beliefs = self.beliefs();
        let (resource, token) = (had.lease().resource().to_string(), had.lease().token().get());
        self.note(token);
        if !beliefs.tokens.insert((resource.clone(), token)) {
            self.fail(format!("{resource}: the token {token} was given twice"));
        }
        if token <= before {
            self.fail(format!(
                "{resource}: {token} was given to one who asked after {before} had been given"
            ));
        }
        let belief = Belief { had, share, clock: clock.clone() };
        let of_resource =
            beliefs.had.values().filter(|other| other.had.lease().resource().as_str() == resource);
        for other in of_resource {
            let both = belief.lasts().min(other.lasts());
            if self.is_promised && !both.is_zero() && share.excludes(other.share) {
                let (one, two) = (other.had.lease().token(), token);
                self.fail(format!("{resource}: {one} and {two} both hold, for {both:?}"));
            }
        }
        let largest = beliefs.largest.entry(resource).or_insert(0);
        *largest = token.max(*largest);
        beliefs.next += 1;
        let number = beliefs.next;
        beliefs.had.insert(number, belief);
        number
    }

    /// Hands back what a user has got. Nobody believes in it any more.
    pub(crate) fn let_go(&self, number: u64) -> Option<Had> {
        self.beliefs().had.remove(&number).map(|belief| belief.had)
    }

    /// A machine is gone, and nobody there believes in anything any more. What it had is handed back.
    pub(crate) fn forget(&self, machine: &Arc<ClientClock>) -> Vec<Had> {
        let mut beliefs = self.beliefs();
        let is_its =
            |(number, belief): (&u64, &Belief)| Arc::ptr_eq(&belief.clock, machine).then_some(*number);
        let numbers: Vec<u64> = beliefs.had.iter().filter_map(is_its).collect();
        numbers.iter().filter_map(|number| Some(beliefs.had.remove(number)?.had)).collect()
    }

    /// Whether a user may still believe in what it has.
    pub(crate) fn is_held(&self, number: u64) -> bool {
        self.beliefs().had.get(&number).is_some_and(|belief| !belief.had.lease().is_lost())
    }

    /// Compares what is believed with what a majority keeps: where clocks and memory are as promised, never longer.
    pub(crate) fn check(&self) {
        if !self.is_promised {
            return;
        }
        let beliefs = self.beliefs();
        let servers = self.servers();
        for belief in beliefs.had.values() {
            let lasts = belief.lasts();
            if lasts.is_zero() {
                continue;
            }
            let lease = belief.had.lease();
            let kept = |server: &super::servers::Server| server.keeps(self.time, lease);
            let mut kept: Vec<u64> = servers.iter().map(kept).collect();
            kept.sort_unstable_by(|one, other| other.cmp(one));
            let by_most = Duration::from_nanos(kept[majority(servers.len()) - 1]);
            if lasts > by_most + GRAIN {
                self.fail(format!(
                    "{}: the token {} is believed for {lasts:?} more, and a majority keeps it for {by_most:?}",
                    lease.resource(),
                    lease.token()
                ));
            }
        }
    }

    /// What must be so when everybody has gone.
    pub(crate) fn check_end(&self) {
        assert!(self.beliefs().had.is_empty(), "a user has something left");
    }
}
