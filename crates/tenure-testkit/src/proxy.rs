//! A network that fails as a test wants it: a proxy before one TCP server.
//!
//! Four threads for each connection, two each way: one reads and notes when the bytes are due, one waits until
//! then, and only there decides whether they arrive. So a delay adds no more to a stream than to one packet, and
//! a failure hits what is under way.
//!
//! TCP loses nothing from the middle of a stream. A connection that has lost bytes therefore never delivers any
//! that come after them, and is cut by [`Proxy::heal`]; otherwise a client would take the reply to one request
//! for the reply to an earlier one, which no network can do to it.
#![allow(clippy::disallowed_methods, reason = "the time of a real network is the machine's")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use crate::{PATIENCE, Port};

mod addresses;

use addresses::Addresses;

/// How long a connection that is cut may last on.
const CUT_MAX: Duration = Duration::from_millis(10);

/// What becomes of a connection whose reply is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It stays open and silent, so that the client waits as long as it waits for an answer.
    Silence,
    /// It is cut as soon as the server replies, so that the client knows at once.
    Cut,
}

/// A proxy. It ends, and its connections are cut, when this value ends.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    target: SocketAddr,
    network: Arc<Network>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

/// What all connections share.
#[derive(Debug, Default)]
struct Network {
    faults: Mutex<Faults>,
    connections: Mutex<Vec<Arc<Connection>>>,
    refuses: AtomicBool,
    addresses: Mutex<Addresses>,
}

#[derive(Debug, Default)]
struct Faults {
    delay: Duration,
    /// The same for what a connection begins with.
    delay_of_new: Duration,
    drops_requests: bool,
    drops_replies: bool,
    is_paused: bool,
    marked: Option<Marked>,
    /// What the connections of the one client that is cut off begin with.
    silenced: Option<Vec<u8>>,
}

/// Requests whose replies are lost.
#[derive(Debug)]
struct Marked {
    bytes: Vec<u8>,
    left: usize,
    loss: Loss,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// Nothing arrives before.
    opens_at: Instant,
    /// Says for each direction whether bytes were lost.
    has_lost: [AtomicBool; 2],
    /// Says for each direction whether its end was delivered.
    has_ended: [AtomicBool; 2],
    is_cut: AtomicBool,
    is_held_back: AtomicBool,
    /// What becomes of it at the next reply.
    loss: Mutex<Option<Loss>>,
}

/// The way that bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Requests,
    Replies,
}

/// Bytes and when they arrive; none at the end of the stream.
type Parcel = (Instant, Vec<u8>);

impl Proxy {
    /// Starts one before a server, which need not run yet.
    ///
    /// # Panics
    /// If it cannot.
    pub fn start(target: impl Into<SocketAddr>) -> Proxy {
        let proxy = Proxy {
            port: Port::free(),
            target: target.into(),
            network: Arc::default(),
            accepting: Mutex::new(None),
        };
        proxy.accept();
        proxy
    }

    /// Returns the port of 127.0.0.1 on which it listens.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Calls ports of 127.0.0.1 otherwise in all replies: `(20005, 31000)` has a client go to 31000 where the server sends it to
    /// 127.0.0.1:20005, so that one who is told by a Sentinel or a cluster where the servers are stays behind proxies of its own.
    ///
    /// An address that arrives in two pieces, as in an answer of more than 64 KiB, is not found, and the client goes there around
    /// its proxy.
    ///
    /// # Panics
    /// If a port is below 10000.
    pub fn rename(&self, ports: &[(u16, u16)]) {
        *locked(&self.network.addresses) = Addresses::new(ports);
    }

    /// Returns how many connections there are.
    pub fn connections(&self) -> usize {
        locked(&self.network.connections).len()
    }

    /// Ends all faults. Connections that have lost something are cut; see the file's top for why.
    pub fn heal(&self) {
        *locked(&self.network.faults) = Faults::default();
        let lossy = |connection: &Connection| {
            connection.has_lost.iter().any(is) || locked(&connection.loss).is_some()
        };
        self.network.cut(lossy);
        let free = |connection: &Arc<Connection>| connection.is_held_back.store(false, Ordering::SeqCst);
        locked(&self.network.connections).iter().for_each(free);
        if self.network.refuses.swap(false, Ordering::SeqCst) {
            self.accept();
        }
    }

    /// Delays what is sent from now on, each way.
    pub fn delay(&self, by: Duration) {
        locked(&self.network.faults).delay = by;
    }

    /// Moves the server so far away that a message takes so long there and as long back. That holds for connections that are new from now on,
    /// whose first message waits for the handshake of TCP.
    pub fn move_away(&self, one_way: Duration) {
        let mut faults = locked(&self.network.faults);
        (faults.delay, faults.delay_of_new) = (one_way, 3 * one_way);
    }

    /// Loses all replies; requests arrive.
    pub fn drop_replies(&self) {
        locked(&self.network.faults).drops_replies = true;
    }

