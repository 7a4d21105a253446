//! Reading lines: whole, where something has changed, and entries by themselves.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::Result;
use tenure_core::model::claim::{Kind, Name};
use tenure_core::model::line::{Blocker, Line, Place};
use tenure_ordered::{Look, Mine, Presence, Wait};

use crate::client::endpoints::deadline;
use crate::client::proto::{
    Compare, CompareResult, KeyValue, Operation, RangeRequest, RangeResponse, SortOrder, SortTarget, Target,
    TxnRequest, TxnResponse, end_of_prefix,
};
use crate::keys::{Layout, get, range};
use crate::locks::store::{
    Etcd, broken, delete, is_there, none_since, parts, ranges, read, revision_of, version,
};

/// Of a line with more keys a claim that joins it reads the ends, and a waiter looks whether the first one has gone in the place of
/// counting: it does not hear of those before it who give up until then.
pub(crate) const LINE_LONG: i64 = 64;

fn is_long(keys: u64) -> bool {
    keys > LINE_LONG.unsigned_abs()
}

/// All in the range were made at a revision or later.
fn none_older(prefix: Vec<u8>, revision: u64) -> Compare {
    let before = i64::try_from(revision).unwrap_or(i64::MAX) - 1;
    let mut compare = Compare::of(prefix.clone(), CompareResult::Greater, Target::Create(before));
    compare.range_end = end_of_prefix(&prefix);
    compare
}

impl Etcd {
    /// A change of the capacity that concerns no claim any more is removed by the client that sees it.
    pub(crate) fn forget_resize(&self, name: &Name, line: &Line, keys: &[KeyValue]) {
        let resized = self.keys.resized(name);
        let Some(stale) = keys.iter().find(|key| key.key == resized).filter(|_| line.resize_is_over()) else {
            return;
        };
        let compare =
            vec![Compare::of(resized.clone(), CompareResult::Equal, Target::Mod(stale.mod_revision))];
        let request = TxnRequest { compare, success: vec![delete(resized)], failure: Vec::new() };
        let endpoints = self.endpoints.clone();
        tokio::spawn(async move {
            if let Err(fault) = endpoints.call(request, deadline()).await {
                tracing::debug!(%fault, "a change of the capacity stays behind until the next look");
            }
        });
    }

    pub(crate) async fn read_line_batch(&self, names: &[&Name], is_detailed: bool) -> Vec<Result<Look>> {
        let mut success = Vec::new();
        for name in names {
            success.push(read(range(self.keys.line(name))));
            if is_detailed {
                success.push(read(range(self.keys.value(name))));
            }
        }
        let answer = match self.call(TxnRequest { success, ..TxnRequest::default() }).await {
            Ok(answer) => answer,
            Err(fault) => return names.iter().map(|_| Err(fault.to_error("look"))).collect(),
        };
        let revision = u64::try_from(revision_of(&answer)).unwrap_or_default();
        let mut found = ranges(&answer.responses);
        let mut look = |name: &&Name| {
            let keys = &found.next().ok_or_else(|| broken("look"))?.kvs;
            let count = keys.len() as u64;
            let mut line = self.keys.read_line(name, keys);
            self.forget_resize(name, &line, keys);
            if is_detailed {
                line.value = self.keys.read_value(name, &found.next().ok_or_else(|| broken("look"))?.kvs);
            }
            Ok(Look { line, revision, keys: count })
        };
        names.iter().map(&mut look).collect()
    }

    /// The key of what blocks a waiter. With `?layout=etcdctl` others name theirs as they like.
    pub(crate) fn blocking(&self, name: &Name, blocker: &Blocker) -> Vec<u8> {
        match blocker {
            Blocker { entry, is_rest: true, .. } => self.keys.rest(name, entry.claim),
            Blocker { entry, .. } => self.keys.place(name, entry.claim),
        }
    }

