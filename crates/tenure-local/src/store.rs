//! The store of a boot's directory: one LMDB environment, behind the gate.
//!
//! * Durability is not wanted (a reboot voids everything), so nothing is ever synced.
//! * LMDB's own locks are off: the gate is the only one, taken for every look and every change. So there are
//!   write transactions only, no reader table, and nothing in LMDB that waits without limit.
//! * The map is not writable by stray pointers (no `WRITE_MAP`).
//! * The file has its full, sparse length from the start. One that is shorter has been truncated, and touching
//!   the missing part would kill the process; it is refused instead.
//! * One environment per directory and process: several clients of a process share it.
#![allow(unsafe_code, reason = "opening an LMDB environment, and leaving it open in a forked child")]

use std::collections::HashSet;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heed::{CommitOrAbort, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};
use tenure_core::claim::{ClientId, Name};
use tenure_core::clock::{Clock, Instant, Timestamp};
use tenure_core::engine::Incarnation;
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::failpoint;
use tenure_core::step::Command;

use crate::directory::{Directory, Setup, damaged_data};
use crate::error::{Failure, Fault, system_error};
use crate::fork::is_forked;
use crate::gate::{Gate, Pass, WAIT_MAX};
use crate::liveness;
use crate::resource::Rows;
use crate::wake::{News, Ringer, Rung};

/// The key of what is fixed when a store is made: its incarnation and its time.
const BIRTH: &[u8] = b"m";
/// The length of the two pages that every LMDB file has.
const HEADER_BYTES: u64 = 2 * 4096;
/// How often a transaction looks whether idle records are due.
const PURGE_PERIOD: Duration = Duration::from_millis(250);
/// How many idle records one transaction forgets.
const PURGE_MAX: usize = 8;
/// How often a transaction looks whether the directory is still where it was.
const PRESENCE_PERIOD: Duration = Duration::from_millis(100);

/// An open store.
pub(crate) struct Store {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) incarnation: Incarnation,
    pub(crate) rows_above: usize,
    gate: Gate,
    /// Not closed in a forked child, which must not touch it.
    env: ManuallyDrop<Env<WithoutTls>>,
    rows: Rows,
    /// What to add to the time since boot, in microseconds.
    offset: u64,
    ringer: Ringer,
    /// The clients of this process: alive, without a look at their files.
    clients: Mutex<HashSet<ClientId>>,
    purge_at: AtomicU64,
    look_at: AtomicU64,
}

/// Something to tell a client after a commit.
#[derive(Debug)]
pub(crate) struct Letter {
    to: ClientId,
    about: Name,
    news: News,
}

/// A write transaction, behind the gate.
pub(crate) struct Transaction<'a> {
    pub(crate) store: &'a Store,
    /// Ends before the pass is given back: fields are dropped in this order.
    txn: RwTxn<'a>,
    pass: Pass<'a>,
    letters: Vec<Letter>,
    /// What the gate's page should say of observers after the commit.
    has_no_observers: bool,
}

impl Store {
    /// Opens the environment of a directory whose setup is locked.
    pub(crate) fn open(
        directory: Arc<Directory>,
        clock: Arc<dyn Clock>,
        config: &crate::config::Config,
        _setup: &Setup,
    ) -> Result<Store> {
        let gate = directory.open_gate()?;
        let failed = |failure| Fault::Failed(failure).to_error("connect", &directory.boot);
        let env = open_env(&directory, config.map_bytes)?;
        let pass = gate
            .enter(&*clock)
            .map_err(|blocked| Fault::Blocked(blocked).to_error("connect", &directory.boot))?;
        let rows = open_rows(&env).map_err(failed)?;
        let (incarnation, offset) = birth(&env, rows, &*clock, &directory.time_namespace).map_err(failed)?;
        drop(pass);
        let ringer = Ringer::new()
            .map_err(|source| system_error("connect", "open a socket in", &directory.boot, source))?;
        Ok(Store {
            clock,
            incarnation: Incarnation(incarnation),
            rows_above: config.rows_above,
            gate,
            env: ManuallyDrop::new(env),
            rows,
            offset,
            ringer,
            clients: Mutex::default(),
            purge_at: AtomicU64::new(0),
            look_at: AtomicU64::new(0),
            directory,
        })
    }
}

impl Store {
    /// Does the work in one transaction, and tells whoever must know. Nothing is stored unless it all is.
    ///
    /// Returns what the work returned, and which clients could not be told: they are closed or dead.
    pub(crate) fn transact<T>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<(T, Vec<(Name, ClientId)>), Fault> {
        failpoint::pass("local.before_begin");
        let mut transaction = self.begin()?;
        let done = catch_unwind(AssertUnwindSafe(|| {
            failpoint::pass("local.in_transaction");
            let done = work(&mut transaction)?;
            transaction.tidy()?;
            Ok(done)
        }));
        let done = done.unwrap_or_else(|panic| Err(Failure::Panicked(panic_text(&*panic))))?;
        failpoint::pass("local.before_commit");
        let letters = transaction.commit()?;
        failpoint::pass("local.before_bell");
        Ok((done, self.send(letters)))
    }

