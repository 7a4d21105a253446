//! The LMDB environment of a room.
//!
//! * Of a boot's directory nothing is ever synced: a reboot voids everything. Of the queues' every commit is.
//! * LMDB's own locks are off: the gate is the only one, taken for every read and every change. So there are
//!   write transactions only, no reader table, and nothing in LMDB that waits without limit.
//! * The map is not writable by stray pointers (no `WRITE_MAP`).
//! * The file has its full, sparse length from the start. One that is shorter has been truncated, and touching
//!   the missing part would kill the process; it is refused instead.
//! * Everything is in the unnamed database: a named one would cost a second page per commit.
#![allow(unsafe_code, reason = "opening an LMDB environment, and leaving it open in a forked child")]

use std::mem::ManuallyDrop;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, RwTxn, WithoutTls};
use rustix::fs::{AtFlags, FallocateFlags, Mode};
use rustix::io::Errno;
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::testing::failpoint;

use crate::error::{Failure, Fault, system_error};
use crate::place::directory::Setup;
use crate::place::fork::is_forked;
use crate::place::gate::{Blocked, GateGuard, WAIT_MAX};
use crate::place::room::{FILE, Room, damaged};

/// The length of the two pages that every LMDB file has.
const HEADER_BYTES: u64 = 2 * 4096;
/// How much of the file is allocated when it is made. A full disk must not end what is held, and a renewal needs a
/// few pages: an older store has pages to use again, a young one has only these.
const FIRST_BYTES: u64 = 256 << 10;
/// The file while it is made, so that no one ever opens half of it.
const FRESH: &str = "data.new";

/// All that is stored.
pub(crate) type Rows = Database<'static, Bytes, Bytes>;

/// An open environment.
pub(crate) struct Environment {
    /// Not closed in a forked child, which must not touch it.
    env: ManuallyDrop<Env<WithoutTls>>,
    rows: Rows,
}

impl Environment {
    /// Opens the environment; makes it if it is not there, which the setup's lock lets one process do.
    pub(crate) fn open<'a>(
        room: &Room,
        map_bytes: usize,
        _setup: &Setup,
        enter: impl FnOnce() -> Result<GateGuard<'a>, Blocked>,
    ) -> Result<Environment> {
        let fault = |fault: Fault| fault.to_error("connect", &room.path);
        let env = open_env(room, map_bytes)?;
        let pass = enter().map_err(|blocked| fault(Fault::Blocked(blocked)))?;
        let rows = open_rows(&env).map_err(|failure| fault(Fault::Failed(failure)))?;
        drop(pass);
        Ok(Environment { env: ManuallyDrop::new(env), rows })
    }

    /// Begins a transaction, which must end before the pass is given back.
    pub(crate) fn begin(&self, _inside: &GateGuard<'_>) -> Result<RwTxn<'_>, Failure> {
        Ok(self.env.write_txn()?)
    }

    /// Returns the database of all rows.
    pub(crate) fn rows(&self) -> Rows {
        self.rows
    }

    /// Whether commits wait for the disk.
    #[cfg(test)]
    pub(crate) fn is_synced(&self) -> bool {
        let flags = self.env.flags().unwrap().unwrap();
        !flags.intersects(EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC | EnvFlags::MAP_ASYNC)
    }

    /// How large the store may grow.
    pub(crate) fn map_bytes(&self) -> u64 {
        self.env.info().map_size as u64
    }

    /// How much of it is in use, or was at some time.
    pub(crate) fn used_bytes(&self) -> u64 {
        let page_bytes = u64::from(self.env.unnamed_database_stat().page_size);
        (self.env.info().last_page_number as u64 + 1) * page_bytes
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        if !is_forked() {
            // SAFETY: it is not used again, and this is the only place that drops it.
            unsafe { ManuallyDrop::drop(&mut self.env) };
        }
    }
}

fn open_env(room: &Room, map_bytes: usize) -> Result<Env<WithoutTls>> {
    let path = room.data();
    check_file_limit(room, map_bytes)?;
    let failed = |error: heed::Error| Fault::Failed(error.into()).to_error("connect", &room.path);
    let stat = || rustix::fs::statat(&room.fd, "data.mdb", AtFlags::SYMLINK_NOFOLLOW);
    let found = match stat() {
        Err(Errno::NOENT) => {
            make_env(room, map_bytes)?;
            stat()
        }
        found => found,
    };
    let found = found.map_err(|source| system_error("connect", "look at", &path, source))?;
    let length = u64::try_from(found.st_size).unwrap_or(0);
    let check = |expected: u64| {
        if length >= expected {
            return Ok(());
        }
        Err(damaged(&room.path, format!("data.mdb has {length} bytes of {expected}")))
    };
    // LMDB takes an empty file for a new one.
    check(HEADER_BYTES)?;
    let env = open_file(room, &path, None).map_err(failed)?;
    // LMDB opens by path: between the checks another file may have been put there.
    let opened = env.try_clone_inner_file().map_err(failed)?;
    let opened =
        rustix::fs::fstat(&opened).map_err(|source| system_error("connect", "look at", &path, source))?;
    if (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino) {
        return Err(Fault::Removed.to_error("connect", &room.path));
    }
    check(env.info().map_size as u64)?;
    Ok(env)
}

