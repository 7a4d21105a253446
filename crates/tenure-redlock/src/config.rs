//! The settings of the engine, and its URLs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tenure_core::engine::EngineUrl;
use tenure_core::engine::url::{Login, UrlSyntax};
use tenure_core::error::Result;
use tenure_core::model::claim::{TTL_MAX, TTL_MIN};
use tenure_redis::server::{Address, read_prefix, read_servers};

use crate::rounds::ENGINE;

const URL: UrlSyntax = UrlSyntax { engine: ENGINE, hint: "write `redlock://host1,host2,host3`" };
/// The longest ttl, unless the URL says otherwise.
const MAX_TTL: Duration = Duration::from_secs(60);

/// How to connect to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) servers: Vec<Address>,
    pub(crate) is_tls: bool,
    pub(crate) login: Option<Login>,
    pub(crate) db: u16,
    pub(crate) prefix: String,
    /// The file with the root certificates to trust; none: those of the Mozilla programme.
    pub(crate) ca: Option<PathBuf>,
    /// The longest ttl: for so long a server that has forgotten its holds does not count.
    pub(crate) max_ttl: Duration,
    /// The weaker form of the tokens, with which tests see what the strict one is for.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) has_plain_tokens: bool,
}

impl Config {
    /// Reads a URL: `redlock://[[user]:password@]host[:6379],host,host`, `redlocks://` for TLS, with three, five or more independent
    /// servers.
    ///
    /// IPv6 addresses are written in brackets. The settings after `?` are `max_ttl` (default `60s`), the longest ttl, the same for all
    /// clients, `prefix` (default `tenure:`, may be empty), `db` (0) and `ca` (a file with root certificates). All parts may be
    /// percent-encoded.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let url = EngineUrl::parse(URL, url)?;
        let is_tls = url.scheme(&[("redlock", false), ("redlocks", true)])?;
        if url.path()?.is_some_and(|path| !path.is_empty()) {
            return Err(url.invalid("it has a path; the database is a setting, `?db=1`"));
        }
        let servers = checked_quorum(&url, read_servers(&url)?)?;
        let mut settings = url.settings()?;
        settings.refuse("replicas", "does not go with a quorum, whose servers have none")?;
        let config = Config {
            servers,
            is_tls,
            login: url.login_with_password()?,
            db: settings.number("db", 0..=u16::MAX)?.unwrap_or(0),
            prefix: read_prefix(&mut settings)?,
            ca: settings.tls_file("ca", is_tls, "redlocks")?,
            max_ttl: settings.duration("max_ttl", TTL_MIN..=TTL_MAX)?.unwrap_or(MAX_TTL),
            #[cfg(any(test, feature = "testing"))]
            has_plain_tokens: false,
        };
        settings.finish()?;
        Ok(config)
    }

    /// Takes the largest number that any server has granted for the token, without writing it back. Tests see what goes wrong then.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn with_plain_tokens(mut self) -> Config {
        self.has_plain_tokens = true;
        self
    }
}

fn checked_quorum(url: &EngineUrl<'_>, servers: Vec<Address>) -> Result<Vec<Address>> {
    let hint = "name three or five independent servers: `redlock://host1,host2,host3`. An even number survives no more failures than \
                one server less, and a server that is named twice has two votes";
    let distinct: BTreeSet<&Address> = servers.iter().collect();
    if distinct.len() < servers.len() {
        return Err(url.invalid("a server is named twice").with_hint(hint));
    }
    if servers.len() < 3 || servers.len().is_multiple_of(2) {
        return Err(url.invalid(format!("it names {} servers", servers.len())).with_hint(hint));
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use tenure_core::ErrorKind;

    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    #[test]
    fn a_url_names_its_servers() {
        for (url, servers, is_tls) in [
            ("redlock://h1,h2:7,[::1]", [tcp("h1", 6379), tcp("h2", 7), tcp("::1", 6379)], false),
            ("redlocks://:p@a,b,c/", [tcp("a", 6379), tcp("b", 6379), tcp("c", 6379)], true),
        ] {
            let config = Config::parse(url).unwrap();
            assert_eq!((config.servers.as_slice(), config.is_tls), (servers.as_slice(), is_tls), "{url}");
        }
    }

    // page: docs/engines/redlock.md "| `60s` | the longest ttl, 100 ms to 24 h"
    #[test]
    fn a_quorum_has_an_odd_number_of_servers_and_a_longest_ttl() {
        for (url, why) in [
            ("redlock://a", "1 servers"),
            ("redlock://a,b", "2 servers"),
            ("redlock://a,b,c,d", "4 servers"),
            ("redlock://a,b,a:6379", "named twice"),
            ("redlock://a,b,c/2", "path"),
            ("redlock://a,b,c?replicas=1", "replicas"),
            ("redlock://a,b,c?max_ttl=60", "max_ttl"),
            ("redlock://a,b,c?max_ttl=25h", "max_ttl"),
            ("redlock://a,b,c?max_ttl=1ms", "max_ttl"),
            ("redlock://a,b,c?max_ttl=-1s", "max_ttl"),
            ("redis://a,b,c", "scheme"),
        ] {
            let error = Config::parse(url).unwrap_err();
            assert!(error.to_string().contains(why), "{url}: {error}");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        }
        for (text, millis) in [("100ms", 100), ("60s", 60_000), ("2m", 120_000), ("24h", 86_400_000)] {
            let config = Config::parse(&format!("redlock://a,b,c?max_ttl={text}&db=3&prefix=x")).unwrap();
            assert_eq!((config.max_ttl, config.db), (Duration::from_millis(millis), 3), "{text}");
        }
        assert_eq!(Config::parse("redlock://a,b,c").unwrap().max_ttl, Duration::from_secs(60));
    }
}
