//! The one error type of tenure.

use std::error::Error as StdError;
use std::fmt;

use strsim::damerau_levenshtein;

use crate::model::claim::{Busy, Name, Printable};

/// What a caller should do about an [`Error`].
///
/// # Examples
/// ```
/// use tenure_core::{Error, ErrorKind};
///
/// fn status(error: &Error) -> u16 {
///     match error.kind() {
///         // Somebody else has it, or this one was too slow: try again.
///         ErrorKind::Timeout | ErrorKind::Conflict | ErrorKind::Lost => 409,
///         ErrorKind::Unavailable => 503,
///         ErrorKind::Invalid => 400,
///         _ => 500,
///     }
/// }
/// # let invalid = tenure_core::Name::new("").unwrap_err();
/// # assert_eq!(status(&invalid), 400);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lease has ended without its user releasing it: stop the work now.
    Lost,
    /// Nothing is held: the wait was over first. Try again or give up.
    Timeout,
    /// The claim has an id that a user gave it, and what it held or waited for has ended: the id is used up. Claim anew, with another.
    Finished,
    /// The outcome is unknown. The library has repeated the request until its time was up.
    Unavailable,
    /// The name is in use with another kind or capacity: fix the code, or resize the resource.
    Conflict,
    /// The input breaks a stated limit: fix the caller.
    Invalid,
    /// The engine or this environment cannot do it. It says why.
    Unsupported,
    /// A bug of tenure or a damaged store: report it.
    Internal,
}

impl ErrorKind {
    /// Returns the kind's name in lower case, as logs and JSON show it.
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Lost => "lost",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Finished => "finished",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Conflict => "conflict",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Internal => "internal",
        }
    }
}

/// Why a lease was lost. What the engine does not distinguish is one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// No renewal was answered before the deadline: the engine was silent for a ttl, or this process or its machine stood still.
    NotRenewed,
    /// It was held for as long as its `max_hold` allows.
    MaxHold,
    /// The engine says that it is not held any more: an operator broke it, or the store has forgotten it, as after a
    /// restart or a failover, or has ended it by a clock of its own.
    Ended,
    /// Another lease of its set was lost.
    LostWithSet,
    /// The client's own thread has ended and does not renew it: a bug of tenure.
    ClientEnded,
}

