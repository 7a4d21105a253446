//! How much is left in a queue: for the line on a terminal, and for the end of `tenure queue work --drain`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure::queue::QueueStats;
use tenure::{Instant, Queue, Result};

use crate::clock;
use crate::output::messages::Messages;
use crate::output::status_line::{Line, SHOW_EVERY};

/// How often the engine is asked what is left, for the line on a terminal.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often it is asked that with `--drain` while nothing runs here.
const ASK_EVERY_DRAINING: Duration = Duration::from_millis(200);

/// What the engine answered.
enum Left {
    Counted(QueueStats),
    IsEmpty(bool),
}

/// What is left, and what was done.
pub(super) struct Progress {
    queue: Queue,
    name: String,
    is_draining: bool,
    pub(super) line: Line,
    question: Option<Pin<Box<dyn Future<Output = Result<Left>>>>>,
    asks_at: Instant,
    /// When the engine is asked next for the numbers, and not only whether there is something.
    counts_at: Instant,
    /// Whether nothing has run here since the engine was asked.
    is_quiet: bool,
    stats: QueueStats,
    /// How many items were done here, and how many failed.
    pub(super) done: u64,
    pub(super) failed: u64,
}

impl Progress {
    /// Begins with nothing done.
    pub(super) fn new(queue: Queue, name: &str, is_draining: bool, messages: Messages) -> Progress {
        Progress {
            queue,
            name: name.to_owned(),
            is_draining,
            line: Line::new(messages),
            question: None,
            asks_at: clock::now(),
            counts_at: clock::now(),
            is_quiet: false,
            stats: QueueStats::default(),
            done: 0,
            failed: 0,
        }
    }

    /// Notes that an item was handed out here: an answer that is under way may not know of it.
    pub(super) fn on_item(&mut self) {
        self.is_quiet = false;
    }

    /// Asks the engine what is left, for the line or for `--drain`, and shows it. `is_busy`: an item is worked on or settled here.
    /// Returns whether a queue that is drained is empty, and when to poll again.
    ///
    /// # Errors
    /// What the engine says of a queue that is drained.
    pub(super) fn poll(
        &mut self,
        is_busy: bool,
        context: &mut Context<'_>,
    ) -> Result<(bool, Option<Duration>)> {
        let is_ending = self.is_draining && !is_busy;
        if !is_ending && !self.line.is_shown {
            return Ok((false, None));
        }
        if let Some(question) = &mut self.question
            && let Poll::Ready(answer) = question.as_mut().poll(context)
        {
            self.question = None;
            if self.on_answer(answer)? && is_ending && self.is_quiet {
                return Ok((true, None));
            }
        }
        let now = clock::now();
        if self.question.is_none() && now >= self.asks_at {
            self.asks_at = now + if is_ending { ASK_EVERY_DRAINING } else { ASK_EVERY };
            self.is_quiet = !is_busy;
            self.ask(now);
            // It is polled at once, or nothing would be asked.
            return Ok((false, Some(Duration::ZERO)));
        }
        if self.line.is_shown {
            let QueueStats { waiting, in_flight, .. } = self.stats;
            let (name, done, failed) = (&self.name, self.done, self.failed);
            let text = format!("{name}: {done} done, {failed} failed; {waiting} wait, {in_flight} in flight");
            self.line.show(&text);
        }
        let pause = if self.question.is_some() { SHOW_EVERY } else { self.asks_at.since(now) };
        Ok((false, Some(pause.max(Duration::from_millis(1)))))
    }

    fn ask(&mut self, now: Instant) {
        let queue = self.queue.clone();
        // To count is expensive where the queue is long. Only the line needs the numbers, and less often.
        let is_counted = self.line.is_shown && now >= self.counts_at;
        if is_counted {
            self.counts_at = now + ASK_EVERY;
        }
        self.question = Some(Box::pin(async move {
            match is_counted {
                true => queue.stats().await.map(Left::Counted),
                false => queue.is_empty().await.map(Left::IsEmpty),
            }
        }));
    }

    /// Notes the numbers, and returns whether the queue is empty.
    fn on_answer(&mut self, answer: Result<Left>) -> Result<bool> {
        match answer {
            Ok(Left::Counted(stats)) => {
                self.stats = stats;
                Ok(stats.waiting == 0 && stats.in_flight == 0)
            }
            Ok(Left::IsEmpty(is_empty)) => Ok(is_empty),
            Err(error) if self.is_draining => Err(error),
            // The line informs only: without an answer it keeps what it says.
            Err(_) => Ok(false),
        }
    }
}
