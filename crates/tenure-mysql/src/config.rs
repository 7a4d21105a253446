//! The settings of the engine, and its URLs.

use std::fmt;
use std::path::PathBuf;

use tenure_core::engine::EngineUrl;
use tenure_core::engine::url::{HostPort, Login, Settings, UrlSyntax};
use tenure_core::error::Result;
use tenure_sql::identifier;

const URL: UrlSyntax = UrlSyntax { engine: "mysql", hint: "write `mysql://user:password@host/database`" };

/// How many connections are used at most, however many locks are held.
const CONNECTIONS: usize = 5;
const PORT: u16 = 3306;
const PREFIX: &str = "tenure_";

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Tcp(HostPort),
    Socket(PathBuf),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Server::Tcp(at) => write!(f, "{at}"),
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
    /// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let url = EngineUrl::parse(URL, url)?;
        url.scheme(&[("mysql", ())])?;
        let server = match url.has_host() {
            true => url.hosts(PORT, 1)?.remove(0),
            false => HostPort { host: "localhost".to_owned(), port: PORT },
        };
        let Login { user, password } = url.login().unwrap_or_default();
        let database = url.path()?.unwrap_or_default();
        let mut config = Config::new(&server.host, server.port, &user, &password, &database)?;
        config.apply(url.settings()?)?;
        Ok(config)
    }

    /// Connects with a server by its parts, which are taken as they are: nothing is percent-encoded.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) for a database without a name, or a part with a zero byte.
    pub fn new(host: &str, port: u16, user: &str, password: &str, database: &str) -> Result<Config> {
        let config = Config {
            server: Server::Tcp(HostPort { host: host.to_owned(), port }),
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
            return Err(URL.invalid("it names no database"));
        }
        // They stand between zeros in what a client says first.
        if [&config.user, &config.password, &config.database].iter().any(|part| part.contains('\0')) {
            return Err(URL.invalid("a part of it has a zero byte"));
        }
        Ok(config)
    }

    /// Changes a setting, by the name and the value that it has in a URL: `config.with("prefix", "locks_")?`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) for a name that is no setting, or a value that it does not take.
    pub fn with(mut self, name: &str, value: &str) -> Result<Config> {
        self.apply(Settings::none(URL).with(name, value))?;
        Ok(self)
    }

    fn apply(&mut self, mut settings: Settings) -> Result<()> {
        if let Some(prefix) = identifier(&mut settings, "prefix")? {
            self.prefix = prefix;
        }
        self.connections = settings.number("connections", 1..=64)?.unwrap_or(self.connections);
        self.purges = settings.switch("purge")?.unwrap_or(self.purges);
        self.is_tls = settings.switch("tls")?.unwrap_or(self.is_tls);
        if let Some(ca) = settings.file("ca")? {
            (self.ca, self.is_tls) = (Some(ca), true);
        }
        if let Some(socket) = settings.file("socket")? {
            self.server = Server::Socket(socket);
        }
        settings.finish()
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

#[cfg(test)]
mod tests {
    use tenure_core::error::ErrorKind;

    use super::*;

    fn parsed(url: &str) -> Config {
        Config::parse(url).expect("a right URL")
    }

    #[test]
    fn a_url_is_read() {
        let config = parsed("mysql://me:hunter%402@db.example/locks");
        assert_eq!(config.server, Server::Tcp(HostPort { host: "db.example".to_owned(), port: 3306 }));
        assert_eq!((config.user.as_str(), config.password.as_str()), ("me", "hunter@2"));
        assert_eq!((config.database.as_str(), config.prefix.as_str()), ("locks", "tenure_"));
        assert_eq!((config.connections, config.purges, config.is_tls), (5, true, false));
        let config = parsed("mysql://me@[::1]:3307/locks?prefix=x_&connections=2&purge=off&tls=on");
        assert_eq!(config.server, Server::Tcp(HostPort { host: "::1".to_owned(), port: 3307 }));
        assert_eq!((config.connections, config.purges, config.is_tls), (2, false, true));
        assert_eq!(config.prefix, "x_");
        let config = parsed("mysql://me@/locks?socket=/run/my%20sql.sock");
        assert_eq!(config.server, Server::Socket(PathBuf::from("/run/my sql.sock")));
    }

    // page: docs/engines/mysql.md "a-z, 0-9, `_`; 32 at most"
    // page: docs/engines/mysql.md "| 5 | how many connections a client uses at most, 1 to 64"
    #[test]
    fn numbers_of_settings_have_their_bounds() {
        let takes = |setting: &str| Config::parse(&format!("mysql://me@h/db?{setting}")).is_ok();
        assert!(takes("connections=1") && takes("connections=64") && !takes("connections=65"));
        assert!(
            takes(&format!("prefix={}", "x".repeat(32))) && !takes(&format!("prefix={}", "x".repeat(33)))
        );
        assert!(takes("prefix=az09_") && !takes("prefix=aZ"));
        assert_eq!(parsed("mysql://me@h/db").connections, 5);
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
            "mysql://me:hunter2@h/db?purge=on&purge=on",
            "mysql://me:hunter2@h/db?ca=",
            "mysql://me:hunter2@h,i/db",
            "mysql://me:1/hunter2@h/db",
            "mysql://me:1?hunter2@h/db",
            "mysql://me:hunter2%00@h/db",
        ] {
            let error = Config::parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
