//! The messages, and the engine that grants one mutex.

use super::{Rule, TTL, WAITER_TTL, WINDOW};

pub(super) type Id = u8;

/// `age` is the time since the request was sent; an answer carries the age of its request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Message {
    Claim { claim: Id, age: u8 },
    Renew { claim: Id, age: u8 },
    Release { claim: Id },
    Granted { claim: Id, age: u8 },
    Waiting { claim: Id, age: u8, horizon: u8, incarnation: u8 },
    Lost { claim: Id },
    Wake { claim: Id, token: u8, incarnation: u8 },
}

use Message::{Claim, Granted, Lost, Release, Renew, Waiting, Wake};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Engine {
    pub(super) incarnation: u8,
    pub(super) last_token: u8,
    pub(super) holder: Holder,
    pub(super) waiters: Vec<Waiter>,
    /// Claims that have ended, as long as a copy of them may still arrive.
    pub(super) finished: Vec<Id>,
    /// The waiter granted last and the largest token before: what a replica that lags by one grant answers from.
    pub(super) lagging: Option<(Id, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    Nobody,
    Another,
    Claim { claim: Id, ends_in: u8 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiter {
    pub(super) claim: Id,
    pub(super) ends_in: u8,
}

impl Engine {
    pub(super) fn new(holder: Holder) -> Self {
        Self { incarnation: 0, last_token: 0, holder, waiters: vec![], finished: vec![], lagging: None }
    }

    /// Does what `step` does first on each command: ends what is over, then grants to the head of the queue.
    pub(super) fn settle(&mut self, rule: &Rule, network: &mut Vec<Message>) {
        if let Holder::Claim { claim, ends_in: 0 } = self.holder {
            self.holder = Holder::Nobody;
            self.finish(claim, rule);
        }
        while let Some(at) = self.waiters.iter().position(|w| w.ends_in == 0) {
            let waiter = self.waiters.remove(at);
            self.finish(waiter.claim, rule);
        }
        if self.holder == Holder::Nobody && !self.waiters.is_empty() {
            let Waiter { claim, .. } = self.waiters.remove(0);
            self.lagging = (!rule.linearizable_answers).then_some((claim, self.last_token));
            self.last_token += 1;
            self.holder = Holder::Claim { claim, ends_in: WINDOW };
            network.push(Wake { claim, token: self.last_token, incarnation: self.incarnation });
        }
    }

    pub(super) fn answer(&mut self, request: &Message, rule: &Rule, network: &mut Vec<Message>) {
        self.settle(rule, network);
        match *request {
            Claim { claim, .. } if self.finished.contains(&claim) => network.push(Lost { claim }),
            Claim { claim, age } | Renew { claim, age } if self.holds(claim) => {
                self.holder = Holder::Claim { claim, ends_in: TTL };
                network.push(Granted { claim, age });
            }
            Claim { claim, age } | Renew { claim, age } if self.waiter(claim).is_some() => {
                if let (Renew { .. }, Some(waiter)) = (request, self.waiter(claim)) {
                    waiter.ends_in = WAITER_TTL;
                }
                network.push(self.waiting(claim, age));
            }
            Claim { claim, age } if self.holder == Holder::Nobody => {
                self.last_token += 1;
                self.holder = Holder::Claim { claim, ends_in: TTL };
                network.push(Granted { claim, age });
            }
            Claim { claim, age } => {
                self.waiters.push(Waiter { claim, ends_in: WAITER_TTL });
                network.push(self.waiting(claim, age));
            }
            Renew { claim, .. } => network.push(Lost { claim }),
            Release { claim } => {
                if self.holds(claim) {
                    self.holder = Holder::Nobody;
                }
                self.waiters.retain(|waiter| waiter.claim != claim);
                self.finish(claim, rule);
            }
            Granted { .. } | Waiting { .. } | Lost { .. } | Wake { .. } => unreachable!("not a request"),
        }
        self.settle(rule, network);
    }

    fn finish(&mut self, claim: Id, rule: &Rule) {
        if rule.remembers_finished {
            self.finished.push(claim);
        }
    }

    fn holds(&self, claim: Id) -> bool {
        matches!(self.holder, Holder::Claim { claim: holder, .. } if holder == claim)
    }

    pub(super) fn holds_still(&self, claim: Id) -> bool {
        self.holds(claim) && !matches!(self.holder, Holder::Claim { ends_in: 0, .. })
    }

    fn waiter(&mut self, claim: Id) -> Option<&mut Waiter> {
        self.waiters.iter_mut().find(|waiter| waiter.claim == claim)
    }

    fn waiting(&self, claim: Id, age: u8) -> Message {
        Waiting { claim, age, horizon: self.last_token, incarnation: self.incarnation }
    }
}

impl Message {
    pub(super) fn claim_mut(&mut self) -> &mut Id {
        match self {
            Claim { claim, .. } | Renew { claim, .. } | Release { claim } => claim,
            Granted { claim, .. } | Waiting { claim, .. } | Lost { claim } | Wake { claim, .. } => claim,
        }
    }

    pub(super) fn is_request(&self) -> bool {
        matches!(self, Claim { .. } | Renew { .. } | Release { .. })
    }

    pub(super) fn age_mut(&mut self) -> Option<&mut u8> {
        match self {
            Claim { age, .. } | Renew { age, .. } | Granted { age, .. } | Waiting { age, .. } => Some(age),
            Release { .. } | Lost { .. } | Wake { .. } => None,
        }
    }
}
