//! The queues' verbs as short transactions: no UPDATE here returns rows, so what is changed is read and locked first.
//!
//! A push is one round trip (two with dedup ids), a take two, an acknowledgement of items without groups one, and one of groups
//! two. What is locked is named by primary keys, in the order of [`tenure_sql`]'s queues: groups, then items. Only a take
//! goes by another index, and it passes over whatever is locked.

mod settle;
pub(crate) mod text;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::engine::queue::{
    DEDUP_MEMORY, Dispatched, Interval, ItemContext, ItemId, Push, Pushed, QueueCapability, Settle, Take,
    Which,
};
use tenure_core::model::claim::{ClaimId, Name};
use tenure_core::model::token::Token;
use tenure_sql::{
    Calls, Columns, Connection, Database, Dialect, Entered, Fault, Found, Purpose, QueueDatabase,
    QueueTables, Row, Settled, claim_bytes, client_number, micros, pause, read_name, signed,
};

pub(crate) use text::{contexts, schema};

use crate::dialect::{MySqlDialect, joined};
use crate::engine::MySql;
use crate::migrate;
use crate::queues::text::{Rows, Script, bytes, literal};

const CLOCK: &str = MySqlDialect::CLOCK;
/// How many claims are known at most by their items. What is not known is asked for.
const HINTS_MAX: usize = 100_000;
/// After how long a take looks again, each time that nothing could be locked though something is ready: one that takes all of the queue that is
/// before this one in the index locks this one's first row until it commits, to see that its own has ended, and what is locked is passed over.
/// Where another consumer has it, a take is that much later to say that there is nothing.
const LOOKS_AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(4)];

/// Where an item is that this client has.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    id: i64,
    queue: Name,
    group: Option<Name>,
}

/// The items of this client's claims: a hint, and no truth.
#[derive(Debug, Default)]
pub(crate) struct Hints(Mutex<HashMap<ClaimId, Known>>);

impl Hints {
    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Known>> {
        // A panic elsewhere cannot leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, claim: ClaimId, known: Known) {
        let mut hints = self.lock();
        if hints.len() >= HINTS_MAX {
            hints.clear();
        }
        hints.insert(claim, known);
    }
}

fn answer(answers: &[Vec<Row>], at: usize) -> &[Row] {
    answers.get(at).map_or(&[], Vec::as_slice)
}

fn first(answers: &[Vec<Row>], at: usize) -> Result<Columns<'_>, Fault> {
    let row = answer(answers, at).first();
    row.map(Columns::of).ok_or_else(|| Fault::internal("a question was not answered"))
}

