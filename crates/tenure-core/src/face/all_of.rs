//! Several at once, all or nothing.
//!
//! A set waits for one claim at a time, that of the first name in order that is missing, and holds only names that
//! come before it. So each waiter holds only smaller names than it waits for, and no circle of waiters can come
//! about. In one batch with that claim, the others are tried: if nothing is in the way, the whole is one round trip.
//! What was granted behind the first missing one is given back at once.
//!
//! Of a slot pool, several slots may be wanted. Two sets that each hold a part of one pool would wait for each other, and no order of
//! names helps. So who waits for several slots of a pool first takes its *gate*, a mutex of its own, and lets go of it when the set
//! is complete: one set at a time gathers slots of a pool. Once it holds the gate, its claims of that pool all wait at once, so that it has
//! one place in the queue. A try waits for nothing, and needs no gate.
//!
//! Rejected: waiting in all queues at once, which needs no order but deadlocks as soon as two sets are granted in
//! turns, or a detector of that in the store; a builder `all(&a).and(&b)`, which saves the `.into()` but reads
//! badly for a list that is made at run time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join_all, select, select_all};

use crate::client::connection::Connection;
use crate::client::ledger::{AcquireRequest, Bond};
use crate::clock::Instant;
use crate::counts::Primitive;
use crate::engine::ReleaseAnswer;
use crate::error::{Error, ErrorKind, Result};
use crate::face::claimant::{Claimant, debug};
use crate::face::lease::{AcquireFuture, Acquired, Lease, timeout, unasked_value};
use crate::face::mutex::Mutex;
use crate::face::rw_lock::{ReadLock, WriteLock};
use crate::face::semaphore::Semaphore;
use crate::face::slot_pool::SlotPool;
use crate::model::claim::{Busy, Kind, NAME_BYTES_MAX, Name};
use crate::model::token::Token;

/// The most that can be taken at once: as many as a batch of every engine takes (128), so that it stays one call.
pub const SEVERAL_MAX: usize = 128;

/// What follows the name of a pool in that of its gate. Other versions and languages must take the same one.
const GATE: &str = "/several";

/// One of several that are taken together, with the settings that it was made with.
///
/// Made by `.into()` from a [`Mutex`], a side of an [`RwLock`](crate::RwLock), a [`Semaphore`] or a [`SlotPool`], or
/// from a reference to one.
#[derive(Clone)]
pub struct LockRequest {
    claimant: Claimant,
}

debug!(LockRequest);

macro_rules! wanted {
    ($($primitive:ident)*) => {
        $(
            impl From<$primitive> for LockRequest {
                fn from(primitive: $primitive) -> LockRequest {
                    LockRequest { claimant: primitive.claimant }
                }
            }

            impl From<&$primitive> for LockRequest {
                fn from(primitive: &$primitive) -> LockRequest {
                    LockRequest { claimant: primitive.claimant.clone() }
                }
            }
        )*
    };
}

wanted!(Mutex ReadLock WriteLock Semaphore SlotPool);

/// Several locks, units and slots of any mix, taken all or none.
///
/// A slot pool may be wanted more than once, and then so many slots of it are taken ([`SlotPool::several`]). Anything else is named once;
/// units of a semaphore are one claim with a weight.
///
/// The ttl, the label and the other settings are those that each of them was made with. Everything is one list of
/// one type, so that a set that is only known at run time is written as one that is known before.
///
/// # Guarantees
/// A set is never granted in part. Sets that overlap never deadlock, in whatever order they are written: a waiter
/// holds only names that come before the one it waits for, in the order of their bytes. That holds among sets; a
/// program that waits for a set while it holds something else must keep that order by itself.
///
/// In each queue, claims are served as those of a [`Mutex`] are. The leases are lost together (see [`Leases`]).
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("several-example").await?;
/// let (from, to) = (tenure.mutex("account/17"), tenure.mutex("account/4"));
/// let worker = tenure.slot_pool("workers", 4);
/// let transfer = tenure.all([from.into(), to.into(), tenure_core::LockRequest::from(worker)]);
/// let receipt = transfer.run(async |leases| format!("moved under {:?}", leases.token("account/17"))).await?;
/// # assert!(receipt.starts_with("moved under Some("), "{receipt}");
///
/// let accounts = ["account/1", "account/2"];
/// let all = tenure.all(accounts.map(|name| tenure.mutex(name).into()));
/// let both: Option<tenure_core::Leases> = all.try_acquire().await?;
/// # assert_eq!(both.expect("free").iter().count(), 2);
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # use std::time::Duration;
/// # async fn f(set: tenure_core::AllOf, work: impl Fn(Option<tenure_core::Token>)) -> tenure_core::Result<()> {
/// let leases = set.try_acquire().await?;
/// let leases = set.acquire_within(Duration::from_secs(5)).await?;
/// let done = set.run(async |leases| work(leases.token("account/17"))).await?;
/// let leases = set.acquire().await?;
/// let lease = leases.get("account/17");
/// let token = leases.token("account/17");
/// let held_names: Vec<_> = leases.iter().map(|lease| lease.resource()).collect();
/// let left = leases.expires_in();
/// let is_lost = leases.is_lost();
/// let error = leases.lost().await;
/// leases.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AllOf {
    connection: Arc<Connection>,
    wanted: Vec<LockRequest>,
}

