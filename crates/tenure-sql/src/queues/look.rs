//! What operators ask. Nothing is locked, and nothing written.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::engine::queue::{ItemContext, ItemId, ItemState, ItemView, QueueStats, Which};
use tenure_core::model::claim::{Label, Name};

use crate::database::{Connection, Row};
use crate::fault::Fault;
use crate::locks::load::{names, read_name, rows};
use crate::queues::QueueDatabase;
use crate::text::{Columns, Dialect, signed};

async fn ask<D: QueueDatabase>(database: &D, statement: String) -> Result<Vec<Row>, Fault> {
    let mut connection = database.connection().await?;
    let answers = connection.run(statement).await?;
    connection.keep();
    Ok(answers.into_iter().next().unwrap_or_default())
}

fn clock<D: QueueDatabase>() -> &'static str {
    <D::Dialect as Dialect>::CLOCK
}

/// The numbers of up to `most` items after a number: of those without a consumer, or of dead ones.
pub(crate) async fn numbers<D: QueueDatabase>(
    database: &D,
    queue: &Name,
    which: Which,
    after: Option<ItemId>,
    most: usize,
) -> Result<Vec<ItemId>, Fault> {
    let tables = database.queue_tables();
    let (table, also) = match which {
        Which::Live => (&tables.item, "AND claim IS NULL"),
        Which::Dead => (&tables.dead, ""),
    };
    let queue = names::<D::Dialect>([queue]);
    let after = signed(after.unwrap_or_default().0);
    let statement = format!(
        "SELECT id FROM {table} WHERE queue = {queue} AND id > {after} {also} ORDER BY id LIMIT {most}"
    );
    let found = ask(database, statement).await?;
    found.iter().map(|row| Columns::of(row).unsigned().map(ItemId)).collect()
}

/// Counts what is in the queues of a page: `stats` of one of them, if its name is given.
async fn count<D: QueueDatabase>(
    database: &D,
    which: &str,
    most: usize,
) -> Result<Vec<(Name, QueueStats)>, Fault> {
    let tables = database.queue_tables();
    let (item, dead, head) = (&tables.item, &tables.dead, &tables.head);
    let statement = format!(
        "SELECT {hex}, items, handed, dead, ready, (SELECT h.rests_until FROM {head} h WHERE h.queue = q.queue), {clock} FROM ( \
           SELECT queue, SUM(items) AS items, SUM(handed) AS handed, SUM(dead) AS dead, MIN(ready) AS ready FROM ( \
             (SELECT queue, COUNT(*) AS items, COUNT(claim) AS handed, 0 AS dead, MIN(ready_at) AS ready \
              FROM {item} WHERE {which} GROUP BY queue ORDER BY queue LIMIT {most}) \
             UNION ALL \
             (SELECT queue, 0 AS items, 0 AS handed, COUNT(*) AS dead, NULL AS ready \
              FROM {dead} WHERE {which} GROUP BY queue ORDER BY queue LIMIT {most}) \
           ) parts GROUP BY queue) q ORDER BY q.queue LIMIT {most}",
        hex = D::Dialect::hex("q.queue"),
        clock = clock::<D>(),
    );
    let found = ask(database, statement).await?;
    let read = |row: &Row| {
        let mut columns = Columns::of(row);
        let name = read_name(&columns.bytes()?)?;
        let (items, handed, dead) = (columns.unsigned()?, columns.unsigned()?, columns.unsigned()?);
        let (ready, rests) = (columns.maybe()?, columns.maybe()?);
        let now = columns.moment()?;
        let mut stats = QueueStats::default();
        (stats.waiting, stats.in_flight, stats.dead) = (items - handed, handed, dead);
        stats.next_in = ready.map(|ready| since(ready.max(rests.unwrap_or(0)), now));
        Ok((name, stats))
    };
    found.iter().map(read).collect()
}

fn since(at: i64, now: Timestamp) -> Duration {
    Timestamp::from_micros(at.unsigned_abs()).since(now)
}

