//! Connections: a few, lent for one transaction each.
//!
//! Statements are sent as plain text: a pooler in transaction mode knows no names that were given on another connection.

use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use tenure_sql::{Connection, Fault, Row};
use tokio::time::timeout;
use tokio_postgres::SimpleQueryMessage;

use crate::config::Config;
use crate::error::fault;

/// How long an answer, or a connection, is waited for. The client above gives a claim up after 2 s by itself; a fault that
/// came just before would have it ask once more, and tell its user after twice the time.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(2500);

/// A connection that goes back only if nothing went wrong on it.
pub struct Lent(Option<Object>);

impl Connection for Lent {
    async fn run(&mut self, script: String) -> Result<Vec<Vec<Row>>, Fault> {
        let Some(client) = &self.0 else { return Err(Fault::internal("the connection is gone")) };
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
        drop(self.0.take());
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // It may be in the midst of something: closed, the server gives that up.
        if let Some(object) = self.0.take() {
            drop(Object::take(object));
        }
    }
}

pub(crate) fn pool(config: &Config) -> Result<Pool, Fault> {
    let recycling_method = RecyclingMethod::Fast;
    let manager = crate::engine::with_tls!(config, |tls| {
        Manager::from_config(config.server.clone(), tls, ManagerConfig { recycling_method })
    });
    let timeouts =
        Timeouts { wait: Some(ANSWER_TIMEOUT), create: Some(ANSWER_TIMEOUT), recycle: Some(ANSWER_TIMEOUT) };
    let pool = Pool::builder(manager)
        .max_size(config.connections)
        .timeouts(timeouts)
        .runtime(Runtime::Tokio1)
        .build();
    pool.map_err(|error| Fault::internal(error.to_string()))
}

/// Returns a connection that nobody else uses.
pub(crate) async fn lend(pool: &Pool, config: &Config) -> Result<Lent, Fault> {
    match pool.get().await {
        Ok(object) => Ok(Lent(Some(object))),
        Err(PoolError::Backend(error)) => Err(not_connected(&error, config)),
        Err(PoolError::Timeout(_)) => {
            let servers = config.servers();
            Err(Fault::unavailable(format!("{servers}: no connection within {ANSWER_TIMEOUT:?}")))
        }
        Err(error) => Err(Fault::unavailable(format!("{}: {error}", config.servers()))),
    }
}

/// Says which server could not be connected with. The URL is not shown: it may have a password.
fn not_connected(error: &tokio_postgres::Error, config: &Config) -> Fault {
    match fault(error) {
        Fault::Failed { kind, message, hint } => {
            let message = format!("cannot connect with {}: {message}", config.servers());
            Fault::Failed { kind, message, hint }
        }
        other => other,
    }
}
