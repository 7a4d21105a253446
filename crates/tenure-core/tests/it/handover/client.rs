//! The client: one claim after another, and what it believes of each.

use super::engine::Id;
use super::engine::Message::{self, Granted, Lost, Waiting, Wake};
use super::{HandOver, Rule, TTL, WINDOW};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) claim: Id,
    pub(super) phase: Phase,
    /// How long the claim's hold in an earlier incarnation of the store has left. Seen by the property only.
    pub(super) past_hold: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    /// Nothing has been answered *Waiting*; `age` is the time since `t0`.
    Unanswered {
        age: u8,
    },
    /// The last request answered *Waiting* was sent `age` ago.
    Answered {
        age: u8,
        horizon: u8,
        incarnation: u8,
    },
    /// Believes that it holds, until the deadline.
    Holding {
        ends_in: u8,
    },
    Released,
}

impl Client {
    /// The rule: may the lease be used before the grant is confirmed?
    pub(super) fn may_use(&self, wake: &Message, rule: &Rule) -> bool {
        let Wake { claim, token, incarnation } = *wake else { return false };
        let fits = match self.phase {
            Phase::Unanswered { age } => age < WINDOW,
            Phase::Answered { age, horizon, incarnation: answered_by } => {
                age < WINDOW
                    && (token > horizon || !rule.token_check)
                    && (incarnation == answered_by || !rule.same_incarnation)
            }
            _ => false,
        };
        fits && claim == self.claim
    }

    /// Takes an answer or a wake to its present claim (those to earlier claims have no effect).
    pub(super) fn receive(&mut self, message: &Message, model: &HandOver) {
        match (self.phase, message) {
            (Phase::Idle | Phase::Released, _) => {}
            (Phase::Holding { ends_in }, Granted { age, .. }) => {
                self.phase = Phase::Holding { ends_in: ends_in.max(TTL.saturating_sub(*age)) };
            }
            (Phase::Holding { .. }, _) => {} // `Lost` ends the belief early; never getting it is worse.
            (Phase::Answered { age: t0, .. }, Waiting { age, .. }) if *age > t0 => {}
            (_, &Waiting { age, horizon, incarnation, .. }) => {
                self.phase = Phase::Answered { age, horizon, incarnation };
            }
            (_, Granted { age, .. }) if *age < TTL => self.phase = Phase::Holding { ends_in: TTL - age },
            (_, Lost { .. }) if !model.rule.new_id_after_lost => self.phase = Phase::Idle,
            (_, Lost { .. }) if self.claim + 1 < model.bounds.claims_max => {
                *self = Client { claim: self.claim + 1, phase: Phase::Idle, past_hold: 0 };
            }
            (Phase::Unanswered { age } | Phase::Answered { age, .. }, Wake { .. })
                if self.may_use(message, &model.rule) =>
            {
                self.phase = Phase::Holding { ends_in: WINDOW - age };
            }
            _ => {}
        }
    }

    /// False if an answer to the present claim can no longer change anything.
    pub(super) fn cares_for(&self, answer: &Message) -> bool {
        match (self.phase, answer) {
            (Phase::Released, _) => false,
            (Phase::Holding { ends_in }, Granted { age, .. }) => age + ends_in < TTL,
            (Phase::Holding { .. }, _) => false,
            (_, Granted { age, .. }) => *age < TTL,
            (Phase::Answered { age: t0, .. }, Waiting { age, .. }) => *age <= t0 && *age < WINDOW,
            _ => true,
        }
    }
}
