//! A connection that must go on: whoever sends a byte a second, or reads nothing, keeps a place from others.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::response::Response;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::limits::{HEAD_MAX, STALL_MAX};
use crate::multiplexed::{Multiplexed, Open};

/// What a connection does now.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    phase: AtomicU8,
    is_overdue: AtomicBool,
    /// After how many milliseconds a connection is given up whose other end acknowledges nothing; 0: the system decides.
    gives_up_after: AtomicU32,
    /// What is open on it, if it is one of HTTP/2.
    pub(crate) streams: Arc<Multiplexed>,
}

/// What a connection is made of.
pub(crate) trait Socket {
    /// Gives up after so many milliseconds in which nothing is acknowledged that was written.
    fn give_up_after(&self, millis: u32) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn give_up_after(&self, millis: u32) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_tcp_user_timeout(self, millis)?)
    }
}

impl Socket for UnixStream {
    /// Its other end is in this machine: it is there or not.
    fn give_up_after(&self, _millis: u32) -> io::Result<()> {
        Ok(())
    }
}

/// A head is read: so it is on a new connection.
const HEAD: u8 = 0;
const SERVING: u8 = 1;
/// Between two requests.
const IDLE: u8 = 2;
/// Of HTTP/2: what comes may be about any of its requests, or about none.
const MULTIPLEXED: u8 = 3;

impl Pace {
    /// The head of a request is there.
    pub(crate) fn begin(&self, is_multiplexed: bool) -> Option<Open> {
        if is_multiplexed {
            self.phase.store(MULTIPLEXED, Ordering::Relaxed);
            return Some(self.streams.begin());
        }
        self.phase.store(SERVING, Ordering::Relaxed);
        self.gives_up_after.store(0, Ordering::Relaxed);
        None
    }

    /// From the next write on the connection is given up whose other end acknowledges nothing for so long: it is gone, and nobody said so.
    /// Where it has many requests, the least of what they want counts, until it ends.
    pub(crate) fn give_up_after(&self, period: Duration) {
        let millis = u32::try_from(period.as_millis()).unwrap_or(u32::MAX).max(1);
        let is_multiplexed = self.phase.load(Ordering::Relaxed) == MULTIPLEXED;
        let least = |now: u32| if is_multiplexed && now > 0 { now.min(millis) } else { millis };
        // It never fails.
        self.gives_up_after.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(least(now))).ok();
    }

    /// It is answered.
    pub(crate) fn answered(&self, open: Option<Open>, response: Response) -> Response {
        match open {
            Some(open) => open.answered(response),
            None => {
                self.phase.store(IDLE, Ordering::Relaxed);
                response
            }
        }
    }

    /// Whether it was ended because it did not go on.
    pub(crate) fn is_overdue(&self) -> bool {
        self.is_overdue.load(Ordering::Relaxed)
    }
}

/// A stream with deadlines.
pub(crate) struct Paced<S> {
    stream: S,
    /// What was read to see how it begins, and is still to be given.
    first: Vec<u8>,
    pace: Arc<Pace>,
    head: Option<Pin<Box<Sleep>>>,
    stall: Option<Pin<Box<Sleep>>>,
    gives_up_after: u32,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, pace: Arc<Pace>) -> Paced<S> {
        Paced { stream, first: Vec::new(), pace, head: None, stall: None, gives_up_after: 0 }
    }
}

impl<S: AsyncRead + Unpin> Paced<S> {
    /// Whether it begins so. What is read for that is read again by the next one, together with what comes after it: in pieces it would
    /// cost each connection a second buffer.
    pub(crate) async fn begins_with(&mut self, wanted: &[u8]) -> io::Result<bool> {
        let mut first = Vec::with_capacity(wanted.len());
        while first.len() < wanted.len() && wanted.starts_with(&first) {
            let mut room = vec![0; wanted.len() - first.len()];
            let mut buf = ReadBuf::new(&mut room);
            poll_fn(|cx| Pin::new(&mut *self).poll_read(cx, &mut buf)).await?;
            if buf.filled().is_empty() {
                break;
            }
            first.extend_from_slice(buf.filled());
        }
        let is_so = first == wanted;
        self.first = first;
        Ok(is_so)
    }

    /// Reads what was read before, and then from the stream.
    fn read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let count = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..count]);
        self.first = self.first.split_off(count);
        // What fails now fails again.
        let _later = Pin::new(&mut self.stream).poll_read(cx, buf);
        Poll::Ready(Ok(()))
    }
}

/// Fails once a deadline has passed that begins with the first call.
fn overdue(
    timer: &mut Option<Pin<Box<Sleep>>>,
    period: Duration,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + period)));
    timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = this.read(cx, buf);
        let phase = this.pace.phase.load(Ordering::Relaxed);
        if phase == IDLE && read.is_ready() && buf.filled().len() > before {
            this.pace.phase.store(HEAD, Ordering::Relaxed);
        } else if phase != HEAD {
            this.head = None;
            return read;
        }
        // Also when a byte has come: it is the whole head that must be there in time.
        match overdue(&mut this.head, HEAD_MAX, cx) {
            Poll::Ready(overdue) if read.is_pending() => {
                this.pace.is_overdue.store(true, Ordering::Relaxed);
                Poll::Ready(overdue)
            }
            _ => read,
        }
    }
}

impl<S: AsyncWrite + Socket + Unpin> Paced<S> {
    /// Has the system give up as late as the request under way wants it.
    fn agree(&mut self) -> io::Result<()> {
        let wanted = self.pace.gives_up_after.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.gives_up_after, wanted) != wanted {
            self.stream.give_up_after(wanted)?;
        }
        Ok(())
    }

    fn written<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        match overdue(&mut self.stall, STALL_MAX, cx) {
            Poll::Ready(Err(error)) => {
                self.pace.is_overdue.store(true, Ordering::Relaxed);
                Poll::Ready(Err(error))
            }
            _ => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Socket + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.agree()?;
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.written(shut, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.agree()?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_is_given_up_as_late_as_its_request_wants_and_the_next_one_as_ever() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("its address");
            let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
            let pace = Arc::new(Pace::default());
            let mut paced = Paced::new(accepted.expect("a connection").0, pace.clone());
            let mut after = async |set: &dyn Fn(&Pace)| {
                set(&pace);
                paced.write_all(b"a").await.expect("written");
                rustix::net::sockopt::tcp_user_timeout(&paced.stream).expect("an option")
            };
            assert_eq!(after(&|_| {}).await, 0);
            assert_eq!(after(&|pace| pace.give_up_after(Duration::from_secs(10))).await, 10_000);
            assert_eq!(after(&|pace| pace.give_up_after(Duration::ZERO)).await, 1);
            assert_eq!(after(&|pace| drop(pace.begin(false))).await, 0);
            // Of many requests the first one to give up decides, and none of the others takes that back.
            let open = pace.begin(true);
            assert_eq!(after(&|pace| pace.give_up_after(Duration::from_secs(10))).await, 10_000);
            assert_eq!(after(&|pace| pace.give_up_after(Duration::from_secs(3))).await, 3_000);
            assert_eq!(after(&|pace| pace.give_up_after(Duration::from_secs(5))).await, 3_000);
            assert_eq!(after(&|pace| drop(pace.begin(true))).await, 3_000);
            drop(open);
        });
    }
}
