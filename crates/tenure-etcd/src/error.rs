//! What goes wrong between a request and its answer, and the error that a user gets.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tonic::{Code, Status};

/// What etcd's own errors begin with. All others are of the way there.
const OF_ETCD: &str = "etcdserver:";

/// What etcd says when its database is full. Its code is that of other refusals, too.
const FULL: &str = "database space exceeded";

/// Whether this was said because the database is full: nothing is written until an operator makes room, and what is
/// there may be removed.
pub(crate) fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.to_string().contains(FULL)
}

/// Why a request has no answer.
///
/// The one thing that a caller must know is whether a request that writes may have been executed:
/// [`Fault::is_outcome_unknown`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It was sent, and not answered in time. It may have been executed, or may still be.
    Silent { endpoint: String, after: Duration },
    /// It was sent, and the connection broke. It may have been executed.
    Cut { endpoint: String, why: String },
    /// It was not sent: no endpoint could be reached in time. With why the last attempt failed.
    Down { why: String },
    /// The server answered with an error.
    Server { endpoint: String, code: Code, message: String },
    /// There is no such lease. (A keep-alive says so too, though etcd answers it with a ttl of 0.)
    NoLease { id: i64 },
    /// The settings cannot work: a file with certificates cannot be read.
    Setup { why: String, hint: &'static str },
}

impl Fault {
    /// Makes a fault of the status of a request that was sent.
    pub(crate) fn of_status(endpoint: &str, status: &Status) -> Fault {
        let endpoint = endpoint.to_owned();
        if status.message().starts_with(OF_ETCD) {
            return Fault::Server { endpoint, code: status.code(), message: status.message().to_owned() };
        }
        // What etcd says in Go's words comes with a code too: a request that it gave up, after which it may be executed.
        Fault::Cut { endpoint, why: reason(status) }
    }

    /// Returns whether the request may have been executed although no answer says so.
    pub(crate) fn is_outcome_unknown(&self) -> bool {
        match self {
            Fault::Silent { .. } | Fault::Cut { .. } => true,
            // A full database is noticed before a request is proposed, and once more when it is carried out: then it is, and refused.
            Fault::Server { .. } if self.is_full() => true,
            // etcd checks for a leader before anything else, since every request asks it to.
            Fault::Server { code: Code::Unavailable, .. } => !self.is_no_leader(),
            Fault::Server { code, .. } => {
                matches!(
                    code,
                    Code::Unknown | Code::Internal | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted
                )
            }
            _ => false,
        }
    }

    /// Returns whether another endpoint may do better.
    pub(crate) fn is_of_endpoint(&self) -> bool {
        match self {
            Fault::Silent { .. } | Fault::Cut { .. } => true,
            Fault::Server { code, .. } => {
                *code == Code::Unavailable || self.says("not supported for learner")
            }
            _ => false,
        }
    }

    /// Returns whether the endpoint knows no leader. Nothing was executed.
    pub(crate) fn is_no_leader(&self) -> bool {
        self.says("etcdserver: no leader")
    }

    /// Returns whether nothing is written until an operator makes room.
    pub(crate) fn is_full(&self) -> bool {
        self.says(FULL)
    }

    /// Returns whether another token may help. Nothing was executed.
    pub(crate) fn is_of_token(&self) -> bool {
        self.says("invalid auth token") || self.says("revision of auth store is old")
    }

    /// Returns whether there is no lease with the id of the request.
    pub(crate) fn is_no_lease(&self) -> bool {
        matches!(self, Fault::NoLease { .. }) || self.says("requested lease not found")
    }

    fn says(&self, words: &str) -> bool {
        matches!(self, Fault::Server { message, .. } if message.contains(words))
    }

    /// Says to a user what failed and what to do.
    pub(crate) fn to_error(&self, operation: &'static str) -> Error {
        let (kind, hint) = self.advice();
        Error::new(kind, operation, self.to_string()).with_hint(hint)
    }

    /// Returns the entry that was made before this fault, or else the error for a user whose claim made none.
    pub(crate) fn unless_in<T>(&self, entered: Option<T>) -> Result<T, Error> {
        let error = self.to_error("claim");
        entered.ok_or(if self.is_outcome_unknown() { error } else { error.with_no_effect() })
    }

