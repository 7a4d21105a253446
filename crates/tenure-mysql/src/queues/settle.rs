//! How items end or come again: groups are locked, then items, and what is written follows from what was read.

use std::collections::{BTreeMap, HashMap};

use tenure_core::engine::queue::{ItemId, Settle, SettleAnswer, Settlement, cut_reason};
use tenure_core::model::claim::{ClaimId, Name};
use tenure_core::model::queue::step::WORN_OUT;
use tenure_sql::{
    Columns, Connection, Database, Dialect, Fault, QueueDatabase, QueueTables, Row, Settled, micros, signed,
};

use crate::dialect::{MySqlDialect, joined};
use crate::engine::MySql;
use crate::queues::text::{Rows, Script, bytes, literal};
use crate::queues::{CLOCK, Known, and, answer, claim_literal, first};

/// An item whose row is locked.
#[derive(Debug)]
struct Locked {
    id: i64,
    claim: Option<ClaimId>,
    attempts: i64,
    token: i64,
    rests_until: i64,
    /// Since when it can be handed out. `None`: it is behind another.
    ready_at: Option<i64>,
    is_delivered: bool,
    /// What comes behind it in its group.
    next: Option<i64>,
    next_due_at: Option<i64>,
}

/// What becomes of it.
enum Fate {
    Gone,
    Dead(String),
    /// It is ready from a moment on, after so many attempts.
    Again(i64, i64),
}

impl MySql {
    pub(super) async fn settle_these(&self, settlements: &[&Settle]) -> Result<Settled, Fault> {
        let known = self.known(settlements.iter().map(|one| one.claim)).await?;
        let is_plain = |one: &&Settle| {
            let group = known.get(&one.claim).map(|known| &known.group);
            matches!(group, None | Some(None)) && one.settlement == Settlement::Ack
        };
        let settled = match settlements.iter().all(is_plain) {
            true => self.acknowledge(settlements, &known).await?,
            false => self.settle_all_kinds(settlements, &known).await?,
        };
        let mut hints = self.hints.lock();
        settlements.iter().for_each(|one| drop(hints.remove(&one.claim)));
        Ok(settled)
    }

    /// Acknowledges items without groups: nothing follows from it, so it is one trip.
    async fn acknowledge(
        &self,
        settlements: &[&Settle],
        known: &HashMap<ClaimId, Known>,
    ) -> Result<Settled, Fault> {
        let mut sorted: Vec<(i64, ClaimId)> = settlements
            .iter()
            .filter_map(|one| {
                known
                    .get(&one.claim)
                    .filter(|known| known.queue == one.queue)
                    .map(|known| (known.id, one.claim))
            })
            .collect();
        sorted.sort_unstable();
        let mut living = HashMap::new();
        if !sorted.is_empty() {
            let mut rows = Rows::default();
            sorted.iter().for_each(|(id, claim)| rows.add([id.to_string(), claim_literal(*claim)]));
            let item = &self.queue_tables.item;
            let joined = joined(item, "id, claim", &rows.0);
            let mut script = Script::begin();
            script.add(&format!("SELECT t.id FROM {joined} FOR UPDATE"));
            script.add(&format!("SET @t = {CLOCK}"));
            let found =
                script.add(&format!("SELECT HEX(t.claim) FROM {joined} AND t.expires_at > @t FOR UPDATE"));
            script.add(&MySqlDialect::delete(item, "id, claim", &rows.0, "AND t.expires_at > @t"));
            script.add("COMMIT");
            for row in answer(&self.run(script).await?, found) {
                if let Some(claim) = Columns::of(row).maybe_claim()? {
                    living.insert(claim, ());
                }
            }
        }
        let answer = |one: &&Settle| match living.contains_key(&one.claim) {
            true => SettleAnswer::Settled,
            false => SettleAnswer::Lost,
        };
        Ok(Settled { answers: settlements.iter().map(answer).collect(), ready: Vec::new() })
    }

    async fn settle_all_kinds(
        &self,
        settlements: &[&Settle],
        known: &HashMap<ClaimId, Known>,
    ) -> Result<Settled, Fault> {
        let of = |one: &&Settle| known.get(&one.claim).filter(|known| known.queue == one.queue);
        let mut by_id: BTreeMap<i64, &Known> = BTreeMap::new();
        by_id.extend(settlements.iter().filter_map(of).map(|known| (known.id, known)));
        let mut connection = self.connection().await?;
        let (now, locked) = self.lock_items(&mut connection, &by_id).await?;
        let mut fates = Vec::new();
        let mut answers = Vec::new();
        for one in settlements {
            let item = of(one).and_then(|known| locked.get(&known.id));
            let item = item.filter(|item| item.claim == Some(one.claim) && item.is_delivered);
            let Some(item) = item else {
                answers.push(SettleAnswer::Lost);
                continue;
            };
            let (fate, answer) = fate(item, &one.settlement, now);
            answers.push(answer);
            fates.push((item, by_id[&item.id], fate));
        }
        let is_ready = |(item, known, fate): &&(&Locked, &Known, Fate)| match fate {
            Fate::Again(ready_at, _) => *ready_at <= now,
            _ => {
                known.group.is_some()
                    && item.next_due_at.is_some_and(|due_at| due_at.max(item.rests_until) <= now)
            }
        };
        let ready = fates.iter().filter(is_ready).map(|(_, known, _)| known.queue.clone()).collect();
        self.write(&mut connection, &fates, now).await?;
        connection.keep();
        Ok(Settled { answers, ready })
    }

