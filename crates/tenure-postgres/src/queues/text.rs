//! The statements.
//!
//! The clock is asked for once in a statement, by a query of its own: the planner takes the answer for a number, and finds
//! rows by it in an index. `FOR UPDATE` stands in a query of its own, whose rows are changed by the next: as a condition
//! with IN it might be executed again for each row, and lock more than was wanted.

use tenure_core::engine::queue::{CONSUMER_LIFE, DEDUP_MEMORY};
use tenure_core::model::queue::step::WATCHERS;
use tenure_sql::{Dialect, QUEUE_VERSION, QueueTables};

use tokio_postgres::types::Type;

use crate::dialect::{FLOOR_AHEAD, PostgresDialect, literal};
use crate::statement::{Statement, Wait};

const CLOCK: &str = PostgresDialect::CLOCK;
/// Zero in a transaction that has begun as it should, and an error outside of one: there the lock that the statement before
/// has taken is gone.
const BEGUN: &str = "current_setting('tenure.begun')::bigint";
/// When a client that found only rows that others have locked polls again, in microseconds: they are about to be
/// handed out.
const LOCKED_POLL: i64 = 5_000;

/// All statements, with the names of the tables in them.
#[derive(Debug)]
pub(crate) struct Texts {
    pub(crate) tables: QueueTables,
    /// Whether the tables keep contexts. Those that an older version made do not before they are changed.
    pub(crate) keeps_contexts: bool,
    /// `queues, payloads, delays, client`, and the contexts, if they are kept: `id, is_duplicate, is_for_idle` for each, in order.
    /// The last one: a client other than this one is idle there.
    pub(crate) push: Statement,
    /// `queue, payload, delay, client`, and the context: the same for one item.
    pub(crate) push_one: Statement,
    /// `queues, payloads, delays`, then groups, contexts, if they are kept, and dedup ids: `id, is_duplicate` for each, in order.
    pub(crate) push_groups: Statement,
    pub(crate) push_all: Statement,
    /// `queue, claims, most, client, ttl, label, floor, attempts_max, period`: `id, claim, grp, payload, attempts, token,
    /// next_in, age`, and the context, if it is kept. A row without a claim is of an item that is worn out; the one without an id says how the queue stands.
    pub(crate) take: Statement,
    /// `queue, claim, client, ttl, label, floor, attempts_max`: `id, claim, grp, payload, attempts, token, is_for_others,
    /// age` of one item, and its context. No row: it takes the long statement to say why.
    pub(crate) take_one: Statement,
    /// The same behind `lock_head`, for a client that keeps an interval of the whole queue.
    pub(crate) take_at_intervals: Statement,
    pub(crate) lock_head: Statement,
    /// `claims`: `claim, ttl` for those that live.
    pub(crate) renew: Statement,
    /// `claims`: locks the groups of their items.
    pub(crate) lock_groups: Statement,
    /// `queues, claims`, then kinds, periods, most attempts and reasons: `claim, is_buried, is_ready, queue`.
    pub(crate) acknowledge: Statement,
    /// The same for items without groups, whose end nothing follows from.
    pub(crate) acknowledge_alone: Statement,
    /// `queue, claim`: the same for one item.
    pub(crate) acknowledge_one: Statement,
    pub(crate) settle: Statement,
    /// `queue, ids`: locks the groups of these items.
    pub(crate) lock_groups_of: Statement,
    /// `queue, ids, attempts, reason`.
    pub(crate) dead_letter: Statement,
    /// `queue, ids`: a row for each that was removed.
    pub(crate) withdraw: Statement,
    pub(crate) remove_dead: Statement,
    /// `queue, id or NULL, most`: a row for each.
    pub(crate) replay: Statement,
    /// `queue, client`: how many are idle for longer.
    pub(crate) note_idle: Statement,
    pub(crate) unnote_idle: Statement,
    pub(crate) pass_over: Statement,
    /// `queues, client`: calls one that is idle, and not this client.
    pub(crate) wake: Statement,
    /// `queue, client`: the same for one queue.
    pub(crate) wake_one: Statement,
    /// `queues`.
    pub(crate) wake_watchers: Statement,
}

