//! How long the command asks a store that does not answer, and how it ends with one.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tenure::{Error, ErrorKind, Instant, Tenure};

use crate::clock;
use crate::connect::connect;
use crate::duration::format_duration;
use crate::exit::{Ended, Failure};
use crate::output::messages::Messages;
use crate::supervise::events::{Events, News, ends_waiting};
use crate::supervise::keeper::{Keeper, keeper_gone};

/// The first pause and the longest one. They double, and each is shortened by up to a half at random: a crowd that a server has
/// refused must not come back as one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long the end of the client is waited for. What is released by then is known; a resolver that hangs is not worth more.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Asking again, inside the time that the user gave.
pub(crate) struct Patience {
    /// None: for ever.
    until: Option<Instant>,
    pause: Duration,
    is_told: bool,
}

impl Patience {
    /// Begins now. None: for ever.
    pub(crate) fn new(wait: Option<Duration>) -> Patience {
        Patience { until: wait.map(|wait| clock::now() + wait), pause: PAUSE_MIN, is_told: false }
    }

    /// How much of the time is left. None: for ever.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.since(clock::now()))
    }

    /// The store has answered.
    pub(crate) fn reset(&mut self) {
        (self.pause, self.is_told) = (PAUSE_MIN, false);
    }

    /// Lets some time pass after a failure, which is told once. Fails with it when there is no time left.
    pub(crate) fn pause(
        &mut self,
        failure: Failure,
        events: &Events,
        keeper: &Keeper,
        messages: Messages,
    ) -> Result<(), Ended> {
        let left = self.left();
        let pause = jittered(self.pause);
        if left.is_some_and(|left| left <= pause) {
            return Err(failure.into());
        }
        if !self.is_told {
            let how_long =
                left.map_or("until it does".to_owned(), |left| format!("for {}", format_duration(left)));
            messages.warning(&format!("{}; asking again {how_long}", failure.message));
        }
        self.is_told = true;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        sleep(pause, events, keeper)
    }

    /// Connects, on which signals end it. A store that cannot be reached at all is asked again only if the user gave a time: without
    /// one, a wrong URL would wait for ever. One that says it is full has been reached.
    pub(crate) fn connect(
        &mut self,
        engine: &str,
        label: Option<&str>,
        events: &Events,
        keeper: &Keeper,
        messages: Messages,
    ) -> Result<Tenure, Ended> {
        loop {
            let connecting = connect(engine, label);
            let error = match until_ready(connecting, events, Some(keeper), None)? {
                Some(Ok(tenure)) => {
                    self.reset();
                    return Ok(tenure);
                }
                Some(Err(error)) => error,
                None => continue,
            };
            if error.kind() != ErrorKind::Unavailable || self.until.is_none() && !is_full(&error) {
                return Err(Failure::from(error).into());
            }
            self.pause(error.into(), events, keeper, messages)?;
        }
    }
}

/// Whether a server was reached and has no room for one more client. Servers say it in their own words, or with a number.
fn is_full(error: &Error) -> bool {
    let text = error.to_string();
    let signs = ["(53300)", "(1040)", "(1203)", "(1226)", "max number of clients"];
    signs.iter().any(|sign| text.contains(sign))
}

fn jittered(pause: Duration) -> Duration {
    // The keys of a hasher are the randomness that the standard library has.
    let random = RandomState::new().hash_one(0) % 1024;
    pause / 2 + pause.mul_f64(random as f64 / 2048.0)
}

/// Lets some time pass, in which a signal ends the waiting.
pub(crate) fn sleep(pause: Duration, events: &Events, keeper: &Keeper) -> Result<(), Ended> {
    until_ready(std::future::pending::<()>(), events, Some(keeper), Some(pause)).map(drop)
}

/// Waits for something of the client, for so long at most. None: the time was over.
pub(crate) fn until_ready<T>(
    soon: impl Future<Output = T>,
    events: &Events,
    keeper: Option<&Keeper>,
    patience: Option<Duration>,
) -> Result<Option<T>, Ended> {
    until_ready_pinned(pin!(soon), events, || keeper, patience)
}

/// As [`until_ready`], for something that is not to be dropped afterwards, and a keeper that may end meanwhile.
pub(crate) fn until_ready_pinned<'k, T>(
    mut soon: Pin<&mut impl Future<Output = T>>,
    events: &Events,
    keeper: impl Fn() -> Option<&'k Keeper>,
    patience: Option<Duration>,
) -> Result<Option<T>, Ended> {
    let until = patience.map(|patience| clock::now() + patience);
    let waker = events.waker();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(ready) = soon.as_mut().poll(&mut context) {
            return Ok(Some(ready));
        }
        let left = until.map(|until| until.since(clock::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        let keepers: Vec<_> = keeper().map(|keeper| (0, keeper)).into_iter().collect();
        match events.next_of(&keepers, left) {
            Ok((_, News::Signal(signal))) => {
                if let Some(signal) = ends_waiting(signal) {
                    return Err(Ended::Signal(signal));
                }
            }
            Ok((_, News::KeeperGone)) => return Err(keeper_gone().into()),
            Ok((_, News::Report(_) | News::Look)) => {}
            Err(error) => return Err(Failure::system("wait", error).into()),
        }
    }
}

/// Ends the client: what it has still to withdraw or to release is answered before that, unless the store does not answer, or
/// somebody asks this process once more to end.
pub(crate) fn close(tenure: Tenure, events: &Events) {
    // Whatever cut it short: what is not released ends by itself.
    drop(until_ready(tenure.close(), events, None, Some(CLOSE_MAX)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_server_is_told_from_one_that_is_down() {
        let error = |text: &str| Error::new(ErrorKind::Unavailable, "connect", text);
        assert!(is_full(&error("the server says: sorry, too many clients already (53300)")));
        assert!(is_full(&error("the server says: Too many connections (1040)")));
        assert!(is_full(&error("the server says: ERR max number of clients reached")));
        assert!(!is_full(&error("127.0.0.1:5432: Connection refused (os error 111)")));
    }

    #[test]
    fn pauses_differ_and_stay_within_their_bounds() {
        let pauses: Vec<Duration> = (0..64).map(|_| jittered(PAUSE_MAX)).collect();
        assert!(pauses.iter().all(|pause| (PAUSE_MAX / 2..=PAUSE_MAX).contains(pause)), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
