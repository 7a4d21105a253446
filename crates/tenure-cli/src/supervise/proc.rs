//! What `/proc` says about processes, and what system calls say about processes that `/proc` hides.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

use crate::sys;

/// The name by which a keeper goes in lists of processes.
pub(super) const KEEPER_NAME: &[u8] = b"tenure-keeper";
/// The most processes of one work that are examined.
const DESCENDANTS_MAX: usize = 1024;

/// One process of the system, from `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) is_zombie: bool,
    pub(super) is_keeper: bool,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
}

/// Reads the own entry. It is read from `/proc`, and not asked for by a system call: where the session was begun outside this PID
/// namespace (a container's entry point that is no leader), its number is 0, which is no `Pid`, but the same for all.
pub(super) fn own() -> Option<Process> {
    fs::read("/proc/self/stat").ok().and_then(|stat| parse(&stat))
}

/// Lists the processes that can be seen, and the own children whether or not they can be. `None` without `/proc`.
pub(super) fn all() -> Option<Vec<(Pid, Process)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").ok()? {
        let Ok(entry) = entry else { continue };
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        let process = fs::read(entry.path().join("stat")).ok().and_then(|stat| parse(&stat));
        found.extend(process.map(|process| (pid, process)));
    }
    for child in children(getpid()) {
        if !found.iter().any(|(pid, _)| *pid == child) {
            found.extend(hidden_child(child).map(|process| (child, process)));
        }
    }
    Some(found)
}

/// A child that `/proc` hides (`hidepid`), since it runs as another user. System calls return its group and session.
fn hidden_child(pid: Pid) -> Option<Process> {
    // Without a group or a session it has ended meanwhile.
    let (group, session) = (sys::group_of(pid)?, sys::session_of(pid)?);
    let parent = getpid().as_raw_nonzero().get();
    Some(Process { is_zombie: false, is_keeper: false, parent, group, session })
}

/// Lists the children of a process that can be seen. Empty where the system does not list them.
pub(super) fn children(parent: Pid) -> Vec<Pid> {
    let mut children = Vec::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { return children };
    for task in tasks.flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.extend(text.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
    }
    children
}

/// Lists the processes below one, up to a bound.
pub(super) fn descendants(ancestor: Pid) -> Vec<Pid> {
    let mut found = children(ancestor);
    let mut next = 0;
    while next < found.len().min(DESCENDANTS_MAX) {
        let children = children(found[next]);
        found.extend(children);
        next += 1;
    }
    found
}

/// Whether a process is there that this one may not signal: it runs as another user.
pub(super) fn is_foreign(pid: Pid) -> bool {
    test_kill_process(pid) == Err(Errno::PERM)
}

/// Whether `/proc` hides the processes of other users (`hidepid`).
pub(super) fn is_hiding() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // What is mounted last lies on top.
    let proc = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc"));
    let options = proc.and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
    let hidepid = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
    hidepid.is_some_and(|how| !matches!(how, "0" | "off"))
}

/// Returns the directory of the own control group, of version 2, if there is one.
pub(super) fn own_cgroup() -> Option<std::path::PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    // What this namespace sees of the hierarchy, and where.
    let mut fields = mount.split(' ').skip(3);
    let (root, place) = (fields.next()?.trim_start_matches('/'), fields.next()?);
    let below = path.strip_prefix(root)?.trim_start_matches('/');
    Some(std::path::Path::new(place).join(below))
}

/// A control group for processes that cannot be signalled: a write to its `cgroup.kill` ends them all, whatever user they run
/// as. It is made only when it is needed, below the own one, which therefore must have been given to this user
/// (`Delegate=` of systemd; the own user's session there).
#[derive(Debug)]
pub(super) struct Cgroup(std::path::PathBuf);

impl Cgroup {
    /// Makes one, unless this user may not, or the system is older than Linux 5.14.
    pub(super) fn make() -> Option<Cgroup> {
        let directory = own_cgroup()?.join(format!("tenure-{}", getpid()));
        fs::create_dir(&directory).ok()?;
        let cgroup = Cgroup(directory);
        let is_writable = fs::OpenOptions::new().write(true).open(cgroup.0.join("cgroup.kill")).is_ok();
        is_writable.then_some(cgroup)
    }

    /// Takes a process in. What it starts from then on is in it, too.
    pub(super) fn take(&self, pid: Pid) -> io::Result<()> {
        write(&self.0.join("cgroup.procs"), &pid.to_string())
    }

    /// Kills everything in it.
    pub(super) fn kill(&self) -> io::Result<()> {
        write(&self.0.join("cgroup.kill"), "1")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // It stays if a process still runs in it; that has been reported by then.
        drop(fs::remove_dir(&self.0));
    }
}

/// Writes to a file of the system, which must be there already.
fn write(path: &std::path::Path, text: &str) -> io::Result<()> {
    io::Write::write_all(&mut fs::OpenOptions::new().write(true).open(path)?, text.as_bytes())
}

/// Reads `PID (program) state parent group session …`, where the program's name may hold anything.
fn parse(stat: &[u8]) -> Option<Process> {
    let begin = stat.iter().position(|byte| *byte == b'(')?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let is_keeper = stat.get(begin + 1..end)? == KEEPER_NAME;
    let text = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X" | "x");
    let mut number = || fields.next()?.parse().ok();
    Some(Process { is_zombie, is_keeper, parent: number()?, group: number()?, session: number()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let stat = b"17 (a) Z (b)) S 4 5 6 0 -1 4194560\n";
        let read = Process { is_zombie: false, is_keeper: false, parent: 4, group: 5, session: 6 };
        assert_eq!(parse(stat), Some(read));
        assert!(parse(b"17 (a) Z 1 2 3 0").is_some_and(|process| process.is_zombie));
        assert!(parse(b"17 (tenure-keeper) S 1 2 3 0").is_some_and(|process| process.is_keeper));
        assert_eq!(parse(b"17"), None);
        assert_eq!(parse(b"17 (a) S 1"), None);
        assert_eq!(parse(b")("), None);
    }

    #[test]
    fn the_own_process_is_found_with_its_children() {
        let own = own().expect("/proc");
        assert!(all().expect("/proc").contains(&(getpid(), own)));
        assert!(!is_foreign(getpid()));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a child");
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
        assert!(descendants(getpid()).contains(&pid));
        child.kill().and_then(|()| child.wait()).expect("its end");
    }
}