/// One more column in a list.
pub(super) fn and(is_there: bool, more: &'static str) -> &'static str {
    if is_there { more } else { "" }
}

fn claim_literal(claim: ClaimId) -> String {
    literal(&claim_bytes(claim))
}

impl MySql {
    /// Runs one text that is a whole transaction.
    async fn run(&self, script: Script) -> Result<Vec<Vec<Row>>, Fault> {
        let mut connection = self.connection().await?;
        let answers = connection.run(script.text()).await?;
        connection.keep();
        Ok(answers)
    }

    /// Says which items claims are of: those of the table, where this client does not know.
    async fn known(&self, claims: impl Iterator<Item = ClaimId>) -> Result<HashMap<ClaimId, Known>, Fault> {
        let (mut known, mut unknown) = (HashMap::new(), String::new());
        {
            let hints = self.hints.lock();
            for claim in claims {
                match hints.get(&claim) {
                    Some(hint) => drop(known.insert(claim, hint.clone())),
                    None => {
                        unknown.push_str(if unknown.is_empty() { "" } else { "," });
                        unknown.push_str(&claim_literal(claim));
                    }
                }
            }
        }
        if unknown.is_empty() {
            return Ok(known);
        }
        let mut script = Script::default();
        script.add(&format!(
            "SELECT HEX(claim), id, HEX(queue), HEX(grp) FROM {} FORCE INDEX (by_claim) WHERE claim IN ({unknown})",
            self.queue_tables.item
        ));
        for row in answer(&self.run(script).await?, 0) {
            let mut columns = Columns::of(row);
            let Some(claim) = columns.maybe_claim()? else { continue };
            let (id, queue) = (columns.number()?, read_name(&columns.bytes()?)?);
            let group = columns.maybe_bytes()?.map(|bytes| read_name(&bytes)).transpose()?;
            known.insert(claim, Known { id, queue, group });
        }
        Ok(known)
    }

    /// Asks which dedup ids are known, and locks them. Returns the items that were pushed under those that are.
    async fn dedups(
        &self,
        connection: &mut <MySql as Database>::Connection,
        pushes: &[&Push],
    ) -> Result<HashMap<(Name, Name), i64>, Fault> {
        let QueueTables { dedup, item, .. } = &self.queue_tables;
        let ids = pushes.iter().filter_map(|push| Some((&push.queue, push.dedup.as_ref()?)));
        let sorted: BTreeMap<_, ()> = ids.map(|id| (id, ())).collect();
        let mut rows = Rows::default();
        for (queue, id) in sorted.keys() {
            rows.add([literal(bytes(queue)), literal(bytes(id)), "0".to_owned(), "0".to_owned()]);
        }
        let mut keys = Rows::default();
        sorted.keys().for_each(|(queue, id)| keys.add([literal(bytes(queue)), literal(bytes(id))]));
        let mut script = Script::begin();
        script.add(&format!(
            "INSERT INTO {dedup} (queue, dedup, item, until) VALUES {} ON DUPLICATE KEY UPDATE queue = queue",
            rows.0
        ));
        let found = script.add(&format!(
            "SELECT HEX(t.queue), HEX(t.dedup), t.item FROM {} \
             WHERE t.until > {CLOCK} OR EXISTS (SELECT 1 FROM {item} i WHERE i.id = t.item)",
            joined(dedup, "queue, dedup", &keys.0)
        ));
        let answers = connection.run(script.text()).await?;
        let read = |row: &Row| {
            let mut columns = Columns::of(row);
            let (queue, id) = (read_name(&columns.bytes()?)?, read_name(&columns.bytes()?)?);
            Ok(((queue, id), columns.number()?))
        };
        answer(&answers, found).iter().map(read).collect()
    }

    /// Adds what puts items in line. Their numbers are `@f`, `@f + @s` and so on.
    fn add_items(&self, script: &mut Script, pushes: &[&Push]) {
        let QueueTables { item, dedup, .. } = &self.queue_tables;
        let mut heads: BTreeMap<(&Name, &Name), usize> = BTreeMap::new();
        for (at, push) in pushes.iter().enumerate() {
            if let Some(group) = &push.group {
                heads.entry((&push.queue, group)).or_insert(at);
            }
        }
        self.lock_groups(script, heads.keys().copied());
        script.add(&format!("SET @t = {CLOCK}"));
        let keeps_contexts = self.keeps_contexts();
        let mut rows = Rows::default();
        for push in pushes {
            let due_at = format!("@t + {}", micros(push.delay));
            let group = push.group.as_ref().map_or("NULL".to_owned(), |group| literal(bytes(group)));
            let ready_at = if push.group.is_some() { "NULL".to_owned() } else { due_at.clone() };
            let (queue, payload) = (literal(bytes(&push.queue)), literal(&push.payload));
            let context = push
                .context
                .as_ref()
                .map_or("NULL".to_owned(), |context| literal(context.as_str().as_bytes()));
            let context = if keeps_contexts { format!(",{context}") } else { String::new() };
            rows.add([queue, group, payload, "@t".to_owned(), due_at, ready_at + &context]);
        }
        script.add(&format!(
            "INSERT INTO {item} (queue, grp, payload, pushed_at, due_at, ready_at{context}) VALUES {}",
            rows.0,
            context = and(keeps_contexts, ", context"),
        ));
        script.add("SET @f = LAST_INSERT_ID(), @s = @@auto_increment_increment");
        let mut first = Rows::default();
        heads.values().for_each(|at| first.add([format!("@f + {at} * @s")]));
        self.add_heads(script, &first.0);
        let mut remembered = Rows::default();
        for (at, push) in pushes.iter().enumerate() {
            if let Some(id) = &push.dedup {
                let (queue, id) = (literal(bytes(&push.queue)), literal(bytes(id)));
                remembered.add([queue, id, format!("@f + {at} * @s")]);
            }
        }
        if !remembered.0.is_empty() {
            script.add(&format!(
                "UPDATE {} SET t.item = k.k2, t.until = @t + {}",
                joined(dedup, "queue, dedup", &remembered.0),
                DEDUP_MEMORY.as_micros()
            ));
        }
    }

    /// Locks the rows of groups, which come in order, and makes those that are not there.
    fn lock_groups<'a>(&self, script: &mut Script, groups: impl Iterator<Item = (&'a Name, &'a Name)>) {
        let mut rows = Rows::default();
        groups.for_each(|(queue, group)| rows.add([literal(bytes(queue)), literal(bytes(group))]));
        if !rows.0.is_empty() {
            script.add(&format!(
                "INSERT INTO {} (queue, grp) VALUES {} ON DUPLICATE KEY UPDATE queue = queue",
                self.queue_tables.group, rows.0
            ));
        }
    }

    /// Makes these new items the first of their groups, where those are empty. Their rows are locked.
    fn add_heads(&self, script: &mut Script, ids: &str) {
        let QueueTables { item, group, .. } = &self.queue_tables;
        if !ids.is_empty() {
            script.add(&format!(
                "UPDATE {} STRAIGHT_JOIN {group} AS g FORCE INDEX (PRIMARY) ON g.queue = t.queue AND g.grp = t.grp AND g.first IS NULL \
                 SET t.ready_at = GREATEST(t.due_at, g.rests_until), t.token = g.token, t.rests_until = g.rests_until, \
                   g.first = t.id",
                joined(item, "id", ids)
            ));
        }
    }

    /// Begins a take: locks what is ready and not locked by others.
    async fn lock_ready(
        &self,
        connection: &mut <MySql as Database>::Connection,
        take: &Take,
        wants: usize,
    ) -> Result<Looked, Fault> {
        let QueueTables { item, head, .. } = &self.queue_tables;
        let queue = literal(bytes(&take.queue));
        let mut most = wants;
        let mut script = Script::begin();
        if period_of_queue(take).is_some() {
            most = 1;
            // Each take from this queue stands in line for the row in which its rest is noted.
            script.add(&format!(
                "INSERT INTO {head} (queue, rests_until) VALUES ({queue}, 0) ON DUPLICATE KEY UPDATE queue = queue"
            ));
        }
        script.add(&format!("SET @t = {CLOCK}"));
        // Never by SET: a SELECT in it locks what it reads until the commit. With nothing ready no row is locked: to see that its queue has
        // ended, a take would lock the first row of the next one, and hide it from others.
        script.add(&format!(
            "SELECT COALESCE((SELECT rests_until FROM {head} FORCE INDEX (PRIMARY) WHERE queue = {queue}), 0) INTO @r"
        ));
        script.add(&format!(
            "SELECT IF(@r <= @t AND EXISTS (SELECT 1 FROM {item} FORCE INDEX (by_ready) WHERE queue = {queue} AND ready_at <= @t), @t, -1) INTO @b"
        ));
        let ready = script.add(&format!(
            "SELECT id, HEX(grp), HEX(payload), attempts, token, rests_until, due_at{context} FROM {item} FORCE INDEX (by_ready) \
             WHERE @b >= 0 AND queue = {queue} AND ready_at <= @b ORDER BY ready_at, id LIMIT {most} FOR UPDATE SKIP LOCKED",
            context = and(self.keeps_contexts(), ", HEX(context)")
        ));
        let state = script.add(&format!(
            "SELECT @t, @r, (SELECT ready_at FROM {item} FORCE INDEX (by_ready) WHERE queue = {queue} AND ready_at > @b \
             ORDER BY ready_at LIMIT 1), @b >= 0"
        ));
        let answers = connection.run(script.text()).await?;
        let mut columns = first(&answers, state)?;
        let (now, rests_until, next_at) = (columns.number()?, columns.number()?, columns.maybe()?);
        let was_ready = columns.number()? != 0;
        let ready = answer(&answers, ready).iter().map(read_ready).collect::<Result<Vec<_>, _>>()?;
        let is_passed_over = ready.is_empty() && was_ready;
        Ok(Looked { now, rests_until, next_at, ready, is_passed_over })
    }

    /// Adds what hands items out: `id, claim, token, rests_until`.
    fn add_deliveries(&self, script: &mut Script, take: &Take, rows: &str, ends_at: i64) {
        script.add(&format!(
            "UPDATE {} SET t.claim = k.k1, t.client = {}, t.ttl = {}, t.label = {}, t.expires_at = {ends_at}, \
             t.attempts = t.attempts + 1, t.token = k.k2, t.rests_until = k.k3, t.ready_at = GREATEST({ends_at}, k.k3)",
            joined(&self.queue_tables.item, "id", rows),
            client_number(take.client),
            micros(take.rules.ttl),
            literal(take.rules.label.as_str().as_bytes()),
        ));
    }
}