    /// Ends items without a consumer, or makes those dead letters that are worn out, and returns how many.
    pub(super) async fn end_these(
        &self,
        queue: &Name,
        items: &[ItemId],
        worn: Option<u32>,
    ) -> Result<usize, Fault> {
        let ids: Vec<String> = items.iter().map(|item| signed(item.0).to_string()).collect();
        let mut script = Script::default();
        script.add(&format!(
            "SELECT id, HEX(grp) FROM {} FORCE INDEX (PRIMARY) WHERE id IN ({})",
            self.queue_tables.item,
            ids.join(",")
        ));
        let mut found = BTreeMap::new();
        for row in answer(&self.run(script).await?, 0) {
            let mut columns = Columns::of(row);
            let id = columns.number()?;
            let group = columns.maybe_bytes()?.map(|bytes| tenure_sql::read_name(&bytes)).transpose()?;
            found.insert(id, Known { id, queue: queue.clone(), group });
        }
        let by_id: BTreeMap<i64, &Known> = found.iter().map(|(id, known)| (*id, known)).collect();
        let mut connection = self.connection().await?;
        let (now, locked) = self.lock_items(&mut connection, &by_id).await?;
        let fates = locked.values().filter_map(|item| {
            let fate = match worn {
                None => item.claim.is_none().then_some(Fate::Gone),
                Some(attempts) => {
                    let is_ready = item.ready_at.is_some_and(|at| at <= now);
                    let is_worn = is_ready && item.attempts >= i64::from(attempts);
                    is_worn.then(|| Fate::Dead(WORN_OUT.to_owned()))
                }
            };
            Some((item, by_id[&item.id], fate?))
        });
        let fates: Vec<_> = fates.collect();
        self.write(&mut connection, &fates, now).await?;
        connection.keep();
        Ok(fates.len())
    }

    /// Begins a transaction that locks the groups of items and then the items, and reads what comes behind them.
    async fn lock_items(
        &self,
        connection: &mut <MySql as Database>::Connection,
        by_id: &BTreeMap<i64, &Known>,
    ) -> Result<(i64, BTreeMap<i64, Locked>), Fault> {
        let QueueTables { item, group, .. } = &self.queue_tables;
        let mut script = Script::begin();
        let sorted: BTreeMap<(&Name, &Name), ()> =
            by_id.values().filter_map(|known| Some(((&known.queue, known.group.as_ref()?), ()))).collect();
        if !sorted.is_empty() {
            let mut rows = Rows::default();
            sorted.keys().for_each(|(queue, group)| rows.add([literal(bytes(queue)), literal(bytes(group))]));
            script.add(&format!("SELECT t.first FROM {} FOR UPDATE", joined(group, "queue, grp", &rows.0)));
        }
        let mut rows = Rows::default();
        by_id.keys().for_each(|id| rows.add([id.to_string()]));
        let ids: Vec<String> = by_id.keys().map(i64::to_string).collect();
        let ids = ids.join(",");
        let found = match ids.is_empty() {
            true => None,
            false => {
                let joined = joined(item, "id", &rows.0);
                script.add(&format!("SELECT t.id FROM {joined} FOR UPDATE"));
                let next = |what: &str| {
                    format!(
                        "(SELECT n.{what} FROM {item} n FORCE INDEX (by_group) WHERE t.grp IS NOT NULL AND n.queue = t.queue \
                         AND n.grp = t.grp AND n.id NOT IN ({ids}) ORDER BY n.id LIMIT 1)"
                    )
                };
                // Nothing of it is locked by this, and all of it is by now.
                Some(script.add(&format!(
                    "SELECT t.id, HEX(t.claim), t.attempts, t.token, t.rests_until, t.ready_at, \
                     COALESCE(t.expires_at > {CLOCK}, 0), {}, {} FROM {joined}",
                    next("id"),
                    next("due_at")
                )))
            }
        };
        let time = script.add(&format!("SELECT {CLOCK}"));
        let answers = connection.run(script.text()).await?;
        let mut locked = BTreeMap::new();
        for row in found.map_or(&[][..], |found| answer(&answers, found)) {
            let item = read(row)?;
            locked.insert(item.id, item);
        }
        Ok((first(&answers, time)?.number()?, locked))
    }

