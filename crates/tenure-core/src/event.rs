//! What happened to claims, leases, queues and calls: for logs, for [listeners](Listener), and for whoever counts.
//!
//! An event is made under the lock of the ledger and told without any: on the thread of the user whose call brought it about, or by
//! the thread `tenure-events` where the client's own thread did, since that one renews leases and must wait for nobody
//! (`client/teller.rs`).
//!
//! Levels in the log: `warn` a lease or a place was lost, or a clock is wrong; `debug` each grant, release and settlement; `trace`
//! calls, renewals and repetitions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tracing::Level;

use crate::counts::{CallEnd, ClaimEnd, DeliveryEnd, FoundIn, LearnedBy, PushEnd, ReleaseEnd, Scope, Verb};
use crate::error::{Error, LossReason};
use crate::model::claim::Name;
use crate::model::token::Token;

/// How late the client's thread is when that is worth a warning: the shortest lease lives a tenth of it, and most live much longer.
pub(crate) const LATE_WARNING: Duration = Duration::from_secs(1);

/// An event, and where it happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Happened {
    /// The engine's one word.
    pub engine: &'static str,
    /// In which scope it is counted, for what happened to something with a name. `None`: it has no name.
    pub scope: Option<Arc<Scope>>,
    /// What happened.
    pub event: Event,
}

/// Hears of every event of a client (see [`Settings::listener`](crate::Settings::listener)).
///
/// # Guarantees
/// It is called without any lock of the client, and never on the client's own thread. It may block, panic (the panic ends there),
/// or use the client: no lease is lost by that. While it blocks, a user whose call brought about the event waits for it; up to
/// 4,096 events of the client's own thread are kept meanwhile, and those that come then are
/// [counted](crate::Tenure::events_dropped) and dropped. What it brings about by itself is told after it has returned.
///
/// Events of one lease may be told on two threads: those that the user of the lease brings about on the user's thread, others by the
/// thread `tenure-events`.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// use std::sync::Arc;
/// use tenure_core::{Event, Happened, Listener, Settings, Tenure, memory::Store};
///
/// struct Losses;
///
/// impl Listener for Losses {
///     fn on_event(&self, happened: &Happened) {
///         if let Event::Lost { resource, token, .. } = &happened.event {
///             println!("lost {resource} under token {token}");
///         }
///     }
/// }
///
/// let settings = Settings::new().listener(Arc::new(Losses));
/// # let engine = Store::named("listener-example").connector();
/// let tenure = Tenure::connect_with(engine, settings).await?;
/// # drop(tenure);
/// # Ok(()) }) }
/// ```
pub trait Listener: Send + Sync + 'static {
    /// Hears of an event.
    fn on_event(&self, happened: &Happened);
}

