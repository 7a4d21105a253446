//! What a program writes: kept up to what can be shared, and passed on from there.

use std::fs::File;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

/// The largest output that is shared: the largest value that an engine keeps.
const SHARED_BYTES_MAX: usize = 256 * 1024;
/// How much is read at a time: what a pipe holds by default.
const CHUNK: usize = 64 * 1024;
/// How much more is read of what the work left in the pipe when it was over: the most that a pipe holds. A daemon that has left the
/// work may still write to it.
const REST_MAX: usize = 1024 * 1024;

/// What was collected.
#[derive(Clone, Debug)]
pub(super) enum Collected {
    /// All of it.
    Whole(Vec<u8>),
    /// It is more than can be shared, and is passed on to stdout.
    TooLarge,
}

/// Reads what a program writes, on a thread of its own: neither a program that writes nothing nor a reader of stdout that stalls
/// keeps the lease from being looked after.
pub(super) struct Collector {
    shared: Arc<Mutex<Shared>>,
    /// Closed when the work is over.
    stop: Option<OwnedFd>,
}

#[derive(Default)]
struct Shared {
    collected: Option<Collected>,
    is_over: bool,
}

impl Collector {
    /// Begins to read, and returns what the program is to write to. `waker` is woken when there is news.
    pub(super) fn start(waker: Waker) -> io::Result<(Collector, OwnedFd)> {
        let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let shared = Arc::<Mutex<Shared>>::default();
        let reader = Reader { output: File::from(output), stopped, shared: shared.clone(), waker };
        std::thread::Builder::new().name("tenure-output".to_owned()).spawn(move || reader.read_all())?;
        Ok((Collector { shared, stop: Some(stop) }, input))
    }

    /// Nothing of the work is left: what it wrote lies in the pipe.
    pub(super) fn finish(&mut self) {
        self.stop = None;
    }

    /// Waits until it is known whether the output can be shared.
    pub(super) async fn collected(&mut self) -> Collected {
        // The reader wakes `waker`, which wakes every future that this process waits for.
        poll_fn(|_| lock(&self.shared).collected.clone().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Waits until all of an output that is too large is written.
    pub(super) async fn written(&mut self) {
        poll_fn(|_| if lock(&self.shared).is_over { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Reader {
    output: File,
    stopped: OwnedFd,
    shared: Arc<Mutex<Shared>>,
    waker: Waker,
}

impl Reader {
    fn read_all(mut self) {
        let mut bytes = Vec::new();
        // An output that cannot be read or passed on ends there; the program gets SIGPIPE or EPIPE.
        let is_whole = self.read_into(&mut bytes).unwrap_or(false);
        {
            let mut shared = lock(&self.shared);
            if is_whole {
                shared.collected = Some(Collected::Whole(bytes));
            }
            shared.collected.get_or_insert(Collected::TooLarge);
            shared.is_over = true;
        }
        self.waker.wake();
    }

    /// Reads to the end. Returns false if it was too much, and has been passed on.
    fn read_into(&mut self, bytes: &mut Vec<u8>) -> io::Result<bool> {
        let mut chunk = vec![0; CHUNK];
        let (mut is_passed_on, mut rest) = (false, REST_MAX);
        loop {
            let (has_output, is_stopped) = self.wait(rest < REST_MAX)?;
            let count = if has_output { self.output.read(&mut chunk)? } else { 0 };
            if count == 0 {
                return Ok(!is_passed_on);
            }
            if is_stopped {
                match rest.checked_sub(count) {
                    Some(left) => rest = left,
                    None => return Ok(!is_passed_on),
                }
            }
            if is_passed_on {
                pass_on(&chunk[..count])?;
                continue;
            }
            bytes.extend_from_slice(&chunk[..count]);
            if bytes.len() > SHARED_BYTES_MAX {
                is_passed_on = true;
                lock(&self.shared).collected = Some(Collected::TooLarge);
                self.waker.wake_by_ref();
                pass_on(&std::mem::take(bytes))?;
            }
        }
    }

    /// Waits for output or for the end of the work. Returns whether there is output (or its end), and whether the work is over.
    fn wait(&self, is_stopped: bool) -> io::Result<(bool, bool)> {
        let mut polled =
            [PollFd::new(&self.output, PollFlags::IN), PollFd::new(&self.stopped, PollFlags::IN)];
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::io::retry_on_intr(|| poll(&mut polled, is_stopped.then_some(&at_once)))?;
        Ok((!polled[0].revents().is_empty(), is_stopped || !polled[1].revents().is_empty()))
    }
}

fn pass_on(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush())
}
