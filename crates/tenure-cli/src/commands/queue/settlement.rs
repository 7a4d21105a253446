//! What becomes of an item whose work is over: the request to the engine, and the report of its answer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure::{Delivery, Result};

use super::item_info::{ItemEvent, ItemInfo};
use crate::duration::{format_duration, millis};
use crate::output::messages::Messages;
use crate::supervise::keeper::message::Status;
use crate::supervise::supervised::Loss;

/// What becomes of the item.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    Done,
    Retry { after: Duration, reason: String },
    PutBack,
    Lost(Loss),
}

/// How a settled item is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    Done,
    Failed,
    PutBack,
}

/// A settlement that is under way.
pub(super) struct Settlement {
    info: ItemInfo,
    verdict: Verdict,
    /// How CMD ended; `None` if it was not started.
    status: Option<Status>,
    took: Duration,
    /// Whether the item is a dead letter now.
    answer: Pin<Box<dyn Future<Output = Result<bool>>>>,
}

impl Settlement {
    /// Begins; the work took so long.
    pub(super) fn new(
        info: ItemInfo,
        delivery: Delivery,
        verdict: Verdict,
        status: Option<Status>,
        took: Duration,
    ) -> Settlement {
        let asked = verdict.clone();
        let answer = Box::pin(async move {
            match asked {
                Verdict::Done => delivery.ack().await.map(|()| false),
                Verdict::Retry { after, reason } => delivery.retry_because(after, &reason).await,
                Verdict::PutBack => delivery.put_back().await.map(|()| false),
                // Another consumer has it or will have it soon. If its time is not quite over, it can be had a little sooner.
                Verdict::Lost(loss) => delivery.retry_because(Duration::ZERO, loss.reason()).await,
            }
        });
        Settlement { info, verdict, status, took, answer }
    }

    /// Waits for the engine's answer: whether the item is a dead letter now.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<bool>> {
        self.answer.as_mut().poll(context)
    }

    /// Writes the event of the answer, and returns how it is counted and the notice for people.
    pub(super) fn report(
        &self,
        queue: &str,
        answer: Result<bool>,
        messages: Messages,
    ) -> (Counted, Option<Notice>) {
        let Settlement { info, verdict, .. } = self;
        let event = |event, retry_in, reason| messages.event(&self.event(event, queue, retry_in, reason));
        if let Verdict::Lost(loss) = verdict {
            // The notice for people came when it was lost.
            event("lost", None, Some(loss.reason()));
            return (Counted::Failed, None);
        }
        let (counted, notice) = match (verdict, answer) {
            (_, Err(error)) => {
                event("lost", None, Some(&error.to_string()));
                (Counted::Failed, Notice::Warning(format!("{info} was not settled: {error}")))
            }
            (Verdict::Retry { reason, .. }, Ok(true)) => {
                event("dead", None, Some(reason));
                (Counted::Failed, Notice::Message(format!("{info} is a dead letter now: {reason}")))
            }
            (Verdict::Retry { after, reason }, Ok(false)) => {
                event("retried", Some(*after), Some(reason));
                let after = format_duration(*after);
                (
                    Counted::Failed,
                    Notice::Message(format!("{info} failed: {reason}; it is tried again in {after}")),
                )
            }
            (Verdict::Done, Ok(_)) => {
                event("done", None, None);
                let took = format_duration(self.took);
                (Counted::Done, Notice::Verbose(format!("{info} is done after {took}")))
            }
            (Verdict::PutBack | Verdict::Lost(_), Ok(_)) => {
                event("returned", None, None);
                (Counted::PutBack, Notice::Message(format!("{info} was put back")))
            }
        };
        (counted, Some(notice))
    }

    fn event<'a>(
        &'a self,
        event: &'static str,
        queue: &'a str,
        retry_in: Option<Duration>,
        reason: Option<&'a str>,
    ) -> ItemEvent<'a> {
        let (code, signal) = match self.status {
            Some(Status::Code(code)) => (Some(code), None),
            Some(Status::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let (took_ms, retry_in_ms) = (Some(millis(self.took)), retry_in.map(millis));
        ItemEvent { code, signal, took_ms, retry_in_ms, reason, ..self.info.event(event, queue) }
    }
}

/// The message for people about a settled item.
pub(super) enum Notice {
    Warning(String),
    Message(String),
    /// Only with `--verbose`.
    Verbose(String),
}
