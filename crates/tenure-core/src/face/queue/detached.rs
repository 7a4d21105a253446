//! Deliveries that go from one consumer to another: taken in one process, and finished in another one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::Span;

use super::{Delivery, Queue};
use crate::client::connection::Connection;
use crate::client::handed_out::Parts;
use crate::client::lease_state::LeaseState;
use crate::client::ledger::{Holding, NotEntered, deadline, in_use};
use crate::clock::Instant;
use crate::engine::queue::{Dispatched, ItemContext, ItemId, Rules, Settle, SettleAnswer, Settlement};
use crate::engine::{Adopts, RenewAnswer, RenewRequest};
use crate::error::{Error, ErrorKind, Result};
use crate::face::detached::{
    FORMAT, Tried, check_attachable, check_format, checked_ttl, millis, terms_of, too_late, unreadable,
    until_answered,
};
use crate::model::claim::{ClaimId, ClientId, Grant, Kind, Name, PERIOD_MAX};
use crate::model::token::Token;

/// What [`Delivery::detach`] leaves of a delivery, and [`Queue::attach`] makes one of again: in this program or another one, until its
/// ttl is over. It goes through any format of `serde`, with the payload: a compact one is smaller.
///
/// Nobody renews the delivery meanwhile. If nobody attaches it, the item is handed out again a ttl after the last renewal.
///
/// # Guarantees
/// The store says whether the delivery goes on. What this carries of the item (payload, context, group, attempt, token) is as it was written: keep
/// it where only programs of yours write. **Attach it once**: see [`Detached`](crate::Detached), of which all else holds here, too.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("detached-delivery-example").await?;
/// # let other_client = tenure_core::memory::connect("detached-delivery-example").await?;
/// tenure.queue("refunds").push("order 4711").await?;
/// let detached = tenure.queue("refunds").next().await?.detach()?;
/// // Anywhere within the ttl:
/// let delivery = other_client.queue("refunds").attach(&detached).await?.expect("it goes on for a ttl");
/// assert_eq!(delivery.payload(), b"order 4711");
/// delivery.ack().await?;
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # async fn f(detached: tenure_core::DetachedDelivery) {
/// let queue = detached.queue();
/// let claim = detached.claim();
/// let payload = detached.payload();
/// let ttl = detached.ttl();
/// let client = detached.bound_to();
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct DetachedDelivery {
    engine: String,
    queue: Name,
    item: Dispatched,
    ttl: Duration,
    bound_to: Option<ClientId>,
}

/// As it is written.
#[derive(Serialize, Deserialize)]
struct Written {
    format: u32,
    engine: String,
    queue: String,
    claim: String,
    token: u64,
    item: u64,
    group: Option<String>,
    payload: Vec<u8>,
    attempt: u32,
    age_ms: u64,
    ttl_ms: u64,
    bound_to: Option<String>,
    /// Not in what was written by those who knew no contexts.
    #[serde(default)]
    context: Option<String>,
}

impl From<DetachedDelivery> for Written {
    fn from(DetachedDelivery { engine, queue, item, ttl, bound_to }: DetachedDelivery) -> Written {
        Written {
            format: FORMAT,
            engine,
            queue: queue.as_str().to_owned(),
            claim: item.claim.to_string(),
            token: item.token.get(),
            item: item.item.0,
            group: item.group.map(|group| group.as_str().to_owned()),
            payload: item.payload.to_vec(),
            attempt: item.attempt,
            age_ms: millis(item.age),
            ttl_ms: millis(ttl),
            bound_to: bound_to.map(|client| client.to_string()),
            context: item.context.map(|context| context.as_str().to_owned()),
        }
    }
}

impl TryFrom<Written> for DetachedDelivery {
    type Error = Error;

