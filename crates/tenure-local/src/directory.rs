//! Where the state lives, and who may use it.
//!
//! ```text
//! <place>/              0700, owned by this user, no symbolic link
//!   setup               locked while somebody connects
//!   <boot id>/          void after a reboot, then removed by whoever makes the next one
//!     format            format, layout of the gate, PID and time namespace; written last
//!     gate  data.mdb    see gate.rs and store.rs
//!     alive/<client>    see liveness.rs
//!     bell/<client>     see wake.rs
//!     sweep             locked while somebody sweeps
//!   queue/              of a named place: the queues, which outlive boots (see queue/place.rs for the default one)
//!     setup  format  gate  data.mdb
//! ```
//!
//! Everything is opened relative to descriptors, so nobody can put another directory in between. The place is
//! held open with a shared lock, which keeps `systemd-tmpfiles` from cleaning it up under running processes.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tenure_core::clock::Clock;
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::failpoint;

use crate::config::Config;
use crate::error::{blocked_by, system_error};
use crate::room::{FILE, Format, Room, USER_FILE, is_gate_in_use};

/// How long to wait while somebody else connects, which takes a millisecond.
const SETUP_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long to sleep between two looks whether the setup is over.
const SETUP_WAIT_STEP: Duration = Duration::from_millis(2);

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const USER_ONLY: Mode = Mode::RWXU;

/// An open boot directory.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The place, for people.
    pub(crate) place: PathBuf,
    /// Whether the place was named by the user.
    pub(crate) is_named: bool,
    /// The boot's directory.
    pub(crate) room: Arc<Room>,
    place_fd: OwnedFd,
    pub(crate) alive_fd: OwnedFd,
    pub(crate) bell_fd: OwnedFd,
    /// What the processes that use the directory have in common.
    pub(crate) format: Format,
}

/// The lock of the setup. While it is held, nobody else connects.
pub(crate) struct Setup {
    _locked: OwnedFd,
}

impl Directory {
    /// Opens the place, and makes what is missing.
    ///
    /// # Errors
    /// `Unsupported` or `Invalid` for a place that cannot be trusted, `Unavailable` for one that cannot be used.
    pub(crate) fn open(config: &Config, clock: &dyn Clock) -> Result<(Directory, Setup)> {
        let (place, is_named) = match &config.directory {
            Some(place) => (place.clone(), true),
            None => (default_place(), false),
        };
        let failed = |what: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source: Errno| system_error("connect", what, &path, source)
        };
        let place_fd = open_place(&place, is_named)?;
        // Bells are rung by path, whatever the working directory is by then.
        let place = place.canonicalize().map_err(|source| system_error("connect", "open", &place, source))?;
        // Best effort: without it the store works, but something that cleans up old files might remove it.
        let _ = rustix::fs::flock(&place_fd, FlockOperation::NonBlockingLockShared);
        let setup = lock_setup(&place, &place_fd, clock)?;
        let boot_id = match &config.boot_id {
            Some(id) => id.clone(),
            None => boot_id()?,
        };
        let boot = place.join(&boot_id);
        failpoint::pass("local.in_setup");
        let is_new = make_directory(&place_fd, &boot_id).map_err(failed("create", &boot))?;
        let boot_fd = rustix::fs::openat(&place_fd, &*boot_id, DIRECTORY, Mode::empty())
            .map_err(failed("open", &boot))?;
        if is_new {
            remove_other_boots(&place_fd, &boot_id);
        }
        for name in ["alive", "bell"] {
            make_directory(&boot_fd, name).map_err(failed("create", &boot.join(name)))?;
        }
        let open = |name: &str| {
            rustix::fs::openat(&boot_fd, name, DIRECTORY, Mode::empty())
                .map_err(failed("open", &boot.join(name)))
        };
        let (alive_fd, bell_fd) = (open("alive")?, open("bell")?);
        let format = Format::of_this_process()?;
        let room = Arc::new(Room { path: boot, fd: boot_fd, is_durable: false });
        room.check_format(&format)?;
        Ok((Directory { place, is_named, room, place_fd, alive_fd, bell_fd, format }, setup))
    }

    /// Locks the sweep, for as long as the descriptor is open. None: another process sweeps.
    pub(crate) fn lock_sweep(&self) -> Option<OwnedFd> {
        let file = rustix::fs::openat(&self.room.fd, "sweep", FILE | OFlags::CREATE, USER_FILE).ok()?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(file)
    }

    /// Returns the descriptor of the place, for looks at its file system.
    pub(crate) fn place_fd(&self) -> impl AsFd {
        self.place_fd.as_fd()
    }
}

/// Where the state lives when nobody says: never taken from an environment, which differs between a login
/// shell and cron.
pub(crate) fn default_place() -> PathBuf {
    let (run, uid) = (Path::new("/run/tenure"), rustix::process::geteuid().as_raw());
    if is_own_directory(run, uid) { run.to_owned() } else { PathBuf::from(format!("/tmp/tenure-{uid}")) }
}

pub(crate) fn is_own_directory(path: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && std::os::unix::fs::MetadataExt::uid(&found) == uid)
}

