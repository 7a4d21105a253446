//! What people and programs are shown: errors with hints, messages, events, tables and JSON.
//!
//! stdout is data, stderr is messages. Colour only repeats what the text says.

mod lines;
mod status_line;

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde::Serialize;
use tenure::Label;

use crate::exit::Failure;
pub(crate) use lines::{Log, SHOW_FIRST, flush, say, write_in_background};
pub(crate) use status_line::{Line, SHOW_EVERY};

/// How errors and messages are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages {
    /// As JSON objects, one a line.
    pub(crate) json: bool,
    /// Errors only.
    pub(crate) quiet: bool,
}

/// Something that happened to `tenure run`, for `--json`. Field names are stable.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    /// The lock is held by others, and the claim waits.
    Waiting {
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        holder: Option<Holder<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        held_ms: Option<u64>,
        waiting: u32,
    },
    /// The lock was acquired.
    Granted {
        name: &'a str,
        token: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        slot: Option<u32>,
        claim: String,
        waited_ms: u64,
    },
    /// CMD runs.
    Started { name: &'a str, pid: i32 },
    /// CMD has ended; processes that it left behind are being ended.
    Lingering { name: &'a str },
    /// The lease was lost or is about to be.
    Lost {
        name: &'a str,
        token: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        slot: Option<u32>,
        reason: &'a str,
    },
    /// CMD has ended.
    Ended {
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// The lock was released.
    Released { name: &'a str, token: u64 },
    /// Something is not as it should be, and the command goes on.
    Warning { message: &'a str },
    /// The command ends with an exit code of its own.
    Error {
        message: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        hint: Option<&'a str>,
        exit: u8,
    },
}

/// Who holds or waits, in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Holder<'a> {
    pub(crate) host: &'a str,
    pub(crate) pid: u32,
    pub(crate) program: &'a str,
    pub(crate) text: &'a str,
}

impl<'a> Holder<'a> {
    /// Takes a label apart.
    pub(crate) fn of(label: &'a Label) -> Holder<'a> {
        Holder { host: label.host(), pid: label.pid(), program: label.program(), text: label.text() }
    }
}

impl Messages {
    /// Text for people.
    pub(crate) const TEXT: Messages = Messages { json: false, quiet: false };

    /// Shows an event to programs.
    pub(crate) fn event(self, event: &impl Serialize) {
        if self.json {
            let line = serde_json::to_string(event).expect("an event holds nothing that JSON has not");
            say(&line);
        }
    }

    /// Shows a message to people.
    pub(crate) fn message(self, text: &str) {
        if !self.json && !self.quiet {
            say(&format!("tenure: {text}"));
        }
    }

    /// Shows that something is not as it should be.
    pub(crate) fn warning(self, text: &str) {
        self.event(&Event::Warning { message: text });
        if !self.json && !self.quiet {
            say(&format!("{} {text}", paint("warning:", "33;1")));
        }
    }

    /// Shows why the command ends.
    pub(crate) fn failure(self, failure: &Failure) {
        let Failure { code, message, hint } = failure;
        if self.json {
            self.event(&Event::Error { message, hint: hint.as_deref(), exit: *code });
            return;
        }
        say(&format!("{} {message}", paint("error:", "31;1")));
        if let Some(hint) = hint {
            say(&format!("\n{} {hint}", paint("hint:", "36")));
        }
    }
}

/// Repeats what a word says in colour, where colour is wanted.
fn paint(word: &str, colour: &str) -> String {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if is_set("NO_COLOR") || is_dumb || !io::stderr().is_terminal() {
        return word.to_owned();
    }
    format!("\x1b[{colour}m{word}\x1b[0m")
}

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

/// Renders rows under headings, in columns as wide as their widest cell. Columns of `right` are numbers.
pub(crate) fn table(headings: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    let width_of = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..headings.len()).map(width_of).collect();
    let mut text = String::new();
    let headings: Vec<String> = headings.iter().map(|heading| heading.to_string()).collect();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let written = if right.contains(&column) {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:<width$}  ")
            };
            written.expect("a string takes any text");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Nothing ends a hold of this length: another client of the store has set it without an expiry.
const NEVER_SECONDS: u64 = 100 * 365 * 86_400;

/// Writes a duration for people: its two largest units, `1h 5m`, `12.3s`, `250ms`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{}.{}s", seconds, duration.subsec_millis() / 100),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        NEVER_SECONDS.. => "never".to_owned(),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Returns whole milliseconds, for JSON.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short_and_say_their_unit() {
        for (millis, shown) in [
            (0, "0ms"),
            (250, "250ms"),
            (1_000, "1.0s"),
            (12_345, "12.3s"),
            (65_000, "1m 5s"),
            (3_900_000, "1h 5m"),
            (90_000_000, "1d 1h"),
            (9_000_000_000_000_000, "never"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), shown);
        }
    }

    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        let rows =
            vec![vec!["a".to_owned(), "1".to_owned()], vec!["longer name".to_owned(), "17".to_owned()]];
        assert_eq!(table(&["name", "n"], &[1], &rows), "name          n\na             1\nlonger name  17\n");
    }
}