    /// Loses all requests; replies to earlier ones arrive.
    pub fn drop_requests(&self) {
        locked(&self.network.faults).drops_requests = true;
    }

    /// Loses everything. Connections are accepted, and stay open.
    pub fn black_hole(&self) {
        let mut faults = locked(&self.network.faults);
        (faults.drops_requests, faults.drops_replies) = (true, true);
    }

    /// Holds everything back, both ways, until [`Proxy::heal`] delivers it: as TCP does where a network is cut for less
    /// time than it tries again.
    pub fn pause(&self) {
        locked(&self.network.faults).is_paused = true;
    }

    /// Holds back what the present connections carry, both ways, until [`Proxy::heal`] delivers it, also if the client has hung up
    /// meanwhile. New connections are served: so what is sent later may arrive earlier.
    pub fn hold_back(&self) {
        locked(&self.network.connections).iter().for_each(|connection| set(&connection.is_held_back));
    }

    /// [Holds back](Proxy::hold_back) what the present connections carry, and delays what those that are new from now on begin with until
    /// they are so old: as a server does that is slow to let anybody in.
    pub fn fall_silent(&self, login: Duration) {
        locked(&self.network.faults).delay_of_new = login;
        self.hold_back();
    }

    /// Resets all connections. New ones are served.
    pub fn cut(&self) {
        self.network.cut(|_| true);
    }

    /// Resets one of the connections that there are, if there are any: the one of that number, counted on from the first after the last.
    pub fn cut_one(&self, number: usize) {
        if let Some(one) = self.network.one(number) {
            self.network.cut(|other| std::ptr::eq(other, one.as_ref()));
        }
    }

    /// Loses what one of the connections that there are carries from now on; the others go on.
    pub fn lose_one(&self, number: usize, requests: bool, replies: bool) {
        if let Some(one) = self.network.one(number) {
            one.has_lost[Way::Requests as usize].fetch_or(requests, Ordering::SeqCst);
            one.has_lost[Way::Replies as usize].fetch_or(replies, Ordering::SeqCst);
        }
    }

    /// Holds back what one of the connections that there are carries, both ways, until [`Proxy::heal`] delivers it.
    pub fn hold_back_one(&self, number: usize) {
        if let Some(one) = self.network.one(number) {
            set(&one.is_held_back);
        }
    }

    /// Refuses new connections, as if nobody listened. Those that there are go on.
    pub fn refuse(&self) {
        if !self.network.refuses.swap(true, Ordering::SeqCst) {
            // Wakes the thread that accepts; where it is gone already, nobody listens, as wanted.
            drop(TcpStream::connect(("127.0.0.1", self.port())));
            let accepting = locked(&self.accepting).take();
            accepting.expect("it was accepting").join().expect("accepting does not panic");
        }
    }

    /// Loses the replies to the next `count` requests that contain these bytes, and with each whatever else its
    /// connection still had to deliver. The requests arrive.
    pub fn lose_replies(&self, count: usize, bytes: &[u8], loss: Loss) {
        assert!(!bytes.is_empty(), "every request contains nothing");
        locked(&self.network.faults).marked = Some(Marked { bytes: bytes.to_vec(), left: count, loss });
    }

    /// Loses everything on connections that say these bytes, from then on; and cuts those that there are, since
    /// they may have said them before. So one client of several can be cut off, if what it says first names it.
    pub fn silence(&self, bytes: &[u8]) {
        assert!(!bytes.is_empty(), "every connection says nothing");
        locked(&self.network.faults).silenced = Some(bytes.to_vec());
        self.cut();
    }

    fn accept(&self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port())).expect("a port of its own");
        let (network, target) = (self.network.clone(), self.target);
        let accepting = spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if is(&network.refuses) {
                    return;
                }
                // Where nobody listens, the client's connection ends at once.
                if let Ok(server) = TcpStream::connect(target) {
                    network.join(client, server);
                }
            }
        });
        *locked(&self.accepting) = Some(accepting);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse();
        self.cut();
    }
}

