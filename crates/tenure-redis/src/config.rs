//! The settings of the engine, and its URLs.

use std::path::PathBuf;

use tenure_core::engine::EngineUrl;
use tenure_core::engine::url::{Login, Settings, UrlSyntax};
use tenure_core::error::Result;

use crate::net::address::Address;

const URL: UrlSyntax = UrlSyntax {
    engine: "redis",
    hint: "write `redis://host:6379`, `redis+sentinel://host1,host2,host3/master-name` or `redis+cluster://host1,host2`",
};
/// The port of a Redis server.
const SERVER_PORT: u16 = 6379;
/// The port of a Redis Sentinel.
const SENTINEL_PORT: u16 = 26379;
/// What all keys begin with, unless the URL says otherwise.
pub(crate) const PREFIX: &str = "tenure:";
/// Channels are named `tenure.…` whatever the prefix is, so no key may begin like one.
const RESERVED: &str = "tenure.";
/// The longest prefix: it is part of every key and of every call.
const PREFIX_BYTES_MAX: usize = 128;
/// The most acknowledgements to wait for. More replicas than this exist, but no command waits for all of them.
const REPLICAS_MAX: u8 = 16;
/// The most hosts of a URL. They are asked one beside the other, so this bounds the connections.
const HOSTS_MAX: usize = 64;

/// How to connect to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) topology: Topology,
    pub(crate) is_tls: bool,
    pub(crate) login: Option<Login>,
    pub(crate) sentinel_login: Option<Login>,
    pub(crate) db: u16,
    pub(crate) prefix: String,
    /// How many replicas acknowledge a grant; 0: none is waited for.
    pub(crate) replicas: u8,
    /// The file with the root certificates to trust. `None`: those of the Mozilla programme.
    pub(crate) ca: Option<PathBuf>,
}

/// Which servers there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single(Address),
    Sentinel { sentinels: Vec<Address>, master: String },
    Cluster(Vec<Address>),
}

/// What a scheme stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Single,
    Unix,
    Sentinel,
    Cluster,
}

impl Config {
    /// Reads a URL:
    ///
    /// * `redis://[[user]:password@]host[:6379][/db]`, `rediss://` for TLS
    /// * `redis+unix://[[user]:password@]/path/of/the.sock`
    /// * `redis+sentinel://[[user]:password@]host[:26379],host,host/master-name`, `rediss+sentinel://`
    /// * `redis+cluster://[[user]:password@]host[:6379],host`, `rediss+cluster://`
    ///
    /// IPv6 addresses are written in brackets. The settings after `?` are `prefix` (default `tenure:`, may be
    /// empty), `db` (0), `replicas` (0: how many replicas must acknowledge a grant), `ca` (a file with root
    /// certificates), `sentinel_user` and `sentinel_password`. All parts may be percent-encoded.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let url = EngineUrl::parse(URL, url)?;
        let (form, is_tls) = url.scheme(&[
            ("redis", (Form::Single, false)),
            ("rediss", (Form::Single, true)),
            ("redis+unix", (Form::Unix, false)),
            ("redis+sentinel", (Form::Sentinel, false)),
            ("rediss+sentinel", (Form::Sentinel, true)),
            ("redis+cluster", (Form::Cluster, false)),
            ("rediss+cluster", (Form::Cluster, true)),
        ])?;
        let topology = read_topology(form, &url)?;
        let mut settings = url.settings()?;
        if let (Form::Single, Some(db)) = (form, url.path()?.filter(|path| !path.is_empty())) {
            settings = settings.with("db", db);
        }
        settings.refuse("max_ttl", "needs a quorum")?;
        let config = Config {
            topology,
            is_tls,
            login: url.login_with_password()?,
            sentinel_login: read_sentinel_login(form, &mut settings)?,
            db: settings.number("db", 0..=u16::MAX)?.unwrap_or(0),
            prefix: read_prefix(&mut settings)?,
            replicas: settings.number("replicas", 0..=REPLICAS_MAX)?.unwrap_or(0),
            ca: settings.tls_file("ca", is_tls, "rediss")?,
        };
        settings.finish()?;
        if form == Form::Cluster && config.db != 0 {
            return Err(url.invalid("a cluster has no databases but 0").with_hint("omit `db`"));
        }
        Ok(config)
    }
}