impl fmt::Debug for AllOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllOf").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

/// How gathering ended, if not in an error.
enum Gathered {
    All(Leases),
    Busy(Name, Box<Busy>),
}

impl AllOf {
    pub(crate) fn new(connection: Arc<Connection>, wanted: Vec<LockRequest>) -> AllOf {
        AllOf { connection, wanted }
    }

    /// Takes all if all are free and without waiters; none if not, and then it holds nothing.
    ///
    /// `let leases = set.try_acquire().await?;`
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the engine does not answer within the answer timeout (default
    /// 2 s); [`Conflict`](ErrorKind::Conflict) if a name is in use with another kind or capacity;
    /// [`Invalid`](ErrorKind::Invalid) for an empty set or more than [`SEVERAL_MAX`], a name that is wanted
    /// twice (it would wait for itself) and is no slot pool, more slots than a pool has, one that was named from another client, a bad name,
    /// capacity or setting: of any of them, before anything is sent; [`Unsupported`](ErrorKind::Unsupported) if the engine cannot do it.
    ///
    /// # Cancel safety
    /// Dropping the future releases what it may have been granted, in the background.
    ///
    /// # Cost
    /// One round trip where the engine takes a batch in one, and another one if something is to be given back.
    pub async fn try_acquire(&self) -> Result<Option<Leases>> {
        match self.gather(Some(Duration::ZERO)).await? {
            Gathered::All(leases) => Ok(Some(leases)),
            Gathered::Busy(..) => Ok(None),
        }
    }

    /// Waits until all can be granted, and takes them. Waits for ever.
    ///
    /// `let leases = set.acquire().await?;`
    ///
    /// It waits in one queue at a time, in the order of names, and holds meanwhile what comes before. If one of
    /// those is lost meanwhile, it releases everything and begins again. For several slots of a pool it waits in the queue of its gate, a
    /// mutex (the pool's name and `/several`), and then in that of the pool, where it keeps what it is granted.
    ///
    /// # Errors
    /// As [`Self::try_acquire`], and [`Unavailable`](ErrorKind::Unavailable) if the engine stays silent for so
    /// long that a place in a queue is gone (see [`Mutex::acquire`]).
    ///
    /// # Cancel safety
    /// Dropping the future withdraws what waits and releases what is held already, in the background.
    ///
    /// # Cost
    /// One round trip when all are free, where the engine takes a batch in one; two more for each that it waits for. The gate of a pool is
    /// in the same batch, and released in the background.
    pub async fn acquire(&self) -> Result<Leases> {
        self.acquire_or_timeout(None).await
    }

    /// Waits up to `wait` for all together. Zero does not queue.
    ///
    /// `let leases = set.acquire_within(Duration::from_secs(5)).await?;`
    ///
    /// # Errors
    /// As [`Self::acquire`], and [`Timeout`](ErrorKind::Timeout) if the wait was over first; then nothing is
    /// held. It names the one that was in the way last.
    ///
    /// # Cancel safety
    /// As [`Self::acquire`].
    pub async fn acquire_within(&self, wait: Duration) -> Result<Leases> {
        self.acquire_or_timeout(Some(wait)).await
    }

    /// Takes all, does the work and releases all. If one is lost, the work is dropped and the others are released.
    ///
    /// `let done = set.run(async |leases| work(leases.token("account/17"))).await?;`
    ///
    /// # Errors
    /// Those of [`Self::acquire`], and [`Lost`](ErrorKind::Lost) if a lease was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases in the background.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Leases) -> T) -> Result<T> {
        let leases = self.acquire().await?;
        let done = {
            let lost = std::pin::pin!(leases.lost());
            let work = std::pin::pin!(work(&leases));
            match select(lost, work).await {
                Either::Left((lost, _)) => Err(lost),
                Either::Right((done, _)) => Ok(done),
            }
        };
        // The deadline may have passed in the work's last stretch, in which it was not checked.
        if done.is_ok() && leases.is_lost() {
            return Err(leases.lost().await);
        }
        let done = done?;
        // The work is done. A release that fails goes on in the background, and the holds end by themselves.
        if let Err(error) = leases.release().await {
            tracing::debug!(%error, "release after the work goes on in the background");
        }
        Ok(done)
    }

