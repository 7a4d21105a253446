//! The settings of the engine, and its URLs.
//!
//! Errors here must not show a password, not even that of a URL which is wrong. So they name the part of the URL
//! that is wrong, and show nothing of it but what cannot be a password: `redis://user:secret` (no host) has its
//! "port" `secret`, and in `redis://:a/b@host` the "database" is `b@host`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::engine::{Connect, Engine};
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::model::claim::{TTL_MAX, TTL_MIN};

use crate::address::{Address, Login};
use crate::engine::Redis;
use crate::redlock::Redlock;

/// The port of a Redis server.
const SERVER_PORT: u16 = 6379;
/// The port of a Redis Sentinel.
const SENTINEL_PORT: u16 = 26379;
/// What all keys begin with, unless the URL says otherwise.
pub(crate) const PREFIX: &str = "tenure:";
/// Channels are named `tenure.…` whatever the prefix is, so no key may look like one.
const RESERVED: &str = "tenure.";
/// The longest prefix: it is part of every key and of every call.
const PREFIX_BYTES_MAX: usize = 128;
/// The most acknowledgements to wait for. More replicas than this exist, but nobody waits for all of them.
const REPLICAS_MAX: u8 = 16;
/// The longest ttl on a quorum, unless the URL says otherwise.
const MAX_TTL: Duration = Duration::from_secs(60);
/// The most hosts of a URL. They are asked one beside the other, so this bounds the connections.
const HOSTS_MAX: usize = 64;

/// How to connect to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) topology: Topology,
    pub(crate) is_tls: bool,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    pub(crate) db: u16,
    pub(crate) prefix: String,
    /// How many replicas acknowledge a grant; 0: none is waited for.
    pub(crate) replicas: u8,
    /// The file with the root certificates to trust; none: those of the Mozilla programme.
    pub(crate) ca: Option<PathBuf>,
    /// The longest ttl on a quorum: for so long a server that has forgotten its holds does not count.
    pub(crate) max_ttl: Duration,
    /// The weaker form of the tokens, with which tests see what the strict one is for.
    pub(crate) has_plain_tokens: bool,
}

impl From<Config> for Connect {
    /// What [`Tenure::new`](tenure_core::Tenure::new) takes. Nothing is tried yet.
    fn from(config: Config) -> Connect {
        Box::new(move |client| {
            Box::pin(async move {
                let engine: Arc<dyn Engine> = match &config.topology {
                    Topology::Quorum(_) => Arc::new(Redlock::connect(config, client).await?),
                    _ => Arc::new(Redis::connect(config, client).await?),
                };
                Ok(engine)
            })
        })
    }
}

/// Which servers there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single(Address),
    Sentinel {
        sentinels: Vec<Address>,
        master: String,
    },
    Cluster(Vec<Address>),
    /// Independent servers, of which a majority decides.
    Quorum(Vec<Address>),
}

/// What a scheme stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Single,
    Unix,
    Sentinel,
    Cluster,
    Quorum,
}

