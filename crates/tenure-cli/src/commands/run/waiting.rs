//! Acquiring the lock: at once or by waiting, the line that shows the holder meanwhile, and what ends the waiting.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure::{Busy, Error, ErrorKind, Instant, Lease, ReleaseAnswer, Tenure, View};

use super::arguments::Run;
use super::lock::Lock;
use crate::clock;
use crate::duration::{format_duration, millis};
use crate::exit::{self, Ended, Failure};
use crate::output::holder::{Holder, held, waiters, who};
use crate::output::lines;
use crate::output::messages::JsonEvent;
use crate::output::status_line::{Line, SHOW_EVERY};
use crate::supervise::events::Event;
use crate::supervise::keeper::keeper_gone;
use crate::supervise::signals::{ends_waiting, is_terminal_stop};
use crate::supervise::supervisor::Supervisor;

/// How often the engine is asked for the holder, for that line.
const VIEW_EVERY: Duration = Duration::from_secs(1);
/// How often a wait that no line shows is told of.
const TELL_EVERY: Duration = Duration::from_secs(600);

/// A lease, however it was acquired.
pub(crate) enum Held {
    /// On this thread.
    AtOnce(tenure::blocking::Lease),
    /// By waiting.
    Waited(Lease),
}

impl Held {
    /// Returns the lease.
    pub(crate) fn lease(&self) -> &Lease {
        match self {
            Held::AtOnce(lease) => lease,
            Held::Waited(lease) => lease,
        }
    }

    /// Releases the lease and waits for the engine's answer.
    pub(crate) fn release(self) -> tenure::Result<ReleaseAnswer> {
        match self {
            Held::AtOnce(lease) => lease.release(),
            Held::Waited(lease) => pollster::block_on(lease.release()),
        }
    }
}

/// Acquires the lock within a time (`None`: for ever), and shows its holder meanwhile.
pub(crate) fn acquire(
    tenure: &Tenure,
    arguments: &Run,
    wait: Option<Duration>,
    supervisor: Supervisor<'_>,
) -> Result<Held, Ended> {
    let asked_at = clock::now();
    let lock = Lock::new(tenure, arguments);
    // First on this thread, which is quickest where the lock is free.
    let busy = match lock.acquire_at_once() {
        Ok(lease) => return Ok(Held::AtOnce(lease)),
        Err(error) if error.kind() == ErrorKind::Timeout => error,
        Err(error) => return Err(Ended::of(error)),
    };
    if wait == Some(Duration::ZERO) {
        return Err(refusal(arguments, &busy).into());
    }
    let mut waiting = Waiting {
        tenure,
        arguments,
        supervisor,
        wait,
        pending_view: None,
        view: None,
        line: Line::new(supervisor.messages),
    };
    waiting.begin(busy.busy());
    let acquired = waiting.wait(&lock, asked_at);
    waiting.line.clear();
    acquired
}

/// Returns the failure of a claim that does not wait, with the holder.
fn refusal(arguments: &Run, error: &Error) -> Failure {
    let name = &arguments.name;
    let Some(busy) = error.busy() else { return Failure::from(error.clone()) };
    let free_in = format_duration(busy.free_in.unwrap_or_default());
    if busy.is_resting {
        let by = busy.holder.as_ref().map_or("somebody".to_owned(), who);
        let ago = format_duration(busy.held_for);
        return match arguments.every {
            Some(every) if busy.held_for < every && busy.free_in.unwrap_or_default() <= every => {
                Failure::new(
                    exit::BUSY,
                    format!("{name:?} ran within the last {}: {by} began {ago} ago", format_duration(every)),
                )
                .with_hint(format!("it may run again in {free_in}"))
            }
            // The run that began then has said for how long nobody else may.
            Some(_) => Failure::new(
                exit::BUSY,
                format!("{name:?} still rests: {by} began {ago} ago with a longer `--every`"),
            )
            .with_hint(format!("it may run again in {free_in}; `tenure release --now` ends the rest")),
            None => Failure::new(
                exit::BUSY,
                format!("{name:?} rests for {free_in} more after {by}; {}", waiters(busy.waiting)),
            )
            .with_hint("wait for it with `--wait 5m`"),
        };
    }
    let held = match &busy.holder {
        Some(holder) => format!("{}{}", arguments.obstacle(), held(holder, busy.held_for)),
        None => "is reserved for the next waiter".to_owned(),
    };
    let failure = Failure::new(exit::BUSY, format!("{name:?} {held}; {}", waiters(busy.waiting)));
    failure.with_hint(match is_own(name, busy) {
        true => "this command runs under that lock itself (TENURE_NAME, TENURE_TOKEN)",
        false => "wait for it with `--wait 5m`, or see `tenure status`",
    })
}

/// Whether the holder is the `tenure run` under which this process runs: it would wait for its own end.
fn is_own(name: &str, busy: &Busy) -> bool {
    let says = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|set| set == value);
    says("TENURE_NAME", name) && says("TENURE_TOKEN", &busy.token.to_string())
}

/// A view that is under way.
type PendingView = Pin<Box<dyn Future<Output = tenure::Result<Option<View>>> + Send>>;

/// A claim that waits.
struct Waiting<'a> {
    tenure: &'a Tenure,
    arguments: &'a Run,
    supervisor: Supervisor<'a>,
    /// How long it waits. `None`: for ever.
    wait: Option<Duration>,
    pending_view: Option<PendingView>,
    view: Option<View>,
    line: Line,
}

