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
//! ```
//!
//! Everything is opened relative to descriptors, so nobody can put another directory in between. The place is
//! held open with a shared lock, which keeps `systemd-tmpfiles` from cleaning it up under running processes.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use tenure_core::clock::Clock;
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::failpoint;

use crate::config::Config;
use crate::error::{Fault, damaged_hint, system_error};
use crate::gate::{self, Gate};
use crate::job::Identity;

/// The format of everything in a boot's directory. Another one is refused.
const FORMAT: u32 = 1;
/// How long to wait while somebody else connects, which takes a millisecond.
const SETUP_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long to sleep between two looks whether the setup is over.
const SETUP_WAIT_STEP: Duration = Duration::from_millis(2);
/// How much of a small file is read.
const SMALL_FILE_BYTES_MAX: u64 = 4096;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const USER_ONLY: Mode = Mode::RWXU;
const USER_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// An open boot directory.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The place, for people.
    pub(crate) place: PathBuf,
    /// Whether the place was named by the user.
    pub(crate) is_named: bool,
    /// The boot's directory.
    pub(crate) boot: PathBuf,
    place_fd: OwnedFd,
    boot_fd: OwnedFd,
    pub(crate) alive_fd: OwnedFd,
    pub(crate) bell_fd: OwnedFd,
    /// Where the time since boot is counted.
    pub(crate) time_namespace: String,
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
        let boot_id = boot_id()?;
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
        let mine = Format::of_this_process()?;
        let time_namespace = mine.time_namespace.clone();
        let directory =
            Directory { place, is_named, boot, place_fd, boot_fd, alive_fd, bell_fd, time_namespace };
        directory.check_format(&mine)?;
        Ok((directory, setup))
    }

    /// Locks the sweep, for as long as the descriptor is open. None: another process sweeps.
    pub(crate) fn lock_sweep(&self) -> Option<OwnedFd> {
        let file = rustix::fs::openat(&self.boot_fd, "sweep", FILE | OFlags::CREATE, USER_FILE).ok()?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(file)
    }

    /// Returns the file of the store.
    pub(crate) fn data(&self) -> PathBuf {
        self.boot.join("data.mdb")
    }

    /// Says what identifies the directory within this process.
    pub(crate) fn identity(&self) -> io::Result<Identity> {
        let Stat { st_dev, st_ino, .. } = rustix::fs::fstat(&self.boot_fd)?;
        Ok((st_dev, st_ino))
    }

    /// Whether the directory has been removed under us: then another process may have made a new one, and
    /// neither would know of the other.
    pub(crate) fn is_removed(&self) -> bool {
        matches!(rustix::fs::statat(&self.boot_fd, "format", AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
    }

    /// Returns the descriptor of the place, for looks at its file system.
    pub(crate) fn place_fd(&self) -> impl AsFd {
        self.place_fd.as_fd()
    }

    /// Opens the gate.
    pub(crate) fn open_gate(&self) -> Result<Gate> {
        let path = self.boot.join("gate");
        let file = rustix::fs::openat(&self.boot_fd, "gate", FILE, Mode::empty())
            .map_err(|source| system_error("connect", "open", &path, source))?;
        let stat =
            rustix::fs::fstat(&file).map_err(|source| system_error("connect", "open", &path, source))?;
        if stat.st_size != gate::PAGE_BYTES as i64 {
            return Err(damaged(&self.boot, format!("the gate has {} bytes", stat.st_size)));
        }
        // Shared by all who have the store open; see `is_gate_in_use`.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
            .map_err(|source| system_error("connect", "lock", &path, source))?;
        Gate::open(file).map_err(|source| system_error("connect", "map", &path, source))
    }

    /// Checks who made the directory; makes it if nobody has.
    fn check_format(&self, mine: &Format) -> Result<()> {
        let path = self.boot.join("format");
        let failed = |what| {
            let path = path.clone();
            move |source: Errno| system_error("connect", what, &path, source)
        };
        let theirs = match rustix::fs::openat(&self.boot_fd, "format", FILE, Mode::empty()) {
            Ok(file) => {
                let text =
                    read_small(file).map_err(|source| system_error("connect", "read", &path, source))?;
                Some(Format::parse(&text).ok_or_else(|| damaged(&self.boot, "its format file".to_owned()))?)
            }
            Err(Errno::NOENT) => None,
            Err(source) => return Err(failed("read")(source)),
        };
        match theirs {
            Some(theirs) if theirs == *mine => return Ok(()),
            // What is stored outlives a container, but pids and the gate do not. While nobody of the other one
            // lives, this one may take over.
            Some(theirs) if theirs.format != mine.format || self.is_gate_in_use() => {
                return Err(theirs.refuse(mine, &self.place));
            }
            Some(_) => {}
            // To begin anew now would part those who connect from those who are connected.
            None if self.is_gate_in_use() => return Err(Fault::Removed.to_error("connect", &self.boot)),
            None => self.remove("data.mdb"),
        }
        failpoint::pass("local.before_gate");
        self.write_anew("gate", |file| Gate::create(file.as_fd()))
            .map_err(|source| system_error("connect", "write", &self.boot.join("gate"), source))?;
        failpoint::pass("local.before_format");
        self.write_anew("format", |mut file| file.write_all(mine.to_string().as_bytes()))
            .map_err(|source| system_error("connect", "write", &path, source))
    }

    fn is_gate_in_use(&self) -> bool {
        is_gate_in_use(&self.boot_fd)
    }

    fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.boot_fd, name, AtFlags::empty());
    }

    /// Writes a file beside the old one and puts it in its place, so that no one ever sees half of it.
    fn write_anew(&self, name: &str, write: impl FnOnce(std::fs::File) -> io::Result<()>) -> io::Result<()> {
        let fresh = format!("{name}.new");
        self.remove(&fresh);
        let file =
            rustix::fs::openat(&self.boot_fd, &*fresh, FILE | OFlags::CREATE | OFlags::EXCL, USER_FILE)?;
        write(std::fs::File::from(file))?;
        Ok(rustix::fs::renameat(&self.boot_fd, &*fresh, &self.boot_fd, name)?)
    }
}

