//! Idle rows go after the token memory, a batch at a time.

use crate::database::{Connection, Database};
use crate::fault::Fault;
use crate::load::rows;
use crate::text::{Columns, Dialect};

/// How many resources one transaction removes.
const BATCH: usize = 500;

/// Removes rows of resources that have been idle for longer than anything about them is worth remembering, and
/// returns how many. Rows that somebody else has locked are left for the next time.
pub(crate) async fn purge<D: Database>(database: &D) -> Result<usize, Fault> {
    let tables = database.tables();
    let (resource, hex, clock) = (&tables.resource, D::Dialect::hex("name"), D::Dialect::CLOCK);
    let mut connection = database.connection().await?;
    let begin = D::Dialect::BEGIN.join(";\n");
    let statement = format!(
        "{begin};\nSELECT {hex} FROM {resource} WHERE forget_at <= {clock} AND (observed_until IS NULL OR observed_until \
         <= {clock}) AND entries = 0 ORDER BY forget_at LIMIT {BATCH} FOR UPDATE SKIP LOCKED"
    );
    let answers = connection.run(statement).await?;
    let found = rows(&answers, D::Dialect::BEGIN.len());
    if found.is_empty() {
        connection.run("ROLLBACK".to_owned()).await?;
        connection.keep();
        return Ok(0);
    }
    let mut list = String::new();
    let mut values = crate::text::Values::new(&mut list);
    for row in found {
        values.bytes::<D::Dialect>(&Columns::of(row).bytes()?);
    }
    let mut script = String::new();
    for table in [&tables.finished, &tables.slot, resource] {
        script.push_str(&format!("DELETE FROM {table} WHERE name IN ({list});\n"));
    }
    script.push_str("COMMIT");
    connection.run(script).await?;
    connection.keep();
    Ok(found.len())
}