    fn try_from(written: Written) -> Result<DetachedDelivery> {
        check_format(written.format)?;
        // The delay before the next attempt is counted from it.
        if written.attempt == 0 {
            return Err(unreadable("its attempt is 0, and the first one is 1".to_owned()));
        }
        let item = Dispatched {
            claim: written.claim.parse()?,
            item: ItemId(written.item),
            group: written.group.map(|group| Name::new(&group)).transpose()?,
            payload: written.payload.into(),
            context: written.context.map(|context| ItemContext::new(&context)).transpose()?,
            attempt: written.attempt,
            token: Token::new(written.token),
            ends_in: Duration::ZERO,
            age: Duration::from_millis(written.age_ms),
        };
        Ok(DetachedDelivery {
            engine: written.engine,
            queue: Name::new(&written.queue)?,
            item,
            ttl: checked_ttl(written.ttl_ms)?,
            bound_to: written.bound_to.map(|client| client.parse()).transpose()?,
        })
    }
}

impl DetachedDelivery {
    /// Returns the name of the queue.
    ///
    /// `let queue = detached.queue();`
    pub fn queue(&self) -> &Name {
        &self.queue
    }

    /// Returns the id of the claim.
    ///
    /// `let claim = detached.claim();`
    pub fn claim(&self) -> ClaimId {
        self.item.claim
    }

    /// Returns what was pushed.
    ///
    /// `let payload = detached.payload();`
    pub fn payload(&self) -> &[u8] {
        &self.item.payload
    }

    /// Returns how long the delivery lives without renewal.
    ///
    /// `let ttl = detached.ttl();`
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the client with which the delivery ends, if it does: no other can attach this. `None`: every client can.
    ///
    /// `let client = detached.bound_to();`
    pub fn bound_to(&self) -> Option<ClientId> {
        self.bound_to
    }
}

impl fmt::Debug for DetachedDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedDelivery")
            .field("engine", &self.engine)
            .field("queue", &self.queue)
            .field("item", &self.item.item)
            .field("claim", &self.item.claim)
            .finish_non_exhaustive()
    }
}

impl Delivery {
    /// Lets go of the delivery without ending it: the item stays with nobody until a ttl after the last renewal, for whoever
    /// [attaches](Queue::attach) it, and is handed out again then. Nothing is sent.
    ///
    /// `let detached = delivery.detach()?;`
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the delivery is lost.
    ///
    /// # Engines
    /// Where [`QueueCapability::adopts`](crate::engine::queue::QueueCapability::adopts) is `SameClient`, the delivery ends with this client at
    /// the latest.
    pub fn detach(mut self) -> Result<DetachedDelivery> {
        let (key, shared) = (self.lease.key(), self.lease.connection().shared.clone());
        shared.check_process()?;
        let departed = shared.update_ledger(|ledger, now| ledger.depart(now, key));
        departed.map_err(|reason| self.lease.lost_error(reason))?;
        self.is_settled = true;
        let is_bound = shared.queues()?.capability().adopts == Adopts::SameClient;
        Ok(DetachedDelivery {
            engine: shared.engine.name().to_owned(),
            queue: self.lease.resource().clone(),
            item: Dispatched { ends_in: Duration::ZERO, ..self.item.clone() },
            ttl: self.rules.ttl,
            bound_to: is_bound.then_some(shared.client),
        })
    }
}

impl Queue {
    /// Makes a delivery of what was detached, renewed by this client from now on. `None`: it has ended, and the item is or will be handed
    /// out again, or is done.
    ///
    /// `let delivery = queue.attach(&detached).await?;`
    ///
    /// # Errors
    /// As [`Tenure::attach`](crate::Tenure::attach); [`ErrorKind::Invalid`] if it is of another queue.
    ///
    /// # Cancel safety
    /// Dropping the future attaches nothing. The delivery may have been renewed once more.
    ///
    /// # Cost
    /// One round trip.
    pub async fn attach(&self, detached: &DetachedDelivery) -> Result<Option<Delivery>> {
        let (shared, name) = (&self.connection.shared, self.name.clone()?);
        let reason = shared.queues()?.capability().adopts_reason;
        check_attachable(shared, (&detached.engine, detached.bound_to), reason)
            .map_err(|error| error.named(shared.engine.name(), Some(&name)))?;
        if name != detached.queue {
            let message = format!("it was detached from the queue {:?}", detached.queue);
            return Err(
                Error::new(ErrorKind::Invalid, "attach", message).named(shared.engine.name(), Some(&name))
            );
        }
        until_answered(shared, || self.attach_once(detached)).await
    }

