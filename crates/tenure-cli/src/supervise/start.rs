//! The start of a process that looks after work: signals, then keepers, and only then threads.

use super::events::{Events, Signals};
use super::job::Job;
use super::keeper::Keeper;
use crate::exit::Failure;
use crate::output::lines;

/// Begins to catch signals and starts so many keepers of a job, before the process has a second thread.
pub(crate) fn prepare(job: &Job, count: usize) -> Result<(Events, Vec<Keeper>), Failure> {
    let signals = Signals::catch().map_err(|error| Failure::system("catch signals", error))?;
    let keepers = Keeper::start_several(job, signals.before(), count)
        .map_err(|error| Failure::system("start a keeper process", error))?;
    // If a keeper is killed, its work becomes a child of this process and can be waited for.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let events = Events::new(signals).map_err(|error| Failure::system("wait for events", error))?;
    lines::write_in_background();
    Ok((events, keepers))
}
