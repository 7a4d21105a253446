//! A page in a file, for the textfile collector of node_exporter.
//!
//! It is written beside and renamed, so that a reader sees one whole page, whenever its writer is killed. Writers take turns by a lock, which
//! ends with its process: what was read under it is still so when it is written. Nobody waits for ever for a writer that stands still.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

/// How long a writer waits for others. A turn takes less than a millisecond: it is longer only where a writer was stopped, or the disk is.
const TURN_MAX: Duration = Duration::from_secs(5);
/// How long a writer waits before it looks again.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A file that node_exporter reads.
///
/// # Examples
/// ```
/// # fn main() -> std::io::Result<()> {
/// use tenure_metrics::TextFile;
///
/// # let directory = std::env::temp_dir();
/// // Beside other `.prom` files, in the directory that node_exporter reads.
/// TextFile::new(&directory, "example.prom").write("example_up 1\n")?;
/// # std::fs::remove_file(directory.join("example.prom"))?;
/// # std::fs::remove_file(directory.join("example.prom.lock"))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TextFile {
    path: PathBuf,
}

/// A turn at a file. It ends when this is dropped, or its process ends.
pub(crate) struct Turn {
    _lock: File,
}

impl TextFile {
    /// Names a file in a directory, which ends in `.prom`. Nothing is read or written yet.
    pub fn new(directory: &Path, name: &str) -> TextFile {
        TextFile { path: directory.join(name) }
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the page.
    ///
    /// # Errors
    /// What the system says of the directory; [`io::ErrorKind::TimedOut`] if another writer has stood still for 5 seconds. The file is as it was then.
    pub fn write(&self, page: &str) -> io::Result<()> {
        self.replace(&self.turn()?, page)
    }

    pub(crate) fn replace(&self, _turn: &Turn, page: &str) -> io::Result<()> {
        let beside = self.beside("new");
        // What a writer left behind that was killed; it may have been another user.
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::create_new(&beside)?;
        // Whatever the umask is: node_exporter is another user.
        file.set_permissions(PermissionsExt::from_mode(0o644))?;
        file.write_all(page.as_bytes())?;
        fs::rename(&beside, &self.path)
    }

    /// Waits for the turn of this writer.
    pub(crate) fn turn(&self) -> io::Result<Turn> {
        // The page itself cannot bear the lock, since it is replaced.
        let lock = self.open_beside("lock")?;
        let mut waited = Duration::ZERO;
        while !try_lock(&lock, FlockOperation::NonBlockingLockExclusive)? {
            if waited >= TURN_MAX {
                let path = self.beside("lock");
                let message = format!("another process has kept {} locked for {TURN_MAX:?}", path.display());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            pause();
            waited += LOOK_EVERY;
        }
        Ok(Turn { _lock: lock })
    }

    /// Opens a file beside this one, made if it is not there. For reading, which is enough to lock it: it may be another user's.
    pub(crate) fn open_beside(&self, what: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        Ok(open(self.beside(what), flags, mode)?.into())
    }

    fn beside(&self, what: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".");
        path.push(what);
        path.into()
    }
}

/// Tries to lock a file. Returns false if others have it locked.
pub(crate) fn try_lock(file: &File, how: FlockOperation) -> io::Result<bool> {
    match rustix::io::retry_on_intr(|| flock(file, how)) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the lock of a file has no waker, and no client waits on this thread"
)]
fn pause() {
    std::thread::sleep(LOOK_EVERY);
}
