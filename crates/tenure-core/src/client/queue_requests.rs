//! What waits to be sent to queues, and what is told of its end.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::client::trace::SharedSpan;
use crate::clock::Instant;
use crate::counts::DeliveryEnd;
use crate::engine::queue::{Push, Pushed, Settle, SettleAnswer, Settlement};
use crate::error::Result;

/// A push on its way, and the caller that waits for the answer.
pub(crate) struct Pushing {
    pub(crate) push: Push,
    pub(crate) waiter: oneshot::Sender<Result<Pushed>>,
}

/// A settlement on its way.
pub(crate) struct Settling {
    pub(crate) settle: Settle,
    pub(super) asked_at: Instant,
    /// When the delivery ends by itself.
    pub(super) until: Instant,
    /// How often it was not answered.
    pub(super) attempt: u8,
    /// Of a return: until when the take may come that it is to undo.
    pub(super) late_until: Instant,
    /// How often it found nothing to return. From the first time on, no caller waits for it.
    pub(super) late_misses: u8,
    /// What is told of its end, if a user had it.
    pub(super) had: Option<Had>,
    /// The caller that waits for the answer, until it has it.
    pub(super) waiter: Option<oneshot::Sender<Result<SettleAnswer>>>,
}

/// A delivery that a user had.
pub(crate) struct Had {
    /// In which scope it is counted.
    pub(crate) scope: u16,
    /// How long its user had it.
    pub(crate) took: Duration,
    /// The span of the work on it, which ends with it.
    pub(crate) span: Option<SharedSpan>,
}

impl Settling {
    /// Tells how the delivery ended, of the last answer. `None`: none came in time.
    pub(super) fn outcome(&self, answer: Option<&Result<SettleAnswer>>) -> DeliveryEnd {
        match (answer, &self.settle.settlement) {
            (Some(Ok(SettleAnswer::Buried)), _) => DeliveryEnd::Dead,
            (Some(Ok(SettleAnswer::Settled)), Settlement::Ack) => DeliveryEnd::Done,
            (Some(Ok(SettleAnswer::Settled)), Settlement::Retry { .. }) => DeliveryEnd::Retried,
            (Some(Ok(SettleAnswer::Settled)), Settlement::Fail { .. }) => DeliveryEnd::Dead,
            (Some(Ok(SettleAnswer::Settled)), Settlement::Return) => DeliveryEnd::Returned,
            (Some(Ok(SettleAnswer::Lost) | Err(_)) | None, _) => DeliveryEnd::Lost,
        }
    }

    pub(super) fn answer(&mut self, answer: Result<SettleAnswer>) {
        if let Some(waiter) = self.waiter.take() {
            // The receiver was dropped.
            waiter.send(answer).ok();
        }
    }
}
