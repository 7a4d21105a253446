//! The doorbell: one Unix datagram socket per client, which others ring after a commit.
//!
//! A ring is a hint and may be lost: the grant itself is in the store, and the waiter's heartbeat finds it. So a
//! sender never waits: a full queue (10 datagrams by default) is left full, and a receiver that finds many at once
//! sends heartbeats for all its waiters. A refused ring is better news than silence: the client may be dead.
//!
//! A socket's path ends at 108 bytes, so a long one is reached through `/proc/self/fd`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use tenure_core::engine::{Incarnation, Wake};
use tenure_core::model::claim::{ClaimId, ClientId, Grant, Name};
use tenure_core::model::token::Token;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::client::watch::Watcher;
use crate::locks::observe::Observers;
use crate::place::directory::Directory;
use crate::place::fork::ClosedOnFork;

/// The format of a datagram. A receiver ignores any other: a heartbeat makes up for it.
const FORMAT: u8 = 1;
/// The longest datagram: a consumer's, with its id and a name in it.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 2 + 8 + 255;
/// The longest path of a socket, with a zero byte behind it.
const PATH_BYTES_MAX: usize = 107;
/// How many datagrams a socket's queue takes where the system does not say.
const QUEUE_DEFAULT: usize = 10;

/// How many unread news a client keeps before it sends one wake for everything instead.
const INBOX_MAX: usize = 4096;

/// How many datagrams are read before others get their turn.
const BURST_MAX: usize = 256;

/// What a ring says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// A waiter has been granted.
    Granted(ClaimId, Grant, Incarnation),
    /// Something changed for a waiter.
    Look(ClaimId),
    /// An observed resource has changed.
    Changed(Name),
    /// Something may be ready in a queue.
    Queue(Name),
    /// A client is about to have items of a queue.
    Consumes(ClientId, Name),
}

impl News {
    /// Appends the news to an empty buffer.
    fn encode(&self, to: &mut Vec<u8>) {
        to.push(FORMAT);
        match self {
            News::Granted(claim, grant, incarnation) => {
                to.push(1);
                to.extend(claim.bits().to_le_bytes());
                to.extend(grant.token.get().to_le_bytes());
                to.extend(grant.slot.unwrap_or(u32::MAX).to_le_bytes());
                to.extend(u64::try_from(grant.ends_in.as_micros()).unwrap_or(u64::MAX).to_le_bytes());
                to.extend(incarnation.0.to_le_bytes());
            }
            News::Look(claim) => {
                to.push(2);
                to.extend(claim.bits().to_le_bytes());
            }
            News::Changed(name) => {
                to.push(3);
                to.extend(name.as_str().as_bytes());
            }
            News::Queue(name) => {
                to.push(4);
                to.extend(name.as_str().as_bytes());
            }
            News::Consumes(client, name) => {
                to.push(5);
                to.extend(client.bits().to_le_bytes());
                to.extend(name.as_str().as_bytes());
            }
        }
    }

    /// Reads a datagram, or returns `None` if it is of another version, or not ours.
    pub(crate) fn decode(bytes: &[u8]) -> Option<News> {
        let (&[format, what], mut rest) = bytes.split_first_chunk::<2>()?;
        if format != FORMAT {
            return None;
        }
        let name = |bytes| Name::new(std::str::from_utf8(bytes).ok()?).ok();
        match what {
            3 => return Some(News::Changed(name(rest)?)),
            4 => return Some(News::Queue(name(rest)?)),
            5 => {
                let client = ClientId::new(u64::from_le_bytes(take(&mut rest)?));
                return Some(News::Consumes(client, name(rest)?));
            }
            _ => {}
        }
        let claim = ClaimId::new(u128::from_le_bytes(take(&mut rest)?));
        let news = match what {
            1 => {
                let token = Token::new(u64::from_le_bytes(take(&mut rest)?));
                let slot = Some(u32::from_le_bytes(take(&mut rest)?)).filter(|slot| *slot != u32::MAX);
                let ends_in = Duration::from_micros(u64::from_le_bytes(take(&mut rest)?));
                let incarnation = Incarnation(u64::from_le_bytes(take(&mut rest)?));
                News::Granted(claim, Grant { token, slot, ends_in }, incarnation)
            }
            2 => News::Look(claim),
            _ => return None,
        };
        rest.is_empty().then_some(news)
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

/// Where a client's socket is.
fn address(directory: &Directory, client: ClientId) -> io::Result<SocketAddrUnix> {
    let mut path = directory.room.path.join("bell");
    path.push(client.to_string());
    if path.as_os_str().as_bytes().len() > PATH_BYTES_MAX {
        path = PathBuf::from(format!("/proc/self/fd/{}/{client}", directory.bell_fd.as_raw_fd()));
    }
    Ok(SocketAddrUnix::new(path.as_os_str().as_bytes())?)
}

/// Makes a client's socket, which does not block.
pub(crate) fn bind(directory: &Directory, client: ClientId) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &address(directory, client)?)?;
    Ok(socket)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

/// How many datagrams wait at a socket at most.
pub(crate) fn queue_length() -> usize {
    std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(QUEUE_DEFAULT)
}

/// What became of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// It was heard, or the queue was full: the client is there.
    Heard,
    /// There is no listener: the client is closed or dead.
    Refused,
}

