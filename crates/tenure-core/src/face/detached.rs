//! Holds that go from one user to another: taken in a web request, and finished in a worker.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::client::backoff;
use crate::client::connection::{Connection, Shared};
use crate::client::lease_state::LeaseState;
use crate::client::ledger::{Holding, NotEntered, deadline, in_use};
use crate::clock::Instant;
use crate::counts::Primitive;
use crate::engine::{
    Adopts, DynEngine, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, WithdrawAnswer,
    WithdrawRequest, adopts_elsewhere,
};
use crate::error::{Error, ErrorKind, Result};
use crate::face::lease::{Lease, check_value};
use crate::face::tenure::Tenure;
use crate::model::claim::{ClaimId, ClientId, Grant, Keep, Kind, Name, TTL_MAX, TTL_MIN, Terms};
use crate::model::step::{Release, Withdraw};
use crate::model::token::Token;

/// The format that is written, and the only one that is read.
pub(crate) const FORMAT: u32 = 1;

/// What [`Lease::detach`] leaves of a lease, and [`Tenure::attach`] makes one of again: in this program or another one, now or until its
/// ttl is over. It goes through any format of `serde`.
///
/// Nobody renews the hold meanwhile, and nobody releases it: it ends by itself, a ttl after its last renewal. Whoever has this can
/// attach it, so it is worth what the lease is worth.
///
/// # Guarantees
/// The store alone says what is held: something that was made up, or changed on its way, or is of another store, attaches nothing and
/// shows nobody else's lease. The token stays as it was, and so does the time from which `max_hold` counts.
///
/// **Attach it once.** Two programs that attach the same one both have the lease, with one token: no fence can tell their writes apart.
/// It is as if a lease was shared between two threads. The first of them to release it ends it for both. Give it to
/// one, as a job in a [`Queue`](crate::Queue) does. Within one client the second gets an error.
///
/// # Engines
/// Where `tenure.capability().adopts` is [`Adopts::SameClient`], a hold lives no longer than the client that took it: it can be
/// attached by that client alone, and [`Detached::bound_to`] says which one it is.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("detached-example").await?;
/// # let other_client = tenure_core::memory::connect("detached-example").await?;
/// let lease = tenure.mutex("billing/4711").acquire().await?;
/// let token = lease.token();
/// let detached = lease.detach()?;
/// // Anywhere within the ttl:
/// let lease = other_client.attach(&detached).await?.expect("it goes on for a ttl");
/// assert_eq!(lease.token(), token);
/// lease.release().await?;
/// assert!(tenure.attach(&detached).await?.is_none());
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # async fn f(detached: tenure_core::Detached) {
/// let name = detached.resource();
/// let claim = detached.claim();
/// let token = detached.token();
/// let slot = detached.slot();
/// let ttl = detached.ttl();
/// let client = detached.bound_to();
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct Detached {
    engine: String,
    resource: Name,
    claim: ClaimId,
    token: Token,
    slot: Option<u32>,
    kind: Kind,
    ttl: Duration,
    max_hold_left: Option<Duration>,
    bound_to: Option<ClientId>,
}

/// As it is written.
#[derive(Serialize, Deserialize)]
struct Written {
    format: u32,
    engine: String,
    name: String,
    claim: String,
    token: u64,
    slot: Option<u32>,
    kind: String,
    ttl_ms: u64,
    max_hold_left_ms: Option<u64>,
    bound_to: Option<String>,
}

pub(crate) fn millis(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX)
}

/// Returns what a kind is counted as.
fn primitive(kind: Kind) -> Primitive {
    match kind {
        Kind::Mutex => Primitive::Mutex,
        Kind::RwLock => Primitive::RwLock,
        Kind::Semaphore => Primitive::Semaphore,
        Kind::SlotPool => Primitive::SlotPool,
    }
}

impl From<Detached> for Written {
    fn from(detached: Detached) -> Written {
        Written {
            format: FORMAT,
            engine: detached.engine,
            name: detached.resource.as_str().to_owned(),
            claim: detached.claim.to_string(),
            token: detached.token.get(),
            slot: detached.slot,
            kind: primitive(detached.kind).as_str().to_owned(),
            ttl_ms: millis(detached.ttl),
            max_hold_left_ms: detached.max_hold_left.map(millis),
            bound_to: detached.bound_to.map(|client| client.to_string()),
        }
    }
}