    /// Reads the line only where the waiter's own entry, one that it waits for, or the capacity is not as it was, and looks whether it may
    /// have moved up where that is asked for. So a heartbeat costs the same however many wait.
    fn unless_unchanged(&self, wait: &Wait, counts: bool) -> TxnRequest {
        let Wait { mine, blockers, revision, .. } = wait;
        let name = &mine.resource;
        let line = range(self.keys.line(name));
        let counted = match wait.before.first().filter(|_| is_long(wait.keys)) {
            Some(oldest) => get(self.blocking(name, oldest)),
            None => line.clone(),
        };
        let count = counts.then(|| read(RangeRequest { count_only: true, ..counted }));
        let mut compare = vec![is_there(self.keys.place(name, mine.claim), mine.order)];
        compare.extend(blockers.iter().map(|blocker| {
            let key = self.blocking(name, blocker);
            match (self.keys.layout(), blocker.is_rest) {
                // A key that never exists: the comparison fails, and the line is read.
                (Layout::Etcdctl, _) => is_there(Vec::from("\0"), blocker.order),
                (Layout::Tenure, true) => Compare::of(key, CompareResult::NotEqual, Target::Create(0)),
                (Layout::Tenure, false) => is_there(key, blocker.order),
            }
        }));
        let since = i64::try_from(revision + 1).unwrap_or(i64::MAX);
        compare.push(Compare::of(self.keys.resized(name), CompareResult::Less, Target::Mod(since)));
        let changed = match self.unless_first(wait) {
            Some(unless_first) => Operation::Txn(unless_first).into(),
            None => read(line),
        };
        TxnRequest { compare, success: count.into_iter().collect(), failure: vec![changed] }
    }

    /// Reads the line unless a waiter of a mutex is the first in it by now.
    fn unless_first(&self, wait: &Wait) -> Option<TxnRequest> {
        let Wait { mine, entry, before, .. } = wait;
        let name = &mine.resource;
        let kind = entry.as_ref().map(|entry| entry.kind);
        if kind != Some(Kind::Mutex) || self.keys.layout() == Layout::Etcdctl {
            return None;
        }
        let mut compare = vec![is_there(self.keys.place(name, mine.claim), mine.order)];
        if wait.is_all_before {
            // Nothing else can be before it: whoever comes, comes behind.
            let gone = |blocker: &Blocker| {
                let claim = blocker.entry.claim;
                [self.keys.place(name, claim), self.keys.rest(name, claim)].map(Compare::is_absent)
            };
            compare.extend(before.iter().flat_map(gone));
        } else {
            compare.push(none_older(self.keys.places(name), mine.order));
            compare.push(none_since(self.keys.rests(name), 0));
        }
        Some(TxnRequest { compare, success: Vec::new(), failure: vec![read(range(self.keys.line(name)))] })
    }

    /// Reads what came of looking at a line in which something has changed.
    fn changed(&self, wait: &Wait, part: &TxnResponse, revision: u64) -> Result<Look> {
        let Wait { mine, entry, .. } = wait;
        let nested = parts(part).next().flatten();
        if let Some((entry, _)) = entry.as_ref().zip(nested.filter(|nested| nested.succeeded)) {
            let place = Place { order: mine.order, entry: entry.clone() };
            let line = Line::new(vec![place], Vec::new(), None, Vec::new());
            return Ok(Look { line, revision, keys: 1 });
        }
        let found = ranges(&nested.unwrap_or(part).responses).next();
        let keys = &found.ok_or_else(|| broken("look"))?.kvs;
        let line = self.keys.read_line(&mine.resource, keys);
        self.forget_resize(&mine.resource, &line, keys);
        Ok(Look { line, revision, keys: keys.len() as u64 })
    }