    async fn attach_once(&self, detached: &DetachedDelivery) -> Result<Tried<Option<Delivery>>> {
        let (connection, shared) = (&self.connection, &self.connection.shared);
        let (queue, claim) = (detached.queue.clone(), detached.item.claim);
        let named = |error: Error| error.named(shared.engine.name(), Some(&detached.queue));
        if shared.ledger().has_given_id(claim) {
            return Err(named(in_use()));
        }
        let request = RenewRequest { resource: queue.clone(), claim, is_waiter: false };
        let Some((sent, answer)) = shared.adopt_deliveries(vec![request]).await.pop() else {
            return Ok(Tried::Done(None));
        };
        let ends_in = match answer {
            Ok(RenewAnswer::Renewed { ends_in } | RenewAnswer::Granted(Grant { ends_in, .. })) => ends_in,
            Ok(RenewAnswer::Lost | RenewAnswer::Waiting(..)) => return Ok(Tried::Done(None)),
            Err(error) if error.kind() == ErrorKind::Unavailable => return Ok(Tried::Again(error)),
            Err(error) => return Err(error),
        };
        let grant = Grant { token: detached.item.token, slot: None, ends_in };
        let lease = LeaseState::new(queue, claim, terms_of(shared, Kind::Mutex, detached.ttl));
        let holding = Holding { lease, grant, sent, scope: self.scope };
        match shared.update_ledger(|ledger, now| ledger.attach_delivery(now, holding)) {
            Ok((key, state)) => {
                let rules = Arc::new(Rules { ttl: detached.ttl, ..Rules::clone(&self.rules) });
                let parts =
                    Parts { connection: connection.clone(), state, key, rules, item: detached.item.clone() };
                Ok(Tried::Done(Some(Delivery::new(parts, &Span::none()))))
            }
            Err(NotEntered::InUse) => Err(named(in_use())),
            Err(NotEntered::Over) => Ok(Tried::Again(too_late(shared, &detached.queue))),
        }
    }

    /// Returns the verbs about deliveries of this queue by their ids, for a program that keeps none of them: a server whose clients
    /// take, renew and settle.
    ///
    /// `let deliveries = queue.detached();`
    pub fn detached(&self) -> DetachedDeliveries {
        DetachedDeliveries {
            connection: self.connection.clone(),
            queue: self.name.clone(),
            attempts_max: self.rules.attempts_max,
        }
    }
}

/// The verbs about deliveries by their ids: many in one call, an answer for each. See [`Queue::detached`].
///
/// Nothing is kept about them here: each request is answered by the store, and what is not renewed again ends after its ttl.
///
/// # Errors
/// As those of [`DetachedClaims`](crate::DetachedClaims). A settlement may be repeated: one that was carried out is answered
/// [`Lost`](SettleAnswer::Lost) then.
///
/// # Cost
/// One round trip for as many as one call of the queues takes (128), to each of the engine's servers.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("detached-deliveries-example").await?;
/// # use tenure_core::engine::queue::SettleAnswer;
/// let refunds = tenure.queue("refunds");
/// refunds.push("order 4711").await?;
/// let claim = refunds.next().await?.detach()?.claim();
/// for deadline in refunds.detached().renew(vec![claim]).await {
///     assert!(deadline?.is_some(), "it goes on");
/// }
/// for answer in refunds.detached().ack(vec![claim]).await {
///     assert_eq!(answer?, SettleAnswer::Settled);
/// }
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # use std::time::Duration;
/// # async fn f(queue: tenure_core::Queue, delivery: tenure_core::Delivery, claims: Vec<tenure_core::ClaimId>) -> tenure_core::Result<()> {
/// # let all = || claims.clone();
/// let detached = delivery.detach()?;
/// let delivery = queue.attach(&detached).await?;
/// let deliveries = queue.detached();
/// let claims = all();
/// let deadlines = deliveries.renew(claims).await;
/// # let claims = all();
/// let answers = deliveries.ack(claims).await;
/// # let claims = all();
/// let answers = deliveries.retry(claims, Duration::from_secs(60), "no answer").await;
/// # let claims = all();
/// let answers = deliveries.fail(claims, "no such order").await;
/// # let claims = all();
/// let answers = deliveries.put_back(claims).await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct DetachedDeliveries {
    connection: Arc<Connection>,
    queue: Result<Name>,
    attempts_max: u32,
}

