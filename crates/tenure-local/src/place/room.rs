//! A directory with a store in it: the gate, the file of the store, and which clients may use them.
//!
//! There are two: that of the boot, and that of the queues, which outlives boots. What the processes that have a
//! store open must have in common is written beside it; while a process has it open, others are refused.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::testing::failpoint;

use crate::error::{Fault, damaged_hint, system_error};
use crate::place::gate::{self, Gate};

/// The format of everything in a room. Another one is refused.
const FORMAT: u32 = 1;
/// How much of a small file is read.
const SMALL_FILE_BYTES_MAX: u64 = 4096;

pub(crate) const FILE: OFlags = OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
pub(crate) const USER_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// What identifies a directory: its device and number.
pub(crate) type Identity = (u64, u64);

/// An open directory of a store.
#[derive(Debug)]
pub(crate) struct Room {
    /// The path, for people.
    pub(crate) path: PathBuf,
    pub(crate) fd: OwnedFd,
    /// What is stored survives a crash of the machine.
    pub(crate) is_durable: bool,
}

impl Room {
    /// Returns the file of the store.
    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data.mdb")
    }

    /// Says what identifies the directory within this process.
    pub(crate) fn identity(&self) -> io::Result<Identity> {
        let Stat { st_dev, st_ino, .. } = rustix::fs::fstat(&self.fd)?;
        Ok((st_dev, st_ino))
    }

    /// Says what identifies something in the directory.
    pub(crate) fn identity_of(&self, name: &str) -> io::Result<Identity> {
        let Stat { st_dev, st_ino, .. } = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((st_dev, st_ino))
    }

    /// Opens the gate.
    pub(crate) fn open_gate(&self) -> Result<Gate> {
        let path = self.path.join("gate");
        let file = rustix::fs::openat(&self.fd, "gate", FILE, Mode::empty())
            .map_err(|source| system_error("connect", "open", &path, source))?;
        let stat =
            rustix::fs::fstat(&file).map_err(|source| system_error("connect", "open", &path, source))?;
        if stat.st_size != gate::PAGE_BYTES as i64 {
            return Err(damaged(&self.path, format!("the gate has {} bytes", stat.st_size)));
        }
        // Shared by all processes that have the store open; see `is_gate_in_use`.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
            .map_err(|source| system_error("connect", "lock", &path, source))?;
        if self.identity_of("gate").ok() != Some((stat.st_dev, stat.st_ino)) {
            return Err(Fault::Removed.to_error("connect", &self.path));
        }
        Gate::open(file).map_err(|source| system_error("connect", "map", &path, source))
    }

    /// Checks which version made the directory; makes it if there is none.
    pub(crate) fn check_format(&self, mine: &Format) -> Result<()> {
        let path = self.path.join("format");
        let failed = |what| {
            let path = path.clone();
            move |source: Errno| system_error("connect", what, &path, source)
        };
        let theirs = match rustix::fs::openat(&self.fd, "format", FILE, Mode::empty()) {
            Ok(file) => {
                let text =
                    read_small(file).map_err(|source| system_error("connect", "read", &path, source))?;
                match Format::parse(&text) {
                    // A crash of the machine may have left half of it, and what is queued is worth more.
                    None if self.is_durable => None,
                    None => return Err(damaged(&self.path, "its format file".to_owned())),
                    theirs => theirs,
                }
            }
            Err(Errno::NOENT) => None,
            Err(source) => return Err(failed("read")(source)),
        };
        match theirs {
            Some(theirs) if theirs == *mine => return Ok(()),
            // What is stored outlives a container, but pids and the gate do not. While no process of the other one
            // lives, this one may take over.
            Some(theirs) if theirs.format != mine.format || self.is_gate_in_use() => {
                return Err(theirs.refuse(mine, &self.path));
            }
            Some(_) => {}
            // To begin anew now would part the new clients from those that are connected.
            None if self.is_gate_in_use() => return Err(Fault::Removed.to_error("connect", &self.path)),
            None if self.is_durable => {}
            None => self.remove("data.mdb"),
        }
        failpoint::pass("local.before_gate");
        self.write_anew("gate", |file| Gate::create(file.as_fd()))
            .map_err(|source| system_error("connect", "write", &self.path.join("gate"), source))?;
        failpoint::pass("local.before_format");
        self.write_anew("format", |mut file| file.write_all(mine.to_string().as_bytes()))
            .map_err(|source| system_error("connect", "write", &path, source))
    }

    fn is_gate_in_use(&self) -> bool {
        is_gate_in_use(&self.fd)
    }

    fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
    }

    /// Writes a file beside the old one and puts it in its place, so that no one ever sees half of it.
    fn write_anew(&self, name: &str, write: impl FnOnce(std::fs::File) -> io::Result<()>) -> io::Result<()> {
        let fresh = format!("{name}.new");
        self.remove(&fresh);
        let file = rustix::fs::openat(&self.fd, &*fresh, FILE | OFlags::CREATE | OFlags::EXCL, USER_FILE)?;
        write(std::fs::File::from(file))?;
        Ok(rustix::fs::renameat(&self.fd, &*fresh, &self.fd, name)?)
    }
}

