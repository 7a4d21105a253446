//! The terminal: the work has it while it runs, and the shell when the work is stopped.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

use crate::sys;

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
    /// Opens the terminal, if there is one and this process can take it back from the work.
    pub(crate) fn open() -> Option<Terminal> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        let descriptor = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        let is_interactive = isatty(stdin()) && isatty(stdout());
        Some(Terminal { descriptor, own_group: sys::own_group()?, is_interactive })
    }

    /// Gives the terminal to the work when it starts or goes on, if this process has it. Returns whether it
    /// did.
    pub(crate) fn offer(&self, work: Pid) -> bool {
        self.is_interactive && self.give(work)
    }

    /// Gives the terminal to the work, if this process has it. Returns whether it did.
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
