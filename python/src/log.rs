//! What the library logs, for Python's `logging`: in a queue that a thread of Python's reads.
//!
//! Whoever logs may be the thread that renews, and Python's lock may be kept for seconds: nobody waits here.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::pending::detached;

/// How many lines wait for Python. Those beyond are counted.
const LINES_MAX: usize = 4096;

/// Level as Python has it, logger, text.
type Line = (u8, String, String);

struct Lines {
    lines: VecDeque<Line>,
    dropped: u64,
}

/// The lines of one process.
struct Queue {
    lines: Mutex<Lines>,
    arrived: Condvar,
}

/// How many generations of forked children have a queue each. The next one has the first one's again, whose lock is free by then.
const GENERATIONS: usize = 16;

/// A thread of the parent's may have held the lock of its queue at a fork: the child takes the next one.
static QUEUES: [Queue; GENERATIONS] = [const {
    Queue { lines: Mutex::new(Lines { lines: VecDeque::new(), dropped: 0 }), arrived: Condvar::new() }
}; GENERATIONS];
static GENERATION: AtomicUsize = AtomicUsize::new(0);
/// The least level that is wanted, as Python has it.
static LEVEL: AtomicU8 = AtomicU8::new(30);

/// Python's number of a level. `TRACE` is below its `DEBUG`.
fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

impl Queue {
    /// The one of this process.
    fn here() -> &'static Queue {
        &QUEUES[GENERATION.load(Ordering::Relaxed) % GENERATIONS]
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts events in line. There are no spans: `logging` knows none.
struct ToPython;

impl Subscriber for ToPython {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && number(*metadata.level()) >= LEVEL.load(Ordering::Relaxed)
            && metadata.target().starts_with("tenure")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let logger = event.metadata().target().replace("::", ".");
        let line = (number(*event.metadata().level()), logger, format!("{}{}", text.message, text.fields));
        let queue = Queue::here();
        let mut lines = queue.lines();
        if lines.lines.len() < LINES_MAX {
            lines.lines.push_back(line);
            queue.arrived.notify_one();
        } else {
            lines.dropped += 1;
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a text cannot fail.
        match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        }
        .ok();
    }
}

/// Has lines of this level and above put in line.
#[pyfunction]
pub(crate) fn log_from(level: u8) {
    LEVEL.store(level, Ordering::Relaxed);
    // Who has set one already has it.
    drop(tracing::subscriber::set_global_default(ToPython));
    tracing::callsite::rebuild_interest_cache();
}

/// This process is a forked child, whose lines are its own.
#[pyfunction]
pub(crate) fn log_after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Returns all lines that there are, and how many were dropped before them; with `waits`, once there are some.
#[pyfunction]
pub(crate) fn log_lines(py: Python<'_>, waits: bool) -> (Vec<Line>, u64) {
    detached(py, || {
        let queue = Queue::here();
        let mut lines = queue.lines();
        while waits && lines.lines.is_empty() {
            lines = queue.arrived.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
        (lines.lines.drain(..).collect(), std::mem::take(&mut lines.dropped))
    })
}
