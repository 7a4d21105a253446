//! Clients of SQL servers that are small enough to be trusted by tests: they block, and repeat nothing.
//!
//! They speak the protocols themselves. Rejected: `sqlx` 0.9, which asks for a newer Rust (1.94) than the project
//! does, and two minutes of a clean build's CPU time for both databases; `psql` and `mariadb`, which bind no
//! values. What an engine's own client does with a statement is for that engine's tests.

use std::fmt;
use std::io::{Error, ErrorKind};
use std::time::Duration;

mod mariadb;
mod postgres;

/// How long an answer may take: servers are stopped in tests, and a test that asks one must not wait for ever.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A value for a parameter of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SqlValue {
    /// A bigint.
    Integer(i64),
    /// A text.
    Text(String),
}

impl From<i64> for SqlValue {
    fn from(number: i64) -> SqlValue {
        SqlValue::Integer(number)
    }
}

impl From<&str> for SqlValue {
    fn from(text: &str) -> SqlValue {
        SqlValue::Text(text.to_owned())
    }
}

/// What a statement did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SqlAnswer {
    /// How many rows it affected, as the server counts them.
    pub affected: u64,
    /// The rows that it returned, as text; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
}

impl SqlAnswer {
    /// Returns the first column of the first row, if there is one and it is not NULL.
    pub fn first(&self) -> Option<&str> {
        self.rows.first()?.first()?.as_deref()
    }
}

/// Why a statement did nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlError {
    /// What the server calls it: five characters (SQLSTATE), or `connection` if there was no answer.
    pub code: String,
    /// The server's words.
    pub message: String,
}

impl SqlError {
    /// Whether there was no answer: what the statement did is unknown.
    pub fn is_unknown(&self) -> bool {
        self.code == "connection"
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for SqlError {}

impl From<Error> for SqlError {
    fn from(error: Error) -> SqlError {
        SqlError { code: "connection".to_owned(), message: error.to_string() }
    }
}

/// One protocol.
trait Wire: Send {
    fn ask(&mut self, statement: &str, values: &[SqlValue]) -> Result<SqlAnswer, SqlError>;
}

/// A connection with a SQL server.
pub struct SqlConnection(Box<dyn Wire>);

impl fmt::Debug for SqlConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlConnection").finish_non_exhaustive()
    }
}

impl SqlConnection {
    /// Connects with PostgreSQL, or a pooler before it, on a port of 127.0.0.1.
    ///
    /// # Errors
    /// As the system or the server reports them.
    pub fn to_postgres(port: u16, user: &str, database: &str) -> Result<SqlConnection, SqlError> {
        Ok(SqlConnection(Box::new(postgres::Postgres::connect(port, user, database)?)))
    }

    /// Connects with MariaDB or MySQL on a port of 127.0.0.1, without a password. `counts_found` is what such
    /// clients differ in: whether a row that is set to what it was counts as affected.
    ///
    /// # Errors
    /// As the system or the server reports them.
    pub fn to_mariadb(
        port: u16,
        user: &str,
        database: &str,
        counts_found: bool,
    ) -> Result<SqlConnection, SqlError> {
        Ok(SqlConnection(Box::new(mariadb::MariaDb::connect(port, user, database, counts_found)?)))
    }

    /// Runs one statement with values for its parameters, and waits for the answer, 20 s at most.
    ///
    /// # Errors
    /// As the system or the server reports them.
    pub fn ask(&mut self, statement: &str, values: &[SqlValue]) -> Result<SqlAnswer, SqlError> {
        self.0.ask(statement, values)
    }

    /// Runs a statement without parameters.
    ///
    /// # Panics
    /// If it is refused or there is no answer.
    pub fn run(&mut self, statement: &str) -> SqlAnswer {
        self.ask(statement, &[]).unwrap_or_else(|error| panic!("{statement}: {error}"))
    }
}

fn malformed(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the server's answer is not understood: {what}"))
}
