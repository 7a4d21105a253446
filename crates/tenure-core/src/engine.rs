//! The contract of every engine: few verbs, batched where it pays, the same meaning everywhere.
//!
//! An engine keeps no truth in memory: any client may die between any two lines. It never repeats a request by
//! itself; the client repeats it with the same claim id, which every verb takes without harm. The conformance
//! suite (`tenure-conformance`) is the text of this contract.
//!
//! No example here or below, but for what users meet: an engine is too long for one. `memory.rs` is the least of them.

pub mod finding;
mod object;
pub mod queue;
mod see_through;
pub mod url;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};

pub use crate::engine::finding::{Finding, Severity};
pub use crate::engine::see_through::see_through;
pub use crate::engine::url::EngineUrl;
pub use crate::model::step::{BreakAnswer, ReleaseAnswer, WithdrawAnswer};

use crate::error::{Error, ErrorKind, Result};
use crate::model::claim::{
    Busy, Claim, ClaimId, ClientId, Grant, Keep, Kind, Name, Published, TTL_MAX, TTL_MIN, WAITERS_MAX,
    Waiting,
};
use crate::model::inspect::View;
use crate::model::step::{Claimed, Refusal, Release, Renewed, Withdraw};
use crate::model::token::Token;

pub use crate::engine::object::{DynEngine, DynQueueEngine};

/// How many resources are asked for at a time where all are listed.
const PAGE: usize = 128;

/// Which clients can share an engine's resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Clients of one process.
    Process,
    /// Processes of one machine.
    Machine,
    /// Machines that reach the store.
    Network,
}

/// Which free slot a claim is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOrder {
    /// The one that has been free longest.
    LongestFree,
    /// Any.
    AnyFree,
}

/// How a hold passes to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOver {
    /// A grant to a waiter lives for the confirm window until it is renewed.
    Window,
    /// A grant lives as long as the client's session with the store.
    Session,
    /// The store only notifies; the waiter's next heartbeat acquires.
    Asked,
}

/// Which clients can renew a hold, a waiter or a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopts {
    /// Every one that reaches the store: what was claimed lives in the store alone.
    AnyClient,
    /// Only the one that made the claim, which lives no longer than that client.
    SameClient,
}

/// What an engine can do. It chooses conformance checks and fills the documents' table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capability {
    /// Which clients can share its resources.
    pub reach: Reach,
    /// The kinds that it grants.
    pub kinds: &'static [Kind],
    /// Why it grants no others, for the error of a claim for one; empty: nothing is to be said.
    pub kinds_reason: &'static str,
    /// Whether claims are granted in the order in which they were received.
    pub is_fifo: bool,
    /// Which free slot a claim is given.
    pub slot_order: SlotOrder,
    /// Whether units can rest (`lock_delay`, `min_hold`).
    pub has_rests: bool,
    /// Whether values outlive holds.
    pub keeps_values: bool,
    /// The shortest ttl.
    pub ttl_min: Duration,
    /// The longest ttl.
    pub ttl_max: Duration,
    /// Why no longer ttl is possible, for the error of a claim for one; empty: nothing is to be said.
    pub ttl_reason: &'static str,
    /// What a ttl is rounded up to where its holder has died. A shorter one is reported as
    /// [`Event::Coarse`](crate::event::Event::Coarse).
    pub ttl_grain: Duration,
    /// What that is, for the event of a shorter ttl; empty: nothing is to be said.
    pub ttl_grain_reason: &'static str,
    /// The longest that a hold lives whose client the store does not hear at all, however long its ttl.
    pub silence_max: Duration,
    /// How a hold passes to a waiter.
    pub hand_over: HandOver,
    /// Whether a waiter in another process is woken at once when it has been granted. Otherwise it finds out by its
    /// heartbeat, a third of its confirm window later at most.
    pub tells_waiters: bool,
    /// Whether a holder that was killed is noticed at once, without waiting for its ttl.
    pub notices_death: bool,
    /// Which clients can renew a hold or a waiter ([`Engine::adopt`]).
    pub adopts: Adopts,
    /// Why no other client can, for the error of one that tries; empty: nothing is to be said.
    pub adopts_reason: &'static str,
    /// The most waiters of one resource.
    pub waiters_max: u32,
    /// Whether tokens need the client's floor to survive a loss of the store's memory.
    pub needs_floor: bool,
    /// Whether a floor above the store's own numbers raises the next token. Otherwise a claim with such a floor is refused:
    /// the tokens are numbers that the store counts by itself.
    pub raises_tokens: bool,
    /// Whether a claim whose hold ended by itself is refused when a late copy of it arrives. Otherwise that copy may
    /// be granted: a hold without renewals, for one ttl.
    pub remembers_ends: bool,
    /// Whether exclusion survives the failover of a store's server.
    pub survives_failover: bool,
    /// The most claims, renewals or releases in one call.
    pub batch_max: usize,
    /// The most claims of one resource in one call: more would be entered one after the other, and all of the call's claims
    /// wait for the last of them.
    pub resource_batch_max: usize,
    /// How many calls of one verb may be under way to one shard at a time.
    pub calls_max: usize,
    /// Whether calls of one verb to one shard are executed in the order in which they were sent. Where they are not, the client
    /// has claims of one resource in one call at a time: what a program asks for one after the other stands in the queue like that.
    pub keeps_call_order: bool,
}