impl Config {
    /// Reads a URL:
    ///
    /// * `redis://[[user]:password@]host[:6379][/db]`, `rediss://` for TLS
    /// * `redis+unix://[[user]:password@]/path/of/the.sock`
    /// * `redis+sentinel://[[user]:password@]host[:26379],host,host/master-name`, `rediss+sentinel://`
    /// * `redis+cluster://[[user]:password@]host[:6379],host`, `rediss+cluster://`
    /// * `redlock://[[user]:password@]host[:6379],host,host`, `redlocks://` for TLS: three, five or more independent
    ///   servers; with `max_ttl` (default `60s`), the longest ttl, the same for all clients
    ///
    /// IPv6 addresses are written in brackets. The settings after `?` are `prefix` (default `tenure:`, may be
    /// empty), `db` (0), `replicas` (0: how many replicas must acknowledge a grant), `ca` (a file with root
    /// certificates), `sentinel_user` and `sentinel_password`. All parts may be percent-encoded.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it has no `://`"))?;
        let (form, is_tls) = match scheme {
            "redis" => (Form::Single, false),
            "rediss" => (Form::Single, true),
            "redis+unix" => (Form::Unix, false),
            "redis+sentinel" => (Form::Sentinel, false),
            "rediss+sentinel" => (Form::Sentinel, true),
            "redis+cluster" => (Form::Cluster, false),
            "rediss+cluster" => (Form::Cluster, true),
            "redlock" => (Form::Quorum, false),
            "redlocks" => (Form::Quorum, true),
            _ => return Err(invalid("its scheme is none of this engine's")),
        };
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before_query.split_at(before_query.find('/').unwrap_or(before_query.len()));
        if path.contains('@') || query.contains('@') {
            return Err(invalid("it has an `@` after its hosts")
                .with_hint("write `/`, `?` and `@` in a user or a password as %2F, %3F and %40"));
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (read_login(login)?, hosts),
            None => (Login::default(), authority),
        };
        let mut config = Config {
            topology: read_topology(form, hosts, path)?,
            is_tls,
            login,
            sentinel_login: Login::default(),
            db: 0,
            prefix: PREFIX.to_owned(),
            replicas: 0,
            ca: None,
            max_ttl: MAX_TTL,
            has_plain_tokens: false,
        };
        let has_db_path = form == Form::Single && path.len() > 1;
        if has_db_path {
            config.db = read_number(&path[1..], "the database after the host")?;
        }
        config.read_settings(query, has_db_path)?;
        if form == Form::Cluster && config.db != 0 {
            return Err(invalid("a cluster has no databases but 0").with_hint("omit `db`"));
        }
        Ok(config)
    }

    /// Whether it names a quorum of independent servers, for [`Redlock`](crate::Redlock).
    pub fn is_quorum(&self) -> bool {
        matches!(self.topology, Topology::Quorum(_))
    }

    /// Takes the largest number that any server has granted for the token, without writing it back. For tests, which
    /// see what goes wrong then: a release build does not do it.
    #[doc(hidden)]
    #[must_use]
    pub fn with_plain_tokens(mut self) -> Config {
        self.has_plain_tokens = cfg!(debug_assertions);
        self
    }

    fn read_settings(&mut self, query: &str, has_db_path: bool) -> Result<()> {
        let mut seen = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = decode(value, "a setting")?;
            if seen.contains(&key) || (key == "db" && has_db_path) {
                return Err(invalid(format!("`{key}` is given twice")));
            }
            match key {
                "prefix" => self.prefix = checked_prefix(value)?,
                "db" => self.db = read_number(&value, "`db`")?,
                "max_ttl" if !self.is_quorum() => return Err(invalid("`max_ttl` needs a quorum")),
                "max_ttl" => self.max_ttl = read_period(&value)?,
                "replicas" if self.is_quorum() => {
                    return Err(invalid("`replicas` does not go with a quorum, whose servers have none"));
                }
                "replicas" => self.replicas = read_replicas(&value)?,
                "ca" if value.is_empty() => return Err(invalid("`ca` names no file")),
                "ca" if !self.is_tls => {
                    return Err(invalid("`ca` needs TLS").with_hint("begin the URL with `rediss`"));
                }
                "ca" => self.ca = Some(PathBuf::from(value)),
                "sentinel_user" | "sentinel_password"
                    if !matches!(self.topology, Topology::Sentinel { .. }) =>
                {
                    return Err(invalid(format!("`{key}` needs Sentinel")));
                }
                "sentinel_user" => self.sentinel_login.user = Some(value),
                "sentinel_password" => self.sentinel_login.password = Some(value),
                // Not even its name is shown: a `?` in a password makes a "setting" of the password's end.
                _ => {
                    return Err(invalid("it has a setting that is not known").with_hint(
                        "the settings are prefix, db, replicas, ca, max_ttl, sentinel_user and sentinel_password; write `?` in a password as %3F",
                    ));
                }
            }
            seen.push(key);
        }
        Ok(())
    }
}

fn read_topology(form: Form, hosts: &str, path: &str) -> Result<Topology> {
    match form {
        Form::Single => {
            let mut addresses = read_hosts(hosts, SERVER_PORT)?;
            if addresses.len() > 1 {
                return Err(invalid("it names several hosts").with_hint(
                    "several servers are `redis+cluster://`, several Sentinels are `redis+sentinel://`",
                ));
            }
            addresses.pop().map(Topology::Single).ok_or_else(|| invalid("it names no host"))
        }
        Form::Unix => {
            if !hosts.is_empty() {
                return Err(invalid("it names a host, but a Unix socket has only a path")
                    .with_hint("write three slashes: `redis+unix:///path/of/the.sock`"));
            }
            let path = decode(path, "the path")?;
            if path.len() < 2 || path.contains('\0') {
                return Err(invalid("it names no socket"));
            }
            Ok(Topology::Single(Address::Unix(PathBuf::from(path))))
        }
        Form::Sentinel => {
            let sentinels = read_hosts(hosts, SENTINEL_PORT)?;
            let master = decode(path.strip_prefix('/').unwrap_or_default(), "the master's name")?;
            if master.is_empty() || master.contains(['/', ' ']) || master.contains(char::is_control) {
                return Err(invalid("it does not name a master")
                    .with_hint("end it with the name that the Sentinels have for it: `/mymaster`"));
            }
            Ok(Topology::Sentinel { sentinels, master })
        }
        Form::Cluster => {
            if path.len() > 1 {
                return Err(invalid("it has a path, and a cluster has no databases"));
            }
            Ok(Topology::Cluster(read_hosts(hosts, SERVER_PORT)?))
        }
        Form::Quorum => {
            if path.len() > 1 {
                return Err(invalid("it has a path; the database is a setting, `?db=1`"));
            }
            read_quorum(hosts).map(Topology::Quorum)
        }
    }
}

