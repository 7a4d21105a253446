//! Asks the store for `tenure top`, on a thread of its own: whatever it waits for, keys are heard.
//!
//! Either everything is looked at or one lock, never both, and after each look it rests for 20 times as long as that took.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tenure::{BreakAnswer, Instant, Name, Result, Tenure, Token, View};
use tenure_core::survey::{Survey, Surveyor};

use crate::clock;
use crate::commands::release::break_hold;
use crate::duration::format_duration;

/// How many times as long as a look took it rests: 5 % of the time, as a survey.
const REST_TIMES: u32 = 20;
/// How long it rests after a look at one lock, at least.
const LOCK_EVERY: Duration = Duration::from_secs(1);
/// How long it waits when the store does not answer. The survey decides itself when it asks again.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
/// What is asked for in order to see how long an answer takes. Whether it is a lock does not matter.
const PROBE: &str = "tenure";

/// What is to be looked at.
pub(super) enum Want {
    Survey,
    Lock(Name),
    Break(Name, Token),
}

/// What came of it.
pub(super) enum Heard {
    /// Everything, and how long one call took.
    Survey(Arc<Survey>, Duration),
    /// One lock, and when.
    Lock(Name, Option<View>, Instant),
    /// The store does not answer.
    Trouble(String),
    /// What came of an act.
    Done(String),
}

/// See the top of the file.
pub(super) struct Looker<'a> {
    tenure: Tenure,
    surveyor: Surveyor,
    engine: &'a str,
    every: Duration,
}

impl<'a> Looker<'a> {
    pub(super) fn new(tenure: Tenure, engine: &'a str, prefix: &str, every: Duration) -> Looker<'a> {
        let surveyor = Surveyor::new(&tenure).prefix(prefix);
        Looker { tenure, surveyor, engine, every }
    }

    /// Looks at everything, and says after how long it may look again.
    pub(super) fn survey(&self) -> Result<(Arc<Survey>, Duration, Duration)> {
        let survey = pollster::block_on(self.surveyor.latest())?;
        let began = clock::now();
        pollster::block_on(self.tenure.view(PROBE))?;
        let answer = clock::now().since(began);
        let pause = pause(survey.took + answer, self.every);
        Ok((survey, answer, pause))
    }

    /// Looks at what is wanted, until nobody wants anything or hears of it.
    pub(super) fn serve(self, wants: &Receiver<Want>, tell: impl Fn(Heard) -> bool) {
        let mut lock: Option<Name> = None;
        let mut wait = Duration::ZERO;
        loop {
            let mut act = None;
            match wants.recv_timeout(wait) {
                Ok(Want::Survey) => lock = None,
                Ok(Want::Lock(name)) => lock = Some(name),
                Ok(Want::Break(name, token)) => act = Some(self.free(&name, token)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if act.is_some_and(|done| !tell(Heard::Done(done))) {
                return;
            }
            let looked = match &lock {
                Some(name) => self.look(name),
                None => self.survey().map(|(survey, answer, pause)| (Heard::Survey(survey, answer), pause)),
            };
            let (heard, pause) = looked.unwrap_or_else(|error| (Heard::Trouble(error.to_string()), AGAIN));
            if !tell(heard) {
                return;
            }
            wait = pause;
        }
    }

    fn look(&self, name: &Name) -> Result<(Heard, Duration)> {
        let began = clock::now();
        let view = pollster::block_on(self.tenure.view(name.as_str()))?;
        let now = clock::now();
        Ok((Heard::Lock(name.clone(), view, now), pause(now.since(began), LOCK_EVERY)))
    }

    /// Breaks a hold, and says what came of it.
    fn free(&self, name: &Name, token: Token) -> String {
        match break_hold(&self.tenure, self.engine, name.as_str(), token, false) {
            Ok(BreakAnswer::Broken { free_in }) => {
                format!("broken: it is free in {} at the latest", format_duration(free_in))
            }
            Ok(BreakAnswer::Resting { free_in }) => {
                format!("nobody holds it any more; it rests for {} more", format_duration(free_in))
            }
            Ok(BreakAnswer::NotHeld) => "nothing was broken: that hold has ended".to_owned(),
            Err(error) => format!("nobody knows whether it was broken: {error}"),
        }
    }
}

/// How long it rests after something that took so long.
fn pause(took: Duration, least: Duration) -> Duration {
    took.saturating_mul(REST_TIMES).max(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_takes_a_twentieth_of_the_time_at_most() {
        let every = Duration::from_secs(2);
        for took in [0, 1, 99, 100, 101, 5_000, 60_000].map(Duration::from_millis) {
            let pause = pause(took, every);
            assert!(pause >= every && took * 20 <= pause, "{took:?} {pause:?}");
        }
    }
}