pub(crate) fn open_place(place: &Path, is_named: bool) -> Result<OwnedFd> {
    let distrust = |message: String, hint: &str| {
        Err(Error::new(ErrorKind::Unsupported, "connect", message).with_engine("local").with_hint(hint))
    };
    match rustix::fs::mkdir(place, USER_ONLY) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(source) => return Err(system_error("connect", "create", place, source)),
    }
    let text = place.display();
    let fd = match rustix::fs::open(place, DIRECTORY, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return distrust(
                format!("{text} is not a directory, or a symbolic link to one"),
                "remove it, or name the real directory in the URL: `local:/some/directory`",
            );
        }
        Err(source) => return Err(system_error("connect", "open", place, source)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(|source| system_error("connect", "open", place, source))?;
    let uid = rustix::process::geteuid().as_raw();
    if stat.st_uid != uid {
        return distrust(
            format!("{text} belongs to user {}, this process is user {uid}", stat.st_uid),
            "run as that user, or name another directory in the URL: `local:/some/directory`",
        );
    }
    // Others may look into a directory that the user named, but never write.
    let (bits, what) = if is_named { (0o022, "write to") } else { (0o077, "enter") };
    if stat.st_mode & bits != 0 {
        return distrust(
            format!("others may {what} {text} (mode {:o})", stat.st_mode & 0o7777),
            "run `chmod 700` on it",
        );
    }
    Ok(fd)
}

pub(crate) fn lock_setup(place: &Path, place_fd: &OwnedFd, clock: &dyn Clock) -> Result<Setup> {
    let path = place.join("setup");
    let file = rustix::fs::openat(place_fd, "setup", FILE | OFlags::CREATE, USER_FILE)
        .map_err(|source| system_error("connect", "write", &path, source))?;
    let until = clock.now() + SETUP_WAIT_MAX;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Setup { _locked: file }),
            Err(Errno::WOULDBLOCK) if clock.now() < until => {
                // This thread was made for connecting, and connecting is rare: no need for a timer.
                let _ = rustix::thread::nanosleep(&rustix::time::Timespec {
                    tv_sec: 0,
                    tv_nsec: i64::from(SETUP_WAIT_STEP.subsec_nanos()),
                });
            }
            Err(Errno::WOULDBLOCK) => {
                let how = format!("has been connecting to {} for {SETUP_WAIT_MAX:?}", place.display());
                return Err(blocked_by("connect", lock_holder(&file).unwrap_or(0), &how));
            }
            Err(source) => return Err(system_error("connect", "lock", &path, source)),
        }
    }
}

/// Which process has locked a file.
fn lock_holder(file: &OwnedFd) -> Option<u32> {
    let inode = rustix::fs::fstat(file).ok()?.st_ino.to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // `1: FLOCK  ADVISORY  WRITE 4711 fe:00:123456 0 EOF`
    let mut lines = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|words| {
        words.get(1) == Some(&"FLOCK")
            && words.get(5).and_then(|place| place.rsplit(':').next()) == Some(&*inode)
    })?;
    line.get(4)?.parse().ok()
}

fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).map_err(|source| {
        Error::new(ErrorKind::Unsupported, "connect", format!("cannot read {path}"))
            .with_engine("local")
            .with_hint("mount /proc, or use an engine with a server")
            .with_source(source)
    })?;
    Ok(text.trim().to_owned())
}

/// Makes a directory; says whether it did.
fn make_directory(within: &OwnedFd, name: &str) -> Result<bool, Errno> {
    match rustix::fs::mkdirat(within, name, USER_ONLY) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(source) => Err(source),
    }
}

/// Removes what earlier boots left: nobody can be using it.
fn remove_other_boots(place_fd: &OwnedFd, boot_id: &str) {
    for name in names_in(place_fd) {
        if name.len() == boot_id.len() && name != boot_id && name.bytes().filter(|b| *b == b'-').count() == 4
        {
            // Unless the place is shared with another machine, whose present boot it is.
            let is_in_use = rustix::fs::openat(place_fd, &*name, DIRECTORY, Mode::empty())
                .is_ok_and(|boot_fd| is_gate_in_use(&boot_fd));
            if !is_in_use {
                remove_tree(place_fd, &name, 2);
            }
        }
    }
}

fn remove_tree(within: &OwnedFd, name: &str, depth: u32) {
    if let Ok(directory) = rustix::fs::openat(within, name, DIRECTORY, Mode::empty()) {
        for inner in names_in(&directory) {
            match rustix::fs::unlinkat(&directory, &*inner, AtFlags::empty()) {
                Err(Errno::ISDIR | Errno::PERM) if depth > 0 => remove_tree(&directory, &inner, depth - 1),
                _ => {}
            }
        }
    }
    let _ = rustix::fs::unlinkat(within, name, AtFlags::REMOVEDIR);
}

/// Lists a directory. What cannot be read is not there: only sweepers ask.
pub(crate) fn names_in(directory: &OwnedFd) -> Vec<String> {
    let Ok(entries) = Dir::read_from(directory) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
        .filter(|name| name != "." && name != "..")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_place_is_the_users_own() {
        let uid = rustix::process::geteuid().as_raw();
        let expected = match is_own_directory(Path::new("/run/tenure"), uid) {
            true => PathBuf::from("/run/tenure"),
            false => PathBuf::from(format!("/tmp/tenure-{uid}")),
        };
        assert_eq!(default_place(), expected);
        assert!(!is_own_directory(Path::new("/proc/self"), uid), "a symbolic link");
        assert!(!is_own_directory(Path::new("/proc/version"), uid), "a file");
        assert!(!is_own_directory(Path::new("/proc"), uid + 1), "another user's");
    }
}
