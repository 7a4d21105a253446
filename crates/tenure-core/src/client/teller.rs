//! Tells events without any lock, and never on a thread that renews leases.
//!
//! A log or a listener may block for as long as it likes, panic, or call the client. So what happened under the lock of the ledger
//! is told after it is free. On a user's thread that is at once, where the event belongs to what the user is doing and
//! in its span. The client's own thread hands its events to one of their own, `tenure-events`, which begins with the first of them, and
//! so it does with the lines that engines and their libraries log on it (`client/log_relay.rs`).

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tracing::Span;

use crate::client::log_relay::LogLine;
use crate::client::trace::{self, SharedSpan, quietly};
use crate::event::{Happened, Listener};

/// The most events that wait to be told. A burst of losses after a failover fits in, and if nothing takes them they cost 1 MB.
const EVENTS_MAX: usize = 4096;
/// Lines of a log are dropped while so much waits: a library that logs each frame must not push out the loss of a lease.
const BEFORE_LINE_MAX: usize = EVENTS_MAX / 2;
/// How long the end of a client waits for its last events to be told.
const FLUSH_MAX: Duration = Duration::from_secs(1);

thread_local! {
    /// This thread must not be held up: it renews leases.
    static IS_IO: Cell<bool> = const { Cell::new(false) };
    /// This thread is telling an event.
    static IS_TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as one that must not be held up.
pub(crate) fn mark_io_thread() {
    IS_IO.set(true);
}

/// An event that is to be told.
pub(crate) struct Telling {
    pub(crate) happened: Happened,
    /// The span in which it is noted, and which it may end.
    pub(crate) span: Option<SharedSpan>,
}

/// What the client's own thread has another one tell.
enum Later {
    Event(Telling),
    Log(LogLine),
}

/// See the top of the file.
pub(crate) struct Teller {
    listener: Option<Arc<dyn Listener>>,
    dropped: AtomicU64,
    /// `None`: there could be no thread.
    line: OnceLock<Option<Arc<Line>>>,
}

/// Events that wait for the thread.
#[derive(Default)]
struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Later>,
    /// Spans of events that were dropped: they end where a subscriber may block.
    orphans: Vec<Span>,
    is_telling: bool,
    is_closed: bool,
}

impl Teller {
    pub(crate) fn new(listener: Option<Arc<dyn Listener>>) -> Teller {
        Teller { listener, dropped: AtomicU64::new(0), line: OnceLock::new() }
    }

    /// Says whether somebody hears of every event.
    pub(crate) fn has_listener(&self) -> bool {
        self.listener.is_some()
    }

    /// Returns how many events were dropped since too many waited.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Tells events. The caller holds no lock.
    pub(crate) fn tell(&self, events: Vec<Telling>) {
        // What a listener brings about is told after it has returned: within it, one that claims at each grant would never end.
        if IS_IO.get() || IS_TELLING.get() {
            events.into_iter().for_each(|telling| self.tell_later(Later::Event(telling)));
        } else {
            events.into_iter().for_each(|telling| tell_now(self.listener.as_deref(), telling));
        }
    }

    /// Has a line of a log written.
    pub(crate) fn write_later(&self, line: LogLine) {
        self.tell_later(Later::Log(line));
    }