/// What must be found at its path for as long as a store is open: new clients open what is there.
///
/// Descriptors follow a directory that is renamed, so they cannot show it. A name alone cannot either: what was
/// removed may have been made anew.
#[derive(Debug)]
pub(crate) struct Presence(Vec<(PathBuf, Identity)>);

impl Presence {
    /// Notes what is in a room.
    pub(crate) fn of(room: &Room, names: &[&str]) -> io::Result<Presence> {
        let found = names.iter().map(|name| Ok((room.path.join(name), room.identity_of(name)?)));
        Ok(Presence(found.collect::<io::Result<_>>()?))
    }

    /// Whether something was removed, renamed or replaced.
    pub(crate) fn is_over(&self) -> bool {
        self.0.iter().any(|(path, before)| match rustix::fs::lstat(path) {
            Ok(now) => (now.st_dev, now.st_ino) != *before,
            // What cannot be checked, as by a process that has given up its rights, may be there.
            Err(error) => matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP),
        })
    }
}

/// What the processes that share a directory must have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    format: u32,
    layout: String,
    pid_namespace: String,
    /// Where the time since boot is counted.
    pub(crate) time_namespace: String,
    /// Where the clients are, unless it is here: the directory of their boot.
    clients_in: String,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "tenure-local {}", self.format)?;
        writeln!(f, "{}\n{}\n{}", self.layout, self.pid_namespace, self.time_namespace)?;
        if self.clients_in.is_empty() { Ok(()) } else { writeln!(f, "{}", self.clients_in) }
    }
}

impl Format {
    pub(crate) fn of_this_process() -> Result<Format> {
        let read = |name: &str| {
            let path = format!("/proc/self/ns/{name}");
            std::fs::read_link(&path).map(|link| link.display().to_string()).or_else(|source| {
                // A kernel without time namespaces has only one.
                if name == "time" && source.kind() == io::ErrorKind::NotFound {
                    return Ok("time:none".to_owned());
                }
                Err(Error::new(ErrorKind::Unsupported, "connect", format!("cannot read {path}"))
                    .with_hint("mount /proc, or use an engine with a server")
                    .with_source(source))
            })
        };
        Ok(Format {
            format: FORMAT,
            layout: gate::layout(),
            pid_namespace: read("pid")?,
            time_namespace: read("time")?,
            clients_in: String::new(),
        })
    }

    /// What the processes have in common whose clients are in another room.
    pub(crate) fn with_clients_in(&self, room: &Room) -> Format {
        Format { clients_in: room.path.display().to_string(), ..self.clone() }
    }

    fn parse(text: &str) -> Option<Format> {
        let mut lines = text.lines();
        let format = lines.next()?.strip_prefix("tenure-local ")?.parse().ok()?;
        let mut line = || lines.next().map(str::to_owned).unwrap_or_default();
        Some(Format {
            format,
            layout: line(),
            pid_namespace: line(),
            time_namespace: line(),
            clients_in: line(),
        })
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
        } else if self.pid_namespace == mine.pid_namespace && self.clients_in != mine.clients_in {
            (
                format!(
                    "{place} is used by the clients in {}, this one is in {}",
                    self.clients_in, mine.clients_in
                ),
                "let all processes of this user see the same /run/tenure or /tmp, or name a directory in the URL",
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
        Error::new(ErrorKind::Unsupported, "connect", message).with_hint(hint)
    }
}

/// The error for what LMDB must not see, or what tenure never wrote.
pub(crate) fn damaged(room: &Path, what: String) -> Error {
    Error::new(ErrorKind::Internal, "connect", format!("{} is damaged: {what}", room.display()))
        .with_hint(damaged_hint(room))
}

/// Whether any process has the store of a directory open.
pub(crate) fn is_gate_in_use(fd: &OwnedFd) -> bool {
    match rustix::fs::openat(fd, "gate", FILE, Mode::empty()) {
        Ok(file) => rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err(),
        Err(_) => false,
    }
}

/// Reads a small file.
pub(crate) fn read_small(file: OwnedFd) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::from(file).take(SMALL_FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}
