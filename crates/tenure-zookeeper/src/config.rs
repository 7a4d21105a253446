//! The settings of the engine, and its URLs.
//!
//! Errors here must not show a password, so they name the part of the URL that is wrong and show nothing of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::engine::{Connect, Engine};
use tenure_core::error::{Error, ErrorKind, Result};

use crate::name::is_path;
use crate::node::Layout;

/// The port of a server, with TLS or without.
const PORT: u16 = 2181;
/// The most hosts of a URL. They are tried one beside the other, so this bounds the connections.
const HOSTS_MAX: usize = 16;
/// What a client asks for if the URL does not say. Servers grant 2 to 20 of their ticks.
const LIFE: Duration = Duration::from_secs(30);
/// The length of a tick unless a server is told otherwise.
const TICK: Duration = Duration::from_secs(2);
/// The least and the most that a timeout can be here.
const LIFE_RANGE: (Duration, Duration) = (Duration::from_millis(400), Duration::from_secs(3600));

/// How to connect to the engine.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// `host:port` each.
    pub(crate) hosts: Vec<String>,
    pub(crate) is_tls: bool,
    pub(crate) login: Option<(String, String)>,
    pub(crate) is_sasl: bool,
    /// Below which node everything is: empty, or `/a/b`.
    pub(crate) chroot: String,
    /// How long the entries of a client that is not heard of live.
    pub(crate) session_id: Duration,
    /// The servers' tick.
    pub(crate) tick: Duration,
    pub(crate) layout: Layout,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

impl Config {
    /// Reads a URL: `zookeeper://[user:password@]host[:2181][,host]/chroot`, `zookeepers://` for TLS.
    ///
    /// The settings after `?` are `session_timeout` (`30s`), `tick` (`2s`: the servers' `tickTime`), `layout` (`tenure`;
    /// `curator` and `kazoo` share locks with those), `auth` (`digest`; `sasl` for DIGEST-MD5), and with TLS `ca` (a PEM file
    /// with root certificates, which TLS needs), `cert` and `key` (PEM files, where servers ask for them). User, password and
    /// settings may be percent-encoded.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it has no `://`"))?;
        let is_tls = match scheme {
            "zookeeper" => false,
            "zookeepers" => true,
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
        let hosts: Vec<String> = hosts.split(',').map(read_host).collect::<Result<_>>()?;
        if hosts.len() > HOSTS_MAX {
            return Err(invalid(format!("it names more than {HOSTS_MAX} hosts")));
        }
        let chroot = path.trim_end_matches('/').to_owned();
        if !is_path(&chroot) {
            return Err(invalid("the path after its hosts is no node's"));
        }
        let mut config = Config {
            hosts,
            is_tls,
            login,
            is_sasl: false,
            chroot,
            session_id: LIFE,
            tick: TICK,
            layout: Layout::default(),
            ca: None,
            identity: None,
        };
        config.read_settings(query)?;
        Ok(config)
    }

    fn read_settings(&mut self, query: &str) -> Result<()> {
        let (mut seen, mut cert, mut key) = (Vec::new(), None, None);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = decode(value, "a setting")?;
            if seen.contains(&name) {
                return Err(invalid(format!("`{name}` is given twice")));
            }
            match name {
                "session_timeout" => self.session_id = period("session_timeout", &value)?,
                "tick" => self.tick = period("tick", &value)?,
                "layout" => {
                    self.layout = match value.as_str() {
                        "tenure" => Layout::Tenure,
                        "curator" => Layout::Curator,
                        "kazoo" => Layout::Kazoo,
                        _ => return Err(invalid("`layout` is not `tenure`, `curator` or `kazoo`")),
                    }
                }
                "auth" => {
                    self.is_sasl = match value.as_str() {
                        "digest" => false,
                        "sasl" => true,
                        _ => return Err(invalid("`auth` is not `digest` or `sasl`")),
                    }
                }
                "ca" | "cert" | "key" if !self.is_tls => {
                    return Err(
                        invalid(format!("`{name}` needs TLS")).with_hint("begin the URL with `zookeepers`")
                    );
                }
                "ca" => self.ca = Some(PathBuf::from(value)),
                "cert" => cert = Some(PathBuf::from(value)),
                "key" => key = Some(PathBuf::from(value)),
                // Not even its name is shown: a `?` in a password makes a "setting" of the password's end.
                _ => {
                    return Err(invalid("it has a setting that is not known").with_hint(
                        "the settings are session_timeout, tick, layout, auth, ca, cert and key; write `?` in a password as %3F",
                    ));
                }
            }
            seen.push(name);
        }
        if self.session_id < LIFE_RANGE.0 || self.session_id > LIFE_RANGE.1 {
            return Err(invalid(format!(
                "`session_timeout` is not between {:?} and {:?}",
                LIFE_RANGE.0, LIFE_RANGE.1
            )));
        }
        if self.tick.is_zero() || self.tick > self.session_id / 2 {
            return Err(invalid("`tick` is zero, or more than half of `session_timeout`")
                .with_hint("it is the servers' `tickTime`; they grant no timeout below two of them"));
        }
        if self.is_tls && self.ca.is_none() {
            return Err(
                invalid("TLS needs a file with root certificates").with_hint("add `?ca=/path/of/the.pem`")
            );
        }
        if self.is_sasl && self.login.is_none() {
            return Err(invalid("`auth=sasl` needs a user and a password")
                .with_hint("write `user:password@` before the hosts"));
        }
        self.identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(invalid("`cert` and `key` need each other")),
        };
        Ok(())
    }

    /// The servers, as a message may name them.
    pub(crate) fn servers(&self) -> String {
        self.hosts.join(" or ")
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
        f.debug_struct("Config")
            .field("hosts", &self.hosts)
            .field("chroot", &self.chroot)
            .finish_non_exhaustive()
    }
}

