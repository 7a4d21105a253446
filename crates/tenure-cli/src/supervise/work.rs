//! The processes that work under the lease: a process group, and what it left behind in the same session.
//!
//! The work is over when none of them is left. A process that begins a session of its own (`setsid`) has left
//! the work on purpose. A shell with job control puts each of its jobs into a group of its own: when their
//! shell is gone they are children of the process that keeps the work (it is a subreaper), and are ended too.
//!
//! A process of another user (`sudo`) cannot be signalled. That is never taken for its end: it is reported, and the work counts as
//! running for as long as any process of it may run. Where a control group has been delegated to this user, it is ended by that.

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, test_kill_process_group,
};

use super::proc::{self, Cgroup, Process};
use crate::sys;

/// How soon a process that has taken a keeper's place checks again what is left, and how rarely at last.
const CHECK_AGAIN_MIN_MS: i64 = 5;
const CHECK_AGAIN_MAX_MS: i64 = 160;

/// The work, as seen by the process that reaps its orphans: the keeper, or `tenure` in the keeper's place.
#[derive(Debug)]
pub(crate) struct Work {
    /// The group that the program leads; `None` if the keeper was gone before it could report it.
    group: Option<Pid>,
    /// The session, if it is not that of this process.
    session: Option<Pid>,
    has_children: bool,
    was_killed: bool,
    /// The control group of processes that cannot be signalled: the outer `None` before it is tried, the inner one if it cannot be made.
    cgroup: Option<Option<Cgroup>>,
}

/// What of the work is left.
struct Left {
    processes: Vec<(Pid, Process)>,
    has_zombie_of_group: bool,
}

impl Work {
    /// The work of the group that `program` leads, in the session of this process.
    pub(crate) fn new(program: Pid) -> Work {
        Work { group: Some(program), session: None, has_children: true, was_killed: false, cgroup: None }
    }

    /// The work of a keeper that is gone and has been reaped, for the process that takes its place.
    pub(crate) fn of_keeper(program: Option<Pid>, session: Option<Pid>) -> Work {
        Work { group: program, session, has_children: true, was_killed: false, cgroup: None }
    }

