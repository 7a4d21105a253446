//! What becomes of an item whose work is over: the request to the engine, and the report of its answer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure::{Delivery, Result};

use super::arguments::Work;
use super::item_info::{Details, ItemEvent, ItemInfo};
use super::progress::Progress;
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

    /// Counts the item, and reports the answer to programs and to people.
    pub(super) fn report(
        &self,
        answer: Result<bool>,
        arguments: &Work,
        messages: Messages,
        progress: &mut Progress,
    ) {
        let info = &self.info;
        // Of a lost item, people were warned when it was lost.
        let is_unsettled = answer.is_err() && !matches!(self.verdict, Verdict::Lost(_));
        let (event, retry_in, reason, text) = match (&self.verdict, answer) {
            (Verdict::Lost(loss), _) => ("lost", None, Some(loss.reason().to_owned()), None),
            (_, Err(error)) => {
                let text = format!("{info} was not settled: {error}");
                ("lost", None, Some(error.to_string()), Some(text))
            }
            (Verdict::Retry { reason, .. }, Ok(true)) => {
                ("dead", None, Some(reason.clone()), Some(format!("{info} is a dead letter now: {reason}")))
            }
            (Verdict::Retry { after, reason }, Ok(false)) => {
                let again = format_duration(*after);
                let text = format!("{info} failed: {reason}; it is tried again in {again}");
                ("retried", Some(*after), Some(reason.clone()), Some(text))
            }
            (Verdict::Done, Ok(_)) => {
                let text = || format!("{info} is done after {}", format_duration(self.took));
                ("done", None, None, arguments.verbose.then(text))
            }
            (Verdict::PutBack, Ok(_)) => ("returned", None, None, Some(format!("{info} was put back"))),
        };
        match event {
            "done" => progress.done += 1,
            "returned" => {}
            _ => progress.failed += 1,
        }
        let (code, signal) = match self.status {
            Some(Status::Code(code)) => (Some(code), None),
            Some(Status::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let (took_ms, retry_in_ms) = (Some(millis(self.took)), retry_in.map(millis));
        let details = Details { pid: None, code, signal, took_ms, retry_in_ms, reason: reason.as_deref() };
        messages.event(&ItemEvent { event, queue: &arguments.name, item: info, details });
        let Some(text) = text else { return };
        progress.line.clear();
        if is_unsettled { messages.warning(&text) } else { messages.message(&text) }
    }
}
