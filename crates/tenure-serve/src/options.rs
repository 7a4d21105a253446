//! How a server is set up.

use std::path::PathBuf;
use std::time::Duration;

use tenure_metrics::Address;

use crate::access::forwarded::Network;
use crate::trace::Below;

/// The settings of a server.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tenure_serve::Options;
///
/// let options = Options::new("127.0.0.1:0".parse()?).drain(Duration::from_secs(5)).host("locks.example");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) listen: Address,
    pub(crate) tokens: Option<PathBuf>,
    pub(crate) tls: Option<Tls>,
    pub(crate) hosts: Vec<String>,
    pub(crate) trusted_proxies: Vec<Network>,
    pub(crate) drain: Duration,
    pub(crate) is_read_only: bool,
    pub(crate) waiting_max: usize,
    pub(crate) streams_max: usize,
    pub(crate) connections_max: usize,
    pub(crate) long_held: Vec<String>,
    pub(crate) has_dashboard: bool,
    pub(crate) cookie_key: Option<PathBuf>,
    pub(crate) below: Option<Below>,
}

/// The files of a server's certificate.
///
/// No example: three paths, for [`Options::tls`].
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificate and what leads to its authority, in PEM.
    pub certificate: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// The authorities of clients, in PEM. A client that has a certificate of them is known by its names.
    pub client_authorities: Option<PathBuf>,
}

impl Options {
    /// Listens at an address, which without [`Options::tokens`] must be of this machine alone.
    pub fn new(listen: Address) -> Options {
        Options {
            listen,
            tokens: None,
            tls: None,
            hosts: Vec::new(),
            trusted_proxies: Vec::new(),
            drain: Duration::from_secs(20),
            is_read_only: false,
            waiting_max: crate::limits::WAITING_MAX,
            streams_max: crate::limits::STREAMS_MAX,
            connections_max: crate::limits::CONNECTIONS_MAX,
            long_held: Vec::new(),
            has_dashboard: true,
            cookie_key: None,
            below: None,
        }
    }

    /// Lets in whoever has a token of this file (default: everybody who reaches it). The file is its owner's alone, and is read again when it
    /// changes.
    #[must_use]
    pub fn tokens(mut self, file: impl Into<PathBuf>) -> Options {
        self.tokens = Some(file.into());
        self
    }

    /// Speaks TLS (default: plain HTTP). It takes the feature `tls`.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Options {
        self.tls = Some(tls);
        self
    }

    /// Adds a name by which clients reach it (default: `localhost` and any address).
    #[must_use]
    pub fn host(mut self, name: &str) -> Options {
        self.hosts.push(name.to_owned());
        self
    }

    /// Believes what proxies of a network say of their clients' addresses in `Forwarded` (default: nobody), for the limit of wrong tokens and
    /// for the log. They must write that header themselves, in the place of what a client has sent or after it.
    #[must_use]
    pub fn trusted_proxy(mut self, network: Network) -> Options {
        self.trusted_proxies.push(network);
        self
    }

    /// Sets how long requests may take that are open when it ends (default 20 s).
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> Options {
        self.drain = drain;
        self
    }

    /// Refuses whatever changes the store (default: no).
    #[must_use]
    pub fn read_only(mut self, is_read_only: bool) -> Options {
        self.is_read_only = is_read_only;
        self
    }

    /// Shows a dashboard at `/` (default: yes).
    #[must_use]
    pub fn dashboard(mut self, has_dashboard: bool) -> Options {
        self.has_dashboard = has_dashboard;
        self
    }

    /// Proves by the key in a file who has signed in to the dashboard (default: by a key of this process, which ends with it). The file is
    /// its owner's alone, and has 32 bytes or more; instances that share it share who is signed in.
    #[must_use]
    pub fn cookie_key(mut self, file: impl Into<PathBuf>) -> Options {
        self.cookie_key = Some(file.into());
        self
    }

    /// Puts the span of a request below the one that its client names in `traceparent` (default: it has no parent). What a traceparent means
    /// is known to a subscriber for OpenTelemetry, and not to this crate.
    #[must_use]
    pub fn below(mut self, below: Below) -> Options {
        self.below = Some(below);
        self
    }

    /// Sets how many requests may wait at a time (default 10,000). More: more memory, 20 KiB for each.
    #[must_use]
    pub fn waiting_max(mut self, most: usize) -> Options {
        self.waiting_max = most;
        self
    }

    /// Has what fits a pattern not count as the oldest hold in the metrics: a leader is held for as long as a program runs.
    #[must_use]
    pub fn long_held(mut self, pattern: &str) -> Options {
        self.long_held.push(pattern.to_owned());
        self
    }

    /// Sets how many connections there may be at a time (default 12,000); others wait in the line of the system. More: more files and memory.
    #[must_use]
    pub fn connections_max(mut self, most: usize) -> Options {
        self.connections_max = most;
        self
    }

    /// Sets how many streams of events may be open at a time (default 1,000). More: more memory, 20 KiB for each.
    #[must_use]
    pub fn streams_max(mut self, most: usize) -> Options {
        self.streams_max = most;
        self
    }
}
