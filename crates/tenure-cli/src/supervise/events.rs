//! What work under a lease waits for, in one place: signals, reports of the keeper, the client, and time.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use super::keeper::message::Report;
use super::keeper::{Keeper, keeper_gone};
use super::signals::{Signals, ends_waiting};
use crate::clock;
use crate::exit::{Ended, Failure};

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A signal arrived.
    Signal(i32),
    /// The keeper has reported something.
    Report(Report),
    /// The keeper is gone.
    KeeperGone,
    /// The client has something new, or time has come.
    Woken,
}

/// Everything that can happen.
pub(crate) struct Events {
    signals: Signals,
    wakeup: Arc<Wakeup>,
}

/// The waker of the client's futures, as a descriptor that `poll` can wait for.
struct Wakeup(OwnedFd);

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // It fails only after 2^64 wakeups that were not read.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Events {
    /// Prepares to wait.
    pub(crate) fn new(signals: Signals) -> io::Result<Events> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Events { signals, wakeup: Arc::new(Wakeup(wakeup)) })
    }

    /// Returns what makes [`Events::next`] return [`Event::Woken`].
    pub(crate) fn waker(&self) -> Waker {
        self.wakeup.clone().into()
    }

    /// Whether a report of the keeper has not been read, or the keeper is gone.
    pub(crate) fn has_report(&self, keeper: &Keeper) -> bool {
        let mut polled = [PollFd::new(keeper.socket(), PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_ok_and(|count| count > 0)
    }

    /// Waits for what happens next, up to `timeout`.
    ///
    /// Reports come before signals, so that a signal is passed on to whatever was started before it.
    pub(crate) fn next(&self, keeper: &Keeper, timeout: Option<Duration>) -> io::Result<Event> {
        self.next_of(&[(0, keeper)], timeout).map(|(_, news)| news)
    }

    /// As [`Events::next`] for several numbered keepers: says whose report it is, or which of them is gone.
    pub(crate) fn next_of(
        &self,
        keepers: &[(usize, &Keeper)],
        timeout: Option<Duration>,
    ) -> io::Result<(usize, Event)> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut polled = vec![
            PollFd::new(self.signals.descriptor(), PollFlags::IN),
            PollFd::new(&self.wakeup.0, PollFlags::IN),
        ];
        polled.extend(keepers.iter().map(|(_, keeper)| PollFd::new(keeper.socket(), PollFlags::IN)));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut happened = polled.iter().map(|polled| !polled.revents().is_empty());
        let (has_signal, is_woken) = (happened.next() == Some(true), happened.next() == Some(true));
        for ((number, keeper), has_report) in keepers.iter().zip(happened) {
            if !has_report {
                continue;
            }
            match keeper.receive() {
                Ok(Some(report)) => return Ok((*number, Event::Report(report))),
                Err(rustix::io::Errno::AGAIN) => {}
                Ok(None) | Err(_) => return Ok((*number, Event::KeeperGone)),
            }
        }
        if has_signal && let Some(signal) = self.signals.read() {
            return Ok((0, Event::Signal(signal)));
        }
        if is_woken {
            // A wakeup that comes after this read makes the next `poll` return.
            let _ = rustix::io::read(&self.wakeup.0, &mut [0; 8]);
        }
        Ok((0, Event::Woken))
    }

    /// Waits for a future of the client, up to `timeout`; returns `None` after that. `keeper` returns the keeper without which the
    /// command must end; there may be none, or none any more.
    pub(crate) fn until_ready<'k, T>(
        &self,
        future: impl Future<Output = T>,
        keeper: impl Fn() -> Option<&'k Keeper>,
        timeout: Option<Duration>,
    ) -> Result<Option<T>, Ended> {
        let mut future = pin!(future);
        let until = timeout.map(|timeout| clock::now() + timeout);
        let waker = self.waker();
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(ready) = future.as_mut().poll(&mut context) {
                return Ok(Some(ready));
            }
            let left = until.map(|until| until.since(clock::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let keepers: Vec<_> = keeper().map(|keeper| (0, keeper)).into_iter().collect();
            match self.next_of(&keepers, left) {
                Ok((_, Event::Signal(signal))) => {
                    if let Some(signal) = ends_waiting(signal) {
                        return Err(Ended::Signal(signal));
                    }
                }
                Ok((_, Event::KeeperGone)) => return Err(keeper_gone().into()),
                Ok((_, Event::Report(_) | Event::Woken)) => {}
                Err(error) => return Err(Failure::system("wait", error).into()),
            }
        }
    }
}
