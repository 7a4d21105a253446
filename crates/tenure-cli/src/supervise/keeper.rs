//! The keeper: a second process that starts the work and outlives `tenure` for as long as the work does.
//!
//! `tenure` may be killed (`kill -9`) or stopped at any moment, and then nothing may go on working without a
//! lease. So the work is a child of a process that only watches over it: it kills the work when `tenure` is
//! gone or the lease's deadline has come, waits until nothing of it is left, and only then ends. It shares the
//! client's life with the engine, so that the lock is granted to no other claim before that. With `--leader` it serves one
//! term after the other, and for `tenure queue work` one item; there each lane has a keeper of its own. It is forked before
//! `tenure` has any thread; `docs/adr/0009-keeper-process.md` says why it is not a program of its own.

pub(crate) mod message;
mod process;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitOptions, waitpid};
use tenure::Instant;

use super::job::Job;
use crate::exit::{self, Failure};
use crate::sys::{self, Forked, SignalSet};
use message::{Order, Report};

/// What a program that is started reads and writes, if not the stdin and stdout of this process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streams<'a> {
    /// Its stdin.
    pub(crate) input: Option<&'a OwnedFd>,
    /// Its stdout.
    pub(crate) output: Option<&'a OwnedFd>,
}

/// The keeper as `tenure` sees it.
#[derive(Debug)]
pub(crate) struct Keeper {
    pid: Pid,
    socket: OwnedFd,
}

impl Keeper {
    /// Forks keepers of the same job, each of which waits for its order to start and works for itself. `mask` is what the signal
    /// mask of the work will be.
    pub(crate) fn start_several(job: &Job, mask: SignalSet, count: usize) -> io::Result<Vec<Keeper>> {
        let mut keepers = Vec::new();
        for _ in 0..count {
            let keeper = Keeper::start_beside(job.clone(), mask, &mut keepers)?;
            keepers.push(keeper);
        }
        Ok(keepers)
    }

    fn start_beside(job: Job, mask: SignalSet, others: &mut Vec<Keeper>) -> io::Result<Keeper> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        match sys::fork()? {
            Forked::Parent { child } => Ok(Keeper { pid: child, socket: ours }),
            Forked::Child => {
                // Copies would keep the sockets open, and `tenure` would seem alive for ever, also to the other keepers.
                drop(ours);
                others.clear();
                let code = process::serve(job, theirs, mask).map_or(1, |()| 0);
                std::process::exit(code)
            }
        }
    }

    /// Returns the process.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns what becomes readable when there is a report.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Orders the keeper to start the work, and gives it a share of the client's life.
    pub(crate) fn start_work(
        &self,
        deadline: Instant,
        environment: Vec<(String, String)>,
        streams: Streams<'_>,
        life: Option<&OwnedFd>,
    ) -> Result<(), Errno> {
        let Streams { input, output } = streams;
        let (has_input, has_output) = (input.is_some(), output.is_some());
        let order = Order::Start { deadline: deadline.nanos(), environment, has_input, has_output };
        let descriptors: Vec<_> = input.into_iter().chain(output).chain(life).map(AsFd::as_fd).collect();
        message::send(&self.socket, &order, &descriptors, SendFlags::DONTWAIT)
    }

    /// Sends an order. One that cannot be sent is lost: then the keeper is gone, which [`Keeper::receive`] reports, or it is
    /// stopped, and will kill the work at the deadline that it knows.
    pub(crate) fn send(&self, order: &Order) {
        let _ = message::send(&self.socket, order, &[], SendFlags::DONTWAIT);
    }

    /// Returns the next report, without waiting; `None` if the keeper is gone.
    ///
    /// # Errors
    /// `EAGAIN` if there is none now.
    pub(crate) fn receive(&self) -> Result<Option<Report>, Errno> {
        Ok(message::receive(&self.socket)?.map(|(report, _)| report))
    }

    /// Waits until the keeper, which has nothing more to do, has ended.
    pub(crate) fn wait(self) {
        drop(self.socket);
        wait(self.pid);
    }

    /// Waits for the end of a keeper that is gone: from then on the processes that it left behind are children of this one.
    pub(crate) fn wait_for_end(&self) {
        wait(self.pid);
    }
}

fn wait(keeper: Pid) {
    // It may have been reaped already.
    let _ = rustix::io::retry_on_intr(|| waitpid(Some(keeper), WaitOptions::empty()));
}

/// The failure after which the command ends: its keeper has ended without an order.
pub(crate) fn keeper_gone() -> Failure {
    Failure::new(exit::UNAVAILABLE, "the keeper process of this command was killed")
        .with_hint("spare processes named `tenure-keeper`: they end CMD when its lease ends")
}