    /// What it means, and what to do. Wrong credentials are `Invalid`: the caller's URL is wrong. Missing permissions
    /// are `Unsupported`: the URL is right, and this environment does not allow it.
    fn advice(&self) -> (ErrorKind, &'static str) {
        let unavailable = ErrorKind::Unavailable;
        let Fault::Server { code, .. } = self else {
            return match self {
                Fault::Setup { hint, .. } => (ErrorKind::Unsupported, hint),
                Fault::NoLease { .. } => {
                    (unavailable, "the client was silent for too long, or somebody revoked it")
                }
                _ => (unavailable, "is it running and reachable? try `tenure doctor`"),
            };
        };
        let known = [
            (FULL, unavailable, "compact and defragment, then disarm the alarm: `etcdctl alarm disarm`"),
            (
                "too many requests",
                unavailable,
                "the server has more to do than it can; this passes when it is less busy",
            ),
            (
                "no leader",
                unavailable,
                "most servers of the cluster must run and reach one another; see `etcdctl endpoint status`",
            ),
            (
                "user name is empty",
                ErrorKind::Invalid,
                "the server has users: write `etcd://user:password@host`",
            ),
            (
                "authentication failed",
                ErrorKind::Invalid,
                "check the user and the password of the URL: `etcd://user:password@host`",
            ),
            (
                "authentication is not enabled",
                ErrorKind::Invalid,
                "the server has no users: leave the user out of the URL",
            ),
            (
                "permission denied",
                ErrorKind::Unsupported,
                "let the user read and write the keys that begin with the URL's prefix: `etcdctl role grant-permission --prefix=true`",
            ),
            (
                "request is too large",
                ErrorKind::Invalid,
                "raise the server's `--max-request-bytes`, or write less",
            ),
            ("too many operations", ErrorKind::Unsupported, "raise the server's `--max-txn-ops`"),
        ];
        if let Some((_, kind, hint)) = known.into_iter().find(|(words, ..)| self.says(words)) {
            return (kind, hint);
        }
        match code {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted => {
                (unavailable, "after an election this passes; see `etcdctl endpoint status`")
            }
            // The caller must ask again, and not take it for refused.
            _ if self.is_outcome_unknown() => {
                (unavailable, "see the server's log, and report it if the server is well")
            }
            Code::Unimplemented => (ErrorKind::Unsupported, "the engine needs etcd 3.4 or newer"),
            _ => (ErrorKind::Internal, "see the server's log, and report it if the server is well"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Silent { endpoint, after } => write!(f, "no answer from {endpoint} within {after:?}"),
            Fault::Cut { endpoint, why } => write!(f, "the connection to {endpoint} broke: {why}"),
            Fault::Server { endpoint, code, message } => {
                let message = message.trim_start_matches(OF_ETCD).trim();
                write!(f, "{endpoint} answered {code:?} ({message})")
            }
            Fault::NoLease { id } => write!(f, "etcd has no lease {id:x} any more"),
            Fault::Down { why } | Fault::Setup { why, .. } => f.write_str(why),
        }
    }
}

/// The innermost cause in a few words: what is around it says that a transport failed.
pub(crate) fn reason(error: &(dyn StdError + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = match innermost.downcast_ref::<Status>() {
        Some(status) => status.message().to_owned(),
        None => innermost.to_string(),
    };
    text.split(" (os error").next().unwrap_or_default().to_lowercase().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: Code, message: &str) -> Fault {
        Fault::of_status("h:1", &Status::new(code, message))
    }

    #[test]
    fn what_may_have_been_executed_is_known() {
        for (code, message, is_unknown) in [
            (Code::Unavailable, "etcdserver: request timed out", true),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                true,
            ),
            (Code::Unavailable, "etcdserver: no leader", false),
            (Code::Unavailable, "error reading a body from connection", true),
            (Code::Unknown, "context deadline exceeded", true),
            (Code::OutOfRange, "decoded message length too large", true),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", true),
            (Code::InvalidArgument, "etcdserver: duplicate key given in txn request", false),
            (Code::Unauthenticated, "etcdserver: invalid auth token", false),
        ] {
            let fault = server(code, message);
            assert_eq!(fault.is_outcome_unknown(), is_unknown, "{message}");
            // The engine repeats with the same claim id what is of this kind, and nothing else.
            assert!(!is_unknown || fault.to_error("claim").kind() == ErrorKind::Unavailable, "{message}");
        }
    }

    #[test]
    fn a_user_learns_what_to_do() {
        for (code, message, kind, hint) in [
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                ErrorKind::Unavailable,
                "disarm",
            ),
            (Code::ResourceExhausted, "etcdserver: too many requests", ErrorKind::Unavailable, "less busy"),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                ErrorKind::Unsupported,
                "grant-permission",
            ),
            (Code::InvalidArgument, "etcdserver: user name is empty", ErrorKind::Invalid, "user:password"),
            (Code::InvalidArgument, "etcdserver: key is not provided", ErrorKind::Internal, "report"),
            (Code::Unavailable, "etcdserver: leader changed", ErrorKind::Unavailable, "election"),
            (Code::Unknown, "etcdserver: something new", ErrorKind::Unavailable, "server's log"),
        ] {
            let error = server(code, message).to_error("claim");
            assert_eq!(error.kind(), kind, "{message}");
            assert!(error.hint().unwrap().contains(hint), "{message}");
        }
        let error = server(Code::Unavailable, "etcdserver: no leader").to_error("claim");
        assert_eq!(error.to_string(), "claim: h:1 answered Unavailable (no leader)");
    }

    #[test]
    fn a_fault_says_whether_another_endpoint_may_help() {
        assert!(server(Code::Unavailable, "etcdserver: no leader").is_of_endpoint());
        assert!(server(Code::Unavailable, "etcdserver: rpc not supported for learner").is_of_endpoint());
        assert!(server(Code::Unknown, "transport error").is_of_endpoint());
        assert!(!server(Code::PermissionDenied, "etcdserver: permission denied").is_of_endpoint());
        assert!(server(Code::Unauthenticated, "etcdserver: invalid auth token").is_of_token());
    }
}