fn read_host(text: &str) -> Result<String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or_else(|| invalid("a bracket is not closed"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(invalid("what is in brackets is no IPv6 address"));
            }
            let port = match after {
                "" => None,
                after => Some(after.strip_prefix(':').unwrap_or_default()),
            };
            (format!("[{host}]"), port)
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(invalid("a host has several colons")
                    .with_hint("write an IPv6 address in brackets: `[::1]:2181`"));
            }
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        },
    };
    let is_strange = |c: char| c.is_whitespace() || c.is_control() || c == '%';
    if host.is_empty() || host.contains(is_strange) {
        return Err(invalid("it names no host, or one with blanks"));
    }
    let port: u16 = match port {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
            invalid("the port of a host is not a number from 1 to 65535")
                .with_hint("a user and a password come before an `@`: `zookeeper://user:password@host`")
        })?,
        None => PORT,
    };
    Ok(format!("{host}:{port}"))
}

fn read_login(text: &str) -> Result<(String, String)> {
    let Some((user, password)) = text.split_once(':') else {
        return Err(invalid("it has a user without a password").with_hint("write `user:password@`"));
    };
    let user = decode(user, "the user")?;
    if user.is_empty() || user.contains(':') {
        return Err(invalid("it has a password without a user, or a user with a colon"));
    }
    Ok((user, decode(password, "the password")?))
}

/// Reads `500ms`, `30s` or `2m`.
fn period(name: &str, text: &str) -> Result<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(end);
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => 0,
    };
    let count: Option<u64> = count.parse().ok().filter(|_| millis > 0);
    let period = count.and_then(|count| count.checked_mul(millis)).map(Duration::from_millis);
    period.ok_or_else(|| invalid(format!("`{name}` is no time")).with_hint("write it as `30s` or `500ms`"))
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
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (high, low) = (digit().ok_or_else(broken)?, digit().ok_or_else(broken)?);
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, "read the engine's URL", why)
        .with_engine("zookeeper")
        .with_hint("write `zookeeper://host1,host2,host3/path`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Config {
        Config::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn a_url_says_where_and_how() {
        let least = config("zookeeper://h");
        assert_eq!(
            (least.hosts, least.chroot, least.session_id),
            (vec!["h:2181".to_owned()], String::new(), LIFE)
        );
        let full = config(
            "zookeeper://me:a%40b%3F@h1:1,[::1],h3:3/a/b/?session_timeout=4s&tick=500ms&layout=kazoo&auth=sasl",
        );
        assert_eq!(full.hosts, ["h1:1", "[::1]:2181", "h3:3"]);
        assert_eq!(full.login, Some(("me".to_owned(), "a@b?".to_owned())));
        assert_eq!((full.chroot.as_str(), full.layout, full.is_sasl), ("/a/b", Layout::Kazoo, true));
        assert_eq!((full.session_id, full.tick), (Duration::from_secs(4), Duration::from_millis(500)));
        let tls = config("zookeepers://h/?ca=/a.pem&cert=/b.pem&key=/c.pem");
        assert!(tls.is_tls && tls.ca.is_some() && tls.identity.is_some());
    }

    #[test]
    fn anything_else_is_refused_without_showing_a_password() {
        for url in [
            "zookeeper:h",
            "zk://h",
            "zookeeper://",
            "zookeeper://h:0",
            "zookeeper://h:hunter2",
            "zookeeper://me:hunter2",
            "zookeeper://hunter2@h",
            "zookeeper://:hunter2@h",
            "zookeeper://me:hunter2%@h",
            "zookeeper://me:hunter2/x@h",
            "zookeeper://me:hunter2?x@h",
            "zookeeper://h//a",
            "zookeeper://h/a/../b",
            "zookeeper://h?hunter2",
            "zookeeper://h?tick=2s&tick=2s",
            "zookeeper://h?tick=2",
            "zookeeper://h?tick=20s",
            "zookeeper://h?tick=0s",
            "zookeeper://h?session_timeout=0s",
            "zookeeper://h?session_timeout=2d",
            "zookeeper://h?layout=redis",
            "zookeeper://h?auth=kerberos",
            "zookeeper://h?auth=sasl",
            "zookeeper://h?ca=/x",
            "zookeepers://h",
            "zookeepers://h?ca=/x&cert=/y",
        ] {
            let error = Config::parse(url).err().unwrap_or_else(|| panic!("{url} is taken"));
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.hint().is_some(), "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
        }
        assert!(!format!("{:?}", config("zookeeper://me:hunter2@h")).contains("hunter2"));
    }
}
