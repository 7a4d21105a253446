//! The settings of the engine, and its URLs.

use std::path::PathBuf;
use std::time::Duration;

use tenure_core::engine::EngineUrl;
use tenure_core::engine::url::{HostPort, Login, UrlSyntax};
use tenure_core::error::Result;
use tenure_core::model::claim::{ClaimId, Name};

use crate::keys::{Keys, Layout};

const URL: UrlSyntax = UrlSyntax {
    engine: "etcd",
    hint: "write `etcd://host1,host2,host3` or `etcds://user:password@host:2379/prefix`",
};
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
    pub(crate) addresses: Vec<HostPort>,
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

/// The identity of the client by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
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
    /// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) for anything else. No password appears in it.
    pub fn parse(url: &str) -> Result<Config> {
        let url = EngineUrl::parse(URL, url)?;
        let is_tls = url.scheme(&[("etcd", false), ("etcds", true)])?;
        let mut settings = url.settings()?;
        let layouts = [("tenure", Layout::Tenure), ("etcdctl", Layout::Etcdctl)];
        let timeouts = Duration::ZERO..=ELECTION_TIMEOUT_MAX;
        let layout = settings.choice("layout", &layouts)?.unwrap_or(Layout::Tenure);
        let identity = settings.tls_identity(is_tls, "etcds")?;
        let config = Config {
            addresses: url.hosts(PORT, HOSTS_MAX)?,
            is_tls,
            login: url.login_of_user()?,
            prefix: read_prefix(&url, layout)?,
            ca: settings.tls_file("ca", is_tls, "etcds")?,
            identity: identity.map(|(certificate, key)| Identity { certificate, key }),
            election_timeout: settings.duration("election_timeout", timeouts)?.unwrap_or(ELECTION_TIMEOUT),
            layout,
        };
        settings.finish()?;
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

    /// As [`Config::entry_key`], for a slot of a pool: the key is there as long as the slot is held, and its create
    /// revision is the token of the holder.
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
}

fn read_prefix(url: &EngineUrl<'_>, layout: Layout) -> Result<String> {
    let Some(mut prefix) = url.path()? else {
        let usual = if layout == Layout::Etcdctl { "" } else { PREFIX };
        return Ok(usual.to_owned());
    };
    if prefix.len() > PREFIX_BYTES_MAX || prefix.contains(char::is_control) {
        return Err(url.invalid(format!(
            "the prefix is longer than {PREFIX_BYTES_MAX} bytes or has control characters"
        )));
    }
    if !prefix.is_empty() && !prefix.ends_with('/') {
        prefix.push('/');
    }
    Ok(prefix)
}

#[cfg(test)]
mod tests;
