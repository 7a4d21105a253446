//! The signals of this process: which it catches, and what they mean to it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::Signal;

use crate::sys::{SignalSet, is_ignored, read_signal};

/// The signals that are passed on to the work, or end the waiting for the lock.
const CAUGHT: &[Signal] = &[
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::CONT,
    Signal::TSTP,
    Signal::WINCH,
];

/// The signals of this process, read one by one.
#[derive(Debug)]
pub(crate) struct Signals {
    descriptor: OwnedFd,
    before: SignalSet,
}

impl std::fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalSet")
    }
}

impl Signals {
    /// Begins to catch the signals that are not ignored. Threads that are started later do not get them.
    pub(crate) fn catch() -> io::Result<Signals> {
        let caught: Vec<Signal> = CAUGHT.iter().copied().filter(|signal| !is_ignored(*signal)).collect();
        let caught = SignalSet::of(&caught);
        let before = caught.block();
        // Taking the terminal back from the work must not stop this process, which is in the background then.
        SignalSet::of(&[Signal::TTOU]).block();
        Ok(Signals { descriptor: caught.descriptor()?, before })
    }

    /// Returns the mask that the process was started with.
    pub(crate) fn before(&self) -> SignalSet {
        self.before
    }

    /// Returns what becomes readable when there is a signal.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Reads the next signal, if there is one.
    pub(super) fn read(&self) -> Option<i32> {
        read_signal(&self.descriptor)
    }
}

/// Which processes [`stop`] stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// This process. If the rest of its group was to be stopped too, the same signal has done that.
    Itself,
    /// Its whole group, for a stop that only the work has got.
    Group,
}

/// Stops this process as Ctrl-Z does, and returns when it is continued.
///
/// The system ignores it where no shell could continue the group; then it returns at once.
pub(crate) fn stop(which: Stopped) {
    let terminal_stop = SignalSet::of(&[Signal::TSTP]);
    let before = terminal_stop.unblock();
    // It cannot fail: a process may always signal itself and its own group.
    let _ = match which {
        Stopped::Itself => rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP),
        Stopped::Group => rustix::process::kill_current_process_group(Signal::TSTP),
    };
    before.block_only();
}

/// Handles a signal while nothing runs that it could be passed on to. Returns it if it ends the waiting.
pub(crate) fn ends_waiting(signal: i32) -> Option<i32> {
    match Signal::from_named_raw(signal) {
        Some(Signal::TSTP) => {
            stop(Stopped::Itself);
            None
        }
        Some(Signal::CONT | Signal::WINCH | Signal::USR1 | Signal::USR2) => None,
        _ => Some(signal),
    }
}

/// Whether a signal asks a program to end.
pub(crate) fn is_end(signal: i32) -> bool {
    matches!(Signal::from_named_raw(signal), Some(Signal::INT | Signal::TERM | Signal::QUIT))
}

/// Whether a signal is that of Ctrl-Z.
pub(crate) fn is_terminal_stop(signal: i32) -> bool {
    Signal::from_named_raw(signal) == Some(Signal::TSTP)
}
