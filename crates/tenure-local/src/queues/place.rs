//! Where the queues are kept: a place that survives a reboot.
#![allow(unsafe_code, reason = "the database of users")]

use std::ffi::{CStr, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tenure_core::clock::Clock;
use tenure_core::error::{Error, ErrorKind, Result};

use crate::error::system_error;
use crate::place::default_place::is_candidate;
use crate::place::directory::{Directory, Setup, is_own_directory, lock_setup, open_place};
use crate::place::room::Room;

/// Where the queues of the default place are, if it exists and belongs to this user.
const SYSTEM_PLACE: &str = "/var/lib/tenure";
/// Where they are below the user's home directory otherwise.
const BELOW_HOME: [&str; 3] = [".local", "state", "tenure"];
/// How long an entry of the database of users may be.
const USER_BYTES_MAX: usize = 16 << 10;

/// Opens the directory of the queues of a place; makes it if it is not there.
pub(crate) fn open(directory: &Directory, clock: &dyn Clock) -> Result<(Room, Setup)> {
    let (path, above) = find(directory)?;
    let failed = |what: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source: Errno| system_error("connect", what, &path, source)
    };
    for path in above {
        make_above(&path).map_err(failed("create", &path))?;
    }
    let fd = open_place(&path, false)?;
    // Best effort, as with the place of the locks: nothing should clean up under running processes.
    let _ = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared);
    let setup = Setup::new(lock_setup(&path, &fd, clock)?, None);
    // The process that made it may have died before its name was on the disk.
    if let Some(parent) = path.parent() {
        sync(parent).map_err(failed("sync", parent))?;
    }
    let room = Room { path, fd, is_durable: true };
    room.check_format(&directory.format.with_clients_in(&directory.room))?;
    Ok((room, setup))
}

/// Says where the queues of a place are, and what must be above of it.
///
/// It depends on the place alone, so that all processes that share locks share queues.
pub(crate) fn find(directory: &Directory) -> Result<(PathBuf, Vec<PathBuf>)> {
    if !is_candidate(&directory.place) {
        return Ok((directory.place.join("queue"), Vec::new()));
    }
    let uid = rustix::process::geteuid().as_raw();
    let system = PathBuf::from(SYSTEM_PLACE);
    let home = home(uid);
    let has_store = |place: &Path| place.join("format").exists();
    // One that is made under a store that is in use must not part its users, nor hide what is queued.
    let is_in_home = home
        .as_ref()
        .is_some_and(|home| has_store(&BELOW_HOME.iter().fold(home.clone(), |path, name| path.join(name))));
    if is_own_directory(&system, uid) && (has_store(&system) || !is_in_home) {
        return Ok((system, Vec::new()));
    }
    let home = home.ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "connect", format!("user {uid} has no home directory for queues"))
            .with_hint(format!(
                "make {SYSTEM_PLACE} for this user, or name a directory in the URL: `local:/some/directory`"
            ))
    })?;
    let below: Vec<_> = BELOW_HOME
        .iter()
        .scan(home, |path, name| {
            path.push(name);
            Some(path.clone())
        })
        .collect();
    let (path, above) = below.split_last().expect("there are three");
    Ok((path.clone(), above.to_vec()))
}

/// Makes a directory above of the place.
fn make_above(path: &Path) -> Result<(), Errno> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        Ok(()) => path.parent().map_or(Ok(()), sync),
        Err(source) => Err(source),
    }
}

fn sync(path: &Path) -> Result<(), Errno> {
    let fd: OwnedFd = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::fs::fsync(fd) {
        // Not every file system syncs directories; it then keeps their names itself.
        Err(Errno::INVAL) => Ok(()),
        done => done,
    }
}

/// The user's home directory by the database of users: the environment differs between a login shell and cron.
fn home(uid: u32) -> Option<PathBuf> {
    // SAFETY: zero is a valid entry: numbers, and pointers that are null.
    let mut user = unsafe { std::mem::zeroed::<libc::passwd>() };
    let mut buffer = vec![0; USER_BYTES_MAX];
    let mut found = std::ptr::null_mut();
    // SAFETY: the buffer is as long as is said, and everything outlives the call.
    let code =
        unsafe { libc::getpwuid_r(uid, &raw mut user, buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
    if code != 0 || found.is_null() || user.pw_dir.is_null() {
        return None;
    }
    // SAFETY: the entry was found, so this is a text in the buffer.
    let home = unsafe { CStr::from_ptr(user.pw_dir) };
    Some(PathBuf::from(OsStr::from_bytes(home.to_bytes()))).filter(|home| home.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_of_queues_wait_for_the_disk_and_those_of_locks_do_not() {
        let files = tenure_testkit::TestDirectory::new();
        let config = crate::Config::in_directory(files.path().join("place"));
        let clock = std::sync::Arc::new(tenure_core::clock::SystemClock);
        let (worker, setup) = crate::client::job::Worker::open(&config, clock).unwrap();
        drop(setup);
        assert!(!worker.store.is_synced());
        assert!(worker.store.open_queues(1 << 20).unwrap().is_synced());
    }

    #[test]
    fn the_home_directory_is_that_of_the_database_of_users() {
        let uid = rustix::process::geteuid().as_raw();
        let users = std::fs::read_to_string("/etc/passwd").unwrap();
        let mut users = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let expected = users.find(|user| user[2] == uid.to_string()).map(|user| PathBuf::from(user[5]));
        assert_eq!(home(uid), expected);
        assert_eq!(home(u32::MAX - 7), None);
    }
}
