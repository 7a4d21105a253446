//! How the command ends: its exit codes, and the errors that lead to them.

use std::fmt;

use tenure::{Error, ErrorKind};

/// Wrong usage: a flag, a name, a setting. `EX_USAGE` of `sysexits.h`.
pub(crate) const USAGE: u8 = 64;
/// The engine cannot be used now, or not for this. `EX_UNAVAILABLE`.
pub(crate) const UNAVAILABLE: u8 = 69;
/// Not acquired in time. `EX_TEMPFAIL`.
pub(crate) const BUSY: u8 = 75;
/// The lease was lost while the program ran.
pub(crate) const LOST: u8 = 76;
/// The program cannot be executed, as shells have it.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such program, as shells have it.
pub(crate) const NOT_FOUND: u8 = 127;
/// A question was answered with no, or a store is not as it should be.
pub(crate) const DECLINED: u8 = 1;

/// The exit codes of all commands, as `--help` lists them.
pub(crate) const HELP: &str = "\
Exit codes:
  0    done (run, cache: the exit code of CMD; 128+n if signal n ended it)
  1    the answer is no: nobody leads, a question was answered with no, or an alert is breached
  64   wrong usage, or the name is in use as another kind
  69   the engine is not available
  75   not acquired in time
  76   the lease was lost while CMD ran
  126  CMD cannot be executed
  127  CMD is not found";

/// The exit codes of commands that only ask the engine.
pub(crate) const QUERY_HELP: &str = "\
Exit codes:
  0    done
  64   wrong usage
  69   the engine is not available";

/// Why the command ends without having done its job.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) code: u8,
    /// What went wrong.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
}

impl Failure {
    /// Makes a failure.
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), hint: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// A failure of this machine, not of an engine.
    pub(crate) fn system(what: &str, error: impl fmt::Display) -> Failure {
        Failure::new(UNAVAILABLE, format!("cannot {what}: {}", tenure::plain(&error.to_string())))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match error.kind() {
            ErrorKind::Invalid | ErrorKind::Conflict => USAGE,
            ErrorKind::Timeout => BUSY,
            ErrorKind::Lost => LOST,
            _ => UNAVAILABLE,
        };
        let hint = error.hint().map(str::to_owned).or_else(|| match error.kind() {
            ErrorKind::Unavailable => Some("try `tenure doctor`".to_owned()),
            ErrorKind::Internal => Some("report it, with the output of `tenure doctor`".to_owned()),
            _ => None,
        });
        Failure { code, message: error.to_string(), hint }
    }
}

/// How a command ends: an exit code, or a failure that is still to be shown.
pub(crate) type Outcome = Result<u8, Failure>;

/// Why nothing was acquired, or what was acquired is over too early.
pub(crate) enum Ended {
    /// Something failed, or the time was over.
    Failure(Failure),
    /// The engine did not answer.
    NoAnswer(Failure),
    /// The lease was lost while the program ran.
    Lost(Failure),
    /// A signal.
    Signal(i32),
}

impl Ended {
    /// How the command ends with that.
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Ended::Signal(signal) => Ok(of_signal(signal)),
            Ended::Failure(failure) | Ended::NoAnswer(failure) | Ended::Lost(failure) => Err(failure),
        }
    }

    /// Distinguishes an engine that did not answer from other errors.
    pub(crate) fn of(error: Error) -> Ended {
        if error.kind() == ErrorKind::Unavailable {
            Ended::NoAnswer(error.into())
        } else {
            Ended::Failure(error.into())
        }
    }
}

impl<T: Into<Failure>> From<T> for Ended {
    fn from(failure: T) -> Ended {
        Ended::Failure(failure.into())
    }
}

/// Returns the exit code after a signal, as shells have it.
pub(crate) fn of_signal(signal: i32) -> u8 {
    (128 + signal) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    // page: docs/command.md "| 0 | done |"
    // page: docs/command.md "| 1 | `status NAME`: nobody holds it"
    // page: docs/command.md "| 64 | wrong usage"
    // page: docs/command.md "| 69 | the engine is not available"
    // page: docs/command.md "| 75 | not acquired in time"
    // page: docs/command.md "| 76 | the lease was lost while CMD ran"
    // page: docs/command.md "| 126, 127 | CMD cannot be executed, is not found"
    // page: docs/command.md "128 + n if signal n ended it"
    #[test]
    fn codes_are_those_of_the_page() {
        assert_eq!((DECLINED, USAGE, UNAVAILABLE), (1, 64, 69));
        assert_eq!((BUSY, LOST, NOT_EXECUTABLE, NOT_FOUND), (75, 76, 126, 127));
        assert_eq!(of_signal(15), 128 + 15);
        let of = |kind| Failure::from(Error::new(kind, "claim", "x")).code;
        for kind in [ErrorKind::Invalid, ErrorKind::Conflict] {
            assert_eq!(of(kind), 64, "{kind:?}");
        }
        for kind in [ErrorKind::Unavailable, ErrorKind::Unsupported, ErrorKind::Internal] {
            assert_eq!(of(kind), 69, "{kind:?}");
        }
        assert_eq!((of(ErrorKind::Timeout), of(ErrorKind::Lost)), (75, 76));
    }
}
