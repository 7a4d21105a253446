//! The processes that work under the lease: a process group, and what it left behind in the same session.
//!
//! The work is over when none of them is left. A process that begins a session of its own (`setsid`) has left
//! the work on purpose. A shell with job control puts each of its jobs into a group of its own: when their
//! shell is gone they are children of the process that keeps the work (it is a subreaper), and are ended too.
//!
//! A process of another user (`sudo`) can be sent no signal. That is never taken for its end: it is told, and the work counts as
//! left for as long as anything of it may be. Where a control group has been delegated to this user, it is ended by that.

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, test_kill_process_group,
};

use super::processes::{self, Cgroup, Process};
use crate::sys;

/// How soon a process that has taken a keeper's place looks again for what is left, and how rarely at last.
const LOOK_AGAIN_MIN_MS: i64 = 5;
const LOOK_AGAIN_MAX_MS: i64 = 160;

/// The work, as the process sees it that reaps its orphans.
#[derive(Debug)]
pub(crate) struct Work {
    /// The group that the program leads. None: the keeper was gone before it could say.
    group: Option<Pid>,
    /// The session, if it is not that of this process.
    session: Option<Pid>,
    has_children: bool,
    was_killed: bool,
    /// Where processes are that cannot be sent a signal. The outer none: not tried; the inner one: there can be none.
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

    /// The work of a keeper that is gone and has been reaped, in the eyes of the process that takes its place.
    pub(crate) fn of_keeper(program: Option<Pid>, session: Option<Pid>) -> Work {
        Work { group: program, session, has_children: true, was_killed: false, cgroup: None }
    }

    /// Sends a signal to the group. False: nobody of it may be sent one.
    ///
    /// The group's number cannot have become another group's: a number is given anew only after all others have
    /// been, and the work was there a moment ago.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        // An empty group needs no signal.
        self.group.is_none_or(|group| kill_process_group(group, signal) != Err(Errno::PERM))
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
            self.kill_out_of_reach();
        }
        self.was_killed = true;
    }

    /// Ends what can be sent no signal, where there is a control group for it.
    fn kill_out_of_reach(&mut self) {
        if self.out_of_reach().is_some()
            && let Some(Some(cgroup)) = &self.cgroup
        {
            // If it fails, the work is left, and that is what counts.
            drop(cgroup.kill());
        }
    }

    /// Looks for a process of the work that cannot be ended: it belongs to another user, and there is no control group for it.
    /// Those for which there is one are put into it.
    pub(crate) fn beyond_control(&mut self) -> Option<Pid> {
        let found = self.out_of_reach()?;
        matches!(self.cgroup, Some(None)).then_some(found)
    }

    /// Looks for a process of the work that can be sent no signal, and puts all of those into a control group if it can.
    fn out_of_reach(&mut self) -> Option<Pid> {
        let mut found = Vec::new();
        for pid in processes::descendants(getpid()) {
            if processes::is_out_of_reach(pid) && self.is_of_work(pid) {
                found.extend(processes::descendants(pid));
                found.push(pid);
            }
        }
        let first = *found.last()?;
        let cgroup = self.cgroup.get_or_insert_with(Cgroup::make);
        let is_taken = cgroup.as_ref().is_some_and(|cgroup| found.iter().all(|pid| {
            // Who has ended meanwhile needs no place.
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
    /// process has got that keeper's orphans; it must have no other children. `tell` is called once if something cannot be
    /// ended, and is waited for.
    pub(crate) fn end(&mut self, tell: impl FnOnce(Pid)) {
        let mut tell = Some(tell);
        let mut pause_ms = LOOK_AGAIN_MIN_MS;
        loop {
            self.kill();
            self.reap(|_, _| {});
            if !self.is_left() {
                return;
            }
            if pause_ms > LOOK_AGAIN_MIN_MS
                && let Some(pid) = self.beyond_control()
                && let Some(tell) = tell.take()
            {
                tell(pid);
            }
            let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: pause_ms * 1_000_000 };
            // Interrupted or not, it looks again.
            let _ = rustix::thread::nanosleep(&pause);
            pause_ms = (pause_ms * 2).min(LOOK_AGAIN_MAX_MS);
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
            let kept = if process.is_keeper && signal == Signal::KILL {
                processes::children(pid)
            } else {
                Vec::new()
            };
            let kept_groups = kept.iter().filter_map(|child| Pid::from_raw(sys::group_of(*child)?));
            let groups: Vec<Pid> =
                if kept.is_empty() { group.into_iter().collect() } else { kept_groups.collect() };
            for group in groups {
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
        let group = self.group.map_or(Err(Errno::SRCH), test_kill_process_group);
        let has_group = group != Err(Errno::SRCH);
        if !has_group && !self.has_children {
            return false;
        }
        let Some(left) = self.left() else { return has_group };
        if !left.processes.is_empty() || !has_group {
            return !left.processes.is_empty();
        }
        // Something answers that is not seen to work. A zombie that its parent does not reap answers signals too, but does no more
        // work. A process of another user may be hidden: nothing of the group may be sent a signal, or `/proc` does not show all.
        match group {
            Err(_) => !left.has_zombie_of_group || processes::is_hiding(),
            Ok(()) => processes::is_hiding(),
        }
    }

    /// Lists the processes that are left. None without /proc.
    fn left(&self) -> Option<Left> {
        let own = processes::own()?;
        let session = self.session.map_or(own.session, |session| session.as_raw_nonzero().get());
        let me = getpid().as_raw_nonzero().get();
        let group = self.group.map(|group| group.as_raw_nonzero().get());
        let mut left = Left { processes: Vec::new(), has_zombie_of_group: false };
        for (pid, process) in processes::all()? {
            let is_child = process.parent == me;
            let is_of_group = Some(process.group) == group;
            // The keeper of a lease within this one may have a session of its own, and has not left.
            let is_orphan =
                is_child && (process.session == session || process.is_keeper) && process.group != own.group;
            left.has_zombie_of_group |= process.is_zombie && is_of_group;
            // A zombie among the own children is reaped the next time, so that nobody takes it for alive.
            if (!process.is_zombie || is_child) && (is_of_group || is_orphan) {
                left.processes.push((pid, process));
            }
        }
        Some(left)
    }
}
