//! What is sent: the requests of a lane, as many as a call takes.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::{Ledger, Phase, Sent};
use crate::client::batch::Lane;
use crate::clock::Instant;
use crate::engine::{ReleaseRequest, RenewRequest, Shard};
use crate::model::claim::{Claim, Name};
use crate::model::step::Release;

impl Ledger {
    /// Takes up to `most` claims that are to be sent to a shard, and of one resource up to `most_of_one`.
    pub(crate) fn take_claims(
        &mut self,
        now: Instant,
        shard: Shard,
        most: usize,
        most_of_one: usize,
    ) -> (Vec<Sent>, Vec<Claim>) {
        let (mut sent, mut claims) = (Vec::new(), Vec::new());
        let (mut taken, mut later) = (HashMap::new(), VecDeque::new());
        let is_side_by_side = self.identity.following.is_side_by_side();
        // A long line of claims that a call is under way for is not looked through whenever anything happens.
        let mut passed_over = 0;
        while claims.len() < most
            && passed_over < most
            && let Some(key) = self.next(Lane::Claims, shard)
        {
            if self.entry(key).is_none_or(|entry| entry.phase != Phase::Claiming) {
                continue;
            }
            let resource = self.entries[key.index as usize].lease.resource();
            if is_side_by_side && self.claiming.contains(resource) {
                passed_over += 1;
                later.push_back(key);
                continue;
            }
            if most_of_one < most {
                let resource = resource.clone();
                let count = taken.entry(resource).or_insert(0_usize);
                *count += 1;
                if *count > most_of_one {
                    later.push_back(key);
                    continue;
                }
            }
            let claim = self.claim_to_send(key.index, now);
            sent.push(Sent { key, claim: claim.id, at: now });
            claims.push(claim);
        }
        // They keep their places before those that came after them.
        self.put_back(Lane::Claims, shard, later);
        if is_side_by_side && !mutant!("claims-overtake") {
            self.claiming.extend(claims.iter().map(|claim| claim.resource.clone()));
        }
        (sent, claims)
    }

    /// Claims of these resources are not under way any more.
    pub(crate) fn end_claiming(&mut self, resources: &[Name]) {
        for resource in resources {
            self.claiming.remove(resource);
        }
    }

    pub(super) fn claim_to_send(&mut self, index: u32, now: Instant) -> Claim {
        let client = self.identity.client;
        let entry = &mut self.entries[index as usize];
        let pending = entry.pending.as_mut().expect("an entry that asks is pending");
        entry.has_stray_copy |= pending.first_sent.is_some();
        pending.first_sent.get_or_insert(now);
        pending.is_woken_since = false;
        Claim {
            resource: pending.request.resource.clone(),
            id: entry.lease.claim(),
            client,
            terms: pending.request.terms.clone(),
            wait: pending.request.wait != Some(Duration::ZERO),
            floor: pending.request.floor,
            floor_forced: false,
            may_be_known: entry.is_given,
        }
    }

    /// Takes up to `most` renewals of leases, of deliveries or of waiters that are to be sent to a shard.
    pub(crate) fn take_renewals(
        &mut self,
        now: Instant,
        lane: Lane,
        shard: Shard,
        most: usize,
    ) -> (Vec<Sent>, Vec<RenewRequest>) {
        let (mut sent, mut requests) = (Vec::new(), Vec::new());
        while requests.len() < most
            && let Some(key) = self.next(lane, shard)
        {
            let Some(entry) = self.entry(key) else { continue };
            match entry.lane() {
                Some(other) if other != lane => {
                    // It was granted while it stood in line.
                    self.enqueue(other, key);
                    continue;
                }
                Some(_) => {}
                None => continue,
            }
            if let Some(pending) = &mut entry.pending {
                pending.is_woken_since = false;
            }
            let (resource, claim) = (entry.lease.resource().clone(), entry.lease.claim());
            requests.push(RenewRequest { resource, claim, is_waiter: entry.phase == Phase::Waiting });
            sent.push(Sent { key, claim, at: now });
        }
        (sent, requests)
    }

    /// Takes up to `most` releases that are to be sent to a shard.
    pub(crate) fn take_releases(
        &mut self,
        now: Instant,
        shard: Shard,
        most: usize,
    ) -> (Vec<Sent>, Vec<ReleaseRequest>) {
        let (mut sent, mut requests) = (Vec::new(), Vec::new());
        while requests.len() < most
            && let Some(key) = self.next(Lane::Releases, shard)
        {
            if self.entry(key).is_some_and(|entry| entry.phase == Phase::Releasing) {
                let request = self.release_to_send(key.index);
                sent.push(Sent { key, claim: request.release.claim, at: now });
                requests.push(request);
            }
        }
        (sent, requests)
    }

    pub(super) fn release_to_send(&self, index: u32) -> ReleaseRequest {
        let entry = &self.entries[index as usize];
        let release = Release {
            claim: entry.lease.claim(),
            // An id that was given is used once, wherever it is asked for.
            maybe_in_flight: entry.is_given || entry.has_stray_copy && !mutant!("stray-copies-forgotten"),
            is_unused: entry.pending.as_ref().is_some_and(|pending| pending.is_unused),
        };
        ReleaseRequest { resource: entry.lease.resource().clone(), release }
    }
}
