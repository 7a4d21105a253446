//! The settings of the engine, and its URLs.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use tenure_core::engine::EngineUrl;
use tenure_core::engine::url::{Login, Settings, UrlSyntax};
use tenure_core::error::Result;

use crate::locks::node::Layout;
use crate::name::is_path;

const URL: UrlSyntax = UrlSyntax { engine: "zookeeper", hint: "write `zookeeper://host1,host2,host3/path`" };
/// The port of a server, with TLS or without.
const PORT: u16 = 2181;
/// The most hosts of a URL. They are tried one beside the other, so this bounds the connections.
const HOSTS_MAX: usize = 16;
/// What a client asks for if the URL does not say. Servers grant 2 to 20 of their ticks.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
/// The length of a tick unless a server is configured otherwise.
const TICK: Duration = Duration::from_secs(2);
/// What a timeout can be here.
const SESSION_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(400)..=Duration::from_secs(3600);

/// How to connect to the engine.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// `host:port` each.
    pub(crate) hosts: Vec<String>,
    pub(crate) is_tls: bool,
    pub(crate) login: Option<Login>,
    pub(crate) is_sasl: bool,
    /// Below which node everything is: empty, or `/a/b`.
    pub(crate) chroot: String,
    /// How long the entries of a client that is not heard of live.
    pub(crate) session_timeout: Duration,
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
    /// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let url = EngineUrl::parse(URL, url)?;
        let is_tls = url.scheme(&[("zookeeper", false), ("zookeepers", true)])?;
        // As it is written: a `%` is part of a node's name.
        let chroot = url.path_as_written().trim_end_matches('/').to_owned();
        if !is_path(&chroot) {
            return Err(url.invalid("the path after its hosts is no node's"));
        }
        let mut settings = url.settings()?;
        let layouts = [("tenure", Layout::Tenure), ("curator", Layout::Curator), ("kazoo", Layout::Kazoo)];
        let config = Config {
            hosts: url.hosts(PORT, HOSTS_MAX)?.iter().map(ToString::to_string).collect(),
            is_tls,
            login: url.login_of_user()?,
            is_sasl: settings.choice("auth", &[("digest", false), ("sasl", true)])?.unwrap_or(false),
            chroot,
            session_timeout: settings
                .duration("session_timeout", SESSION_TIMEOUTS)?
                .unwrap_or(SESSION_TIMEOUT),
            tick: settings.duration("tick", Duration::ZERO..=*SESSION_TIMEOUTS.end())?.unwrap_or(TICK),
            layout: settings.choice("layout", &layouts)?.unwrap_or_default(),
            ca: settings.tls_file("ca", is_tls, "zookeepers")?,
            identity: settings.tls_identity(is_tls, "zookeepers")?,
        };
        config.check(&settings)?;
        settings.finish()?;
        Ok(config)
    }

    /// Whether its parts go together.
    fn check(&self, settings: &Settings) -> Result<()> {
        if self.tick.is_zero() || self.tick > self.session_timeout / 2 {
            return Err(settings
                .invalid("`tick` is zero, or more than half of `session_timeout`")
                .with_hint("it is the servers' `tickTime`; they grant no timeout below two of them"));
        }
        if self.is_tls && self.ca.is_none() {
            return Err(settings
                .invalid("TLS needs a file with root certificates")
                .with_hint("add `?ca=/path/of/the.pem`"));
        }
        if self.is_sasl && self.login.is_none() {
            return Err(settings
                .invalid("`auth=sasl` needs a user and a password")
                .with_hint("write `user:password@` before the hosts"));
        }
        // ZooKeeper's digest of both ends the user at the first colon.
        if self.login.as_ref().is_some_and(|login| login.user.contains(':')) {
            return Err(settings.invalid("the user has a colon"));
        }
        Ok(())
    }

    /// The servers, as a message may name them.
    pub(crate) fn servers(&self) -> String {
        self.hosts.join(" or ")
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

#[cfg(test)]
mod tests {
    use tenure_core::error::ErrorKind;

    use super::*;

    fn config(url: &str) -> Config {
        Config::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn a_url_says_where_and_how() {
        let least = config("zookeeper://h");
        assert_eq!(
            (least.hosts, least.chroot, least.session_timeout),
            (vec!["h:2181".to_owned()], String::new(), SESSION_TIMEOUT)
        );
        let full = config(
            "zookeeper://me:a%40b%3F@h1:1,[::1],h3:3/a/b/?session_timeout=4s&tick=500ms&layout=kazoo&auth=sasl",
        );
        assert_eq!(full.hosts, ["h1:1", "[::1]:2181", "h3:3"]);
        assert_eq!(full.login, Some(Login { user: "me".to_owned(), password: "a@b?".to_owned() }));
        assert_eq!((full.chroot.as_str(), full.layout, full.is_sasl), ("/a/b", Layout::Kazoo, true));
        assert_eq!((full.session_timeout, full.tick), (Duration::from_secs(4), Duration::from_millis(500)));
        let tls = config("zookeepers://h/?ca=/a.pem&cert=/b.pem&key=/c.pem");
        assert!(tls.is_tls && tls.ca.is_some() && tls.identity.is_some());
    }

    // page: docs/engines/zookeeper.md "| `session_timeout` | 30s"
    // page: docs/engines/zookeeper.md "| `tick` | 2s"
    #[test]
    fn a_session_of_30_seconds_and_a_tick_of_2_are_usual() {
        let usual = config("zookeeper://h");
        assert_eq!((usual.session_timeout, usual.tick), (Duration::from_secs(30), Duration::from_secs(2)));
        // Less than two ticks is never granted.
        let takes = |query: &str| Config::parse(&format!("zookeeper://h?{query}")).is_ok();
        assert!(takes("session_timeout=4s") && !takes("session_timeout=3s"));
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
            "zookeeper://a%3Ab:hunter2@h",
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
