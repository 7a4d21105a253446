//! The settings of the engine, and its URLs.

use std::path::PathBuf;
use std::time::Duration;

use deadpool_postgres::Pool;
use tenure_core::engine::url::{Settings, UrlSyntax};
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_sql::identifier;
use tokio::runtime::Handle;
use tokio_postgres::config::{Host, SslMode, SslNegotiation, TargetSessionAttrs};

const URL: UrlSyntax = UrlSyntax {
    engine: "postgres",
    hint: "write `postgres://user:password@host/database`, and in a user or a password `/`, `?`, `@` and `%` as %2F, %3F, %40 and %25",
};

/// The settings that are not PostgreSQL's.
const OWN: [&str; 6] = ["schema", "prefix", "connections", "purge", "listen", "ca"];

/// How many connections are used at most, however many locks are held. One more listens.
const CONNECTIONS: usize = 5;
/// How long it takes to connect at most.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// A connection on which nothing comes is tried after so long, and so often again. A client that only listens would
/// not notice otherwise that the server is gone. (The client's own default is two hours.)
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
    /// `sslmode=require` and `ca` each use TLS or do not connect, and check the certificate. `sslmode=prefer` is
    /// refused: an attacker in between could have it fall back to a connection without. Without TLS the password is
    /// never sent as it is, only a proof of it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (ours, theirs): (Vec<&str>, Vec<&str>) = query
            .split('&')
            .filter(|part| !part.is_empty())
            .partition(|part| OWN.contains(&name_and_value(part).0));
        for part in &theirs {
            match name_and_value(part) {
                ("sslmode", "disable" | "require") => {}
                ("sslmode", _) => {
                    return Err(URL.invalid("`sslmode` is neither `require` nor `disable`").with_hint(
                        "`require` uses TLS or does not connect, and checks the certificate; `prefer` would fall back to none",
                    ));
                }
                // The client would read it as the setting that it stands for, and nothing here would see it.
                (name, _) if name.contains('%') => {
                    return Err(URL.invalid("the name of a setting is written with %"));
                }
                _ => {}
            }
        }
        let url = if theirs.is_empty() { base.to_owned() } else { format!("{base}?{}", theirs.join("&")) };
        let server: tokio_postgres::Config =
            url.parse().map_err(|_| URL.invalid("it is none of PostgreSQL's"))?;
        // `postgres://me:a@b@host/`: what stands there as a host would be the rest of the password.
        let is_strange = |host: &Host| matches!(host, Host::Tcp(host) if host.contains('@'));
        if server.get_hosts().is_empty() || server.get_hosts().iter().any(is_strange) {
            return Err(URL.invalid("it names no host"));
        }
        let is_set = |setting: &str| theirs.iter().any(|part| name_and_value(part).0.contains(setting));
        let mut config = Config::of(server, is_set);
        config.apply(Settings::parse(URL, &ours.join("&"))?)?;
        Ok(config)
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
    /// What it does not do: listen. The client looks for its waiters by itself, at the head of a line every 20 to
    /// 200 ms. With a URL beside it one connection more listens: [`with_pool`](Config::with_pool).
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
        self.apply(Settings::none(URL).with(name, value))?;
        Ok(self)
    }

    fn apply(&mut self, mut settings: Settings) -> Result<()> {
        self.schema = identifier(&mut settings, "schema")?.or(self.schema.take());
        if let Some(prefix) = identifier(&mut settings, "prefix")? {
            self.own_prefix = prefix;
        }
        self.connections = settings.number("connections", 1..=64)?.unwrap_or(self.connections);
        self.purges = settings.switch("purge")?.unwrap_or(self.purges);
        let listens = settings.switch("listen")?;
        if listens == Some(true) && self.server.get_hosts().is_empty() {
            return Err(settings.invalid("`listen` needs a server, and only a pool is known"));
        }
        self.listens = listens.unwrap_or(self.listens);
        if let Some(ca) = settings.file("ca")? {
            if self.server.get_ssl_mode() == SslMode::Disable {
                return Err(settings
                    .invalid("`ca` asks for TLS, and `sslmode=disable` for none")
                    .with_hint("leave one of them out"));
            }
            self.ca = Some(ca);
            self.server.ssl_mode(SslMode::Require);
        }
        self.prefix = match &self.schema {
            Some(schema) => format!("{schema}.{}", self.own_prefix),
            None => self.own_prefix.clone(),
        };
        if self.prefix.len() > PREFIX_BYTES_MAX {
            return Err(settings
                .invalid(format!("`schema` and `prefix` have more than {PREFIX_BYTES_MAX} bytes together")));
        }
        settings.finish()
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

    /// The settings as the client takes them, without TLS in them: the stream is then
    /// [`Open`](crate::client::open::Open), which the client uses only in the place of a private one, without a
    /// handshake. Sockets of this machine are private.
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

fn name_and_value(part: &str) -> (&str, &str) {
    part.split_once('=').unwrap_or((part, ""))
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
