//! The settings of the engine, and its URLs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use tenure_core::engine::{Connect, Engine};
use tenure_core::error::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio_postgres::config::{Host, SslMode, SslNegotiation, TargetSessionAttrs};

/// The settings that are not PostgreSQL's.
const OWN: [&str; 6] = ["schema", "prefix", "connections", "purge", "listen", "ca"];

/// How many connections are used at most, however many locks are held. One more listens.
const CONNECTIONS: usize = 5;
/// How long it takes to connect at most.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// A connection on which nothing comes is tried after so long, and so often again. Whoever only listens would not notice
/// otherwise that the server is gone. (The client's own default is two hours.)
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);
/// The client's own default, by which a setting that its user has not changed is known.
const KEEPALIVE_THEIRS: Duration = Duration::from_secs(2 * 60 * 60);
const PREFIX: &str = "tenure_";
/// The longest prefix, with its schema: it begins the names of channels, of which PostgreSQL takes 63 bytes and a client's id
/// needs 16.
const PREFIX_BYTES_MAX: usize = 47;

/// How to connect to the engine.
#[derive(Clone)]
pub struct Config {
    pub(crate) server: tokio_postgres::Config,
    /// Whose connections are used instead of own ones.
    pub(crate) given: Option<Given>,
    pub(crate) ca: Option<PathBuf>,
    schema: Option<String>,
    own_prefix: String,
    /// What the names of channels begin with: the schema, if one is set, and the prefix. Those of tables always have a schema.
    pub(crate) prefix: String,
    pub(crate) connections: usize,
    pub(crate) purges: bool,
    pub(crate) listens: bool,
}

/// A pool that its user has handed over.
#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) pool: Pool,
    /// Its user's: new connections live there, and not on tenure's own thread, which ends before the pool does.
    pub(crate) runtime: Handle,
}

