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
use crate::output::holder::Holder;
use crate::output::lines;
use crate::output::messages::JsonEvent;
use crate::output::status_line::{Line, SHOW_EVERY};
use crate::supervise::events::Event;
use crate::supervise::keeper::keeper_gone;
use crate::supervise::signals::{ends_waiting, is_terminal_stop};
use crate::supervise::supervisor::Supervisor;

/// How often the engine is asked for the holder, for that line.
const VIEW_EVERY: Duration = Duration::from_secs(1);

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

/// Acquires the lock within a time (none: for ever), and shows its holder meanwhile.
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
        pending_view: None,
        view: None,
        line: Line::new(supervisor.messages),
    };
    waiting.begin(busy.busy());
    let acquired = waiting.wait(&lock, wait, asked_at);
    waiting.line.clear();
    acquired
}

/// Returns the failure of a claim that does not wait, with the holder.
fn refusal(arguments: &Run, error: &Error) -> Failure {
    let name = &arguments.name;
    let Some(busy) = error.busy() else { return Failure::from(error.clone()) };
    let free_in = busy.free_in.unwrap_or_default();
    let wait = busy.waiting;
    if busy.is_resting {
        let who = busy.holder.as_ref().map_or("somebody".to_owned(), ToString::to_string);
        let ago = format_duration(busy.held_for);
        return match arguments.every {
            Some(every) => Failure::new(
                exit::BUSY,
                format!("{name:?} ran within the last {}: {who} began {ago} ago", format_duration(every)),
            )
            .with_hint(format!("it may run again in {}", format_duration(free_in))),
            None => Failure::new(
                exit::BUSY,
                format!("{name:?} rests after {who}, who acquired it {ago} ago; {wait} wait"),
            )
            .with_hint(format!("it is free in {}; wait for it with `--wait 5m`", format_duration(free_in))),
        };
    }
    let held = match &busy.holder {
        Some(holder) => {
            let since = clock::time_of_day().checked_sub(busy.held_for);
            let since = since.map(|since| humantime::format_rfc3339_seconds(since).to_string());
            let since = since.unwrap_or_default();
            let held = arguments.obstacle();
            format!("{held} {holder} since {since} ({})", format_duration(busy.held_for))
        }
        None => "is reserved for the next waiter".to_owned(),
    };
    Failure::new(exit::BUSY, format!("{name:?} {held}; {wait} wait"))
        .with_hint("wait for it with `--wait 5m`, or see `tenure status`")
}

/// A view that is under way.
type PendingView = Pin<Box<dyn Future<Output = tenure::Result<Option<View>>> + Send>>;

/// A claim that waits.
struct Waiting<'a> {
    tenure: &'a Tenure,
    arguments: &'a Run,
    supervisor: Supervisor<'a>,
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
                (Some(holder), Some(busy)) if busy.is_resting => format!(": it rests after {holder}"),
                (Some(holder), Some(busy)) => {
                    format!(": held by {holder} for {}", format_duration(busy.held_for))
                }
                _ => String::new(),
            };
            messages.message(&format!("waiting for {name:?}{held}"));
        }
    }

    fn wait(&mut self, lock: &Lock, wait: Option<Duration>, asked_at: Instant) -> Result<Held, Ended> {
        let mut acquire = lock.acquire(wait);
        let waker = self.supervisor.events.waker();
        let mut context = Context::from_waker(&waker);
        let mut views_at = asked_at;
        loop {
            match Pin::new(&mut acquire).poll(&mut context) {
                Poll::Ready(Ok(lease)) => return Ok(Held::Waited(lease)),
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::Timeout => {
                    return Err(self.failure(asked_at).into());
                }
                Poll::Ready(Err(error)) => return Err(Ended::of(error)),
                Poll::Pending => {}
            }
            let mut timeout = None;
            if self.line.is_shown {
                let now = clock::now();
                if now >= views_at {
                    views_at = now + VIEW_EVERY;
                    self.begin_view();
                }
                self.poll_view(&mut context);
                let place = acquire.place().map(|place| place.position);
                self.line.show(&self.text(place, now.since(asked_at)));
                timeout = Some(SHOW_EVERY);
            }
            match self.supervisor.events.next(self.supervisor.keeper, timeout) {
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
        let mut text = format!("waiting for {:?}", self.arguments.name);
        if let Some(hold) = self.view.as_ref().and_then(|view| view.holds.first()) {
            let held = if hold.claim.is_some() { "held by" } else { "resting after" };
            text.push_str(&format!(": {held} {} for {}", hold.label, whole_seconds(hold.held_for)));
        }
        if let Some(place) = place {
            text.push_str(&format!("; place {place} in the queue"));
        }
        text.push_str(&format!("; waited {}", whole_seconds(waited)));
        text
    }

    fn on_signal(&mut self, signal: i32) -> Result<(), Ended> {
        if is_terminal_stop(signal) {
            self.line.clear();
            lines::flush(SHOW_EVERY);
        }
        ends_waiting(signal).map_or(Ok(()), |signal| Err(Ended::Signal(signal)))
    }

    /// Returns the failure of a claim that has waited in vain, with the holder.
    fn failure(&self, asked_at: Instant) -> Failure {
        let name = &self.arguments.name;
        let waited = format_duration(clock::now().since(asked_at));
        // Only for the message: without an answer it says less.
        let view = pollster::block_on(self.tenure.view(name)).ok().flatten();
        let holder = view.as_ref().and_then(|view| view.holds.first());
        let held = holder.map_or(String::new(), |hold| {
            format!(": it is held by {} for {}", hold.label, format_duration(hold.held_for))
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