impl fmt::Debug for dyn Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// One thing that happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A claim was granted and its lease reached its user.
    Granted {
        /// The resource.
        resource: Name,
        /// The token.
        token: Token,
        /// How long the claim took.
        waited: Duration,
    },
    /// A claim ended without a lease.
    ClaimEnded {
        /// The resource.
        resource: Name,
        /// How: not [`ClaimEnd::Granted`].
        outcome: ClaimEnd,
        /// How long the claim took.
        waited: Duration,
    },
    /// A lease was released, or a grant that nobody used was given back.
    Released {
        /// The resource.
        resource: Name,
        /// The token.
        token: Token,
        /// How: not [`ReleaseEnd::GivenUp`].
        outcome: ReleaseEnd,
        /// How long its user had it; zero if no user had it.
        held: Duration,
    },
    /// A lease or a delivery was detached: its hold goes on in the store, and this client renews it no more.
    Detached {
        /// The resource.
        resource: Name,
        /// The token.
        token: Token,
        /// How long its user had it.
        held: Duration,
    },
    /// This client renews from now on what was detached.
    Attached {
        /// The resource.
        resource: Name,
        /// The token, which is as it was.
        token: Token,
    },
    /// A lease was lost, or a delivery.
    Lost {
        /// The resource.
        resource: Name,
        /// The token.
        token: Token,
        /// Why.
        reason: LossReason,
        /// How long its user had it.
        held: Duration,
        /// How long after its deadline that was noticed.
        noticed_after: Duration,
    },
    /// A lease or a delivery was renewed.
    Renewed {
        /// The resource.
        resource: Name,
        /// How much of its ttl was left.
        left: Duration,
        /// The ttl, or how long the engine keeps a hold of a silent client, if that is less.
        ttl: Duration,
    },
    /// The engine has refused to renew a lease or a delivery, which is over for it. What a user had is lost, which is an event of its own; a grant
    /// that nobody had looked at yet is claimed anew.
    RenewalRefused {
        /// The resource.
        resource: Name,
    },
    /// A waiter has learned that it holds.
    HandedOver {
        /// The resource.
        resource: Name,
        /// How.
        by: LearnedBy,
    },
    /// A call of the engine has ended.
    Called {
        /// What for.
        verb: Verb,
        /// How many requests it carried.
        items: usize,
        /// How long it took.
        took: Duration,
        /// How it ended.
        outcome: CallEnd,
    },
    /// The store may have forgotten what it knew: a restart, a failover.
    StoreForgot,
    /// The client's thread woke at a moment that it had waited for, so much later: the process had no processor, or stood still. A
    /// warning in the log from 1 s on.
    Late {
        /// How much.
        by: Duration,
    },
    /// A single-flight has a value, or an error in its place.
    Found {
        /// Its key.
        key: Name,
        /// Where it came from.
        source: FoundIn,
        /// How long that took.
        took: Duration,
        /// How long the load took, if this call has loaded.
        load: Option<Duration>,
    },
    /// A push has ended.
    Pushed {
        /// The queue.
        queue: Name,
        /// How.
        outcome: PushEnd,
    },
    /// An item has reached its user.
    Delivered {
        /// The queue.
        queue: Name,
        /// How often it has been handed out.
        attempt: u32,
        /// How long ago it was due.
        age: Duration,
    },
    /// A delivery was settled. One that the client finds lost before that is [`Event::Lost`].
    Settled {
        /// The queue.
        queue: Name,
        /// How it ended.
        outcome: DeliveryEnd,
        /// How long its user had it.
        took: Duration,
    },
    /// A waiter lost its place and queued anew.
    PlaceLost {
        /// The resource.
        resource: Name,
    },
    /// A claim was granted, and its future was not polled for a ttl: it was given back, and is made anew at the next
    /// poll.
    SetAside {
        /// The resource.
        resource: Name,
    },
    /// A request failed and will be repeated.
    Repeated {
        /// What was asked for.
        verb: Verb,
        /// The resource.
        resource: Name,
        /// What failed.
        error: Error,
    },
    /// A release was given up; the hold ends by itself.
    ReleaseFailed {
        /// The resource.
        resource: Name,
        /// The token.
        token: Token,
    },
    /// A claim has a shorter ttl than the engine counts: if this process dies, its hold lasts longer. Emitted once
    /// for each client.
    Coarse {
        /// The resource.
        resource: Name,
        /// What was asked for.
        ttl: Duration,
        /// What the hold of a dead client lasts.
        grain: Duration,
        /// What that is.
        reason: &'static str,
    },
    /// A token lies ahead of this machine's time of day: that, or the clock of the store, is or was wrong.
    TokenAhead {
        /// The resource.
        resource: Name,
        /// The token.
        token: Token,
        /// By how much.
        by: Duration,
    },
}

