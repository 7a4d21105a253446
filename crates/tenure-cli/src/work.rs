//! The processes that work under the lease: a process group, and what it left behind in the same session.
//!
//! The work is over when none of them is left. A process that begins a session of its own (`setsid`) has left
//! the work on purpose. A shell with job control puts each of its jobs into a group of its own: when their
//! shell is gone they are children of the process that keeps the work (it is a subreaper), and are ended too.

use std::fs;

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, test_kill_process_group,
};

/// The work, as the process sees it that reaps its orphans.
#[derive(Debug)]
pub(crate) struct Work {
    group: Pid,
    has_children: bool,
    was_killed: bool,
}

/// One process of the system, from `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    is_zombie: bool,
    parent: i32,
    group: i32,
    session: i32,
}

impl Work {
    /// The work of the group that `program` leads.
    pub(crate) fn new(program: Pid) -> Work {
        Work { group: program, has_children: true, was_killed: false }
    }

    /// Sends a signal to the group.
    ///
    /// The group's number cannot have become another group's: a number is given anew only after all others have
    /// been, and the work was there a moment ago.
    pub(crate) fn signal(&self, signal: Signal) {
        // An empty group needs no signal, and a process of another user cannot be sent one.
        let _ = kill_process_group(self.group, signal);
    }

    /// Asks every process of the work to end. One that is stopped is continued, or it would not hear it.
    pub(crate) fn terminate(&self) {
        for signal in [Signal::TERM, Signal::CONT] {
            self.signal(signal);
            self.signal_others(signal);
        }
    }

    /// Kills every process of the work that can be seen now. Whose parent dies of it is seen the next time.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        // The first time the group alone: looking for others takes longer than the group takes to die.
        if self.was_killed {
            self.signal_others(Signal::KILL);
        }
        self.was_killed = true;
    }

    /// Kills all of the work and waits until nothing of it is left, in the place of a keeper that is gone. As a subreaper this
    /// process has got that keeper's orphans; it must have no other children.
    pub(crate) fn end(&mut self) {
        loop {
            self.kill();
            self.reap(|_, _| {});
            if !self.is_left() {
                return;
            }
            let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
            // Interrupted or not, it looks again.
            let _ = rustix::thread::nanosleep(&pause);
        }
    }

    fn signal_others(&self, signal: Signal) {
        for group in self.left().unwrap_or_default() {
            if group != self.group {
                let _ = kill_process_group(group, signal);
            }
        }
    }

    /// Reaps every child that has ended or stopped, and tells of each.
    pub(crate) fn reap(&mut self, mut tell: impl FnMut(Pid, WaitStatus)) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) => tell(pid, status),
                Ok(None) => {
                    self.has_children = true;
                    return;
                }
                Err(_) => {
                    self.has_children = false;
                    return;
                }
            }
        }
    }

    /// Whether a process of the work is left, once its program has been reaped.
    pub(crate) fn is_left(&self) -> bool {
        let has_group = test_kill_process_group(self.group) != Err(rustix::io::Errno::SRCH);
        if !has_group && !self.has_children {
            return false;
        }
        // A zombie that its parent does not reap answers signals too, but does no more work. Without /proc it
        // cannot be told from one that lives.
        self.left().map_or(has_group, |left| !left.is_empty())
    }

    /// Lists the groups of the processes that are left, one entry each. None without /proc.
    fn left(&self) -> Option<Vec<Pid>> {
        // Read there, and not asked for: where the session was begun outside this PID namespace (a container's
        // entry point that is no leader), its number is 0, which is no `Pid`, but the same for all.
        let own = fs::read("/proc/self/stat").ok().and_then(|stat| parse(&stat))?;
        let me = getpid().as_raw_nonzero().get();
        let group = self.group.as_raw_nonzero().get();
        let mut left = Vec::new();
        for entry in fs::read_dir("/proc").ok()? {
            let Ok(entry) = entry else { continue };
            if !entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
                continue;
            }
            let Some(process) = fs::read(entry.path().join("stat")).ok().and_then(|stat| parse(&stat)) else {
                continue;
            };
            let is_child = process.parent == me;
            let is_orphan = is_child && process.session == own.session && process.group != own.group;
            // A zombie among the own children is reaped the next time, so that nobody takes it for alive.
            if (!process.is_zombie || is_child) && (process.group == group || is_orphan) {
                left.extend(Pid::from_raw(process.group));
            }
        }
        Some(left)
    }
}

/// Reads `PID (program) state parent group session …`, where the program's name may hold anything.
fn parse(stat: &[u8]) -> Option<Process> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X" | "x");
    let mut number = || fields.next()?.parse().ok();
    Some(Process { is_zombie, parent: number()?, group: number()?, session: number()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let stat = b"17 (a) Z (b)) S 4 5 6 0 -1 4194560\n";
        assert_eq!(parse(stat), Some(Process { is_zombie: false, parent: 4, group: 5, session: 6 }));
        assert!(parse(b"17 (a) Z 1 2 3 0").is_some_and(|process| process.is_zombie));
        assert_eq!(parse(b"17"), None);
        assert_eq!(parse(b"17 (a) S 1"), None);
    }
}
