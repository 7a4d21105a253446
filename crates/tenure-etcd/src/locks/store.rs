//! The store: lines as ranges of keys, and a transaction for each batch.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::engine::{
    Adopts, Capability, DynQueueEngine, Finding, HandOver, Incarnation, Reach, SlotOrder,
};
use tenure_core::model::claim::{ClaimId, ClientId, Keep, Name, Terms};
use tenure_core::model::line::{Entry, Line, Place, Resized, Rest, TakenSlot};
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, Result};
use tenure_ordered::{
    Adopted, Entered, Entrance, Leaving, Left, Look, Mine, Presence, Queues, SessionId, Store, Wait, Wakes,
};

use crate::client::endpoints::{Endpoints, deadline};
use crate::client::etcd_leases::{EtcdLeases, lease_of};
use crate::client::proto::{
    Answered, Call, Compare, CompareResult, DeleteRangeRequest, Operation, PutRequest, RangeRequest,
    RangeResponse, RequestOp, ResponseOp, Target, TxnRequest, TxnResponse, end_of_prefix,
};
use crate::client::watch::{Wanted, Watches};
use crate::error::Fault;
use crate::keys::{Keys, Layout, write_resized, write_rest, write_value};
use crate::locks::alone::Alone;
use crate::locks::wake::{Waits, comes, goes};
use crate::queues::{self, EtcdQueues};

/// A transaction has 128 operations at most, unless the server is configured otherwise.
const OPERATIONS_MAX: usize = 128;
/// The most requests of a transaction that has a transaction of its own for each of them.
pub(crate) const BATCH_MAX: usize = 64;
/// The most waiters of a line: a read of all of them is 2 MiB.
const WAITERS_MAX: u32 = 10_000;
/// How many calls of one verb are under way at a time. etcd executes each as soon as it has it, so the next one is on its way while the
/// one before waits for the disks.
const CALLS_MAX: usize = 2;
/// How often what was read is read again because others came in between.
pub(crate) const TRIES: usize = 4;
/// How often a slot is tried to be taken before the claim is answered and asked again.
const SLOT_TRIES: usize = 16;
/// How many keys are read at once when names are listed.
const NAMES_PAGE: i64 = 1000;

/// etcd as an ordered store.
///
/// No example: it comes from `Config`, and is used by the client that connects with it.
pub struct Etcd {
    pub(crate) endpoints: Endpoints,
    pub(crate) keys: Keys,
    pub(crate) client: ClientId,
    capability: Capability,
    incarnation: Incarnation,
    pub(crate) etcd_leases: Arc<EtcdLeases>,
    wakes: Arc<Wakes>,
    waits: Waits,
    pub(crate) alone: Alone,
    queues: Queues<EtcdQueues>,
}

/// What it is made of.
pub(crate) struct Parts {
    pub(crate) endpoints: Endpoints,
    pub(crate) keys: Keys,
    pub(crate) client: ClientId,
    pub(crate) cluster: u64,
    pub(crate) etcd_leases: EtcdLeases,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) waits: Waits,
    pub(crate) watches: Watches,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").field("client", &self.client).finish_non_exhaustive()
    }
}

pub(crate) fn failed(operation: &'static str) -> impl Fn(Fault) -> Error {
    move |fault| fault.to_error(operation)
}

pub(crate) fn broken(operation: &'static str) -> Error {
    Error::new(ErrorKind::Internal, operation, "unexpected response type")
}

pub(crate) fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> RequestOp {
    Operation::Put(PutRequest { key, value, lease, ..PutRequest::default() }).into()
}

pub(crate) fn delete(key: Vec<u8>) -> RequestOp {
    Operation::DeleteRange(DeleteRangeRequest { key, ..DeleteRangeRequest::default() }).into()
}

pub(crate) fn read(request: RangeRequest) -> RequestOp {
    Operation::Range(request).into()
}

/// The entry is there, and is the one with this number.
pub(crate) fn is_there(key: Vec<u8>, order: u64) -> Compare {
    Compare::of(key, CompareResult::Equal, Target::Create(i64::try_from(order).unwrap_or(i64::MAX)))
}

/// An entry is written once when it is made, once more when it takes a slot, and once whenever another client takes it over. Whatever
/// else writes it breaks it.
pub(crate) fn version(mine: &Mine) -> i64 {
    1 + i64::from(mine.slot.is_some()) + i64::from(mine.adoptions)
}