pub(crate) fn unreadable(message: String) -> Error {
    Error::new(ErrorKind::Invalid, "read what was detached", message)
}

/// Refuses what another version has written.
pub(crate) fn check_format(format: u32) -> Result<()> {
    if format == FORMAT {
        return Ok(());
    }
    Err(unreadable(format!("its format is {format}, and this version reads {FORMAT}"))
        .with_hint("have both programs use one version of tenure"))
}

/// A ttl is divided by, and decides how often is renewed.
pub(crate) fn checked_ttl(ttl_ms: u64) -> Result<Duration> {
    let ttl = Duration::from_millis(ttl_ms);
    match ttl < TTL_MIN || ttl > TTL_MAX {
        true => Err(unreadable(format!("its ttl of {ttl:?} is out of range"))),
        false => Ok(ttl),
    }
}

impl TryFrom<Written> for Detached {
    type Error = Error;

    fn try_from(written: Written) -> Result<Detached> {
        check_format(written.format)?;
        let kinds = [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::SlotPool];
        let kind = kinds.into_iter().find(|kind| primitive(*kind).as_str() == written.kind);
        Ok(Detached {
            resource: Name::new(&written.name)?,
            claim: written.claim.parse()?,
            token: Token::new(written.token),
            slot: written.slot,
            kind: kind
                .ok_or_else(|| unreadable(format!("it has no kind that is known: {:?}", written.kind)))?,
            ttl: checked_ttl(written.ttl_ms)?,
            max_hold_left: written.max_hold_left_ms.map(Duration::from_millis),
            bound_to: written.bound_to.map(|client| client.parse()).transpose()?,
            engine: written.engine,
        })
    }
}

impl Detached {
    /// Returns the name of the resource.
    ///
    /// `let name = detached.resource();`
    pub fn resource(&self) -> &Name {
        &self.resource
    }

    /// Returns the id of the claim.
    ///
    /// `let claim = detached.claim();`
    pub fn claim(&self) -> ClaimId {
        self.claim
    }

    /// Returns the fencing token, which the lease has again when this is attached.
    ///
    /// `let token = detached.token();`
    pub fn token(&self) -> Token {
        self.token
    }

    /// Returns the number of the slot, for a slot pool; none for other kinds.
    ///
    /// `let slot = detached.slot();`
    pub fn slot(&self) -> Option<u32> {
        self.slot
    }

