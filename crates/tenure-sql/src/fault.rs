//! What goes wrong between a transaction and its answer.

use tenure_core::error::{Error, ErrorKind};

/// Why a transaction has no answer.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The database gave it up in favour of another, and nothing of it was executed: try again.
    GivenUp(String),
    /// A lock was not free in time, and nothing was executed.
    Locked(String),
    /// The server takes no more connections, and nothing was executed.
    Full(String),
    /// All else, with the text for the user.
    Failed {
        /// What a user can do about it.
        kind: ErrorKind,
        /// What happened.
        message: String,
        /// What to do.
        hint: &'static str,
    },
}

impl Fault {
    /// Whether it may have been executed all the same.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Fault::Failed { kind: ErrorKind::Unavailable, .. })
    }

    /// Whether the database gave it up over locks: nothing of it was executed, and its connection is as good as before.
    pub fn is_given_up(&self) -> bool {
        matches!(self, Fault::GivenUp(_) | Fault::Locked(_))
    }

    /// The database cannot be reached, or did not answer: the outcome is unknown.
    pub fn unavailable(message: impl Into<String>) -> Fault {
        let hint = "is it running and reachable? try `tenure doctor`";
        Fault::Failed { kind: ErrorKind::Unavailable, message: message.into(), hint }
    }

    /// Something that should not be.
    pub fn internal(message: impl Into<String>) -> Fault {
        let hint = "see the database's log, and report it if the database is well";
        Fault::Failed { kind: ErrorKind::Internal, message: message.into(), hint }
    }

    /// Says to a user what failed and what to do.
    pub fn to_error(&self, operation: &'static str) -> Error {
        let (kind, message, hint) = match self {
            Fault::GivenUp(message) => (
                ErrorKind::Unavailable,
                message.as_str(),
                "many transactions contend for the same rows; this passes",
            ),
            Fault::Locked(message) => (
                ErrorKind::Unavailable,
                message.as_str(),
                "a client is paused inside a transaction, or somebody else locks tenure's rows",
            ),
            Fault::Full(message) => (
                ErrorKind::Unavailable,
                message.as_str(),
                "the server has no room: raise `max_connections`, lower `?connections=`, or use a pooler",
            ),
            Fault::Failed { kind, message, hint } => (*kind, message.as_str(), *hint),
        };
        let error = Error::new(kind, operation, message).with_hint(hint);
        // A right, a table or a password is missing: the transaction was not begun, or is undone.
        let is_undone = matches!(kind, ErrorKind::Unsupported | ErrorKind::Invalid);
        if is_undone { error.with_no_effect() } else { error }
    }
}
