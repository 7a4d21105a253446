//! The engine: what of it is PostgreSQL's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::engine::queue::QueueCapability;
use tenure_core::engine::{Capability, Finding, Reach};
use tenure_core::model::claim::ClientId;
use tenure_core::{ErrorKind, Result};
use tenure_sql::{
    Connection, Database, Fault, Hosted, Inbox, Notification, Plain, Purpose, Row, Tables,
    VERSION_WITH_HOLDS, Versions,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::connection::{Connections, PooledConnection};
use crate::client::wake::{WakeListener, changes_channel, echo, listen, notify_statement, own_channel};
use crate::config::Config;
use crate::dialect::PostgresDialect;
use crate::plain::PlainTexts;
use crate::queues::{Loners, Texts};
use crate::statement::{Function, Plans, Statement};
use crate::{doctor, functions, migrate, plain};

const ENGINE: &str = "postgres";
/// How many claims, renewals or releases go into one transaction.
const BATCH_MAX: usize = 512;
/// How many calls of a verb are under way at a time.
const CALLS_MAX: usize = 2;
/// How long one waits for what one said to oneself. What takes longer will not come.
const ECHO_MAX: Duration = Duration::from_millis(500);
/// Or so many times what it took to connect, which is longer where the server or this machine has much to do.
const ECHO_CONNECTS: u32 = 4;
const ECHO_CROWD_MAX: Duration = Duration::from_secs(10);
/// When it is said again, and twice as late each time.
const ECHO_AGAIN: Duration = Duration::from_millis(30);
/// How long a new client waits for its listener to leave a pooler's connection. It goes on trying behind that.
const UNLISTEN_WAIT: Duration = Duration::from_millis(200);
/// How long a server that has no room for both connections of a client is asked again, and when, about.
const FULL_WAIT: Duration = Duration::from_millis(1800);
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// A PostgreSQL database with tenure's tables.
///
/// No example: it comes from `Config`, and is used by the client that connects with it.
pub struct Postgres {
    pub(crate) connections: Connections,
    pub(crate) config: Config,
    /// What the names of the tables begin with.
    pub(crate) place: String,
    versions: Versions,
    plain_texts: PlainTexts,
    /// The same for tables of version 1.
    plain_texts_of_old: PlainTexts,
    capability: Capability,
    pub(crate) queue_capability: QueueCapability,
    pub(crate) texts: Texts,
    /// The same for tables of the queues that an older version made, while they have no column of contexts.
    pub(crate) texts_of_old: Texts,
    pub(crate) keeps_contexts: AtomicBool,
    pub(crate) loners: Loners,
    inbox: Arc<Inbox>,
    ear: Arc<WakeListener>,
    listener: Option<JoinHandle<()>>,
}

/// Connects, and makes the tables if they are not there.
///
/// No example: users give a [`Config`] to a client, which calls it.
///
/// # Errors
/// [`Unavailable`](tenure_core::ErrorKind::Unavailable) if the server does not answer in time;
/// [`Invalid`](tenure_core::ErrorKind::Invalid) for a wrong password or database;
/// [`Unsupported`](tenure_core::ErrorKind::Unsupported) for missing rights or tables of another version.
pub async fn connect(config: Config, client: ClientId) -> Result<Hosted<Postgres>> {
    // Each client needs two connections. In a crowd that fills the server, whoever kept the one that it has while it asks for
    // the other would keep it from all who do the same: so it gives back what it has, and begins again.
    let until = Instant::now() + FULL_WAIT;
    let database = loop {
        match connect_once(config.clone(), client).await {
            Err(Fault::Full(_)) if Instant::now() < until => {
                tenure_sql::pause(FULL_PAUSE.mul_f64(0.5 + fastrand::f64())).await;
            }
            connected => break connected.map_err(|fault| fault.to_error("connect"))?,
        }
    };
    let purges = database.config.purges;
    Ok(Hosted::with_queues(database, purges))
}

async fn connect_once(config: Config, client: ClientId) -> std::result::Result<Postgres, Fault> {
    let began = Instant::now();
    let connections = Connections::new(&config)?;
    let place = migrate::place(&connections, &config).await?;
    let version = migrate::ensure(&connections, &place).await?;
    let (inbox, ear) = (Arc::new(Inbox::new(client)), Arc::new(WakeListener::default()));
    let channels = [own_channel(&config.prefix, client), changes_channel(&config.prefix)];
    let listener = config
        .listens
        .then(|| tokio::spawn(listen(config.clone(), channels.clone(), inbox.clone(), ear.clone())));
    let mut capability = Capability::of_step();
    capability.reach = Reach::Network;
    capability.needs_floor = true;
    capability.tells_waiters = false;
    capability.batch_max = BATCH_MAX;
    capability.calls_max = CALLS_MAX;
    capability.keeps_call_order = false;
    let versions = Versions::new(&place, config.purges, version);
    let [plain_texts, plain_texts_of_old] = [Tables::with_holds(&place), Tables::new(&place)]
        .map(|tables| PlainTexts::new(&place, &Tables { deletes: config.purges, ..tables }));
    let [texts, texts_of_old] = [true, false].map(|keeps| Texts::new(&place, &config.prefix, keeps));
    let queue_capability = tenure_sql::queue_capability(false);
    let loners = Loners::default();
    let mut database = Postgres {
        connections,
        place,
        versions,
        plain_texts,
        plain_texts_of_old,
        capability,
        queue_capability,
        texts,
        texts_of_old,
        keeps_contexts: AtomicBool::new(false),
        loners,
        inbox,
        ear,
        listener,
        config,
    };
    if database.config.listens {
        // In a crowd all takes longer than a pooler would be waited for, and a client that believes in one hears
        // nothing all its life.
        let patience = ECHO_MAX.max(ECHO_CONNECTS * began.elapsed()).min(ECHO_CROWD_MAX);
        database.listen_to_oneself(&channels[0], patience).await?;
    }
    if !database.owns_sessions() && version == VERSION_WITH_HOLDS {
        let are_there =
            functions::ensure(&database.connections, &database.place, &database.functions()).await;
        database.connections.set_functions(are_there);
    }
    Ok(database)
}

impl Postgres {
    /// Returns the statements of the short path for the tables as they are, as far as this client knows.
    pub(crate) fn plain_texts(&self) -> &PlainTexts {
        if self.tables().keeps_holds { &self.plain_texts } else { &self.plain_texts_of_old }
    }

    /// Whether this client alone uses the server's side of a connection: no pooler lies between, as far as can be
    /// known.
    pub(crate) fn owns_sessions(&self) -> bool {
        self.config.given.is_none() && self.hears()
    }

    /// Where the server keeps the plans of statements.
    pub(crate) fn plans(&self) -> Plans {
        match (self.owns_sessions(), self.connections.have_functions()) {
            (true, _) => Plans::Prepared,
            (_, true) => Plans::Functions,
            (_, false) => Plans::Nowhere,
        }
    }

    /// Returns the statements of which there are functions.
    fn functions(&self) -> Vec<&Function> {
        let all = self.plain_texts.all().into_iter().chain(self.texts.functions());
        all.filter_map(Statement::as_function).collect()
    }

    /// Sends a notification to oneself, by another connection: a client that does not hear it sits behind a pooler in
    /// transaction mode, and looks for its waiters by itself.
    async fn listen_to_oneself(
        &mut self,
        channel: &str,
        patience: Duration,
    ) -> std::result::Result<(), Fault> {
        // A pooler's LISTEN is answered as a server's is. What is said before that is not heard.
        if tokio::time::timeout(patience, self.ear.tried.notified()).await.is_ok()
            && let Some(full) = self.ear.full()
        {
            return Err(full);
        }
        let until = Instant::now() + patience;
        // Twice: behind a pooler, the first could come while LISTEN itself is still answered, and no other one after it.
        let (mut echoes, mut again) = (0, ECHO_AGAIN);
        // Any role may send on this channel: only the client that made this number can send it.
        let echo = echo(fastrand::u64(..));
        self.ear.expects(&echo);
        while echoes < 2 && Instant::now() < until {
            let heard = self.ear.heard.notified();
            let mut connection = self.connections.lend(Purpose::Any).await?;
            let said = connection.run(format!("SELECT pg_notify('{channel}', '{echo}')")).await;
            if let Err(Fault::Failed { kind: ErrorKind::Unsupported, .. }) = said {
                break;
            }
            said?;
            connection.keep();
            // A pooler may have given it to another connection.
            match tokio::time::timeout(again, heard).await {
                Ok(()) => echoes += 1,
                // Each notification wakes all listeners, so a crowd that asks for it too often is never answered.
                Err(_) => again *= 2,
            }
        }
        if echoes == 2 {
            self.ear.hears.store(true, Ordering::Release);
            self.capability.tells_waiters = true;
            self.queue_capability.tells_consumers = true;
            return Ok(());
        }
        // What it would listen on is another's connection, which must not go on hearing for a client that is gone.
        self.ear.over.notify_one();
        if let Some(listener) = self.listener.take()
            && tokio::time::timeout(UNLISTEN_WAIT, listener).await.is_err()
        {
            tracing::debug!("the pooler still has a connection that listens: it is asked for on");
        }
        tracing::warn!(
            "no notification comes through (a pooler, or no right to pg_notify): this client looks for its waiters by itself"
        );
        Ok(())
    }
}

impl Database for Postgres {
    type Dialect = PostgresDialect;
    type Connection = PooledConnection;

    const ENGINE: &'static str = ENGINE;

    async fn lend(&self, want: Purpose) -> std::result::Result<PooledConnection, Fault> {
        let doubt = self.versions.doubt(migrate::present(&self.connections, &self.place)).await?;
        let mut connection = self.connections.lend(want).await?;
        connection.leave_doubt(doubt);
        Ok(connection)
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

    fn tell(&self, notifications: &[Notification]) -> Option<String> {
        Some(notify_statement(&self.config.prefix, notifications))
    }

    fn hears(&self) -> bool {
        self.ear.hears.load(Ordering::Acquire)
    }

    async fn check(&self) -> Vec<Finding> {
        match migrate::present(&self.connections, &self.place).await {
            Ok(version) => self.versions.set(version),
            Err(fault) => tracing::debug!(?fault, "the version of the tables cannot be read"),
        }
        doctor::check(self, &self.config, self.plans()).await
    }

    async fn migrate(&self) -> std::result::Result<Option<String>, Fault> {
        let version = migrate::migrate(&self.connections, &self.place).await?;
        self.versions.set(version);
        migrate::migrate_queues(&self.connections, &self.place).await?;
        let are_there = functions::ensure(&self.connections, &self.place, &self.functions()).await;
        self.connections.set_functions(are_there && !self.owns_sessions());
        Ok(Some(format!("the tables {}… are of version {version}", self.place)))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres").field("prefix", &self.config.prefix).finish_non_exhaustive()
    }
}
