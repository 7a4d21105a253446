//! Connections: a few, lent for one transaction each.
//!
//! Most statements are sent as plain text: a pooler in transaction mode knows no names that were given on another connection. Those of
//! queues and of the short path are prepared where no pooler lies between, and functions elsewhere.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, QueueMode, RecyclingMethod};
use futures_util::future::{Either, maybe_done, select};
use tenure_core::error::ErrorKind;
use tenure_sql::{Connection, Dialect, Fault, Left, Purpose, Room, Row};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{SimpleQueryMessage, Statement as Plan};

use crate::config::Config;
use crate::dialect::{PostgresDialect, SURROUNDINGS};
use crate::error::fault;
use crate::statement::{Bound, Function};

/// How long an answer is waited for: for as long as a connection is, for the same reason (`tenure-sql/src/room.rs`).
const ANSWER_TIMEOUT: Duration = Duration::from_millis(2500);

/// A connection that goes back only if nothing went wrong on it but that others had rows locked.
pub struct PooledConnection {
    lent: Option<Lent>,
    alarm: Option<Alarm>,
    alarms: Arc<Alarms>,
    hasty: Arc<Hasty>,
    /// Whether the server has our functions, as far as is known.
    functions: Arc<AtomicBool>,
    /// Set if a table is not there that should be.
    doubt: Option<Arc<AtomicBool>>,
    left: Left,
}

struct Lent {
    // Given back before there is room for another.
    object: Object,
    room: OwnedSemaphorePermit,
}

impl std::fmt::Debug for PooledConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PooledConnection").finish_non_exhaustive()
    }
}

/// What rings when an answer is late.
type Alarm = Pin<Box<Sleep>>;

/// Alarms that are not set now. One that is new is registered with the runtime, which wakes itself up for that; to
/// put an old one off costs nothing.
#[derive(Default)]
struct Alarms(Mutex<Vec<Alarm>>);

impl Alarms {
    fn lock(&self) -> MutexGuard<'_, Vec<Alarm>> {
        // A panic elsewhere cannot leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "what is waited for is a server, whose time no test can move"
    )]
    fn set(&self) -> Alarm {
        let kept = self.lock().pop();
        let Some(mut alarm) = kept else { return Box::pin(tokio::time::sleep(ANSWER_TIMEOUT)) };
        alarm.as_mut().reset(Instant::now() + ANSWER_TIMEOUT);
        alarm
    }
}

/// Sessions of one's own that wait for locked rows only for as long as the short path does, by the address of their client's cache
/// of statements: one statement sets that for all of the short path that follow it there.
#[derive(Default)]
struct Hasty(Mutex<HashSet<usize>>);

impl Hasty {
    fn lock(&self) -> MutexGuard<'_, HashSet<usize>> {
        // A panic elsewhere cannot leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, client: &Object) -> bool {
        self.lock().contains(&Hasty::address(client))
    }

    fn set(&self, client: &Object, is_hasty: bool) {
        let mut all = self.lock();
        match is_hasty {
            true => all.insert(Hasty::address(client)),
            false => all.remove(&Hasty::address(client)),
        };
    }

    /// Closes a connection.
    fn close(&self, client: Object) {
        self.set(&client, false);
        drop(Object::take(client));
    }

    fn address(client: &Object) -> usize {
        Arc::as_ptr(&client.statement_cache).addr()
    }
}

impl Connection for PooledConnection {
    async fn run(&mut self, script: String) -> Result<Vec<Vec<Row>>, Fault> {
        let mut answers = self.go_on(format!("{};\n{script}", SURROUNDINGS.join("; "))).await?;
        Ok(answers.split_off(SURROUNDINGS.len().min(answers.len())))
    }

    async fn go_on(&mut self, script: String) -> Result<Vec<Vec<Row>>, Fault> {
        self.left = Left::Unknown;
        let Some(Lent { object: client, .. }) = &self.lent else {
            return Err(Fault::internal("the connection is gone"));
        };
        let answers = timeout(ANSWER_TIMEOUT, client.simple_query(&script)).await;
        let messages =
            answers.map_err(|_| Fault::unavailable(format!("no answer within {ANSWER_TIMEOUT:?}")))?;
        let mut answers = vec![Vec::new()];
        for message in messages.map_err(|error| self.failed(&error, Left::Transaction))? {
            match message {
                SimpleQueryMessage::Row(row) => {
                    let columns = (0..row.len()).map(|at| row.get(at).map(str::to_owned));
                    if let Some(rows) = answers.last_mut() {
                        rows.push(columns.collect());
                    }
                }
                SimpleQueryMessage::CommandComplete(_) => answers.push(Vec::new()),
                _ => {}
            }
        }
        answers.pop();
        Ok(answers)
    }

