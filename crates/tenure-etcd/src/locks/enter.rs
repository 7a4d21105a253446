//! Entering lines: a transaction for each batch.

use futures_util::future::join;
use tenure_core::model::claim::{Kind, Name};
use tenure_core::model::line::{Line, Place};
use tenure_core::model::token::Token;
use tenure_core::{Result, mutant};
use tenure_ordered::{Entered, Entrance, Look, Mine, Rule};

use crate::client::endpoints::deadline;
use crate::client::etcd_leases::lease_of;
use crate::client::proto::{Compare, Operation, RangeRequest, TxnRequest, TxnResponse};
use crate::keys::{Layout, get, range};
use crate::locks::alone::Way;
use crate::locks::look::LINE_LONG;
use crate::locks::store::{
    BATCH_MAX, Etcd, TRIES, delete, is_written, none_since, parts, put, ranges, read, revision_of,
};

/// An entry as it is when it has just been made.
fn new_entry(entrance: &Entrance<'_>, order: u64) -> Mine {
    Mine {
        resource: entrance.claim.resource.clone(),
        claim: entrance.claim.id,
        order,
        token: Token::new(order),
        session_id: entrance.session_id,
        slot: None,
        adoptions: 0,
    }
}

impl Etcd {
    /// What an entrance does. `seen`: nothing may have come since that revision; none: whatever there is.
    fn entrance(&self, entrance: &Entrance<'_>, way: Way, seen: Option<i64>) -> TxnRequest {
        let claim = entrance.claim;
        let place = self.keys.place(&claim.resource, claim.id);
        let is_done = Compare::is_absent(self.keys.done(claim.id));
        let lease = lease_of(entrance.session_id);
        let enter = put(place.clone(), self.entry(claim.id, &claim.terms).encode().into_bytes(), lease);
        if let Way::ByMark(mark) = way {
            let is_alone = is_written(self.keys.alone(&claim.resource), mark);
            let plainly = Operation::Txn(self.entrance(entrance, Way::Plain, seen)).into();
            return TxnRequest {
                compare: vec![is_alone, is_done],
                success: vec![enter],
                failure: vec![plainly],
            };
        }
        let mut compare = vec![Compare::is_absent(place), is_done];
        compare.extend(seen.map(|seen| none_since(self.keys.line(&claim.resource), seen)));
        let line = range(self.keys.line(&claim.resource));
        // 0 for no limit: a value counts with the line beside it.
        let limit =
            if claim.terms.unless_fresh || self.keys.layout() == Layout::Etcdctl { 0 } else { LINE_LONG };
        let start = RangeRequest { limit, ..line.clone() };
        let mut success = vec![enter, read(start)];
        let mut failure = vec![read(line), read(get(self.keys.done(claim.id)))];
        if claim.terms.unless_fresh {
            let value = read(range(self.keys.value(&claim.resource)));
            success.insert(2, value.clone());
            failure.insert(1, value);
        }
        match (self.keys.layout(), way) {
            (Layout::Etcdctl, _) => {}
            (Layout::Tenure, Way::Marking) => {
                let client = self.client.to_string().into_bytes();
                success.push(put(self.keys.alone(&claim.resource), client, lease));
            }
            // Whoever has left a mark is not alone any more.
            (Layout::Tenure, _) if mutant!("etcd-entrance-keeps-mark") => {}
            (Layout::Tenure, _) => success.push(delete(self.keys.alone(&claim.resource))),
        }
        TxnRequest { compare, success, failure }
    }