fn read_topology(form: Form, url: &EngineUrl<'_>) -> Result<Topology> {
    let path = url.path()?.unwrap_or_default();
    match form {
        Form::Unix => read_socket(url, path),
        Form::Single => match read_servers(url)?.as_slice() {
            [server] => Ok(Topology::Single(server.clone())),
            _ => Err(url.invalid("it names several hosts").with_hint(
                "several servers are `redis+cluster://`, several Sentinels are `redis+sentinel://`",
            )),
        },
        Form::Sentinel if path.is_empty() || path.contains(['/', ' ']) || path.contains(char::is_control) => {
            Err(url
                .invalid("it does not name a master")
                .with_hint("end it with the name that the Sentinels have for it: `/mymaster`"))
        }
        Form::Sentinel => Ok(Topology::Sentinel { sentinels: read_hosts(url, SENTINEL_PORT)?, master: path }),
        Form::Cluster if !path.is_empty() => {
            Err(url.invalid("it has a path, and a cluster has no databases"))
        }
        Form::Cluster => Ok(Topology::Cluster(read_servers(url)?)),
    }
}

/// Reads the hosts of a URL as those of Redis servers.
///
/// # Errors
/// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) if one is none, or there are too many.
pub fn read_servers(url: &EngineUrl<'_>) -> Result<Vec<Address>> {
    read_hosts(url, SERVER_PORT)
}

fn read_hosts(url: &EngineUrl<'_>, port: u16) -> Result<Vec<Address>> {
    Ok(url.hosts(port, HOSTS_MAX)?.into_iter().map(|at| Address::Tcp(at.host, at.port)).collect())
}

fn read_socket(url: &EngineUrl<'_>, path: String) -> Result<Topology> {
    if url.has_host() {
        return Err(url
            .invalid("it names a host, but a Unix socket has only a path")
            .with_hint("write three slashes: `redis+unix:///path/of/the.sock`"));
    }
    if path.is_empty() || path.contains('\0') {
        return Err(url.invalid("it names no socket"));
    }
    Ok(Topology::Single(Address::Unix(PathBuf::from(format!("/{path}")))))
}

fn read_sentinel_login(form: Form, settings: &mut Settings) -> Result<Option<Login>> {
    if form != Form::Sentinel {
        settings.refuse("sentinel_user", "needs Sentinel")?;
        settings.refuse("sentinel_password", "needs Sentinel")?;
    }
    match (settings.text("sentinel_user")?, settings.text("sentinel_password")?) {
        (Some(_), None) => Err(settings.invalid("`sentinel_user` needs `sentinel_password`")),
        (user, password) => Ok(password.map(|password| Login { user: user.unwrap_or_default(), password })),
    }
}

/// Reads what all keys begin with.
///
/// # Errors
/// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) if no key can begin so.
pub fn read_prefix(settings: &mut Settings) -> Result<String> {
    // Empty where a server is for locks alone.
    let prefix = settings.text_or_empty("prefix")?.unwrap_or_else(|| PREFIX.to_owned());
    if prefix.len() > PREFIX_BYTES_MAX || prefix.contains(char::is_control) {
        return Err(settings
            .invalid(format!("`prefix` is longer than {PREFIX_BYTES_MAX} bytes or has control characters")));
    }
    if prefix.starts_with(RESERVED) {
        return Err(
            settings.invalid(format!("`prefix` begins with {RESERVED:?}, which is kept for channels"))
        );
    }
    Ok(prefix)
}

#[cfg(test)]
mod tests;
