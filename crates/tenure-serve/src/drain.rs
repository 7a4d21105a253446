//! How a server ends: it says so, lets go of who waits, and finishes what is under way.

use tokio::sync::watch;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Serving,
    /// `/readyz` says no, so that nobody new is sent here.
    Announced,
    /// Nobody new is let in, and who waits is told to come again.
    Leaving,
}

#[derive(Debug)]
pub(crate) struct Drain {
    stage: watch::Sender<Stage>,
}

impl Drain {
    pub(crate) fn new() -> Drain {
        Drain { stage: watch::Sender::new(Stage::Serving) }
    }

    pub(crate) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Goes on to a stage; never back.
    pub(crate) fn reach(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let is_later = stage > *now;
            *now = stage.max(*now);
            is_later
        });
    }

    /// Waits until a stage is reached.
    pub(crate) async fn reached(&self, stage: Stage) {
        let mut changes = self.stage.subscribe();
        // The sender is here, so it does not end.
        changes.wait_for(|now| *now >= stage).await.ok();
    }
}