    /// Reads the ends of lines of mutexes in which entries have just been made, with so many keys before each: the oldest entry, the one
    /// before it, and its own.
    pub(crate) async fn read_ends_batch(&self, made: &[(&Mine, u64)]) -> Vec<Result<Look>> {
        let ends = |(mine, _): &(&Mine, u64)| {
            let places = range(self.keys.places(&mine.resource));
            let last = i64::try_from(mine.order).unwrap_or(i64::MAX) - 1;
            let one = |order: SortOrder, places: RangeRequest| {
                read(RangeRequest {
                    sort_order: order.into(),
                    sort_target: SortTarget::Create.into(),
                    limit: 1,
                    ..places
                })
            };
            let success = vec![
                read(get(self.keys.place(&mine.resource, mine.claim))),
                one(SortOrder::Ascend, places.clone()),
                one(SortOrder::Descend, RangeRequest { max_create_revision: last, ..places }),
                read(range(self.keys.rests(&mine.resource))),
            ];
            TxnRequest { success, ..TxnRequest::default() }
        };
        let answer = match self.together(made.iter().map(ends).collect()).await {
            Ok(answer) => answer,
            Err(fault) => return made.iter().map(|_| Err(fault.to_error("claim"))).collect(),
        };
        let revision = u64::try_from(revision_of(&answer)).unwrap_or_default();
        let look = |((mine, before), part): (&(&Mine, u64), Option<&TxnResponse>)| {
            let part = part.ok_or_else(|| broken("claim"))?;
            let mut keys: Vec<KeyValue> =
                ranges(&part.responses).flat_map(|range| range.kvs.iter().cloned()).collect();
            keys.sort_unstable_by(|one, other| one.key.cmp(&other.key));
            keys.dedup_by(|one, other| one.key == other.key);
            let line = self.keys.read_line(&mine.resource, &keys);
            let read = line.places().iter().filter(|place| place.order < mine.order).count();
            // One is both the oldest and the one before: the others have gone meanwhile.
            let unread = if read < 2 { 0 } else { before.saturating_sub(2) };
            let line = line.with_unread(u32::try_from(unread).unwrap_or(u32::MAX));
            Ok(Look { line, revision, keys: before + 1 })
        };
        made.iter().zip(parts(&answer)).map(look).collect()
    }

    pub(crate) async fn read_changed_batch<'a>(
        &self,
        waits: &[(&'a Wait, bool)],
    ) -> Vec<Result<Option<Look>>> {
        let asked = waits.iter().map(|(wait, counts)| self.unless_unchanged(wait, *counts)).collect();
        let answer = match self.together(asked).await {
            Ok(answer) => answer,
            Err(fault) => return waits.iter().map(|_| Err(fault.to_error("look"))).collect(),
        };
        let revision = u64::try_from(revision_of(&answer)).unwrap_or_default();
        let mut moved: BTreeSet<&Name> = BTreeSet::new();
        let mut look = |((wait, _), part): (&(&'a Wait, bool), Option<&TxnResponse>)| {
            let part = part.ok_or_else(|| broken("look"))?;
            if part.succeeded {
                let expected = if is_long(wait.keys) { 1 } else { wait.keys };
                let counted = ranges(&part.responses).next();
                if counted.is_some_and(|counted| u64::try_from(counted.count) != Ok(expected)) {
                    moved.insert(&wait.mine.resource);
                }
                return Ok(None);
            }
            self.changed(wait, part, revision).map(Some)
        };
        let mut looks: Vec<Result<Option<Look>>> = waits.iter().zip(parts(&answer)).map(&mut look).collect();
        // A waiter has come or gone: those that asked may have moved up.
        let names: Vec<&Name> = moved.into_iter().collect();
        if !names.is_empty() {
            let read = self.read_line_batch(&names, false).await;
            let read: BTreeMap<&Name, Result<Look>> = names.into_iter().zip(read).collect();
            for ((wait, counts), look) in waits.iter().zip(&mut looks) {
                if let (Ok(None), true, Some(read)) = (&look, *counts, read.get(&wait.mine.resource)) {
                    *look = read.clone().map(Some);
                }
            }
        }
        looks
    }

    pub(crate) async fn find_batch(&self, mine: &[Mine]) -> Vec<Result<Presence>> {
        let ask = |mine: &Mine| {
            read(RangeRequest { keys_only: true, ..get(self.keys.place(&mine.resource, mine.claim)) })
        };
        let success = mine.iter().map(ask).collect();
        let answer = match self.call(TxnRequest { success, ..TxnRequest::default() }).await {
            Ok(answer) => answer,
            Err(fault) => return mine.iter().map(|_| Err(fault.to_error("renew"))).collect(),
        };
        let presence = |(mine, range): (&Mine, &RangeResponse)| {
            let is_mine = |key: &&KeyValue| u64::try_from(key.create_revision) == Ok(mine.order);
            Ok(match range.kvs.first().filter(is_mine) {
                None => Presence::Gone,
                Some(key) if key.version == version(mine) => Presence::Here,
                Some(_) => Presence::Broken,
            })
        };
        mine.iter().zip(ranges(&answer.responses)).map(presence).collect()
    }
}
