//! Fences in a file, for programs and shell scripts of one machine.
//!
//! The file has a line for each key: the text form of its [`Fence`], a space, the key. Whoever checks, locks the
//! file (flock), reads it, and if a mark rises writes all of it to `PATH.new`, syncs that and renames it over
//! the file, then syncs the directory; only then is the access accepted. So a crash at any point leaves the old
//! text or the new one, whole, and no mark that somebody was told of is lost.
//!
//! A rename leaves those who wait for the lock of the old file behind: who gets a lock looks whether the file is
//! still the one at the path, and if not begins anew. The new file is locked before it gets its name.
//! (Rejected: a lock file beside it, which is litter; writing in place, which a crash can tear.)

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tenure_core::{Error, ErrorKind, failpoint};

use crate::rule::{Fence, Mark, Stale, check_key};

/// The most keys of one file. Each mark that rises writes the whole file: 10,000 lines are about 1 MB.
pub const FILE_KEYS_MAX: usize = 10_000;

/// Fences in a file, by key, shared by the processes of one machine.
///
/// The file must be on a local file system that keeps what was synced. It is made when it is first used, and
/// beside it for a moment `PATH.new`: who uses it must be allowed to write to the directory. Do not remove it
/// while somebody with an old token may still come: what it forgets, it lets in.
#[derive(Clone, Debug)]
pub struct File {
    path: PathBuf,
}

/// What is done with the fence of a key.
type Check = fn(&mut Fence, Mark) -> Result<(), Stale>;

impl File {
    /// Names a file. Nothing is opened yet.
    pub fn new(path: impl Into<PathBuf>) -> File {
        File { path: path.into() }
    }

    /// Accepts a write, unless a write or a read of a later grant has been accepted. See [`Fence::check`].
    ///
    /// The write that follows is not part of this step: prefer [`File::run`]. Blocks while another process
    /// checks or runs.
    ///
    /// # Errors
    /// The inner one, [`Stale`], if it is refused. [`ErrorKind::Invalid`] for a bad key or more than
    /// [`FILE_KEYS_MAX`] of them; [`ErrorKind::Internal`] for a file that is damaged;
    /// [`ErrorKind::Unavailable`] if the system fails: then the mark may have been kept or not, and the write
    /// must not be done. To repeat the check is safe.
    ///
    /// # Cost
    /// Two syncs of the disk if a mark rises; else one read.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tenure_testkit::TestDirectory::new();
    /// # let path = directory.path().join("fence");
    /// use tenure_fence::{File, Mark};
    ///
    /// let fence = File::new(path);
    /// let mark = Mark::parse("1763735220000001", "0123456789abcdef0123456789abcdef")?;
    /// fence.check("billing", mark)??;
    /// # Ok(()) }
    /// ```
    pub fn check(&self, key: &str, mark: impl Into<Mark>) -> Result<Result<(), Stale>, Error> {
        self.step(key, mark.into(), Fence::check, || ())
    }

    /// Accepts a read, unless a write of a later grant has been accepted. See [`Fence::check_read`].
    ///
    /// # Errors
    /// As [`File::check`].
    pub fn check_read(&self, key: &str, mark: impl Into<Mark>) -> Result<Result<(), Stale>, Error> {
        self.step(key, mark.into(), Fence::check_read, || ())
    }

    /// Accepts a write and carries it out, in one step: no other access to this file comes between.
    ///
    /// The mark is kept first: after a crash in the work, others with an older token are refused. `work` must
    /// not check the same file: it would wait for itself.
    ///
    /// # Errors
    /// As [`File::check`]; `work` has not run then.
    pub fn run<T>(
        &self,
        key: &str,
        mark: impl Into<Mark>,
        work: impl FnOnce() -> T,
    ) -> Result<Result<T, Stale>, Error> {
        self.step(key, mark.into(), Fence::check, work)
    }

