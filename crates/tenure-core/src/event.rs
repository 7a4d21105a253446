//! What happened to claims and leases, for logs now and metrics later.
//!
//! Levels: `warn` a lease or a place was lost; `debug` each grant and release; `trace` repetitions.

use std::time::Duration;

use crate::error::{Error, LossReason};
use crate::model::claim::Name;
use crate::model::token::Token;

/// One thing that happened, on one engine.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A claim was granted and its lease reached its user.
    Granted {
        /// The resource.
        resource: &'a Name,
        /// The token.
        token: Token,
        /// How long the claim took.
        waited: Duration,
    },
    /// A lease was released.
    Released {
        /// The resource.
        resource: &'a Name,
        /// The token.
        token: Token,
    },
    /// A lease was lost.
    Lost {
        /// The resource.
        resource: &'a Name,
        /// The token.
        token: Token,
        /// Why.
        reason: LossReason,
    },
    /// A waiter lost its place and queued anew.
    PlaceLost {
        /// The resource.
        resource: &'a Name,
    },
    /// A claim was granted, and its future was not polled for a ttl: it was given back, and is made anew at the next
    /// poll.
    SetAside {
        /// The resource.
        resource: &'a Name,
    },
    /// A request failed and will be repeated.
    Repeated {
        /// The resource.
        resource: &'a Name,
        /// What failed.
        error: &'a Error,
    },
    /// A release was given up; the hold ends by itself.
    ReleaseFailed {
        /// The resource.
        resource: &'a Name,
        /// The token.
        token: Token,
    },
    /// A claim has a shorter ttl than the engine counts: if this process dies, its hold lasts longer. Emitted once
    /// for each client.
    Coarse {
        /// The resource.
        resource: &'a Name,
        /// What was asked for.
        ttl: Duration,
        /// What the hold of a dead client lasts.
        grain: Duration,
        /// What that is.
        reason: &'static str,
    },
    /// A resource's last token lies ahead of the store's clock, which has been wrong at some time.
    TokenAhead {
        /// The resource.
        resource: &'a Name,
    },
}

impl Event<'_> {
    /// Hands the event to `tracing`.
    pub fn emit(self, engine: &'static str) {
        match self {
            Event::Granted { resource, token, waited } => tracing::debug!(
                engine, %resource, %token, waited_ms = waited.as_millis() as u64, "granted"
            ),
            Event::Released { resource, token } => tracing::debug!(engine, %resource, %token, "released"),
            Event::Lost { resource, token, reason } => {
                tracing::warn!(engine, %resource, %token, why = reason.as_str(), "lease lost");
            }
            Event::PlaceLost { resource } => {
                tracing::warn!(engine, %resource, "place in the queue lost, queueing anew");
            }
            Event::SetAside { resource } => {
                tracing::warn!(engine, %resource, "granted, and given back since its future was not polled");
            }
            Event::Repeated { resource, error } => {
                tracing::trace!(engine, %resource, %error, "request will be repeated");
            }
            Event::ReleaseFailed { resource, token } => tracing::warn!(
                engine, %resource, %token, "release given up, the hold ends by itself"
            ),
            Event::Coarse { resource, ttl, grain, reason } => tracing::warn!(
                engine, %resource, ttl_ms = ttl.as_millis() as u64, grain_ms = grain.as_millis() as u64, reason,
                "if this process dies, its hold lasts longer than its ttl"
            ),
            Event::TokenAhead { resource } => {
                tracing::warn!(engine, %resource, "the last token is ahead of the store's clock");
            }
        }
    }
}