impl fmt::Debug for DetachedDeliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedDeliveries").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl DetachedDeliveries {
    /// Renews deliveries. The answer for each: until when it is safe to work on it, on the clock of this machine, counted from
    /// when this was sent; `None` if it has ended.
    ///
    /// `let deadlines = deliveries.renew(claims).await;`
    pub async fn renew(&self, claims: Vec<ClaimId>) -> Vec<Result<Option<Instant>>> {
        let shared = &self.connection.shared;
        let queue = match self.ready() {
            Ok(queue) => queue,
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let request = |claim| RenewRequest { resource: queue.clone(), claim, is_waiter: false };
        let heard = shared.adopt_deliveries(claims.into_iter().map(request).collect()).await;
        let answer = |(sent, answer): (Instant, Result<RenewAnswer>)| {
            Ok(match answer? {
                RenewAnswer::Renewed { ends_in } | RenewAnswer::Granted(Grant { ends_in, .. }) => {
                    Some(deadline(sent, ends_in))
                }
                RenewAnswer::Lost | RenewAnswer::Waiting(..) => None,
            })
        };
        heard.into_iter().map(answer).collect()
    }

    /// Acknowledges items: they are done (see [`Delivery::ack`]).
    ///
    /// `let answers = deliveries.ack(claims).await;`
    pub async fn ack(&self, claims: Vec<ClaimId>) -> Vec<Result<SettleAnswer>> {
        self.settle(claims, Settlement::Ack).await
    }

    /// Hands items out again after so long (see [`Delivery::retry_because`]). How many attempts they have is the queue's
    /// [`max_attempts`](Queue::max_attempts).
    ///
    /// `let answers = deliveries.retry(claims, Duration::from_secs(60), "no answer").await;`
    pub async fn retry(&self, claims: Vec<ClaimId>, after: Duration, why: &str) -> Vec<Result<SettleAnswer>> {
        let reason = if why.is_empty() { "no attempt succeeded" } else { why }.to_owned();
        let after = after.min(PERIOD_MAX);
        self.settle(claims, Settlement::Retry { after, attempts_max: self.attempts_max, reason }).await
    }

    /// Makes items dead letters (see [`Delivery::fail`]).
    ///
    /// `let answers = deliveries.fail(claims, "no such order").await;`
    pub async fn fail(&self, claims: Vec<ClaimId>, reason: &str) -> Vec<Result<SettleAnswer>> {
        self.settle(claims, Settlement::Fail { reason: reason.to_owned() }).await
    }

    /// Puts items back as if they had not been handed out (see [`Delivery::put_back`]).
    ///
    /// `let answers = deliveries.put_back(claims).await;`
    pub async fn put_back(&self, claims: Vec<ClaimId>) -> Vec<Result<SettleAnswer>> {
        self.settle(claims, Settlement::Return).await
    }

    fn ready(&self) -> Result<Name> {
        self.connection.shared.check_process()?;
        self.connection.shared.queues()?;
        self.queue.clone()
    }

    async fn settle(&self, claims: Vec<ClaimId>, settlement: Settlement) -> Vec<Result<SettleAnswer>> {
        let queue = match self.ready() {
            Ok(queue) => queue,
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let settle = |claim| Settle { queue: queue.clone(), claim, settlement: settlement.clone() };
        let settlements = claims.into_iter().map(settle).collect();
        let heard = self.connection.shared.settle_many(settlements).await;
        heard.into_iter().map(|(_, answer)| answer).collect()
    }
}
