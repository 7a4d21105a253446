//! A call under way: what was taken from a lane, and the future of its answers.
//!
//! One that is not answered in time is dropped, and each of its requests fails by itself: it may have been carried out. What
//! the request is about decides whether it is repeated.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::client::batch::Lane;
use crate::client::connection::{Shared, no_answer};
use crate::clock::Instant;
use crate::counts::CallEnd;
use crate::engine::Shard;
use crate::error::Result;

impl Lane {
    /// Returns what errors call it, the most requests of one call, and how long that may stay unanswered.
    pub(crate) fn limits(self, shared: &Shared) -> (&'static str, usize, Duration) {
        let (most, patience) = (shared.engine.capability().batch_max, shared.settings.answer_timeout);
        let (queue_most, queue_patience) = shared.queue_limits();
        match self {
            Lane::Renewals | Lane::Heartbeats => ("renew", most, patience),
            Lane::Deliveries => ("renew", queue_most, patience),
            Lane::Releases => ("release", most, patience),
            Lane::Claims => ("claim", most, patience),
            Lane::Settlements => ("settle", queue_most, queue_patience),
            Lane::Pushes => ("push", queue_most, queue_patience),
        }
    }
}

/// Requests, each with its answer.
pub(crate) type Answered<R, A> = std::iter::Zip<std::vec::IntoIter<R>, std::vec::IntoIter<Result<A>>>;

/// A call under way.
pub(crate) struct Call {
    pub(crate) lane: Lane,
    pub(crate) shard: Shard,
    pub(crate) times_out_at: Instant,
    /// Of so many requests.
    pub(crate) count: usize,
    /// Completes when each request has been given its answer.
    done: BoxFuture<'static, ()>,
}

impl Call {
    /// Makes a call of these requests, unless there are none. `give` gives them their answers.
    pub(crate) fn new<R: Send + 'static, A: Send + 'static>(
        shared: &Arc<Shared>,
        (lane, shard, now): (Lane, Shard, Instant),
        requests: Vec<R>,
        answers: impl Future<Output = Vec<Result<A>>> + Send + 'static,
        give: impl FnOnce(&Arc<Shared>, Answered<R, A>) + Send + 'static,
    ) -> Option<Call> {
        if requests.is_empty() {
            return None;
        }
        let (verb, _, patience) = lane.limits(shared);
        let (counted, count) = (lane.counted(), requests.len());
        let (times_out_at, shared) = (now + patience, shared.clone());
        let done = Box::pin(async move {
            let mut answers = pin!(answers);
            let mut is_late = false;
            let in_time = poll_fn(|cx| match answers.as_mut().poll(cx) {
                Poll::Pending if shared.clock.now() >= times_out_at => {
                    let error = no_answer(verb, patience);
                    is_late = true;
                    Poll::Ready((0..count).map(|_| Err(error.clone())).collect())
                }
                polled => polled,
            });
            let answers = in_time.await;
            let outcome = if is_late { CallEnd::Timeout } else { CallEnd::of(answers.iter()) };
            shared.called(counted, count, now, outcome);
            debug_assert_eq!(count, answers.len(), "an answer for each request");
            give(&shared, requests.into_iter().zip(answers));
        });
        Some(Call { lane, shard, times_out_at, count, done })
    }

    /// Ready when each request has been given its answer.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.done.as_mut().poll(cx)
    }
}
