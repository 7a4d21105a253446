//! The settings of the engine, and its URLs.

use std::path::PathBuf;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, Result};
use tokio_postgres::config::{Host, TargetSessionAttrs};

/// How many connections are used at most, however many locks are held. One more listens.
const CONNECTIONS: usize = 4;
/// How long it takes to connect at most.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// A connection on which nothing comes is tried after so long, and so often again. Whoever only listens would not notice
/// otherwise that the server is gone. (The client's own default is two hours.)
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);
const PREFIX: &str = "tenure_";
/// The longest prefix, with its schema: it begins the names of channels, of which PostgreSQL takes 63 bytes and a client's id
/// needs 16.
const PREFIX_BYTES_MAX: usize = 47;

/// How to connect to the engine.
#[derive(Clone)]
pub struct Config {
    pub(crate) server: tokio_postgres::Config,
    pub(crate) is_tls: bool,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) prefix: String,
    pub(crate) connections: usize,
    pub(crate) purges: bool,
    pub(crate) listens: bool,
}

impl Config {
    /// Reads a URL: `postgres://[user[:password]@]host[:5432][,host]/database`, with settings after `?`.
    ///
    /// Its own settings are `schema` (default: the first of the user's search path), `prefix` of the tables
    /// (`tenure_`), `connections` (4, and one that listens), `purge` (`on`; `off` leaves idle rows marked),
    /// `listen` (`on`; `off` where a pooler in transaction mode lies between) and `ca` (a file with root certificates).
    /// All others are those of PostgreSQL itself: `sslmode`, `application_name`, `options`, `target_session_attrs`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut schema, mut prefix, mut theirs) = (None, PREFIX.to_owned(), Vec::new());
        let (mut connections, mut purges, mut listens, mut ca) = (CONNECTIONS, true, true, None);
        let mut is_tls = false;
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            match key {
                "schema" => schema = Some(identifier("schema", value)?),
                "prefix" => prefix = identifier("prefix", value)?,
                "connections" => {
                    connections = value
                        .parse()
                        .ok()
                        .filter(|count| (1..=64).contains(count))
                        .ok_or_else(|| invalid("`connections` is not a number from 1 to 64"))?;
                }
                "purge" => purges = switch("purge", value)?,
                "listen" => listens = switch("listen", value)?,
                "ca" => ca = Some(PathBuf::from(value)),
                "sslmode" => {
                    is_tls = value != "disable";
                    theirs.push(part);
                }
                _ => theirs.push(part),
            }
        }
        let url = if theirs.is_empty() { base.to_owned() } else { format!("{base}?{}", theirs.join("&")) };
        // What is wrong is not shown: it may be a piece of a password.
        let mut server: tokio_postgres::Config = url.parse().map_err(|_| {
            invalid("it is none of PostgreSQL's")
                .with_hint("write postgres://user:password@host/database, and % signs as %25")
        })?;
        if server.get_application_name().is_none() {
            server.application_name("tenure");
        }
        if server.get_connect_timeout().is_none() {
            server.connect_timeout(CONNECT_TIMEOUT);
        }
        // `postgres://me:a@b@host/`: what stands there as a host would be the rest of the password.
        let is_strange = |host: &Host| matches!(host, Host::Tcp(host) if host.contains('@'));
        if server.get_hosts().is_empty() || server.get_hosts().iter().any(is_strange) {
            return Err(invalid("it names no host").with_hint("write @ in a password as %40"));
        }
        if !query.contains("keepalives") {
            let (idle, interval, retries) = KEEPALIVE;
            server.keepalives_idle(idle).keepalives_interval(interval).keepalives_retries(retries);
        }
        if server.get_hosts().len() > 1 && !query.contains("target_session_attrs") {
            // Of several servers, the one that grants.
            server.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if let Some(schema) = schema {
            prefix = format!("{schema}.{prefix}");
        }
        if prefix.len() > PREFIX_BYTES_MAX {
            return Err(invalid(&format!(
                "`schema` and `prefix` have more than {PREFIX_BYTES_MAX} bytes together"
            )));
        }
        Ok(Config { server, is_tls: is_tls || ca.is_some(), ca, prefix, connections, purges, listens })
    }
}

impl Config {
    /// The servers, as a message may name them.
    pub(crate) fn servers(&self) -> String {
        let ports = self.server.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let hosts = self.server.get_hosts().iter().enumerate().map(|(at, host)| match host {
            Host::Tcp(host) => format!("{host}:{}", port(at)),
            Host::Unix(directory) => format!("{}, port {}", directory.display(), port(at)),
        });
        hosts.collect::<Vec<_>>().join(" or ")
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, "connect", format!("the URL of the engine is wrong: {what}"))
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