impl Network {
    /// Carries bytes both ways until the connection ends.
    fn join(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a TCP connection");
            stream.set_write_timeout(Some(PATIENCE)).expect("a TCP connection");
        }
        let connection = Arc::new(Connection {
            client,
            server,
            opens_at: Instant::now() + locked(&self.faults).delay_of_new,
            has_lost: Default::default(),
            has_ended: Default::default(),
            is_cut: AtomicBool::new(false),
            is_held_back: AtomicBool::new(false),
            loss: Mutex::new(None),
        });
        locked(&self.connections).push(connection.clone());
        for way in [Way::Requests, Way::Replies] {
            let (sender, receiver) = channel();
            let (network, from) = (self.clone(), connection.clone());
            spawn(move || network.read(&from, way, &sender));
            let (network, to) = (self.clone(), connection.clone());
            spawn(move || network.deliver(&to, way, &receiver));
        }
    }

    fn read(&self, connection: &Connection, way: Way, parcels: &Sender<Parcel>) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            // A reset ends a stream as well.
            let count = connection.from(way).read(&mut bytes).unwrap_or(0);
            let due = connection.opens_at.max(Instant::now() + locked(&self.faults).delay);
            if parcels.send((due, bytes[..count].to_vec())).is_err() || count == 0 {
                return;
            }
        }
    }

    fn deliver(&self, connection: &Connection, way: Way, parcels: &Receiver<Parcel>) {
        let mut seen = Vec::new();
        for (due, mut bytes) in parcels {
            while !is(&connection.is_cut) {
                let left = due.saturating_duration_since(Instant::now());
                match locked(&self.faults).is_paused || is(&connection.is_held_back) {
                    true => sleep(CUT_MAX),
                    false if left.is_zero() => break,
                    false => sleep(left.min(CUT_MAX)),
                }
            }
            if is(&connection.is_cut) {
                return;
            }
            // While a request is delivered, no reply is: one to an earlier request must not cut the connection
            // before this one has arrived, nor may the reply to this one come before it was marked.
            let mut loss = locked(&connection.loss);
            let is_whole = if way == Way::Requests {
                seen.extend_from_slice(&bytes);
                if self.is_silenced(&seen) {
                    connection.has_lost.iter().for_each(set);
                }
                *loss = loss.or(self.mark(&mut seen));
                let is_whole = self.arrive(connection, way, None, &bytes);
                drop(loss);
                is_whole
            } else {
                let fate = *loss;
                drop(loss);
                locked(&self.addresses).rename(&mut bytes);
                self.arrive(connection, way, fate, &bytes)
            };
            if !is_whole {
                self.cut(|other| std::ptr::eq(other, connection));
            }
        }
        if connection.has_ended.iter().all(is) {
            locked(&self.connections).retain(|other| !std::ptr::eq(other.as_ref(), connection));
        }
    }

    fn one(&self, number: usize) -> Option<Arc<Connection>> {
        let connections = locked(&self.connections);
        connections.get(number % connections.len().max(1)).cloned()
    }

    /// Delivers bytes, or not. Returns whether the connection stays whole.
    fn arrive(&self, connection: &Connection, way: Way, loss: Option<Loss>, bytes: &[u8]) -> bool {
        let has_lost = &connection.has_lost[way as usize];
        let faults = locked(&self.faults);
        let drops = if way == Way::Requests { faults.drops_requests } else { faults.drops_replies };
        drop(faults);
        if loss == Some(Loss::Cut) {
            return false;
        }
        if drops || is(has_lost) || loss.is_some() {
            set(has_lost);
            return true;
        }
        if bytes.is_empty() {
            // One side may go on after the other has ended, or be gone already.
            drop(connection.to(way).shutdown(Shutdown::Write));
            set(&connection.has_ended[way as usize]);
            return true;
        }
        connection.to(way).write_all(bytes).is_ok()
    }

    /// Whether what was seen is of a client who is cut off.
    fn is_silenced(&self, seen: &[u8]) -> bool {
        let faults = locked(&self.faults);
        let silenced = faults.silenced.as_ref();
        silenced.is_some_and(|bytes| seen.windows(bytes.len()).any(|window| window == bytes))
    }

    /// Whether the reply to what was seen is to be lost.
    fn mark(&self, seen: &mut Vec<u8>) -> Option<Loss> {
        let mut faults = locked(&self.faults);
        let kept = faults.silenced.as_ref().map_or(0, |bytes| bytes.len() - 1);
        let Some(marked) = faults.marked.as_mut().filter(|marked| marked.left > 0) else {
            seen.drain(..seen.len().saturating_sub(kept));
            return None;
        };
        if seen.windows(marked.bytes.len()).any(|window| window == marked.bytes) {
            marked.left -= 1;
            seen.clear();
            return Some(marked.loss);
        }
        // The bytes may begin in this parcel and end in the next.
        let kept = kept.max(marked.bytes.len() - 1);
        seen.drain(..seen.len().saturating_sub(kept));
        None
    }

    /// Resets some connections.
    fn cut(&self, chosen: impl Fn(&Connection) -> bool) {
        locked(&self.connections).retain(|connection| {
            let is_chosen = chosen(connection);
            if is_chosen {
                set(&connection.is_cut);
                for stream in [&connection.client, &connection.server] {
                    // The threads that read end at once, the others within moments. When the last has let go,
                    // the system sends a reset. It may have failed before, and needs none.
                    let _ = set_socket_linger(stream, Some(Duration::ZERO));
                    drop(stream.shutdown(Shutdown::Read));
                }
            }
            !is_chosen
        });
    }
}

impl Connection {
    fn from(&self, way: Way) -> &TcpStream {
        if way == Way::Requests { &self.client } else { &self.server }
    }

    fn to(&self, way: Way) -> &TcpStream {
        if way == Way::Requests { &self.server } else { &self.client }
    }
}

fn is(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}

fn set(flag: &AtomicBool) {
    flag.store(true, Ordering::SeqCst);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
