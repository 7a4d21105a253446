//! Errors, as the exceptions of the package.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tenure::{Error, ErrorKind, LossReason};

/// The name of the exception of a kind.
fn class(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Lost => "Lost",
        ErrorKind::Timeout => "Timeout",
        ErrorKind::Finished => "Finished",
        ErrorKind::Unavailable => "Unavailable",
        ErrorKind::Conflict => "Conflict",
        ErrorKind::Invalid => "Invalid",
        ErrorKind::Unsupported => "Unsupported",
        _ => "Internal",
    }
}

/// Makes an exception of an error.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    made(py, error).unwrap_or_else(|other| other)
}

fn made(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let about = PyDict::new(py);
    about.set_item("hint", error.hint())?;
    about.set_item("resource", error.resource().map(|name| name.as_str()))?;
    about.set_item("reason", error.loss_reason().map(LossReason::as_str))?;
    let busy = error.busy();
    about.set_item("holder", busy.and_then(|busy| busy.holder.as_ref()).map(|label| label.as_str()))?;
    let class = py.import("tenure._errors")?.getattr(class(error.kind()))?;
    Ok(PyErr::from_value(class.call((error.to_string(),), Some(&about))?))
}

/// Says that a lease has ended, and why.
pub(crate) fn lost(reason: &str, resource: &str) -> Error {
    let error = Error::new(ErrorKind::Lost, "hold", format!("the lease is lost: {reason}"));
    let error =
        error.with_hint("stop the work; a write with this lease's token is refused by a fenced resource");
    match tenure::Name::new(resource) {
        Ok(name) => error.with_resource(&name),
        Err(_) => error,
    }
}

/// Why what a parent holds is lost in its child.
pub(crate) const FORKED: &str = "this process was forked from the one that holds it";

/// Says that what was made before a fork is of no use after it.
pub(crate) fn forked(resource: &str) -> Error {
    lost(FORKED, resource)
}

/// Reads a time in seconds.
pub(crate) fn seconds(what: &str, seconds: f64) -> Result<std::time::Duration, Error> {
    std::time::Duration::try_from_secs_f64(seconds).map_err(|source| {
        Error::new(ErrorKind::Invalid, "read a time", format!("{what}={seconds} is no time"))
            .with_hint("times are in seconds, zero or more")
            .with_source(source)
    })
}