    /// Returns how long the hold lives without renewal.
    ///
    /// `let ttl = detached.ttl();`
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the client with which the hold ends, if it does: no other can attach this. `None`: every client can.
    ///
    /// `let client = detached.bound_to();`
    pub fn bound_to(&self) -> Option<ClientId> {
        self.bound_to
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached")
            .field("engine", &self.engine)
            .field("resource", &self.resource)
            .field("claim", &self.claim)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// Refuses what this client cannot attach, before anything is sent.
pub(crate) fn check_attachable(
    shared: &Shared,
    (engine, bound_to): (&str, Option<ClientId>),
    reason: &'static str,
) -> Result<()> {
    shared.check_process()?;
    if engine != shared.engine.name() {
        let message = format!("it was detached on {engine}");
        return Err(Error::new(ErrorKind::Invalid, "attach", message)
            .with_hint("connect with the same store")
            .with_no_effect());
    }
    match bound_to {
        Some(client) if client != shared.client => Err(adopts_elsewhere("attach", reason)),
        _ => Ok(()),
    }
}

impl Lease {
    /// Lets go of the lease without releasing it: the hold goes on until a ttl after its last renewal, for whoever
    /// [attaches](Tenure::attach) it. Dropping what this returns ends nothing sooner.
    ///
    /// `let detached = lease.detach()?;`
    ///
    /// Nothing is sent. A renewal that is under way may still move the end of the hold, and no answer brings the lease back here.
    /// A [`Slot`](crate::Slot) is detached as a lease: `Lease::from(slot).detach()?`.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lease is lost.
    ///
    /// # Engines
    /// Where [`Capability::adopts`](crate::engine::Capability::adopts) is `SameClient`, the hold ends with this client at the latest.
    pub fn detach(self) -> Result<Detached> {
        let shared = self.connection().shared.clone();
        shared.check_process()?;
        let (state, max_hold_left) = self.depart()?;
        let is_bound = shared.engine.capability().adopts == Adopts::SameClient;
        Ok(Detached {
            engine: shared.engine.name().to_owned(),
            resource: state.resource().clone(),
            claim: state.claim(),
            token: state.token(),
            slot: state.slot(),
            kind: state.terms().kind,
            ttl: state.terms().ttl,
            max_hold_left,
            bound_to: is_bound.then_some(shared.client),
        })
    }
}

/// What became of an attempt to renew something under its old claim.
pub(crate) enum Tried<T> {
    Done(T),
    /// The answer came too late, or not at all.
    Again(Error),
}

/// Tries until the answer timeout is over. No async closure: what it is called by would not be `Send`.
pub(crate) async fn until_answered<T, F: Future<Output = Result<Tried<T>>>>(
    shared: &Arc<Shared>,
    mut attempt: impl FnMut() -> F,
) -> Result<T> {
    let give_up_at = shared.clock.now() + shared.settings.answer_timeout;
    let mut attempts = 0;
    loop {
        let error = match attempt().await? {
            Tried::Done(done) => return Ok(done),
            Tried::Again(error) => error,
        };
        let delay = backoff::delay(attempts, shared.clock.random());
        attempts = attempts.saturating_add(1);
        if shared.clock.now() + delay >= give_up_at {
            return Err(error);
        }
        shared.pause(delay).await?;
    }
}

/// The answer came after all that it promises.
pub(crate) fn too_late(shared: &Shared, name: &Name) -> Error {
    Error::new(ErrorKind::Unavailable, "attach", "the answer came too late")
        .named(shared.engine.name(), Some(name))
}

impl Tenure {
    /// Makes a lease of what was detached, renewed by this client from now on. `None`: the hold has ended, or is not this one any more, or
    /// was never in this store.
    ///
    /// `let lease = tenure.attach(&detached).await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer within the answer timeout (default 2 s): attach it again;
    /// [`ErrorKind::Unsupported`] if it is bound to another client, or this process was forked;
    /// [`ErrorKind::Invalid`] if it is of another engine, or this client has the same claim already.
    ///
    /// # Cancel safety
    /// Dropping the future attaches nothing. The hold may have been renewed once more, and ends a ttl after that.
    ///
    /// # Cost
    /// One round trip.
    pub async fn attach(&self, detached: &Detached) -> Result<Option<Lease>> {
        let shared = &self.connection.shared;
        let reason = shared.engine.capability().adopts_reason;
        check_attachable(shared, (&detached.engine, detached.bound_to), reason)
            .map_err(|error| error.named(shared.engine.name(), Some(&detached.resource)))?;
        until_answered(shared, || attach_once(&self.connection, detached)).await
    }

    /// Returns the verbs about claims by their ids, for a program that keeps no lease of each: a server whose clients renew.
    ///
    /// `let claims = tenure.detached();`
    pub fn detached(&self) -> DetachedClaims {
        DetachedClaims { connection: self.connection.clone() }
    }
}

/// The terms of a lease that is entered when it is held already: the store knows the others.
pub(crate) fn terms_of(shared: &Shared, kind: Kind, ttl: Duration) -> Arc<Terms> {
    shared.share(&Arc::new(Terms { kind, ttl, ..Terms::clone(&shared.terms) }))
}

async fn attach_once(connection: &Arc<Connection>, detached: &Detached) -> Result<Tried<Option<Lease>>> {
    let shared = &connection.shared;
    let (resource, claim) = (detached.resource.clone(), detached.claim);
    let named = |error: Error| error.named(shared.engine.name(), Some(&detached.resource));
    if shared.ledger().has_given_id(claim) {
        return Err(named(in_use()));
    }
    let request = RenewRequest { resource: resource.clone(), claim, is_waiter: true };
    let Some((sent, answer)) = shared.adopt(vec![request]).await.pop() else { return Ok(Tried::Done(None)) };
    let grant: Grant = match answer {
        Ok(RenewAnswer::Granted(grant)) => grant,
        Ok(RenewAnswer::Lost | RenewAnswer::Waiting(..)) => return Ok(Tried::Done(None)),
        Ok(RenewAnswer::Renewed { .. }) => {
            return Err(named(Error::new(ErrorKind::Internal, "attach", "the engine left out the grant")));
        }
        Err(error) if error.kind() == ErrorKind::Unavailable => return Ok(Tried::Again(error)),
        Err(error) => return Err(error),
    };
    // The id was granted again after the end of this hold, or somebody has changed the token.
    if grant.token != detached.token {
        return Ok(Tried::Done(None));
    }
    let scope = shared.scope(primitive(detached.kind), Some(&resource));
    let lease = LeaseState::new(resource, claim, terms_of(shared, detached.kind, detached.ttl));
    let holding = Holding { lease, grant, sent, scope };
    let entered = shared.update_ledger(|ledger, now| ledger.attach(now, holding, detached.max_hold_left));
    match entered {
        Ok((key, state)) => {
            if shared.engine.capability().needs_floor {
                shared.raise_floor(state.resource(), state.token());
            }
            Ok(Tried::Done(Some(Lease::attached(connection.clone(), state, key))))
        }
        Err(NotEntered::InUse) => Err(named(in_use())),
        Err(NotEntered::Over) => Ok(Tried::Again(too_late(shared, &detached.resource))),
    }
}

/// The verbs about claims by their ids, without a lease: many in one call, an answer for each. See [`Tenure::detached`].
///
/// Nothing is kept about them here: each request is answered by the store, and what is not renewed again ends after its ttl. Whoever has
/// an id can do this; a claim that this client also has a [`Lease`] of is renewed by the client by itself.
///
/// # Errors
/// [`ErrorKind::Unavailable`] stands in the place of each answer that did not come within the answer timeout (default 2 s): ask again,
/// as often as it takes. [`ErrorKind::Unsupported`]: on this engine a claim lives with the client that made it
/// ([`Adopts::SameClient`]), which is another one.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("detached-claims-example").await?;
/// let detached = tenure.mutex("billing/4711").acquire().await?.detach()?;
/// let held = vec![(detached.resource().clone(), detached.claim())];
/// for kept in tenure.detached().renew(held.clone()).await {
///     assert!(kept?.is_some(), "it is held");
/// }
/// for answer in tenure.detached().release(held).await {
///     assert_eq!(answer?, tenure_core::ReleaseAnswer::Released);
/// }
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # use tenure_core::{ClaimId, Name};
/// # async fn f(tenure: tenure_core::Tenure, held: Vec<(Name, ClaimId)>) {
/// # let (left, ended) = (held.clone(), held.clone());
/// let kept = tenure.detached().renew(held).await;
/// # let held = ended;
/// let answers = tenure.detached().release(held).await;
/// let answers = tenure.detached().withdraw(left).await;
/// # }
/// # async fn g(tenure: tenure_core::Tenure, name: Name, claim: ClaimId) -> tenure_core::Result<()> {
/// # let (bytes, keep) = (std::sync::Arc::from(*b"17.50"), tenure_core::model::claim::Keep::WhileHeld);
/// let is_held = tenure.detached().publish(name, claim, bytes, keep).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct DetachedClaims {
    connection: Arc<Connection>,
}

impl fmt::Debug for DetachedClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedClaims").field("engine", &self.connection.engine()).finish_non_exhaustive()
    }
}