    /// Reads what came of an entrance. `None`: it may be let in at a second try, behind what there is now.
    fn entered(
        &self,
        entrance: &Entrance<'_>,
        way: Way,
        part: &TxnResponse,
        revision: i64,
    ) -> Option<Entered> {
        if !matches!(way, Way::ByMark(_)) {
            return self.entered_plainly(entrance, way, part, revision);
        }
        if !part.succeeded {
            return parts(part)
                .next()
                .flatten()
                .and_then(|part| self.entered_plainly(entrance, Way::Plain, part, revision));
        }
        // It was alone: the line is its entry.
        let claim = entrance.claim;
        let order = u64::try_from(revision).unwrap_or_default();
        let mut entry = self.entry(claim.id, &claim.terms);
        if let Some(about) = &mut entry.about {
            about.token = Token::new(order);
        }
        let line = Line::new(vec![Place { order, entry }], Vec::new(), None, Vec::new());
        self.alone.entered(claim, way, true, revision);
        let mine = new_entry(entrance, order);
        Some(Entered::In(mine, Look { line, revision: order, keys: 1 }))
    }

    /// Reads what came of an entrance that has read the line.
    fn entered_plainly(
        &self,
        entrance: &Entrance<'_>,
        way: Way,
        part: &TxnResponse,
        revision: i64,
    ) -> Option<Entered> {
        let claim = entrance.claim;
        let mut found = ranges(&part.responses);
        let found_line = found.next();
        let keys = found_line.map(|range| &range.kvs[..]).unwrap_or_default();
        let count = found_line.map_or(0, |range| u64::try_from(range.count).unwrap_or_default());
        if count > keys.len() as u64 {
            // It has just entered a long line, of which `read_long_lines` reads what matters.
            let order = u64::try_from(revision).unwrap_or_default();
            let look = Look { line: Line::default(), revision: order, keys: count };
            return Some(Entered::In(new_entry(entrance, order), look));
        }
        let mut line = self.keys.read_line(&claim.resource, keys);
        if claim.terms.unless_fresh {
            let value = found.next().map(|range| &range.kvs[..]).unwrap_or_default();
            line.value = self.keys.read_value(&claim.resource, value);
        }
        let is_done = !part.succeeded && found.next().is_some_and(|done| !done.kvs.is_empty());
        if is_done {
            return Some(Entered::Finished);
        }
        self.forget_resize(&claim.resource, &line, keys);
        let order = line.place(claim.id).map(|place| place.order);
        let own_lease = lease_of(entrance.session_id);
        let place = self.keys.place(&claim.resource, claim.id);
        if claim.may_be_known && keys.iter().any(|key| key.key == place && key.lease != own_lease) {
            return Some(Entered::Elsewhere);
        }
        let would_hold = line.would_hold(&claim.terms) == Ok(true);
        let is_alone = part.succeeded && keys.len() == 1;
        let keys_count = keys.len() as u64;
        let look = Look { line, revision: u64::try_from(revision).unwrap_or_default(), keys: keys_count };
        let Some(order) = order else { return (!would_hold).then_some(Entered::Out(look)) };
        self.alone.entered(claim, way, is_alone, revision);
        let taken = look.line.slot_of(claim.id);
        let mine = Mine {
            token: taken.map_or(Token::new(order), |slot| slot.token),
            slot: taken.map(|slot| slot.number),
            ..new_entry(entrance, order)
        };
        Some(Entered::In(mine, look))
    }

