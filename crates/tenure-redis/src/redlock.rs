//! The engine on a quorum: independent servers, of which a majority decides.
//!
//! Each verb is one call of all servers side by side; `quorum.rs` counts the votes of a claim. Nothing is granted to who
//! waits: a server tells the first waiter of a release, and its heartbeat asks for what is free. Waiters stand in the order of their
//! tickets, which all servers know alike.

mod boot;
mod check;
mod claims;
mod holds;
mod library;
mod node;
mod notices;
mod observe;
mod own;
mod pending;
mod text;
mod values;
mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join, select_all};
use futures_util::stream::BoxStream;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, Engine, Finding, HandOver, Incarnation, Reach, ReleaseAnswer,
    ReleaseRequest, RenewAnswer, RenewRequest, SlotOrder, Wake,
};
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Keep, Kind, Name};
use tenure_core::model::inspect::View;
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, Result};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::answer::in_millis;
use crate::config::{Config, Topology};
use crate::dial::Dialer;
use crate::error::Fault;
use crate::keys::Keys;
use crate::link::{Link, Place};
use crate::quorum::majority;
use crate::topology::CALL_TIMEOUT;
use crate::wire::Ears;

use claims::Attempt;
use node::Node;
use notices::Notices;
use own::{Own, Owned};

/// The one word for this engine.
pub(crate) const ENGINE: &str = "redlock";
/// The most claims, renewals or releases in one call.
const BATCH_MAX: usize = 128;
/// The most slots of a pool: each is a lock of its own.
const SLOTS_MAX: u32 = 1024;
/// Why there are no semaphores.
const UNITS: &str = "a majority of servers cannot count units: of two units on three servers, three clients may each be granted one by two \
    servers; a slot pool, whose slots are locks of their own, can be used in place of a semaphore";
/// Servers come and go one by one: the quorum has one life.
pub(crate) const INCARNATION: Incarnation = Incarnation(0);

/// The engine on three, five or more independent Redis servers, of which a majority decides.
pub struct Redlock {
    quorum: Arc<Quorum>,
    capability: Capability,
    tasks: Vec<AbortHandle>,
}

/// What the engine's parts share.
pub(crate) struct Quorum {
    pub(crate) nodes: Vec<Node>,
    keys: Keys,
    shared_keys: [String; 4],
    max_ttl: Duration,
    has_plain_tokens: bool,
    owned: Mutex<Owned>,
    notices: Notices,
    stamps: std::sync::atomic::AtomicU64,
    /// Held while it is decided which of two links has a server's vote.
    counted_once: Mutex<()>,
}

impl Quorum {
    fn owned(&self) -> MutexGuard<'_, Owned> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of a resource; names that have none are refused before.
    fn key_text(&self, resource: &Name) -> String {
        self.keys.of(resource).map(|key| key.text).unwrap_or_default()
    }

