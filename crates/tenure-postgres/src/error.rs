//! What PostgreSQL's errors mean.

use tenure_core::error::{ErrorKind, plain};
use tenure_sql::Fault;
use tokio_postgres::Error;
use tokio_postgres::error::{Severity, SqlState};

use crate::client::open::CLEAR_TEXT;

const CLEAR_TEXT_HINT: &str =
    "use `?sslmode=require`, or let the server ask for `scram-sha-256` in its `pg_hba.conf`";
const TLS_HINT: &str =
    "the URL asks for TLS (`sslmode` or `ca`): turn it on in the server, or see who answers in its place";
const LOGIN_HINT: &str = "check the user and the password of the URL";

/// Makes a fault of an error of the client or the server.
pub(crate) fn fault(error: &Error) -> Fault {
    let Some(said) = error.as_db_error() else {
        let message = cause(error);
        // The client's own words where the server asks for a password and the URL has none.
        if message.contains("password missing") {
            return Fault::Failed { kind: ErrorKind::Invalid, message, hint: LOGIN_HINT };
        }
        if message.contains(CLEAR_TEXT) {
            return Fault::Failed { kind: ErrorKind::Invalid, message, hint: CLEAR_TEXT_HINT };
        }
        if message.contains("does not support TLS") {
            return Fault::Failed { kind: ErrorKind::Unavailable, message, hint: TLS_HINT };
        }
        return Fault::unavailable(plain(&message));
    };
    let message = format!("the server says: {} ({})", said.message(), said.code().code());
    let failed = |kind, hint| Fault::Failed { kind, message: message.clone(), hint };
    let code = said.code();
    if [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE].contains(code) {
        return Fault::GivenUp(message);
    }
    // A copy of the same claim was quicker, of which a statement that began earlier knows nothing.
    if *code == SqlState::UNIQUE_VIOLATION {
        return Fault::GivenUp(message);
    }
    if *code == SqlState::TOO_MANY_CONNECTIONS {
        return Fault::Full(message);
    }
    if *code == SqlState::LOCK_NOT_AVAILABLE {
        return Fault::Locked(message);
    }
    let unavailable = ErrorKind::Unavailable;
    match &code.code()[..2] {
        "57" if *code == SqlState::QUERY_CANCELED => {
            failed(unavailable, "it took longer than the client waits, or an operator ended it; this passes")
        }
        "08" | "57" => {
            failed(unavailable, "the server ends or starts, or an operator ended the connection; this passes")
        }
        "53" if *code == SqlState::DISK_FULL => {
            failed(unavailable, "the server's disk is full: free some space")
        }
        // What a session needs could not be read or written as it began: its disk is full, say, and that has no code of its own there.
        "XX" if said.parsed_severity() == Some(Severity::Fatal) => failed(
            unavailable,
            "the server ended the session, or could not begin it: is its disk full? see its log",
        ),
        "53" => failed(unavailable, "the server has no room: raise `max_connections`, or use a pooler"),
        "28" => failed(ErrorKind::Invalid, LOGIN_HINT),
        "3D" => failed(ErrorKind::Invalid, "check the name of the database in the URL"),
        _ if *code == SqlState::READ_ONLY_SQL_TRANSACTION => failed(
            unavailable,
            "the server is a standby, or its default is read-only; after a failover this passes",
        ),
        _ if *code == SqlState::INSUFFICIENT_PRIVILEGE => failed(
            ErrorKind::Unsupported,
            "let the user SELECT, INSERT, UPDATE and DELETE on tenure's tables, or create them; without DELETE, use `?purge=off`",
        ),
        _ if [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN].contains(code) => {
            failed(ErrorKind::Unsupported, "make the tables: `tenure doctor --migrate`")
        }
        "25" => failed(
            unavailable,
            "the server ended the transaction, for the client was too slow; it is repeated",
        ),
        _ => failed(ErrorKind::Internal, "see the server's log, and report it if the server is well"),
    }
}

/// The last cause: the ones above it only say that there is one.
fn cause(error: &Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