    /// Writes what becomes of items, and commits.
    async fn write(
        &self,
        connection: &mut <MySql as Database>::Connection,
        fates: &[(&Locked, &Known, Fate)],
        now: i64,
    ) -> Result<(), Fault> {
        let QueueTables { item, group, dead, .. } = &self.queue_tables;
        let (mut kept, mut gone, mut up) = (Rows::default(), Rows::default(), Rows::default());
        let (mut resting, mut done) = (Rows::default(), Rows::default());
        let mut script = Script::default();
        let context = and(self.keeps_contexts(), ", context");
        for (locked, known, fate) in fates {
            let id = locked.id.to_string();
            match fate {
                Fate::Again(ready_at, attempts) => {
                    kept.add([id, ready_at.to_string(), attempts.to_string()]);
                    continue;
                }
                Fate::Dead(reason) => drop(script.add(&format!(
                    "INSERT INTO {dead} (queue, id, grp, payload, pushed_at, attempts, reason, died_at{context}) \
                     SELECT queue, id, grp, payload, pushed_at, attempts, {}, {now}{context} FROM {item} FORCE INDEX (PRIMARY) WHERE id = {id}",
                    literal(reason.as_bytes())
                ))),
                Fate::Gone => {}
            }
            gone.add([id]);
            let (Some(name), Some(_)) = (&known.group, locked.ready_at) else { continue };
            let (rests, token) = (locked.rests_until, locked.token.to_string());
            let key = [literal(bytes(&known.queue)), literal(bytes(name))];
            let [queue, name] = key;
            match (locked.next, locked.next_due_at) {
                (Some(next), Some(due_at)) => {
                    let ready_at = due_at.max(now).max(rests);
                    up.add([next.to_string(), ready_at.to_string(), token, rests.to_string()]);
                }
                _ if rests > now => resting.add([queue, name, token, rests.to_string()]),
                _ => done.add([queue, name]),
            }
        }
        if !kept.0.is_empty() {
            script.add(&format!(
                "UPDATE {} SET t.claim = NULL, t.client = NULL, t.ttl = NULL, t.label = NULL, t.expires_at = NULL, \
                 t.ready_at = k.k1, t.attempts = k.k2",
                joined(item, "id", &kept.0)
            ));
        }
        if !gone.0.is_empty() {
            script.add(&MySqlDialect::delete(item, "id", &gone.0, ""));
        }
        if !up.0.is_empty() {
            let joined = joined(item, "id", &up.0);
            script
                .add(&format!("UPDATE {joined} SET t.ready_at = k.k1, t.token = k.k2, t.rests_until = k.k3"));
        }
        if !resting.0.is_empty() {
            let joined = joined(group, "queue, grp", &resting.0);
            script.add(&format!("UPDATE {joined} SET t.first = NULL, t.token = k.k2, t.rests_until = k.k3"));
        }
        if !done.0.is_empty() {
            script.add(&MySqlDialect::delete(group, "queue, grp", &done.0, ""));
        }
        script.add("COMMIT");
        connection.run(script.text()).await.map(drop)
    }
}

fn fate(item: &Locked, settlement: &Settlement, now: i64) -> (Fate, SettleAnswer) {
    let settled = SettleAnswer::Settled;
    match settlement {
        Settlement::Ack => (Fate::Gone, settled),
        Settlement::Fail { reason } => (Fate::Dead(cut_reason(reason).to_owned()), settled),
        Settlement::Retry { attempts_max, reason, .. }
            if *attempts_max != 0 && item.attempts >= i64::from(*attempts_max) =>
        {
            (Fate::Dead(cut_reason(reason).to_owned()), SettleAnswer::Buried)
        }
        Settlement::Retry { after, .. } => {
            let ready_at = now.saturating_add(micros(*after)).max(item.rests_until);
            (Fate::Again(ready_at, item.attempts), settled)
        }
        Settlement::Return => (Fate::Again(now.max(item.rests_until), item.attempts - 1), settled),
    }
}

fn read(row: &Row) -> Result<Locked, Fault> {
    let mut columns = Columns::of(row);
    Ok(Locked {
        id: columns.number()?,
        claim: columns.maybe_claim()?,
        attempts: columns.number()?,
        token: columns.number()?,
        rests_until: columns.number()?,
        ready_at: columns.maybe()?,
        is_delivered: columns.number()? != 0,
        next: columns.maybe()?,
        next_due_at: columns.maybe()?,
    })
}
