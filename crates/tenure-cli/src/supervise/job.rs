//! What a keeper is to run, and what becomes of it when the lease is lost.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use tenure::plain;

use crate::exit::{self, Failure};

/// What happens to the work when the lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnLoss {
    /// CMD is ended: SIGTERM, then SIGKILL, before anybody else can be granted the lock.
    Terminate,
    /// CMD goes on, and its own exit code counts.
    Ignore,
}

/// What the keeper is to run.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The program.
    pub(crate) program: OsString,
    /// Its arguments.
    pub(crate) arguments: Vec<OsString>,
    /// How long processes that the program left behind have between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
    /// What happens at the deadline.
    pub(crate) on_loss: OnLoss,
    /// Whether the program may be started again when it has ended.
    pub(crate) is_repeated: bool,
    /// Whether it works in a session of its own, without a terminal. There an attempt to read from one fails; in the session of
    /// `tenure` it would be stopped for that, and renewed for ever.
    pub(crate) is_detached: bool,
}

impl Job {
    /// A program, first in `command`, and its arguments: to be run once, in the session of `tenure`.
    pub(crate) fn new(mut command: Vec<OsString>, grace: Duration, on_loss: OnLoss) -> Job {
        let program = command.remove(0);
        Job { program, arguments: command, grace, on_loss, is_repeated: false, is_detached: false }
    }

    /// Returns the name of the program without its arguments, which may hold a password: others are shown it.
    pub(crate) fn program_name(&self) -> String {
        let program = Path::new(&self.program).file_name().unwrap_or(&self.program);
        program.to_string_lossy().into_owned()
    }

    /// Looks for the program, so that a typing error is told before there is work. What else may be wrong is told when it is started.
    pub(crate) fn check_program(&self) -> Result<(), Failure> {
        let program = Path::new(&self.program);
        let is_there = match program.components().count() {
            1 => env::var_os("PATH")
                .is_none_or(|paths| env::split_paths(&paths).any(|place| place.join(program).exists())),
            _ => program.exists(),
        };
        match is_there {
            true => Ok(()),
            false => Err(not_started(&self.program_text(), Errno::NOENT.raw_os_error())),
        }
    }

    /// Returns the program as it was given, for messages.
    pub(crate) fn program_text(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }
}

/// Returns the failure of a program that cannot be executed, with the exit codes of shells.
pub(crate) fn not_started(program: &str, errno: i32) -> Failure {
    let error = io::Error::from_raw_os_error(errno);
    if error.kind() == io::ErrorKind::NotFound {
        let hint = "check its name, PATH, and the interpreter that its first line names";
        return Failure::new(
            exit::NOT_FOUND,
            format!("cannot find {program:?}: {}", plain(&error.to_string())),
        )
        .with_hint(hint);
    }
    let hint = "is it executable (`chmod +x`), and does a script begin with `#!`?";
    Failure::new(exit::NOT_EXECUTABLE, format!("cannot execute {program:?}: {}", plain(&error.to_string())))
        .with_hint(hint)
}
