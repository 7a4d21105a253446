//! The settings of the engine, and its URLs.

use std::path::PathBuf;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, Result};

/// How many connections are used at most, however many locks are held. One more listens.
const CONNECTIONS: usize = 4;
/// How long it takes to connect at most.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
const PREFIX: &str = "tenure_";

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
        if let Some(schema) = schema {
            prefix = format!("{schema}.{prefix}");
        }
        Ok(Config { server, is_tls: is_tls || ca.is_some(), ca, prefix, connections, purges, listens })
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