    /// Does the work in a transaction that stores nothing.
    pub(crate) fn look<T>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<T, Fault> {
        let mut transaction = self.begin()?;
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut transaction)));
        Ok(done.unwrap_or_else(|panic| Err(Failure::Panicked(panic_text(&*panic))))?)
    }

    fn begin(&self) -> Result<Transaction<'_>, Fault> {
        if is_forked() {
            return Err(Fault::Forked);
        }
        let pass = self.gate.enter(&*self.clock).map_err(Fault::Blocked)?;
        if self.is_due(&self.look_at, PRESENCE_PERIOD) && self.directory.is_removed() {
            return Err(Fault::Removed);
        }
        let txn = self.env.write_txn().map_err(Failure::from)?;
        Ok(Transaction { store: self, txn, pass, letters: Vec::new(), has_no_observers: false })
    }

    /// Whether a period is over, for one caller of many.
    fn is_due(&self, at: &AtomicU64, period: Duration) -> bool {
        let now = self.clock.now();
        let is_due = Instant::from_nanos(at.load(Ordering::Relaxed)) <= now;
        if is_due {
            at.store((now + period).nanos(), Ordering::Relaxed);
        }
        is_due
    }

    fn send(&self, letters: Vec<Letter>) -> Vec<(Name, ClientId)> {
        let mut refused = Vec::new();
        for Letter { to, about, news } in letters {
            if self.ringer.ring(&self.directory, to, &news) == Rung::Refused {
                refused.push((about, to));
            }
        }
        refused
    }

    /// Ends what dead clients hold, if they are dead, and what those hold who are granted it and are dead too.
    ///
    /// Returns whether anybody was.
    pub(crate) fn bury(&self, mut suspects: Vec<(Name, ClientId)>) -> Result<bool, Fault> {
        let mut is_anybody_dead = false;
        loop {
            suspects.retain(|(_, client)| self.is_dead(*client));
            if suspects.is_empty() {
                return Ok(is_anybody_dead);
            }
            is_anybody_dead = true;
            let ((), refused) = self.transact(|transaction| {
                for (name, client) in &suspects {
                    transaction.step(name, &Command::Vanish(*client))?;
                    transaction.remove_observer(name, *client)?;
                }
                Ok(())
            })?;
            suspects = refused;
        }
    }

    /// Whether a client is dead.
    pub(crate) fn is_dead(&self, client: ClientId) -> bool {
        !self.is_here(client) && liveness::is_dead(&self.directory, client)
    }

    /// Whether a client is one of this process.
    pub(crate) fn is_here(&self, client: ClientId) -> bool {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).contains(&client)
    }

    /// How large the store may grow.
    pub(crate) fn map_bytes(&self) -> u64 {
        self.env.info().map_size as u64
    }

    /// Counts a client as alive.
    pub(crate) fn add_client(&self, client: ClientId) {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).insert(client);
    }

    /// Leaves a client's life to its file.
    pub(crate) fn remove_client(&self, client: ClientId) {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).remove(&client);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if !is_forked() {
            // SAFETY: it is not used again, and this is the only place that drops it.
            unsafe { ManuallyDrop::drop(&mut self.env) };
        }
    }
}