    async fn acquire_or_timeout(&self, wait: Option<Duration>) -> Result<Leases> {
        match self.gather(wait).await? {
            Gathered::All(leases) => Ok(leases),
            Gathered::Busy(resource, busy) => Err(timeout(&self.connection, &resource, *busy)),
        }
    }

    /// Returns what is wanted in the order of names, once all of it has been checked; before several slots of a pool its gate.
    fn in_order(&self) -> Result<Vec<Member>> {
        let mut wanted = checked(&self.wanted, &self.connection, Repeats::Slots)?;
        wanted.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut order = Vec::with_capacity(wanted.len() + 1);
        for same in wanted.chunk_by(|(one, _), (other, _)| one == other) {
            let (resource, claimant) = &same[0];
            if same.len() > 1 {
                let gate = gate_of(&self.connection, resource, claimant)?;
                if wanted.iter().any(|(resource, _)| *resource == gate.resource) {
                    return Err(wanted_twice(&gate.resource));
                }
                order.push(gate);
            }
            order.extend(same.iter().map(|(resource, claimant)| Member {
                resource: resource.clone(),
                claimant: (*claimant).clone(),
                is_gate: false,
            }));
        }
        Ok(order)
    }

    /// See the top of the file. `wait` is how long to queue. `None`: for ever. Zero: not at all.
    async fn gather(&self, wait: Option<Duration>) -> Result<Gathered> {
        let mut order = self.in_order()?;
        if wait == Some(Duration::ZERO) || mutant!("slots-without-a-gate") {
            order.retain(|member| !member.is_gate);
        }
        let clock = &self.connection.shared.clock;
        let give_up_at = wait.map_or(Instant::NEVER, |wait| clock.now() + wait);
        let mut prefix = Prefix { connection: &self.connection, leases: Vec::with_capacity(order.len()) };
        let mut was_answered = false;
        // What is left of the wait may be shorter than an answer takes. That is no silence of the engine.
        let late = |was_answered: bool, error: Error| {
            let is_late = was_answered && wait.is_some() && clock.now() >= give_up_at;
            if !is_late || error.kind() != ErrorKind::Unavailable {
                return error;
            }
            let message = format!("not granted within {}ms", wait.unwrap_or_default().as_millis());
            let late = Error::new(ErrorKind::Timeout, "claim", message)
                .with_engine(self.connection.shared.engine.name());
            match error.resource() {
                Some(resource) => late.with_resource(resource),
                None => late,
            }
        };
        loop {
            if prefix.leases.len() == order.len() {
                // If one was lost while the last were granted, it begins again.
                let (gates, leases) = prefix.take().into_iter().partition(|lease| {
                    order.iter().any(|member| member.is_gate && member.resource == *lease.resource())
                });
                let bound = Leases::bind(&self.connection, leases);
                drop(Prefix { connection: &self.connection, leases: gates });
                let Ok(leases) = bound else { continue };
                return Ok(Gathered::All(leases));
            }
            let left = wait.map(|_| give_up_at.since(clock.now()));
            let asks = prefix.ask(&order[prefix.leases.len()..], left).await;
            match asks.map_err(|error| late(was_answered, error))? {
                Asks::Advanced => {}
                Asks::Busy(resource, busy) => {
                    prefix.give_back().await;
                    return Ok(Gathered::Busy(resource, busy));
                }
                Asks::Waits(waiting) => {
                    prefix.wait(waiting).await.map_err(|error| late(was_answered, error))?;
                }
            }
            was_answered = true;
        }
    }
}

/// One claim of a set.
struct Member {
    resource: Name,
    claimant: Claimant,
    /// Whether it is held only until the set is complete.
    is_gate: bool,
}