impl LossReason {
    /// Returns the reason in words that go on after "the lease is lost: ".
    pub const fn as_str(self) -> &'static str {
        match self {
            LossReason::NotRenewed => "it was not renewed in time",
            LossReason::MaxHold => "it was held for as long as max_hold allows",
            LossReason::Ended => "the engine says that it has ended",
            LossReason::LostWithSet => "another lease of its set was lost",
            LossReason::ClientEnded => "its client has ended",
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why an operation failed: a kind to act on, and a text for people that names the resource and the engine.
///
/// The text never holds a password. [`Error::hint`] says what to do about it, where that is known.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # use tenure_core::ErrorKind;
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("error-example").await?;
/// let mine = tenure.mutex("billing/4711").acquire().await?;
/// let error = tenure.mutex("billing/4711").acquire_within(Duration::from_millis(200)).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Timeout);
/// if let Some(busy) = error.busy() {
///     println!("held for {:?} by {:?}", busy.held_for, busy.holder);
/// }
/// # drop(mine);
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    resource: Option<Name>,
    engine: Option<&'static str>,
    message: String,
    hint: Option<String>,
    busy: Option<Busy>,
    loss: Option<LossReason>,
    has_no_effect: bool,
    is_elsewhere: bool,
    source: Option<std::sync::Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Makes an error. `operation` is a verb phrase ("claim"), `message` says what went wrong, in lower case
    /// and without a full stop.
    pub fn new(kind: ErrorKind, operation: &'static str, message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            operation,
            resource: None,
            engine: None,
            message: message.into(),
            hint: None,
            busy: None,
            loss: None,
            has_no_effect: false,
            is_elsewhere: false,
            source: None,
        }))
    }

    /// Adds the resource, unless one is named already.
    #[must_use]
    pub fn with_resource(mut self, resource: &Name) -> Error {
        self.0.resource.get_or_insert_with(|| resource.clone());
        self
    }

    /// Adds the engine, unless one is named already.
    #[must_use]
    pub fn with_engine(mut self, engine: &'static str) -> Error {
        self.0.engine.get_or_insert(engine);
        self
    }

    /// Says on which engine the operation failed, and about which resource, as far as the error does not say so itself. The client
    /// does this with whatever an engine returns, so that engines need not.
    #[must_use]
    pub(crate) fn named(self, engine: &'static str, resource: Option<&Name>) -> Error {
        let error = self.with_engine(engine);
        match resource {
            Some(resource) => error.with_resource(resource),
            None => error,
        }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds what was in the way.
    #[must_use]
    pub fn with_busy(mut self, busy: Busy) -> Error {
        self.0.busy = Some(busy);
        self
    }

    /// Makes the error that a lease is lost.
    pub(crate) fn lost(reason: LossReason) -> Error {
        let mut error = Error::new(ErrorKind::Lost, "hold", format!("the lease is lost: {reason}"))
            .with_hint("stop the work; a write with this lease's token is refused by a fenced resource");
        error.0.loss = Some(reason);
        error
    }

    /// States that the request changed nothing in the store: it is the store's decision about this very request, or
    /// nothing was sent. Without this, whatever the kind, the client assumes that the request may have been carried out:
    /// it withdraws a claim that it has no answer to, and repeats a settlement.
    #[must_use]
    pub fn with_no_effect(mut self) -> Error {
        self.0.has_no_effect = true;
        self
    }

    /// States that what was asked for is another client's, on an engine where claims live with their clients.
    #[must_use]
    pub(crate) fn of_another_client(mut self) -> Error {
        self.0.is_elsewhere = true;
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.0.source = Some(std::sync::Arc::new(source));
        self
    }

    /// Returns what the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the resource that the operation was about.
    pub fn resource(&self) -> Option<&Name> {
        self.0.resource.as_ref()
    }

    /// Whether it is known that the request changed nothing in the store (see [`Error::with_no_effect`]).
    pub fn has_no_effect(&self) -> bool {
        self.0.has_no_effect
    }

    /// Whether the claim, the hold or the delivery is another client's, which alone can do what was asked for
    /// ([`Adopts::SameClient`](crate::engine::Adopts::SameClient)): ask there.
    pub fn is_of_another_client(&self) -> bool {
        self.0.is_elsewhere
    }

    /// Returns what to do about it, in words.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Returns why a lease was lost, for an [`ErrorKind::Lost`] of a lease.
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.0.loss
    }

    /// Returns what was in the way, for a [`ErrorKind::Timeout`] whose engine said so.
    pub fn busy(&self) -> Option<&Busy> {
        self.0.busy.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.operation)?;
        if let Some(resource) = &self.0.resource {
            write!(f, " {:?}", resource.as_str())?;
        }
        if let Some(engine) = self.0.engine {
            write!(f, " on {engine}")?;
        }
        // A server's own words may be in it. Their lines are kept.
        f.write_str(": ")?;
        for (at, line) in self.0.message.split('\n').enumerate() {
            let end = if at == 0 { "" } else { "\n" };
            write!(f, "{end}{}", Printable(line))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.0.kind.as_str())?;
        if let Some(hint) = &self.0.hint {
            write!(f, " (hint: {hint})")?;
        }
        match &self.0.source {
            Some(source) => write!(f, " caused by {source:?}"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// The result of an operation of tenure.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns what a system or a library says of an error in the manner of this crate's own: `connection refused`, and not
/// `Connection refused (os error 111)`.
///
/// # Examples
/// ```
/// assert_eq!(tenure_core::error::plain("Connection refused (os error 111)"), "connection refused");
/// ```
pub fn plain(text: &str) -> String {
    let text = text.split(" (os error").next().unwrap_or_default().trim_end_matches('.');
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        // A name in capitals stays one: `TLS`.
        (Some(first), Some(second)) if second.is_lowercase() || second == ' ' => {
            first.to_lowercase().chain(text[first.len_utf8()..].chars()).collect()
        }
        _ => text.to_owned(),
    }
}

/// Returns the known word that is nearly what was given: with one letter more, less or wrong, two in a longer word.
///
/// # Examples
/// ```
/// assert_eq!(tenure_core::error::nearest("prefx", &["db", "prefix"]), Some("prefix"));
/// ```
pub fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let most = if given.len() < 3 { 0 } else { 1 + given.len() / 8 };
    let given = given.to_lowercase();
    let near = known.iter().map(|word| (damerau_levenshtein(&given, word), *word));
    near.filter(|(distance, _)| *distance <= most).min().map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_told_without_its_number() {
        for (said, told) in [
            ("Connection refused (os error 111)", "connection refused"),
            ("TLS is off", "TLS is off"),
            ("A host is unknown.", "a host is unknown"),
            ("", ""),
        ] {
            assert_eq!(plain(said), told);
        }
    }

    #[test]
    fn a_slip_is_told_from_another_word() {
        let known = ["prefix", "db", "sentinel_user", "max_ttl"];
        for (given, meant) in [
            ("prefx", Some("prefix")),
            ("prefxi", Some("prefix")),
            ("PREFIX", Some("prefix")),
            ("sentnel_usr", Some("sentinel_user")),
            ("suffix", None),
            ("dn", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, &known), meant, "{given}");
        }
    }
}