impl Capability {
    /// All that [`step`](crate::model::step::step) can do, within one process; an engine narrows it.
    pub fn of_step() -> Capability {
        Capability {
            reach: Reach::Process,
            kinds: &[Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::SlotPool],
            kinds_reason: "",
            is_fifo: true,
            slot_order: SlotOrder::LongestFree,
            has_rests: true,
            keeps_values: true,
            ttl_min: TTL_MIN,
            ttl_max: TTL_MAX,
            ttl_reason: "",
            ttl_grain: Duration::from_millis(1),
            ttl_grain_reason: "",
            silence_max: TTL_MAX,
            hand_over: HandOver::Window,
            tells_waiters: true,
            notices_death: false,
            adopts: Adopts::AnyClient,
            adopts_reason: "",
            waiters_max: WAITERS_MAX,
            needs_floor: false,
            raises_tokens: true,
            remembers_ends: true,
            survives_failover: false,
            batch_max: 128,
            resource_batch_max: 128,
            calls_max: 1,
            keeps_call_order: true,
        }
    }
}

/// One of the servers among which an engine has divided its resources and queues, as the engine counts them from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u16);

impl Shard {
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// One life of a store's memory. Another incarnation may have forgotten what this one knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u64);

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// It holds.
    Granted(Grant),
    /// It waits in the queue of this incarnation.
    Waiting(Waiting, Incarnation),
    /// It was refused: others hold.
    Busy(Busy),
    /// A fresh value answers it.
    Fresh(Published),
    /// Its id has been used and has ended.
    Finished,
}

/// What the client knows about a claim that it renews.
#[derive(Clone, Debug)]
pub struct RenewRequest {
    /// The resource.
    pub resource: Name,
    /// The claim.
    pub claim: ClaimId,
    /// The client believes that it waits, so the answer must hold the whole grant if there is one.
    pub is_waiter: bool,
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewAnswer {
    /// It holds, for this long.
    Renewed {
        /// From when the engine answered.
        ends_in: Duration,
    },
    /// It holds, and this is its grant.
    Granted(Grant),
    /// It waits in the queue of this incarnation.
    Waiting(Waiting, Incarnation),
    /// It neither holds nor waits.
    Lost,
}

/// A release of a hold or a waiter.
#[derive(Clone, Debug)]
pub struct ReleaseRequest {
    /// The resource.
    pub resource: Name,
    /// The claim, and what is known about its copies.
    pub release: Release,
}

/// A withdrawal of what the user of a client has left behind.
#[derive(Clone, Debug)]
pub struct WithdrawRequest {
    /// The resource.
    pub resource: Name,
    /// The claim, and whose it was.
    pub withdraw: Withdraw,
}

/// News for a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// The claim has been granted.
    Granted {
        /// The claim.
        claim: ClaimId,
        /// Its grant, unconfirmed.
        grant: Grant,
        /// The incarnation of the store that granted it.
        incarnation: Incarnation,
    },
    /// Something changed for the claim: its heartbeat is due now.
    Look(ClaimId),
    /// News may have been missed: the heartbeats of all waiters are due now.
    LookAtAll,
    /// The store may have forgotten what it knew (a restart, a failover): the heartbeats of all waiters and the
    /// renewals of all holders are due now, so that a client that lost something learns of it.
    RenewAll,
    /// Something may be ready in a queue in which this client asked in vain.
    Queue(Name),
}