impl Texts {
    /// `place` is what the names of the tables begin with, `prefix` those of the channels.
    pub(crate) fn new(place: &str, prefix: &str, keeps_contexts: bool) -> Texts {
        let tables = QueueTables::new(place);
        let column = Column(keeps_contexts);
        let make = Make { place, tables: &tables, column };
        let of_items = lock_groups(&tables, "i.queue = $1 AND i.id = ANY($2)");
        let [push, push_one, push_groups, push_all] = make.pushes();
        let [take, take_one, take_at_intervals, lock_head, note_idle] = make.takes();
        let [renew, lock_groups, acknowledge, acknowledge_alone, acknowledge_one, settle] =
            make.settlements();
        Texts {
            keeps_contexts,
            push,
            push_one,
            push_groups,
            push_all,
            take,
            take_one,
            take_at_intervals,
            lock_head,
            renew,
            lock_groups,
            acknowledge,
            acknowledge_alone,
            acknowledge_one,
            settle,
            note_idle,
            lock_groups_of: Statement::new(of_items, &[BYTES, NUMBERS]),
            dead_letter: Statement::new(dead_letter(&tables, column), &[BYTES, NUMBERS, NUMBER, BYTES]),
            withdraw: Statement::new(withdraw(&tables), &[BYTES, NUMBERS]),
            remove_dead: Statement::new(
                format!("DELETE FROM {} WHERE queue = $1 AND id = ANY($2) RETURNING id", tables.dead),
                &[BYTES, NUMBERS],
            ),
            replay: Statement::new(replay(&tables, column), &[BYTES, NUMBER, NUMBER]),
            unnote_idle: Statement::new(unnote_idle(&tables, prefix), &[BYTES, NUMBER]),
            pass_over: Statement::new(pass_over(&tables, prefix), &[BYTES, NUMBER]),
            wake: Statement::new(wake(&tables, prefix), &[LIST, NUMBER]),
            wake_one: Statement::new(wake_one(&tables, prefix), &[BYTES, NUMBER]),
            wake_watchers: Statement::new(wake_watchers(&tables, prefix), &[LIST]),
            tables,
        }
    }

    /// Returns the statements of which there are functions.
    pub(crate) fn functions(&self) -> Vec<&Statement> {
        let all = [
            [&self.push, &self.push_one, &self.push_groups, &self.push_all, &self.take],
            [&self.take_one, &self.take_at_intervals, &self.lock_head, &self.renew, &self.lock_groups],
            [
                &self.acknowledge,
                &self.acknowledge_alone,
                &self.acknowledge_one,
                &self.settle,
                &self.note_idle,
            ],
        ];
        all.into_iter().flatten().collect()
    }
}

/// Makes the statements of which there are functions.
struct Make<'a> {
    place: &'a str,
    tables: &'a QueueTables,
    column: Column,
}

impl Make<'_> {
    /// `is_alone`: it locks one row at most.
    fn make(&self, name: &str, text: String, takes: &[Type], gives: &[Type], is_alone: bool) -> Statement {
        let statement = Statement::new(text, takes);
        // Their names are the same with contexts and without.
        match self.column.0 {
            true => statement.function(self.place, name, gives, Wait::Long, is_alone),
            false => statement,
        }
    }

    fn pushes(&self) -> [Statement; 4] {
        let Make { tables, column, .. } = self;
        let (one, some) = ([BYTES, BYTES, NUMBER, NUMBER, BYTES], [LIST, LIST, NUMBERS, NUMBER, LIST]);
        let (groups, all) = ([LIST, LIST, NUMBERS, LIST, LIST], [LIST, LIST, NUMBERS, LIST, LIST, LIST]);
        let [groups_text, all_text] = [false, true].map(|has| push_groups(tables, *column, has));
        [
            self.make("q_push", push(tables, *column), column.types(&some), &PUSHED, true),
            self.make("q_push_one", push_one(tables, *column), column.types(&one), &PUSHED, true),
            self.make("q_push_groups", groups_text, column.types(&groups), &PUSHED[..2], false),
            self.make("q_push_all", all_text, column.types(&all), &PUSHED[..2], false),
        ]
    }

    fn takes(&self) -> [Statement; 5] {
        let Make { tables, column, .. } = self;
        let some = [BYTES, LIST, NUMBER, NUMBER, NUMBER, BYTES, NUMBER, NUMBER, NUMBER];
        let taken = [NUMBER, BYTES, BYTES, BYTES, NUMBER, NUMBER, NUMBER, NUMBER, BYTES];
        let one = [BYTES, BYTES, NUMBER, NUMBER, BYTES, NUMBER, NUMBER];
        let taken_one = [NUMBER, BYTES, BYTES, BYTES, NUMBER, NUMBER, TRUTH, NUMBER, BYTES];
        [
            self.make("q_take", take(tables, *column, false), &some, &taken, true),
            self.make("q_take_one", take_one(tables, *column), &one, &taken_one, true),
            self.make("q_take_paced", take(tables, *column, true), &some, &taken, false),
            self.make("q_lock_head", lock_head(tables), &[BYTES], &[], false),
            self.make("q_note_idle", note_idle(tables), &[BYTES, NUMBER], &[NUMBER], true),
        ]
    }

    fn settlements(&self) -> [Statement; 6] {
        let Make { tables, column, .. } = self;
        let settle_all = [LIST, LIST, NUMBERS, NUMBERS, NUMBERS, LIST];
        let settled = [BYTES, NUMBER, NUMBER, BYTES];
        let lock = lock_groups(tables, "i.claim = ANY($1)");
        [
            self.make("q_renew", renew(tables), &[LIST], &[BYTES, NUMBER], false),
            self.make("q_lock_groups", lock, &[LIST], &[NUMBER], false),
            self.make("q_ack", acknowledge(tables), &[LIST, LIST], &settled, false),
            self.make("q_ack_alone", acknowledge_alone(tables), &[LIST, LIST], &settled, false),
            self.make("q_ack_one", acknowledge_one(tables), &[BYTES, BYTES], &settled, true),
            self.make("q_settle", settle(tables, *column), &settle_all, &settled, false),
        ]
    }
}

