//! What work under a lease waits for, in one place: signals, reports of the keeper, the client, and time.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::Signal;
use rustix::time::Timespec;

use super::keeper::Keeper;
use super::keeper::message::Report;
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
}

/// Who is stopped by [`stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// This process: whoever stopped it has stopped the rest of its group too, if that was meant.
    Itself,
    /// Its whole group, for a stop that only the work has got.
    Group,
}

/// Stops this process as Ctrl-Z does, and returns when it is continued.
///
/// The system ignores it where nobody could continue the group; then it returns at once.
pub(crate) fn stop(who: Stopped) {
    let terminal_stop = SignalSet::of(&[Signal::TSTP]);
    let before = terminal_stop.unblock();
    // Whom it is sent to is its own, so it can be sent.
    let _ = match who {
        Stopped::Itself => rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP),
        Stopped::Group => rustix::process::kill_current_process_group(Signal::TSTP),
    };
    before.block_only();
}

/// Something that happened.
#[derive(Debug)]
pub(crate) enum News {
    /// A signal arrived.
    Signal(i32),
    /// The keeper said something.
    Report(Report),
    /// The keeper is gone.
    KeeperGone,
    /// The client has something new, or time has come.
    Look,
}

/// Everything that can happen.
pub(crate) struct Events {
    signals: Signals,
    bell: Arc<Bell>,
}

/// Rung by futures of the client.
struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // It fails only when it has been rung 2^64 times without being heard.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Events {
    /// Prepares to wait.
    pub(crate) fn new(signals: Signals) -> io::Result<Events> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Events { signals, bell: Arc::new(Bell(bell)) })
    }

    /// Returns what makes [`Events::next`] return [`News::Look`].
    pub(crate) fn waker(&self) -> Waker {
        self.bell.clone().into()
    }

    /// Whether the keeper has said something that has not been read, or is gone.
    pub(crate) fn has_report(&self, keeper: &Keeper) -> bool {
        let mut polled = [PollFd::new(keeper.socket(), PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_ok_and(|count| count > 0)
    }

    /// Waits for what happens next, up to `timeout`.
    ///
    /// Reports come before signals, so that a signal is passed on to whatever was started before it.
    pub(crate) fn next(&self, keeper: &Keeper, timeout: Option<Duration>) -> io::Result<News> {
        self.next_of(&[(0, keeper)], timeout).map(|(_, news)| news)
    }

    /// As [`Events::next`] for several numbered keepers: says whose report it is, or which of them is gone.
    pub(crate) fn next_of(
        &self,
        keepers: &[(usize, &Keeper)],
        timeout: Option<Duration>,
    ) -> io::Result<(usize, News)> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut polled = vec![
            PollFd::new(&self.signals.descriptor, PollFlags::IN),
            PollFd::new(&self.bell.0, PollFlags::IN),
        ];
        polled.extend(keepers.iter().map(|(_, keeper)| PollFd::new(keeper.socket(), PollFlags::IN)));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut happened = polled.iter().map(|polled| !polled.revents().is_empty());
        let (has_signal, is_rung) = (happened.next() == Some(true), happened.next() == Some(true));
        for ((number, keeper), has_report) in keepers.iter().zip(happened) {
            if !has_report {
                continue;
            }
            match keeper.receive() {
                Ok(Some(report)) => return Ok((*number, News::Report(report))),
                Err(rustix::io::Errno::AGAIN) => {}
                Ok(None) | Err(_) => return Ok((*number, News::KeeperGone)),
            }
        }
        if has_signal && let Some(signal) = read_signal(&self.signals.descriptor) {
            return Ok((0, News::Signal(signal)));
        }
        if is_rung {
            // Whoever rings again after this is heard the next time.
            let _ = rustix::io::read(&self.bell.0, &mut [0; 8]);
        }
        Ok((0, News::Look))
    }
}

/// What a signal means to a claim that waits: nothing runs yet that it could be passed on to. Returns the one that ends the waiting.
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
