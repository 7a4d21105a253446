//! Errors of LMDB and of the system, in tenure's words.

use std::io;
use std::path::Path;

use heed::MdbError;
use tenure_core::error::{Error, ErrorKind, plain};

use crate::place::gate::{Blocked, WAIT_MAX};

/// Why a transaction was aborted. What a claim is refused for is not here: that is an answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store failed.
    Store(heed::Error),
    /// The store holds what no version of this engine wrote.
    Damaged(&'static str),
    /// The store was written by another version.
    Format(String),
    /// The store of the queues has no room.
    Full,
    /// A bug.
    Panicked(String),
}

impl From<heed::Error> for Failure {
    fn from(error: heed::Error) -> Failure {
        Failure::Store(error)
    }
}

impl From<std::convert::Infallible> for Failure {
    fn from(never: std::convert::Infallible) -> Failure {
        match never {}
    }
}

/// Why nothing was done.
#[derive(Debug)]
pub(crate) enum Fault {
    /// This process was forked from one that has clients.
    Forked,
    /// The directory has been removed, renamed or replaced while it was in use.
    Removed,
    /// The gate was not passed.
    Blocked(Blocked),
    /// The transaction was aborted.
    Failed(Failure),
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Fault {
        Fault::Failed(failure)
    }
}

impl Fault {
    /// Says to a user what failed and what to do. `place` is the directory of the store.
    pub(crate) fn to_error(&self, operation: &'static str, place: &Path) -> Error {
        match self {
            Fault::Forked => forked_error(operation),
            Fault::Removed => {
                let message = format!("{} has been removed or replaced while it was in use", place.display());
                Error::new(ErrorKind::Unavailable, operation, message).with_hint(
                    "restart every process that uses it; exempt it from whatever cleans up old files",
                )
            }
            Fault::Blocked(blocked) => blocked_error(operation, blocked),
            Fault::Failed(failure) => failure.to_error(operation, place),
        }
    }
}

impl Failure {
    fn to_error(&self, operation: &'static str, place: &Path) -> Error {
        let place_text = place.display();
        let make = |kind, message: String| Error::new(kind, operation, message);
        match self {
            Failure::Store(heed::Error::Mdb(MdbError::MapFull)) => make(
                ErrorKind::Unavailable,
                format!("the store in {place_text} has reached its largest size"),
            )
            .with_hint("release what is not needed; `tenure status` lists it"),
            Failure::Full => make(
                ErrorKind::Unavailable,
                format!("the store of the queues in {place_text} has reached its largest size"),
            )
            .with_hint("nothing is lost: let consumers take what is in line, or purge what nobody needs"),
            Failure::Store(heed::Error::Io(source)) => {
                let source = source.raw_os_error().map_or_else(
                    || io::Error::new(source.kind(), source.to_string()),
                    io::Error::from_raw_os_error,
                );
                system_error(operation, "write", place, source)
            }
            Failure::Store(heed::Error::Mdb(MdbError::Other(code))) => {
                system_error(operation, "write", place, io::Error::from_raw_os_error(*code))
            }
            // LMDB gives up after a write that failed half-way, in this process only.
            Failure::Store(heed::Error::Mdb(MdbError::Panic)) => {
                make(ErrorKind::Unavailable, format!("an earlier write to the store in {place_text} failed"))
                    .with_hint("see that its file system has space, and restart this process")
            }
            Failure::Store(source) => {
                make(ErrorKind::Internal, format!("the store in {place_text} is damaged: {source}"))
                    .with_hint(damaged_hint(place))
            }
            Failure::Damaged(what) => {
                make(ErrorKind::Internal, format!("the store in {place_text} is damaged: {what}"))
                    .with_hint(damaged_hint(place))
            }
            Failure::Format(what) => {
                make(ErrorKind::Unsupported, format!("the store in {place_text} has another format: {what}"))
                    .with_hint("use one version of tenure for all processes, or another directory")
            }
            Failure::Panicked(what) => make(ErrorKind::Internal, format!("a bug: {what}"))
                .with_hint("report it; nothing of this call was stored"),
        }
    }
}