    fn keep(mut self) {
        // Dropped while it is still in here, the object returns to the pool.
        drop(self.lent.take());
        self.alarms.lock().extend(self.alarm.take());
    }
}

/// What is set once on the server's side of a connection that this client alone uses. Plans are kept: each would
/// otherwise be made anew for the number of rows in a batch, which takes longer than to execute it. One that is made
/// while a queue is empty must do for when it is long, so no plan may read whole tables. One that has to all the same is taken for so
/// dear that the server would compile it, for some 0.3 s (jit).
const OWN: &str = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED; \
     SET search_path = pg_catalog, pg_temp; SET lock_timeout = 1000; SET statement_timeout = 2500; SET idle_in_transaction_session_timeout = 700; SET plan_cache_mode = force_generic_plan; SET jit = off; \
     SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";
/// What follows in such a session waits for as little as a text of the short path does: the long way behind it waits as well.
const WAIT_LITTLE: &str = "SET lock_timeout = 50";
/// And again for as long as all else.
const WAIT: &str = "SET lock_timeout = 1000";
/// Shows the statements behind it that their transaction has begun: they come in messages of their own, which the
/// server executes one by one if BEGIN itself is cancelled. Those that rely on a lock before them check it:
/// `text::BEGUN`.
const BEGUN: &str = "SET LOCAL tenure.begun = 0";

impl PooledConnection {
    /// With a doubt to leave, what fails since a table is not there is tried again: another client may just have made tables of
    /// another version of it.
    pub(crate) fn leave_doubt(&mut self, doubt: Option<Arc<AtomicBool>>) {
        self.doubt = doubt;
    }

    /// Returns what an error of a call of functions means.
    fn call_failed(&mut self, error: &tokio_postgres::Error) -> Fault {
        // Somebody has dropped them, or taken the right to call them: texts do as well, and say if it is another right.
        let gone = [SqlState::UNDEFINED_FUNCTION, SqlState::INSUFFICIENT_PRIVILEGE];
        if error.code().is_some_and(|code| gone.contains(code)) {
            self.functions.store(false, Ordering::Release);
            self.left = Left::Nothing;
            return Fault::GivenUp("the functions are not what they were".to_owned());
        }
        self.failed(error, Left::Nothing)
    }

    /// Returns what an error means, and notes what is left of a text that was given up.
    fn failed(&mut self, error: &tokio_postgres::Error, left: Left) -> Fault {
        let missing = [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN];
        match &self.doubt {
            Some(doubt) if error.code().is_some_and(|code| missing.contains(code)) => {
                doubt.store(true, Ordering::Release);
                Fault::GivenUp("the tables are not what they were".to_owned())
            }
            _ => {
                let fault = fault(error);
                if fault.is_given_up() {
                    self.left = left;
                }
                fault
            }
        }
    }

