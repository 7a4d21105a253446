//! Where the state lives, and which user may use it.
//!
//! ```text
//! <place>/              0700, owned by this user, no symbolic link
//!   setup               locked while a process connects
//!   <boot id>/          void after a reboot, then removed by the process that makes the next one
//!     format            format, layout of the gate, PID and time namespace; written last
//!     gate  data.mdb    see gate.rs and store.rs
//!     alive/<client>    see liveness.rs
//!     bell/<client>     see wake.rs
//!     sweep             locked while a process sweeps
//!   queue/              of a named place: the queues, which outlive boots (see queue/place.rs for the default one)
//!     setup  format  gate  data.mdb
//! ```
//!
//! Each level belongs to this user, and below the place no other user may enter: otherwise others could put it there, move
//! it away or replace it. Everything is opened relative to descriptors, with two exceptions. LMDB opens by path: what it
//! has opened is compared afterwards. A bell is rung by path, which takes 4 us less than `/proc/self/fd`: a ring is a
//! hint, and grants nothing that the store does not. While a store is open,
//! [`Presence`](crate::place::room::Presence) sees to it that its paths still lead to it. The place is held open with a shared
//! lock, which keeps `systemd-tmpfiles` from cleaning it up under running processes.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tenure_core::clock::Clock;
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::testing::failpoint;

use crate::config::Config;
use crate::error::{Fault, blocked_by, system_error};
use crate::place::default_place::Decision;
use crate::place::room::{FILE, Format, Room, USER_FILE, is_gate_in_use};

/// How long to wait while another process connects, which takes a millisecond.
const SETUP_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long to sleep between two checks whether the setup is over.
const SETUP_WAIT_STEP: Duration = Duration::from_millis(2);

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const USER_ONLY: Mode = Mode::RWXU;
/// The bits of a directory like `/tmp`.
const EVERYBODY_MAKES_FILES: u32 = 0o1002;

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
    /// Lets those follow whose place is not named either.
    _decision: Option<Decision>,
}

/// The lock of the setup. While it is held, no other process connects.
pub(crate) struct Setup {
    _locked: OwnedFd,
    /// The lock of the decision on a place, if that is another one.
    _deciding: Option<OwnedFd>,
}

impl Setup {
    pub(crate) fn new(locked: OwnedFd, deciding: Option<OwnedFd>) -> Setup {
        Setup { _locked: locked, _deciding: deciding }
    }
}

impl Directory {
    /// Opens the place, and makes what is missing.
    ///
    /// # Errors
    /// `Unsupported` or `Invalid` for a place that cannot be trusted, `Unavailable` for one that cannot be used.
    pub(crate) fn open(config: &Config, clock: &dyn Clock) -> Result<(Directory, Setup)> {
        let boot_id = match &config.boot_id {
            Some(id) => id.clone(),
            None => boot_id()?,
        };
        let (decision, deciding) = match &config.directory {
            Some(_) => (None, None),
            None => {
                let (decision, deciding) = Decision::make(&boot_id, clock)?;
                (Some(decision), deciding)
            }
        };
        let named = config.directory.as_ref().or(decision.as_ref().map(|decision| &decision.place));
        let place = named.cloned().expect("it is named or decided on");
        let is_named = decision.is_none();
        let failed = |what: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source: Errno| system_error("connect", what, &path, source)
        };
        let place_fd = open_place(&place, is_named)?;
        // Bells are rung by path, whatever the working directory is by then.
        let place = place.canonicalize().map_err(|source| system_error("connect", "open", &place, source))?;
        // Best effort: without it the store works, but something that cleans up old files might remove it.
        let _ = rustix::fs::flock(&place_fd, FlockOperation::NonBlockingLockShared);
        let is_decided_here = decision.as_ref().is_some_and(|decision| decision.is_made_in(&place_fd));
        let setup = match deciding {
            // A file cannot be locked twice.
            Some(locked) if is_decided_here => Setup::new(locked, None),
            deciding => Setup::new(lock_setup(&place, &place_fd, clock)?, deciding),
        };
        let boot = place.join(&boot_id);
        failpoint::pass("local.in_setup");
        let is_new = make_directory(&place_fd, &boot_id).map_err(failed("create", &boot))?;
        let boot_fd = rustix::fs::openat(&place_fd, &*boot_id, DIRECTORY, Mode::empty())
            .map_err(failed("open", &boot))?;
        check_own(&boot_fd, &boot)?;
        if is_new {
            remove_other_boots(&place_fd, &boot_id);
        }
        let is_used = is_gate_in_use(&boot_fd);
        let open = |name: &str| {
            let path = boot.join(name);
            if make_directory(&boot_fd, name).map_err(failed("create", &path))? && is_used {
                // The users of the store have another one, in which this client would be dead.
                return Err(Fault::Removed.to_error("connect", &path));
            }
            let fd = rustix::fs::openat(&boot_fd, name, DIRECTORY, Mode::empty())
                .map_err(failed("open", &path))?;
            check_own(&fd, &path)?;
            Ok(fd)
        };
        let (alive_fd, bell_fd) = (open("alive")?, open("bell")?);
        let format = Format::of_this_process()?;
        let room = Arc::new(Room { path: boot, fd: boot_fd, is_durable: false });
        room.check_format(&format)?;
        if let Some(decision) = &decision {
            let identity =
                room.identity().map_err(|source| system_error("connect", "look at", &room.path, source))?;
            decision.announce(&room.path, identity)?;
        }
        let directory =
            Directory { place, is_named, room, place_fd, alive_fd, bell_fd, format, _decision: decision };
        Ok((directory, setup))
    }

    /// Locks the sweep, for as long as the descriptor is open. `None` if another process sweeps.
    pub(crate) fn lock_sweep(&self) -> Option<OwnedFd> {
        let file = rustix::fs::openat(&self.room.fd, "sweep", FILE | OFlags::CREATE, USER_FILE).ok()?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(file)
    }

    /// Returns the descriptor of the place, for checks of its file system.
    pub(crate) fn place_fd(&self) -> impl AsFd {
        self.place_fd.as_fd()
    }
}