/// What a take found.
struct Looked {
    now: i64,
    /// By the interval of the whole queue.
    rests_until: i64,
    /// When something else is ready.
    next_at: Option<i64>,
    ready: Vec<Ready>,
    /// Nothing could be locked, though something is ready.
    is_passed_over: bool,
}

/// An item that can be handed out, and is locked.
struct Ready {
    id: i64,
    group: Option<Name>,
    payload: Arc<[u8]>,
    attempts: u32,
    token: Token,
    rests_until: i64,
    due_at: Timestamp,
    context: Option<ItemContext>,
}

fn read_ready(row: &Row) -> Result<Ready, Fault> {
    let mut columns = Columns::of(row);
    Ok(Ready {
        id: columns.number()?,
        group: columns.maybe_bytes()?.map(|bytes| read_name(&bytes)).transpose()?,
        payload: columns.bytes()?.into(),
        attempts: columns.small()?,
        token: columns.token()?,
        rests_until: columns.number()?,
        due_at: columns.moment()?,
        // Tables that an older version made have no such column.
        context: if row.len() > 7 { columns.maybe_bytes()? } else { None }
            .and_then(|bytes| ItemContext::from_stored(&bytes)),
    })
}

/// The least time between two dispatches of the whole queue, if there is one.
fn period_of_queue(take: &Take) -> Option<Duration> {
    match take.rules.interval {
        Interval::Queue(period) if !period.is_zero() => Some(period),
        _ => None,
    }
}