impl Waiting<'_> {
    /// Reports once that the claim waits: as an event, and as a message where no line on a terminal shows it.
    fn begin(&self, busy: Option<&Busy>) {
        let messages = self.supervisor.messages;
        let name = &self.arguments.name;
        let holder = busy.and_then(|busy| busy.holder.as_ref());
        messages.event(&JsonEvent::Waiting {
            name,
            holder: holder.map(Holder::of),
            held_ms: busy.map(|busy| millis(busy.held_for)),
            waiting: busy.map_or(0, |busy| busy.waiting),
        });
        if !self.line.is_shown {
            let held = match (holder, busy) {
                (Some(holder), Some(busy)) if busy.is_resting => {
                    let free_in = format_duration(busy.free_in.unwrap_or_default());
                    format!(": it rests for {free_in} more after {}", who(holder))
                }
                (Some(holder), Some(busy)) => format!(": {}", held(holder, busy.held_for)),
                _ => String::new(),
            };
            messages.message(&format!("waiting for {name:?}{held}"));
        }
        if busy.is_some_and(|busy| is_own(name, busy)) {
            messages.warning(&format!(
                "this command runs under {name:?} itself (TENURE_NAME, TENURE_TOKEN), and waits for its own end"
            ));
        }
    }

    fn wait(&mut self, lock: &Lock, asked_at: Instant) -> Result<Held, Ended> {
        let mut acquire = lock.acquire(self.wait);
        let waker = self.supervisor.events.waker();
        let mut context = Context::from_waker(&waker);
        let mut views_at = asked_at;
        let mut tells_at = asked_at + TELL_EVERY;
        loop {
            match Pin::new(&mut acquire).poll(&mut context) {
                Poll::Ready(Ok(lease)) => return Ok(Held::Waited(lease)),
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::Timeout => {
                    return Err(self.failure(asked_at).into());
                }
                Poll::Ready(Err(error)) => return Err(Ended::of(error)),
                Poll::Pending => {}
            }
            let now = clock::now();
            let waited = now.since(asked_at);
            let mut timeout = tells_at.since(now);
            let place = acquire.place().map(|place| place.position);
            if self.line.is_shown {
                if now >= views_at {
                    views_at = now + VIEW_EVERY;
                    self.begin_view();
                }
                self.poll_view(&mut context);
                self.line.show(&self.text(place, waited));
                timeout = SHOW_EVERY;
            } else if timeout.is_zero() {
                tells_at = now + TELL_EVERY;
                timeout = TELL_EVERY;
                self.supervisor.messages.message(&format!("still {}", self.text(place, waited)));
            }
            match self.supervisor.events.next(self.supervisor.keeper, Some(timeout)) {
                Ok(Event::Signal(signal)) => self.on_signal(signal)?,
                Ok(Event::KeeperGone) => return Err(keeper_gone().into()),
                Ok(Event::Report(_) | Event::Woken) => {}
                Err(error) => return Err(Failure::system("wait", error).into()),
            }
        }
    }

    fn begin_view(&mut self) {
        let (tenure, name) = (self.tenure.clone(), self.arguments.name.clone());
        self.pending_view.get_or_insert_with(|| Box::pin(async move { tenure.view(&name).await }));
    }

    fn poll_view(&mut self, context: &mut Context<'_>) {
        let Some(pending_view) = &mut self.pending_view else { return };
        if let Poll::Ready(view) = pending_view.as_mut().poll(context) {
            self.pending_view = None;
            // The line informs only: without an answer it keeps what it says.
            if let Ok(view) = view {
                self.view = view;
            }
        }
    }

    fn text(&self, place: Option<u32>, waited: Duration) -> String {
        // What a narrow terminal has no room for comes last.
        let left = self.wait.map(|wait| whole_seconds(wait.saturating_sub(waited)));
        let left = left.map_or(String::new(), |left| format!(", {left} left"));
        let mut text = format!("waiting for {:?} ({}{left})", self.arguments.name, whole_seconds(waited));
        if let Some(hold) = self.view.as_ref().and_then(|view| view.holds.first()) {
            let what = match hold.claim {
                Some(_) => format!("held by {} for {}", who(&hold.label), whole_seconds(hold.held_for)),
                None => {
                    format!("it rests for {} more after {}", whole_seconds(hold.ends_in), who(&hold.label))
                }
            };
            text.push_str(&format!(": {what}"));
        }
        if let Some(place) = place {
            text.push_str(&format!("; place {place} in the queue"));
        }
        text
    }

    fn on_signal(&mut self, signal: i32) -> Result<(), Ended> {
        if is_terminal_stop(signal) {
            self.line.clear();
            lines::flush(SHOW_EVERY);
        }
        let Some(signal) = ends_waiting(signal) else { return Ok(()) };
        self.line.clear();
        self.supervisor.messages.message(&format!("no longer waiting for {:?}", self.arguments.name));
        Err(Ended::Signal(signal))
    }

    /// Returns the failure of a claim that has waited in vain, with the holder.
    fn failure(&self, asked_at: Instant) -> Failure {
        let name = &self.arguments.name;
        // As it was written: to wait begins and ends a little beside it.
        let waited = self.arguments.wait.unwrap_or_else(|| clock::now().since(asked_at));
        let waited = format_duration(waited);
        // Only for the message: without an answer it says less.
        let view = pollster::block_on(self.tenure.view(name)).ok().flatten();
        let holder = view.as_ref().and_then(|view| view.holds.first());
        let held = holder.map_or(String::new(), |hold| match hold.claim {
            Some(_) => format!(": it is {}", held(&hold.label, hold.held_for)),
            None => format!(": it rests for {} more", format_duration(hold.ends_in)),
        });
        Failure::new(exit::BUSY, format!("{name:?} was not acquired within {waited}{held}"))
            .with_hint("wait longer with `--wait`, or see `tenure status`")
    }
}

fn whole_seconds(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        _ => format_duration(time),
    }
}
