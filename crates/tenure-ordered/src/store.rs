//! What an ordered store must give.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use tenure_core::Result;
use tenure_core::clock::Instant;
use tenure_core::engine::{Capability, DynQueueEngine, Finding, Incarnation};
use tenure_core::model::claim::{Claim, ClaimId, Keep, Name, Terms};
use tenure_core::model::line::{Blocker, Entry, Line, Place, Resized, Rest, TakenSlot};
use tenure_core::model::token::Token;

use crate::wake::Wakes;

/// One session of a client in the store: an etcd lease, a ZooKeeper session. With it end all entries that were made in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// When a claim is to enter its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Always, at the end.
    Queue,
    /// Only if it holds then. A store that cannot make that sure may enter it: it is withdrawn if it does not hold.
    IfItHolds,
}

/// A claim that is to enter the line of its resource.
#[derive(Clone, Copy, Debug)]
pub struct Entrance<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// The session in which its entry is made.
    pub session_id: SessionId,
    /// When it is to enter.
    pub rule: Rule,
    /// It may be in the line already: an earlier call was not answered.
    pub is_repeated: bool,
}

/// A line as it was at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// The line.
    pub line: Line,
    /// The moment, as the store counts: what is watched from here misses nothing.
    pub revision: u64,
    /// How many keys the line had, for a store that counts them for less than it reads them.
    pub keys: u64,
}

/// What came of taking an entry over.
#[derive(Clone, Debug)]
pub enum Adopted {
    /// It is this client's from now on, as it was.
    Mine(Mine, Arc<Terms>),
    /// It ends with another client.
    Elsewhere,
    /// There is none, or an operator has broken it.
    Gone,
}

/// How an entrance ended.
#[derive(Clone, Debug)]
pub enum Entered {
    /// The claim is in this line.
    In(Mine, Look),
    /// It is not, since it would not hold.
    Out(Look),
    /// It is in the line already, and ends with another client.
    Elsewhere,
    /// The claim was released before: it is not let in any more.
    Finished,
    /// The session had ended before: nothing was entered.
    Dead,
}

/// An entry of this client.
#[derive(Clone, Debug)]
pub struct Mine {
    /// The resource.
    pub resource: Name,
    /// Its claim.
    pub claim: ClaimId,
    /// Its number in the line.
    pub order: u64,
    /// Its token: that of its slot, once it has taken one.
    pub token: Token,
    /// The session in which it was made.
    pub session_id: SessionId,
    /// The slot that it took.
    pub slot: Option<u32>,
    /// How often a client has taken the entry over from another one, in a store where that writes it.
    pub adoptions: u32,
}

/// What a waiter of this client waits for.
#[derive(Clone, Debug)]
pub struct Wait {
    /// Its entry.
    pub mine: Mine,
    /// The same as it was read in the line.
    pub entry: Option<Entry>,
    /// The claims before it without whose going it cannot hold.
    pub blockers: Vec<Blocker>,
    /// Everything before it, the oldest first, if that is little; else the oldest alone.
    pub before: Vec<Blocker>,
    /// Whether that is everything.
    pub is_all_before: bool,
    /// When its line was read ([`Look::revision`]).
    pub revision: u64,
    /// How many keys the line had then ([`Look::keys`]).
    pub keys: u64,
}

/// A claim that is to leave its line.
#[derive(Clone, Debug)]
pub struct Leaving {
    /// The resource.
    pub resource: Name,
    /// The claim.
    pub claim: ClaimId,
    /// What is known of its entry. `None`: it may have one.
    pub mine: Option<Mine>,
    /// It may have taken a slot that is not known here ([`Mine::slot`]): a call that took one was not answered.
    pub may_have_slot: bool,
    /// A copy of its entrance may still be under way, and must not be let in any more.
    pub may_come_later: bool,
    /// Its time is over: it goes even if an operator has broken it.
    pub is_over: bool,
    /// Its units rest from now on.
    pub rest: Option<Resting>,
    /// It may have published a value that goes with it.
    pub has_value: bool,
    /// Units were made to rest after its hold ([`Store::prepare_rest`]), and do not have to.
    pub has_rest: bool,
}

/// Units that are to rest when their hold goes.
#[derive(Clone, Debug)]
pub struct Resting {
    /// For how long.
    pub period: Duration,
    /// What the hold was.
    pub terms: Arc<Terms>,
}

/// How a leaving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The entry is gone.
    Gone,
    /// There was none.
    WasNot,
    /// An operator has broken it, and it must stay until its former end.
    IsBroken,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is in its line.
    Here,
    /// It is, but an operator has broken it.
    Broken,
    /// It is gone.
    Gone,
}