/// No operator has marked the entry, it has taken no other slot than is known, and no other client has it.
pub(crate) fn is_untouched(key: Vec<u8>, mine: Option<&Mine>) -> Compare {
    Compare::of(key, CompareResult::Equal, Target::Version(mine.map_or(1, version)))
}

/// Writes an entry as it is, so that a client that has read it before finds it changed.
fn touch(key: Vec<u8>) -> RequestOp {
    Operation::Put(PutRequest { key, ignore_value: true, ignore_lease: true, ..PutRequest::default() }).into()
}

/// Nothing in the range was made after a revision. With 0: the range is empty.
pub(crate) fn none_since(prefix: Vec<u8>, revision: i64) -> Compare {
    let (result, with) =
        if revision == 0 { (CompareResult::Equal, 0) } else { (CompareResult::Less, revision + 1) };
    let mut compare = Compare::of(prefix.clone(), result, Target::Create(with));
    compare.range_end = end_of_prefix(&prefix);
    compare
}

/// The key is as it was written at a revision.
pub(crate) fn is_written(key: Vec<u8>, revision: i64) -> Compare {
    Compare::of(key, CompareResult::Equal, Target::Mod(revision))
}

pub(crate) fn ranges(responses: &[ResponseOp]) -> impl Iterator<Item = &RangeResponse> {
    responses.iter().filter_map(|response| match &response.response {
        Some(Answered::Range(range)) => Some(range),
        _ => None,
    })
}

pub(crate) fn revision_of(answer: &TxnResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}

/// The answers of the transactions in a transaction.
pub(crate) fn parts(answer: &TxnResponse) -> impl Iterator<Item = Option<&TxnResponse>> {
    answer.responses.iter().map(|response| match &response.response {
        Some(Answered::Txn(part)) => Some(part),
        _ => None,
    })
}

impl Etcd {
    pub(crate) fn new(parts: Parts) -> Etcd {
        let Parts { endpoints, keys, client, cluster, etcd_leases, wakes, waits, watches } = parts;
        let capability = capability(keys.layout());
        let (incarnation, etcd_leases) = (Incarnation(cluster), Arc::new(etcd_leases));
        let parts = queues::Parts {
            endpoints: endpoints.clone(),
            keys: keys.clone(),
            client,
            etcd_leases: etcd_leases.clone(),
            wakes: wakes.clone(),
            watches,
        };
        let queues = Queues::new(EtcdQueues::new(parts), client);
        let alone = Alone::default();
        Etcd { endpoints, keys, client, capability, incarnation, etcd_leases, wakes, waits, alone, queues }
    }

    pub(crate) async fn call<Q: Call>(&self, request: Q) -> Result<Q::Answer, Fault> {
        self.endpoints.call(request, deadline()).await
    }

    /// Carries out transactions as one, a part each.
    pub(crate) async fn together(&self, mut transactions: Vec<TxnRequest>) -> Result<TxnResponse, Fault> {
        if transactions.len() == 1
            && let Some(only) = transactions.pop()
        {
            // As it is: one inside of another costs the server more.
            let part = self.call(only).await?;
            let header = part.header;
            let responses = vec![ResponseOp { response: Some(Answered::Txn(part)) }];
            return Ok(TxnResponse { header, succeeded: true, responses });
        }
        let success = transactions.into_iter().map(|part| Operation::Txn(part).into()).collect();
        self.call(TxnRequest { success, ..TxnRequest::default() }).await
    }

    /// Carries out one transaction; whether its conditions were true.
    async fn alone(&self, operation: &'static str, transaction: TxnRequest) -> Result<TxnResponse> {
        self.call(transaction).await.map_err(failed(operation))
    }

    pub(crate) fn entry(&self, claim: ClaimId, terms: &Terms) -> Entry {
        Entry::of_terms(claim, self.client, terms, SystemClock.time_of_day(), terms.ttl)
    }

