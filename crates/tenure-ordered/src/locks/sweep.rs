//! Ends entries that are not wanted any more although their session goes on: a hold whose user does not renew it, a
//! waiter without heartbeat, a claim that could not leave when it should have.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock};
use tokio::sync::Notify;

use crate::locks::ordered::Shared;
use crate::store::{Left, Store};

/// How often it sweeps.
const PERIOD: Duration = Duration::from_millis(100);

/// A call that may leave something to sweep. If it notified the sweeper only when it begins, the sweeper could sweep
/// before there is anything, and then sleep.
pub(crate) struct Changing<'a>(pub(crate) &'a Notify);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Looks after the claims of a client until the client is gone.
pub(crate) async fn sweep<S: Store>(shared: Weak<Shared<S>>) {
    while let Some(this) = shared.upgrade() {
        let idle = this.is_idle_or_due();
        drop(this);
        match idle {
            Some(notify) => notify.notified().await,
            None => pause(PERIOD).await,
        }
        let Some(this) = shared.upgrade() else { return };
        leave_due(&this).await;
    }
}

async fn leave_due<S: Store>(this: &Arc<Shared<S>>) {
    let due = this.owned().take_due(SystemClock.now());
    if due.is_empty() {
        return;
    }
    due.iter().for_each(|leaving| this.store.unwatch(leaving.claim));
    let answers = this.store.leave(due.clone()).await;
    for (leaving, answer) in due.into_iter().zip(answers) {
        match answer {
            // One that is broken has come to its former end with this.
            Ok(Left::IsBroken) => tracing::debug!(claim = %leaving.claim, "a broken entry does not go"),
            Ok(Left::Gone | Left::WasNot) => {}
            Err(error) => {
                tracing::debug!(claim = %leaving.claim, %error, "an entry cannot leave now");
                this.owned().leave_later(leaving);
            }
        }
    }
}

/// Lets time pass.
#[allow(clippy::disallowed_methods, reason = "what is waited for is a store, whose time no test can move")]
pub(crate) async fn pause(period: Duration) {
    tokio::time::sleep(period).await;
}