    pub(crate) async fn enter_batch(&self, entrances: &[Entrance<'_>]) -> Vec<Result<Entered>> {
        let mut seen: Vec<Option<i64>> =
            entrances.iter().map(|entrance| (entrance.rule == Rule::IfItHolds).then_some(0)).collect();
        let way = |entrance: &Entrance<'_>| match self.keys.layout() {
            // Others who enter know nothing of marks.
            Layout::Etcdctl => Way::Plain,
            Layout::Tenure => self.alone.begin(entrance.claim, entrance.is_repeated),
        };
        let mut ways: Vec<Way> = entrances.iter().map(way).collect();
        let mut entered: Vec<Option<Entered>> = entrances.iter().map(|_| None).collect();
        for _ in 0..TRIES {
            let left: Vec<usize> = (0..entrances.len()).filter(|index| entered[*index].is_none()).collect();
            if left.is_empty() {
                break;
            }
            let ask = |index: &usize| self.entrance(&entrances[*index], ways[*index], seen[*index]);
            let asked = left.iter().map(ask).collect();
            let answer = match self.together(asked).await {
                Ok(answer) => answer,
                Err(fault) if fault.is_no_lease() => return self.dead(entrances).await,
                // Some may have entered by an earlier try.
                Err(fault) => return entered.into_iter().map(|one| fault.unless_in(one)).collect(),
            };
            let revision = revision_of(&answer);
            for (index, part) in left.into_iter().zip(parts(&answer)) {
                let read = |part| self.entered(&entrances[index], ways[index], part, revision);
                entered[index] = part.and_then(read);
                (seen[index], ways[index]) = (seen[index].map(|_| revision), Way::Plain);
            }
        }
        self.delete_marks(self.alone.forget());
        // Others came each time: as busy as can be.
        let busy = || Ok(Entered::Out(Look { line: Line::default(), revision: 0, keys: 0 }));
        let mut entered: Vec<Result<Entered>> =
            entered.into_iter().map(|entered| entered.map_or_else(busy, Ok)).collect();
        self.read_long_lines(entrances, &mut entered).await;
        entered
    }

    /// Reads of the long lines that were entered what says how the claim stands: of a mutex the ends.
    async fn read_long_lines(&self, entrances: &[Entrance<'_>], entered: &mut [Result<Entered>]) {
        let is_unread = |look: &Look| look.line.is_empty();
        let unread =
            entrances.iter().zip(entered.iter()).enumerate().filter_map(|(at, (entrance, entered))| {
                match entered {
                    Ok(Entered::In(mine, look)) if is_unread(look) => {
                        Some((at, entrance.claim.terms.kind, mine.clone(), look.keys))
                    }
                    _ => None,
                }
            });
        let (mutexes, others): (Vec<_>, Vec<_>) =
            unread.partition(|(_, kind, ..)| *kind == Kind::Mutex && self.keys.layout() == Layout::Tenure);
        if mutexes.is_empty() && others.is_empty() {
            return;
        }
        let ends: Vec<(&Mine, u64)> = mutexes.iter().map(|(.., mine, keys)| (mine, keys - 1)).collect();
        let names: Vec<&Name> = others.iter().map(|(.., mine, _)| &mine.resource).collect();
        let read_ends =
            async { if ends.is_empty() { Vec::new() } else { self.read_ends_batch(&ends).await } };
        let read_lines =
            async { if names.is_empty() { Vec::new() } else { self.read_line_batch(&names, false).await } };
        let (ends, lines) = join(read_ends, read_lines).await;
        let looks = mutexes.iter().zip(ends).chain(others.iter().zip(lines));
        for ((at, _, mine, _), look) in looks {
            entered[*at] = look.map(|look| Entered::In(mine.clone(), look));
        }
    }

    /// One of the leases is not there any more, so nothing was carried out. Finds out which.
    async fn dead(&self, entrances: &[Entrance<'_>]) -> Vec<Result<Entered>> {
        for entrance in entrances {
            self.etcd_leases.check_ended(entrance.session_id).await;
        }
        entrances.iter().map(|_| Ok(Entered::Dead)).collect()
    }

    /// Deletes marks that are of no use to this client any more.
    fn delete_marks(&self, marks: Vec<(Name, i64)>) {
        for marks in marks.chunks(BATCH_MAX) {
            let delete_mark = |(name, mark): &(Name, i64)| {
                let key = self.keys.alone(name);
                let compare = vec![is_written(key.clone(), *mark)];
                Operation::Txn(TxnRequest { compare, success: vec![delete(key)], failure: Vec::new() }).into()
            };
            let success = marks.iter().map(delete_mark).collect();
            let endpoints = self.endpoints.clone();
            tokio::spawn(async move {
                let request = TxnRequest { success, ..TxnRequest::default() };
                if let Err(fault) = endpoints.call(request, deadline()).await {
                    tracing::debug!(%fault, "marks stay behind until their lease ends");
                }
            });
        }
    }
}
