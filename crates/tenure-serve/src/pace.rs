//! A connection that must go on: whoever sends a byte a second, or reads nothing, keeps a place from others.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::limits::{HEAD_MAX, STALL_MAX};

/// What a connection does now.
#[derive(Debug, Default)]
pub(crate) struct Pace(AtomicU8);

/// A head is read: so it is on a new connection.
const HEAD: u8 = 0;
const SERVING: u8 = 1;
/// Between two requests.
const IDLE: u8 = 2;

impl Pace {
    /// The head of a request is there.
    pub(crate) fn serving(&self) {
        self.0.store(SERVING, Ordering::Relaxed);
    }

    /// It is answered.
    pub(crate) fn idle(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }
}

/// A stream with deadlines.
pub(crate) struct Paced<S> {
    stream: S,
    pace: Arc<Pace>,
    head: Option<Pin<Box<Sleep>>>,
    stall: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, pace: Arc<Pace>) -> Paced<S> {
        Paced { stream, pace, head: None, stall: None }
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
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        let phase = this.pace.0.load(Ordering::Relaxed);
        if phase == IDLE && read.is_ready() && buf.filled().len() > before {
            this.pace.0.store(HEAD, Ordering::Relaxed);
        } else if phase != HEAD {
            this.head = None;
            return read;
        }
        // Also when a byte has come: it is the whole head that must be there in time.
        match overdue(&mut this.head, HEAD_MAX, cx) {
            Poll::Ready(overdue) if read.is_pending() => Poll::Ready(overdue),
            _ => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> Paced<S> {
    fn written<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        match overdue(&mut self.stall, STALL_MAX, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