    fn note_stamp(&self) {
        self.stamps.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Refuses what a quorum cannot do.
    fn check(&self, claim: &Claim) -> Result<()> {
        self.keys.of(&claim.resource)?;
        let terms = &claim.terms;
        let refused = |kind, message: String, hint: &str| {
            let refused = Error::new(kind, "claim", message).with_resource(&claim.resource).with_hint(hint);
            Err(refused.with_no_effect())
        };
        if terms.kind == Kind::Semaphore {
            return refused(ErrorKind::Unsupported, UNITS.to_owned(), "use a slot pool, or another engine");
        }
        if terms.kind == Kind::SlotPool && terms.capacity > SLOTS_MAX {
            return refused(
                ErrorKind::Unsupported,
                format!("a pool of {} slots on a quorum", terms.capacity),
                "each slot is a lock of its own: up to 1024 are possible",
            );
        }
        if terms.weight == 0 || terms.weight > terms.capacity {
            return refused(
                ErrorKind::Invalid,
                "the weight does not fit the capacity".to_owned(),
                "see the limits of the kind",
            );
        }
        if let Some(longest) = self.falls_short() {
            let longest = Duration::from_millis(longest);
            return refused(
                ErrorKind::Invalid,
                format!("`max_ttl` is {:?} here and {longest:?} on the servers", self.max_ttl),
                "name theirs in the URL, or raise it for all clients: `tenure doctor --init` with this URL",
            );
        }
        if terms.ttl > self.max_ttl {
            return refused(
                ErrorKind::Unsupported,
                format!(
                    "a ttl of {:?} is longer than `max_ttl` of the engine, {:?}",
                    terms.ttl, self.max_ttl
                ),
                "a server that has forgotten its holds waits for `max_ttl`: raise it in the URL of all clients, or shorten the ttl",
            );
        }
        Ok(())
    }
}

impl Redlock {
    /// Connects a client. It must be called on a tokio runtime, which serves the client from then on.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if no majority of the servers answers in time; [`ErrorKind::Invalid`] if the settings name no quorum,
    /// or a server refuses the user or the password; [`ErrorKind::Unsupported`] if one is too old.
    pub async fn connect(config: Config, client: ClientId) -> Result<Redlock> {
        let Topology::Quorum(servers) = &config.topology else {
            let why = "the settings name no quorum";
            return Err(Error::new(ErrorKind::Invalid, "connect", why).with_engine(ENGINE));
        };
        let failed = |fault: Fault| fault.to_error("connect").with_engine(ENGINE);
        let dialer =
            Dialer::new(&config.login, config.db, config.is_tls, config.ca.as_deref()).map_err(failed)?;
        let keys = Keys::new(&config.prefix, false);
        let inbox = keys.inbox(0, client);
        let (mut nodes, mut heard) = (Vec::new(), Vec::new());
        for server in servers {
            let (tell, news) = unbounded_channel();
            let ears = Ears { news: Some(tell), ..Ears::default() };
            let start = |ears| Link::start(dialer.clone(), Place::Fixed(server.clone()), ears, false);
            let messages = start(ears.of_inbox());
            messages.want(inbox.as_bytes());
            nodes.push(Node::new(start(ears), messages, server.to_string(), in_millis(config.max_ttl)));
            heard.push(news);
        }
        let quorum = Arc::new(Quorum {
            nodes,
            shared_keys: keys.shared_of_quorum(),
            keys,
            max_ttl: config.max_ttl,
            has_plain_tokens: config.has_plain_tokens,
            owned: Mutex::default(),
            notices: Notices::new(majority(servers.len())),
            stamps: Default::default(),
            counted_once: Mutex::default(),
        });
        quorum.wait_for_a_majority().await.map_err(failed)?;
        quorum.learn_longest().await;
        if let Some(twin) = (0..quorum.nodes.len()).find_map(|node| quorum.twin_of(node)) {
            return Err(Error::new(ErrorKind::Invalid, "connect", twin)
                .with_engine(ENGINE)
                .with_hint("name each server once: it would have two votes"));
        }
        let mut tasks = Vec::new();
        for (node, news) in heard.into_iter().enumerate() {
            tasks.push(tokio::spawn(notices::listen(Arc::downgrade(&quorum), node, news)).abort_handle());
            tasks.push(tokio::spawn(boot::look_after(Arc::downgrade(&quorum), node)).abort_handle());
            // It ends by itself: what a client that is being closed gives back is to be told.
            tokio::spawn(pending::tell(Arc::downgrade(&quorum), quorum.nodes[node].pending.clone(), node));
        }
        Ok(Redlock { capability: capability(config.max_ttl), quorum, tasks })
    }

    /// Returns how many claims have needed a second round trip, since the servers' numbers differed.
    #[doc(hidden)]
    pub fn stamps(&self) -> u64 {
        self.quorum.stamps.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Quorum {
    /// Waits until a majority of the servers is connected, or says why it is not.
    async fn wait_for_a_majority(&self) -> std::result::Result<(), Fault> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let mut coming: Vec<_> = self.nodes.iter().map(|node| Box::pin(node.link.up(deadline))).collect();
        let mut up = 0;
        let mut last = Fault::Nobody { why: "no server answers".to_owned() };
        while up < majority(self.nodes.len()) {
            if coming.is_empty() {
                return Err(last);
            }
            let (came, _, others) = select_all(coming).await;
            coming = others;
            match came {
                Ok(_) => up += 1,
                // What is wrong with the settings is wrong everywhere.
                Err(fault) if matches!(&fault, Fault::Down { last } if last.is_permanent()) => {
                    return Err(fault);
                }
                Err(fault) => last = fault,
            }
        }
        Ok(())
    }
}

fn capability(max_ttl: Duration) -> Capability {
    let mut capability = Capability::of_step();
    capability.reach = Reach::Network;
    capability.kinds = &[Kind::Mutex, Kind::RwLock, Kind::SlotPool];
    capability.kinds_reason = UNITS;
    capability.ttl_reason = "a server that has forgotten its holds waits for the longest ttl, `max_ttl` in the URL of all clients";
    // Tickets are clients' clocks.
    capability.is_fifo = false;
    capability.slot_order = SlotOrder::AnyFree;
    capability.ttl_max = max_ttl;
    capability.hand_over = HandOver::Asked;
    capability.needs_floor = true;
    capability.remembers_ends = false;
    // Of a minority of the servers.
    capability.survives_failover = true;
    capability.batch_max = BATCH_MAX;
    capability.resource_batch_max = BATCH_MAX;
    capability
}

impl Drop for Redlock {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.quorum.nodes.iter().for_each(|node| node.pending.close(&self.quorum));
    }
}

impl std::fmt::Debug for Redlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redlock").field("servers", &self.quorum.nodes.len()).finish_non_exhaustive()
    }
}

