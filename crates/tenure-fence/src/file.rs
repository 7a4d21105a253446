//! Fences in a file, for programs and shell scripts of one machine.
//!
//! The file has a line for each key: the text form of its [`Fence`], a space, the key. Whoever checks, locks the
//! file (flock), reads it, and if a mark rises writes all of it to `PATH.new`, syncs that and renames it over
//! the file, then syncs the directory; only then is the access accepted. So a crash at any point leaves the old
//! text or the new one, whole, and no mark that somebody was told of is lost.
//!
//! A rename leaves those who wait for the lock of the old file behind: who gets a lock looks whether the file is
//! still the one at the path, and if not begins anew. The new file is locked before it gets its name. The first
//! file is written under a name of its own and linked to PATH, which fails if another process was first: so tenure
//! never leaves an empty file, and an empty one has lost its marks.
//! (Rejected: a lock file beside it, which is litter, and which older versions would not heed; writing in place,
//! which a crash can tear; a first line for empty files, which older versions would take for damage.)
//!
//! The directory may belong to another user, who may put anything beside the file or in its place. So the
//! directory is opened once, every step is relative to it, no symbolic link is followed, and only a file that was
//! made here is written to, given away, or has its mode changed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid, flock};
use rustix::io::Errno;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::testing::failpoint;
use tenure_core::{Error, ErrorKind};

use crate::rule::{Fence, Mark, Stale, check_key};

/// The most keys of one file. Each mark that rises writes the whole file: 10,000 lines are about 1 MB.
pub const FILE_KEYS_MAX: usize = 10_000;

/// How long to wait for the file's lock. A check takes milliseconds; work under [`File::run`] that takes longer than a
/// lease's usual ttl keeps others out for too long.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How long to sleep before the second look at a lock. Each further sleep is twice as long.
const WAIT_STEP_MIN: Duration = Duration::from_millis(1);
/// The longest sleep between two looks at a lock.
const WAIT_STEP_MAX: Duration = Duration::from_millis(16);
/// In a directory with this bit everybody may make files.
const STICKY: u32 = 0o1000;

/// Fences in a file, by key, shared by the processes of one machine.
///
/// The file must be on a local file system that keeps what was synced. It is made when it is first used, and
/// beside it for a moment `PATH.new`: who uses it must be allowed to write to the directory. Do not remove it
/// while somebody with an old token may still come: what it forgets, it lets in. An empty file is refused.
///
/// Its mode is kept, but for this: only a user who may write to it may read it, since to read is enough to lock it.
/// A symbolic link in its place is refused, not followed.
#[derive(Clone, Debug)]
pub struct File {
    path: PathBuf,
    wait_max: Duration,
}

/// What is done with the fence of a key.
type Check = fn(&mut Fence, Mark) -> Result<(), Stale>;

impl File {
    /// Names a file. Nothing is opened yet.
    pub fn new(path: impl Into<PathBuf>) -> File {
        File { path: path.into(), wait_max: WAIT_MAX }
    }

    /// Sets how long to wait for the file's lock, so that a test need not wait as long as a program.
    #[doc(hidden)]
    #[must_use]
    pub fn with_wait_max(mut self, wait_max: Duration) -> File {
        self.wait_max = wait_max;
        self
    }

