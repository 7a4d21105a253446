//! How many connections a client uses, and for what.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::fault::Fault;
use crate::pause::pause;

/// How often a server that has no connection left is asked again, and when, about. Less than callers wait, which get
/// the reason.
const FULL_TRIES: u32 = 16;
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Connects, and again for a while if the server is full: in a crowd others go soon. `full` is what the server said when it
/// was last: who gives up in between says that, and not that there was no answer.
///
/// # Errors
/// As `connect`; [`Fault::Full`] if it stays full.
///
/// # Cancel safety
/// As `connect`.
pub async fn until_there_is_room<A, F>(full: &mut Option<Fault>, connect: impl Fn() -> F) -> Result<A, Fault>
where
    F: Future<Output = Result<A, Fault>>,
{
    for _ in 1..FULL_TRIES {
        match connect().await {
            Err(fault @ Fault::Full(_)) => *full = Some(fault),
            connected => return connected,
        }
        pause(FULL_PAUSE.mul_f64(0.5 + fastrand::f64())).await;
    }
    connect().await
}

/// Room for so many connections. If there are several, one is kept for renewals: whatever else a client does may wait
/// on the server for rows that another transaction has locked, for longer than the shortest leases last.
#[derive(Debug)]
pub struct Room {
    all: Arc<Semaphore>,
    kept: Option<Arc<Semaphore>>,
}

/// What a connection is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Whatever can wait.
    Any,
    /// That leases go on.
    Renewal,
}

impl Room {
    /// Makes room for so many connections, at least one.
    pub fn new(connections: usize) -> Room {
        let kept = (connections > 1).then(|| Arc::new(Semaphore::new(1)));
        let all = Arc::new(Semaphore::new(connections.max(1) - usize::from(kept.is_some())));
        Room { all, kept }
    }

    /// Waits for room, in the order of arrival; renewals also for that which is kept for them.
    ///
    /// # Errors
    /// None, as long as the room is there.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place.
    pub async fn enter(&self, want: Purpose) -> Result<OwnedSemaphorePermit, Fault> {
        let any = self.all.clone().acquire_owned();
        let entered = match &self.kept {
            Some(kept) if want == Purpose::Renewal => {
                let kept = kept.clone().acquire_owned();
                select(std::pin::pin!(any), std::pin::pin!(kept)).await.factor_first().0
            }
            _ => any.await,
        };
        entered.map_err(|_| Fault::internal("the connections are closed"))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn one_connection_is_kept_for_renewals_unless_it_is_the_only_one() {
        let room = Room::new(3);
        let enter = |room: &Room, want| room.enter(want).now_or_never().map(|entered| entered.expect("room"));
        let others = [enter(&room, Purpose::Any), enter(&room, Purpose::Any)];
        assert!(others.iter().all(Option::is_some));
        assert!(enter(&room, Purpose::Any).is_none(), "the last one is kept");
        let renewal = enter(&room, Purpose::Renewal);
        assert!(renewal.is_some());
        assert!(enter(&room, Purpose::Renewal).is_none(), "it is one");
        drop(others);
        assert!(enter(&room, Purpose::Renewal).is_some(), "where there is room, renewals go in as all do");
        let only = Room::new(1);
        let one = enter(&only, Purpose::Any);
        assert!(one.is_some() && enter(&only, Purpose::Renewal).is_none());
    }
}