/// Whether a directory is there, and belongs to a user.
pub(crate) fn is_own_directory(path: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && std::os::unix::fs::MetadataExt::uid(&found) == uid)
}

/// Opens a place, and makes it if it is not there.
pub(crate) fn open_place(place: &Path, is_named: bool) -> Result<OwnedFd> {
    match rustix::fs::mkdir(place, USER_ONLY) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(source) => return Err(system_error("connect", "create", place, source)),
    }
    let text = place.display();
    let fd = match rustix::fs::open(place, DIRECTORY, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(no_directory(place)),
        Err(source) => return Err(system_error("connect", "open", place, source)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(|source| system_error("connect", "open", place, source))?;
    // Others may read a directory that the user named, but never write.
    let (bits, what) = if is_named { (0o022, "write to") } else { (0o077, "enter") };
    let mode = stat.st_mode & 0o7777;
    let uid = rustix::process::geteuid().as_raw();
    if mode & EVERYBODY_MAKES_FILES == EVERYBODY_MAKES_FILES {
        let hint =
            format!("name a directory of your own below it: `local:{}`", place.join("locks").display());
        return Err(distrust(format!("{text} is open to all users (mode {mode:o})"), hint));
    }
    if stat.st_uid != uid {
        let hint = "run as that user, or name another directory in the URL: `local:/some/directory`";
        return Err(distrust(
            format!("{text} belongs to user {}, this process is user {uid}", stat.st_uid),
            hint,
        ));
    }
    if mode & bits != 0 {
        let message = format!("others may {what} {text} (mode {mode:o})");
        // A directory that has another purpose may need its mode.
        let is_for_locks = names_in(&fd).iter().all(|name| is_of_a_place(name));
        return Err(distrust(
            message,
            if is_for_locks {
                format!("run `chmod 700 {text}`")
            } else {
                format!("name a directory for nothing else: `local:{}`", place.join("locks").display())
            },
        ));
    }
    Ok(fd)
}

fn distrust(message: String, hint: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, "connect", message).with_hint(hint)
}

/// The error for a place that is something else.
fn no_directory(place: &Path) -> Error {
    let text = place.display();
    match std::fs::read_link(place) {
        Ok(_) => {
            let real = place.canonicalize().unwrap_or_else(|_| "/some/directory".into());
            let hint = format!("name the real directory in the URL: `local:{}`", real.display());
            distrust(format!("{text} is a symbolic link"), hint)
        }
        Err(_) => distrust(
            format!("{text} is a file, not a directory"),
            "the engine's place is a directory: `local:/some/directory`",
        ),
    }
}

