//! Whether this process turns, and whether its store answers.
//!
//! `/healthz` never asks the store: whoever restarts what is not healthy would restart it because the store is away.

use std::sync::Mutex;
use std::sync::PoisonError;

use tenure_core::{ErrorKind, Result};
use tokio::time::Instant;

use crate::limits::FRESH;

#[derive(Debug)]
pub(crate) struct Health {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the accept loop last turned.
    turned: Instant,
    /// When the store last answered.
    answered: Option<Instant>,
    /// Why the file of tokens is not the one in force.
    tokens: Option<String>,
}

impl Health {
    pub(crate) fn new() -> Health {
        Health { state: Mutex::new(State { turned: Instant::now(), answered: None, tokens: None }) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        // A panic elsewhere cannot leave it half-changed.
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn turned(&self) {
        self.with(|state| state.turned = Instant::now());
    }

    /// Notes whether the store has answered.
    pub(crate) fn heard<T>(&self, answer: Result<T>) -> Result<T> {
        let has_answered = answer.as_ref().err().is_none_or(|error| {
            // A refusal is an answer. Of what was not sent nothing is known.
            matches!(error.kind(), ErrorKind::Finished | ErrorKind::Conflict | ErrorKind::Timeout)
        });
        if has_answered {
            self.with(|state| state.answered = Some(Instant::now()));
        }
        answer
    }

    pub(crate) fn tokens(&self, wrong: Option<String>) {
        self.with(|state| state.tokens = wrong);
    }

    /// Whether the accept loop has turned of late.
    pub(crate) fn is_turning(&self) -> bool {
        self.with(|state| state.turned.elapsed() < FRESH)
    }

    /// Whether the store has answered of late.
    pub(crate) fn has_store(&self) -> bool {
        self.with(|state| state.answered.is_some_and(|answered| answered.elapsed() < FRESH))
    }

    /// What is wrong with the file of tokens.
    pub(crate) fn wrong_tokens(&self) -> Option<String> {
        self.with(|state| state.tokens.clone())
    }
}
