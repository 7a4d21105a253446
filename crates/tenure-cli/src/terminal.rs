//! Whose turn at the terminal it is (the work's while it runs, the shell's when it is stopped), and a line on it.

use std::io::{self, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};
use tenure::Instant;

use crate::output::Messages;
use crate::{clock, sys};

/// How often the line on a terminal is written anew, at most.
pub(crate) const SHOW_EVERY: Duration = Duration::from_millis(250);

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    descriptor: OwnedFd,
    own_group: Pid,
    /// Whether stdin and stdout both are a terminal. In a pipeline (`tenure run … | less`) the others need the
    /// terminal too, and the work gets it only when it asks, by reading from it.
    is_interactive: bool,
}

impl Terminal {
    /// Opens the terminal. None: there is none, or it could not be taken back from the work.
    pub(crate) fn open() -> Option<Terminal> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        let descriptor = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        let is_interactive = isatty(stdin()) && isatty(stdout());
        Some(Terminal { descriptor, own_group: sys::own_group()?, is_interactive })
    }

    /// Gives the terminal to the work when it starts or goes on, if it is this process' turn. Returns whether
    /// it did.
    pub(crate) fn offer(&self, work: Pid) -> bool {
        self.is_interactive && self.give(work)
    }

    /// Gives the terminal to the work, if it is this process' turn. Returns whether it did.
    pub(crate) fn give(&self, work: Pid) -> bool {
        self.is_with(self.own_group) && tcsetpgrp(&self.descriptor, work).is_ok()
    }

    /// Takes the terminal back from the work. Returns whether the work had it.
    pub(crate) fn take_back(&self, work: Pid) -> bool {
        self.is_with(work) && tcsetpgrp(&self.descriptor, self.own_group).is_ok()
    }

    /// Whether a group has the terminal.
    pub(crate) fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.descriptor).is_ok_and(|current| current == group)
    }
}

/// One line on a terminal that is written again and again.
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
        self.write(&format!("\r\x1b[2K{cut}"));
        self.shown = text.to_owned();
        self.shown_at = now;
    }

    /// Takes the line away.
    pub(crate) fn clear(&mut self) {
        if !self.shown.is_empty() {
            self.write("\r\x1b[2K");
            self.shown.clear();
        }
    }

    /// There is nobody to tell that a terminal cannot be written to.
    fn write(&self, text: &str) {
        let mut stderr = io::stderr().lock();
        drop(stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()));
    }
}
