//! Data for stdout: text and JSON.

use std::io::{self, Write};

use serde::Serialize;

use crate::exit::Failure;

/// Writes data to stdout and flushes it. Returns whether there still is a reader: one that has gone away
/// (`| head`) is not an error of the command.
///
/// # Errors
/// What the system says.
pub(crate) fn write_data(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::system("write to stdout", error)),
    }
}

/// Writes one JSON value and a line end to stdout.
///
/// # Errors
/// As [`write_data`].
pub(crate) fn write_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::system("write JSON", error))?;
    write_data(&format!("{text}\n")).map(drop)
}

/// Returns how many columns and lines the terminal has that stdout is. `None`: it is none, and nothing need fit.
pub(crate) fn terminal() -> Option<(usize, usize)> {
    let stdout = rustix::stdio::stdout();
    let size = rustix::termios::tcgetwinsize(stdout).ok()?;
    let (columns, lines) = (usize::from(size.ws_col), usize::from(size.ws_row));
    // One that does not know its size, as a serial line.
    (columns > 0 && lines > 0).then_some((columns, lines))
}
