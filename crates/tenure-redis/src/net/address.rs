//! Where a server is.

use std::fmt;
use std::path::PathBuf;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A host name or an IP address (IPv6 without its brackets), and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads `host:port` as servers write it: IPv6 without brackets, an empty host for "where you asked me".
    pub(crate) fn parse(text: &str, asked: &Address) -> Option<Address> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Address::of(host, port.parse().ok()?, asked))
    }

    /// Makes an address of what a server says. It may not know its own name: then it is where it was asked.
    pub(crate) fn of(host: &str, port: u16, asked: &Address) -> Address {
        match (host, asked) {
            ("" | "?", Address::Tcp(host, _)) => Address::Tcp(host.clone(), port),
            (host, _) => {
                let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                Address::Tcp(host.to_owned(), port)
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