/// Whether something in a directory is what a place has.
fn is_of_a_place(name: &str) -> bool {
    matches!(name, "setup" | "queue" | "users" | "format" | "gate" | "data.mdb") || is_boot_id(name)
}

/// Refuses what others could put below a place, move away or replace.
fn check_own(fd: &OwnedFd, path: &Path) -> Result<()> {
    let stat = rustix::fs::fstat(fd).map_err(|source| system_error("connect", "look at", path, source))?;
    let (uid, mode, text) = (rustix::process::geteuid().as_raw(), stat.st_mode & 0o7777, path.display());
    if stat.st_uid != uid {
        let message = format!("{text} belongs to user {}, this process is user {uid}", stat.st_uid);
        let hint = "another user has made it: remove it, and let nobody else write to the directory above it";
        return Err(distrust(message, hint));
    }
    if mode & 0o077 != 0 {
        return Err(distrust(
            format!("others may open {text} (mode {mode:o})"),
            format!("run `chmod go= {text}`"),
        ));
    }
    Ok(())
}

/// Locks the setup of a place.
pub(crate) fn lock_setup(place: &Path, place_fd: &OwnedFd, clock: &dyn Clock) -> Result<OwnedFd> {
    let path = place.join("setup");
    let failed = |what| {
        let path = path.clone();
        move |source: Errno| system_error("connect", what, &path, source)
    };
    let until = clock.now() + SETUP_WAIT_MAX;
    loop {
        let file = rustix::fs::openat(place_fd, "setup", FILE | OFlags::CREATE, USER_FILE)
            .map_err(failed("write"))?;
        check_own(&file, &path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let locked = rustix::fs::fstat(&file).map_err(failed("look at"))?;
                let there = rustix::fs::statat(place_fd, "setup", AtFlags::SYMLINK_NOFOLLOW);
                // It may have been removed, and others lock another one.
                if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (locked.st_dev, locked.st_ino)) {
                    return Ok(file);
                }
            }
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
            Err(source) => return Err(failed("lock")(source)),
        }
    }
}

/// Which process has locked a file.
pub(crate) fn lock_holder(file: &OwnedFd) -> Option<u32> {
    let stat = rustix::fs::fstat(file).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let (file, number) = (format!("{major:02x}:{minor:02x}:{}", stat.st_ino), format!(":{}", stat.st_ino));
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // `1: FLOCK  ADVISORY  WRITE 4711 fe:00:123456 0 EOF`
    let lines: Vec<_> = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    let find = |is_it: &dyn Fn(&str) -> bool| {
        lines.iter().find(|words| words.get(1) == Some(&"FLOCK") && words.get(5).is_some_and(|it| is_it(it)))
    };
    // Some file systems have another device here than there; elsewhere a number alone may be another file's.
    let line = find(&|it| it == file).or_else(|| find(&|it| it.ends_with(&number)))?;
    line.get(4)?.parse().ok()
}

fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).map_err(|source| {
        Error::new(ErrorKind::Unsupported, "connect", format!("cannot read {path}"))
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

/// Removes what earlier boots left: it cannot be in use.
fn remove_other_boots(place_fd: &OwnedFd, boot_id: &str) {
    for name in names_in(place_fd) {
        if is_boot_id(&name) && name != boot_id {
            // Unless the place is shared with another machine, whose present boot it is.
            let is_in_use = rustix::fs::openat(place_fd, &*name, DIRECTORY, Mode::empty())
                .is_ok_and(|boot_fd| is_gate_in_use(&boot_fd));
            if !is_in_use {
                remove_tree(place_fd, &name, 2);
            }
        }
    }
}

/// Whether a name has the form of the id of a boot: 36 characters with four dashes.
fn is_boot_id(name: &str) -> bool {
    name.len() == 36 && name.bytes().filter(|byte| *byte == b'-').count() == 4
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
    fn a_directory_of_this_user_is_told_from_others() {
        let uid = rustix::process::geteuid().as_raw();
        assert!(!is_own_directory(Path::new("/proc/self"), uid), "a symbolic link");
        assert!(!is_own_directory(Path::new("/proc/version"), uid), "a file");
        assert!(!is_own_directory(Path::new("/proc"), uid + 1), "another user's");
    }
}