    fn tell_later(&self, later: Later) {
        let line = self.line.get_or_init(|| Line::begin(self.listener.clone()));
        let is_in_line = match line {
            Some(line) => line.push(later),
            None => {
                // No thread may end the span: it is rather leaked.
                if let Later::Event(telling) = later {
                    std::mem::forget(telling.span);
                }
                false
            }
        };
        if !is_in_line {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until what has happened is told, but not for long. Only where nothing has to be renewed any more.
    pub(crate) fn flush(&self) {
        if let Some(Some(line)) = self.line.get() {
            let is_busy = |state: &mut State| state.is_telling || !state.waiting.is_empty();
            // A listener that blocks does not keep the client from ending.
            drop(line.changed.wait_timeout_while(line.state(), FLUSH_MAX, is_busy));
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if let Some(Some(line)) = self.line.get() {
            line.state().is_closed = true;
            line.changed.notify_all();
        }
    }
}

impl Line {
    /// Starts the thread. It ends when the client is gone and everything is told.
    fn begin(listener: Option<Arc<dyn Listener>>) -> Option<Arc<Line>> {
        let line = Arc::new(Line::default());
        let thread = {
            let line = line.clone();
            move || line.serve(listener.as_deref())
        };
        let started = std::thread::Builder::new().name("tenure-events".to_owned()).spawn(thread);
        started.is_ok().then_some(line)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave it half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, later: Later) -> bool {
        let mut state = self.state();
        let most = match later {
            Later::Event(_) => EVENTS_MAX,
            Later::Log(_) => BEFORE_LINE_MAX,
        };
        let has_room = state.waiting.len() < most;
        if has_room {
            state.waiting.push_back(later);
            drop(state);
            self.changed.notify_all();
        } else if let Later::Event(telling) = later {
            // Only the last copy ends one: others go on, and there may be any number of events of each.
            state.orphans.extend(telling.span.and_then(Arc::into_inner));
        }
        has_room
    }

    fn serve(&self, listener: Option<&dyn Listener>) {
        while let Some(later) = self.next() {
            match later {
                Later::Event(telling) => tell_now(listener, telling),
                Later::Log(line) => telling(|| line.write()),
            }
        }
    }

    fn next(&self) -> Option<Later> {
        // Not dropped under the lock, since that ends them.
        let orphans = std::mem::take(&mut self.state().orphans);
        for orphan in orphans {
            quietly(|| drop(orphan));
        }
        let mut state = self.state();
        state.is_telling = false;
        self.changed.notify_all();
        let is_idle = |state: &mut State| state.waiting.is_empty() && !state.is_closed;
        let mut state = self.changed.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner);
        let next = state.waiting.pop_front();
        state.is_telling = next.is_some();
        next
    }
}

/// Tells one event.
fn tell_now(listener: Option<&dyn Listener>, Telling { happened, span }: Telling) {
    telling(|| {
        happened.event.log(happened.engine);
        if let Some(span) = span {
            trace::note(&span, &happened.event);
        }
    });
    telling(|| listener.into_iter().for_each(|listener| listener.on_event(&happened)));
}

/// Calls what is the user's code. What panics in it ends there: a lease that was just granted must reach its user.
fn telling(tell: impl FnOnce()) {
    let was_telling = IS_TELLING.replace(true);
    quietly(tell);
    IS_TELLING.set(was_telling);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::model::claim::Name;

    struct Gate(Mutex<()>);

    impl Listener for Gate {
        fn on_event(&self, _: &Happened) {
            drop(self.0.lock());
        }
    }

    #[test]
    fn the_span_of_an_event_that_is_dropped_is_kept_only_if_it_is_the_last_copy() {
        let line = Line::default();
        let resource = Name::new("x").expect("a good name");
        let telling = |span: SharedSpan| Telling {
            happened: Happened {
                engine: "none",
                scope: None,
                event: Event::PlaceLost { resource: resource.clone() },
            },
            span: Some(span),
        };
        let held = Arc::new(Span::none());
        (0..EVENTS_MAX).for_each(|_| assert!(line.push(Later::Event(telling(held.clone())))));
        (0..EVENTS_MAX).for_each(|_| assert!(!line.push(Later::Event(telling(held.clone())))));
        assert_eq!(line.state().orphans.len(), 0, "the holder ends it");
        assert!(!line.push(Later::Event(telling(Arc::new(Span::none())))));
        assert_eq!(line.state().orphans.len(), 1, "the thread that tells ends it");
    }

    #[test]
    fn what_overflows_is_dropped_and_counted_and_holds_up_nobody() {
        let gate = Arc::new(Gate(Mutex::new(())));
        let teller = Teller::new(Some(gate.clone()));
        let resource = Name::new("x").expect("a good name");
        let happened = Happened { engine: "none", scope: None, event: Event::PlaceLost { resource } };
        let closed = gate.0.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                mark_io_thread();
                let telling = || Telling { happened: happened.clone(), span: None };
                (0..EVENTS_MAX + 100).for_each(|_| teller.tell(vec![telling()]));
            });
        });
        // The thread may have taken one already, which it is telling.
        assert!((99..=100).contains(&teller.dropped()), "{}", teller.dropped());
        drop(closed);
        teller.flush();
        assert!(
            teller
                .line
                .get()
                .is_some_and(|line| line.as_ref().is_some_and(|line| line.state().waiting.is_empty()))
        );
    }
}
