//! One line on a terminal that is written again and again.

use std::io::{self, IsTerminal};
use std::time::Duration;

use tenure::Instant;

use super::lines;
use super::messages::Messages;
use crate::clock;

/// How often the line is written anew, at most.
pub(crate) const SHOW_EVERY: Duration = Duration::from_millis(250);

/// The line.
pub(crate) struct Line {
    /// Whether there is a terminal to show it on.
    pub(crate) is_shown: bool,
    shown: String,
    shown_at: Instant,
}

impl Line {
    /// A line that says nothing yet.
    pub(crate) fn new(messages: Messages) -> Line {
        let is_shown = !messages.json && !messages.quiet && io::stderr().is_terminal();
        Line { is_shown, shown: String::new(), shown_at: Instant::from_nanos(0) }
    }

    /// Says something else.
    pub(crate) fn show(&mut self, text: &str) {
        let now = clock::now();
        if text == self.shown || now.since(self.shown_at) < SHOW_EVERY && !self.shown.is_empty() {
            return;
        }
        // A line that is wider than the terminal would scroll it with every change.
        let columns = rustix::termios::tcgetwinsize(rustix::stdio::stderr()).map_or(0, |size| size.ws_col);
        let most = if columns == 0 { 80 } else { usize::from(columns) - 1 };
        let cut: String = text.chars().take(most).collect();
        if !lines::write_if_free(format!("\r\x1b[2K{cut}").into_bytes()) {
            return;
        }
        self.shown = text.to_owned();
        self.shown_at = now;
    }

    /// Takes the line away.
    pub(crate) fn clear(&mut self) {
        if !self.shown.is_empty() {
            lines::write(b"\r\x1b[2K".to_vec());
            self.shown.clear();
        }
    }
}