    /// Runs a transaction in one round trip, and returns the rows of each statement. `behind` is sent with it, to be
    /// executed after the commit; its outcome is ignored.
    ///
    /// `is_own`: this client alone uses the server's side of this connection, so that statements may be prepared there.
    pub(crate) async fn transact(
        &mut self,
        is_own: bool,
        statements: &[Bound<'_>],
        behind: &[Bound<'_>],
    ) -> Result<Vec<Vec<tokio_postgres::Row>>, Fault> {
        self.carry_out(is_own, false, statements, behind).await
    }

    /// Runs one statement of the short path, in a session of one's own or as a function.
    pub(crate) async fn run_hastily(
        &mut self,
        is_own: bool,
        statement: Bound<'_>,
    ) -> Result<Vec<Vec<tokio_postgres::Row>>, Fault> {
        self.carry_out(is_own, is_own, &[statement], &[]).await
    }

    async fn carry_out(
        &mut self,
        is_own: bool,
        is_hasty: bool,
        statements: &[Bound<'_>],
        behind: &[Bound<'_>],
    ) -> Result<Vec<Vec<tokio_postgres::Row>>, Fault> {
        self.left = Left::Unknown;
        let Some(Lent { object: client, .. }) = &self.lent else {
            return Err(Fault::internal("the connection is gone"));
        };
        let has_functions = !is_own && self.functions.load(Ordering::Acquire);
        let carried_out = async {
            let mut plans = Vec::new();
            let mut turn = "";
            if is_own {
                if client.statement_cache.size() == 0 {
                    client.batch_execute(OWN).await?;
                    self.hasty.set(client, false);
                }
                if self.hasty.is(client) != is_hasty {
                    turn = if is_hasty { WAIT_LITTLE } else { WAIT };
                }
                for (statement, _) in statements.iter().chain(behind) {
                    plans.push(client.prepare_typed_cached(&statement.text, statement.takes()).await?);
                }
            }
            // All are sent before the first is answered: futures send when they are first polled.
            let all = statements
                .iter()
                .enumerate()
                .map(|(at, bound)| query(client, plans.get(at), has_functions, *bound));
            let after = behind
                .iter()
                .enumerate()
                .map(|(at, bound)| query(client, plans.get(statements.len() + at), has_functions, *bound));
            let (begin, commit) = match statements {
                // It is a transaction by itself.
                [_] | [] if is_own => (String::new(), ""),
                _ if is_own => (format!("BEGIN; {BEGUN}"), "COMMIT"),
                [(one, _)] if has_functions && one.as_function().is_some_and(Function::is_alone) => {
                    (String::new(), "")
                }
                _ => {
                    let begin = PostgresDialect::BEGIN.join("; ");
                    (format!("{begin}; {}; {BEGUN}", SURROUNDINGS.join("; ")), "COMMIT")
                }
            };
            let (turned, begun, done, committed, _told) = futures_util::future::join5(
                execute(client, turn),
                execute(client, &begin),
                in_order(all),
                execute(client, commit),
                in_order(after),
            )
            .await;
            turned?;
            if is_own {
                self.hasty.set(client, is_hasty);
            }
            begun?;
            let done = done.into_iter().collect::<Result<Vec<_>, _>>()?;
            committed?;
            Ok::<_, tokio_postgres::Error>(done)
        };
        let alarm = self.alarm.insert(self.alarms.set());
        let answers = match select(std::pin::pin!(carried_out), alarm).await {
            Either::Left((answers, _)) => answers,
            Either::Right(_) => {
                return Err(Fault::unavailable(format!("no answer within {ANSWER_TIMEOUT:?}")));
            }
        };
        // What ends the transaction was sent with it.
        answers.map_err(|error| match has_functions {
            true => self.call_failed(&error),
            false => self.failed(&error, Left::Nothing),
        })
    }
}

async fn execute(client: &Object, text: &str) -> Result<(), tokio_postgres::Error> {
    if text.is_empty() { Ok(()) } else { client.batch_execute(text).await }
}

async fn query(
    client: &Object,
    plan: Option<&Plan>,
    has_functions: bool,
    (statement, values): Bound<'_>,
) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
    if let Some(plan) = plan {
        return client.query(plan, values).await;
    }
    let function = statement.as_function().filter(|_| has_functions);
    let text = function.map_or(&*statement.text, Function::call);
    let typed: Vec<(&(dyn ToSql + Sync), Type)> =
        values.iter().copied().zip(statement.takes().iter().cloned()).collect();
    client.query_typed(text, &typed).await
}

/// Polls all for the first time in their order, which is the order in which they are sent.
async fn in_order<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = futures.map(|future| Box::pin(maybe_done(future))).collect();
    poll_fn(|cx| {
        let mut is_done = true;
        for future in &mut all {
            is_done &= future.as_mut().poll(cx).is_ready();
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    all.iter_mut().filter_map(|future| future.as_mut().take_output()).collect()
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(Lent { object, room }) = self.lent.take() else { return };
        match (&self.left, Handle::try_current()) {
            (Left::Nothing, _) => {}
            (Left::Transaction, Ok(runtime)) => {
                let hasty = self.hasty.clone();
                // Whoever waited has its answer, and does not wait for that as well.
                runtime.spawn(async move {
                    match timeout(ANSWER_TIMEOUT, object.batch_execute("ROLLBACK")).await {
                        Ok(Ok(())) => drop(object),
                        _ => hasty.close(object),
                    }
                    drop(room);
                });
            }
            // It may be in the midst of something: closed, the server gives that up.
            _ => self.hasty.close(object),
        }
    }
}

/// A pool of one's own, or one that was handed over.
struct Source {
    pool: Pool,
    /// The runtime that the pool belongs to, if it is not the caller's.
    runtime: Option<Handle>,
    servers: String,
}

/// Where connections come from.
pub(crate) struct Connections {
    source: Arc<Source>,
    room: Room,
    alarms: Arc<Alarms>,
    hasty: Arc<Hasty>,
    /// Whether the server has our functions, as far as is known.
    functions: Arc<AtomicBool>,
}

impl Connections {
    pub(crate) fn new(config: &Config) -> Result<Connections, Fault> {
        let (pool, runtime) = match &config.given {
            Some(given) => (given.pool.clone(), Some(given.runtime.clone())),
            None => (own_pool(config)?, None),
        };
        let source = Arc::new(Source { pool, runtime, servers: config.servers() });
        let room = Room::new(config.connections);
        let (alarms, hasty, functions) = (Arc::default(), Arc::default(), Arc::default());
        Ok(Connections { source, room, alarms, hasty, functions })
    }

    /// Whether the server has our functions, as far as is known.
    pub(crate) fn have_functions(&self) -> bool {
        self.functions.load(Ordering::Acquire)
    }

    pub(crate) fn set_functions(&self, are_there: bool) {
        self.functions.store(are_there, Ordering::Release);
    }

    /// Returns a connection that no other task uses.
    pub(crate) async fn lend(&self, want: Purpose) -> Result<PooledConnection, Fault> {
        let (alarms, hasty, functions) = (self.alarms.clone(), self.hasty.clone(), self.functions.clone());
        let connect = {
            let source = self.source.clone();
            move || source.clone().connection()
        };
        let lent = |object, room| PooledConnection {
            lent: Some(Lent { object, room }),
            alarm: None,
            doubt: None,
            alarms,
            hasty,
            functions,
            left: Left::Nothing,
        };
        let source = self.source.clone();
        self.room.lend(want, connect, lent, move |waited| source.late(waited)).await
    }
}

impl Source {
    /// Takes a connection out of the pool, which makes one if none is idle.
    async fn connection(self: Arc<Source>) -> Result<Object, Fault> {
        let object = match &self.runtime {
            None => self.pool.get().await,
            // The task that makes a connection has it on its runtime for as long as it lives.
            Some(runtime) => {
                let pool = self.pool.clone();
                let object = runtime.spawn(async move { pool.get().await }).await;
                object.map_err(|_| Fault::unavailable("the runtime of the pool has ended"))?
            }
        };
        object.map_err(|error| match error {
            PoolError::Backend(error) => self.not_connected(&error),
            error => Fault::unavailable(format!("{}: {error}", self.servers)),
        })
    }

    fn late(&self, waited: Duration) -> Fault {
        match self.runtime {
            Some(_) => Fault::Failed {
                kind: ErrorKind::Unavailable,
                message: format!("{} had no connection free within {waited:?}", self.servers),
                hint: "make the pool larger than the program uses, or let tenure connect by a URL of its own",
            },
            None => Fault::unavailable(format!("{}: no connection within {waited:?}", self.servers)),
        }
    }

    /// Says which server could not be connected with. The URL is not shown: it may have a password.
    fn not_connected(&self, error: &tokio_postgres::Error) -> Fault {
        match fault(error) {
            Fault::Failed { kind, message, hint } => {
                let message = format!("cannot connect to {}: {message}", self.servers);
                Fault::Failed { kind, message, hint }
            }
            Fault::Full(message) => Fault::Full(format!("cannot connect to {}: {message}", self.servers)),
            other => other,
        }
    }
}

fn own_pool(config: &Config) -> Result<Pool, Fault> {
    let recycling_method = RecyclingMethod::Fast;
    let manager = crate::client::tls::with_tls!(config, |server, tls| {
        Manager::from_config(server, tls, ManagerConfig { recycling_method })
    });
    // The one that was used last: what its process needs is still in the processor's caches.
    let pool = Pool::builder(manager).max_size(config.connections).queue_mode(QueueMode::Lifo).build();
    pool.map_err(|error| Fault::internal(error.to_string()))
}
