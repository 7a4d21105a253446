//! What is only worth remembering for a time goes, a batch at a time.

use crate::database::Connection;
use crate::fault::Fault;
use crate::locks::load::{moment, moment_asked, rows};
use crate::queues::QueueDatabase;
use crate::text::{Columns, Dialect, Values, signed};

/// How many rows one statement removes.
const BATCH: usize = 500;

/// Removes dedup ids, rests and idle clients whose time is over.
pub(crate) async fn forget<D: QueueDatabase>(database: &D) -> Result<(), Fault> {
    let tables = database.queue_tables();
    let mut connection = database.connection().await?;
    let asked = connection.run(moment_asked::<D::Dialect>()).await?;
    let clock = signed(moment(&asked, 0)?.0.micros());
    let item = &tables.item;
    let dedup = &tables.dedup;
    let is_gone = format!(
        "AND NOT EXISTS (SELECT 1 FROM {item} i WHERE i.queue = {dedup}.queue AND i.id = {dedup}.item)"
    );
    for (table, key, is_over, also) in [
        (dedup, "dedup", format!("until <= {clock}"), is_gone.as_str()),
        (&tables.group, "grp", format!("first IS NULL AND rests_until <= {clock}"), ""),
        (&tables.idle, "client", format!("until <= {clock}"), ""),
        (&tables.head, "", format!("rests_until <= {clock}"), ""),
    ] {
        // Where clients cannot be woken, none is noted.
        if key == "client" && !database.hears() {
            continue;
        }
        let keys = if key.is_empty() { "queue".to_owned() } else { format!("queue, {key}") };
        loop {
            // Selected without a lock, and then deleted by their keys: clients at work are not waited for.
            let columns = match key {
                "" => D::Dialect::hex("queue"),
                "client" => format!("{}, client", D::Dialect::hex("queue")),
                key => format!("{}, {}", D::Dialect::hex("queue"), D::Dialect::hex(key)),
            };
            let found = format!("SELECT {columns} FROM {table} WHERE {is_over} {also} LIMIT {BATCH}");
            let found = connection.run(found).await?;
            let found = rows(&found, 0);
            let mut list = String::new();
            for row in found {
                let mut columns = Columns::of(row);
                list.push_str(if list.is_empty() { "(" } else { ",(" });
                let mut values = Values::new(&mut list);
                values.bytes::<D::Dialect>(&columns.bytes()?);
                match key {
                    "" => {}
                    "client" => drop(values.number(columns.number()?)),
                    _ => drop(values.bytes::<D::Dialect>(&columns.bytes()?)),
                }
                list.push(')');
            }
            if list.is_empty() {
                break;
            }
            connection.run(D::Dialect::delete(table, &keys, &list, &format!("AND {is_over}"))).await?;
            if found.len() < BATCH {
                break;
            }
        }
    }
    connection.keep();
    Ok(())
}
