//! The engine: what of it is MySQL's own.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tenure_core::Result;
use tenure_core::engine::queue::QueueCapability;
use tenure_core::engine::{Capability, Finding, Reach};
use tenure_core::model::claim::ClientId;
use tenure_sql::{
    Database, Fault, Hosted, Inbox, Notification, Plain, Purpose, QueueTables, Row, Tables, Versions,
};

use crate::client::connection::{Pool, PooledConnection};
use crate::config::Config;
use crate::dialect::MySqlDialect;
use crate::queues::Hints;
use crate::{doctor, migrate, plain};

const ENGINE: &str = "mysql";
/// How many claims, renewals or releases go into one transaction. Lists of more than a thousand are what servers
/// begin to turn into something else.
const BATCH_MAX: usize = 512;

/// A MySQL or MariaDB database with tenure's tables.
///
/// No example: it comes from `Config`, and is used by the client that connects with it.
pub struct MySql {
    pub(crate) pool: Arc<Pool>,
    pub(crate) config: Config,
    versions: Versions,
    capability: Capability,
    pub(crate) queue_capability: QueueCapability,
    pub(crate) queue_tables: QueueTables,
    /// Where the items are that this client has.
    pub(crate) hints: Hints,
    /// Whether the tables of the queues have a column of contexts, as far as this client knows.
    pub(crate) keeps_contexts: AtomicBool,
    inbox: Inbox,
}

/// Connects, and makes the tables if they are not there.
///
/// No example: users give a [`Config`] to a client, which calls it.
///
/// # Errors
/// [`Unavailable`](tenure_core::ErrorKind::Unavailable) if the server does not answer in time;
/// [`Invalid`](tenure_core::ErrorKind::Invalid) for a wrong password or database;
/// [`Unsupported`](tenure_core::ErrorKind::Unsupported) for missing rights, an old server, or tables of another version.
pub async fn connect(config: Config, client: ClientId) -> Result<Hosted<MySql>> {
    let pool = Pool::new(config.clone());
    let version = migrate::ensure(&pool, &config.prefix).await.map_err(|fault| fault.to_error("connect"))?;
    let mut capability = Capability::of_step();
    capability.reach = Reach::Network;
    capability.needs_floor = true;
    capability.batch_max = BATCH_MAX;
    // Neither server can notify a client, so a client looks for those of its waiters whose turn is near. Rejected: `SELECT SLEEP(…)`
    // and GET_LOCK to be woken by `KILL` or by a release (a connection for each waiter, and another user's rights), reading the
    // binary log (the rights of a replica), and more frequent heartbeats (each is a transaction). Waiters of the client that
    // releases are woken at once.
    capability.tells_waiters = false;
    let versions = Versions::new(&config.prefix, config.purges, version);
    let (inbox, purges) = (Inbox::new(client), config.purges);
    let (queue_capability, queue_tables) =
        (tenure_sql::queue_capability(false), QueueTables::new(&config.prefix));
    let hints = Hints::default();
    let keeps_contexts = AtomicBool::new(false);
    let database = MySql {
        pool,
        config,
        versions,
        capability,
        queue_capability,
        queue_tables,
        hints,
        keeps_contexts,
        inbox,
    };
    Ok(Hosted::with_queues(database, purges))
}

impl Database for MySql {
    type Dialect = MySqlDialect;
    type Connection = PooledConnection;

    const ENGINE: &'static str = ENGINE;

    async fn lend(&self, want: Purpose) -> std::result::Result<PooledConnection, Fault> {
        let doubt = self.versions.doubt(migrate::present(&self.pool, &self.config.prefix)).await?;
        let mut connection = self.pool.lend(want).await?;
        connection.leave_doubt(doubt);
        Ok(connection)
    }

    fn close(&self) {
        self.pool.close();
    }

    async fn run_plain(&self, work: Plain<'_>) -> Option<std::result::Result<Vec<Row>, Fault>> {
        plain::run(self, work).await
    }

    fn tables(&self) -> &Tables {
        self.versions.tables()
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    fn tell(&self, _: &[Notification]) -> Option<String> {
        // No client could hear it. Other clients look for their waiters.
        None
    }

    fn hears(&self) -> bool {
        false
    }

    async fn check(&self) -> Vec<Finding> {
        match migrate::present(&self.pool, &self.config.prefix).await {
            Ok(version) => self.versions.set(version),
            Err(fault) => tracing::debug!(?fault, "the version of the tables cannot be read"),
        }
        let version = migrate::version(&self.pool, &self.tables().version);
        doctor::check(self, &self.config.prefix, version).await
    }

    async fn migrate(&self) -> std::result::Result<Option<String>, Fault> {
        let version = migrate::migrate(&self.pool, &self.config.prefix).await?;
        self.versions.set(version);
        migrate::migrate_queues(&self.pool, &self.config.prefix).await?;
        Ok(Some(format!("the tables {}… are of version {version}", self.config.prefix)))
    }
}

impl std::fmt::Debug for MySql {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySql").field("config", &self.config).finish_non_exhaustive()
    }
}