    fn step<T>(
        &self,
        key: &str,
        mark: Mark,
        check: Check,
        work: impl FnOnce() -> T,
    ) -> Result<Result<T, Stale>, Error> {
        check_key(key)?;
        let failed = |error| self.failed(error);
        let (mut old, path) = lock(&self.path).map_err(failed)?;
        let mut text = String::new();
        old.read_to_string(&mut text).map_err(failed)?;
        let mut fences = self.parse(&text)?;
        let fence = fences.entry(key.to_owned()).or_default();
        let before = *fence;
        if let Err(stale) = check(fence, mark) {
            return Ok(Err(stale));
        }
        // An unchanged mark was synced before it was first accepted.
        let new = if *fence == before {
            None
        } else {
            if fences.len() > FILE_KEYS_MAX {
                let message = format!("{} has {FILE_KEYS_MAX} keys already", self.path.display());
                return Err(Error::new(ErrorKind::Invalid, "check a fence", message)
                    .with_hint("use another file, or a database"));
            }
            Some(replace(&old, &path, &fences).map_err(failed)?)
        };
        // Both files stay locked while the work runs.
        let done = work();
        drop((old, new));
        Ok(Ok(done))
    }

    fn parse(&self, text: &str) -> Result<BTreeMap<String, Fence>, Error> {
        let damaged = |number: usize| {
            let message = format!("{}, line {number}: is not a fence", self.path.display());
            Error::new(ErrorKind::Internal, "check a fence", message)
                .with_hint("nothing is accepted until the file is restored, or removed when nobody with an old token can come any more")
        };
        // Without its last line end the text is not whole.
        if !text.is_empty() && !text.ends_with('\n') {
            return Err(damaged(text.lines().count()));
        }
        let mut fences = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let at_key = line.match_indices(' ').nth(2).map(|(at, _)| at);
            let (fence, key) = at_key.map(|at| (&line[..at], &line[at + 1..])).unwrap_or_default();
            let fence = fence.parse().map_err(|error| damaged(index + 1).with_source(error))?;
            if check_key(key).is_err() || fences.insert(key.to_owned(), fence).is_some() {
                return Err(damaged(index + 1));
            }
        }
        Ok(fences)
    }

    fn failed(&self, error: io::Error) -> Error {
        let message = format!("{}: {error}", self.path.display());
        Error::new(ErrorKind::Unavailable, "check a fence", message).with_source(error)
    }
}

/// Opens the file, made if it is not there, and locks it. Returns it with its path behind symbolic links.
fn lock(path: &Path) -> io::Result<(fs::File, PathBuf)> {
    loop {
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        lock_whole(&file)?;
        let (locked, path) = (file.metadata()?, fs::canonicalize(path));
        // Whoever had the lock before may have put another file in its place, or somebody removed it.
        let there = path.as_ref().ok().and_then(|path| fs::metadata(path).ok());
        let is_same = there.is_some_and(|there| (there.dev(), there.ino()) == (locked.dev(), locked.ino()));
        if is_same {
            return Ok((file, path?));
        }
    }
}

fn lock_whole(file: &fs::File) -> io::Result<()> {
    loop {
        match flock(file, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            locked => return locked.map_err(io::Error::from),
        }
    }
}

/// Puts a new text in the place of the old file, and returns the new file, locked.
fn replace(old: &fs::File, path: &Path, fences: &BTreeMap<String, Fence>) -> io::Result<fs::File> {
    let text: String = fences.iter().map(|(key, fence)| format!("{fence} {key}\n")).collect();
    let mut new_path = OsString::from(path);
    new_path.push(".new");
    // Only who has the lock of the file comes here. What is there was left by a crash.
    let mut new = fs::OpenOptions::new().write(true).create(true).truncate(true).open(&new_path)?;
    let old = old.metadata()?;
    new.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))?;
    let made = new.metadata()?;
    if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
        // Only some may give a file away; for the others the permissions of the group have to do.
        drop(std::os::unix::fs::fchown(&new, Some(old.uid()), Some(old.gid())));
    }
    lock_whole(&new)?;
    failpoint::pass("fence.before_write");
    new.write_all(text.as_bytes())?;
    failpoint::pass("fence.before_sync");
    new.sync_all()?;
    failpoint::pass("fence.before_rename");
    fs::rename(&new_path, path)?;
    failpoint::pass("fence.after_rename");
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(new)
}