impl QueueDatabase for MySql {
    fn queue_capability(&self) -> &QueueCapability {
        &self.queue_capability
    }

    fn queue_tables(&self) -> &QueueTables {
        &self.queue_tables
    }

    async fn ensure_queues(&self) -> Result<(), Fault> {
        migrate::ensure_queues(&self.pool, &self.config.prefix).await?;
        let keeps_contexts = migrate::ensure_contexts(&self.pool, &self.config.prefix).await?;
        self.keeps_contexts.store(keeps_contexts, Ordering::Release);
        Ok(())
    }

    fn keeps_contexts(&self) -> bool {
        self.keeps_contexts.load(Ordering::Acquire)
    }

    async fn enter(&self, pushes: &[&Push], _: &Calls) -> Result<Entered, Fault> {
        let mut connection = self.connection().await?;
        let has_dedups = pushes.iter().any(|push| push.dedup.is_some());
        let (mut script, mut known) = (Script::default(), HashMap::new());
        if has_dedups {
            known = self.dedups(&mut connection, pushes).await?;
        } else {
            script = Script::begin();
        }
        let was = |push: &Push| known.get(&(push.queue.clone(), push.dedup.clone()?)).copied();
        let new: Vec<&Push> = pushes.iter().copied().filter(|push| was(push).is_none()).collect();
        if !new.is_empty() {
            self.add_items(&mut script, &new);
        }
        script.add("COMMIT");
        let numbers = script.add("SELECT @f, @s");
        let answers = connection.run(script.text()).await?;
        connection.keep();
        let mut columns = first(&answers, numbers)?;
        let (mut next, step) = match new.is_empty() {
            true => (0, 0),
            false => (columns.number()?, columns.number()?),
        };
        let mut pushed = |push: &&Push| {
            if let Some(item) = was(push) {
                return Pushed { item: ItemId(item.unsigned_abs()), is_duplicate: true };
            }
            let item = ItemId(next.unsigned_abs());
            next += step;
            Pushed { item, is_duplicate: false }
        };
        let pushed = pushes.iter().map(&mut pushed).collect();
        Ok(Entered { pushed, calls_later: false })
    }

