//! Connections: a few, lent for one transaction each.
//!
//! Statements are sent as plain text: a pooler in transaction mode knows no names that were given on another connection.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod};
use tenure_core::error::ErrorKind;
use tenure_sql::{Connection, Fault, Row};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_postgres::SimpleQueryMessage;

use crate::config::Config;
use crate::error::fault;

/// How long an answer, or a connection, is waited for. The client above gives a claim up after 2 s by itself; a fault that
/// came just before would have it ask once more, and tell its user after twice the time.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(2500);

/// A connection that goes back only if nothing went wrong on it.
pub struct Lent {
    // Given back before there is room for another.
    object: Option<Object>,
    _room: OwnedSemaphorePermit,
}

impl Connection for Lent {
    async fn run(&mut self, script: String) -> Result<Vec<Vec<Row>>, Fault> {
        let Some(client) = &self.object else { return Err(Fault::internal("the connection is gone")) };
        let answers = timeout(ANSWER_TIMEOUT, client.simple_query(&script)).await;
        let messages =
            answers.map_err(|_| Fault::unavailable(format!("no answer within {ANSWER_TIMEOUT:?}")))?;
        let mut answers = vec![Vec::new()];
        for message in messages.map_err(|error| fault(&error))? {
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
        drop(self.object.take());
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // It may be in the midst of something: closed, the server gives that up.
        if let Some(object) = self.object.take() {
            drop(Object::take(object));
        }
    }
}

/// Where connections come from: a pool of one's own, or one that was handed over.
pub(crate) struct Connections {
    pool: Pool,
    /// The runtime that the pool belongs to, if that is somebody else's.
    runtime: Option<Handle>,
    room: Arc<Semaphore>,
    servers: String,
}

impl Connections {
    pub(crate) fn new(config: &Config) -> Result<Connections, Fault> {
        let (pool, runtime) = match &config.given {
            Some(given) => (given.pool.clone(), Some(given.runtime.clone())),
            None => (own_pool(config)?, None),
        };
        let room = Arc::new(Semaphore::new(config.connections));
        Ok(Connections { pool, runtime, room, servers: config.servers() })
    }

    /// Returns a connection that nobody else uses.
    pub(crate) async fn lend(&self) -> Result<Lent, Fault> {
        let late =
            || Fault::unavailable(format!("{}: no connection within {ANSWER_TIMEOUT:?}", self.servers));
        let lent = async {
            let room = self.room.clone().acquire_owned().await;
            let room = room.map_err(|_| Fault::internal("the connections are closed"))?;
            let object = match &self.runtime {
                None => self.pool.get().await,
                // Whoever makes a connection has it on its runtime for as long as it lives.
                Some(runtime) => {
                    let pool = self.pool.clone();
                    let object = runtime.spawn(async move { pool.get().await }).await;
                    object.map_err(|_| Fault::unavailable("the runtime of the pool has ended"))?
                }
            };
            match object {
                Ok(object) => Ok(Lent { object: Some(object), _room: room }),
                Err(PoolError::Backend(error)) => Err(self.not_connected(&error)),
                Err(PoolError::Timeout(_)) => Err(late()),
                Err(error) => Err(Fault::unavailable(format!("{}: {error}", self.servers))),
            }
        };
        match timeout(ANSWER_TIMEOUT, lent).await {
            Ok(lent) => lent,
            Err(_) if self.runtime.is_some() => Err(Fault::Failed {
                kind: ErrorKind::Unavailable,
                message: format!("{} had no connection free within {ANSWER_TIMEOUT:?}", self.servers),
                hint: "make the pool larger than the program uses, or let tenure connect by a URL of its own",
            }),
            Err(_) => Err(late()),
        }
    }

    /// Says which server could not be connected with. The URL is not shown: it may have a password.
    fn not_connected(&self, error: &tokio_postgres::Error) -> Fault {
        match fault(error) {
            Fault::Failed { kind, message, hint } => {
                let message = format!("cannot connect with {}: {message}", self.servers);
                Fault::Failed { kind, message, hint }
            }
            other => other,
        }
    }
}

fn own_pool(config: &Config) -> Result<Pool, Fault> {
    let recycling_method = RecyclingMethod::Fast;
    let manager = crate::engine::with_tls!(config, |tls| {
        Manager::from_config(config.server.clone(), tls, ManagerConfig { recycling_method })
    });
    let pool = Pool::builder(manager).max_size(config.connections).build();
    pool.map_err(|error| Fault::internal(error.to_string()))
}