/// An ordered store: how to make, list, watch and remove entries.
///
/// Every answer is linearizable. A call that fails with [`tenure_core::ErrorKind::Unavailable`] may have been carried out,
/// and no call is repeated by the store.
pub trait Store: Send + Sync + 'static {
    /// The engine's one word.
    const ENGINE: &'static str;

    /// What it can do.
    fn capability(&self) -> &Capability;

    /// Which memory answers.
    fn incarnation(&self) -> Incarnation;

    /// Where news for the client's waiters go.
    fn wakes(&self) -> &Wakes;

    /// Returns a session whose entries live at least `ttl` after its last heartbeat, and begins one if there is none.
    fn session_id(&self, ttl: Duration) -> impl Future<Output = Result<SessionId>> + Send;

    /// Makes sure that a session goes on, by a heartbeat through the store's leader unless one was answered just now.
    /// Returns until when its entries live at least, all margins taken off, or `None` if it has ended.
    fn heartbeat(&self, session_id: SessionId) -> impl Future<Output = Result<Option<Instant>>> + Send;

    /// Lets claims enter, of each resource one at most.
    fn enter(&self, entrances: Vec<Entrance<'_>>) -> impl Future<Output = Vec<Result<Entered>>> + Send;

    /// Looks at lines. `is_detailed`: with [`tenure_core::model::line::About`] of each entry, and the value.
    fn look(&self, names: Vec<&Name>, is_detailed: bool) -> impl Future<Output = Vec<Result<Look>>> + Send;

    /// Reads the lines of waiters in which anything has changed that matters to them: their own entry, those that
    /// they wait for, the capacity; and the number of waiters, where `true` stands beside the wait. `None` where
    /// nothing has. A store that cannot find that out for less than it costs to read the whole line reads the line.
    fn look_if_changed(
        &self,
        waits: Vec<(&Wait, bool)>,
    ) -> impl Future<Output = Vec<Result<Option<Look>>>> + Send {
        async move {
            let names: BTreeSet<&Name> = waits.iter().map(|(wait, _)| &wait.mine.resource).collect();
            let looks = self.look(names.iter().copied().collect(), false).await;
            let looks: BTreeMap<&Name, Result<Look>> = names.into_iter().zip(looks).collect();
            let look = |(wait, _): &(&Wait, bool)| looks[&wait.mine.resource].clone().map(Some);
            waits.iter().map(look).collect()
        }
    }

    /// Takes over the entry of a claim that another client has made: it keeps its number and its slot, and ends with this client from now
    /// on. `moving` hears of it, and whether it holds, before it is asked for: nobody may hear of the answer. A store whose entries cannot go from one session
    /// to another says whether it is there.
    fn adopt(
        &self,
        name: &Name,
        claim: ClaimId,
        moving: impl Fn(&Mine, &Arc<Terms>, bool) + Send + Sync,
    ) -> impl Future<Output = Result<Adopted>> + Send {
        async move {
            drop(moving);
            let look = self.look(vec![name], false).await.pop().transpose()?;
            let is_there = look.is_some_and(|look| look.line.place(claim).is_some());
            Ok(if is_there { Adopted::Elsewhere } else { Adopted::Gone })
        }
    }

    /// Looks what became of entries of this client.
    fn find(&self, mine: Vec<Mine>) -> impl Future<Output = Vec<Result<Presence>>> + Send;

    /// Lets claims leave, with their slots, and what they published while they held.
    fn leave(&self, leaving: Vec<Leaving>) -> impl Future<Output = Vec<Result<Left>>> + Send;

    /// Wakes a waiter ([`tenure_core::engine::Wake::Look`]) as soon as one of its blockers has gone since the line
    /// was read, or a value that is kept has been published, if it waits `for_value`. Replaces what the claim waited
    /// for before.
    fn watch(&self, wait: Wait, for_value: bool);

    /// A claim does not wait any more.
    fn unwatch(&self, claim: ClaimId);

    /// Takes any free slot below `capacity` for a claim that holds, or returns the one that it took before. `line`: as it was
    /// seen last.
    fn take_slot(
        &self,
        mine: &Mine,
        capacity: u32,
        line: &Line,
    ) -> impl Future<Output = Result<TakenSlot>> + Send;

    /// Has the units of a hold rest for the terms' `lock_delay` if its client vanishes.
    fn prepare_rest(&self, mine: &Mine, terms: &Terms) -> impl Future<Output = Result<()>> + Send;

    /// Sets the value of a resource while a claim holds it. `false`: its entry is gone, or broken.
    fn publish(&self, mine: Mine, bytes: Arc<[u8]>, keep: Keep) -> impl Future<Output = Result<bool>> + Send;

    /// Notes a change of the capacity for the entries that are there.
    fn resize(&self, name: &Name, resized: Resized) -> impl Future<Output = Result<()>> + Send;

    /// Marks an entry as broken, or removes it at once, with the slot that it took. `false`: it is gone.
    fn break_place(
        &self,
        name: &Name,
        place: &Place,
        slot: Option<u32>,
        at_once: bool,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Ends a rest. `false`: it is gone.
    fn end_rest(&self, name: &Name, rest: &Rest) -> impl Future<Output = Result<bool>> + Send;

    /// Returns up to `most` names in use that begin with `prefix` and come after `after`, by name.
    fn names(
        &self,
        prefix: &str,
        after: Option<&Name>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Name>>> + Send;

    /// Returns one item for each change of a resource, or several; the first one at once.
    fn follow(&self, name: &Name) -> BoxStream<'static, Result<()>>;

    /// Returns its queues, where it has such.
    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        None
    }

    /// Looks whether the store can be trusted.
    fn check(&self) -> impl Future<Output = Vec<Finding>> + Send;
}