/// What grants claims: a store plus tenure's protocol on it.
///
/// An engine writes its verbs as `async fn`; their futures must be `Send`. The client keeps it as a [`DynEngine`], which it is by
/// itself. Every future runs on the client's own thread, with tokio's I/O and time. Results are in the order of the
/// requests.
///
/// The client drops a future after the `answer_timeout` of its user, which may be as short as a round trip. What lasts longer, such as to
/// connect, goes on behind it: see [`see_through`].
///
/// An `Err` means that the outcome is unknown: a claim may hold. The client repeats requests that fail with
/// [`ErrorKind::Unavailable`], and withdraws claims that fail with any other kind. Only an error
/// [without effect](Error::with_no_effect) is a refusal: the decision about this very request, or what is known before
/// anything is sent.
///
/// An error need not name the engine or the resource: the client adds both. Only one that is about a single resource of a list must
/// name that.
pub trait Engine: Send + Sync + 'static {
    /// Returns the one word by which the engine goes: its crate, feature, URL scheme and page.
    fn name(&self) -> &'static str;

    /// Returns what it can do.
    fn capability(&self) -> &Capability;

    /// Returns which server a resource or a queue is on, where an engine has divided them among several.
    ///
    /// A client asks about what is on one shard in calls of their own, so that a server that hangs delays nothing that is on
    /// another one. It is a hint: where the resource has moved meanwhile, the engine does all the same what a call asks.
    ///
    /// It must not block: a client asks for each request, under a lock.
    fn shard(&self, resource: &Name) -> Shard {
        let _ = resource;
        Shard::default()
    }

    /// Grants, queues or refuses claims.
    fn claim(&self, claims: Vec<Claim>) -> impl Future<Output = Vec<Result<ClaimAnswer>>> + Send;

    /// Extends holds, confirms grants and keeps the places of waiters.
    ///
    /// A client renews what it holds and what waits in calls of their own: a place may cost more, and be worth a
    /// longer wait, than a lease can bear.
    fn renew(&self, renewals: Vec<RenewRequest>) -> impl Future<Output = Vec<Result<RenewAnswer>>> + Send;

    /// As [`Engine::renew`], of claims that this client may not have made: it can renew them from now on, and what lives by its client
    /// lives by this one. The requests say that they are about waiters, so that a hold is answered with its whole grant, which is as it
    /// was: token, slot and order stay.
    ///
    /// An engine whose claims cannot go from one client to another ([`Adopts::SameClient`]) answers as `renew` does where the claim
    /// is this client's, and refuses with [`adopts_elsewhere`] where it is another's.
    fn adopt(&self, renewals: Vec<RenewRequest>) -> impl Future<Output = Vec<Result<RenewAnswer>>> + Send {
        self.renew(renewals)
    }

    /// Ends holds and withdraws waiters.
    fn release(
        &self,
        releases: Vec<ReleaseRequest>,
    ) -> impl Future<Output = Vec<Result<ReleaseAnswer>>> + Send;

    /// Ends waiters, and grants to them that nobody has confirmed, if they are still this client's: what [`Withdraw`] does.
    ///
    /// By default it is released where a claim lives with its client ([`Adopts::SameClient`]): no other can have it. An engine on which any
    /// client can have it must decide and withdraw in one step of the store: until it does, such a claim ends by itself.
    fn withdraw(
        &self,
        withdrawals: Vec<WithdrawRequest>,
    ) -> impl Future<Output = Vec<Result<WithdrawAnswer>>> + Send {
        async move {
            if self.capability().adopts == Adopts::AnyClient {
                let error = Error::new(ErrorKind::Unsupported, "withdraw", "this engine does not withdraw");
                let error = error.with_hint("wait until it ends by itself").with_no_effect();
                return withdrawals.iter().map(|_| Err(error.clone())).collect();
            }
            let release = |WithdrawRequest { resource, withdraw }: WithdrawRequest| {
                let release = Release { claim: withdraw.claim, maybe_in_flight: true, is_unused: true };
                ReleaseRequest { resource, release }
            };
            let released = self.release(withdrawals.into_iter().map(release).collect()).await;
            let answer = |released: ReleaseAnswer| match released {
                ReleaseAnswer::Released => WithdrawAnswer::Withdrawn,
                ReleaseAnswer::AlreadyLost => WithdrawAnswer::AlreadyLost,
            };
            released.into_iter().map(|released| released.map(answer)).collect()
        }
    }

    /// Sets the value of a resource under a hold. `false`: the hold has ended.
    fn publish(
        &self,
        resource: Name,
        claim: ClaimId,
        bytes: Arc<[u8]>,
        keep: Keep,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Lists up to `most` resources whose names begin with `prefix` and come after `after`, by name.
    ///
    /// A page may be shorter than `most` before the end; it is empty only at the end.
    fn inspect(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<View>>> + Send;

    /// Lists all resources whose names begin with `prefix`, some at a time: in any order, and perhaps one of them twice. One that
    /// cannot be read is an error of its own, which names it. An empty page says that the engine is still scanning.
    fn inspect_all(&self, prefix: String) -> BoxStream<'_, Result<Vec<Result<View>>>> {
        let first = (prefix, None::<Name>);
        let pages = stream::try_unfold(first, move |(prefix, after)| async move {
            let page = self.inspect(prefix.clone(), after, PAGE).await?;
            let Some(last) = page.last().map(|view| view.resource.clone()) else { return Ok(None) };
            Ok(Some((page.into_iter().map(Ok).collect(), (prefix, Some(last)))))
        });
        Box::pin(pages)
    }

    /// Looks at one resource; none if it is idle.
    fn view(&self, resource: Name) -> impl Future<Output = Result<Option<View>>> + Send {
        // Of all names that begin with it, the name itself is the first.
        let page = self.inspect(resource.as_str().to_owned(), None, 1);
        async move { Ok(page.await?.into_iter().find(|view| view.resource == resource)) }
    }

    /// Follows one resource: its present view first (`None`: idle), then each later one. A slow reader misses
    /// views in between, but never the latest.
    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>>;

    /// Ends a hold, for an operator.
    fn break_hold(
        &self,
        resource: Name,
        token: Token,
        at_once: bool,
    ) -> impl Future<Output = Result<BreakAnswer>> + Send;

    /// Changes the capacity of a semaphore or a slot pool, for an operator.
    fn resize(&self, resource: Name, capacity: u32) -> impl Future<Output = Result<()>> + Send;

    /// Returns the news for this client's waiters. The client takes it once.
    fn wakes(&self) -> BoxStream<'static, Wake>;

    /// Looks whether the store can be trusted.
    fn check(&self) -> impl Future<Output = Vec<Finding>> + Send;

    /// Makes what the store must have before the first claim, such as tables, and says what there is then. `None` if
    /// it needs nothing.
    fn migrate(&self) -> impl Future<Output = Result<Option<String>>> + Send {
        async { Ok(None) }
    }

    /// Removes what idle resources left behind and nothing needs any more, and says of how many. `None` if nothing
    /// stays behind for longer than it is needed.
    fn purge(&self) -> impl Future<Output = Result<Option<usize>>> + Send {
        async { Ok(None) }
    }

    /// Returns the engine's queues, where it has such.
    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        None
    }

    /// Returns the verbs that a caller may use on its own thread, where the engine has such.
    fn blocking(&self) -> Option<&dyn BlockingEngine> {
        None
    }

    /// Takes leave of the store, as far as that needs no waiting: the last that a client does, on its thread. Nothing is asked
    /// afterwards.
    fn close(&self) {}

    /// Lets another process share this client's life: what the client holds ends by death only when the
    /// descriptor's last copy is closed. `None` where the engine does not notice deaths.
    ///
    /// # Errors
    /// What the system says.
    fn share_life(&self, pid: u32) -> Result<Option<OwnedFd>> {
        let _ = pid;
        Ok(None)
    }
}

