//! Spans of what users wait for, hold and work on, for whoever follows a request through many programs.
//!
//! A subscriber is the user's code, and may block. So a span is made on the user's thread, in the user's span, before the ledger is
//! locked; the ledger keeps it with the claim and hands it out with the event that ends it; and whoever tells that event, without any
//! lock and never on the thread that renews (`client/teller.rs`), writes the end into it and lets go of it. What the ledger keeps is a
//! shared pointer: to copy one calls no subscriber.
//!
//! The level is `debug`, the target [`TARGET`]. Where nothing listens it costs one comparison. Names of spans hold no names of
//! resources; for queues the field `otel.name` does, as OpenTelemetry's conventions for messaging ask for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tracing::field::Empty;
use tracing::{Level, Span};

use crate::client::lease_state::LeaseState;
use crate::counts::{DeliveryEnd, Loss, ReleaseEnd, Verb};
use crate::engine::queue::{Dispatched, ItemContext, ItemId};
use crate::event::{Event, is_wanted};
use crate::model::claim::{Kind, Name};

/// The target of all spans: `tenure_core::trace=debug` has a filter let them pass, and no other word of the client.
const TARGET: &str = "tenure_core::trace";

/// A span that the ledger keeps, too.
pub(crate) type SharedSpan = Arc<Span>;

/// Makes a span, if anybody follows. What panics in a subscriber ends here: a lease that was just granted must reach its user.
fn made(make: impl FnOnce() -> Span) -> Span {
    if !is_wanted(false, Level::DEBUG) {
        return Span::none();
    }
    quietly(make).unwrap_or_else(Span::none)
}

fn shared(make: impl FnOnce() -> Span) -> Option<SharedSpan> {
    let span = made(make);
    (!span.is_disabled()).then(|| Arc::new(span))
}

/// Calls a subscriber.
pub(crate) fn quietly<T>(call: impl FnOnce() -> T) -> Option<T> {
    // The panic hook has shown it. What it carries may panic when it is dropped, and is rather leaked.
    catch_unwind(AssertUnwindSafe(call)).map_err(std::mem::forget).ok()
}

/// Returns the word of metrics for a kind, which has no spaces.
fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Mutex => "mutex",
        Kind::RwLock => "rw_lock",
        Kind::Semaphore => "semaphore",
        Kind::SlotPool => "slot_pool",
    }
}

/// Begins the span of a claim, from asking to its end.
pub(crate) fn acquire(engine: &str, resource: &Name, kind: Kind) -> Option<SharedSpan> {
    shared(|| {
        tracing::debug_span!(
            target: TARGET, "tenure acquire", otel.kind = "internal", otel.status_code = Empty,
            tenure.engine = engine, tenure.kind = word(kind), tenure.resource = %resource, tenure.claim = Empty,
            tenure.outcome = Empty, tenure.token = Empty, tenure.waited_ms = Empty, tenure.position = Empty
        )
    })
}

/// Notes at which place a claim queues at first.
pub(crate) fn note_position(span: &Span, position: u32) {
    quietly(|| {
        span.record("tenure.position", position);
    });
}

/// Begins the span of a hold, in the span of its user, from the grant until its release is answered or it is lost. It follows from the
/// claim that it was granted to.
pub(crate) fn hold(engine: &str, lease: &LeaseState, claim: Option<&Span>) -> Option<SharedSpan> {
    if let Some(claim) = claim {
        quietly(|| {
            claim.record("tenure.claim", tracing::field::display(lease.claim()));
        });
    }
    let span = shared(|| {
        tracing::debug_span!(
            target: TARGET, "tenure hold", otel.kind = "internal", otel.status_code = Empty,
            tenure.engine = engine, tenure.kind = word(lease.terms().kind), tenure.resource = %lease.resource(),
            tenure.claim = %lease.claim(), tenure.token = lease.token().get(), tenure.slot = lease.slot(),
            tenure.ended = Empty, tenure.loss_reason = Empty
        )
    })?;
    quietly(|| {
        span.follows_from(claim.and_then(Span::id));
    });
    Some(span)
}

/// Begins the span of a push.
pub(crate) fn push(engine: &str, queue: &Name, group: Option<&str>, bytes: usize) -> Span {
    made(|| {
        tracing::debug_span!(
            target: TARGET, "tenure push", otel.name = format!("push {queue}"), otel.kind = "producer",
            otel.status_code = Empty, messaging.system = "tenure", messaging.operation.name = "push",
            messaging.operation.type = "send", messaging.destination.name = %queue, messaging.message.id = Empty,
            messaging.message.body.size = bytes, tenure.engine = engine, tenure.group = group, tenure.outcome = Empty
        )
    })
}

