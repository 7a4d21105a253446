//! Idle rows go after the token memory, a batch at a time; holds whose holders vanished are cleared away before.

use std::time::Duration;

use tenure_core::model::claim::{ClaimId, Name};
use tenure_core::model::step::Renew;

use crate::database::{Connection, Database};
use crate::fault::Fault;
use crate::locks::load::{moment, moment_asked, names, read_name, rows};
use crate::locks::transaction::run_commands;
use crate::text::{Columns, Dialect, Values, signed};

/// How many resources one transaction removes.
const BATCH: usize = 500;
/// When a resource that is in use is checked, after the last claim or release: its holders may have vanished, and no
/// other client may ever ask for it again.
pub const LOOK_AFTER: Duration = Duration::from_secs(3600);

/// To what the moments are rounded up at which rows are checked, in microseconds.
pub const FORGET_GRAIN: u64 = 600_000_000;

/// What purging did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purged {
    pub(crate) count: usize,
    /// Whether there may be more to do at once.
    pub(crate) is_more: bool,
}

/// Removes what was only marked as gone, for a client that may delete, in all tables. No other statement reads such
/// rows.
pub(crate) async fn sweep<D: Database>(database: &D) -> Result<(), Fault> {
    let tables = database.tables();
    let name = D::Dialect::hex("name");
    let mut connection = database.connection().await?;
    let asked = connection.run(moment_asked::<D::Dialect>()).await?;
    let over = format!("until <= {}", signed(moment(&asked, 0)?.0.micros()));
    for (table, keys, columns, is_marked) in [
        (&tables.claim, "name, place, token", format!("{name}, place, token"), "place < 0"),
        (&tables.slot, "name, number", format!("{name}, number"), "number < 0"),
        (&tables.finished, "name, claim", format!("{name}, {}", D::Dialect::hex("claim")), over.as_str()),
    ] {
        loop {
            // Selected without a lock, and then deleted by their keys: clients at work are not waited for.
            let found = format!("SELECT {columns} FROM {table} WHERE {is_marked} LIMIT {BATCH}");
            let found = connection.run(found).await?;
            let mut list = String::new();
            for row in rows(&found, 0) {
                let mut columns = Columns::of(row);
                list.push_str(if list.is_empty() { "(" } else { ",(" });
                let mut values = Values::new(&mut list);
                values.bytes::<D::Dialect>(&columns.bytes()?);
                match keys {
                    "name, claim" => values.bytes::<D::Dialect>(&columns.bytes()?),
                    "name, number" => values.number(columns.number()?),
                    _ => values.number(columns.number()?).number(columns.number()?),
                };
                list.push(')');
            }
            if list.is_empty() {
                break;
            }
            connection.run(D::Dialect::delete(table, keys, &list, &format!("AND {is_marked}"))).await?;
        }
    }
    connection.keep();
    Ok(())
}

/// Removes rows of resources that have been idle for longer than anything about them is worth remembering. Rows that
/// another transaction has locked are left for the next time.
pub(crate) async fn purge<D: Database>(database: &D) -> Result<Purged, Fault> {
    let tables = database.tables();
    let (resource, hex) = (&tables.resource, D::Dialect::hex("name"));
    let mut connection = database.connection().await?;
    // A clock that goes on within a statement finds nothing by an index. A number does.
    let asked = connection.run(moment_asked::<D::Dialect>()).await?;
    let clock = signed(moment(&asked, 0)?.0.micros());
    let begin = D::Dialect::BEGIN.join(";\n");
    let statement = format!(
        "{begin};\nSELECT {hex}, entries FROM {resource} WHERE forget_at <= {clock} AND (observed_until IS NULL OR \
         observed_until <= {clock}) ORDER BY forget_at LIMIT {BATCH} FOR UPDATE SKIP LOCKED"
    );
    let answers = connection.run(statement).await?;
    let (mut idle, mut in_use) = (Vec::new(), Vec::new());
    for row in rows(&answers, D::Dialect::BEGIN.len()) {
        let mut columns = Columns::of(row);
        let name = read_name(&columns.bytes()?)?;
        if columns.number()? == 0 { idle.push(name) } else { in_use.push(name) }
    }
    let list = |found: &[Name]| names::<D::Dialect>(found);
    let mut script = String::new();
    if !idle.is_empty() {
        // What is left of their claims are marks, and those must not outlive the count of places.
        for table in [&tables.claim, &tables.finished, &tables.slot, resource] {
            let rows: Vec<String> =
                idle.iter().map(|name| format!("({})", names::<D::Dialect>([name]))).collect();
            script.push_str(&D::Dialect::delete(table, "name", &rows.join(","), ""));
            script.push_str(";\n");
        }
    }
    if !in_use.is_empty() {
        let later = LOOK_AFTER.as_micros();
        script.push_str(&format!(
            "UPDATE {resource} SET forget_at = {clock} + {later} WHERE name IN ({});\n",
            list(&in_use)
        ));
    }
    script.push_str("COMMIT");
    connection.go_on(script).await?;
    connection.keep();
    // A renewal of a claim that does not exist brings the record up to date, and wakes waiters.
    let nobody = Renew(ClaimId::new(0));
    let settle: Vec<_> = in_use.iter().map(|name| (name, &nobody)).collect();
    if !settle.is_empty() {
        run_commands(database, &settle).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    Ok(Purged { count: idle.len(), is_more: idle.len() + in_use.len() == BATCH })
}
