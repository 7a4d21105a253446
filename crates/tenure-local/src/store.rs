//! The store of a boot's directory: one LMDB environment, behind the gate.
//!
//! One store per directory and process: several clients of a process share it. Its time is monotonic within a boot.
//! The thread that commits sends the notifications after its commit.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heed::{RoTxn, RwTxn, WithoutTls};
use tenure_core::clock::{Clock, Instant, Timestamp};
use tenure_core::engine::Incarnation;
use tenure_core::error::Result;
use tenure_core::model::claim::{ClientId, Name};
use tenure_core::model::step::Vanish;
use tenure_core::testing::failpoint;

use crate::client::liveness;
use crate::client::wake::{News, SendOutcome, WakeSocket};
use crate::config::Config;
use crate::error::{Failure, Fault, system_error};
use crate::place::directory::{Directory, Setup};
use crate::place::environment::{Environment, Rows};
use crate::place::fork::is_forked;
use crate::place::gate::{Gate, GateGuard};
use crate::place::room::{Presence, Room};

/// The key of what is fixed when a store is made: its incarnation and its time.
const BIRTH: &[u8] = b"m";
/// The key of the last time at which a queue was changed.
const LAST_TIME: &[u8] = b"t";
/// How often a transaction checks whether idle records are due.
const PURGE_PERIOD: Duration = Duration::from_millis(250);
/// How many idle records one transaction forgets.
const PURGE_MAX: usize = 8;
/// How often a transaction checks whether the store is still where it was.
const PRESENCE_PERIOD: Duration = Duration::from_millis(100);

/// What a store is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Locks, of this boot.
    Locks,
    /// Queues, which outlive it.
    Queues,
}

/// An open store.
pub(crate) struct Store {
    pub(crate) purpose: Purpose,
    /// Where it is kept.
    pub(crate) room: Arc<Room>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) incarnation: Incarnation,
    pub(crate) rows_above: usize,
    gate: Gate,
    environment: Environment,
    /// What to add to the time since boot, in microseconds.
    offset: u64,
    ringer: Arc<WakeSocket>,
    /// The clients of this process: alive, without a check of their files.
    clients: Arc<Mutex<HashSet<ClientId>>>,
    /// The clients to which a client has announced that it takes items of a queue.
    pub(crate) announced: Mutex<HashMap<(ClientId, Name), ClientId>>,
    purge_at: AtomicU64,
    presence_check_at: AtomicU64,
    presence: Presence,
    /// The store was found removed: for good, since a new client has another one.
    is_removed: AtomicBool,
}

/// A notification for a client after a commit.
#[derive(Debug)]
pub(crate) struct Notification {
    to: ClientId,
    about: Name,
    news: News,
}

/// A write transaction, behind the gate.
pub(crate) struct Transaction<'a> {
    pub(crate) store: &'a Store,
    /// Ends before the pass is given back: fields are dropped in this order.
    txn: RwTxn<'a>,
    pass: GateGuard<'a>,
    notifications: Vec<Notification>,
    now: OnceCell<Timestamp>,
    /// Something of a queue has changed.
    is_changed: bool,
    /// What the gate's page should say of observers after the commit.
    has_no_observers: bool,
}

impl Store {
    /// Opens the environment of a directory whose setup is locked.
    pub(crate) fn open(
        directory: Arc<Directory>,
        clock: Arc<dyn Clock>,
        config: &Config,
        setup: &Setup,
    ) -> Result<Store> {
        let ringer = WakeSocket::new()
            .map_err(|source| system_error("connect", "open a socket in", &directory.room.path, source))?;
        let scope = directory.format.time_namespace.clone();
        let parts = Parts { directory, clock, ringer: Arc::new(ringer), clients: Arc::default() };
        let room = parts.directory.room.clone();
        Store::in_room(Purpose::Locks, room, parts, config.map_bytes, config.rows_above, &scope, setup)
    }

    /// Opens the store of the queues that belongs to a store of locks.
    pub(crate) fn open_queues(&self, map_bytes: usize) -> Result<Store> {
        let (room, setup) = crate::queues::place::open(&self.directory, &*self.clock)?;
        let parts = Parts {
            directory: self.directory.clone(),
            clock: self.clock.clone(),
            ringer: self.ringer.clone(),
            clients: self.clients.clone(),
        };
        // Another boot's clock is another clock.
        let scope = format!("{} {}", room_name(&self.room), self.directory.format.time_namespace);
        Store::in_room(Purpose::Queues, Arc::new(room), parts, map_bytes, self.rows_above, &scope, &setup)
    }