/// Notes how a push ended.
pub(crate) fn note_pushed(span: &Span, item: Option<ItemId>, outcome: &'static str) {
    quietly(|| {
        match item {
            Some(item) => span.record("messaging.message.id", tracing::field::display(item)),
            None => span.record("otel.status_code", "ERROR"),
        };
        span.record("tenure.outcome", outcome);
    });
}

/// Begins the span of waiting for an item.
pub(crate) fn take(engine: &str, queue: &Name) -> Span {
    made(|| {
        tracing::debug_span!(
            target: TARGET, "tenure take", otel.name = format!("take {queue}"), otel.kind = "client",
            messaging.system = "tenure", messaging.operation.name = "take", messaging.operation.type = "receive",
            messaging.destination.name = %queue, messaging.message.id = Empty, tenure.engine = engine
        )
    })
}

/// Begins the span of the work on an item, from the delivery to its end.
pub(crate) fn work(engine: &str, queue: &Name, item: &Dispatched, take: &Span) -> Option<SharedSpan> {
    quietly(|| {
        take.record("messaging.message.id", tracing::field::display(item.item));
    });
    let group = item.group.as_ref().map(Name::as_str);
    let context = item.context.as_ref().map(ItemContext::as_str);
    let span = shared(|| {
        tracing::debug_span!(
            target: TARGET, "tenure work", otel.name = format!("work {queue}"), otel.kind = "consumer",
            otel.status_code = Empty, messaging.system = "tenure", messaging.operation.name = "work",
            messaging.operation.type = "process", messaging.destination.name = %queue,
            messaging.message.id = %item.item, messaging.message.body.size = item.payload.len(),
            tenure.engine = engine, tenure.group = group, tenure.context = context, tenure.attempt = item.attempt,
            tenure.claim = %item.claim, tenure.token = item.token.get(), tenure.ended = Empty,
            tenure.loss_reason = Empty
        )
    })?;
    quietly(|| {
        span.follows_from(take.id());
    });
    Some(span)
}

/// Begins the span of a settlement, within the work that it ends.
pub(crate) fn settle(engine: &str, queue: &Name, item: ItemId, work: Option<&SharedSpan>) -> Span {
    let Some(work) = work else { return Span::none() };
    made(|| {
        tracing::debug_span!(
            target: TARGET, parent: &**work, "tenure settle", otel.name = format!("settle {queue}"),
            otel.kind = "client", messaging.system = "tenure", messaging.operation.name = "settle",
            messaging.operation.type = "settle", messaging.destination.name = %queue,
            messaging.message.id = %item, tenure.engine = engine
        )
    })
}

fn note_end(span: &Span, ended: &str, is_error: bool) {
    span.record("tenure.ended", ended);
    if is_error {
        span.record("otel.status_code", "ERROR");
    }
}

/// Notes that a hold or a delivery was lost.
pub(crate) fn note_lost(span: &Span, loss: Loss) {
    quietly(|| {
        note_end(span, "lost", true);
        span.record("tenure.loss_reason", loss.as_str());
        tracing::debug!(target: TARGET, parent: span, reason = loss.as_str(), "lost");
    });
}

/// Writes into a span what has happened to it.
pub(crate) fn note(span: &Span, event: &Event) {
    match event {
        Event::Granted { token, waited, .. } => {
            span.record("tenure.outcome", "granted");
            span.record("tenure.token", token.get());
            span.record("tenure.waited_ms", waited.as_millis() as u64);
        }
        Event::ClaimEnded { outcome, waited, .. } => {
            span.record("tenure.outcome", outcome.as_str());
            span.record("tenure.waited_ms", waited.as_millis() as u64);
            if outcome.is_failure() {
                span.record("otel.status_code", "ERROR");
            }
        }
        Event::Settled { outcome, .. } => {
            note_end(span, outcome.as_str(), *outcome == DeliveryEnd::Lost);
        }
        Event::Released { outcome: ReleaseEnd::AlreadyLost, .. } => note_end(span, "lost", true),
        Event::Released { outcome, .. } => note_end(span, outcome.as_str(), false),
        Event::Detached { .. } => note_end(span, "detached", false),
        Event::ReleaseFailed { .. } => note_end(span, ReleaseEnd::GivenUp.as_str(), false),
        Event::Lost { reason, noticed_after, .. } => note_lost(span, Loss::of(*reason, *noticed_after)),
        Event::Repeated { verb: Verb::Renew, error, .. } => {
            tracing::debug!(target: TARGET, parent: span, %error, "renewal repeated");
        }
        _ => {}
    }
}