/// What to do about a damaged store.
pub(crate) fn damaged_hint(place: &Path) -> String {
    format!("stop every process that uses it, then remove {}", place.display())
}

/// An error of the system about a file or directory, `what` being what was tried with it.
pub(crate) fn system_error(
    operation: &'static str,
    what: &str,
    path: &Path,
    source: impl Into<io::Error>,
) -> Error {
    let source = source.into();
    let path_text = path.display();
    let (kind, hint) = match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
            (ErrorKind::Unavailable, "free some space; nothing that is held is lost".to_owned())
        }
        // What LMDB says of a write that was cut short.
        Some(rustix::io::Errno::IO) => (
            ErrorKind::Unavailable,
            "free some space; nothing that is held is lost. If there is space, the disk fails: see `dmesg`"
                .to_owned(),
        ),
        Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => (
            ErrorKind::Unavailable,
            format!("this user needs to own and to be able to write {path_text}, or name another directory"),
        ),
        Some(rustix::io::Errno::ROFS) => {
            (ErrorKind::Unavailable, "name a directory on a file system that can be written".to_owned())
        }
        Some(rustix::io::Errno::NOENT) => {
            (ErrorKind::Unavailable, format!("create the directory above {path_text}, or name another"))
        }
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
            (ErrorKind::Unavailable, "raise the limit of open files (`ulimit -n`)".to_owned())
        }
        Some(rustix::io::Errno::NOMEM) => {
            let hint = "the store needs a gigabyte of address space: raise its limit (`ulimit -v`)";
            (ErrorKind::Unavailable, hint.to_owned())
        }
        _ => (ErrorKind::Unavailable, "try `tenure doctor`".to_owned()),
    };
    let reason = rustix::io::Errno::from_io_error(&source).map_or_else(|| source.to_string(), reason);
    Error::new(kind, operation, format!("cannot {what} {path_text}: {reason}"))
        .with_hint(hint)
        .with_source(source)
}

/// The system's text without the number behind it.
fn reason(errno: rustix::io::Errno) -> String {
    plain(&io::Error::from(errno).to_string())
}

/// The error of a child that uses its parent's client.
pub(crate) fn forked_error(operation: &'static str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        operation,
        "this process was forked from one that has, or had, clients",
    )
    .with_hint("connect in the child only, or let it run another program")
}

fn blocked_error(operation: &'static str, blocked: &Blocked) -> Error {
    match blocked {
        Blocked::By(pid) => blocked_by(operation, *pid, &format!("has blocked the store for {WAIT_MAX:?}")),
        Blocked::Broken(source) => {
            Error::new(ErrorKind::Internal, operation, format!("the store's gate is broken: {source}"))
                .with_hint("stop every process that uses it, then try again")
        }
    }
}

/// The error of a caller in whose way a process is; 0 if it is not known which.
pub(crate) fn blocked_by(operation: &'static str, pid: u32, how: &str) -> Error {
    let (state, hint) = match process_state(pid) {
        Some((name, 'T' | 't')) => (
            format!(" ({name}, stopped)"),
            format!("continue it with `kill -CONT {pid}`, or end it with `kill -KILL {pid}`"),
        ),
        Some((name, 'D')) => (
            format!(" ({name}, waiting for its disk)"),
            "put the directory on a faster file system: `/run/tenure`, say".to_owned(),
        ),
        Some((name, _)) => (format!(" ({name})"), format!("see what it does, or end it with `kill {pid}`")),
        None => (String::new(), "try again; `tenure doctor` says whether a process is stopped".to_owned()),
    };
    let process = if pid == 0 { "another process".to_owned() } else { format!("process {pid}{state}") };
    Error::new(ErrorKind::Unavailable, operation, format!("{process} {how}")).with_hint(hint)
}

/// Returns a process's name and the letter of its state.
pub(crate) fn process_state(pid: u32) -> Option<(String, char)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, brackets too, so its end is the last one.
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    Some((name.to_owned(), rest.trim_start().chars().next()?))
}
