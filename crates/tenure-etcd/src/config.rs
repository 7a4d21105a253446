//! The settings of the engine, and its URLs.
//!
//! Errors here must not show a password, not even that of a URL which is wrong. So they name the part of the URL that
//! is wrong, and show nothing of it: `etcd://user:secret` (no host) has its "port" `secret`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::engine::{Connect, Engine};
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::model::claim::{ClaimId, Name};

use crate::keys::{Keys, Layout};

/// The port of an etcd server for clients.
const PORT: u16 = 2379;
/// What all keys begin with, unless the URL says otherwise.
pub(crate) const PREFIX: &str = "tenure/";
/// The servers' election timeout, unless the URL says otherwise: etcd's own default.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest election timeout. etcd itself takes none above.
const ELECTION_TIMEOUT_MAX: Duration = Duration::from_secs(50);
/// The longest prefix: it is part of every key and of every call.
const PREFIX_BYTES_MAX: usize = 128;
/// The most hosts of a URL. Larger clusters exist nowhere: each write goes to every server.
const HOSTS_MAX: usize = 16;

/// How to connect to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) addresses: Vec<Address>,
    pub(crate) is_tls: bool,
    pub(crate) login: Option<Login>,
    pub(crate) prefix: String,
    /// The file with the root certificates to trust; none: those of the Mozilla programme.
    pub(crate) ca: Option<PathBuf>,
    /// The files with the client's certificate and its key, where the servers ask for one.
    pub(crate) identity: Option<Identity>,
    /// The servers' election timeout: for so long a server may answer as a leader that is none any more.
    pub(crate) election_timeout: Duration,
    pub(crate) layout: Layout,
}

/// Where a server is: a host name or an IP address (IPv6 without its brackets), and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Who the client is by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// The user and the password, where the servers have users. A password is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
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

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).field("password", &"***").finish()
    }
}

impl Config {
    /// Reads a URL: `etcd://[user:password@]host[:2379][,host…][/prefix]`, or `etcds://` for TLS. The servers must be
    /// of one cluster.
    ///
    /// IPv6 addresses are written in brackets. All keys begin with the prefix (default `tenure/`), to which a slash is
    /// added if it has none; `/` alone is the empty prefix. The settings after `?` are `ca` (a file with root
    /// certificates), `cert` and `key` (files with the client's certificate and its key, where the servers ask for
    /// one), `election_timeout` (that of the servers, default `1s`: every lease is asked for with so much more), and
    /// `layout` (`etcdctl`: mutexes exclude those of `etcdctl lock`, and the prefix is empty unless it is given). All parts may be percent-encoded.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it has no `://`"))?;
        let is_tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(invalid("its scheme is none of this engine's")),
        };
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before_query.split_at(before_query.find('/').unwrap_or(before_query.len()));
        if path.contains('@') || query.contains('@') {
            return Err(invalid("it has an `@` after its hosts")
                .with_hint("write `/`, `?` and `@` in a user or a password as %2F, %3F and %40"));
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(read_login(login)?), hosts),
            None => (None, authority),
        };
        let mut config = Config {
            addresses: read_hosts(hosts)?,
            is_tls,
            login,
            prefix: read_prefix(path)?,
            ca: None,
            identity: None,
            election_timeout: ELECTION_TIMEOUT,
            layout: Layout::Tenure,
        };
        config.read_settings(query)?;
        if config.layout == Layout::Etcdctl && path.is_empty() {
            config.prefix = String::new();
        }
        Ok(config)
    }

    /// Returns the key of a claim's entry, for transactions of your own on the same cluster.
    ///
    /// The key is there as long as the claim waits or holds, and its create revision is the token. So a transaction that
    /// compares the two changes nothing once the lease is over, however late it comes, and no fence has to be kept: see
    /// "etcd" in the guide on fencing. A slot's token is that of [`Config::slot_key`].
    ///
    /// # Examples
    /// ```
    /// use tenure_core::model::claim::{ClaimId, Name};
    ///
    /// # fn main() -> tenure_core::Result<()> {
    /// # let claim = ClaimId::new(0xab);
    /// // Of a lease: `config.entry_key(lease.resource(), lease.claim())`.
    /// let config = tenure_etcd::Config::parse("etcd://h1,h2,h3")?;
    /// let key = config.entry_key(&Name::new("billing")?, claim);
    /// assert_eq!(key, b"tenure/line/billing\x1fc000000000000000000000000000000ab");
    /// # Ok(()) }
    /// ```
    pub fn entry_key(&self, resource: &Name, claim: ClaimId) -> Vec<u8> {
        Keys::new(&self.prefix, self.layout).place(resource, claim)
    }

    /// As [`Config::entry_key`], for a slot of a pool: the key is there as long as the slot is held, and its create revision is
    /// the token of whoever holds it.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> tenure_core::Result<()> {
    /// let config = tenure_etcd::Config::parse("etcd://h1,h2,h3")?;
    /// // Of a slot: `config.slot_key(slot.resource(), slot.number())`.
    /// let key = config.slot_key(&tenure_core::Name::new("workers")?, 3);
    /// assert_eq!(key, b"tenure/line/workers\x1fs0000003");
    /// # Ok(()) }
    /// ```
    pub fn slot_key(&self, resource: &Name, slot: u32) -> Vec<u8> {
        Keys::new(&self.prefix, self.layout).slot(resource, slot)
    }

    fn read_settings(&mut self, query: &str) -> Result<()> {
        let (mut ca, mut certificate, mut key_file) = (None, None, None);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let slot = match key {
                "ca" => &mut ca,
                "cert" => &mut certificate,
                "key" => &mut key_file,
                "layout" => {
                    self.layout = read_layout(value)?;
                    continue;
                }
                "election_timeout" => {
                    self.election_timeout = read_timeout(value)?;
                    continue;
                }
                // Not even its name is shown: a `?` in a password makes a "setting" of the password's end.
                _ => {
                    return Err(invalid("it has a setting that is not known")
                        .with_hint("the settings are ca, cert, key, layout and election_timeout; write `?` in a password as %3F"));
                }
            };
            if value.is_empty() {
                return Err(invalid(format!("`{key}` names no file")));
            }
            if !self.is_tls {
                return Err(invalid(format!("`{key}` needs TLS")).with_hint("begin the URL with `etcds`"));
            }
            if slot.replace(PathBuf::from(decode(value, "a setting")?)).is_some() {
                return Err(invalid(format!("`{key}` is given twice")));
            }
        }
        self.ca = ca;
        self.identity = match (certificate, key_file) {
            (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
            (None, None) => None,
            _ => return Err(invalid("`cert` and `key` need each other")),
        };
        Ok(())
    }
}

