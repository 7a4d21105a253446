//! Which clients live: a locked file per client, and the processes to watch for it to come free.
//!
//! A client's file `alive/<client>` is locked (`flock`, exclusive) before anything with its id is stored. The
//! lock belongs to the open file description: copies share it, and it is gone when the last one is closed, that
//! is, when the last process that shares the client's life is dead, however it died. The *lock decides*; pids in the
//! file only say which processes a watcher waits for before it checks again, so a reused pid costs a check and
//! nothing else. A tester takes the lock shared, so that testers do not mistake each other for life.
//!
//! Rejected: POSIX locks (any close of the file by the process frees them), pids and start times alone (wrong for a
//! moment after a fork, and no process can share them), a heartbeat (that is the ttl).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tenure_core::model::claim::ClientId;
use tenure_core::testing::failpoint;

use crate::place::directory::Directory;
use crate::place::fork::{ClosedOnFork, is_forked};

/// How much of a file of pids is read: some six hundred of them.
const FILE_BYTES_MAX: u64 = 4096;

/// A client's own life. Dropping it is a clean death.
#[derive(Debug)]
pub(crate) struct Life {
    client: ClientId,
    directory: Arc<Directory>,
    /// There until the end.
    file: Option<ClosedOnFork>,
    /// Another process may live on for this client.
    is_shared: AtomicBool,
}

impl Life {
    /// Begins to live.
    pub(crate) fn begin(directory: &Arc<Directory>, client: ClientId) -> io::Result<Life> {
        let flags = OFlags::RDWR
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::CLOEXEC
            | OFlags::NOFOLLOW;
        let name = client.to_string();
        let fresh = format!("{name}.new");
        let file = rustix::fs::openat(&directory.alive_fd, &*fresh, flags, Mode::RUSR | Mode::WUSR)?;
        failpoint::pass("local.before_life");
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let mut file = File::from(file);
        file.write_all(pid_line(std::process::id()).as_bytes())?;
        // Only now has it the name by which others know it: no process sees it without its lock.
        rustix::fs::renameat(&directory.alive_fd, &*fresh, &directory.alive_fd, &*name)?;
        let file = Some(ClosedOnFork::new(file.into()));
        Ok(Life { client, directory: directory.clone(), file, is_shared: AtomicBool::new(false) })
    }

    /// Lets a process share this life: as long as it keeps the descriptor open, the client is not dead.
    pub(crate) fn share(&self, pid: u32) -> io::Result<OwnedFd> {
        let file = self.file.as_ref().and_then(ClosedOnFork::get).ok_or(Errno::BADF)?;
        self.is_shared.store(true, Ordering::Relaxed);
        // The line first: a watcher that sees the client's own process die then finds the other one to watch.
        rustix::io::write(file, pid_line(pid).as_bytes())?;
        Ok(rustix::io::fcntl_dupfd_cloexec(file, 0)?)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        drop(self.file.take());
        // Without its file it would be dead, whichever process shares it. If one still does, a sweep removes it
        // later.
        let is_shared = self.is_shared.load(Ordering::Relaxed);
        if !is_forked() && (!is_shared || is_dead(&self.directory, self.client)) {
            remove_file(&self.directory, self.client);
        }
    }
}

fn pid_line(pid: u32) -> String {
    format!("{pid}\n")
}

/// Whether a client is dead. When in doubt (no descriptors left, say) it lives, and its ttl decides.
pub(crate) fn is_dead(directory: &Directory, client: ClientId) -> bool {
    match open(directory, client) {
        Ok(file) => is_unlocked(&file),
        Err(error) => error == Errno::NOENT,
    }
}

/// Whether a client of this process has lost its file. Without it, others take it for dead.
pub(crate) fn is_file_gone(directory: &Directory, client: ClientId) -> bool {
    let name = client.to_string();
    matches!(rustix::fs::statat(&directory.alive_fd, &*name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
}

/// Which processes a client's life depends on, or `None` if it is dead.
pub(crate) fn pids(directory: &Directory, client: ClientId) -> io::Result<Option<Vec<u32>>> {
    let file = match open(directory, client) {
        Ok(file) if is_unlocked(&file) => return Ok(None),
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut text = String::new();
    File::from(file).take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(Some(text.lines().filter_map(|line| line.parse().ok()).collect()))
}

/// Removes what a dead client left behind, or what one that closes leaves.
pub(crate) fn remove_file(directory: &Directory, client: ClientId) {
    let name = client.to_string();
    // Best effort: the next sweep tries again, and a file without a lock says what no file says.
    let _ = rustix::fs::unlinkat(&directory.bell_fd, &*name, AtFlags::empty());
    let _ = rustix::fs::unlinkat(&directory.alive_fd, &*name, AtFlags::empty());
}

/// Lists the clients that have a file, dead or alive.
pub(crate) fn clients(directory: &Directory) -> Vec<ClientId> {
    crate::place::directory::names_in(&directory.alive_fd)
        .iter()
        .filter(|name| name.len() == 16)
        .filter_map(|name| name.parse().ok())
        .collect()
}

fn open(directory: &Directory, client: ClientId) -> Result<OwnedFd, Errno> {
    let mut name = [0; 16];
    write!(&mut name[..], "{client}").map_err(|_| Errno::INVAL)?;
    let name = std::str::from_utf8(&name).map_err(|_| Errno::INVAL)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(&directory.alive_fd, name, flags, Mode::empty())
}

fn is_unlocked(file: &OwnedFd) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockShared).is_ok()
}
