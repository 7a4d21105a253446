//! Leaving lines: a transaction for each batch.

use futures_util::future::join_all;
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, Result};
use tenure_ordered::{Leaving, Left, Mine, SessionId};

use crate::client::etcd_leases::lease_of;
use crate::client::proto::{Compare, CompareResult, RangeRequest, Target, TxnRequest, TxnResponse};
use crate::error::Fault;
use crate::keys::{get, range, write_rest};
use crate::locks::store::{
    Etcd, broken, delete, is_untouched, is_written, parts, put, ranges, read, version,
};

/// An entry that is to leave, as it was seen.
#[derive(Clone, Copy)]
struct Seen {
    version: i64,
    is_broken: bool,
}

/// The entry ends with the lease under which this client has it: no other client has taken it over.
fn is_own(key: Vec<u8>, mine: &Mine) -> Compare {
    Compare::of(key, CompareResult::Equal, Target::Lease(lease_of(mine.session_id)))
}

impl Etcd {
    /// What a leaving does. `done`: the lease of ids that are finished.
    async fn leaving(&self, leaving: &Leaving, seen: Option<Seen>, done: i64) -> Result<TxnRequest, Fault> {
        let Leaving { resource, claim, .. } = leaving;
        let place = self.keys.place(resource, *claim);
        let mut success = vec![delete(place.clone())];
        if leaving.has_value {
            success.push(delete(self.keys.held_value(resource, *claim)));
        }
        let slot = leaving.mine.as_ref().and_then(|mine| mine.slot);
        success.extend(slot.map(|slot| delete(self.keys.slot(resource, slot))));
        match (&leaving.rest, &leaving.mine) {
            (Some(rest), Some(mine)) => {
                let lease = self.etcd_leases.once(rest.period).await?;
                let mut entry = self.entry(*claim, &rest.terms);
                if let Some(about) = &mut entry.about {
                    about.lasts = rest.period;
                }
                let value = write_rest(mine.order, mine.token, slot, &entry);
                success.push(put(self.keys.rest(resource, *claim), value, lease));
            }
            _ if leaving.has_rest => success.push(delete(self.keys.rest(resource, *claim))),
            _ => {}
        }
        let mut failure = vec![read(RangeRequest { keys_only: true, ..get(place.clone()) })];
        if leaving.may_come_later {
            let finished = put(self.keys.done(*claim), Vec::new(), done);
            success.push(finished.clone());
            failure.push(finished);
        }
        if let Some(mine) = &leaving.mine
            && seen.is_none()
            && !leaving.is_over
            && version(mine) == 1
        {
            // As it was made: no operator has marked it, and no other client has it.
            let order = i64::try_from(mine.order).unwrap_or(i64::MAX);
            return Ok(TxnRequest { compare: vec![is_written(place, order)], success, failure });
        }
        let compare = match seen {
            Some(seen) if leaving.is_over || !seen.is_broken => {
                Compare::of(place.clone(), CompareResult::Equal, Target::Version(seen.version))
            }
            None if leaving.is_over => Compare::of(place.clone(), CompareResult::NotEqual, Target::Create(0)),
            _ => is_untouched(place.clone(), leaving.mine.as_ref()),
        };
        // A client that has let go of it must not end what another has taken over.
        let own = leaving.mine.as_ref().filter(|mine| mine.session_id != SessionId(0));
        let compare = std::iter::once(compare).chain(own.map(|mine| is_own(place, mine))).collect();
        Ok(TxnRequest { compare, success, failure })
    }