/// Makes the gate of a pool, on the terms of its slots as far as they are those of a mutex that does not rest.
fn gate_of(connection: &Arc<Connection>, pool: &Name, slots: &Claimant) -> Result<Member> {
    let name = format!("{pool}{GATE}", pool = pool.as_str());
    if name.len() > NAME_BYTES_MAX {
        let most = NAME_BYTES_MAX - GATE.len();
        let message = format!("the name of a pool has {most} bytes at most if several slots of it are taken");
        let invalid = Error::new(ErrorKind::Invalid, "claim", message).with_resource(pool);
        return Err(invalid.with_hint("give the pool a shorter name"));
    }
    let mut claimant = Claimant::new(connection.clone(), &name, Primitive::Mutex);
    let (ttl, label) = (slots.ttl(), slots.label().clone());
    claimant.terms().ttl = ttl;
    claimant.set_whole_label(label);
    Ok(Member { resource: claimant.request(None)?.resource, claimant, is_gate: true })
}

fn wanted_twice(resource: &Name) -> Error {
    let message = format!("{resource:?} is wanted twice, and would wait for itself");
    let invalid = Error::new(ErrorKind::Invalid, "claim", message);
    invalid.with_hint("want it once; of a semaphore, with the weights added")
}

/// What may be named more than once in a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeats {
    Nothing,
    Slots,
}

/// Checks all that can be checked of a list before anything is sent, and returns it with its names.
pub(crate) fn checked<'a>(
    wanted: &'a [LockRequest],
    connection: &Arc<Connection>,
    repeats: Repeats,
) -> Result<Vec<(Name, &'a Claimant)>> {
    let invalid =
        |message: String, hint| Err(Error::new(ErrorKind::Invalid, "claim", message).with_hint(hint));
    if wanted.is_empty() {
        return invalid("nothing is wanted".to_owned(), "name at least one, as `all([mutex.into()])`");
    }
    if wanted.len() > SEVERAL_MAX {
        let message = format!("{} are wanted at once, {SEVERAL_MAX} are allowed", wanted.len());
        return invalid(message, "take one lock for all of them");
    }
    let mut named = Vec::with_capacity(wanted.len());
    let mut times = BTreeMap::new();
    for LockRequest { claimant } in wanted {
        let resource = claimant.request(None)?.resource;
        if !Arc::ptr_eq(claimant.connection(), connection) {
            return invalid(
                format!("{resource:?} was named from another client"),
                "name all from the client whose `all` or `any` is called",
            );
        }
        if claimant.has_given_id() {
            return invalid(
                format!(
                    "{resource:?} has a claim id, and what is one of several may be claimed more than once"
                ),
                "leave `claim_id` out",
            );
        }
        let slots =
            times.entry(resource.clone()).and_modify(|(times, _)| *times += 1).or_insert((1, claimant));
        let (times, first) = *slots;
        let is_pool = [first, claimant].iter().all(|claimant| claimant.kind() == Kind::SlotPool);
        if times > 1 && !(repeats == Repeats::Slots && is_pool) {
            return Err(wanted_twice(&resource));
        }
        if times > claimant.capacity() {
            return invalid(
                format!("more than the {} slots of {resource:?} are wanted", claimant.capacity()),
                "want as many as the pool has at most, or make it larger with `resize`",
            );
        }
        named.push((resource, claimant));
    }
    Ok(named)
}

/// What a round of acquire has come to.
enum Asks {
    /// More is held than before.
    Advanced,
    /// The wait is over, and this was in the way.
    Busy(Name, Box<Busy>),
    /// The first that are missing wait in their queue.
    Waits(Vec<AcquireFuture>),
}

/// What is held while the rest is missing, in the order of names. Given back if it is dropped.
struct Prefix<'a> {
    connection: &'a Arc<Connection>,
    leases: Vec<Lease>,
}