/// The two hot verbs of an engine whose work is short and local enough for a caller's own thread.
pub trait BlockingEngine: Sync {
    /// Grants, queues or refuses a claim.
    ///
    /// # Errors
    /// As [`Engine::claim`].
    fn claim(&self, claim: &Claim) -> Result<ClaimAnswer>;

    /// Ends a hold or withdraws a waiter.
    ///
    /// # Errors
    /// As [`Engine::release`].
    fn release(&self, release: &ReleaseRequest) -> Result<ReleaseAnswer>;
}

/// Makes a connected engine for a client, on the client's own thread.
pub struct Connect {
    engine: &'static str,
    open: Box<dyn FnOnce(ClientId) -> Connecting + Send>,
}

type Connecting = BoxFuture<'static, Result<Arc<dyn DynEngine>>>;

impl Connect {
    /// Connects an engine of this name with what `open` does, which runs on a tokio runtime. Nothing is tried yet.
    pub fn new<E: Engine, F>(
        engine: &'static str,
        open: impl FnOnce(ClientId) -> F + Send + 'static,
    ) -> Connect
    where
        F: Future<Output = Result<Arc<E>>> + Send + 'static,
    {
        let open = move |client| -> Connecting {
            let engine = open(client);
            Box::pin(async move { Ok(engine.await? as Arc<dyn DynEngine>) })
        };
        Connect { engine, open: Box::new(open) }
    }

