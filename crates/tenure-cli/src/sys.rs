//! The system calls that have no (sound) safe wrapper: `fork`, what is done between `fork` and `exec`, the numbers of groups and
//! sessions, the masking and reading of signals, and what gives memory back.
//!
//! Signals are blocked and read from a descriptor, so that nothing is ever done inside a signal handler. A signal
//! that was ignored when the process started (`nohup`, a background job of a plain shell) stays ignored, here
//! and in what is run. See `docs/adr/0009-keeper-process.md`.
#![allow(
    unsafe_code,
    reason = "fork, pre_exec, getpgrp, getpgid, getsid, raise, sigprocmask, sigaction, signalfd, mallopt, malloc_trim; see the ADRs"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal};
use tenure::Instant;

use crate::clock;

/// Which process returns from [`fork`].
pub(crate) enum Forked {
    /// The process that called it.
    Parent {
        /// The new process.
        child: Pid,
    },
    /// The new process.
    Child,
}

/// Makes a second process that goes on from here.
///
/// # Panics
/// If the process has a second thread: the new process would be without it, and with whatever locks it held.
pub(crate) fn fork() -> io::Result<Forked> {
    debug_assert_eq!(threads(), 1, "a process forks before it has threads");
    // SAFETY: the process has one thread, so that no lock is held by a thread that the child does not have, and
    // the child may go on as any program may.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => Ok(Forked::Child),
        pid => match Pid::from_raw(pid) {
            Some(child) if pid > 0 => Ok(Forked::Parent { child }),
            _ => Err(io::Error::last_os_error()),
        },
    }
}

/// Has memory that is freed joined with what is free beside it. By default glibc leaves small blocks apart until somebody wants a large
/// one, which each request does, and joins them all then.
pub(crate) fn join_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a setting of the allocator, which it changes under its own lock.
    unsafe {
        libc::mallopt(libc::M_MXFAST, 0);
    }
}

/// Gives free memory back to the system, wherever it lies. glibc does so by itself only at the end of an arena.
pub(crate) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator looks at its own memory, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}

/// Returns the own process group; `None` if it was begun outside this PID namespace, where it has no number.
pub(crate) fn own_group() -> Option<Pid> {
    // SAFETY: the call only returns a number.
    Pid::from_raw(unsafe { libc::getpgrp() })
}

/// Returns the process group of a process, also of one that `/proc` hides; 0 if it was begun outside this PID namespace,
/// and `None` if the process is gone.
pub(crate) fn group_of(pid: Pid) -> Option<i32> {
    // SAFETY: the call only returns a number.
    let group = unsafe { libc::getpgid(pid.as_raw_nonzero().get()) };
    (group >= 0).then_some(group)
}

/// Returns the session of a process, as [`group_of`] its group.
pub(crate) fn session_of(pid: Pid) -> Option<i32> {
    // SAFETY: the call only returns a number.
    let session = unsafe { libc::getsid(pid.as_raw_nonzero().get()) };
    (session >= 0).then_some(session)
}

/// Lets a program begin only before a deadline: the clock is read last thing before it is executed, however long the process was
/// stopped before that; `ETIME` if the deadline is over. With `parent`, which is the calling process, the system kills the
/// program when that dies.
pub(crate) fn begin_before(command: &mut Command, deadline: Instant, parent: Option<Pid>) {
    let check = move || {
        if let Some(parent) = parent {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may have died before that.
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        if clock::now() >= deadline {
            return Err(io::Error::from_raw_os_error(libc::ETIME));
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(check);
    }
}

/// A set of signals.
#[derive(Clone, Copy)]
pub(crate) struct SignalSet(libc::sigset_t);

impl SignalSet {
    /// Makes a set.
    pub(crate) fn of(signals: &[Signal]) -> SignalSet {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initializes the set, and `sigaddset` changes one that is initialized.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
            }
            SignalSet(set.assume_init())
        }
    }

    /// Blocks these signals on top of what is blocked, and returns what was.
    pub(crate) fn block(&self) -> SignalSet {
        self.change(libc::SIG_BLOCK)
    }

    /// Lets these signals through, and returns what was blocked.
    pub(crate) fn unblock(&self) -> SignalSet {
        self.change(libc::SIG_UNBLOCK)
    }

    /// Blocks these signals and no others, and returns what was blocked.
    pub(crate) fn block_only(&self) -> SignalSet {
        self.change(libc::SIG_SETMASK)
    }

    fn change(&self, how: libc::c_int) -> SignalSet {
        let mut before = MaybeUninit::uninit();
        // SAFETY: both point to sets; the call fails only for a `how` that does not exist.
        unsafe {
            let code = libc::pthread_sigmask(how, &self.0, before.as_mut_ptr());
            assert_eq!(code, 0, "a signal mask can always be changed");
            SignalSet(before.assume_init())
        }
    }

    /// Makes a descriptor from which these signals, while blocked, can be read. It is closed on exec and does
    /// not block.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set is initialized, and a new descriptor has no other owner.
        unsafe {
            let fd = libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
        }
    }
}

/// Sends a signal to this thread alone. Another thread that reads signals from a descriptor cannot take it away.
pub(crate) fn raise(signal: Signal) {
    // SAFETY: the call only sends a signal; it fails for a number that is none.
    let code = unsafe { libc::raise(signal.as_raw()) };
    assert_eq!(code, 0, "a thread can always signal itself");
}

/// Whether a signal is ignored.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the old one, if it succeeds.
    unsafe {
        let code = libc::sigaction(signal.as_raw(), std::ptr::null(), action.as_mut_ptr());
        code == 0 && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Catches a signal without any effect. Unlike ignoring it, that leaves no trace in programs that this process
/// starts: there a caught signal has its default effect again.
pub(crate) fn discard_signal(signal: Signal) -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a zeroed action is a valid one with an empty mask, and a handler that does nothing may run at any
    // time.
    let code = unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal.as_raw(), action, std::ptr::null_mut())
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads the next signal from a descriptor of [`SignalSet::descriptor`], if there is one.
pub(crate) fn read_signal(descriptor: &OwnedFd) -> Option<i32> {
    let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(descriptor, &mut info).ok()?;
    // The number is the first field, `ssi_signo`.
    (read == info.len()).then(|| i32::from_ne_bytes([info[0], info[1], info[2], info[3]]))
}
