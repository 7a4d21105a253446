//! Ports that no other test uses.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::TcpListener;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Below are the usual ports of servers, above those that the system gives to outgoing connections.
const PORTS: Range<u16> = 20_000..32_700;

/// A free port of 127.0.0.1, which no other test takes while this value lives.
///
/// The port itself stays unbound, so that a server can be killed and started again on it. What reserves it is
/// a socket in the abstract namespace: it is as wide as the ports are (the network namespace), leaves no file
/// and ends with this process.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reserved: UnixListener,
}

impl Port {
    /// Finds one.
    ///
    /// # Panics
    /// If none is free.
    pub fn free() -> Port {
        let count = PORTS.end - PORTS.start;
        let random = RandomState::new().build_hasher().finish() % u64::from(count);
        let first = u16::try_from(random).expect("a remainder of a u16");
        let tried = (0..count).map(|step| PORTS.start + (first + step) % count);
        tried.into_iter().find_map(Port::reserve).expect("a free port")
    }

    /// Returns its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    fn reserve(number: u16) -> Option<Port> {
        let name = format!("tenure-test-port-{number}");
        let address = SocketAddr::from_abstract_name(name).expect("a short name");
        let reserved = UnixListener::bind_addr(&address).ok()?;
        // Somebody else may listen on it, or a server that outlived the test which started it.
        TcpListener::bind(("127.0.0.1", number)).ok()?;
        Some(Port { number, _reserved: reserved })
    }
}
