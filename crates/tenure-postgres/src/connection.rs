//! Connections: a few, lent for one transaction each.

use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use tenure_sql::{Connection, Fault, Row};
use tokio::time::timeout;
use tokio_postgres::SimpleQueryMessage;

use crate::config::Config;
use crate::error::fault;

/// How long an answer is waited for. The client above gives up after two seconds by itself.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1900);

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

pub(crate) async fn lend(pool: &Pool) -> Result<Lent, Fault> {
    match pool.get().await {
        Ok(object) => Ok(Lent(Some(object))),
        Err(PoolError::Backend(error)) => Err(fault(&error)),
        Err(PoolError::Timeout(_)) => {
            Err(Fault::unavailable(format!("no connection within {ANSWER_TIMEOUT:?}")))
        }
        Err(error) => Err(Fault::unavailable(error.to_string())),
    }
}
