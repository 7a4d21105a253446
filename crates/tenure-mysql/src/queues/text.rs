//! Pieces of texts, and the tables.

use tenure_core::model::claim::Name;
use tenure_sql::{Dialect, QUEUE_VERSION, QueueTables};

use crate::dialect::MySqlDialect;

pub(crate) fn bytes(name: &Name) -> &[u8] {
    name.as_str().as_bytes()
}

pub(crate) fn literal(bytes: &[u8]) -> String {
    let mut text = String::new();
    MySqlDialect::push_bytes(&mut text, bytes);
    text
}

/// Statements that are sent in one piece.
#[derive(Debug, Default)]
pub(crate) struct Script {
    statements: Vec<String>,
}

impl Script {
    /// Begins with a transaction.
    pub(crate) fn begin() -> Script {
        Script { statements: MySqlDialect::BEGIN.iter().map(|text| (*text).to_owned()).collect() }
    }

    /// Adds a statement, and returns the number of its answer.
    pub(crate) fn add(&mut self, statement: &str) -> usize {
        self.statements.push(statement.to_owned());
        self.statements.len() - 1
    }

    pub(crate) fn text(&self) -> String {
        self.statements.join(";\n")
    }
}

/// Rows of literals: `(1,X'6d'),(2,NULL)`.
#[derive(Debug, Default)]
pub(crate) struct Rows(pub(crate) String);

impl Rows {
    pub(crate) fn add<const N: usize>(&mut self, values: [String; N]) {
        self.0.push_str(if self.0.is_empty() { "(" } else { ",(" });
        self.0.push_str(&values.join(","));
        self.0.push(')');
    }
}

/// The statements that make the tables. The index of claims is not unique: to make sure of that, the server would lock the
/// gaps between claims.
pub(crate) fn schema(prefix: &str) -> Vec<String> {
    let end = "ENGINE = InnoDB DEFAULT CHARSET = binary";
    let QueueTables { item, group, dead, dedup, head, version, .. } = QueueTables::new(prefix);
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {item} (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, queue VARBINARY(255) NOT NULL, \
             grp VARBINARY(255), payload MEDIUMBLOB NOT NULL, pushed_at BIGINT NOT NULL, due_at BIGINT NOT NULL, \
             ready_at BIGINT, attempts BIGINT NOT NULL DEFAULT 0, token BIGINT NOT NULL DEFAULT 0, \
             rests_until BIGINT NOT NULL DEFAULT 0, claim VARBINARY(16), client BIGINT, expires_at BIGINT, ttl BIGINT, \
             label VARBINARY(1024), context VARBINARY(255), KEY by_ready (queue, ready_at, id), KEY by_claim (claim), KEY by_group (queue, grp, id)) {end}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {group} (queue VARBINARY(255) NOT NULL, grp VARBINARY(255) NOT NULL, first BIGINT, \
             token BIGINT NOT NULL DEFAULT 0, rests_until BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (queue, grp), \
             KEY by_rest (rests_until)) {end}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {dead} (queue VARBINARY(255) NOT NULL, id BIGINT NOT NULL, grp VARBINARY(255), \
             payload MEDIUMBLOB NOT NULL, pushed_at BIGINT NOT NULL, attempts BIGINT NOT NULL, \
             reason VARBINARY(1024) NOT NULL, died_at BIGINT NOT NULL, context VARBINARY(255), PRIMARY KEY (queue, id)) {end}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {dedup} (queue VARBINARY(255) NOT NULL, dedup VARBINARY(255) NOT NULL, \
             item BIGINT NOT NULL, until BIGINT NOT NULL, PRIMARY KEY (queue, dedup), KEY by_until (until)) {end}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {head} (queue VARBINARY(255) NOT NULL PRIMARY KEY, rests_until BIGINT NOT NULL) {end}"
        ),
        format!("CREATE TABLE IF NOT EXISTS {version} (version INT NOT NULL PRIMARY KEY) {end}"),
        format!("INSERT INTO {version} VALUES ({QUEUE_VERSION}) ON DUPLICATE KEY UPDATE version = version"),
    ]
}

/// The tables that keep contexts, and the statements that give them the column if an older version has made them: a column that is not
/// named by its statements changes nothing for an older client.
pub(crate) fn contexts(prefix: &str) -> [(String, String); 2] {
    let QueueTables { item, dead, .. } = QueueTables::new(prefix);
    [item, dead].map(|table| {
        let add = format!("ALTER TABLE {table} ADD COLUMN context VARBINARY(255)");
        (table, add)
    })
}
