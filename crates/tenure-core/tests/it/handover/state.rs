//! The state of the whole model, in the one form that all states of equal future share.

use super::client::{Client, Phase};
use super::engine::Message::{self, Claim, Release, Waiting, Wake};
use super::engine::{Engine, Holder, Id};
use super::{TTL, WINDOW};

/// Added at a restart to every token given before: the new ones begin below, the worst case for comparing them.
const OLD_TOKENS: u8 = 32;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) engine: Engine,
    pub(super) client: Client,
    /// Sorted: the order in which messages were sent says nothing about the order in which they arrive.
    pub(super) network: Vec<Message>,
}

impl State {
    pub(super) fn tick(&mut self) {
        if let Holder::Claim { ends_in, .. } = &mut self.engine.holder {
            *ends_in = ends_in.saturating_sub(1);
        }
        for waiter in &mut self.engine.waiters {
            waiter.ends_in = waiter.ends_in.saturating_sub(1);
        }
        match &mut self.client.phase {
            Phase::Unanswered { age } | Phase::Answered { age, .. } => *age += 1,
            Phase::Holding { ends_in } => *ends_in -= 1,
            Phase::Idle | Phase::Released => {}
        }
        self.client.past_hold = self.client.past_hold.saturating_sub(1);
        self.network.iter_mut().filter_map(Message::age_mut).for_each(|age| *age += 1);
    }

    pub(super) fn restart(&mut self) {
        if let Holder::Claim { claim, ends_in } = self.engine.holder
            && claim == self.client.claim
        {
            self.client.past_hold = ends_in;
        }
        self.for_each_token(|token| *token += OLD_TOKENS);
        self.engine = Engine { incarnation: self.engine.incarnation + 1, ..Engine::new(Holder::Nobody) };
    }

    /// True unless the client believes in a hold that the engine does not have, nor had when it restarted.
    pub(super) fn belief_is_true(&self) -> bool {
        let Client { claim, phase, past_hold } = self.client;
        !matches!(phase, Phase::Holding { .. }) || self.engine.holds_still(claim) || past_hold > 0
    }

    /// True if the engine has processed the release of the claim and holds for it all the same.
    pub(super) fn is_held_after_release(&self) -> bool {
        self.client.phase == Phase::Released
            && self.engine.holds_still(self.client.claim)
            && !self.network.iter().any(|m| matches!(m, Release { .. }))
    }

    fn is_asked_for(&self, id: Id) -> bool {
        self.network.iter().any(|m| matches!(m, Claim { claim, .. } if *claim == id))
    }

    /// Makes states equal that nothing to come can tell apart.
    pub(super) fn normalise(&mut self) {
        self.stop_counting_what_is_too_old();
        let client = &self.client;
        self.network.retain_mut(|m| m.is_request() || *m.claim_mut() == client.claim && client.cares_for(m));
        self.renumber_claims();
        self.rank_tokens();
        self.network.sort_unstable();
    }

    fn stop_counting_what_is_too_old(&mut self) {
        // An answer that is as old as the window can justify no wake: its horizon and origin do not matter.
        let (too_old, last_token) = (WINDOW, self.engine.last_token);
        match &mut self.client.phase {
            Phase::Unanswered { age } => *age = (*age).min(too_old),
            Phase::Answered { age, horizon, incarnation } if *age >= too_old => {
                (*age, *horizon, *incarnation) = (too_old, last_token, 0);
            }
            _ => {}
        }
        for message in &mut self.network {
            if let Waiting { age, horizon, incarnation, .. } = message
                && *age >= too_old
            {
                (*age, *horizon, *incarnation) = (too_old, last_token, 0);
            } else if let Some(age) = message.age_mut() {
                *age = (*age).min(TTL);
            }
        }
    }

    fn renumber_claims(&mut self) {
        let mut finished = std::mem::take(&mut self.engine.finished);
        finished.retain(|id| *id == self.client.claim || self.is_asked_for(*id));
        finished.sort_unstable();
        finished.dedup();
        self.engine.finished = finished;
        let mut named = 0_u32;
        self.for_each_claim(|claim| named |= 1 << *claim);
        self.for_each_claim(|claim| *claim = rank(*claim, u64::from(named)));
    }

    fn for_each_claim(&mut self, mut act: impl FnMut(&mut Id)) {
        act(&mut self.client.claim);
        self.network.iter_mut().for_each(|message| act(message.claim_mut()));
        self.engine.waiters.iter_mut().for_each(|waiter| act(&mut waiter.claim));
        self.engine.finished.iter_mut().for_each(&mut act);
        if let Holder::Claim { claim, .. } = &mut self.engine.holder {
            act(claim);
        }
        if let Some((claim, _)) = &mut self.engine.lagging {
            act(claim);
        }
    }

    fn rank_tokens(&mut self) {
        let (mut new, mut old) = (0_u64, 0_u64);
        self.for_each_token(|token| match token.checked_sub(OLD_TOKENS) {
            Some(token) => old |= 1 << token,
            None => new |= 1 << *token,
        });
        self.for_each_token(|token| match token.checked_sub(OLD_TOKENS) {
            Some(before) => *token = OLD_TOKENS + rank(before, old),
            None => *token = rank(*token, new),
        });
    }

    fn for_each_token(&mut self, mut act: impl FnMut(&mut u8)) {
        act(&mut self.engine.last_token);
        if let Some((_, horizon)) = &mut self.engine.lagging {
            act(horizon);
        }
        if let Phase::Answered { horizon, .. } = &mut self.client.phase {
            act(horizon);
        }
        for message in &mut self.network {
            if let Waiting { horizon: token, .. } | Wake { token, .. } = message {
                act(token);
            }
        }
    }
}

/// How many numbers in `set`, a set of bits, are smaller than this one.
fn rank(number: u8, set: u64) -> u8 {
    u8::try_from((set & ((1 << number) - 1)).count_ones()).expect("64 bits have no more than 64 ones")
}