/// What the processes that share a directory must have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Format {
    format: u32,
    layout: String,
    pid_namespace: String,
    time_namespace: String,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "tenure-local {}", self.format)?;
        writeln!(f, "{}\n{}\n{}", self.layout, self.pid_namespace, self.time_namespace)
    }
}

impl Format {
    fn of_this_process() -> Result<Format> {
        let read = |name: &str| {
            let path = format!("/proc/self/ns/{name}");
            std::fs::read_link(&path).map(|link| link.display().to_string()).or_else(|source| {
                // A kernel without time namespaces has only one.
                if name == "time" && source.kind() == io::ErrorKind::NotFound {
                    return Ok("time:none".to_owned());
                }
                Err(Error::new(ErrorKind::Unsupported, "connect", format!("cannot read {path}"))
                    .with_engine("local")
                    .with_hint("mount /proc, or use an engine with a server")
                    .with_source(source))
            })
        };
        Ok(Format {
            format: FORMAT,
            layout: gate::layout(),
            pid_namespace: read("pid")?,
            time_namespace: read("time")?,
        })
    }

    fn parse(text: &str) -> Option<Format> {
        let mut lines = text.lines();
        let format = lines.next()?.strip_prefix("tenure-local ")?.parse().ok()?;
        let mut line = || lines.next().map(str::to_owned).unwrap_or_default();
        Some(Format { format, layout: line(), pid_namespace: line(), time_namespace: line() })
    }

    /// Says why this directory, which is another's, cannot be used.
    fn refuse(&self, mine: &Format, place: &Path) -> Error {
        let place = place.display();
        let (message, hint) = if self.format != mine.format {
            (
                format!("{place} has format {}, this version uses {}", self.format, mine.format),
                "use one version of tenure for all processes, or another directory",
            )
        } else if self.layout != mine.layout {
            (
                format!("{place} is used by programs built for {}, this one is {}", self.layout, mine.layout),
                "build all programs for one C library, or use another directory",
            )
        } else {
            (
                format!(
                    "{place} is used from another container (namespaces {} {}, this one is {} {})",
                    self.pid_namespace, self.time_namespace, mine.pid_namespace, mine.time_namespace
                ),
                "give each container a directory of its own, or use an engine with a server",
            )
        };
        Error::new(ErrorKind::Unsupported, "connect", message).with_engine("local").with_hint(hint)
    }
}

fn damaged(boot: &Path, what: String) -> Error {
    Error::new(ErrorKind::Internal, "connect", format!("{} is damaged: {what}", boot.display()))
        .with_engine("local")
        .with_hint(damaged_hint(boot))
}

/// The error for a store file that LMDB must not see.
pub(crate) fn damaged_data(boot: &Path, what: String) -> Error {
    damaged(boot, what)
}

/// Where the state lives when nobody says: never taken from an environment, which differs between a login
/// shell and cron.
fn default_place() -> PathBuf {
    let (run, uid) = (Path::new("/run/tenure"), rustix::process::geteuid().as_raw());
    if is_own_directory(run, uid) { run.to_owned() } else { PathBuf::from(format!("/tmp/tenure-{uid}")) }
}

fn is_own_directory(path: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && std::os::unix::fs::MetadataExt::uid(&found) == uid)
}

fn open_place(place: &Path, is_named: bool) -> Result<OwnedFd> {
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

fn lock_setup(place: &Path, place_fd: &OwnedFd, clock: &dyn Clock) -> Result<Setup> {
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
                let message = format!("another process has been connecting to {} for 2s", place.display());
                return Err(Error::new(ErrorKind::Unavailable, "connect", message)
                    .with_engine("local")
                    .with_hint(format!("is it stopped? `fuser {}` says who it is", path.display())));
            }
            Err(source) => return Err(system_error("connect", "lock", &path, source)),
        }
    }
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

/// Whether any process has the store of a boot's directory open.
fn is_gate_in_use(boot_fd: &OwnedFd) -> bool {
    match rustix::fs::openat(boot_fd, "gate", FILE, Mode::empty()) {
        Ok(file) => rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err(),
        Err(_) => false,
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

/// Reads a small file.
pub(crate) fn read_small(file: OwnedFd) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::from(file).take(SMALL_FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
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