/// How a claim stands that was renewed by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kept {
    /// It holds.
    Held {
        /// The fencing token.
        token: Token,
        /// The slot, for a slot pool.
        slot: Option<u32>,
        /// Until when it is safe to work under it: on the clock of this machine, counted from when the request was sent.
        deadline: Instant,
    },
    /// It waits.
    Waiting {
        /// Its place; 1 is the head of the queue.
        position: u32,
    },
}

impl DetachedClaims {
    /// Renews holds, and keeps the places of claims that wait. `None`: it neither holds nor waits. A claim that has ended is never made
    /// again.
    ///
    /// `let kept = tenure.detached().renew(held).await;`
    ///
    /// # Cost
    /// One round trip for as many as one call of the engine takes (128), to each of its servers.
    pub async fn renew(&self, claims: Vec<(Name, ClaimId)>) -> Vec<Result<Option<Kept>>> {
        let shared = &self.connection.shared;
        if let Err(error) = shared.check_process() {
            return claims.iter().map(|_| Err(error.clone())).collect();
        }
        let request = |(resource, claim)| RenewRequest { resource, claim, is_waiter: true };
        let heard = shared.adopt(claims.into_iter().map(request).collect()).await;
        let answer = |(sent, answer): (Instant, Result<RenewAnswer>)| {
            Ok(match answer? {
                RenewAnswer::Granted(Grant { token, slot, ends_in }) => {
                    Some(Kept::Held { token, slot, deadline: deadline(sent, ends_in) })
                }
                RenewAnswer::Waiting(waiting, _) => Some(Kept::Waiting { position: waiting.position }),
                RenewAnswer::Renewed { .. } | RenewAnswer::Lost => None,
            })
        };
        heard.into_iter().map(answer).collect()
    }

