//! Where the state lives when no place is configured: decided once for each boot, the same for all processes of a
//! user.
//!
//! Candidates, best first: `/run/tenure` and `/run/tenure-<uid>`, if they are there and belong to this user, since only
//! root makes files in `/run`; `/tmp/tenure-<uid>`, which is made. The first two may come and go under processes that
//! run (`RuntimeDirectory=`), and two places would be two holders. So:
//!
//! * While a process uses one, all others follow. The users are named by `users` in `/tmp/tenure-<uid>`: each keeps it locked
//!   (flock, shared), and it names the directory of the boot. Is that one gone, other processes are refused until all that used
//!   it have ended: they learn it at their next renewal, and until then may believe that they hold something.
//! * When none does, the one that has a directory of this boot stays, since rests are kept there. This is also how an
//!   older version, which does not write `users`, is followed.
//! * The decision is made under the lock of the setup in `/tmp/tenure-<uid>`.
//!
//! Another user can make `/tmp/tenure-<uid>` first. Then there is only `/run`: root makes `/run/tenure-0` itself, others
//! are asked to have it made. Never taken from an environment, which differs between a login shell and cron: see ADR 0031.

use std::io::Seek;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use tenure_core::clock::Clock;
use tenure_core::error::{Error, ErrorKind, Result};

use crate::error::system_error;
use crate::place::directory::{is_own_directory, lock_holder, lock_setup, open_place};
use crate::place::room::{FILE, Identity, USER_FILE, is_gate_in_use, read_small};

/// The place of the one user that owns it.
const RUN: &str = "/run/tenure";
/// The file that names the processes which use a place.
const USERS: &str = "users";

/// A place that was decided on. While it lives, others follow.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) place: PathBuf,
    /// `None`: another user has taken `/tmp/tenure-<uid>`.
    tmp: Option<Tmp>,
}

#[derive(Debug)]
struct Tmp {
    /// Locked, so that it is not cleaned up.
    directory: OwnedFd,
    users: OwnedFd,
}

impl Tmp {
    /// Opens it, and makes what is missing. Returns the lock of its setup as well.
    fn open(uid: u32, clock: &dyn Clock) -> Result<(Tmp, OwnedFd)> {
        let path = tmp(uid);
        let directory = open_place(&path, false)?;
        // Best effort, as with every place.
        let _ = rustix::fs::flock(&directory, FlockOperation::NonBlockingLockShared);
        let deciding = lock_setup(&path, &directory, clock)?;
        let users = rustix::fs::openat(&directory, USERS, FILE | OFlags::CREATE, USER_FILE)
            .map_err(|source| system_error("connect", "open", &path.join(USERS), source))?;
        Ok((Tmp { directory, users }, deciding))
    }
}

impl Decision {
    /// Decides, under a lock that is returned, or `None` if nothing was there to be locked.
    pub(crate) fn make(boot_id: &str, clock: &dyn Clock) -> Result<(Decision, Option<OwnedFd>)> {
        let uid = rustix::process::geteuid().as_raw();
        loop {
            let (tmp, deciding) = match Tmp::open(uid, clock) {
                Ok(opened) => opened,
                Err(error) => {
                    let place = without_tmp(boot_id, uid).ok_or_else(|| explain(error, uid))?;
                    // The user that took it may have given it back meanwhile, and then others use it by now.
                    if Tmp::open(uid, clock).is_ok() {
                        continue;
                    }
                    return Ok((Decision { place, tmp: None }, None));
                }
            };
            let place = match followed(&tmp.users, boot_id)? {
                Some(place) => place,
                None => fresh(boot_id, uid),
            };
            return Ok((Decision { place, tmp: Some(tmp) }, Some(deciding)));
        }
    }

    /// Whether the lock of the decision is that of the setup of a place.
    pub(crate) fn is_made_in(&self, place: &OwnedFd) -> bool {
        let identity = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
        self.tmp.as_ref().is_some_and(|tmp| identity(&tmp.directory) == identity(place))
    }

    /// Lets others follow, for as long as this lives. The lock of the decision is still held.
    pub(crate) fn announce(&self, boot: &Path, identity: Identity) -> Result<()> {
        let Some(Tmp { users, .. }) = &self.tmp else { return Ok(()) };
        let path = tmp_of_this_user().join(USERS);
        let failed = |source: std::io::Error| system_error("connect", "write", &path, source);
        let text = record(boot, identity);
        if read_users(users).map_err(failed)? != text {
            // Half of it, after a kill, names no directory: then the one of this boot is looked for.
            rustix::fs::ftruncate(users, 0).map_err(|error| failed(error.into()))?;
            rustix::io::pwrite(users, text.as_bytes(), 0).map_err(|error| failed(error.into()))?;
        }
        rustix::fs::flock(users, FlockOperation::NonBlockingLockShared).map_err(|error| failed(error.into()))
    }
}

/// Reads what others have announced.
fn read_users(users: &OwnedFd) -> std::io::Result<String> {
    let copy = std::fs::File::from(rustix::io::fcntl_dupfd_cloexec(users, 0)?);
    (&copy).rewind()?;
    read_small(copy.into())
}

