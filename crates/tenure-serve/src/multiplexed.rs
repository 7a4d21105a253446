//! A connection of HTTP/2: many requests at a time, so it is idle when none of them is open, and it stands still when what is answered is
//! not read. What a client may open and leave is bounded by that, and by how many there may be.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::limits::{COMMENT_EVERY, IDLE_MAX, STALL_MAX};
use crate::pause::pause;

/// After how long an answer that nobody reads ends its connection: a stream of events has something to send by then.
const UNREAD_MAX: Duration = Duration::from_secs(COMMENT_EVERY.as_secs() + STALL_MAX.as_secs());
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What is open on one connection.
#[derive(Debug, Default)]
pub(crate) struct Multiplexed {
    state: Mutex<State>,
    /// Its first request has come.
    begun: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Requests that are not answered.
    serving: usize,
    /// Answers that are not sent.
    answering: usize,
    /// When anything was last begun, sent or ended.
    moved: Option<Instant>,
}

impl State {
    fn is_overdue(&self) -> bool {
        let most = if self.answering > 0 { UNREAD_MAX } else { IDLE_MAX };
        self.serving == 0 && self.moved.is_some_and(|moved| moved.elapsed() > most)
    }
}

impl Multiplexed {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        // A panic elsewhere cannot leave it half-changed.
        let mut state: MutexGuard<'_, State> = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.moved = Some(Instant::now());
        change(&mut state)
    }

    /// Counts a request until what this returns is dropped.
    pub(crate) fn begin(self: &Arc<Multiplexed>) -> Open {
        self.with(|state| state.serving += 1);
        self.begun.notify_one();
        Open { connection: self.clone(), is_answered: false }
    }

    /// Waits until the connection is good for nothing any more. Never, if it is none of HTTP/2.
    pub(crate) async fn overdue(&self) {
        self.begun.notified().await;
        loop {
            pause(LOOK_EVERY).await;
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.is_overdue() {
                return;
            }
        }
    }
}

/// One request, and then its answer.
#[derive(Debug)]
pub(crate) struct Open {
    connection: Arc<Multiplexed>,
    is_answered: bool,
}

impl Open {
    /// Goes on with the answer until that is sent.
    pub(crate) fn answered(mut self, response: Response) -> Response {
        self.is_answered = true;
        self.connection.with(|state| {
            state.serving -= 1;
            state.answering += 1;
        });
        response.map(|body| Body::new(Answering { body, open: self }))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let is_answered = self.is_answered;
        self.connection.with(|state| match is_answered {
            true => state.answering -= 1,
            false => state.serving -= 1,
        });
    }
}

/// The body of an answer. It is asked for more when there is room for it, so that shows that somebody reads.
struct Answering {
    body: Body,
    open: Open,
}

impl hyper::body::Body for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.open.connection.with(|_| ());
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_idle_when_nothing_is_open_and_stands_still_when_nothing_is_read() {
        let connection = Arc::new(Multiplexed::default());
        let ago = |period: Duration| {
            let mut state = connection.state.lock().expect("no panic");
            state.moved = Instant::now().checked_sub(period);
            state.is_overdue()
        };
        let (idle, unread) = (IDLE_MAX + LOOK_EVERY, UNREAD_MAX + LOOK_EVERY);
        let waits = connection.begin();
        assert!(!ago(idle), "a request may wait");
        let other = connection.begin();
        let answer = other.answered(Response::new(Body::from("a")));
        assert!(!ago(unread), "another one waits");
        let answers = waits.answered(Response::new(Body::empty()));
        assert!(ago(unread) && !ago(unread - LOOK_EVERY - Duration::from_secs(1)));
        drop((answer, answers));
        assert!(!ago(unread) && ago(idle));
        let gone = connection.begin();
        drop(gone);
        assert_eq!(connection.state.lock().expect("no panic").serving, 0, "a request that is reset ends");
    }
}