/// Rings the bells of others.
#[derive(Debug)]
pub(crate) struct WakeSocket {
    socket: OwnedFd,
}

impl WakeSocket {
    pub(crate) fn new() -> io::Result<WakeSocket> {
        Ok(WakeSocket { socket: socket()? })
    }

    /// Rings a client's bell. Never waits.
    pub(crate) fn ring(&self, directory: &Directory, client: ClientId, news: &News) -> SendOutcome {
        let mut datagram = Vec::with_capacity(64);
        news.encode(&mut datagram);
        let Ok(address) = address(directory, client) else { return SendOutcome::Heard };
        match rustix::net::sendto(self.socket.as_fd(), &datagram, SendFlags::NOSIGNAL, &address) {
            Err(Errno::CONNREFUSED | Errno::NOENT) => SendOutcome::Refused,
            // A full queue, and whatever else may be wrong: the heartbeat makes up for it.
            _ => SendOutcome::Heard,
        }
    }
}

/// The news of one client, on their way from its socket to the reader of [`Engine::wakes`].
///
/// [`Engine::wakes`]: tenure_core::engine::Engine::wakes
pub(crate) struct Inbox {
    sender: mpsc::Sender<Wake>,
    receiver: Mutex<Option<mpsc::Receiver<Wake>>>,
    /// News were dropped because they were not read.
    has_overflown: AtomicBool,
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        let (sender, receiver) = mpsc::channel(INBOX_MAX);
        Inbox { sender, receiver: Mutex::new(Some(receiver)), has_overflown: AtomicBool::new(false) }
    }

    /// Puts news in. If it is full, its reader gets one wake for everything.
    pub(crate) fn put(&self, wake: Wake) {
        if self.sender.try_send(wake).is_err() {
            self.has_overflown.store(true, Ordering::Relaxed);
        }
    }

    /// Hands out the news, once.
    pub(crate) fn read(self: &Arc<Self>) -> BoxStream<'static, Wake> {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(receiver) = receiver else { return stream::empty().boxed() };
        let inbox = self.clone();
        stream::unfold((receiver, inbox), async |(mut receiver, inbox)| {
            if inbox.has_overflown.swap(false, Ordering::Relaxed) {
                return Some((Wake::LookAtAll, (receiver, inbox)));
            }
            let wake = receiver.recv().await?;
            Some((wake, (receiver, inbox)))
        })
        .boxed()
    }
}

/// Reads a socket for as long as the client lives, and hands on what it says.
pub(crate) async fn listen(
    socket: AsyncFd<ClosedOnFork>,
    inbox: Arc<Inbox>,
    observers: Arc<Observers>,
    watcher: Arc<Watcher>,
) {
    let burst = queue_length().min(BURST_MAX);
    let mut datagram = [0; DATAGRAM_BYTES_MAX + 1];
    loop {
        let Ok(mut ready) = socket.readable().await else { return };
        let mut count = 0;
        // In a forked child the socket is closed, but there this never runs.
        while count < BURST_MAX
            && let Some(fd) = socket.get_ref().get()
            && let Ok((_, length)) = rustix::net::recv(fd, &mut datagram[..], RecvFlags::DONTWAIT)
        {
            count += 1;
            match News::decode(&datagram[..length]) {
                Some(News::Granted(claim, grant, incarnation)) => {
                    inbox.put(Wake::Granted { claim, grant, incarnation });
                }
                Some(News::Look(claim)) => inbox.put(Wake::Look(claim)),
                Some(News::Changed(name)) => observers.ring(Some(&name)),
                Some(News::Queue(name)) => inbox.put(Wake::Queue(name)),
                Some(News::Consumes(client, name)) => watcher.watch_consumers(&name, &[client]),
                None => {}
            }
        }
        if count >= burst {
            // The queue was full, so a sender may have found no room in it.
            inbox.put(Wake::LookAtAll);
            observers.ring(None);
        }
        if count < BURST_MAX {
            ready.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_survive_the_way() {
        let claim = ClaimId::new(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let grant = |slot| Grant { token: Token::new(17), slot, ends_in: Duration::from_micros(4_999_999) };
        let long = Name::new(&"n".repeat(255)).unwrap();
        for news in [
            News::Granted(claim, grant(None), Incarnation(9)),
            News::Granted(claim, grant(Some(1_048_575)), Incarnation(u64::MAX)),
            News::Look(claim),
            News::Changed(long.clone()),
            News::Queue(long.clone()),
            News::Consumes(ClientId::new(u64::MAX), long),
        ] {
            let mut datagram = Vec::new();
            news.encode(&mut datagram);
            assert!(datagram.len() <= DATAGRAM_BYTES_MAX);
            assert_eq!(News::decode(&datagram), Some(news.clone()));
            if matches!(news, News::Granted(..) | News::Look(_)) {
                assert_eq!(News::decode(&datagram[..datagram.len() - 1]), None);
            }
            datagram[0] = FORMAT + 1;
            assert_eq!(News::decode(&datagram), None);
        }
    }
}
