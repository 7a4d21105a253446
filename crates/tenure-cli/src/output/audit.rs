//! What an operator did, in the log: who, what, and to which name.
//!
//! It is a `warn` of the target `tenure::audit`, so that `TENURE_LOG=tenure::audit=warn` shows it alone. Nothing is shown unless
//! `TENURE_LOG` says so, as of the rest of the log. An act is told when the store has answered it or has not: then nobody knows whether it was done.

use tenure::{Result, Tenure};

/// What was done to what. Never a payload.
pub(crate) struct Act<'a> {
    /// The word of the command.
    pub(crate) what: &'static str,
    /// The lock or the queue.
    pub(crate) name: &'a str,
    /// What of it: a token, a number of units, items.
    pub(crate) detail: &'a str,
}

/// Writes an act to the log. `outcome` says in a few words what the store has answered.
pub(crate) fn tell<T>(
    tenure: &Tenure,
    engine: &str,
    act: &Act<'_>,
    answer: &Result<T>,
    outcome: impl FnOnce(&T) -> String,
) {
    let (outcome, error) = match answer {
        Ok(answer) => (outcome(answer), None),
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

/// Returns the name of the user, or the number where this machine has none for it. The environment says what it likes, so it is not asked.
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

/// Returns who became root by `sudo`.
fn sudo_user() -> Option<String> {
    let user = std::env::var("SUDO_USER").ok().filter(|user| !user.is_empty());
    user.filter(|_| rustix::process::getuid().is_root())
}