fn internal(operation: &'static str, what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Internal, operation, what).with_engine(ENGINE)
}

impl Redlock {
    async fn claim_all(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        let mut answers: BTreeMap<usize, Result<ClaimAnswer>> = BTreeMap::new();
        let (mut asked, mut held) = (Vec::new(), Vec::new());
        for (at, claim) in claims.iter().enumerate() {
            if let Err(error) = self.quorum.check(claim) {
                answers.insert(at, Err(error));
                continue;
            }
            match self.quorum.owned().get(claim.id).filter(|own| own.held.is_some()) {
                Some(own) => held.push((at, own.clone())),
                None => asked.push((at, claim.clone())),
            }
        }
        // One that holds already is told its grant again.
        let renewals: Vec<RenewRequest> = held.iter().map(|(_, own)| as_renewal(own)).collect();
        let holds: Vec<(Own, &RenewRequest)> =
            held.iter().map(|(_, own)| own.clone()).zip(&renewals).collect();
        let (places, asked): (Vec<usize>, Vec<Claim>) = asked.into_iter().unzip();
        let (renewed, attempts) = join(self.quorum.renew_holds(&holds), self.attempt(asked)).await;
        for ((at, _), renewed) in held.iter().zip(renewed) {
            answers.insert(
                *at,
                renewed.and_then(|answer| match answer {
                    RenewAnswer::Granted(grant) => Ok(ClaimAnswer::Granted(grant)),
                    RenewAnswer::Lost => Ok(ClaimAnswer::Finished),
                    _ => Err(internal("claim", "a grant was left out")),
                }),
            );
        }
        for (at, attempt) in places.into_iter().zip(attempts) {
            answers.insert(
                at,
                match attempt {
                    Attempt::Won(grant) => Ok(ClaimAnswer::Granted(grant)),
                    Attempt::Waiting(waiting) => Ok(ClaimAnswer::Waiting(waiting, INCARNATION)),
                    Attempt::Busy(busy) => Ok(ClaimAnswer::Busy(busy)),
                    Attempt::Fresh(value) => Ok(ClaimAnswer::Fresh(value)),
                    Attempt::Finished => Ok(ClaimAnswer::Finished),
                    Attempt::Failed(error) => Err(error),
                    Attempt::Again(..) => Err(internal("claim", "an attempt was left out")),
                },
            );
        }
        told(&claims, |claim| &claim.resource, answers.into_values())
    }

    async fn attempt(&self, claims: Vec<Claim>) -> Vec<Attempt> {
        if claims.is_empty() {
            return Vec::new();
        }
        claims.iter().for_each(|claim| self.quorum.notices.forget(claim.id));
        self.quorum.attempt(claims).await
    }