    /// Finds the slots of claims that may have taken one, and how their entries were then.
    async fn with_slots(&self, leaving: &[Leaving]) -> Result<Vec<(Leaving, Option<Seen>)>, Fault> {
        let mut known = Vec::new();
        for leaving in leaving {
            let mut leaving = leaving.clone();
            let mut seen = None;
            if leaving.may_have_slot {
                let answer = self.call(range(self.keys.line(&leaving.resource))).await?;
                let line = self.keys.read_line(&leaving.resource, &answer.kvs);
                let key = self.keys.place(&leaving.resource, leaving.claim);
                let entry = answer.kvs.iter().find(|kv| kv.key == key);
                seen = entry.zip(line.place(leaving.claim)).map(|(entry, place)| Seen {
                    version: entry.version,
                    is_broken: place.entry.about.as_ref().is_some_and(|about| about.is_broken),
                });
                let taken = line.slot_of(leaving.claim);
                leaving.mine = line.place(leaving.claim).map(|place| Mine {
                    resource: leaving.resource.clone(),
                    claim: leaving.claim,
                    order: place.order,
                    token: taken.map_or(Token::new(place.order), |slot| slot.token),
                    session_id: SessionId(0),
                    slot: taken.map(|slot| slot.number),

                    adoptions: 0,
                });
            }
            known.push((leaving, seen));
        }
        Ok(known)
    }

    pub(crate) async fn leave_batch(&self, leaving: &[Leaving]) -> Vec<Result<Left>> {
        let all_failed = |fault: Fault| leaving.iter().map(|_| Err(fault.to_error("release"))).collect();
        let known = match self.with_slots(leaving).await {
            Ok(known) => known,
            Err(fault) => return all_failed(fault),
        };
        match self.leave_known(&known).await {
            Ok(left) => left,
            Err(fault) if fault.is_full() => self.leave_without_notes(&known, &fault).await,
            Err(fault) => all_failed(fault),
        }
    }

    /// Nothing can be written: what need only be deleted goes. What needs a note besides goes as well, and is said to have failed, so
    /// that it is repeated until there is room for the note. What is to rest stays.
    async fn leave_without_notes(
        &self,
        known: &[(Leaving, Option<Seen>)],
        fault: &Fault,
    ) -> Vec<Result<Left>> {
        let has_no_rest = known.iter().filter(|(leaving, _)| leaving.rest.is_none());
        let bare =
            |(leaving, seen): &(Leaving, _)| (Leaving { may_come_later: false, ..leaving.clone() }, *seen);
        let bare: Vec<(Leaving, Option<Seen>)> = has_no_rest.map(bare).collect();
        let mut left = match self.leave_known(&bare).await {
            Ok(left) => left.into_iter(),
            Err(fault) => return known.iter().map(|_| Err(fault.to_error("release"))).collect(),
        };
        let answer = |(leaving, _): &(Leaving, _)| {
            let left = if leaving.rest.is_none() { left.next() } else { None };
            left.filter(|_| !leaving.may_come_later).unwrap_or_else(|| Err(fault.to_error("release")))
        };
        known.iter().map(answer).collect()
    }

    async fn leave_known(&self, known: &[(Leaving, Option<Seen>)]) -> Result<Vec<Result<Left>>, Fault> {
        if known.is_empty() {
            return Ok(Vec::new());
        }
        let has_notes = known.iter().any(|(leaving, _)| leaving.may_come_later);
        let done = if has_notes { self.etcd_leases.done().await? } else { 0 };
        let asked = join_all(known.iter().map(|(leaving, seen)| self.leaving(leaving, *seen, done))).await;
        let answer = self.together(asked.into_iter().collect::<Result<_, Fault>>()?).await?;
        let left = |((leaving, seen), part): (&(Leaving, Option<Seen>), Option<&TxnResponse>)| {
            let was_broken = seen.is_some_and(|seen| seen.is_broken);
            let part = part.ok_or_else(|| broken("release"))?;
            let is_there = ranges(&part.responses).any(|range| !range.kvs.is_empty());
            let is_clean = part.succeeded && leaving.rest.is_none();
            self.alone.left(&leaving.resource, leaving.claim, is_clean);
            match part.succeeded {
                true => Ok(Left::Gone),
                // It took a slot just now: once more.
                false if is_there && leaving.may_have_slot && !was_broken => {
                    let again = "it took a slot while it was to leave";
                    Err(Error::new(ErrorKind::Unavailable, "release", again))
                }
                false if is_there => Ok(Left::IsBroken),
                false => Ok(Left::WasNot),
            }
        };
        Ok(known.iter().zip(parts(&answer)).map(left).collect())
    }
}
