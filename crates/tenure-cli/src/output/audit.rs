//! What an operator did, in the log: who, what, and to which name.
//!
//! It is a `warn` of the target `tenure::audit`, so that `TENURE_LOG=tenure::audit=warn` shows it alone. Nothing is shown unless
//! `TENURE_LOG` says so, as of the rest of the log. An act is told when its call has
//! ended: with `refused` nothing was changed, and with `failed` nobody knows whether it was done.

use tenure::{Error, ErrorKind, Result, Tenure};

/// What was done to what. Never a payload.
pub(crate) struct Act<'a> {
    /// What it is called on the page of the command: `release`, `queue purge`.
    pub(crate) what: &'static str,
    /// The lock or the queue.
    pub(crate) name: &'a str,
    /// What of it: a token, a number of units, items.
    pub(crate) detail: &'a str,
}

/// Writes an act to the log. `engine` is its URL, of which no secret is shown; `outcome` says in a few words what the store
/// has answered.
pub(crate) fn tell<T>(
    tenure: &Tenure,
    engine: &str,
    act: &Act<'_>,
    answer: &Result<T>,
    outcome: impl FnOnce(&T) -> String,
) {
    let (outcome, error) = match answer {
        Ok(answer) => (outcome(answer), None),
        Err(error) if is_refused(error) => ("refused".to_owned(), Some(error.to_string())),
        Err(error) => ("failed".to_owned(), Some(error.to_string())),
    };
    tracing::warn!(
        target: "tenure::audit",
        act = act.what,
        name = act.name,
        detail = act.detail,
        outcome,
        error,
        user = user(),
        sudo_user = sudo_user(),
        host = tenure.label().host(),
        pid = std::process::id(),
        engine = tenure::redact(engine),
        "an operator's act"
    );
}

/// Whether nothing was changed: the store has said so, or it was not asked.
fn is_refused(error: &Error) -> bool {
    use ErrorKind::{Conflict, Invalid, Unsupported};
    error.has_no_effect() || matches!(error.kind(), Conflict | Invalid | Unsupported)
}

/// Returns the name of the user, or the number where this machine has none for it. `$USER` is not
/// asked: anybody may set it to anything.
fn user() -> String {
    let number = rustix::process::getuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, id) = (fields.next()?, fields.next(), fields.next()?);
        (id == number).then(|| name.to_owned())
    });
    name.unwrap_or(number)
}

/// Returns who became root by `sudo`, as `$SUDO_USER` says: only root could have forged it.
fn sudo_user() -> Option<String> {
    let user = std::env::var("SUDO_USER").ok().filter(|user| !user.is_empty());
    user.filter(|_| rustix::process::getuid().is_root())
}
