//! Connections: a few, lent for one transaction each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::error::ErrorKind;
use tenure_sql::{Connection, Fault, Left, Purpose, Room, Row};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::client::dial::{configure, dial};
use crate::client::wire::{Answer, Wire};
use crate::config::Config;
use crate::error::{fault, is_missing, too_old};

/// How long an answer is waited for: for as long as a connection is, for the same reason (`tenure-sql/src/room.rs`).
const ANSWER_TIMEOUT: Duration = Duration::from_millis(2500);
/// How much the server's birth may seem to move: its age comes in whole seconds.
const BIRTH_SLACK_MICROS: i64 = 2_000_000;

/// A few connections.
pub(crate) struct Pool {
    config: Config,
    room: Room,
    idle: Mutex<Vec<Known>>,
    /// When the server was started, in microseconds since 1970, as the first connection saw it.
    birth: Mutex<Option<i64>>,
}

/// A connection on which the server has let us in. It takes its leave.
struct Known(Wire);

impl Drop for Known {
    fn drop(&mut self) {
        self.0.quit();
    }
}

/// A connection that goes back only if nothing went wrong on it but that others had rows locked.
pub struct PooledConnection {
    lent: Option<Lent>,
    pool: Arc<Pool>,
    left: Left,
    /// Set if a table is not there that should be.
    doubt: Option<Arc<AtomicBool>>,
}

struct Lent {
    // Closed before there is room for another.
    wire: Known,
    room: OwnedSemaphorePermit,
}

impl std::fmt::Debug for PooledConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PooledConnection").finish_non_exhaustive()
    }
}

impl Connection for PooledConnection {
    async fn run(&mut self, script: String) -> Result<Vec<Vec<Row>>, Fault> {
        let answers = self.ask(script).await?;
        Ok(answers.into_iter().map(|answer| answer.rows).collect())
    }

    fn keep(mut self) {
        if let Some(lent) = self.lent.take() {
            lock(&self.pool.idle).push(lent.wire);
        }
    }
}

impl PooledConnection {
    /// With a doubt to leave, what fails since a table is not there is tried again: another client may just have made tables of
    /// another version of it.
    pub(crate) fn leave_doubt(&mut self, doubt: Option<Arc<AtomicBool>>) {
        self.doubt = doubt;
    }

    /// Whether the server is MariaDB.
    pub(crate) fn is_mariadb(&self) -> bool {
        self.lent.as_ref().is_some_and(|lent| lent.wire.0.is_mariadb)
    }

    /// Executes a statement that `prepare` says how to prepare, which is done once in a connection. Returns how many rows it has changed,
    /// and what it gave `LAST_INSERT_ID`.
    pub(crate) async fn execute(
        &mut self,
        prepare: impl FnOnce() -> String,
        statement: &str,
    ) -> Result<(u64, u64), Fault> {
        let has_prepared = self.lent.as_ref().is_some_and(|lent| lent.wire.0.has_prepared);
        let script = if has_prepared { statement.to_owned() } else { prepare() + ";\n" + statement };
        let answers = self.ask(script).await?;
        if let Some(lent) = &mut self.lent {
            lent.wire.0.has_prepared = true;
        }
        let last = answers.last().ok_or_else(|| Fault::internal("a statement was not answered"))?;
        Ok((last.changed, last.number))
    }

    async fn ask(&mut self, script: String) -> Result<Vec<Answer>, Fault> {
        self.left = Left::Unknown;
        let Some(Lent { wire: Known(wire), .. }) = &mut self.lent else {
            return Err(Fault::internal("the connection is gone"));
        };
        // The server would close the connection in the midst of it, and the cause would be lost.
        if script.len() >= wire.text_max {
            return Err(Fault::Failed {
                kind: ErrorKind::Unsupported,
                message: format!("a text of {} bytes is more than the server takes", script.len()),
                hint: "raise the server's `max_allowed_packet`; tenure's largest values need 2 MiB",
            });
        }
        let answers = timeout(ANSWER_TIMEOUT, wire.run(&script)).await;
        let answers =
            answers.map_err(|_| Fault::unavailable(format!("no answer within {ANSWER_TIMEOUT:?}")))?;
        answers.map_err(|error| {
            let fault = match &self.doubt {
                Some(doubt) if is_missing(&error) => {
                    doubt.store(true, Ordering::Release);
                    Fault::GivenUp("the tables are not what they were".to_owned())
                }
                _ => fault(&error),
            };
            if fault.is_given_up() {
                self.left = Left::Transaction;
            }
            fault
        })
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(Lent { mut wire, room }) = self.lent.take() else { return };
        match (&self.left, Handle::try_current()) {
            (Left::Nothing, _) => lock(&self.pool.idle).push(wire),
            (Left::Transaction, Ok(runtime)) => {
                let pool = self.pool.clone();
                // Whoever waited has its answer, and does not wait for that as well.
                runtime.spawn(async move {
                    if let Ok(Ok(_)) = timeout(ANSWER_TIMEOUT, wire.0.run("ROLLBACK")).await {
                        lock(&pool.idle).push(wire);
                    }
                    drop(room);
                });
            }
            // It may be in the midst of something.
            _ => {}
        }
    }
}

impl Pool {
    pub(crate) fn new(config: Config) -> Arc<Pool> {
        let room = Room::new(config.connections);
        Arc::new(Pool { config, room, idle: Mutex::default(), birth: Mutex::default() })
    }

    /// Returns a connection: one that was used before, if the server has not closed it meanwhile.
    pub(crate) async fn lend(self: &Arc<Pool>, want: Purpose) -> Result<PooledConnection, Fault> {
        let [connects, lends, waits] = [(); 3].map(|()| self.clone());
        let connect = move || connects.clone().known();
        let lent = move |wire, room| PooledConnection {
            lent: Some(Lent { wire, room }),
            pool: lends,
            left: Left::Nothing,
            doubt: None,
        };
        let late = move |waited| {
            Fault::unavailable(format!("{}: no connection within {waited:?}", waits.config.server))
        };
        self.room.lend(want, connect, lent, late).await
    }

    async fn known(self: Arc<Pool>) -> Result<Known, Fault> {
        loop {
            let idle = lock(&self.idle).pop();
            let Some(mut wire) = idle else { return self.connect().await };
            if !wire.0.is_dead().await {
                return Ok(wire);
            }
        }
    }

    /// Closes connections that are not in use. It is done while the runtime is there, without which nothing can be
    /// sent.
    pub(crate) fn close(&self) {
        drop(std::mem::take(&mut *lock(&self.idle)));
    }

    async fn connect(&self) -> Result<Known, Fault> {
        let mut known = Known(dial(&self.config).await?);
        let wire = &mut known.0;
        let (birth, version, text_max) = configure(wire).await?;
        if let Some(wanted) = too_old(&version) {
            return Err(Fault::Failed {
                kind: ErrorKind::Unsupported,
                message: format!("the server is {version}, and {wanted} is needed"),
                hint: "use a newer server",
            });
        }
        let birth = {
            let mut known = lock(&self.birth);
            match *known {
                Some(known) if (known - birth).abs() <= BIRTH_SLACK_MICROS => known,
                _ => *known.insert(birth),
            }
        };
        (wire.text_max, wire.is_mariadb) = (text_max, version.contains("MariaDB"));
        wire.run(&format!("SET @tenure_life = {birth}")).await.map_err(|error| fault(&error))?;
        Ok(known)
    }
}

/// A panic elsewhere cannot leave these half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