impl Config {
    /// Reads a URL: `postgres://[user[:password]@]host[:5432][,host]/database`, with settings after `?`.
    ///
    /// Its own settings are `schema` (default: the first of the user's search path), `prefix` of the tables
    /// (`tenure_`), `connections` (5, and one that listens), `purge` (`on`; `off` deletes nothing),
    /// `listen` (`on`; `off` where a pooler in transaction mode lies between) and `ca` (a file with root certificates).
    /// All others are those of PostgreSQL itself: `sslmode`, `application_name`, `options`, `target_session_attrs`.
    ///
    /// `sslmode=require` and `ca` each use TLS or do not connect, and check the certificate. `sslmode=prefer` is refused:
    /// whoever stands between could have it fall back to a connection without. Without TLS the password is never sent as
    /// it is, only a proof of it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let parts = || query.split('&').filter(|part| !part.is_empty());
        for part in parts() {
            match part.split_once('=').unwrap_or((part, "")) {
                ("sslmode", "disable" | "require") => {}
                ("sslmode", _) => {
                    return Err(invalid("`sslmode` is neither `require` nor `disable`").with_hint(
                        "`require` uses TLS or does not connect, and checks the certificate; `prefer` would fall back to none",
                    ));
                }
                // The client would read it as the setting that it stands for, and nothing here would see it.
                (name, _) if name.contains('%') => {
                    return Err(invalid("the name of a setting is written with %"));
                }
                _ => {}
            }
        }
        let (ours, theirs): (Vec<_>, Vec<_>) = parts()
            .map(|part| (part, part.split_once('=').unwrap_or((part, ""))))
            .partition(|(_, (name, _))| OWN.contains(name));
        let theirs: Vec<&str> = theirs.into_iter().map(|(part, _)| part).collect();
        let url = if theirs.is_empty() { base.to_owned() } else { format!("{base}?{}", theirs.join("&")) };
        // What is wrong is not shown: it may be a piece of a password.
        let server: tokio_postgres::Config = url.parse().map_err(|_| {
            invalid("it is none of PostgreSQL's")
                .with_hint("write postgres://user:password@host/database, and % signs as %25")
        })?;
        // `postgres://me:a@b@host/`: what stands there as a host would be the rest of the password.
        let is_strange = |host: &Host| matches!(host, Host::Tcp(host) if host.contains('@'));
        if server.get_hosts().is_empty() || server.get_hosts().iter().any(is_strange) {
            return Err(invalid("it names no host").with_hint("write @ in a password as %40"));
        }
        let config = Config::of(server, |name| query.contains(name));
        ours.into_iter().try_fold(config, |config, (_, (name, value))| config.with(name, value))
    }

    /// Connects as the settings of a client say that the program already has. TLS is used with
    /// [`SslMode::Require`](tokio_postgres::config::SslMode), or with [`ca`](Config::with).
    pub fn new(server: tokio_postgres::Config) -> Config {
        let (idle, attrs) = (server.get_keepalives_idle(), server.get_target_session_attrs());
        Config::of(server, |name| match name {
            "keepalives" => idle != KEEPALIVE_THEIRS,
            _ => attrs != TargetSessionAttrs::Any,
        })
    }

    /// Uses connections of a pool that the program already has, and makes none of its own. Call it on the tokio runtime
    /// that the pool is used on, and keep that runtime running: new connections of the pool live there.
    ///
    /// At most [`connections`](Config::with) of the pool (5) are in use at a time, each for one transaction, never one
    /// that the program has taken out. One on which anything went wrong is taken out of the pool and closed.
    ///
    /// What it does not do: listen. Waiters of other processes ask for themselves, each third of their confirm
    /// window (1.7 s at most). With a URL beside it one connection more listens: [`with_pool`](Config::with_pool).
    /// And leases live as long as the pool has a connection to renew them: while the program has all of them taken out,
    /// or blocks that runtime, claims fail with [`ErrorKind::Unavailable`] after 2 s, and leases are lost at their deadlines.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] outside of a tokio runtime.
    ///
    /// # Cost
    /// The same round trips as without, and for each a change of threads.
    pub fn from_pool(pool: Pool) -> Result<Config> {
        let config = Config::of(tokio_postgres::Config::new(), |_| true);
        Config { listens: false, ..config }.with_pool(pool)
    }

    /// Uses connections of a pool, as [`from_pool`](Config::from_pool) does, and only listens by a connection of its own.
    /// The pool must be of the same database.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] outside of a tokio runtime.
    pub fn with_pool(mut self, pool: Pool) -> Result<Config> {
        let runtime = Handle::try_current().map_err(|_| {
            let error = Error::new(ErrorKind::Invalid, "connect", "a pool is handed over outside of tokio");
            error.with_hint("do it on the runtime that the pool is used on")
        })?;
        self.given = Some(Given { pool, runtime });
        Ok(self)
    }

    /// Changes a setting, by the name and the value that it has in a URL: `config.with("prefix", "locks_")?`. Settings
    /// are `schema`, `prefix`, `connections`, `purge`, `listen` and `ca`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for another name, or a value that it does not take.
    pub fn with(mut self, name: &str, value: &str) -> Result<Config> {
        match name {
            "schema" => self.schema = Some(identifier("schema", value)?),
            "prefix" => self.own_prefix = identifier("prefix", value)?,
            "connections" => {
                let count = value.parse().ok().filter(|count| (1..=64).contains(count));
                self.connections =
                    count.ok_or_else(|| invalid("`connections` is not a number from 1 to 64"))?;
            }
            "purge" => self.purges = switch("purge", value)?,
            "listen" => {
                self.listens = switch("listen", value)?;
                if self.listens && self.server.get_hosts().is_empty() {
                    return Err(invalid("`listen` needs a server, and only a pool is known"));
                }
            }
            "ca" if self.server.get_ssl_mode() == SslMode::Disable => {
                return Err(invalid("`ca` asks for TLS, and `sslmode=disable` for none")
                    .with_hint("leave one of them out"));
            }
            "ca" => {
                self.ca = Some(PathBuf::from(value));
                self.server.ssl_mode(SslMode::Require);
            }
            _ => {
                return Err(
                    invalid("a setting is none").with_hint(format!("settings are {}", OWN.join(", ")))
                );
            }
        }
        self.prefix = match &self.schema {
            Some(schema) => format!("{schema}.{}", self.own_prefix),
            None => self.own_prefix.clone(),
        };
        if self.prefix.len() > PREFIX_BYTES_MAX {
            return Err(invalid(&format!(
                "`schema` and `prefix` have more than {PREFIX_BYTES_MAX} bytes together"
            )));
        }
        Ok(self)
    }

    /// Settings for a server; `is_set` says what of PostgreSQL's own its user has decided.
    fn of(mut server: tokio_postgres::Config, is_set: impl Fn(&str) -> bool) -> Config {
        if server.get_application_name().is_none() {
            server.application_name("tenure");
        }
        if server.get_connect_timeout().is_none() {
            server.connect_timeout(CONNECT_TIMEOUT);
        }
        if !is_set("keepalives") {
            let (idle, interval, retries) = KEEPALIVE;
            server.keepalives_idle(idle).keepalives_interval(interval).keepalives_retries(retries);
        }
        if server.get_hosts().len() > 1 && !is_set("target_session_attrs") {
            // Of several servers, the one that grants.
            server.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        Config {
            server,
            given: None,
            ca: None,
            schema: None,
            own_prefix: PREFIX.to_owned(),
            prefix: PREFIX.to_owned(),
            connections: CONNECTIONS,
            purges: true,
            listens: true,
        }
    }

    /// Whether the settings say where the tables are.
    pub(crate) fn has_schema(&self) -> bool {
        self.schema.is_some()
    }

    /// Whether it is TLS or nothing. There is nothing in between: what is preferred can be talked out of it.
    pub(crate) fn is_tls(&self) -> bool {
        self.server.get_ssl_mode() == SslMode::Require
    }

    /// The settings as the client takes them, where it is told of no TLS: the stream is then [`Open`](crate::open::Open), which
    /// the client uses only in the place of a private one, without a handshake. Sockets of this machine are private.
    pub(crate) fn without_tls(&self) -> tokio_postgres::Config {
        let mut server = self.server.clone();
        server.ssl_mode(SslMode::Disable);
        if server.get_hosts().iter().all(|host| matches!(host, Host::Tcp(_))) {
            server.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        }
        server
    }

    /// The servers, as a message may name them.
    pub(crate) fn servers(&self) -> String {
        if self.given.is_some() {
            return "the pool that was handed over".to_owned();
        }
        let ports = self.server.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let hosts = self.server.get_hosts().iter().enumerate().map(|(at, host)| match host {
            Host::Tcp(host) => format!("{host}:{}", port(at)),
            Host::Unix(directory) => format!("{}, port {}", directory.display(), port(at)),
        });
        hosts.collect::<Vec<_>>().join(" or ")
    }
}

impl From<Config> for Connect {
    /// What [`Tenure::new`](tenure_core::Tenure::new) takes. Nothing is tried yet.
    fn from(config: Config) -> Connect {
        Box::new(move |client| {
            Box::pin(async move {
                let engine: Arc<dyn Engine> = Arc::new(crate::connect(config, client).await?);
                Ok(engine)
            })
        })
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, "connect", format!("the URL or a setting of the engine is wrong: {what}"))
}

/// Names of tables stand in statements as they are.
fn identifier(what: &str, text: &str) -> Result<String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if text.is_empty()
        || text.len() > 32
        || !text.chars().all(is_plain)
        || text.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(invalid(&format!("`{what}` is not 1 to 32 of a-z, 0-9 and _")));
    }
    Ok(text.to_owned())
}

fn switch(what: &str, value: &str) -> Result<bool> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(invalid(&format!("`{what}` is neither `on` nor `off`"))),
    }
}

#[cfg(test)]
mod tests;