impl Prefix<'_> {
    /// Asks for all that is missing, in one batch: queues for the first, with what else is wanted of the same name, and tries the others.
    /// Keeps what comes before the first that is still missing then, and gives back the rest.
    async fn ask(&mut self, missing: &[Member], wait: Option<Duration>) -> Result<Asks> {
        let same = missing.iter().take_while(|member| member.resource == missing[0].resource).count();
        let waits = std::iter::repeat_n(wait, same).chain(std::iter::repeat(Some(Duration::ZERO)));
        let requests = missing.iter().zip(waits).map(|(member, wait)| member.claimant.request(wait));
        let mut first =
            AcquireFuture::together(self.connection, requests.collect::<Result<Vec<AcquireRequest>>>()?);
        let acquire = first.split_off(same);
        self.stake_on(&first);
        let mut behind = Prefix { connection: self.connection, leases: Vec::new() };
        let (mut gap, mut failed) = (None, None);
        let mut kept = 0;
        for acquired in join_all(acquire).await {
            match acquired {
                Ok(Acquired::Lease(lease)) => {
                    behind.leases.push(lease);
                    kept += usize::from(gap.is_none());
                }
                Ok(Acquired::Busy(resource, busy)) => gap = gap.or(Some((resource, busy))),
                Ok(Acquired::Fresh(..)) => failed = failed.or(Some(unasked_value())),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let is_try = wait == Some(Duration::ZERO);
        let (waiting, busy) = self.hear_of(first, is_try).await?;
        if !waiting.is_empty() {
            return Ok(Asks::Waits(waiting));
        }
        let kept = if is_try { behind.leases.len() } else { kept };
        self.leases.extend(behind.leases.drain(..kept));
        // Only a try is refused, and it waits until everything is given back.
        Ok(match busy.or(gap.filter(|_| is_try)) {
            Some((resource, busy)) => Asks::Busy(resource, busy),
            None => Asks::Advanced,
        })
    }

    /// Waits for the first answers to claims of one name, which may be later than those to the others: it may be on another shard. Keeps what is
    /// granted, and returns those that wait, or who is in the way of a try.
    async fn hear_of(
        &mut self,
        claims: Vec<AcquireFuture>,
        is_try: bool,
    ) -> Result<(Vec<AcquireFuture>, Option<(Name, Box<Busy>)>)> {
        let (mut waiting, mut busy) = (Vec::new(), None);
        let mut claims = claims.into_iter();
        while let Some(mut claim) = claims.next() {
            let acquired = if is_try { Some((&mut claim).await) } else { claim.answered().await };
            match acquired.transpose()? {
                None => waiting.push(claim),
                Some(Acquired::Lease(lease)) => {
                    self.leases.push(lease);
                    // What a try was granted is given back by whoever tries, who waits for that: the end of another claim must not be faster.
                    if !is_try {
                        self.stake_on(claims.as_slice());
                        self.stake_on(&waiting);
                    }
                }
                Some(Acquired::Busy(resource, by)) => busy = busy.or(Some((resource, by))),
                Some(Acquired::Fresh(..)) => return Err(unasked_value()),
            }
        }
        Ok((waiting, busy))
    }

    /// Waits for the next ones, all of one name, while what is held stays held; if that is lost, gives up everything, to begin again.
    async fn wait(&mut self, mut waiting: Vec<AcquireFuture>) -> Result<()> {
        while !waiting.is_empty() {
            let acquired = {
                let lost = std::pin::pin!(any_lost(&self.leases));
                match select(select_all(waiting.iter_mut()), lost).await {
                    Either::Left(((acquired, index, _), _)) => Some((acquired?, index)),
                    Either::Right(_) => None,
                }
            };
            match acquired {
                Some((Acquired::Lease(lease), index)) => {
                    self.leases.push(lease);
                    waiting.swap_remove(index);
                    self.stake_on(&waiting);
                }
                Some((Acquired::Busy(..) | Acquired::Fresh(..), _)) => {
                    return Err(Error::new(ErrorKind::Internal, "claim", "refused although it waits"));
                }
                None => {
                    // First the places in the queue, which are behind what is held.
                    waiting.clear();
                    drop(Prefix { connection: self.connection, leases: self.take() });
                }
            }
        }
        Ok(())
    }

    /// Binds what is held to claims: it goes back if nobody looks for a grant of one of them.
    fn stake_on(&self, claims: &[AcquireFuture]) {
        claims.iter().for_each(|claim| claim.stake(&self.leases));
    }

    fn take(&mut self) -> Vec<Lease> {
        std::mem::take(&mut self.leases)
    }

    /// Gives everything back, and waits for that. What is not answered goes on in the background.
    async fn give_back(&mut self) {
        for answer in Lease::release_all(self.connection, self.take()).await {
            if let Err(error) = answer {
                tracing::debug!(%error, "giving back goes on in the background");
            }
        }
    }
}

impl Drop for Prefix<'_> {
    fn drop(&mut self) {
        Lease::drop_all(self.connection, &mut self.leases);
    }
}

