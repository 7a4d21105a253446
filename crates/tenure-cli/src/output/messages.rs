//! Messages for stderr: for people, or as JSON events for programs.

use std::io::{self, IsTerminal};

use serde::Serialize;

use super::holder::Holder;
use super::lines::write_line;
use crate::exit::Failure;

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
pub(crate) enum JsonEvent<'a> {
    /// The lock is held by others, and the claim waits.
    Waiting {
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        holder: Option<Holder<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        held_ms: Option<u64>,
        waiting: u32,
    },
    /// What is counted is served to Prometheus.
    Metrics { address: &'a str },
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

impl Messages {
    /// Text for people.
    pub(crate) const TEXT: Messages = Messages { json: false, quiet: false };

    /// Shows an event to programs.
    pub(crate) fn event(self, event: &impl Serialize) {
        if self.json {
            let line = serde_json::to_string(event).expect("an event holds nothing that JSON has not");
            write_line(&line);
        }
    }

    /// Shows a message to people.
    pub(crate) fn message(self, text: &str) {
        if !self.json && !self.quiet {
            write_line(&format!("tenure: {text}"));
        }
    }

    /// Shows that something is not as it should be.
    pub(crate) fn warning(self, text: &str) {
        self.event(&JsonEvent::Warning { message: text });
        if !self.json && !self.quiet {
            write_line(&format!("{} {text}", paint("warning:", "33;1")));
        }
    }

    /// Shows why the command ends.
    pub(crate) fn failure(self, failure: &Failure) {
        let Failure { code, message, hint } = failure;
        if self.json {
            self.event(&JsonEvent::Error { message, hint: hint.as_deref(), exit: *code });
            return;
        }
        write_line(&format!("{} {message}", paint("error:", "31;1")));
        if let Some(hint) = hint {
            write_line(&format!("\n{} {hint}", paint("hint:", "36")));
        }
    }
}

/// Adds colour to a word, where colour is wanted.
fn paint(word: &str, colour: &str) -> String {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if is_set("NO_COLOR") || is_dumb || !io::stderr().is_terminal() {
        return word.to_owned();
    }
    format!("\x1b[{colour}m{word}\x1b[0m")
}