    fn in_room(
        purpose: Purpose,
        room: Arc<Room>,
        parts: Parts,
        map_bytes: usize,
        rows_above: usize,
        scope: &str,
        setup: &Setup,
    ) -> Result<Store> {
        let Parts { directory, clock, ringer, clients } = parts;
        let gate = room.open_gate()?;
        let fault = |fault: Fault| fault.to_error("connect", &room.path);
        let environment = Environment::open(&room, map_bytes, setup, || gate.enter(&*clock))?;
        let pass = gate.enter(&*clock).map_err(|blocked| fault(Fault::Blocked(blocked)))?;
        let (incarnation, offset) = load_or_create_identity(&environment, &pass, &*clock, scope)
            .map_err(|failure| fault(Fault::Failed(failure)))?;
        drop(pass);
        let names: &[_] = match purpose {
            Purpose::Locks => &["format", "gate", "data.mdb", "alive", "bell"],
            Purpose::Queues => &["format", "gate", "data.mdb"],
        };
        let presence = Presence::of(&room, names)
            .map_err(|source| system_error("connect", "look at", &room.path, source))?;
        Ok(Store {
            purpose,
            room,
            clock,
            incarnation: Incarnation(incarnation),
            rows_above,
            gate,
            environment,
            offset,
            ringer,
            clients,
            announced: Mutex::default(),
            purge_at: AtomicU64::new(0),
            presence_check_at: AtomicU64::new(0),
            presence,
            is_removed: AtomicBool::new(false),
            directory,
        })
    }
}

/// What the stores of a process share.
struct Parts {
    directory: Arc<Directory>,
    clock: Arc<dyn Clock>,
    ringer: Arc<WakeSocket>,
    clients: Arc<Mutex<HashSet<ClientId>>>,
}

