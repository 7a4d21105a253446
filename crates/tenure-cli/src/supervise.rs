//! Work under a lease: one way for `run`, `queue work` and `cache`.
//!
//! A keeper (`keeper.rs`) has the work and ends it in time whatever happens to `tenure`. `supervised.rs` follows the lease, tells the
//! keeper each new deadline, and asks the work to end when the lease is lost; it runs on the main thread, which writes nothing
//! itself: lines for stderr are written by a thread of their own (`output/lines.rs`), so that a reader that stalls, or a terminal
//! that is stopped, ends no work. `foreground.rs` is one piece of work with a terminal and signals.

pub(crate) mod countdown;
pub(crate) mod events;
pub(crate) mod foreground;
pub(crate) mod keeper;
mod processes;
pub(crate) mod supervised;
pub(crate) mod terminal;
pub(crate) mod work;

use events::{Events, Signals};
use keeper::{Job, Keeper};

use crate::exit::Failure;
use crate::output;

/// Begins to catch signals and starts so many keepers of a job, before the process has a second thread.
pub(crate) fn prepare(job: &Job, count: usize) -> Result<(Events, Vec<Keeper>), Failure> {
    let signals = Signals::catch().map_err(|error| Failure::system("catch signals", error))?;
    let keepers = Keeper::start_several(job, signals.before(), count)
        .map_err(|error| Failure::system("start a keeper process", error))?;
    // If a keeper is killed, its work becomes a child of this process and can be waited for.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let events = Events::new(signals).map_err(|error| Failure::system("wait for events", error))?;
    output::write_in_background();
    Ok((events, keepers))
}

/// The keeper has ended without having been told to.
pub(crate) fn keeper_gone() -> Failure {
    Failure::new(crate::exit::UNAVAILABLE, "the keeper process of this command was killed")
        .with_hint("spare processes named `tenure-keeper`: they end CMD when its lease ends")
}
