//! Lines for stderr, written by a thread of their own where work runs under a lease.
//!
//! A terminal that is stopped (Ctrl-S) and a pipe that is not read block a thread that writes to them, for any time. That must
//! not be the thread that sends keepers new deadlines: CMD would be killed, with a lease that is renewed. So lines go through a
//! queue. stderr itself is not made non-blocking: that would make it so for every process that shares it, CMD first.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most bytes that wait to be written. What does not fit is dropped, and counted.
const WAITING_BYTES_MAX: usize = 256 * 1024;

/// How long the output of CMD waits for earlier messages, so that they come first. Nothing waits where stderr is read, but for
/// the thread that writes there, which on a busy machine has its turn late.
pub(crate) const SHOW_FIRST: Duration = Duration::from_millis(100);

/// What waits to be written.
struct Queue {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
    is_writing: bool,
    has_thread: bool,
}

static IS_IN_BACKGROUND: AtomicBool = AtomicBool::new(false);
static IS_HELD: AtomicBool = AtomicBool::new(false);
static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    waiting: VecDeque::new(),
    bytes: 0,
    dropped: 0,
    is_writing: false,
    has_thread: false,
});
static CHANGED: Condvar = Condvar::new();

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on a write to stderr never makes the caller wait. For a process that forks no more: the writer is a thread.
pub(crate) fn write_in_background() {
    IS_IN_BACKGROUND.store(true, Ordering::Release);
}

/// From now on lines for stderr wait, if it is a terminal on which something is drawn.
pub(crate) fn hold() {
    IS_HELD.store(io::stderr().is_terminal(), Ordering::Release);
}

/// Writes what has waited, and from now on everything.
pub(crate) fn let_go() {
    if IS_HELD.swap(false, Ordering::AcqRel) {
        let (waiting, dropped) = {
            let mut queue = queue();
            queue.bytes = 0;
            (std::mem::take(&mut queue.waiting), std::mem::take(&mut queue.dropped))
        };
        waiting.iter().for_each(|bytes| write_now(bytes));
        if dropped > 0 {
            write_now(self::dropped(dropped, None).as_bytes());
        }
    }
}

/// Writes a line to stderr. If it cannot be written, there is no place to report that.
pub(crate) fn write_line(line: &str) {
    write(format!("{line}\n").into_bytes());
}

/// Writes bytes to stderr.
pub(super) fn write(bytes: Vec<u8>) {
    let is_held = IS_HELD.load(Ordering::Acquire);
    if !IS_IN_BACKGROUND.load(Ordering::Acquire) && !is_held {
        return write_now(&bytes);
    }
    let mut queue = queue();
    if queue.bytes + bytes.len() > WAITING_BYTES_MAX {
        queue.dropped += 1;
        return;
    }
    queue.bytes += bytes.len();
    queue.waiting.push_back(bytes);
    if !queue.has_thread && !is_held {
        queue.has_thread = true;
        let started = std::thread::Builder::new().name("tenure-stderr".to_owned()).spawn(write_all);
        if started.is_err() {
            // Better late than never: without a thread it is written here.
            IS_IN_BACKGROUND.store(false, Ordering::Release);
            let waiting = std::mem::take(&mut queue.waiting);
            drop(queue);
            return waiting.iter().for_each(|bytes| write_now(bytes));
        }
    }
    CHANGED.notify_all();
}

/// Writes bytes to stderr if nothing waits there; else drops them and returns false.
pub(super) fn write_if_free(bytes: Vec<u8>) -> bool {
    let is_free = !is_busy(&queue());
    if is_free {
        write(bytes);
    }
    is_free
}

/// Waits until everything is written, but only so long.
pub(crate) fn flush(patience: Duration) {
    // If it takes longer, what is left may be lost, as the caller has decided.
    drop(CHANGED.wait_timeout_while(queue(), patience, |queue| is_busy(queue)));
}

fn is_busy(queue: &Queue) -> bool {
    queue.is_writing || !queue.waiting.is_empty()
}

fn write_now(bytes: &[u8]) {
    let mut stderr = io::stderr().lock();
    drop(stderr.write_all(bytes).and_then(|()| stderr.flush()));
}

/// What the thread does, for as long as the process lives.
fn write_all() {
    let mut queue = queue();
    loop {
        while let Some(bytes) = queue.waiting.pop_front() {
            queue.is_writing = true;
            drop(queue);
            write_now(&bytes);
            queue = self::queue();
            queue.bytes -= bytes.len();
            if queue.waiting.is_empty() && queue.dropped > 0 {
                let count = std::mem::take(&mut queue.dropped);
                drop(queue);
                write_now(dropped(count, bytes.first()).as_bytes());
                queue = self::queue();
            }
            queue.is_writing = false;
        }
        CHANGED.notify_all();
        queue = CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Says how many lines were lost, to programs where the line before was meant for them.
fn dropped(count: u64, first: Option<&u8>) -> String {
    let message = format!("stderr was not read in time: {count} lines for it were dropped");
    match first {
        Some(b'{') => format!("{}\n", serde_json::json!({ "event": "warning", "message": message })),
        _ => format!("warning: {message}\n"),
    }
}

/// The library's log, written as all the rest.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
