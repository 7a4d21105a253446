//! Taking over what another client has entered.

use std::sync::Arc;

use tenure_core::model::claim::{ClaimId, HoldLimits, Name, Terms};
use tenure_core::model::line::{Entry, Standing};
use tenure_core::model::token::Token;
use tenure_ordered::{Adopted, Mine};

use crate::client::etcd_leases::lease_of;
use crate::client::proto::{Compare, CompareResult, Operation, PutRequest, RequestOp, Target, TxnRequest};
use crate::error::Fault;
use crate::keys::{Layout, delay_of, get, range};
use crate::locks::store::{Etcd, is_there, ranges, read};

impl Etcd {
    /// Puts an entry under a lease of this client, with its slot and what was published under it. `None`: it was written in between.
    pub(super) async fn adopt_once(
        &self,
        name: &Name,
        claim: ClaimId,
        moving: impl Fn(&Mine, &Arc<Terms>, bool) + Send + Sync,
    ) -> Result<Option<Adopted>, Fault> {
        let (key, held) = (self.keys.place(name, claim), self.keys.held_value(name, claim));
        let success = vec![read(range(self.keys.line(name))), read(get(held.clone()))];
        let answer = self.call(TxnRequest { success, ..TxnRequest::default() }).await?;
        let mut found = ranges(&answer.responses);
        let keys = found.next().map(|range| &range.kvs[..]).unwrap_or_default();
        let has_value = found.next().is_some_and(|value| !value.kvs.is_empty());
        let line = self.keys.read_line(name, keys);
        let entry = keys.iter().find(|kv| kv.key == key);
        let Some((entry, place)) = entry.zip(line.place(claim)) else { return Ok(Some(Adopted::Gone)) };
        let about = place.entry.about.as_ref().filter(|about| !about.is_broken);
        let Some(about) = about else { return Ok(Some(Adopted::Gone)) };
        if self.keys.layout() == Layout::Etcdctl {
            return Ok(Some(Adopted::Elsewhere));
        }
        let rest = keys.iter().find(|kv| kv.key == self.keys.rest(name, claim));
        let lock_delay = rest.and_then(|rest| delay_of(&rest.value)).unwrap_or_default();
        let limits = HoldLimits { lock_delay, ..HoldLimits::default() };
        let Entry { kind, capacity, weight, .. } = place.entry;
        let (ttl, label) = (about.lasts, about.label.clone());
        let terms = Terms { kind, capacity, weight, ttl, limits, label, unless_fresh: false };
        let session_id = self.etcd_leases.of(ttl).await?;
        let move_here = |key| {
            let lease = lease_of(session_id);
            Operation::Put(PutRequest { key, lease, ignore_value: true, ..PutRequest::default() }).into()
        };
        let taken = line.slot_of(claim);
        let lease = Compare::of(key.clone(), CompareResult::Equal, Target::Lease(entry.lease));
        let version = Compare::of(key.clone(), CompareResult::Equal, Target::Version(entry.version));
        let mut compare = vec![is_there(key.clone(), place.order), lease, version];
        let mut success: Vec<RequestOp> = vec![move_here(key)];
        if let Some(slot) = &taken {
            let key = self.keys.slot(name, slot.number);
            compare.push(is_there(key.clone(), slot.token.get()));
            success.push(move_here(key));
        }
        if has_value {
            compare.push(Compare::of(held.clone(), CompareResult::NotEqual, Target::Create(0)));
            success.push(move_here(held));
        }
        let slot = taken.as_ref().map(|slot| slot.number);
        let adoptions = u32::try_from(entry.version - i64::from(slot.is_some())).unwrap_or(u32::MAX);
        let mine = Mine {
            resource: name.clone(),
            claim,
            order: place.order,
            token: taken.map_or(Token::new(place.order), |slot| slot.token),
            session_id,
            slot,
            adoptions,
        };
        let terms = Arc::new(terms);
        moving(&mine, &terms, matches!(line.standing(claim), Some(Standing::Holds)));
        let answer = self.call(TxnRequest { compare, success, failure: Vec::new() }).await?;
        Ok(answer.succeeded.then_some(Adopted::Mine(mine, terms)))
    }
}
