//! The settings of the engine, and its URLs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tenure_core::engine::EngineUrl;
use tenure_core::engine::url::{Login, Settings, UrlSyntax};
use tenure_core::error::Result;
use tenure_core::model::claim::{TTL_MAX, TTL_MIN};

use crate::address::Address;

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
    pub(crate) login: Option<Login>,
    pub(crate) sentinel_login: Option<Login>,
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
            ("redlock", (Form::Quorum, false)),
            ("redlocks", (Form::Quorum, true)),
        ])?;
        let topology = read_topology(form, &url)?;
        let mut settings = url.settings()?;
        if let (Form::Single, Some(db)) = (form, url.path()?.filter(|path| !path.is_empty())) {
            settings = settings.with("db", db);
        }
        if form != Form::Quorum {
            settings.refuse("max_ttl", "needs a quorum")?;
        } else {
            settings.refuse("replicas", "does not go with a quorum, whose servers have none")?;
        }
        let config = Config {
            topology,
            is_tls,
            login: url.login_with_password()?,
            sentinel_login: read_sentinel_login(form, &mut settings)?,
            db: settings.number("db", 0..=u16::MAX)?.unwrap_or(0),
            prefix: read_prefix(&mut settings)?,
            replicas: settings.number("replicas", 0..=REPLICAS_MAX)?.unwrap_or(0),
            ca: settings.tls_file("ca", is_tls, "rediss")?,
            max_ttl: settings.duration("max_ttl", TTL_MIN..=TTL_MAX)?.unwrap_or(MAX_TTL),
            has_plain_tokens: false,
        };
        settings.finish()?;
        if form == Form::Cluster && config.db != 0 {
            return Err(url.invalid("a cluster has no databases but 0").with_hint("omit `db`"));
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
}

fn read_topology(form: Form, url: &EngineUrl<'_>) -> Result<Topology> {
    let servers = |port| -> Result<Vec<Address>> {
        Ok(url.hosts(port, HOSTS_MAX)?.into_iter().map(|at| Address::Tcp(at.host, at.port)).collect())
    };
    let path = url.path()?.unwrap_or_default();
    match form {
        Form::Unix => read_socket(url, path),
        Form::Single => match servers(SERVER_PORT)?.as_slice() {
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
        Form::Sentinel => Ok(Topology::Sentinel { sentinels: servers(SENTINEL_PORT)?, master: path }),
        Form::Cluster if !path.is_empty() => {
            Err(url.invalid("it has a path, and a cluster has no databases"))
        }
        Form::Cluster => Ok(Topology::Cluster(servers(SERVER_PORT)?)),
        Form::Quorum if !path.is_empty() => {
            Err(url.invalid("it has a path; the database is a setting, `?db=1`"))
        }
        Form::Quorum => checked_quorum(url, servers(SERVER_PORT)?),
    }
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

fn checked_quorum(url: &EngineUrl<'_>, servers: Vec<Address>) -> Result<Topology> {
    let hint = "name three or five independent servers: `redlock://host1,host2,host3`. An even number survives no more failures than \
                one server less, and a server that is named twice has two votes";
    let distinct: BTreeSet<&Address> = servers.iter().collect();
    if distinct.len() < servers.len() {
        return Err(url.invalid("a server is named twice").with_hint(hint));
    }
    if servers.len() < 3 || servers.len() % 2 == 0 {
        return Err(url.invalid(format!("it names {} servers", servers.len())).with_hint(hint));
    }
    Ok(Topology::Quorum(servers))
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

fn read_prefix(settings: &mut Settings) -> Result<String> {
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