/// Where the locks of a user without a place in `/run` are.
fn tmp(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/tenure-{uid}"))
}

fn tmp_of_this_user() -> PathBuf {
    tmp(rustix::process::geteuid().as_raw())
}

/// The places in `/run`.
fn in_run(uid: u32) -> [PathBuf; 2] {
    [RUN.into(), PathBuf::from(format!("{RUN}-{uid}"))]
}

/// Whether a place may be the default one of this user, whichever of them it is in this boot.
pub(crate) fn is_candidate(place: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    in_run(uid).iter().chain([&tmp(uid)]).any(|candidate| {
        *candidate == place || candidate.canonicalize().is_ok_and(|candidate| candidate == place)
    })
}

fn record(boot: &Path, (device, number): Identity) -> String {
    format!("{device} {number} {}\n", boot.display())
}

/// The place of the processes that use a default place in this boot, or `None` if there are none.
fn followed(users: &OwnedFd, boot_id: &str) -> Result<Option<PathBuf>> {
    let path = tmp_of_this_user().join(USERS);
    let failed = |source: std::io::Error| system_error("connect", "read", &path, source);
    if rustix::fs::flock(users, FlockOperation::NonBlockingLockExclusive).is_ok() {
        return Ok(None);
    }
    let text = read_users(users).map_err(failed)?;
    let boot = text.trim_end().splitn(3, ' ').nth(2).map(PathBuf::from).unwrap_or_default();
    let is_there = rustix::fs::lstat(&boot)
        .is_ok_and(|found| record(&boot, (found.st_dev, found.st_ino)) == text && boot.ends_with(boot_id));
    match boot.parent() {
        Some(place) if is_there => Ok(Some(place.to_owned())),
        _ => {
            let process = lock_holder(users).map_or("a process".to_owned(), |pid| format!("process {pid}"));
            Err(Error::new(
                ErrorKind::Unavailable,
                "connect",
                format!("{} has been removed while {process} uses it", boot.display()),
            )
            .with_hint(
                "wait until every process that uses it has ended, or end them: what they hold is lost at its next \
                 renewal. `RuntimeDirectory=tenure` of a unit does this at its stop: use `tmpfiles.d` instead",
            ))
        }
    }
}

/// The place of a process that finds no others.
fn fresh(boot_id: &str, uid: u32) -> PathBuf {
    let tmp = tmp(uid);
    let mut run = in_run(uid).into_iter().filter(|place| is_own_directory(place, uid)).collect::<Vec<_>>();
    let all: Vec<_> = run.iter().chain([&tmp]).cloned().collect();
    let has_boot = |place: &&PathBuf| is_own_directory(&place.join(boot_id), uid);
    let is_used = |place: &&PathBuf| {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(place.join(boot_id), flags, Mode::empty()).is_ok_and(|boot| is_gate_in_use(&boot))
    };
    let used = all.iter().filter(has_boot).find(is_used);
    let known = used.or_else(|| all.iter().find(has_boot)).cloned();
    known.unwrap_or_else(|| if run.is_empty() { tmp } else { run.remove(0) })
}

/// The place of a user whose place in `/tmp` was taken by another one.
fn without_tmp(boot_id: &str, uid: u32) -> Option<PathBuf> {
    let tmp = tmp(uid);
    if is_own_directory(&tmp, uid) {
        let is_read_only = rustix::fs::statvfs(&tmp)
            .is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
        // It is this user's: others use it, or could.
        if !is_read_only || is_own_directory(&tmp.join(boot_id), uid) {
            return None;
        }
    }
    let [run, own] = in_run(uid);
    if uid == 0 && !is_own_directory(&run, uid) {
        // Only root can, and if it cannot, the next line says so.
        let _ = rustix::fs::mkdir(&own, Mode::RWXU);
    }
    let mut places: Vec<_> = [run, own].into_iter().filter(|place| is_own_directory(place, uid)).collect();
    let known = places.iter().position(|place| is_own_directory(&place.join(boot_id), uid));
    if places.is_empty() { None } else { Some(places.remove(known.unwrap_or(0))) }
}

/// Says how to get a place that cannot be taken.
fn explain(error: Error, uid: u32) -> Error {
    let tmp = tmp(uid);
    if std::fs::symlink_metadata(&tmp).is_err() || is_own_directory(&tmp, uid) {
        return error;
    }
    error.with_hint(format!(
        "somebody made {} before you. Have root remove it, and make {RUN}-{uid}, which nobody else can: a line \
         `d {RUN}-{uid} 0700 {uid} -` in /etc/tmpfiles.d. Or name a directory of yours in the URL: `local:/some/directory`",
        tmp.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_candidates_are_those_of_this_user() {
        let uid = rustix::process::geteuid().as_raw();
        assert!(is_candidate(Path::new("/run/tenure")));
        assert!(is_candidate(Path::new(&format!("/tmp/tenure-{uid}"))));
        assert!(!is_candidate(Path::new(&format!("/tmp/tenure-{}", uid + 1))));
    }
}