/// Waits until one of them is lost; for ever if there is none.
async fn any_lost(leases: &[Lease]) -> Error {
    if leases.is_empty() {
        return std::future::pending().await;
    }
    select_all(leases.iter().map(|lease| Box::pin(lease.lost()))).await.0
}

/// Several leases that are held together, in the order of their names.
///
/// # Guarantees
/// One loss is the loss of all: when one lease is lost, all are, and [`Leases::lost`] says which was first. The holds of
/// the others are not renewed from then on, but they stay until these leases are dropped or released, or their ttl is
/// over: no other client gets them while the work under them is still ending.
///
/// Dropping them releases all in the background, without a runtime, in one batch.
pub struct Leases {
    connection: Arc<Connection>,
    leases: Vec<Lease>,
    bond: Arc<Bond>,
}

impl Leases {
    fn bind(connection: &Arc<Connection>, leases: Vec<Lease>) -> std::result::Result<Leases, ()> {
        match Lease::bind(connection, leases) {
            Ok((leases, bond)) => Ok(Leases { connection: connection.clone(), leases, bond }),
            Err(leases) => {
                drop(Prefix { connection, leases });
                Err(())
            }
        }
    }

    /// Returns the lease of a name; none if it was not wanted. A slot's number is [`Lease::slot`]. Of several slots of a pool it is one;
    /// [`Leases::iter`] goes through all.
    ///
    /// `let lease = leases.get("account/17");`
    pub fn get(&self, name: &str) -> Option<&Lease> {
        let index = self.leases.binary_search_by(|lease| lease.resource().as_str().cmp(name)).ok()?;
        self.leases.get(index)
    }

    /// Returns the fencing token of a name; none if it was not wanted. Each resource has tokens of its own, and each slot another one.
    ///
    /// `let token = leases.token("account/17");`
    pub fn token(&self, name: &str) -> Option<Token> {
        self.get(name).map(Lease::token)
    }

    /// Goes through the leases, in the order of their names.
    ///
    /// `let held_names: Vec<_> = leases.iter().map(|lease| lease.resource()).collect();`
    pub fn iter(&self) -> std::slice::Iter<'_, Lease> {
        self.leases.iter()
    }

    /// Returns how long all of them last if nothing more is heard from the engine; zero if one is lost.
    ///
    /// `let left = leases.expires_in();`
    pub fn expires_in(&self) -> Duration {
        self.iter().map(Lease::expires_in).min().unwrap_or_default()
    }

    /// Whether a lease is lost. Compares with the deadlines: no I/O, and no lock but when it is first seen that
    /// one has passed. Once true it stays true.
    ///
    /// `let is_lost = leases.is_lost();`
    pub fn is_lost(&self) -> bool {
        let is_lost = self.iter().any(Lease::is_lost);
        if is_lost && self.bond.lost_first().is_none() {
            // From now on each of the others says so too.
            self.connection.shared.update_ledger(|ledger, now| ledger.check_bond(now, &self.bond));
        }
        is_lost
    }

    /// Waits until a lease is lost, and names the one that was lost first.
    ///
    /// `let error = leases.lost().await;`
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
    pub async fn lost(&self) -> Error {
        let error = any_lost(&self.leases).await;
        self.is_lost();
        match self.bond.lost_first() {
            Some(first) => self.leases[first].lost().await,
            None => error,
        }
    }

    /// Releases all leases in one batch and waits for the engine's answers.
    ///
    /// `leases.release().await?;`
    ///
    /// [`AlreadyLost`](ReleaseAnswer::AlreadyLost) if one of them was lost.
    ///
    /// # Errors
    /// As [`Lease::release`], for the first of them whose release failed. The others are released all the same.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the releases to the background.
    ///
    /// # Cost
    /// One round trip where the engine takes a batch in one.
    pub async fn release(mut self) -> Result<ReleaseAnswer> {
        let leases = std::mem::take(&mut self.leases);
        let was_lost = leases.iter().any(Lease::is_lost);
        let mut answer = if was_lost { ReleaseAnswer::AlreadyLost } else { ReleaseAnswer::Released };
        for released in Lease::release_all(&self.connection, leases).await {
            if released? == ReleaseAnswer::AlreadyLost {
                answer = ReleaseAnswer::AlreadyLost;
            }
        }
        Ok(answer)
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        Lease::drop_all(&self.connection, &mut self.leases);
    }
}

impl<'a> IntoIterator for &'a Leases {
    type Item = &'a Lease;
    type IntoIter = std::slice::Iter<'a, Lease>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
