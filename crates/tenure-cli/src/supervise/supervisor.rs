//! What this process supervises one piece of work with.

use std::future::pending;
use std::time::Duration;

use super::events::Events;
use super::keeper::Keeper;
use crate::exit::Ended;
use crate::output::messages::Messages;

/// A keeper, what this process waits for beside it, and how it shows messages.
#[derive(Clone, Copy)]
pub(crate) struct Supervisor<'a> {
    pub(crate) events: &'a Events,
    pub(crate) keeper: &'a Keeper,
    pub(crate) messages: Messages,
}

impl Supervisor<'_> {
    /// Lets some time pass, in which a signal ends the command.
    pub(crate) fn sleep(self, pause: Duration) -> Result<(), Ended> {
        self.events.until_ready(pending::<()>(), || Some(self.keeper), Some(pause)).map(drop)
    }
}