impl Event {
    /// Writes the event to the log.
    pub(crate) fn log(&self, engine: &'static str) {
        match self {
            Event::Granted { resource, token, waited } => tracing::debug!(
                engine, %resource, %token, waited_ms = ms(waited), "granted"
            ),
            Event::ClaimEnded { resource, outcome, waited } => tracing::debug!(
                engine, %resource, outcome = outcome.as_str(), waited_ms = ms(waited), "not granted"
            ),
            Event::Released { resource, token, outcome, held } => tracing::debug!(
                engine, %resource, %token, outcome = outcome.as_str(), held_ms = ms(held), "released"
            ),
            Event::Lost { resource, token, reason, held, .. } => tracing::warn!(
                engine, %resource, %token, why = reason.as_str(), held_ms = ms(held), "lease lost"
            ),
            Event::Renewed { resource, left, ttl } => tracing::trace!(
                engine, %resource, left_ms = ms(left), ttl_ms = ms(ttl), "renewed"
            ),
            Event::RenewalRefused { resource } => tracing::trace!(engine, %resource, "renewal refused"),
            Event::HandedOver { resource, by } => {
                tracing::trace!(engine, %resource, by = by.as_str(), "handed over");
            }
            Event::Called { verb, items, took, outcome } => tracing::trace!(
                engine,
                verb = verb.as_str(),
                items,
                took_us = took.as_micros() as u64,
                outcome = outcome.as_str(),
                "called"
            ),
            Event::StoreForgot => {
                tracing::warn!(engine, "the store may have forgotten what it knew; everything is renewed");
            }
            Event::Late { by } if *by < LATE_WARNING => {
                tracing::trace!(engine, by_us = by.as_micros() as u64, "woke");
            }
            Event::Late { by } => {
                tracing::warn!(
                    engine,
                    by_ms = ms(by),
                    "woke too late: this process had no processor, or stood still"
                );
            }
            _ => self.log_more(engine),
        }
    }

    /// The rest of [`Event::log`].
    fn log_more(&self, engine: &'static str) {
        match self {
            Event::Detached { resource, token, held } => tracing::debug!(
                engine, %resource, %token, held_ms = ms(held), "detached"
            ),
            Event::Attached { resource, token } => tracing::debug!(engine, %resource, %token, "attached"),
            Event::Found { key, source, took, .. } => tracing::debug!(
                engine, resource = %key, source = source.as_str(), took_ms = ms(took), "value found"
            ),
            Event::Pushed { queue, outcome } => {
                tracing::debug!(engine, resource = %queue, outcome = outcome.as_str(), "pushed");
            }
            Event::Delivered { queue, attempt, age } => {
                tracing::debug!(engine, resource = %queue, attempt, age_ms = ms(age), "delivered");
            }
            Event::Settled { queue, outcome, took } => tracing::debug!(
                engine, resource = %queue, outcome = outcome.as_str(), took_ms = ms(took), "settled"
            ),
            Event::PlaceLost { resource } => {
                tracing::warn!(engine, %resource, "place in the queue lost, queueing anew");
            }
            Event::SetAside { resource } => {
                tracing::warn!(engine, %resource, "granted, and given back since its future was not polled");
            }
            Event::Repeated { verb, resource, error } => {
                tracing::trace!(engine, verb = verb.as_str(), %resource, %error, "request will be repeated");
            }
            Event::ReleaseFailed { resource, token } => tracing::warn!(
                engine, %resource, %token, "release given up, the hold ends by itself"
            ),
            Event::Coarse { resource, ttl, grain, reason } => tracing::warn!(
                engine, %resource, ttl_ms = ms(ttl), grain_ms = ms(grain), reason,
                "if this process dies, its hold lasts longer than its ttl"
            ),
            Event::TokenAhead { resource, token, by } => tracing::warn!(
                engine, %resource, %token, by_ms = ms(by),
                "the token is ahead of this machine's time of day: a clock is or was wrong"
            ),
            // The others are above.
            _ => {}
        }
    }
}

fn ms(time: &Duration) -> u64 {
    time.as_millis() as u64
}

/// Says whether somebody wants an event of this level: a listener wants all. Asked under the lock of the ledger, so this is one read of
/// an atomic; which target a subscriber wants is asked when the event is told.
pub(crate) fn is_wanted(has_listener: bool, level: Level) -> bool {
    has_listener || level <= tracing::level_filters::LevelFilter::current()
}