    /// Connects an engine around this one.
    #[must_use]
    pub fn around<E: Engine>(self, wrap: impl FnOnce(Arc<dyn DynEngine>) -> E + Send + 'static) -> Connect {
        Connect::new(self.engine, async move |client| Ok(Arc::new(wrap(self.open(client).await?))))
    }

    /// Connects, on a tokio runtime, which serves the engine from then on.
    ///
    /// # Errors
    /// Those of the engine, with its name.
    pub async fn open(self, client: ClientId) -> Result<Arc<dyn DynEngine>> {
        (self.open)(client).await.map_err(|error| error.named(self.engine, None))
    }
}

impl std::fmt::Debug for Connect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connect").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// Translates what `step` answers to a claim into what an engine answers.
///
/// # Errors
/// The refusals that a caller must act on.
pub fn claim_answer(
    claim: &Claim,
    answer: Result<Claimed, Refusal>,
    incarnation: Incarnation,
) -> Result<ClaimAnswer> {
    Ok(match answer.map_err(|refusal| refused(claim, refusal))? {
        Claimed::Granted(grant) => ClaimAnswer::Granted(grant),
        Claimed::Waiting(waiting) => ClaimAnswer::Waiting(waiting, incarnation),
        Claimed::Busy(busy) => ClaimAnswer::Busy(busy),
        Claimed::Fresh(value) => ClaimAnswer::Fresh(value),
        Claimed::Finished => ClaimAnswer::Finished,
    })
}

/// Says why a claim is refused. The error is without effect: nothing has been entered.
pub fn refused(claim: &Claim, refusal: Refusal) -> Error {
    let (kind, message, hint) = match refusal {
        Refusal::Conflict { kind, capacity } => (
            ErrorKind::Conflict,
            format!(
                "asked for as a {} of capacity {}, but in use as a {kind} of capacity {capacity}",
                claim.terms.kind, claim.terms.capacity
            ),
            if kind == claim.terms.kind {
                "use one capacity for a name everywhere; `tenure resize` changes it while it is in use"
            } else {
                "use one kind for a name everywhere, or another name"
            },
        ),
        Refusal::FloorAhead { now } => (
            ErrorKind::Invalid,
            format!(
                "the floor {} is more than an hour ahead of the store's clock {}: one of the two is wrong",
                claim.floor,
                now.micros()
            ),
            "check the clocks of the store and of the machines that wrote the token",
        ),
        Refusal::QueueFull => (
            ErrorKind::Invalid,
            format!("{WAITERS_MAX} claims wait already"),
            "use several resources, or a queue",
        ),
        Refusal::Invalid(why) => (ErrorKind::Invalid, why.to_owned(), "see the limits of the kind"),
    };
    Error::new(kind, "claim", message).with_hint(hint).with_no_effect()
}

/// Says that a claim is another client's, and cannot be this one's, for the reason that the capability has. The error is without effect.
pub fn adopts_elsewhere(operation: &'static str, reason: &str) -> Error {
    Error::new(ErrorKind::Unsupported, operation, format!("it is another client's: {reason}"))
        .with_hint("do it in that client, or use an engine on which any client can")
        .with_no_effect()
        .of_another_client()
}

/// Translates what `step` answers to a renewal into what an engine answers.
pub fn renew_answer(request: &RenewRequest, renewed: Renewed, incarnation: Incarnation) -> RenewAnswer {
    match renewed {
        Renewed::Held(grant) if request.is_waiter => RenewAnswer::Granted(grant),
        Renewed::Held(grant) => RenewAnswer::Renewed { ends_in: grant.ends_in },
        Renewed::Waiting(waiting) => RenewAnswer::Waiting(waiting, incarnation),
        Renewed::Lost => RenewAnswer::Lost,
    }
}