fn read_layout(text: &str) -> Result<Layout> {
    match text {
        "tenure" => Ok(Layout::Tenure),
        "etcdctl" => Ok(Layout::Etcdctl),
        _ => Err(invalid("unknown `layout`").with_hint("it is tenure or etcdctl")),
    }
}

fn read_timeout(text: &str) -> Result<Duration> {
    let millis = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(millis), _) => millis.parse::<u64>().ok(),
        (None, Some(seconds)) => seconds.parse::<u64>().ok().and_then(|seconds| seconds.checked_mul(1000)),
        (None, None) => None,
    };
    let timeout = millis.map(Duration::from_millis).filter(|timeout| *timeout <= ELECTION_TIMEOUT_MAX);
    timeout.ok_or_else(|| {
        invalid("`election_timeout` is none")
            .with_hint("write it as the servers have it (`--election-timeout`), up to 50s: 1s, 500ms")
    })
}

fn read_hosts(hosts: &str) -> Result<Vec<Address>> {
    let addresses: Vec<Address> = hosts.split(',').map(read_host).collect::<Result<_>>()?;
    if addresses.len() > HOSTS_MAX {
        return Err(invalid(format!("it names more than {HOSTS_MAX} hosts")));
    }
    Ok(addresses)
}

fn read_host(text: &str) -> Result<Address> {
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
                    .with_hint("write an IPv6 address in brackets: `[::1]:2379`"));
            }
            Some((host, port)) => (decode(host, "a host")?, Some(port)),
            None => (decode(text, "a host")?, None),
        },
    };
    // Whatever else a host may not have, the resolver says; these would make another URL of it.
    let is_host = |c: char| c.is_alphanumeric() || "-._:".contains(c);
    if host.is_empty() || !host.chars().all(is_host) {
        return Err(invalid("it names no host, or one that cannot be"));
    }
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
            invalid("the port of a host is not a number from 1 to 65535")
                .with_hint("a user and a password come before an `@`: `etcd://user:password@host`")
        })?,
        None => PORT,
    };
    Ok(Address { host, port })
}

fn read_login(text: &str) -> Result<Login> {
    let Some((user, password)) = text.split_once(':') else {
        return Err(invalid("it has a user without a password").with_hint("write `user:password@`"));
    };
    let (user, password) = (decode(user, "the user")?, decode(password, "the password")?);
    if user.is_empty() {
        return Err(invalid("it has a password without a user").with_hint("write `user:password@`"));
    }
    Ok(Login { user, password })
}

fn read_prefix(path: &str) -> Result<String> {
    let Some(path) = path.strip_prefix('/') else { return Ok(PREFIX.to_owned()) };
    let mut prefix = decode(path, "the prefix")?;
    if prefix.len() > PREFIX_BYTES_MAX || prefix.contains(char::is_control) {
        return Err(invalid(format!(
            "the prefix is longer than {PREFIX_BYTES_MAX} bytes or has control characters"
        )));
    }
    if !prefix.is_empty() && !prefix.ends_with('/') {
        prefix.push('/');
    }
    Ok(prefix)
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
    Error::new(ErrorKind::Invalid, "read the engine's URL", why)
        .with_engine("etcd")
        .with_hint("write `etcd://host1,host2,host3` or `etcds://user:password@host:2379/prefix`")
}

#[cfg(test)]
mod tests;