    /// Publishes; the leases of what was kept before come back, and are to be ended.
    async fn put_value(&self, mine: &Mine, bytes: &[u8], keep: Keep) -> Result<Option<Vec<i64>>, Fault> {
        let place = self.keys.place(&mine.resource, mine.claim);
        let (kept, fresh_key) = (self.keys.kept_value(&mine.resource), self.keys.fresh_value(&mine.resource));
        let held = self.keys.held_value(&mine.resource, mine.claim);
        let again = |key, value, lease| {
            Operation::Put(PutRequest { key, value, lease, prev_kv: true, ..PutRequest::default() }).into()
        };
        let gone = |key| {
            Operation::DeleteRange(DeleteRangeRequest { key, prev_kv: true, ..DeleteRangeRequest::default() })
                .into()
        };
        let success: Vec<RequestOp> = match keep {
            Keep::WhileHeld => {
                let value = write_value(mine.token, Duration::ZERO, bytes);
                vec![put(held, value, lease_of(mine.session_id)), gone(kept), gone(fresh_key)]
            }
            // A lease of etcd's lasts for a second at least, and what is to be gone would be shown meanwhile.
            Keep::For { fresh, stale } if (fresh + stale).is_zero() => {
                vec![gone(held), gone(kept), gone(fresh_key)]
            }
            Keep::For { fresh: fresh_for, stale } => {
                let value = write_value(mine.token, fresh_for, bytes);
                let lease = self.etcd_leases.once(fresh_for + stale).await?;
                let freshness = if fresh_for.is_zero() {
                    gone(fresh_key)
                } else {
                    let lease =
                        if stale.is_zero() { lease } else { self.etcd_leases.once(fresh_for).await? };
                    again(fresh_key, Vec::new(), lease)
                };
                vec![again(kept, value, lease), freshness, delete(held)]
            }
        };
        let compare = vec![is_there(place.clone(), mine.order), is_untouched(place, Some(mine))];
        let answer = self.call(TxnRequest { compare, success, failure: Vec::new() }).await?;
        let before = |response: &ResponseOp| match &response.response {
            Some(Answered::Put(put)) => put.prev_kv.iter().map(|key| key.lease).collect::<Vec<_>>(),
            Some(Answered::DeleteRange(deleted)) => deleted.prev_kvs.iter().map(|key| key.lease).collect(),
            _ => Vec::new(),
        };
        Ok(answer
            .succeeded
            .then(|| answer.responses.iter().flat_map(before).filter(|lease| *lease != 0).collect()))
    }

    async fn names_in(
        &self,
        room: &str,
        prefix: &str,
        after: Option<&Name>,
        most: usize,
    ) -> Result<Vec<Name>, Fault> {
        let all = self.keys.room(room, prefix);
        let behind = |name: &Name| {
            end_of_prefix(&match room {
                "line" => self.keys.line(name),
                _ => self.keys.value(name),
            })
        };
        let mut from = after.map_or_else(|| all.clone(), behind).max(all.clone());
        let mut names: Vec<Name> = Vec::new();
        loop {
            let request = RangeRequest {
                key: from,
                range_end: end_of_prefix(&all),
                keys_only: true,
                limit: NAMES_PAGE,
                ..RangeRequest::default()
            };
            let answer = self.call(request).await?;
            for name in answer.kvs.iter().filter_map(|key| self.keys.name_in(room, &key.key)) {
                if names.last() != Some(&name) {
                    names.push(name);
                }
            }
            match answer.kvs.last() {
                // A long line is not read to its end.
                Some(last) if answer.more && names.len() <= most => {
                    from = self
                        .keys
                        .name_in(room, &last.key)
                        .map_or_else(|| [&last.key[..], &[0]].concat(), |name| behind(&name));
                }
                _ => return Ok(names),
            }
        }
    }
}

fn capability(layout: Layout) -> Capability {
    let mut capability = Capability::of_step();
    capability.reach = Reach::Network;
    capability.slot_order = SlotOrder::AnyFree;
    capability.ttl_grain = Duration::from_secs(1);
    capability.ttl_grain_reason = "leases of etcd last whole seconds";
    capability.hand_over = HandOver::Session;
    capability.waiters_max = WAITERS_MAX;
    capability.raises_tokens = false;
    capability.remembers_ends = false;
    capability.survives_failover = true;
    capability.batch_max = BATCH_MAX;
    capability.resource_batch_max = 1;
    capability.calls_max = CALLS_MAX;
    capability.keeps_call_order = false;
    if layout == Layout::Etcdctl {
        capability.kinds = &[tenure_core::model::claim::Kind::Mutex];
        capability.has_rests = false;
        capability.adopts = Adopts::SameClient;
        capability.adopts_reason =
            "beside keys of others an entry stays under the lease of etcd under which its client made it";
    }
    capability
}