fn read_quorum(hosts: &str) -> Result<Vec<Address>> {
    let servers = read_hosts(hosts, SERVER_PORT)?;
    let hint = "name three or five independent servers: `redlock://host1,host2,host3`. An even number survives no more failures than \
                one server less, and a server that is named twice has two votes";
    let distinct: BTreeSet<&Address> = servers.iter().collect();
    if distinct.len() < servers.len() {
        return Err(invalid("a server is named twice").with_hint(hint));
    }
    if servers.len() < 3 || servers.len() % 2 == 0 {
        return Err(invalid(format!("it names {} servers", servers.len())).with_hint(hint));
    }
    Ok(servers)
}

/// Reads a period: `500ms`, `60s`, `2m`, `1h`.
fn read_period(text: &str) -> Result<Duration> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let millis = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let millis = millis.and_then(|unit: u64| number.parse::<u64>().ok()?.checked_mul(unit));
    let period = millis.map(Duration::from_millis).filter(|period| (TTL_MIN..=TTL_MAX).contains(period));
    period.ok_or_else(|| {
        invalid("`max_ttl` is no period from 100ms to 24h")
            .with_hint("write a number and a unit: `max_ttl=60s`")
    })
}

fn read_hosts(hosts: &str, default_port: u16) -> Result<Vec<Address>> {
    let addresses: Vec<Address> =
        hosts.split(',').map(|host| read_host(host, default_port)).collect::<Result<_>>()?;
    if addresses.len() > HOSTS_MAX {
        return Err(invalid(format!("it names more than {HOSTS_MAX} hosts")));
    }
    Ok(addresses)
}

fn read_host(text: &str, default_port: u16) -> Result<Address> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or_else(|| invalid("a bracket is not closed"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(invalid("what is in brackets is no IPv6 address"));
            }
            match after {
                "" => (host.to_owned(), None),
                after => (host.to_owned(), Some(after.strip_prefix(':').unwrap_or_default())),
            }
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(invalid("a host has several colons")
                    .with_hint("write an IPv6 address in brackets: `[::1]:6379`"));
            }
            Some((host, port)) => (decode(host, "a host")?, Some(port)),
            None => (decode(text, "a host")?, None),
        },
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(invalid("it names no host, or one with blanks"));
    }
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
            invalid("the port of a host is not a number from 1 to 65535")
                .with_hint("a user and a password come before an `@`: `redis://user:password@host`")
        })?,
        None => default_port,
    };
    Ok(Address::Tcp(host, port))
}

fn read_login(text: &str) -> Result<Login> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(decode(password, "the password")?)),
        None => (text, None),
    };
    let user = decode(user, "the user")?;
    if password.is_none() {
        return Err(invalid("it has a user without a password")
            .with_hint("write `user:password@`, or `:password@` for a password alone"));
    }
    Ok(Login { user: (!user.is_empty()).then_some(user), password })
}

fn checked_prefix(prefix: String) -> Result<String> {
    if prefix.len() > PREFIX_BYTES_MAX || prefix.contains(char::is_control) {
        return Err(invalid(format!(
            "`prefix` is longer than {PREFIX_BYTES_MAX} bytes or has control characters"
        )));
    }
    if prefix.starts_with(RESERVED) {
        return Err(invalid(format!("`prefix` begins with {RESERVED:?}, which is kept for channels")));
    }
    Ok(prefix)
}

fn read_replicas(text: &str) -> Result<u8> {
    match read_number(text, "`replicas`")? {
        count if count <= u16::from(REPLICAS_MAX) => Ok(count as u8),
        _ => Err(invalid(format!("`replicas` is more than {REPLICAS_MAX}"))),
    }
}

fn read_number(text: &str, what: &str) -> Result<u16> {
    // `parse` would take a sign.
    match text.parse() {
        Ok(number) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
        _ => Err(invalid(format!("{what} is not a number from 0 to {}", u16::MAX))),
    }
}

/// Undoes percent-encoding.
fn decode(text: &str, what: &str) -> Result<String> {
    let broken = || invalid(format!("{what} has a `%` without two hexadecimal digits, or is no UTF-8"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| (byte as char).to_digit(16));
        let (high, low) = (digit().ok_or_else(broken)?, digit().ok_or_else(broken)?);
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

fn invalid(why: impl Into<String>) -> Error {
    let why = why.into();
    Error::new(ErrorKind::Invalid, "read the engine's URL", why).with_engine("redis").with_hint(
        "write `redis://host:6379`, `redis+sentinel://host1,host2,host3/master-name` or `redis+cluster://host1,host2`",
    )
}

#[cfg(test)]
mod tests;