    /// Releases holds and withdraws claims that wait. Their ids are used up: for 60 s a copy of such a claim that comes late is refused.
    ///
    /// `let answers = tenure.detached().release(held).await;`
    ///
    /// # Cost
    /// As [`DetachedClaims::renew`].
    pub async fn release(&self, claims: Vec<(Name, ClaimId)>) -> Vec<Result<ReleaseAnswer>> {
        let shared = &self.connection.shared;
        if let Err(error) = shared.check_process() {
            return claims.iter().map(|_| Err(error.clone())).collect();
        }
        // Copies of the claim may be under way from anywhere.
        let release = |claim| Release { claim, maybe_in_flight: true, is_unused: false };
        let request = |(resource, claim)| ReleaseRequest { resource, release: release(claim) };
        let heard = shared.release_many(claims.into_iter().map(request).collect()).await;
        heard.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Withdraws claims that this client has sent and that nobody asks for any more: those that wait, and grants to them of which nobody has
    /// heard. A server does so for a user that went away while it waited, and may have come back to another server.
    ///
    /// `let answers = tenure.detached().withdraw(left).await;`
    ///
    /// # Guarantees
    /// What any client has confirmed or renewed since its grant is left alone ([`WithdrawAnswer::InUse`]), and so is what waits by another
    /// client now. A grant whose ttl or `max_hold` is 5 s or less is left alone too, and ends within that time by itself. What is
    /// withdrawn or gone has used up its id, as after a release.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] on an engine on which any client can have a claim, and which does not know this verb: none of ours.
    ///
    /// # Engines
    /// On Redlock no other client can have it, and it is released whatever it is. On etcd and ZooKeeper another client may use the id again.
    ///
    /// # Cost
    /// As [`DetachedClaims::renew`].
    pub async fn withdraw(&self, claims: Vec<(Name, ClaimId)>) -> Vec<Result<WithdrawAnswer>> {
        let shared = &self.connection.shared;
        if let Err(error) = shared.check_process() {
            return claims.iter().map(|_| Err(error.clone())).collect();
        }
        let client = shared.client;
        let request = |(resource, claim)| WithdrawRequest { resource, withdraw: Withdraw { claim, client } };
        let heard = shared.withdraw_many(claims.into_iter().map(request).collect()).await;
        heard.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Sets the value of the resource under a hold; it goes with the hold, or is kept for a while. Answers whether the claim holds: if not,
    /// nothing was set.
    ///
    /// `let is_held = tenure.detached().publish(name, claim, bytes, keep).await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a value of more than 256 KiB; [`ErrorKind::Unavailable`] if the outcome is unknown: publish it again.
    ///
    /// # Cost
    /// One round trip.
    pub async fn publish(&self, name: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        let shared = &self.connection.shared;
        shared.check_process()?;
        check_value(&bytes, &name)?;
        let about = name.clone();
        let publish = async move |engine: Arc<dyn DynEngine>| engine.publish(name, claim, bytes, keep).await;
        shared.on_thread(Some(&about), publish).await
    }
}
