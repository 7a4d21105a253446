//! How many connections a client uses, and for what.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use tenure_core::engine::see_through;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::fault::Fault;
use crate::pause::pause;

/// How often a server that has no connection left is asked again, and when, about. Less than callers wait, which get
/// the reason.
const FULL_TRIES: u32 = 16;
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// How long room and a connection are waited for. The client above gives a claim up after 2 s by itself; a fault that came just before
/// would have it ask once more, and fail its user after twice the time.
const CONNECT_MAX: Duration = Duration::from_millis(2500);

/// Connects, and again for a while if the server is full: in a crowd others go soon. `full` is what the server said when it
/// was last: who gives up in between says that, and not that there was no answer.
async fn until_there_is_room<A, F>(full: &mut Option<Fault>, connect: impl Fn() -> F) -> Result<A, Fault>
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

    /// Waits for room, connects there, and has the connection `lent` with its room. If the server is full it connects again for a while.
    /// What lasts too long fails with what the server said when it was full, or with what `late` says of how long was waited.
    ///
    /// # Errors
    /// As `connect`; [`Fault::Full`] if it stays full.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place. A connection that is being made is made all the same, and what is lent is dropped: who
    /// bears less than that takes would begin anew each time, and never have one.
    pub async fn lend<A, F, L>(
        &self,
        want: Purpose,
        connect: impl Fn() -> F + Send + 'static,
        lent: impl FnOnce(A, OwnedSemaphorePermit) -> L + Send + 'static,
        late: impl Fn(Duration) -> Fault + Send + 'static,
    ) -> Result<L, Fault>
    where
        F: Future<Output = Result<A, Fault>> + Send + 'static,
        L: Send + 'static,
    {
        let until = Instant::now() + CONNECT_MAX;
        let room = match timeout_at(until, self.enter(want)).await {
            Ok(room) => room?,
            Err(_) => return Err(late(CONNECT_MAX)),
        };
        let lending = see_through(async move {
            let mut full = None;
            match timeout_at(until, until_there_is_room(&mut full, connect)).await {
                Ok(connected) => Ok(lent(connected?, room)),
                Err(_) => Err(full.unwrap_or_else(|| late(CONNECT_MAX))),
            }
        });
        lending.await.unwrap_or_else(|| Err(Fault::unavailable("the client's runtime has ended")))
    }

    /// Waits for room, in the order of arrival; renewals also for that which is kept for them.
    async fn enter(&self, want: Purpose) -> Result<OwnedSemaphorePermit, Fault> {
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
