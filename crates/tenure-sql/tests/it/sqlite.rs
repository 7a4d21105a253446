//! SQLite as a [`Database`] without queues: the least that an engine's crate has to write.

use std::sync::Arc;

use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::types::ValueRef;
use tenure_core::engine::{Capability, Connect, Finding, Reach};
use tenure_core::model::claim::ClientId;
use tenure_sql::doctor::{clock, latency};
use tenure_sql::{
    Connection, Database, Dialect, Fault, Hosted, Inbox, Notification, Purpose, Row, Tables, push_hex,
};
use tokio::sync::{Mutex, OwnedMutexGuard};

const TABLES: &str = "
    CREATE TABLE tenure_resource (
        name BLOB PRIMARY KEY, kind INT, capacity INT NOT NULL DEFAULT 1, last_token INT NOT NULL DEFAULT 0,
        used INT NOT NULL DEFAULT 0, waiting INT NOT NULL DEFAULT 0, next_place INT NOT NULL DEFAULT 1,
        fresh_slots INT NOT NULL DEFAULT 0, idle_since INT NOT NULL DEFAULT 0, entries INT NOT NULL DEFAULT 0,
        finished_until INT, next_slot INT NOT NULL DEFAULT 1, forget_at INT, observed_until INT, value BLOB,
        value_token INT, value_fresh_until INT, value_keep_until INT, plain_claim BLOB);
    CREATE TABLE tenure_claim (
        name BLOB, place INT, token INT, claim BLOB, client INT, weight INT, slot INT, granted_at INT, expires_at INT,
        is_confirmed INT, ttl INT, max_hold INT, min_hold INT, lock_delay INT, label BLOB, unless_fresh INT,
        PRIMARY KEY (name, place, token));
    CREATE TABLE tenure_finished (name BLOB, claim BLOB, until INT, PRIMARY KEY (name, claim));
    CREATE TABLE tenure_slot (name BLOB, number INT, slot INT, PRIMARY KEY (name, number));";

/// SQLite's words.
pub(crate) struct SqliteDialect;

impl Dialect for SqliteDialect {
    const CLOCK: &'static str = "CAST(unixepoch('subsec') * 1000000 AS INT)";
    // It has the life of the test.
    const LIFE: &'static str = "1";
    const BEGIN: &'static [&'static str] = &["BEGIN IMMEDIATE"];
    const BEGIN_LOOK: &'static [&'static str] = &["BEGIN"];

    fn push_bytes(to: &mut String, bytes: &[u8]) {
        to.push_str("X'");
        push_hex(to, bytes);
        to.push('\'');
    }

    fn hex(column: &str) -> String {
        // `hex` makes an empty text of NULL.
        format!("CASE WHEN {column} IS NOT NULL THEN hex({column}) END")
    }

    fn unless_exists(keys: &str) -> String {
        format!("ON CONFLICT ({keys}) DO NOTHING")
    }

    fn or_replace(keys: &str, columns: &[&str]) -> String {
        let set: Vec<String> = columns.iter().map(|column| format!("{column} = excluded.{column}")).collect();
        format!("ON CONFLICT ({keys}) DO UPDATE SET {}", set.join(", "))
    }

    fn renew(table: &str, claims: &str) -> String {
        let (clock, hex) = (Self::CLOCK, Self::hex("claim"));
        format!(
            "UPDATE {table} SET is_confirmed = 1, \
             expires_at = max(expires_at, min({clock} + ttl, coalesce(granted_at + max_hold, {clock} + ttl))) \
             WHERE claim IN ({claims}) AND place = 0 AND expires_at > {clock} \
             RETURNING {hex}, token, slot, expires_at - {clock}"
        )
    }

    fn delete(table: &str, keys: &str, rows: &str, also: &str) -> String {
        format!("DELETE FROM {table} WHERE ({keys}) IN (VALUES {rows}) {also}")
    }

    fn update(table: &str, keys: &str, rows: &str, also: &str, set: &str) -> String {
        format!("UPDATE {table} SET {set} WHERE ({keys}) IN (VALUES {rows}) {also}")
    }
}

/// The one connection there is.
pub(crate) struct Lent(OwnedMutexGuard<rusqlite::Connection>);

impl Lent {
    fn try_run(&mut self, script: &str) -> rusqlite::Result<Vec<Vec<Row>>> {
        let mut answers = Vec::new();
        let mut batch = rusqlite::Batch::new(&self.0, script);
        while let Some(mut statement) = batch.next()? {
            let columns = statement.column_count();
            let rows = statement.query_map([], |row| (0..columns).map(|at| text(row.get_ref(at)?)).collect());
            answers.push(rows?.collect::<rusqlite::Result<_>>()?);
        }
        Ok(answers)
    }
}

fn text(value: ValueRef<'_>) -> rusqlite::Result<Option<String>> {
    Ok(match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        other => Some(other.as_str()?.to_owned()),
    })
}

impl Connection for Lent {
    async fn run(&mut self, script: String) -> Result<Vec<Vec<Row>>, Fault> {
        // A transaction that writes locks everything from its beginning on: there are no locks of rows.
        let script = script.replace("FOR UPDATE SKIP LOCKED", "").replace("FOR UPDATE", "");
        self.try_run(&script).map_err(|error| Fault::internal(error.to_string()))
    }

    fn keep(self) {
        assert!(self.0.is_autocommit(), "it is in no transaction");
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.0.is_autocommit() {
            self.0.execute_batch("ROLLBACK").expect("a transaction can be given up");
        }
    }
}

/// A database for each test.
pub(crate) struct Store(Arc<Mutex<rusqlite::Connection>>);

impl Store {
    pub(crate) fn new() -> Store {
        let connection = rusqlite::Connection::open_in_memory().expect("memory");
        connection.execute_batch(TABLES).expect("tables");
        Store(Arc::new(Mutex::new(connection)))
    }

    /// What connects one more client.
    pub(crate) fn connector(&self) -> Connect {
        let connection = self.0.clone();
        Connect::new("sqlite", async move |client: ClientId| {
            let mut capability = Capability::of_step();
            capability.reach = Reach::Process;
            capability.tells_waiters = false;
            let (tables, inbox) = (Tables::new("tenure_"), Inbox::new(client));
            Ok(Arc::new(Hosted::new(Sqlite { connection, tables, capability, inbox }, true)))
        })
    }
}

struct Sqlite {
    connection: Arc<Mutex<rusqlite::Connection>>,
    tables: Tables,
    capability: Capability,
    inbox: Inbox,
}

impl Database for Sqlite {
    type Dialect = SqliteDialect;
    type Connection = Lent;

    const ENGINE: &'static str = "sqlite";

    async fn lend(&self, _: Purpose) -> Result<Lent, Fault> {
        Ok(Lent(self.connection.clone().lock_owned().await))
    }

    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    fn tell(&self, _: &[Notification]) -> Option<String> {
        None
    }

    fn hears(&self) -> bool {
        false
    }

    async fn check(&self) -> Vec<Finding> {
        vec![tenure_sql::try_out(self).await, clock(self).await, latency(self).await]
    }
}
