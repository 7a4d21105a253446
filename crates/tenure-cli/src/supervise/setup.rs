//! The frame of a command that has work done: its keepers, then the client, and at the end both in that order.

use std::time::Duration;

use tenure::{Error, ErrorKind, Settings, Tenure};

use super::events::Events;
use super::job::Job;
use super::keeper::{Keeper, keeper_gone};
use super::retry::Retry;
use super::signals::Signals;
use super::supervisor::Supervisor;
use crate::connect::connect;
use crate::counting::MetricsFlags;
use crate::exit::{Ended, Failure, Outcome};
use crate::output::lines;
use crate::output::messages::Messages;

/// How long the end of the client is waited for. What is released by then is known; a resolver that hangs is not worth more.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// What a command that has work done begins with.
pub(crate) struct Setup<'a> {
    pub(crate) job: Job,
    pub(crate) engine: &'a str,
    /// What others are shown with the name of this client.
    pub(crate) label: Option<&'a str>,
    /// How long a store that does not answer is asked again; `None` means for ever.
    pub(crate) wait: Option<Duration>,
    pub(crate) messages: Messages,
    pub(crate) metrics: &'a MetricsFlags,
}

impl Setup<'_> {
    /// Starts one keeper, connects, serves, waits for the keeper, and closes the client.
    pub(crate) fn with_keeper(
        self,
        serve: impl FnOnce(&Tenure, Supervisor<'_>, Retry) -> Outcome,
    ) -> Outcome {
        let messages = self.messages;
        self.with_keepers(1, |tenure, events, mut keepers, retry| {
            let Some(keeper) = keepers.pop() else { return Err(keeper_gone()) };
            let outcome = serve(tenure, Supervisor { events, keeper: &keeper, messages }, retry);
            keeper.wait();
            outcome
        })
    }

    /// As [`Setup::with_keeper`], with a number of keepers. `serve` waits for them: while one shares the client's life, the
    /// client cannot tidy up after itself.
    pub(crate) fn with_keepers(
        self,
        count: usize,
        serve: impl FnOnce(&Tenure, &Events, Vec<Keeper>, Retry) -> Outcome,
    ) -> Outcome {
        // Before the client, which has threads.
        let (events, keepers) = start_keepers(&self.job, count)?;
        let Some(keeper) = keepers.first() else { return Err(keeper_gone()) };
        let page = self.metrics.serve(self.messages)?;
        let mut retry = Retry::new(self.wait);
        let supervisor = Supervisor { events: &events, keeper, messages: self.messages };
        let tenure = match self.connect(&mut retry, supervisor) {
            Ok(tenure) => tenure,
            Err(ended) => return ended.outcome(),
        };
        page.iter().for_each(|page| page.show(&tenure));
        let outcome = serve(&tenure, &events, keepers, retry);
        drop(page);
        // What is still to be withdrawn or released is answered before the end, unless the store does not answer, or this process
        // is asked once more to end. Whatever cut it short: what is not released ends by itself.
        drop(events.until_ready(tenure.close(), || None, Some(CLOSE_MAX)));
        outcome
    }

    /// Connects; signals end it. A store that cannot be reached at all is asked again only if the user gave a time: without one, a
    /// wrong URL would wait for ever. One that says it is full has been reached.
    fn connect(&self, retry: &mut Retry, supervisor: Supervisor<'_>) -> Result<Tenure, Ended> {
        let Supervisor { events, keeper, .. } = supervisor;
        let settings = self.metrics.set(Settings::new().label(self.label.unwrap_or_default()));
        loop {
            let connecting = connect(self.engine, settings.clone());
            let error = match events.until_ready(connecting, || Some(keeper), None)? {
                Some(Ok(tenure)) => {
                    retry.reset();
                    return Ok(tenure);
                }
                Some(Err(error)) => error,
                None => continue,
            };
            if error.kind() != ErrorKind::Unavailable || self.wait.is_none() && !is_full(&error) {
                return Err(Failure::from(error).into());
            }
            retry.pause(error.into(), supervisor)?;
        }
    }
}

/// Begins to catch signals and starts keepers of a job, before the process has a second thread.
fn start_keepers(job: &Job, count: usize) -> Result<(Events, Vec<Keeper>), Failure> {
    let signals = Signals::catch().map_err(|error| Failure::system("catch signals", error))?;
    let keepers = Keeper::start_several(job, signals.before(), count)
        .map_err(|error| Failure::system("start a keeper process", error))?;
    // If a keeper is killed, its work becomes a child of this process and can be waited for.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let events = Events::new(signals).map_err(|error| Failure::system("wait for events", error))?;
    lines::write_in_background();
    Ok((events, keepers))
}

/// Whether a server was reached and has no room for one more client. Servers say it in their own words, or with a number.
fn is_full(error: &Error) -> bool {
    let text = error.to_string();
    let signs = ["(53300)", "(1040)", "(1203)", "(1226)", "max number of clients"];
    signs.iter().any(|sign| text.contains(sign))
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
}