// What statements take and return.
const BYTES: Type = Type::BYTEA;
const NUMBER: Type = Type::INT8;
const TRUTH: Type = Type::BOOL;
const LIST: Type = Type::BYTEA_ARRAY;
const NUMBERS: Type = Type::INT8_ARRAY;
const PUSHED: [Type; 3] = [NUMBER, TRUTH, TRUTH];

/// The column of contexts, where the tables have it.
#[derive(Clone, Copy)]
struct Column(bool);

impl Column {
    /// What a push takes, of which the last type is that of contexts: or of dedup ids, which is the same.
    fn types(self, types: &[Type]) -> &[Type] {
        if self.0 { types } else { &types[..types.len() - 1] }
    }

    /// One more column, or value, in a list.
    fn and(self, more: &'static str) -> &'static str {
        if self.0 { more } else { "" }
    }
}

/// The sequence, as a function takes it.
fn number(tables: &QueueTables) -> String {
    format!("'{}'", literal(&tables.number))
}

fn push(tables: &QueueTables, column: Column) -> String {
    let item = &tables.item;
    let number = number(tables);
    let is_for_idle = is_for_idle(tables);
    let (context, v_context, contexts) =
        (column.and(", context"), column.and(", v.context"), column.and(", $5"));
    format!(
        "WITH t AS MATERIALIZED (SELECT {CLOCK} AS now) \
         INSERT INTO {item} AS i (queue, id, payload, pushed_at, due_at, ready_at{context}) \
         SELECT v.queue, nextval({number}), v.payload, t.now, t.now + v.delay, t.now + v.delay{v_context} \
         FROM unnest($1, $2, $3{contexts}) WITH ORDINALITY AS v(queue, payload, delay{context}, at), t ORDER BY v.at \
         RETURNING i.id, false, {is_for_idle}"
    )
}

fn push_groups(tables: &QueueTables, column: Column, has_dedups: bool) -> String {
    let QueueTables { item, dedup, .. } = tables;
    let number = number(tables);
    let mut columns = vec!["queue", "payload", "delay", "grp"];
    columns.extend(column.0.then_some("context"));
    columns.extend(has_dedups.then_some("dedup"));
    let arrays: Vec<String> = (1..=columns.len()).map(|at| format!("${at}")).collect();
    let (arrays, columns) = (arrays.join(", "), columns.join(", "));
    let all = format!(
        "WITH t AS MATERIALIZED (SELECT {CLOCK} AS now), \
         a AS MATERIALIZED (SELECT nextval({number}) AS id, s.*, t.now AS pushed_at, t.now + s.delay AS due_at \
           FROM (SELECT * FROM unnest({arrays}) WITH ORDINALITY AS v({columns}, at) ORDER BY at) s, t), "
    );
    if !has_dedups {
        let enter = enter(tables, column, "a");
        return format!("{all} {enter} SELECT id, false FROM a ORDER BY at");
    }
    let memory = DEDUP_MEMORY.as_micros();
    let is_known = format!(
        "d.until > {CLOCK} OR EXISTS (SELECT 1 FROM {item} i WHERE i.queue = d.queue AND i.id = d.item)"
    );
    let enter = enter(tables, column, "w");
    format!(
        "{all} \
         k AS (INSERT INTO {dedup} AS d (queue, dedup, item, until) \
           SELECT queue, dedup, id, pushed_at + {memory} FROM a WHERE dedup IS NOT NULL ORDER BY queue, dedup \
           ON CONFLICT (queue, dedup) DO UPDATE SET item = CASE WHEN {is_known} THEN d.item ELSE excluded.item END, \
             until = CASE WHEN {is_known} THEN d.until ELSE excluded.until END \
           RETURNING queue, dedup, item), \
         w AS MATERIALIZED (SELECT a.* FROM a LEFT JOIN k ON k.queue = a.queue AND k.dedup = a.dedup \
           WHERE a.dedup IS NULL OR k.item = a.id), \
         {enter} \
         SELECT coalesce(k.item, a.id), coalesce(k.item <> a.id, false) \
         FROM a LEFT JOIN k ON k.queue = a.queue AND k.dedup = a.dedup ORDER BY a.at"
    )
}

/// Whether another client is idle in the queue of a new item, as a column.
fn is_for_idle(tables: &QueueTables) -> String {
    let idle = &tables.idle;
    format!(
        "EXISTS (SELECT 1 FROM {idle} x WHERE x.queue = i.queue AND x.client <> $4 AND x.until > i.pushed_at)"
    )
}

fn push_one(tables: &QueueTables, column: Column) -> String {
    let (context, value) = (column.and(", context"), column.and(", $5"));
    let (item, number) = (&tables.item, number(tables));
    let is_for_idle = is_for_idle(tables);
    format!(
        "INSERT INTO {item} AS i (queue, id, payload, pushed_at, due_at, ready_at{context}) \
         SELECT $1, nextval({number}), $2, t.now, t.now + $3, t.now + $3{value} FROM (SELECT {CLOCK} AS now) t \
         RETURNING i.id, false, {is_for_idle}"
    )
}

/// Puts what is in a query into the lines: `id, queue, grp, payload, pushed_at, due_at`, and the context.
///
/// The group's row is locked by this, made if need be, and says which transaction was there first: what is stored by
/// then, and not when the statement began.
fn enter(tables: &QueueTables, column: Column, from: &str) -> String {
    let (context, v_context) = (column.and(", context"), column.and(", v.context"));
    let QueueTables { item, group, .. } = tables;
    format!(
        "g AS (INSERT INTO {group} AS g (queue, grp, first) \
           SELECT queue, grp, min(id) FROM {from} WHERE grp IS NOT NULL GROUP BY queue, grp ORDER BY queue, grp \
           ON CONFLICT (queue, grp) DO UPDATE SET first = coalesce(g.first, excluded.first) \
           RETURNING queue, grp, first, token, rests_until), \
         e AS (INSERT INTO {item} (queue, id, grp, payload, pushed_at, due_at, ready_at, token, rests_until{context}) \
           SELECT v.queue, v.id, v.grp, v.payload, v.pushed_at, v.due_at, \
             CASE WHEN v.grp IS NULL THEN v.due_at WHEN g.first = v.id THEN greatest(v.due_at, g.rests_until) END, \
             coalesce(g.token, 0), coalesce(g.rests_until, 0){v_context} \
           FROM {from} v LEFT JOIN g ON g.queue = v.queue AND g.grp = v.grp)"
    )
}

fn lock_head(tables: &QueueTables) -> String {
    let head = &tables.head;
    format!(
        "INSERT INTO {head} AS h (queue, rests_until) VALUES ($1, 0) \
         ON CONFLICT (queue) DO UPDATE SET rests_until = h.rests_until"
    )
}

fn take(tables: &QueueTables, column: Column, at_intervals: bool) -> String {
    let (i_context, context, none) =
        (column.and(", i.context"), column.and(", context"), column.and(", NULL"));
    let QueueTables { item, head, idle, .. } = tables;
    let rest = match at_intervals {
        true => format!(
            "h AS (UPDATE {head} h SET rests_until = t.now + $9 FROM t WHERE h.queue = $1 AND EXISTS (SELECT 1 FROM u)), "
        ),
        false => String::new(),
    };
    let rests_until = match at_intervals {
        // Type it, and leave it be.
        true => "i.rests_until",
        false => "CASE WHEN $9 > 0 AND i.grp IS NOT NULL THEN t.now + $9 ELSE i.rests_until END",
    };
    let rests = match at_intervals {
        true => "(SELECT CASE WHEN EXISTS (SELECT 1 FROM u) THEN t.now + $9 ELSE r.until END FROM t, r)",
        false => "(SELECT until FROM r)",
    };
    let begun = if at_intervals { format!(" + {BEGUN}") } else { String::new() };
    format!(
        "WITH t AS MATERIALIZED (SELECT {CLOCK}{begun} AS now), \
         r AS MATERIALIZED (SELECT coalesce((SELECT rests_until FROM {head} WHERE queue = $1), 0) AS until), \
         c AS MATERIALIZED (SELECT id, ready_at, attempts FROM {item} \
           WHERE queue = $1 AND ready_at <= (SELECT t.now FROM t, r WHERE r.until <= t.now) \
           ORDER BY ready_at, id LIMIT $3 FOR UPDATE SKIP LOCKED), \
         n AS (SELECT id, row_number() OVER (ORDER BY ready_at, id) AS at FROM c WHERE $8 = 0 OR attempts < $8), \
         u AS (UPDATE {item} i SET claim = $2[n.at], client = $4, ttl = $5, label = $6, expires_at = t.now + $5, \
             attempts = i.attempts + 1, token = greatest(i.token + 1, t.now, CASE WHEN $7 <= t.now + {FLOOR_AHEAD} THEN $7 + 1 ELSE 0 END), \
             rests_until = {rests_until}, ready_at = greatest(t.now + $5, {rests_until}) \
           FROM n, t WHERE i.queue = $1 AND i.id = n.id \
           RETURNING n.at, i.id, i.claim, i.grp, i.payload, i.attempts, i.token, t.now - i.due_at AS age{i_context}), \
         {rest} \
         m AS MATERIALIZED (SELECT (SELECT ready_at FROM {item} WHERE queue = $1 AND ready_at IS NOT NULL \
           AND id NOT IN (SELECT id FROM c) ORDER BY ready_at, id LIMIT 1) AS ready_at) \
         SELECT id, claim, grp, payload, attempts, token, NULL::bigint AS next_in, age{context} FROM (SELECT * FROM u ORDER BY at) o \
         UNION ALL \
         SELECT id, NULL, NULL, NULL, attempts, NULL, NULL, NULL{none} FROM c WHERE $8 > 0 AND attempts >= $8 \
         UNION ALL \
         SELECT NULL, NULL, NULL, NULL, NULL, \
           CASE WHEN m.ready_at <= t.now AND (SELECT count(*) FROM c) >= $3 \
             AND EXISTS (SELECT 1 FROM {idle} WHERE queue = $1 AND client <> $4 AND until > t.now) THEN 1 END, \
           greatest(least(m.ready_at, CASE WHEN EXISTS (SELECT 1 FROM u) THEN t.now + $5 END), \
             {rests}, t.now + {LOCKED_POLL}) - t.now, NULL{none} \
           FROM t, m WHERE m.ready_at IS NOT NULL OR EXISTS (SELECT 1 FROM u)"
    )
}

/// What most takes come down to: one item, no interval. Of an item that is worn out it makes nothing: the long statement
/// says that it stands in the way.
fn take_one(tables: &QueueTables, column: Column) -> String {
    let i_context = column.and(", i.context");
    let QueueTables { item, head, idle, .. } = tables;
    format!(
        "WITH t AS MATERIALIZED (SELECT {CLOCK} AS now), \
         c AS MATERIALIZED (SELECT id, attempts FROM {item} WHERE queue = $1 AND ready_at <= (SELECT now FROM t \
             WHERE NOT EXISTS (SELECT 1 FROM {head} WHERE queue = $1 AND rests_until > t.now)) \
           ORDER BY ready_at, id LIMIT 1 FOR UPDATE SKIP LOCKED) \
         UPDATE {item} i SET claim = $2, client = $3, ttl = $4, label = $5, expires_at = t.now + $4, \
           attempts = i.attempts + 1, token = greatest(i.token + 1, t.now, CASE WHEN $6 <= t.now + {FLOOR_AHEAD} THEN $6 + 1 ELSE 0 END), \
           ready_at = greatest(t.now + $4, i.rests_until) \
         FROM c, t WHERE i.queue = $1 AND i.id = c.id AND ($7 = 0 OR c.attempts < $7) \
         RETURNING i.id, i.claim, i.grp, i.payload, i.attempts, i.token, \
           CASE WHEN EXISTS (SELECT 1 FROM {idle} WHERE queue = $1 AND client <> $3 AND until > t.now) \
             THEN EXISTS (SELECT 1 FROM {item} r WHERE r.queue = $1 AND r.ready_at <= t.now AND r.id <> i.id) \
             ELSE false END, t.now - i.due_at{i_context}"
    )
}

fn renew(tables: &QueueTables) -> String {
    let item = &tables.item;
    // A clock that was set back must not shorten what was promised.
    format!(
        "WITH l AS MATERIALIZED (SELECT queue, id FROM {item} WHERE claim = ANY($1) AND expires_at > {CLOCK} \
           ORDER BY id FOR UPDATE) \
         UPDATE {item} i SET expires_at = greatest(i.expires_at, {CLOCK} + i.ttl), \
           ready_at = greatest(i.expires_at, {CLOCK} + i.ttl, i.rests_until) \
         FROM l WHERE i.queue = l.queue AND i.id = l.id RETURNING i.claim, i.ttl"
    )
}

fn lock_groups(tables: &QueueTables, whose: &str) -> String {
    let QueueTables { item, group, .. } = tables;
    format!(
        "SELECT g.first FROM {group} g JOIN {item} i ON i.queue = g.queue AND i.grp = g.grp WHERE {whose} \
         ORDER BY g.queue, g.grp FOR UPDATE OF g"
    )
}

/// What follows when items are `gone` whose groups are locked: the next of each group can be handed out, or the group goes.
fn advance(tables: &QueueTables) -> String {
    let QueueTables { item, group, .. } = tables;
    format!(
        "h AS MATERIALIZED (SELECT o.queue, o.grp, o.token, o.rests_until, (SELECT n.id FROM {item} n \
             WHERE n.queue = o.queue AND n.grp = o.grp AND n.id NOT IN (SELECT id FROM gone) ORDER BY n.grp, n.id LIMIT 1) AS next \
           FROM gone o WHERE o.grp IS NOT NULL AND o.ready_at IS NOT NULL), \
         up AS (UPDATE {item} n SET ready_at = greatest(n.due_at, t.now, h.rests_until), token = h.token, \
             rests_until = h.rests_until \
           FROM h, t WHERE n.queue = h.queue AND n.id = h.next RETURNING n.queue, n.grp, n.ready_at), \
         rest AS (UPDATE {group} g SET first = NULL, token = h.token, rests_until = h.rests_until FROM h, t \
           WHERE h.next IS NULL AND h.rests_until > t.now AND g.queue = h.queue AND g.grp = h.grp), \
         done AS (DELETE FROM {group} g USING h, t \
           WHERE h.next IS NULL AND h.rests_until <= t.now AND g.queue = h.queue AND g.grp = h.grp) "
    )
}

fn acknowledge_alone(tables: &QueueTables) -> String {
    let item = &tables.item;
    format!(
        "WITH l AS MATERIALIZED (SELECT queue, id FROM {item} WHERE claim = ANY($2) AND queue = ANY($1) AND grp IS NULL \
           AND expires_at > {CLOCK} ORDER BY id FOR UPDATE) \
         DELETE FROM {item} i USING l WHERE i.queue = l.queue AND i.id = l.id RETURNING i.claim, 0::bigint, 0::bigint, i.queue"
    )
}

/// By the claim, which is one of a kind: the name of the queue is compared so that no index is looked through for it.
fn acknowledge_one(tables: &QueueTables) -> String {
    let item = &tables.item;
    format!(
        "DELETE FROM {item} WHERE claim = $2 AND (queue = $1) IS TRUE AND grp IS NULL AND expires_at > {CLOCK} \
         RETURNING claim, 0::bigint, 0::bigint, queue"
    )
}

fn acknowledge(tables: &QueueTables) -> String {
    let item = &tables.item;
    let advance = advance(tables);
    format!(
        "WITH t AS MATERIALIZED (SELECT {CLOCK} + {BEGUN} AS now), \
             l AS MATERIALIZED (SELECT i.queue, i.id, i.grp, i.claim FROM {item} i \
               JOIN unnest($1, $2) AS v(queue, claim) ON v.claim = i.claim AND v.queue = i.queue \
               WHERE i.claim = ANY($2) AND i.expires_at > {CLOCK} ORDER BY i.id FOR UPDATE OF i), \
             gone AS (DELETE FROM {item} i USING l WHERE i.queue = l.queue AND i.id = l.id \
               RETURNING i.queue, i.id, i.grp, i.token, i.rests_until, i.ready_at), \
             {advance} \
             SELECT l.claim, 0::bigint, CASE WHEN up.ready_at <= t.now THEN 1::bigint ELSE 0 END, l.queue \
             FROM l CROSS JOIN t LEFT JOIN up ON up.queue = l.queue AND up.grp = l.grp"
    )
}

fn settle(tables: &QueueTables, column: Column) -> String {
    let QueueTables { item, dead, .. } = tables;
    let advance = advance(tables);
    let (context, i_context, o_context) =
        (column.and(", context"), column.and(", i.context"), column.and(", o.context"));
    format!(
        "WITH t AS MATERIALIZED (SELECT {CLOCK} + {BEGUN} AS now), \
         l AS MATERIALIZED (SELECT i.queue, i.id, i.grp, i.claim, v.kind, v.after, v.reason, \
             (v.kind IN (0, 2) OR v.kind = 1 AND v.most > 0 AND i.attempts >= v.most) AS goes \
           FROM {item} i JOIN unnest($1, $2, $3, $4, $5, $6) AS v(queue, claim, kind, after, most, reason) \
             ON v.claim = i.claim AND v.queue = i.queue \
           WHERE i.claim = ANY($2) AND i.expires_at > {CLOCK} ORDER BY i.id FOR UPDATE OF i), \
         kept AS (UPDATE {item} i SET claim = NULL, client = NULL, expires_at = NULL, ttl = NULL, label = NULL, \
             attempts = i.attempts - CASE WHEN l.kind = 3 THEN 1 ELSE 0 END, \
             ready_at = greatest(t.now + l.after, i.rests_until) \
           FROM l, t WHERE i.queue = l.queue AND i.id = l.id AND NOT l.goes RETURNING i.queue, i.id, i.ready_at), \
         gone AS (DELETE FROM {item} i USING l WHERE i.queue = l.queue AND i.id = l.id AND l.goes \
           RETURNING i.queue, i.id, i.grp, i.token, i.rests_until, i.ready_at, i.payload, i.pushed_at, i.attempts{i_context}), \
         died AS (INSERT INTO {dead} (queue, id, grp, payload, pushed_at, attempts, reason, died_at{context}) \
           SELECT o.queue, o.id, o.grp, o.payload, o.pushed_at, o.attempts, l.reason, t.now{o_context} \
           FROM gone o JOIN l ON l.queue = o.queue AND l.id = o.id CROSS JOIN t WHERE l.kind <> 0), \
         {advance} \
         SELECT l.claim, CASE WHEN l.kind = 1 AND l.goes THEN 1::bigint ELSE 0 END, \
           CASE WHEN coalesce(kept.ready_at, up.ready_at) <= t.now THEN 1::bigint ELSE 0 END, l.queue \
         FROM l CROSS JOIN t LEFT JOIN kept ON kept.queue = l.queue AND kept.id = l.id \
           LEFT JOIN up ON up.queue = l.queue AND up.grp = l.grp"
    )
}

fn dead_letter(tables: &QueueTables, column: Column) -> String {
    let (context, i_context, o_context) =
        (column.and(", context"), column.and(", i.context"), column.and(", o.context"));
    let QueueTables { item, dead, .. } = tables;
    let advance = advance(tables);
    format!(
        "WITH t AS MATERIALIZED (SELECT {CLOCK} + {BEGUN} AS now), \
         l AS MATERIALIZED (SELECT id FROM {item} WHERE queue = $1 AND id = ANY($2) AND attempts >= $3 \
           AND ready_at <= (SELECT now FROM t) ORDER BY id FOR UPDATE), \
         gone AS (DELETE FROM {item} i USING l WHERE i.queue = $1 AND i.id = l.id \
           RETURNING i.queue, i.id, i.grp, i.token, i.rests_until, i.ready_at, i.payload, i.pushed_at, i.attempts{i_context}), \
         died AS (INSERT INTO {dead} (queue, id, grp, payload, pushed_at, attempts, reason, died_at{context}) \
           SELECT o.queue, o.id, o.grp, o.payload, o.pushed_at, o.attempts, $4, t.now{o_context} FROM gone o, t), \
         {advance} \
         SELECT id FROM gone"
    )
}

fn withdraw(tables: &QueueTables) -> String {
    let item = &tables.item;
    let advance = advance(tables);
    format!(
        "WITH t AS MATERIALIZED (SELECT {CLOCK} + {BEGUN} AS now), \
         l AS MATERIALIZED (SELECT id FROM {item} WHERE queue = $1 AND id = ANY($2) AND claim IS NULL \
           ORDER BY id FOR UPDATE), \
         gone AS (DELETE FROM {item} i USING l WHERE i.queue = $1 AND i.id = l.id \
           RETURNING i.queue, i.id, i.grp, i.token, i.rests_until, i.ready_at), \
         {advance} \
         SELECT id FROM gone"
    )
}

fn replay(tables: &QueueTables, column: Column) -> String {
    let (d_context, s_context) = (column.and(", d.context"), column.and(", s.context"));
    let (dead, number) = (&tables.dead, number(tables));
    let enter = enter(tables, column, "a");
    format!(
        "WITH t AS MATERIALIZED (SELECT {CLOCK} AS now), \
         l AS MATERIALIZED (SELECT id FROM {dead} WHERE queue = $1 AND ($2 IS NULL OR id = $2) ORDER BY id LIMIT $3 FOR UPDATE), \
         x AS (DELETE FROM {dead} d USING l WHERE d.queue = $1 AND d.id = l.id \
           RETURNING d.queue, d.id, d.grp, d.payload, d.pushed_at{d_context}), \
         a AS MATERIALIZED (SELECT nextval({number}) AS id, s.queue, s.grp, s.payload, s.pushed_at, (SELECT now FROM t) AS due_at{s_context} \
           FROM (SELECT * FROM x ORDER BY id) s), \
         {enter} \
         SELECT id FROM a"
    )
}

fn note_idle(tables: &QueueTables) -> String {
    let idle = &tables.idle;
    let life = CONSUMER_LIFE.as_micros();
    format!(
        "WITH n AS (INSERT INTO {idle} AS i (queue, client, since, until) VALUES ($1, $2, {CLOCK}, {CLOCK} + {life}) \
           ON CONFLICT (queue, client) DO UPDATE SET until = excluded.until, \
             since = CASE WHEN i.until > {CLOCK} THEN i.since ELSE excluded.since END \
           RETURNING since, client) \
         SELECT (SELECT count(*) FROM {idle} i WHERE i.queue = $1 AND i.client <> $2 AND i.until > {CLOCK} \
           AND (i.since, i.client) < (n.since, n.client)) FROM n"
    )
}

/// The call of a function that notifies a client, which is a column.
fn notify(prefix: &str, word: &str, from: &str) -> String {
    format!(
        "pg_notify('{prefix}' || lpad(to_hex({from}.client), 16, '0'), '{word} ' || encode({from}.queue, 'hex'))"
    )
}

/// The client that goes watches no more: the next one polls when something is due.
fn unnote_idle(tables: &QueueTables, prefix: &str) -> String {
    let idle = &tables.idle;
    let notify = notify(prefix, "W", "f");
    format!(
        "WITH d AS (DELETE FROM {idle} WHERE queue = $1 AND client = $2 RETURNING since, client), \
         f AS (SELECT queue, client, since FROM {idle} WHERE queue = $1 AND client <> $2 AND until > {CLOCK} \
           ORDER BY since, client LIMIT {WATCHERS}) \
         SELECT {notify} FROM f, d WHERE (f.since, f.client) > (d.since, d.client)"
    )
}

/// Those are not idle any more who were for longer than a client. They are called, and noted again if they hear of it.
fn pass_over(tables: &QueueTables, prefix: &str) -> String {
    let idle = &tables.idle;
    let notify = notify(prefix, "Q", "o");
    format!(
        "WITH l AS MATERIALIZED (SELECT i.client FROM {idle} i JOIN {idle} d ON d.queue = $1 AND d.client = $2 \
           WHERE i.queue = $1 AND (i.since, i.client) < (d.since, d.client) FOR UPDATE OF i SKIP LOCKED), \
         o AS (DELETE FROM {idle} i USING l WHERE i.queue = $1 AND i.client = l.client RETURNING i.queue, i.client) \
         SELECT {notify} FROM o"
    )
}

/// The most recently idle client is called: the first one goes on watching for what is due.
fn wake(tables: &QueueTables, prefix: &str) -> String {
    let QueueTables { item, idle, .. } = tables;
    let notify = notify(prefix, "Q", "d");
    format!(
        "WITH p AS MATERIALIZED (SELECT q.queue, x.client FROM unnest($1) AS q(queue) CROSS JOIN LATERAL \
             (SELECT i.client FROM {idle} i WHERE i.queue = q.queue AND i.client <> $2 AND i.until > (SELECT {CLOCK}) \
              ORDER BY i.since DESC, i.client DESC LIMIT 1 FOR UPDATE SKIP LOCKED) x \
           WHERE EXISTS (SELECT 1 FROM {item} r WHERE r.queue = q.queue AND r.ready_at <= (SELECT {CLOCK}))), \
         d AS (DELETE FROM {idle} i USING p WHERE i.queue = p.queue AND i.client = p.client RETURNING i.queue, i.client) \
         SELECT {notify} FROM d"
    )
}

fn wake_one(tables: &QueueTables, prefix: &str) -> String {
    let QueueTables { item, idle, .. } = tables;
    let notify = notify(prefix, "Q", "d");
    format!(
        "DELETE FROM {idle} d WHERE d.queue = $1 AND d.client = (SELECT i.client FROM {idle} i WHERE i.queue = $1 \
             AND i.client <> $2 AND i.until > (SELECT {CLOCK}) \
             AND EXISTS (SELECT 1 FROM {item} r WHERE r.queue = $1 AND r.ready_at <= (SELECT {CLOCK})) \
           ORDER BY i.since DESC, i.client DESC LIMIT 1 FOR UPDATE SKIP LOCKED) \
         RETURNING {notify}"
    )
}

fn wake_watchers(tables: &QueueTables, prefix: &str) -> String {
    let idle = &tables.idle;
    let notify = notify(prefix, "W", "x");
    format!(
        "SELECT {notify} FROM unnest($1) AS q(queue) CROSS JOIN LATERAL (SELECT i.queue, i.client FROM {idle} i \
           WHERE i.queue = q.queue AND i.until > (SELECT {CLOCK}) ORDER BY i.since, i.client LIMIT {WATCHERS}) x"
    )
}

/// The statements that make the tables.
pub(crate) fn schema(prefix: &str) -> Vec<String> {
    let QueueTables { item, group, dead, dedup, head, idle, number, version } = QueueTables::new(prefix);
    let index = format!("{}queue_", prefix.rsplit('.').next().unwrap_or(prefix));
    vec![
        format!("CREATE SEQUENCE IF NOT EXISTS {number}"),
        format!(
            "CREATE TABLE IF NOT EXISTS {item} (queue bytea NOT NULL, id bigint NOT NULL, grp bytea, \
             payload bytea NOT NULL, pushed_at bigint NOT NULL, due_at bigint NOT NULL, ready_at bigint, \
             attempts bigint NOT NULL DEFAULT 0, token bigint NOT NULL DEFAULT 0, rests_until bigint NOT NULL DEFAULT 0, \
             claim bytea, client bigint, expires_at bigint, ttl bigint, label bytea, context bytea, PRIMARY KEY (queue, id))"
        ),
        format!(
            "CREATE INDEX IF NOT EXISTS {index}item_ready ON {item} (queue, ready_at, id) WHERE ready_at IS NOT NULL"
        ),
        format!("CREATE INDEX IF NOT EXISTS {index}item_claim ON {item} (claim) WHERE claim IS NOT NULL"),
        format!(
            "CREATE INDEX IF NOT EXISTS {index}item_grp ON {item} (queue, grp, id) WHERE grp IS NOT NULL"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {group} (queue bytea NOT NULL, grp bytea NOT NULL, first bigint, \
             token bigint NOT NULL DEFAULT 0, rests_until bigint NOT NULL DEFAULT 0, PRIMARY KEY (queue, grp))"
        ),
        format!("CREATE INDEX IF NOT EXISTS {index}group_rest ON {group} (rests_until) WHERE first IS NULL"),
        format!(
            "CREATE TABLE IF NOT EXISTS {dead} (queue bytea NOT NULL, id bigint NOT NULL, grp bytea, \
             payload bytea NOT NULL, pushed_at bigint NOT NULL, attempts bigint NOT NULL, reason bytea NOT NULL, \
             died_at bigint NOT NULL, context bytea, PRIMARY KEY (queue, id))"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {dedup} (queue bytea NOT NULL, dedup bytea NOT NULL, item bigint NOT NULL, \
             until bigint NOT NULL, PRIMARY KEY (queue, dedup))"
        ),
        format!("CREATE INDEX IF NOT EXISTS {index}dedup_until ON {dedup} (until)"),
        format!("CREATE TABLE IF NOT EXISTS {head} (queue bytea PRIMARY KEY, rests_until bigint NOT NULL)"),
        format!(
            "CREATE TABLE IF NOT EXISTS {idle} (queue bytea NOT NULL, client bigint NOT NULL, since bigint NOT NULL, \
             until bigint NOT NULL, PRIMARY KEY (queue, client))"
        ),
        format!("CREATE TABLE IF NOT EXISTS {version} (version integer PRIMARY KEY)"),
        format!("INSERT INTO {version} VALUES ({QUEUE_VERSION}) ON CONFLICT DO NOTHING"),
    ]
}

/// The statements that give tables of version 1 their column of contexts, which what wrote them first did not have: a column that is not
/// named by its statements changes nothing for an older client. Each is a transaction by itself, as a client may lock items before
/// dead letters, or the other way round.
pub(crate) fn contexts(prefix: &str) -> [String; 2] {
    let QueueTables { item, dead, .. } = QueueTables::new(prefix);
    [&item, &dead].map(|table| format!("ALTER TABLE {table} ADD COLUMN IF NOT EXISTS context bytea"))
}
