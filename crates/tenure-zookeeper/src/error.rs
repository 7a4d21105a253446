//! What ZooKeeper's errors mean.

use std::future::Future;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tokio::time::timeout;

/// ZooKeeper's own error.
pub(crate) type Fault = zookeeper_client::Error;

/// How long a verb may take. Callers wait for 2 s, in which a call that failed is tried once more.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Makes an error of a fault. `operation`: what was asked.
pub(crate) fn to_error(operation: &'static str, fault: &Fault) -> Error {
    let (kind, hint) = match fault {
        Fault::NoAuth | Fault::InvalidAcl => (
            ErrorKind::Unsupported,
            "let the URL's user read, write, create and delete below its path; without a user, everybody must be allowed to",
        ),
        Fault::AuthFailed => (ErrorKind::Invalid, "check the user and the password of the URL"),
        Fault::QuotaExceeded => (
            ErrorKind::Unavailable,
            "the path has a quota that is used up: raise it, by `setquota -N` or `-B` of ZooKeeper's shell",
        ),
        Fault::Unimplemented => (ErrorKind::Unsupported, "it needs servers of version 3.5 or later"),
        Fault::SessionExpired | Fault::SessionMoved | Fault::ClientClosed => {
            (ErrorKind::Unavailable, "the client was not heard of in time; it begins anew by itself")
        }
        Fault::ConnectionLoss
        | Fault::Timeout
        | Fault::NoHosts
        | Fault::NotReadOnly
        | Fault::Throttled
        | Fault::NoNode
        | Fault::Custom(_) => (
            ErrorKind::Unavailable,
            "see whether a majority of the servers runs and is reached; this may pass by itself",
        ),
        _ => (ErrorKind::Internal, "see the server's log, and report it if the server is well"),
    };
    Error::new(kind, operation, fault.to_string()).with_hint(hint)
}

/// Makes an error of the fault with which a transaction, or the only write of a request, ended. By a quota it was refused, and nothing was
/// done.
pub(crate) fn to_error_of_write(operation: &'static str, fault: &Fault) -> Error {
    let error = to_error(operation, fault);
    if *fault == Fault::QuotaExceeded { error.with_no_effect() } else { error }
}

/// Whether an error says that a quota is used up: nothing is made until it is raised, and what is there may be removed.
pub(crate) fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.to_string().contains(&Fault::QuotaExceeded.to_string())
}

/// Whether a fault says that the client's session in the store is over.
pub(crate) fn is_dead(fault: &Fault) -> bool {
    matches!(fault, Fault::SessionExpired | Fault::SessionMoved | Fault::ClientClosed | Fault::AuthFailed)
}

/// Waits for an answer, but not for ever. What is not waited for any more may still be carried out.
pub(crate) async fn within<T>(
    operation: &'static str,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match timeout(ANSWER_MAX, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(no_answer(operation)),
    }
}

/// Waits for one of the answers that a verb needs, as [`within`] does for all of them together.
pub(crate) async fn in_time<T>(answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    timeout(ANSWER_MAX, answer).await.unwrap_or(Err(Fault::Timeout))
}

pub(crate) fn no_answer(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, format!("no answer within {ANSWER_MAX:?}"))
        .with_hint("see whether a majority of the servers runs and is reached; this may pass by itself")
}

/// Lets time pass.
#[allow(clippy::disallowed_methods, reason = "what is waited for is a store, whose time no test can move")]
pub(crate) async fn pause(period: Duration) {
    tokio::time::sleep(period).await;
}