impl Store for Etcd {
    const ENGINE: &'static str = "etcd";

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    async fn session_id(&self, ttl: Duration) -> Result<SessionId> {
        self.etcd_leases.of(ttl).await.map_err(failed("claim"))
    }

    async fn heartbeat(&self, session_id: SessionId) -> Result<Option<Instant>> {
        self.etcd_leases.heartbeat(session_id).await.map_err(failed("renew"))
    }

    async fn enter(&self, entrances: Vec<Entrance<'_>>) -> Vec<Result<Entered>> {
        let batches = entrances.chunks(BATCH_MAX).map(|batch| self.enter_batch(batch));
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn look(&self, names: Vec<&Name>, is_detailed: bool) -> Vec<Result<Look>> {
        let batches = names.chunks(OPERATIONS_MAX / 2).map(|batch| self.read_line_batch(batch, is_detailed));
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn adopt(
        &self,
        name: &Name,
        claim: ClaimId,
        moving: impl Fn(&Mine, &Arc<Terms>, bool) + Send + Sync,
    ) -> Result<Adopted> {
        for _ in 0..TRIES {
            let adopted = self.adopt_once(name, claim, &moving).await.map_err(failed("adopt"))?;
            if let Some(adopted) = adopted {
                return Ok(adopted);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "adopt", "its entry was written each time in between"))
    }

    async fn find(&self, mine: Vec<Mine>) -> Vec<Result<Presence>> {
        let batches = mine.chunks(OPERATIONS_MAX).map(|batch| self.find_batch(batch));
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn leave(&self, leaving: Vec<Leaving>) -> Vec<Result<Left>> {
        let batches = leaving.chunks(BATCH_MAX).map(|batch| self.leave_batch(batch));
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn look_if_changed(&self, waits: Vec<(&Wait, bool)>) -> Vec<Result<Option<Look>>> {
        let batches = waits.chunks(BATCH_MAX).map(|batch| self.read_changed_batch(batch));
        join_all(batches).await.into_iter().flatten().collect()
    }

    fn watch(&self, wait: Wait, for_value: bool) {
        let Wait { mine, blockers, revision, .. } = wait;
        let mut what: Vec<Wanted> = match self.keys.layout() {
            Layout::Tenure => {
                blockers.iter().map(|blocker| goes(self.blocking(&mine.resource, blocker), false)).collect()
            }
            // Others name their keys as they like.
            Layout::Etcdctl => vec![goes(self.keys.line(&mine.resource), true)],
        };
        what.extend(for_value.then(|| comes(self.keys.kept_value(&mine.resource))));
        self.waits.wait(mine.claim, what, i64::try_from(revision).unwrap_or(i64::MAX));
    }

    fn unwatch(&self, claim: ClaimId) {
        self.waits.forget(claim);
    }

    async fn take_slot(&self, mine: &Mine, capacity: u32, line: &Line) -> Result<TakenSlot> {
        let mut line = line.clone();
        for _ in 0..SLOT_TRIES {
            if let Some(taken) = line.slot_of(mine.claim) {
                return Ok(taken);
            }
            let rests = line.rests().iter().filter_map(|rest| rest.slot);
            let taken: std::collections::HashSet<u32> =
                line.slots().iter().map(|slot| slot.number).chain(rests).collect();
            let free: Vec<u32> = (0..capacity).filter(|slot| !taken.contains(slot)).collect();
            // Any of them: a claim that comes at the same time takes another one.
            let start = SystemClock.random() as usize % free.len().max(1);
            if let Some(&number) = free.get(start) {
                let (place, key) =
                    (self.keys.place(&mine.resource, mine.claim), self.keys.slot(&mine.resource, number));
                let free = Compare::is_absent(key.clone());
                let compare =
                    vec![free, is_there(place.clone(), mine.order), is_untouched(place.clone(), Some(mine))];
                let taken = put(key, mine.claim.to_string().into_bytes(), lease_of(mine.session_id));
                let success = vec![taken, touch(place)];
                let transaction = TxnRequest { compare, success, failure: Vec::new() };
                let answer = self.alone("claim", transaction).await?;
                if answer.succeeded {
                    let token = Token::new(u64::try_from(revision_of(&answer)).unwrap_or_default());
                    return Ok(TakenSlot { number, claim: mine.claim, token });
                }
            }
            let mut looks = self.read_line_batch(&[&mine.resource], false).await;
            line = looks.pop().unwrap_or_else(|| Err(broken("claim")))?.line;
            if line.place(mine.claim).is_none() {
                let gone = "its entry has gone while it took a slot";
                return Err(Error::new(ErrorKind::Unavailable, "claim", gone));
            }
        }
        let raced = "others took each slot that was free";
        Err(Error::new(ErrorKind::Unavailable, "claim", raced))
    }

    async fn prepare_rest(&self, mine: &Mine, terms: &Terms) -> Result<()> {
        let delay = terms.limits.lock_delay;
        let companion = self.etcd_leases.of(terms.ttl + delay).await.map_err(failed("claim"))?;
        self.etcd_leases.accompany(mine.session_id, companion).await;
        let mut entry = self.entry(mine.claim, terms);
        if let Some(about) = &mut entry.about {
            about.lasts = delay;
        }
        let place = self.keys.place(&mine.resource, mine.claim);
        let value = write_rest(mine.order, mine.token, mine.slot, &entry);
        let rest = put(self.keys.rest(&mine.resource, mine.claim), value, lease_of(companion));
        let compare = vec![is_there(place, mine.order)];
        self.alone("claim", TxnRequest { compare, success: vec![rest], failure: Vec::new() }).await?;
        Ok(())
    }

    async fn publish(&self, mine: Mine, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        let Some(leases) = self.put_value(&mine, &bytes, keep).await.map_err(failed("publish"))? else {
            return Ok(false);
        };
        // What they kept is replaced. If it fails, they end by themselves.
        let etcd_leases = self.etcd_leases.clone();
        tokio::spawn(async move {
            for lease in leases {
                if let Err(fault) = etcd_leases.revoke(lease).await {
                    tracing::debug!(%fault, "a lease without keys ends by itself");
                }
            }
        });
        Ok(true)
    }

    async fn resize(&self, name: &Name, resized: Resized) -> Result<()> {
        let request = PutRequest {
            key: self.keys.resized(name),
            value: write_resized(&resized),
            ..PutRequest::default()
        };
        self.call(request).await.map_err(failed("resize"))?;
        Ok(())
    }

    async fn break_place(
        &self,
        name: &Name,
        place: &Place,
        slot: Option<u32>,
        at_once: bool,
    ) -> Result<bool> {
        let claim = place.entry.claim;
        let key = self.keys.place(name, claim);
        let success = if at_once {
            let done = self.etcd_leases.done().await.map_err(failed("break"))?;
            let keys = [key.clone(), self.keys.held_value(name, claim), self.keys.rest(name, claim)];
            let slot = slot.map(|slot| self.keys.slot(name, slot));
            let finished = put(self.keys.done(claim), Vec::new(), done);
            keys.into_iter().chain(slot).map(delete).chain([finished]).collect()
        } else {
            let mut entry = place.entry.clone();
            if let Some(about) = &mut entry.about {
                about.is_broken = true;
            }
            let value = entry.encode().into_bytes();
            vec![
                Operation::Put(PutRequest {
                    key: key.clone(),
                    value,
                    ignore_lease: true,
                    ..PutRequest::default()
                })
                .into(),
            ]
        };
        let compare = vec![is_there(key, place.order)];
        Ok(self.alone("break", TxnRequest { compare, success, failure: Vec::new() }).await?.succeeded)
    }

    async fn end_rest(&self, name: &Name, rest: &Rest) -> Result<bool> {
        let key = self.keys.rest(name, rest.entry.claim);
        let request = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
        Ok(self.call(request).await.map_err(failed("break"))?.deleted > 0)
    }

    async fn names(&self, prefix: &str, after: Option<&Name>, most: usize) -> Result<Vec<Name>> {
        let mut names = self.names_in("line", prefix, after, most).await.map_err(failed("inspect"))?;
        names.extend(self.names_in("value", prefix, after, most).await.map_err(failed("inspect"))?);
        names.sort_unstable();
        names.dedup();
        names.truncate(most);
        Ok(names)
    }

    fn follow(&self, name: &Name) -> BoxStream<'static, Result<()>> {
        self.waits.follow([self.keys.line(name), self.keys.value(name)])
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        // Beside the keys of others, ours might be taken for theirs.
        (self.keys.layout() == Layout::Tenure).then_some(&self.queues as &dyn DynQueueEngine)
    }

    async fn check(&self) -> Vec<Finding> {
        crate::doctor::check(&self.endpoints, &self.keys, &self.etcd_leases).await
    }
}