    async fn hand_out(&self, take: &Take, claims: &[ClaimId]) -> Result<Found, Fault> {
        let mut connection = self.connection().await?;
        let mut looked = self.lock_ready(&mut connection, take, claims.len()).await?;
        for rest in LOOKS_AGAIN {
            if !looked.is_passed_over {
                break;
            }
            pause(rest).await;
            looked = self.lock_ready(&mut connection, take, claims.len()).await?;
        }
        let mut found = Found::default();
        let mut rows = Rows::default();
        let mut claims = claims.iter();
        for ready in looked.ready {
            let Ready { id, group, payload, attempts, token, rests_until, due_at, context } = ready;
            if take.rules.attempts_max != 0 && attempts >= take.rules.attempts_max {
                found.worn.push(ItemId(id.unsigned_abs()));
                continue;
            }
            let Some(claim) = claims.next() else { break };
            let at = Timestamp::from_micros(looked.now.unsigned_abs());
            let token =
                Token::next(token, at, if take.floor.is_ahead_of(at) { Token::ZERO } else { take.floor });
            let rests_until = match take.rules.interval {
                Interval::Group(period) if group.is_some() => looked.now.saturating_add(micros(period)),
                _ => rests_until,
            };
            let token_text = signed(token.get()).to_string();
            rows.add([id.to_string(), claim_literal(*claim), token_text, rests_until.to_string()]);
            self.hints.add(*claim, Known { id, queue: take.queue.clone(), group: group.clone() });
            let (item, attempt, ends_in) = (ItemId(id.unsigned_abs()), attempts + 1, take.rules.ttl);
            let age = at.since(due_at);
            found.items.push(Dispatched {
                claim: *claim,
                item,
                group,
                payload,
                context,
                attempt,
                token,
                ends_in,
                age,
            });
        }
        let (now, mut rests) = (looked.now, looked.rests_until);
        let mut script = Script::default();
        let mut next_at = looked.next_at;
        if !rows.0.is_empty() {
            let ends_at = now.saturating_add(micros(take.rules.ttl));
            next_at = Some(next_at.unwrap_or(ends_at).min(ends_at));
            self.add_deliveries(&mut script, take, &rows.0, ends_at);
            if let Some(period) = period_of_queue(take) {
                rests = now.saturating_add(micros(period));
                script.add(&format!(
                    "UPDATE {} FORCE INDEX (PRIMARY) SET rests_until = {rests} WHERE queue = {}",
                    self.queue_tables.head,
                    literal(bytes(&take.queue))
                ));
            }
        }
        script.add("COMMIT");
        connection.run(script.text()).await?;
        connection.keep();
        let next_in =
            |at: i64| Duration::from_micros(at.max(rests).saturating_sub(now).max(0).unsigned_abs());
        found.next_in = next_at.map(next_in);
        Ok(found)
    }

    async fn extend(&self, claims: &[ClaimId]) -> Result<Vec<(ClaimId, Duration)>, Fault> {
        let known = self.known(claims.iter().copied()).await?;
        if known.is_empty() {
            return Ok(Vec::new());
        }
        let item = &self.queue_tables.item;
        let mut sorted: Vec<(i64, ClaimId)> = known.iter().map(|(claim, known)| (known.id, *claim)).collect();
        sorted.sort_unstable();
        let mut rows = Rows::default();
        sorted.iter().for_each(|(id, claim)| rows.add([id.to_string(), claim_literal(*claim)]));
        let joined = joined(item, "id, claim", &rows.0);
        let mut script = Script::begin();
        let alive = script
            .add(&format!("SELECT HEX(t.claim), t.ttl FROM {joined} AND t.expires_at > {CLOCK} FOR UPDATE"));
        script.add(&format!("SET @t = {CLOCK}"));
        // A clock that was set back must not shorten what was promised.
        script.add(&format!(
            "UPDATE {joined} AND t.expires_at > @t SET t.ready_at = GREATEST(t.expires_at, @t + t.ttl, t.rests_until), \
             t.expires_at = GREATEST(t.expires_at, @t + t.ttl)"
        ));
        script.add("COMMIT");
        let mut connection = self.lend(Purpose::Renewal).await?;
        let answers = connection.run(script.text()).await?;
        connection.keep();
        let read = |row: &Row| {
            let mut columns = Columns::of(row);
            let claim = columns.maybe_claim()?.ok_or_else(|| Fault::internal("a claim is missing"))?;
            Ok((claim, columns.period()?))
        };
        answer(&answers, alive).iter().map(read).collect()
    }

