//! Whether this process turns, and whether its store answers.
//!
//! It turns if the accept loop does, and `tenure-io`, which carries what is asked of the store: once in a while each says so. `/healthz` never asks the store: whoever restarts what is not healthy would restart it because the store is away.

use std::sync::Mutex;
use std::sync::PoisonError;

use tenure_core::{ErrorKind, Result, Tenure};
use tokio::time::Instant;

use crate::limits::{FRESH, TURN};
use crate::pause::pause;

#[derive(Debug)]
pub(crate) struct Health {
    state: Mutex<State>,
}

/// What has to turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Connections are accepted.
    AcceptLoop,
    /// The thread of the client of the store.
    TenureIo,
}

impl Part {
    const ALL: [Part; 2] = [Part::AcceptLoop, Part::TenureIo];

    /// What is wrong if it does not.
    fn standing(self) -> &'static str {
        match self {
            Part::AcceptLoop => "no connection could be accepted for 5 s",
            Part::TenureIo => "the thread tenure-io has stood still for 5 s: nothing is asked of the store",
        }
    }
}

#[derive(Debug)]
struct State {
    /// When each part last turned.
    turned: [Instant; Part::ALL.len()],
    /// When the store last answered.
    answered: Option<Instant>,
    /// Why the file of tokens is not the one in force.
    tokens: Option<String>,
}

impl Health {
    pub(crate) fn new() -> Health {
        Health { state: Mutex::new(State { turned: [Instant::now(); 2], answered: None, tokens: None }) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        // A panic elsewhere cannot leave it half-changed.
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn turned(&self, part: Part) {
        self.with(|state| state.turned[part as usize] = Instant::now());
    }

    /// Has `tenure-io` say that it turns, for as long as this is polled.
    pub(crate) async fn follow(&self, tenure: &Tenure) {
        while tenure.turned().await.is_ok() {
            self.turned(Part::TenureIo);
            pause(TURN).await;
        }
        // It has ended, and turns no more.
        std::future::pending().await
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

    /// What has not turned of late.
    pub(crate) fn standing(&self) -> Vec<&'static str> {
        let turned = self.with(|state| state.turned);
        let stands = |part: &Part| turned[*part as usize].elapsed() >= FRESH;
        Part::ALL.into_iter().filter(stands).map(Part::standing).collect()
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