impl<'a> Transaction<'a> {
    /// The store's time.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.store.clock.now().nanos() / 1000 + self.store.offset)
    }

    pub(crate) fn rows(&self) -> Rows {
        self.store.rows
    }

    pub(crate) fn reader(&self) -> &RoTxn<'a, WithoutTls> {
        &self.txn
    }

    pub(crate) fn writer(&mut self) -> &mut RwTxn<'a> {
        &mut self.txn
    }

    /// Tells a client something after the commit.
    pub(crate) fn tell(&mut self, to: ClientId, about: &Name, news: News) {
        self.letters.push(Letter { to, about: about.clone(), news });
    }

    /// Whether there may be a row of an observer.
    pub(crate) fn may_have_observers(&self) -> bool {
        self.store.gate.has_observers(&self.pass)
    }

    /// There will be a row of an observer.
    pub(crate) fn expect_observers(&mut self) {
        self.has_no_observers = false;
        self.store.gate.expect_observers(&self.pass, true);
    }

    /// There is no row of an observer, once this is committed.
    pub(crate) fn expect_no_observers(&mut self) {
        self.has_no_observers = true;
    }

    /// How much of the store is in use, or was at some time.
    pub(crate) fn used_bytes(&self) -> u64 {
        let info = self.store.env.info();
        (info.last_page_number as u64 + 1) * u64::from(self.store.env.unnamed_database_stat().page_size)
    }

    /// Does a bounded part of what nobody waits for.
    fn tidy(&mut self) -> Result<(), Failure> {
        if self.store.is_due(&self.store.purge_at, PURGE_PERIOD) && self.purge(PURGE_MAX)? == PURGE_MAX {
            self.store.purge_at.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    fn commit(self) -> Result<Vec<Letter>, Failure> {
        let Transaction { store, txn, pass, letters, has_no_observers } = self;
        txn.commit()?;
        if has_no_observers {
            store.gate.expect_observers(&pass, false);
        }
        failpoint::pass("local.after_commit");
        drop(pass);
        Ok(letters)
    }
}

/// Opens the environment; makes it if it is not there.
fn open_env(directory: &Directory, map_bytes: usize) -> Result<Env<WithoutTls>> {
    let path = directory.data();
    check_file_limit(directory, map_bytes)?;
    let failed = |error: heed::Error| Fault::Failed(error.into()).to_error("connect", &directory.boot);
    if !path.exists() {
        // Made under another name, so that no one ever opens half of it.
        let fresh = path.with_extension("new");
        let io_failed = |source| system_error("connect", "write", &fresh, source);
        drop(std::fs::remove_file(&fresh));
        let env = open_file(&fresh, Some(map_bytes)).map_err(failed)?;
        env.prepare_for_closing().wait();
        let file = std::fs::OpenOptions::new().write(true).open(&fresh).map_err(io_failed)?;
        file.set_len(map_bytes as u64).map_err(io_failed)?;
        failpoint::pass("local.before_data");
        std::fs::rename(&fresh, &path).map_err(io_failed)?;
    }
    let length = std::fs::symlink_metadata(&path)
        .map_err(|source| system_error("connect", "look at", &path, source))?
        .len();
    let check = |expected: u64| {
        if length >= expected {
            return Ok(());
        }
        Err(damaged_data(&directory.boot, format!("data.mdb has {length} bytes of {expected}")))
    };
    // LMDB takes an empty file for a new one.
    check(HEADER_BYTES)?;
    let env = open_file(&path, None).map_err(failed)?;
    check(env.info().map_size as u64)?;
    Ok(env)
}

fn open_file(path: &std::path::Path, map_bytes: Option<usize>) -> Result<Env<WithoutTls>, heed::Error> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    if let Some(map_bytes) = map_bytes {
        options.map_size(map_bytes);
    }
    // SAFETY: NO_SYNC and NO_META_SYNC give up what a crash of the machine would lose, which a new boot ignores
    // anyway. NO_LOCK demands that access is serialized: all of it is behind the gate, or under the setup's lock
    // before anybody else can know the file. NO_MEM_INIT leaves old bytes in pages, which belong to this user.
    unsafe {
        options.flags(
            EnvFlags::NO_SUB_DIR
                | EnvFlags::NO_LOCK
                | EnvFlags::NO_SYNC
                | EnvFlags::NO_META_SYNC
                | EnvFlags::NO_READ_AHEAD
                | EnvFlags::NO_MEM_INIT,
        );
    }
    if let Some(closing) = heed::env_closing_event(path) {
        // The last client of this process has just been dropped, and its thread is closing the environment.
        closing.wait_timeout(WAIT_MAX);
    }
    // SAFETY: the file is this user's, in a directory that nobody else may write; it is changed by LMDB only,
    // and never made shorter.
    unsafe { options.open(path) }
}

/// A process that writes beyond its limit of file sizes is killed, in the middle of a transaction.
fn check_file_limit(directory: &Directory, map_bytes: usize) -> Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX);
    if limit >= map_bytes as u64 {
        return Ok(());
    }
    let place = directory.place.display();
    let message = format!("files may have {limit} bytes, the store in {place} may grow to {map_bytes}");
    Err(Error::new(ErrorKind::Unavailable, "connect", message).with_engine("local").with_hint(
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

/// Reads the incarnation and the offset of the time; fixes them if the store is new.
///
/// The offset is taken from the time of day once. From then on the store's time runs with the boot's clock, which
/// nobody can set. Where the store is taken over in another time namespace, whose boot's clock is another, the
/// time of day is the bridge.
fn birth(
    env: &Env<WithoutTls>,
    rows: Rows,
    clock: &dyn Clock,
    time_namespace: &str,
) -> Result<(u64, u64), Failure> {
    let mut txn = env.write_txn()?;
    if let Some(row) = rows.get(&txn, BIRTH)? {
        let damaged = || Failure::Damaged("its first row cannot be read");
        let (incarnation, rest) = row.split_first_chunk::<8>().ok_or_else(damaged)?;
        let (offset, namespace) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
        if namespace == time_namespace.as_bytes() {
            return Ok((u64::from_le_bytes(*incarnation), u64::from_le_bytes(*offset)));
        }
    }
    let incarnation = clock.random();
    let offset = clock.time_of_day().micros().saturating_sub(clock.now().nanos() / 1000);
    let row = [&incarnation.to_le_bytes(), &offset.to_le_bytes(), time_namespace.as_bytes()].concat();
    rows.put(&mut txn, BIRTH, &row)?;
    failpoint::pass("local.before_birth");
    txn.commit()?;
    Ok((incarnation, offset))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}