    /// Sends a signal to the group. Returns false if no process of the group may be signalled.
    ///
    /// The group's number cannot have become another group's: a number is given anew only after all others have
    /// been, and the work was there a moment ago.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        // An empty group needs no signal.
        self.group.is_none_or(|group| kill_process_group(group, signal) != Err(Errno::PERM))
    }

    /// Asks every process of the work to end. One that is stopped is continued, or the signal would not reach it.
    pub(crate) fn terminate(&self) {
        for signal in [Signal::TERM, Signal::CONT] {
            self.signal(signal);
            self.signal_others(signal);
        }
    }

    /// Kills every process of the work that can be seen now. A process whose parent dies of it is seen the next time.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        // The first time the group alone: to find others takes longer than the group takes to die.
        if self.was_killed {
            self.signal_others(Signal::KILL);
            self.kill_foreign();
        }
        self.was_killed = true;
    }

    /// Ends processes that cannot be signalled, where there is a control group for them.
    fn kill_foreign(&mut self) {
        if self.find_foreign().is_some()
            && let Some(Some(cgroup)) = &self.cgroup
        {
            // If it fails, the processes are left, and the work goes on to count as running.
            drop(cgroup.kill());
        }
    }

    /// Finds a process of the work that cannot be ended: it belongs to another user, and there is no control group for it.
    /// Processes for which there is one are put into it.
    pub(crate) fn find_unkillable(&mut self) -> Option<Pid> {
        let found = self.find_foreign()?;
        matches!(self.cgroup, Some(None)).then_some(found)
    }

    /// Finds a process of the work that cannot be signalled, and puts all such processes into a control group if it can.
    fn find_foreign(&mut self) -> Option<Pid> {
        let mut found = Vec::new();
        for pid in proc::descendants(getpid()) {
            if proc::is_foreign(pid) && self.is_of_work(pid) {
                found.extend(proc::descendants(pid));
                found.push(pid);
            }
        }
        let first = *found.last()?;
        let cgroup = self.cgroup.get_or_insert_with(Cgroup::make);
        let is_taken = cgroup.as_ref().is_some_and(|cgroup| found.iter().all(|pid| {
            // A process that has ended meanwhile needs no place.
            !matches!(cgroup.take(*pid), Err(error) if error.raw_os_error() != Some(Errno::SRCH.raw_os_error()))
        }));
        if !is_taken {
            self.cgroup = Some(None);
        }
        Some(first)
    }

    /// Whether a process below this one has not left the work.
    fn is_of_work(&self, pid: Pid) -> bool {
        let own =
            self.session.map(|session| session.as_raw_nonzero().get()).or_else(|| sys::session_of(getpid()));
        let group = self.group.map(|group| group.as_raw_nonzero().get());
        sys::group_of(pid).is_some_and(|found| Some(found) == group) || sys::session_of(pid) == own
    }

    /// Kills all of the work and waits until nothing of it is left, in the place of a keeper that is gone. As a subreaper this
    /// process has got that keeper's orphans; it must have no other children. `warn` is called once with a process that cannot be
    /// ended, and that is waited for.
    pub(crate) fn end(&mut self, warn: impl FnOnce(Pid)) {
        let mut warn = Some(warn);
        let mut pause_ms = CHECK_AGAIN_MIN_MS;
        loop {
            self.kill();
            self.reap(|_, _| {});
            if !self.is_left() {
                return;
            }
            if pause_ms > CHECK_AGAIN_MIN_MS
                && let Some(pid) = self.find_unkillable()
                && let Some(warn) = warn.take()
            {
                warn(pid);
            }
            let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: pause_ms * 1_000_000 };
            // Interrupted or not, it checks again.
            let _ = rustix::thread::nanosleep(&pause);
            pause_ms = (pause_ms * 2).min(CHECK_AGAIN_MAX_MS);
        }
    }

    fn signal_others(&self, signal: Signal) {
        let Some(left) = self.left() else { return };
        for (pid, process) in left.processes {
            let group = Pid::from_raw(process.group);
            if group == self.group {
                continue;
            }
            // The keeper of a lease within this one: its lease would be free while its work still lives. It ends when that has.
            let kept =
                if process.is_keeper && signal == Signal::KILL { proc::children(pid) } else { Vec::new() };
            let kept_groups = kept.iter().filter_map(|child| Pid::from_raw(sys::group_of(*child)?));
            let groups: Vec<Pid> =
                if kept.is_empty() { group.into_iter().collect() } else { kept_groups.collect() };
            for group in groups {
                let _ = kill_process_group(group, signal);
            }
        }
    }

    /// Reaps every child that has ended or stopped, and calls `on_child` for each.
    pub(crate) fn reap(&mut self, mut on_child: impl FnMut(Pid, WaitStatus)) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) => on_child(pid, status),
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
        let group = self.group.map_or(Err(Errno::SRCH), test_kill_process_group);
        let has_group = group != Err(Errno::SRCH);
        if !has_group && !self.has_children {
            return false;
        }
        let Some(left) = self.left() else { return has_group };
        if !left.processes.is_empty() || !has_group {
            return !left.processes.is_empty();
        }
        // The group answers, and none of its processes is seen. A zombie that its parent does not reap answers signals too, but
        // does no more work. A process of another user may be hidden: nothing of the group may be sent a signal, or `/proc` does
        // not show all.
        match group {
            Err(_) => !left.has_zombie_of_group || proc::is_hiding(),
            Ok(()) => proc::is_hiding(),
        }
    }

    /// Lists the processes that are left; `None` without `/proc`.
    fn left(&self) -> Option<Left> {
        let own = proc::own()?;
        let session = self.session.map_or(own.session, |session| session.as_raw_nonzero().get());
        let me = getpid().as_raw_nonzero().get();
        let group = self.group.map(|group| group.as_raw_nonzero().get());
        let mut left = Left { processes: Vec::new(), has_zombie_of_group: false };
        for (pid, process) in proc::all()? {
            let is_child = process.parent == me;
            let is_of_group = Some(process.group) == group;
            // The keeper of a lease within this one may have a session of its own, and has not left.
            let is_orphan =
                is_child && (process.session == session || process.is_keeper) && process.group != own.group;
            left.has_zombie_of_group |= process.is_zombie && is_of_group;
            // A zombie among the own children is reaped the next time, so that it is not taken for alive.
            if (!process.is_zombie || is_child) && (is_of_group || is_orphan) {
                left.processes.push((pid, process));
            }
        }
        Some(left)
    }
}