/// Makes the file of the environment.
fn make_env(room: &Room, map_bytes: usize) -> Result<()> {
    let fresh = room.path.join(FRESH);
    let remove = || rustix::fs::unlinkat(&room.fd, FRESH, AtFlags::empty());
    let _ = remove();
    let made = fill_env(room, &fresh, map_bytes);
    if made.is_err() {
        // Of a full file system it would keep a part.
        let _ = remove();
    }
    made
}

fn fill_env(room: &Room, fresh: &std::path::Path, map_bytes: usize) -> Result<()> {
    let failed = |error: heed::Error| Fault::Failed(error.into()).to_error("connect", &room.path);
    let io_failed = |source: Errno| system_error("connect", "write", fresh, source);
    let env = open_file(room, fresh, Some(map_bytes)).map_err(failed)?;
    env.prepare_for_closing().wait();
    let file = rustix::fs::openat(&room.fd, FRESH, FILE, Mode::empty()).map_err(io_failed)?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, FIRST_BYTES.min(map_bytes as u64)) {
        // A file system that cannot promise space.
        Ok(()) | Err(Errno::OPNOTSUPP) => {}
        Err(source) => return Err(io_failed(source)),
    }
    rustix::fs::ftruncate(&file, map_bytes as u64).map_err(io_failed)?;
    if room.is_durable {
        rustix::fs::fsync(&file).map_err(io_failed)?;
    }
    failpoint::pass("local.before_data");
    rustix::fs::renameat(&room.fd, FRESH, &room.fd, "data.mdb").map_err(io_failed)?;
    if room.is_durable {
        rustix::fs::fsync(&room.fd).map_err(io_failed)?;
    }
    Ok(())
}

fn open_file(
    room: &Room,
    path: &std::path::Path,
    map_bytes: Option<usize>,
) -> Result<Env<WithoutTls>, heed::Error> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    if let Some(map_bytes) = map_bytes {
        options.map_size(map_bytes);
    }
    let mut flags = EnvFlags::NO_SUB_DIR | EnvFlags::NO_LOCK | EnvFlags::NO_READ_AHEAD;
    if !room.is_durable {
        flags |= EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC | EnvFlags::NO_MEM_INIT;
    }
    // SAFETY: NO_SYNC and NO_META_SYNC give up what a crash of the machine would lose, which a new boot ignores
    // anyway. NO_LOCK demands that access is serialized: all of it is behind the gate, or under the setup's lock
    // before another process can know the file. NO_MEM_INIT leaves old bytes in pages, which are gone with the boot.
    unsafe {
        options.flags(flags);
    }
    if let Some(closing) = heed::env_closing_event(path) {
        // The last client of this process has just been dropped, and its thread is closing the environment.
        closing.wait_timeout(WAIT_MAX);
    }
    // SAFETY: the file is this user's, in a directory that no other user may write; it is changed by LMDB only,
    // and never made shorter.
    unsafe { options.open(path) }
}

/// A process that writes beyond its limit of file sizes is killed, in the middle of a transaction.
fn check_file_limit(room: &Room, map_bytes: usize) -> Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX);
    if limit >= map_bytes as u64 {
        return Ok(());
    }
    let place = room.path.display();
    let message = format!("files may have {limit} bytes, the store in {place} may grow to {map_bytes}");
    Err(Error::new(ErrorKind::Unavailable, "connect", message).with_hint(
        "raise the limit of file sizes (`ulimit -f`); the file is sparse, so it takes little space",
    ))
}

fn open_rows(env: &Env<WithoutTls>) -> Result<Rows, Failure> {
    let txn = env.write_txn()?;
    let rows = env.create_databases_and_commit(txn, |opener, txn| {
        opener.create_database(txn, None).map(CommitOrAbort::<_, ()>::Commit)
    })?;
    match rows {
        CommitOrAbort::Commit(rows) => Ok(rows),
        CommitOrAbort::Abort(()) => Err(Failure::Damaged("it has no rows")),
    }
}
