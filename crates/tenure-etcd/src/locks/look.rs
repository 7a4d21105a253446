//! Reading lines: whole, where something has changed, and entries by themselves.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::Result;
use tenure_core::model::claim::Name;
use tenure_core::model::line::{Blocker, Line};
use tenure_ordered::{Look, Mine, Presence, Wait};

use crate::client::endpoints::deadline;
use crate::client::proto::{
    Compare, CompareResult, KeyValue, RangeRequest, RangeResponse, Target, TxnRequest, TxnResponse,
};
use crate::keys::{Layout, get, range};
use crate::locks::store::{Etcd, broken, delete, is_there, parts, ranges, read, revision_of, version};

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

    /// Reads the line only where the waiter's own entry, one that it waits for, or the capacity is not as it was, and counts it where
    /// that is asked for. So a heartbeat costs the same however many wait.
    fn unless_unchanged(&self, wait: &Wait, counts: bool) -> TxnRequest {
        let Wait { mine, blockers, revision, .. } = wait;
        let name = &mine.resource;
        let line = range(self.keys.line(name));
        let count = counts.then(|| read(RangeRequest { count_only: true, ..line.clone() }));
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
        TxnRequest { compare, success: count.into_iter().collect(), failure: vec![read(line)] }
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
            let found = ranges(&part.responses).next();
            if part.succeeded {
                if found.is_some_and(|counted| u64::try_from(counted.count) != Ok(wait.keys)) {
                    moved.insert(&wait.mine.resource);
                }
                return Ok(None);
            }
            let keys = &found.ok_or_else(|| broken("look"))?.kvs;
            let line = self.keys.read_line(&wait.mine.resource, keys);
            self.forget_resize(&wait.mine.resource, &line, keys);
            Ok(Some(Look { line, revision, keys: keys.len() as u64 }))
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