pub(crate) async fn stats<D: QueueDatabase>(database: &D, queue: &Name) -> Result<QueueStats, Fault> {
    let which = format!("queue = {}", names::<D::Dialect>([queue]));
    let found = count(database, &which, 1).await?;
    Ok(found.into_iter().next().map(|(_, stats)| stats).unwrap_or_default())
}

/// Whether a queue has no item. One row is read, however many there are.
pub(crate) async fn is_empty<D: QueueDatabase>(database: &D, queue: &Name) -> Result<bool, Fault> {
    let item = &database.queue_tables().item;
    let queue = names::<D::Dialect>([queue]);
    let found = ask(database, format!("SELECT 1 FROM {item} WHERE queue = {queue} LIMIT 1")).await?;
    Ok(found.is_empty())
}

pub(crate) async fn queues<D: QueueDatabase>(
    database: &D,
    prefix: &str,
    after: Option<&Name>,
    most: usize,
) -> Result<Vec<(Name, QueueStats)>, Fault> {
    let mut which = String::from("queue >= ");
    D::Dialect::push_bytes(&mut which, prefix.as_bytes());
    // No UTF-8 has this byte in it.
    which.push_str(" AND queue < ");
    D::Dialect::push_bytes(&mut which, &[prefix.as_bytes(), &[0xff]].concat());
    if let Some(after) = after {
        which.push_str(" AND queue > ");
        which.push_str(&names::<D::Dialect>([after]));
    }
    count(database, &which, most).await
}

pub(crate) async fn items<D: QueueDatabase>(
    database: &D,
    queue: &Name,
    which: Which,
    after: Option<ItemId>,
    most: usize,
) -> Result<Vec<ItemView>, Fault> {
    let tables = database.queue_tables();
    let hex = D::Dialect::hex;
    let (table, more) = match which {
        Which::Live => (&tables.item, format!("{}, expires_at, ready_at, {}", hex("claim"), hex("label"))),
        Which::Dead => (&tables.dead, format!("died_at, {}", hex("reason"))),
    };
    let statement = format!(
        "SELECT {clock}, id, {}, {}, {context}, attempts, pushed_at, {more} FROM {table} WHERE queue = {} AND id > {} ORDER BY id LIMIT {most}",
        hex("grp"),
        hex("payload"),
        names::<D::Dialect>([queue]),
        signed(after.unwrap_or_default().0),
        clock = clock::<D>(),
        context = if database.keeps_contexts() { hex("context") } else { "NULL".to_owned() },
    );
    let mut connection = database.connection().await?;
    let answers = connection.run(statement).await?;
    connection.keep();
    rows(&answers, 0).iter().map(|row| view(row, which)).collect()
}

fn view(row: &Row, which: Which) -> Result<ItemView, Fault> {
    let mut columns = Columns::of(row);
    let (now, item) = (columns.moment()?, ItemId(columns.unsigned()?));
    let group = columns.maybe_bytes()?.map(|bytes| read_name(&bytes)).transpose()?;
    let payload: Arc<[u8]> = columns.bytes()?.into();
    let context = columns.maybe_bytes()?.and_then(|bytes| ItemContext::from_stored(&bytes));
    let (attempts, pushed_at) = (columns.small()?, columns.moment()?);
    let state = match which {
        Which::Dead => {
            let since = now.since(columns.moment()?);
            ItemState::Dead { reason: String::from_utf8_lossy(&columns.bytes()?).into_owned(), since }
        }
        Which::Live => {
            let (claim, expires_at) = (columns.maybe_claim()?, columns.maybe()?);
            let (ready_at, label) = (columns.maybe()?, columns.maybe_bytes()?);
            let ends_in = since(expires_at.unwrap_or(0), now);
            match (claim, ready_at) {
                (Some(_), _) if !ends_in.is_zero() => {
                    let label = label.unwrap_or_default();
                    let label = Label::from_stored(&String::from_utf8_lossy(&label));
                    ItemState::InFlight { label, ends_in }
                }
                (_, Some(ready_at)) => ItemState::Waiting { ready_in: since(ready_at, now) },
                (_, None) => ItemState::Behind,
            }
        }
    };
    Ok(ItemView { item, group, payload, context, attempts, age: now.since(pushed_at), state })
}
