//! The settings of the engine, and its URLs.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tenure_core::engine::{Connect, Engine};
use tenure_core::error::{Error, ErrorKind, Result};

/// How many connections are used at most, however many locks are held.
const CONNECTIONS: usize = 5;
const PORT: u16 = 3306;
const PREFIX: &str = "tenure_";

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Tcp { host: String, port: u16 },
    Socket(PathBuf),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Server::Tcp { host, port } => write!(f, "{host}:{port}"),
            Server::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How to connect to the engine.
#[derive(Clone)]
pub struct Config {
    pub(crate) server: Server,
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) database: String,
    pub(crate) is_tls: bool,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) prefix: String,
    pub(crate) connections: usize,
    pub(crate) purges: bool,
}

impl Config {
    /// Reads a URL: `mysql://user[:password]@host[:3306]/database`, with settings after `?`.
    ///
    /// Settings are `prefix` of the tables (`tenure_`), `connections` (5), `purge` (`on`; `off` deletes
    /// nothing), `tls` (`off`; `on` checks the server's certificate against the Mozilla programme's roots), `ca` (a file
    /// with root certificates instead, and `tls=on`), and `socket` (the path of the server's socket, in place of the
    /// host). All parts may be percent-encoded.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let rest = url.strip_prefix("mysql://").ok_or_else(|| invalid("it does not begin with mysql://"))?;
        let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = base.split_once('/').unwrap_or((base, ""));
        let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let server = tcp(host)?;
        let (user, password) = (decode(user, "the user")?, decode(password, "the password")?);
        let mut config = Config::new("", PORT, &user, &password, &decode(database, "the database")?)?;
        config.server = server;
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            config = config.with(key, &decode(value, "a setting")?)?;
        }
        Ok(config)
    }

    /// Connects with a server by its parts, which are taken as they are: nothing is percent-encoded.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a database without a name, or a part with a zero byte.
    pub fn new(host: &str, port: u16, user: &str, password: &str, database: &str) -> Result<Config> {
        let config = Config {
            server: Server::Tcp { host: host.to_owned(), port },
            user: user.to_owned(),
            password: password.to_owned(),
            database: database.to_owned(),
            is_tls: false,
            ca: None,
            prefix: PREFIX.to_owned(),
            connections: CONNECTIONS,
            purges: true,
        };
        if config.database.is_empty() {
            return Err(invalid("it names no database")
                .with_hint("write mysql://user:password@host/database, and % signs as %25"));
        }
        // They stand between zeros in what a client says first.
        if [&config.user, &config.password, &config.database].iter().any(|part| part.contains('\0')) {
            return Err(invalid("a part of it has a zero byte"));
        }
        Ok(config)
    }

    /// Changes a setting, by the name and the value that it has in a URL: `config.with("prefix", "locks_")?`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name that is no setting, or a value that it does not take.
    pub fn with(mut self, name: &str, value: &str) -> Result<Config> {
        match name {
            "prefix" => self.prefix = identifier(value)?,
            "connections" => {
                let count = value.parse().ok().filter(|count| (1..=64).contains(count));
                self.connections =
                    count.ok_or_else(|| invalid("`connections` is not a number from 1 to 64"))?;
            }
            "purge" => self.purges = switch("purge", value)?,
            "tls" => self.is_tls = switch("tls", value)?,
            "ca" => (self.ca, self.is_tls) = (Some(PathBuf::from(value)), true),
            "socket" => self.server = Server::Socket(PathBuf::from(value)),
            _ => {
                // What is wrong is not shown: it may be a piece of a password.
                return Err(invalid("a setting is none")
                    .with_hint("settings are prefix, connections, purge, tls, ca and socket"));
            }
        }
        Ok(self)
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

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("server", &self.server)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

fn tcp(text: &str) -> Result<Server> {
    // Only brackets tell the colons of an address from the one before a port.
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        None => PORT,
        Some(port) => port.parse().map_err(|_| invalid("the port is no number up to 65535"))?,
    };
    let host = decode(host, "the host")?;
    Ok(Server::Tcp { host: if host.is_empty() { "localhost".to_owned() } else { host }, port })
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, "connect", format!("the URL or a setting of the engine is wrong: {what}"))
}

/// Names of tables stand in statements as they are.
fn identifier(text: &str) -> Result<String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins_well = text.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if text.len() > 32 || !text.chars().all(is_plain) || !begins_well {
        return Err(invalid("`prefix` is not 1 to 32 of a-z, 0-9 and _"));
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

/// Undoes percent-encoding.
fn decode(text: &str, what: &str) -> Result<String> {
    let wrong = || invalid(&format!("{what} is wrongly percent-encoded")).with_hint("write % signs as %25");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, later @ ..] = rest {
        rest = later;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, later @ ..] = rest else { return Err(wrong()) };
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(wrong);
        bytes.push((digit(*high)? << 4 | digit(*low)?) as u8);
        rest = later;
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Config {
        Config::parse(url).expect("a right URL")
    }

    #[test]
    fn a_url_is_read() {
        let config = parsed("mysql://me:hunter%402@db.example/locks");
        assert_eq!(config.server, Server::Tcp { host: "db.example".to_owned(), port: 3306 });
        assert_eq!((config.user.as_str(), config.password.as_str()), ("me", "hunter@2"));
        assert_eq!((config.database.as_str(), config.prefix.as_str()), ("locks", "tenure_"));
        assert_eq!((config.connections, config.purges, config.is_tls), (5, true, false));
        let config = parsed("mysql://me@[::1]:3307/locks?prefix=x_&connections=2&purge=off&tls=on");
        assert_eq!(config.server, Server::Tcp { host: "::1".to_owned(), port: 3307 });
        assert_eq!((config.connections, config.purges, config.is_tls), (2, false, true));
        assert_eq!(config.prefix, "x_");
        let config = parsed("mysql://me@/locks?socket=/run/my%20sql.sock");
        assert_eq!(config.server, Server::Socket(PathBuf::from("/run/my sql.sock")));
    }

    #[test]
    fn a_wrong_url_is_refused_and_shows_no_password() {
        for url in [
            "mysql://me:hunter2@h",
            "mysql://me:hunter2@h:port/db",
            "mysql://me:hunter2%@h/db",
            "mysql://me:hunter2@h/db?prefix=a-b",
            "mysql://me:hunter2@h/db?prefix=",
            "mysql://me:hunter2@h/db?connections=0",
            "mysql://me:hunter2@h/db?purge=yes",
            "mysql://me:x@h/db?hunter2=1",
            "mysql://me:hunter2%00@h/db",
        ] {
            let error = Config::parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