    /// Accepts a write, unless a write or a read of a later grant has been accepted. See [`Fence::check`].
    ///
    /// The write that follows is not part of this step: prefer [`File::run`]. Blocks while another process
    /// checks or runs, for 30 seconds at most.
    ///
    /// # Errors
    /// The inner one, [`Stale`], if it is refused. [`ErrorKind::Invalid`] for a bad key or more than
    /// [`FILE_KEYS_MAX`] of them; [`ErrorKind::Internal`] for a file that is damaged or empty;
    /// [`ErrorKind::Unsupported`] for a symbolic link, what is not a regular file, and another user's file in a
    /// directory where everybody may make files; [`ErrorKind::Unavailable`] if the system fails, or another process
    /// keeps the file locked: then the mark may have been kept or not, and the write must not be done. To repeat the
    /// check is safe.
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
        let place = Place::open(&self.path).map_err(failed)?;
        loop {
            let old = self.lock(&place)?;
            let mut fences = match &old {
                Some(file) => self.read(file)?,
                None => BTreeMap::new(),
            };
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
                match place.keep(old.as_ref(), &fences) {
                    // Another process has made the file meanwhile.
                    Err(error) if old.is_none() && error.kind() == io::ErrorKind::AlreadyExists => continue,
                    new => Some(new.map_err(failed)?),
                }
            };
            // Both files stay locked while the work runs.
            let done = work();
            drop((old, new));
            return Ok(Ok(done));
        }
    }

    /// Opens the file and locks it. `None` if there is no file.
    fn lock(&self, place: &Place) -> Result<Option<fs::File>, Error> {
        let failed = |error: Errno| self.failed(error.into());
        // What is not a file, a pipe say, must not make the opening wait.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        loop {
            let file = match rustix::fs::openat(&place.directory, &place.name, flags, Mode::empty()) {
                Ok(file) => file,
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::LOOP) => return Err(self.distrust("is a symbolic link", "name what it points to")),
                Err(error) => return Err(failed(error)),
            };
            let stat = rustix::fs::fstat(&file).map_err(failed)?;
            self.check_owner(place, &stat)?;
            self.wait_for_lock(&file)?;
            // The process that had the lock before may have put another file in its place, or somebody removed it.
            let there = rustix::fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW);
            if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino)) {
                return Ok(Some(file.into()));
            }
        }
    }

    /// Refuses what nobody meant to be a fence.
    fn check_owner(&self, place: &Place, file: &Stat) -> Result<(), Error> {
        if FileType::from_raw_mode(file.st_mode) != FileType::RegularFile {
            return Err(self.distrust("is not a regular file", "name a file; the first check makes it"));
        }
        let directory = rustix::fs::fstat(&place.directory).map_err(|error| self.failed(error.into()))?;
        let trusted = [0, rustix::process::geteuid().as_raw(), directory.st_uid];
        if directory.st_mode & STICKY != 0 && !trusted.contains(&file.st_uid) {
            let what =
                format!("belongs to user {}, in a directory where everybody may make files", file.st_uid);
            return Err(self.distrust(&what, "keep it in a directory of your own"));
        }
        Ok(())
    }

    fn distrust(&self, what: &str, hint: &str) -> Error {
        let message = format!("{} {what}", self.path.display());
        Error::new(ErrorKind::Unsupported, "check a fence", message).with_hint(hint)
    }

    fn wait_for_lock(&self, file: &OwnedFd) -> Result<(), Error> {
        let (until, mut step) = (SystemClock.now() + self.wait_max, WAIT_STEP_MIN);
        loop {
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if SystemClock.now() < until => {
                    let nanos = i64::from(step.subsec_nanos());
                    let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: nanos });
                    step = WAIT_STEP_MAX.min(step * 2);
                }
                Err(Errno::WOULDBLOCK) => {
                    let path = self.path.display();
                    let message = format!("another process has kept {path} locked for {:?}", self.wait_max);
                    let hint = format!("`fuser -v {path}` says which; whoever may read the file can lock it");
                    return Err(Error::new(ErrorKind::Unavailable, "check a fence", message).with_hint(hint));
                }
                Err(error) => return Err(self.failed(error.into())),
            }
        }
    }

    fn read(&self, mut file: &fs::File) -> Result<BTreeMap<String, Fence>, Error> {
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| self.failed(error))?;
        self.parse(&text)
    }

    pub(crate) fn parse(&self, text: &str) -> Result<BTreeMap<String, Fence>, Error> {
        let damaged = |number: usize| {
            let path = self.path.display();
            let message = match number {
                0 => format!("{path} is empty: it has lost what it kept"),
                _ => format!("{path}, line {number}: is not a fence"),
            };
            Error::new(ErrorKind::Internal, "check a fence", message)
                .with_hint("nothing is accepted until the file is restored, or removed when nobody with an old token can come any more")
        };
        // Without its last line end the text is not whole.
        if !text.ends_with('\n') {
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

/// A directory, held open so that all steps are about the same one, and the name of the file in it.
struct Place {
    directory: OwnedFd,
    name: OsString,
}

impl Place {
    fn open(path: &Path) -> io::Result<Place> {
        let name = path.file_name().ok_or(Errno::ISDIR)?.to_owned();
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Place { directory: rustix::fs::open(directory, flags, Mode::empty())?, name })
    }

    /// Puts a new text in the place of the old file, and returns the new file, locked. If there was none, it fails
    /// where another process has made one.
    fn keep(&self, old: Option<&fs::File>, fences: &BTreeMap<String, Fence>) -> io::Result<fs::File> {
        let text: String = fences.iter().map(|(key, fence)| format!("{fence} {key}\n")).collect();
        let mut fresh = self.name.clone();
        fresh.push(".new");
        if old.is_none() {
            // Without a file nobody has a lock: others may be making one too.
            fresh.push(format!("-{:016x}", SystemClock.random()));
        }
        // Only who has the lock of the file comes here. What is there was left by a crash, or by somebody who wants
        // it to be written to.
        match self.remove(&fresh) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let new = self.make(&fresh, old)?;
        let kept = self.write(&fresh, &new, old.is_some(), &text);
        if kept.is_err() {
            // The next one who writes removes it too.
            let _ = self.remove(&fresh);
        }
        kept.map(|()| new)
    }

    /// Makes an empty file for those who used the old one, and locks it.
    fn make(&self, fresh: &OsString, old: Option<&fs::File>) -> io::Result<fs::File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Not readable yet: whoever can open it to read can lock it first.
        let mode = if old.is_some() { 0o600 } else { 0o622 };
        let new = rustix::fs::openat(&self.directory, fresh, flags, Mode::from_raw_mode(mode))?;
        flock(&new, FlockOperation::NonBlockingLockExclusive)?;
        let made = rustix::fs::fstat(&new)?;
        let mode = match old {
            Some(old) => give_as(&new, &made, &rustix::fs::fstat(old)?),
            None => made.st_mode | 0o044,
        };
        rustix::fs::fchmod(&new, shared_mode(mode))?;
        Ok(new.into())
    }

    fn write(&self, fresh: &OsString, mut new: &fs::File, is_there: bool, text: &str) -> io::Result<()> {
        failpoint::pass("fence.before_write");
        new.write_all(text.as_bytes())?;
        failpoint::pass("fence.before_sync");
        new.sync_all()?;
        failpoint::pass("fence.before_rename");
        if is_there {
            rustix::fs::renameat(&self.directory, fresh, &self.directory, &self.name)?;
        } else {
            rustix::fs::linkat(&self.directory, fresh, &self.directory, &self.name, AtFlags::empty())?;
        }
        failpoint::pass("fence.after_rename");
        if !is_there {
            self.remove(fresh)?;
        }
        Ok(rustix::fs::fsync(&self.directory)?)
    }

    fn remove(&self, name: &OsString) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())
    }
}

/// Gives a new file to the owner and the group of the old one, as far as this user may; returns the mode for it.
fn give_as(new: &OwnedFd, made: &Stat, old: &Stat) -> u32 {
    let (user, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
    let is_same = (made.st_uid, made.st_gid) == (old.st_uid, old.st_gid);
    // Only root may give a file away. For others it must do that the group is the same.
    if is_same
        || rustix::fs::fchown(new, Some(user), Some(group)).is_ok()
        || rustix::fs::fchown(new, None, Some(group)).is_ok()
    {
        return old.st_mode;
    }
    // What the old group may do is nothing for this one.
    old.st_mode & !0o060
}

/// The mode of a file that those with a mode share. To read a file is enough to lock it and to keep all others out,
/// so only a user who may write to it may read it. Nothing else of a mode is anything for a text.
fn shared_mode(mode: u32) -> Mode {
    let writers = mode & 0o022;
    Mode::from_raw_mode(0o600 | writers | (mode & (writers << 1)))
}