    async fn settle_all(&self, settlements: &[&Settle]) -> Result<Settled, Fault> {
        self.settle_these(settlements).await
    }

    async fn dead_letter(&self, queue: &Name, items: &[ItemId], attempts: u32) -> Result<(), Fault> {
        self.end_these(queue, items, Some(attempts)).await.map(drop)
    }

    async fn replay_some(&self, queue: &Name, item: Option<ItemId>, most: usize) -> Result<usize, Fault> {
        let QueueTables { dead, item: items, .. } = &self.queue_tables;
        let name = literal(bytes(queue));
        let one = item.map_or(String::new(), |item| format!("AND id = {}", signed(item.0)));
        let context = and(self.keeps_contexts(), ", context");
        let mut connection = self.connection().await?;
        let mut script = Script::begin();
        let found = script.add(&format!(
            "SELECT id, HEX(grp) FROM {dead} FORCE INDEX (PRIMARY) WHERE queue = {name} {one} ORDER BY id LIMIT {most} FOR UPDATE"
        ));
        let answers = connection.run(script.text()).await?;
        let (mut ids, mut groups) = (Vec::new(), BTreeMap::new());
        for row in answer(&answers, found) {
            let mut columns = Columns::of(row);
            ids.push(columns.number()?);
            if let Some(group) = columns.maybe_bytes()? {
                groups.insert(read_name(&group)?, ());
            }
        }
        let mut script = Script::default();
        self.lock_groups(&mut script, groups.keys().map(|group| (queue, group)));
        script.add(&format!("SET @t = {CLOCK}"));
        let mut gone = Rows::default();
        for id in &ids {
            script.add(&format!(
                "INSERT INTO {items} (queue, grp, payload, pushed_at, due_at, ready_at{context}) \
                 SELECT queue, grp, payload, pushed_at, @t, IF(grp IS NULL, @t, NULL){context} FROM {dead} FORCE INDEX (PRIMARY) \
                 WHERE queue = {name} AND id = {id}"
            ));
            script.add("SET @f = LAST_INSERT_ID()");
            self.add_heads(&mut script, "(@f)");
            gone.add([name.clone(), id.to_string()]);
        }
        if !ids.is_empty() {
            script.add(&MySqlDialect::delete(dead, "queue, id", &gone.0, ""));
        }
        script.add("COMMIT");
        connection.run(script.text()).await?;
        connection.keep();
        Ok(ids.len())
    }

    async fn remove(&self, queue: &Name, which: Which, items: &[ItemId]) -> Result<usize, Fault> {
        if which == Which::Live {
            return self.end_these(queue, items, None).await;
        }
        let dead = &self.queue_tables.dead;
        let mut rows = Rows::default();
        items.iter().for_each(|item| rows.add([literal(bytes(queue)), signed(item.0).to_string()]));
        let mut script = Script::begin();
        let found =
            script.add(&format!("SELECT t.id FROM {} FOR UPDATE", joined(dead, "queue, id", &rows.0)));
        script.add(&MySqlDialect::delete(dead, "queue, id", &rows.0, ""));
        script.add("COMMIT");
        Ok(answer(&self.run(script).await?, found).len())
    }

    async fn note_idle(&self, _: &Name) -> Result<usize, Fault> {
        Err(Fault::internal("nobody can be told"))
    }

    async fn unnote_idle(&self, _: &Name) -> Result<(), Fault> {
        Ok(())
    }

    async fn pass_over(&self, _: &Name) -> Result<(), Fault> {
        Err(Fault::internal("nobody can be told"))
    }

    async fn call(&self, _: &Calls) -> Result<(), Fault> {
        Ok(())
    }
}