    async fn renew_all(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let now = SystemClock.now();
        let mut answers: BTreeMap<usize, Result<RenewAnswer>> = BTreeMap::new();
        let (mut holds, mut asked, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for (at, renewal) in renewals.iter().enumerate() {
            match self.quorum.owned().get(renewal.claim) {
                Some(own) if own.held.is_some() => holds.push((at, own.clone())),
                Some(own) if own.has_gone(now) => gone.push((at, own.clone())),
                Some(own) => asked.push((at, own.claim.clone())),
                None => drop(answers.insert(at, Ok(RenewAnswer::Lost))),
            }
        }
        for (at, own) in gone {
            self.withdraw(own);
            answers.insert(at, Ok(RenewAnswer::Lost));
        }
        let (places, asked): (Vec<usize>, Vec<Claim>) = asked.into_iter().unzip();
        let held: Vec<(Own, &RenewRequest)> =
            holds.iter().map(|(at, own)| (own.clone(), &renewals[*at])).collect();
        let (renewed, attempts) = join(self.quorum.renew_holds(&held), self.attempt(asked)).await;
        answers.extend(holds.iter().map(|(at, _)| *at).zip(renewed));
        for (at, attempt) in places.into_iter().zip(attempts) {
            let claim = renewals[at].claim;
            answers.insert(
                at,
                match attempt {
                    Attempt::Won(grant) => Ok(RenewAnswer::Granted(grant)),
                    Attempt::Waiting(waiting) => Ok(RenewAnswer::Waiting(waiting, INCARNATION)),
                    Attempt::Failed(error) if error.kind() == ErrorKind::Unavailable => Err(error),
                    // It asks anew, and is told what is the matter.
                    _ => {
                        let own = self.quorum.owned().remove(claim);
                        own.into_iter().for_each(|own| self.withdraw(own));
                        Ok(RenewAnswer::Lost)
                    }
                },
            );
        }
        told(&renewals, |renewal| &renewal.resource, answers.into_values())
    }

    /// Takes a claim out of all queues.
    fn withdraw(&self, own: Own) {
        self.quorum.owned().remove(own.claim.id);
        let ending = text::Ending::Released { is_unused: true, is_finished: true };
        holds::forget_on_all(&self.quorum, vec![(own.reached(), own)], ending);
    }
}

fn as_renewal(own: &Own) -> RenewRequest {
    RenewRequest { resource: own.claim.resource.clone(), claim: own.claim.id, is_waiter: true }
}

/// Says in errors whose they are.
fn told<R, A>(
    requests: &[R],
    name: impl Fn(&R) -> &Name,
    answers: impl Iterator<Item = Result<A>>,
) -> Vec<Result<A>> {
    let tell = |(request, answer): (&R, Result<A>)| {
        answer.map_err(|error| error.with_engine(ENGINE).with_resource(name(request)))
    };
    requests.iter().zip(answers).map(tell).collect()
}

impl Engine for Redlock {
    fn name(&self) -> &'static str {
        ENGINE
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn claim(&self, claims: Vec<Claim>) -> BoxFuture<'_, Vec<Result<ClaimAnswer>>> {
        Box::pin(self.claim_all(claims))
    }

    fn renew(&self, renewals: Vec<RenewRequest>) -> BoxFuture<'_, Vec<Result<RenewAnswer>>> {
        Box::pin(self.renew_all(renewals))
    }

    fn release(&self, releases: Vec<ReleaseRequest>) -> BoxFuture<'_, Vec<Result<ReleaseAnswer>>> {
        Box::pin(async move {
            let answers = self.quorum.release_all(&releases).await;
            told(&releases, |request| &request.resource, answers.into_iter())
        })
    }

    fn publish(
        &self,
        resource: Name,
        claim: ClaimId,
        bytes: Arc<[u8]>,
        keep: Keep,
    ) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let published = self.quorum.publish(&resource, claim, &bytes, keep).await;
            published.map_err(|error| error.with_engine(ENGINE).with_resource(&resource))
        })
    }

    fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> BoxFuture<'_, Result<Vec<View>>> {
        Box::pin(self.quorum.inspect(prefix, after, most))
    }

    fn inspect_all(&self, prefix: String) -> BoxStream<'_, Result<Vec<Result<View>>>> {
        self.quorum.inspect_all(prefix)
    }

    fn view(&self, resource: Name) -> BoxFuture<'_, Result<Option<View>>> {
        // Without the scan that a list of names takes.
        Box::pin(async move { Ok(self.quorum.look("inspect", &[resource]).await?.pop().flatten()) })
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        observe::observe(self.quorum.clone(), resource)
    }

    fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> BoxFuture<'_, Result<BreakAnswer>> {
        Box::pin(async move {
            let broken = self.quorum.break_hold(&resource, token, at_once).await;
            broken.map_err(|error| error.with_engine(ENGINE).with_resource(&resource))
        })
    }

    fn resize(&self, resource: Name, _capacity: u32) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let why = "each slot is a lock of its own, and how many there are is in the claims: no server keeps it, so no majority could agree \
                on another number while some hold";
            Err(Error::new(ErrorKind::Unsupported, "resize", why)
                .with_engine(ENGINE)
                .with_resource(&resource)
                .with_hint("claim with another number once nobody holds a slot"))
        })
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        self.quorum.notices.wakes()
    }

    fn check(&self) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(self.quorum.check_servers())
    }

    fn migrate(&self) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(async move { self.quorum.init().await.map(Some) })
    }
}

#[cfg(test)]
mod tests;