/// The name of a boot's directory: its id.
fn room_name(room: &Room) -> String {
    room.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

impl Store {
    /// Does the work in one transaction, and notifies the clients that it concerns. Nothing is stored unless it all
    /// is.
    ///
    /// Returns what the work returned, and which clients could not be notified: they are closed or dead.
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
        let notifications = transaction.commit()?;
        failpoint::pass("local.before_bell");
        Ok((done, self.send(notifications)))
    }

    /// Does the work in a transaction that stores nothing.
    pub(crate) fn read<T>(
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
        if self.is_due(&self.presence_check_at, PRESENCE_PERIOD) && self.is_anything_removed() {
            self.is_removed.store(true, Ordering::Relaxed);
        }
        if self.is_removed.load(Ordering::Relaxed) {
            return Err(Fault::Removed);
        }
        let txn = self.environment.begin(&pass)?;
        Ok(Transaction {
            store: self,
            txn,
            pass,
            notifications: Vec::new(),
            now: OnceCell::new(),
            is_changed: false,
            has_no_observers: false,
        })
    }

    /// Whether something that cleans up old files took this store for one, or another was put in its place.
    fn is_anything_removed(&self) -> bool {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        self.presence.is_over()
            || clients.iter().any(|client| liveness::is_file_gone(&self.directory, *client))
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

    fn send(&self, notifications: Vec<Notification>) -> Vec<(Name, ClientId)> {
        let mut refused = Vec::new();
        for Notification { to, about, news } in notifications {
            if self.ringer.ring(&self.directory, to, &news) == SendOutcome::Refused {
                refused.push((about, to));
            }
        }
        refused
    }

    /// Ends what dead clients hold, if they are dead, and what the clients hold that are granted it and are dead too.
    ///
    /// Returns whether any client was.
    pub(crate) fn reap(&self, mut suspects: Vec<(Name, ClientId)>) -> Result<bool, Fault> {
        let mut is_anybody_dead = false;
        loop {
            suspects.retain(|(_, client)| self.is_dead(*client));
            if suspects.is_empty() {
                return Ok(is_anybody_dead);
            }
            is_anybody_dead = true;
            let ((), refused) = self.transact(|transaction| {
                for (name, client) in &suspects {
                    if self.purpose == Purpose::Queues {
                        transaction.queue_vanish(name, *client)?;
                        continue;
                    }
                    transaction.step(name, &Vanish(*client))?;
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

    /// Says of a store without room whether it holds locks or queues.
    pub(crate) fn fault(&self, fault: Fault) -> Fault {
        match fault {
            Fault::Failed(Failure::Store(heed::Error::Mdb(heed::MdbError::MapFull)))
                if self.purpose == Purpose::Queues =>
            {
                Fault::Failed(Failure::Full)
            }
            fault => fault,
        }
    }

    /// Rings a client's bell before anything is committed.
    pub(crate) fn ring(&self, client: ClientId, news: &News) {
        self.ringer.ring(&self.directory, client, news);
    }

    /// Whether commits wait for the disk.
    #[cfg(test)]
    pub(crate) fn is_synced(&self) -> bool {
        self.environment.is_synced()
    }

    /// How large the store may grow.
    pub(crate) fn map_bytes(&self) -> u64 {
        self.environment.map_bytes()
    }

    /// Counts a client as alive.
    pub(crate) fn add_client(&self, client: ClientId) {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).insert(client);
    }

    /// Leaves a client's life to its file.
    pub(crate) fn remove_client(&self, client: ClientId) {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).remove(&client);
    }

    /// Forgets to which clients a client has announced that it takes.
    pub(crate) fn forget_announced(&self, client: ClientId) {
        self.announced
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(announcer, _), _| *announcer != client);
    }
}

impl<'a> Transaction<'a> {
    /// The store's time: the same for all that one transaction does.
    pub(crate) fn now(&self) -> Timestamp {
        let read = || Timestamp::from_micros(self.store.clock.now().nanos() / 1000 + self.store.offset);
        *self.now.get_or_init(read)
    }

    pub(crate) fn rows(&self) -> Rows {
        self.store.environment.rows()
    }

    pub(crate) fn reader(&self) -> &RoTxn<'a, WithoutTls> {
        &self.txn
    }

    pub(crate) fn writer(&mut self) -> &mut RwTxn<'a> {
        &mut self.txn
    }

    /// Notifies a client after the commit.
    pub(crate) fn notify(&mut self, to: ClientId, about: &Name, news: News) {
        self.notifications.push(Notification { to, about: about.clone(), news });
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
        self.store.environment.used_bytes()
    }

    /// Something of a queue has changed.
    pub(crate) fn note_change(&mut self) {
        self.is_changed = true;
    }

    /// Does a bounded part of the work that no caller waits for, and notes the time where it must go on after a
    /// reboot.
    fn tidy(&mut self) -> Result<(), Failure> {
        if self.store.purpose == Purpose::Queues {
            if self.is_changed {
                let (rows, now) = (self.rows(), self.now());
                rows.put(self.writer(), LAST_TIME, &now.micros().to_le_bytes())?;
            }
            return Ok(());
        }
        if self.store.is_due(&self.store.purge_at, PURGE_PERIOD) && self.purge(PURGE_MAX)? == PURGE_MAX {
            self.store.purge_at.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    fn commit(self) -> Result<Vec<Notification>, Failure> {
        let Transaction { store, txn, pass, notifications, has_no_observers, .. } = self;
        txn.commit()?;
        if has_no_observers {
            store.gate.expect_observers(&pass, false);
        }
        failpoint::pass("local.after_commit");
        drop(pass);
        Ok(notifications)
    }
}

/// Reads the incarnation and the offset of the time; fixes them if the store is new.
///
/// The offset is taken from the time of day once. From then on the store's time runs with the boot's clock, which
/// cannot be set. Where the store is taken over in another scope (another time namespace, or for queues another
/// boot), whose boot's clock is another, the time of day is the bridge; but what has been is never in the future.
fn load_or_create_identity(
    environment: &Environment,
    pass: &GateGuard<'_>,
    clock: &dyn Clock,
    scope: &str,
) -> Result<(u64, u64), Failure> {
    let mut txn = environment.begin(pass)?;
    let rows = environment.rows();
    if let Some(row) = rows.get(&txn, BIRTH)? {
        let damaged = || Failure::Damaged("its first row cannot be read");
        let (incarnation, rest) = row.split_first_chunk::<8>().ok_or_else(damaged)?;
        let (offset, there) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
        if there == scope.as_bytes() {
            return Ok((u64::from_le_bytes(*incarnation), u64::from_le_bytes(*offset)));
        }
    }
    let incarnation = clock.random();
    let damaged = |_| Failure::Damaged("its last time cannot be read");
    let last = rows.get(&txn, LAST_TIME)?.map(TryInto::try_into).transpose().map_err(damaged)?;
    let begin = clock.time_of_day().micros().max(last.map_or(0, u64::from_le_bytes));
    let offset = begin.saturating_sub(clock.now().nanos() / 1000);
    let row = [&incarnation.to_le_bytes(), &offset.to_le_bytes(), scope.as_bytes()].concat();
    rows.put(&mut txn, BIRTH, &row)?;
    failpoint::pass("local.before_birth");
    txn.commit()?;
    Ok((incarnation, offset))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}
