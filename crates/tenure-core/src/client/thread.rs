//! The thread `tenure-io`: moves what waits to be sent to the engine, in calls by lane and shard, and gives each request its answer.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use crate::client::batch::Lane;
use crate::client::call::{Answered, Call};
use crate::client::connection::{NewClient, Shared};
use crate::client::ledger::{Ledger, Now, Sent};
use crate::client::log_relay;
use crate::client::teller::mark_io_thread;
use crate::clock::{Instant, Timer};
use crate::engine::{Connect, Shard, Wake};
use crate::error::{Error, ErrorKind, Result};
use crate::model::claim::Name;

/// Nothing is pushed or taken before the engine is found to have queues.
const HAS_QUEUES: &str = "an engine of whose queues something is asked has queues";

/// Starts the thread and connects on it. `ready` gets the result.
pub(crate) fn start(
    connect: Connect,
    new: NewClient,
    ready: tokio::sync::oneshot::Sender<Result<Arc<Shared>>>,
) -> Result<()> {
    let relay = {
        let teller = new.teller.clone();
        log_relay::relay(move |line| teller.write_later(line))
    };
    let thread = move || {
        mark_io_thread();
        log_relay::begin(relay);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return drop(ready.send(Err(failed("cannot start an event loop", error)))),
        };
        runtime.block_on(serve(connect, new, ready));
    };
    let started = std::thread::Builder::new().name("tenure-io".to_owned()).spawn(thread);
    started.map(drop).map_err(|error| {
        Error::new(ErrorKind::Unsupported, "connect", "cannot start a thread").with_source(error)
    })
}

/// Connects, sends the result to `ready`, and moves requests and answers until the last user is gone. All of the
/// thread's work, on the runtime of the task that polls it.
pub(crate) async fn serve(
    connect: Connect,
    new: NewClient,
    ready: tokio::sync::oneshot::Sender<Result<Arc<Shared>>>,
) {
    let timer = match new.clock.timer() {
        Ok(timer) => timer,
        Err(error) => return drop(ready.send(Err(failed("cannot make a timer", error)))),
    };
    let engine = match connect.open(new.client).await {
        Ok(engine) => engine,
        Err(error) => {
            // What led to it may be in the log, and a program that cannot connect ends.
            new.teller.flush();
            return drop(ready.send(Err(error)));
        }
    };
    let shared = new.shared(engine, tokio::runtime::Handle::current());
    let _closing = CloseOnExit(shared.clone());
    let wakes = shared.engine.wakes();
    // The receiver may have been dropped; then the last user is gone too, and `run` returns.
    drop(ready.send(Ok(shared.clone())));
    let engine = shared.engine.clone();
    Loop { shared: shared.clone(), timer, wakes: Some(wakes), calls: Vec::new() }.run().await;
    engine.close();
    shared.teller.flush();
}

fn failed(what: &'static str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unsupported, "connect", format!("{what}: {error}")).with_source(error)
}

/// However the thread ends, by its end or by a panic, no task may go on waiting for it.
struct CloseOnExit(Arc<Shared>);

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Loop {
    shared: Arc<Shared>,
    timer: Box<dyn Timer>,
    wakes: Option<BoxStream<'static, Wake>>,
    /// What is under way, the oldest first.
    calls: Vec<Call>,
}

impl Loop {
    async fn run(mut self) {
        let (mut close_by, mut due) = (Instant::NEVER, Instant::NEVER);
        loop {
            log_relay::follow();
            let now = self.shared.clock.now();
            self.note_lateness(now, due);
            if self.shared.is_closing() {
                close_by = close_by.min(now + self.shared.settings.answer_timeout);
                let is_quiet = self.shared.queue_client.is_quiet() && !self.shared.ledger().has_releases();
                if now >= close_by || is_quiet {
                    return;
                }
            }
            let next = self.do_what_is_due(now).min(close_by);
            // What is due already is no moment that is waited for.
            due = if next > now { next } else { Instant::NEVER };
            if let Some(wake) = poll_fn(|cx| self.poll_news(cx, next)).await {
                self.shared.queue_client.on_wake(&wake);
                self.shared.with_ledger(|ledger, now| ledger.on_wake(now, wake));
            }
        }
    }

    /// Notes by how much the thread is late, if it has waited for this.
    fn note_lateness(&self, now: Instant, due: Instant) {
        if now >= due && self.shared.is_watched() {
            self.shared.with_ledger(|ledger, now| ledger.woke_late(now.at.since(due)));
        }
    }

    /// Does what is due, starts calls, and returns by when it must be called again.
    fn do_what_is_due(&mut self, now: Instant) -> Instant {
        let shared = self.shared.clone();
        let is_more = shared.with_ledger(|ledger, now| ledger.on_due(now));
        let lines = shared.ledger().lines();
        for (lane, shard) in lines {
            while shared.ledger().may_call(lane, shard)
                && let Some(call) = start_call(&shared, lane, shard, now)
            {
                shared.ledger().begin_call(lane, shard, call.count);
                self.calls.push(call);
            }
        }
        // Something may have gone over to a line that was passed already.
        if is_more || shared.ledger().take_news() {
            return now;
        }
        self.calls.iter().map(|call| call.times_out_at).fold(shared.note_sleep(), Instant::min)
    }

    /// Ready if the engine has news, or if there may be something to do.
    fn poll_news(&mut self, cx: &mut Context<'_>, next: Instant) -> Poll<Option<Wake>> {
        let mut are_over = false;
        self.calls.retain_mut(|call| {
            let is_over = call.poll(cx).is_ready();
            if is_over {
                self.shared.ledger().end_call(call.lane, call.shard, call.count);
            }
            are_over |= is_over;
            !is_over
        });
        if are_over {
            return Poll::Ready(None);
        }
        if let Some(wakes) = &mut self.wakes {
            match wakes.poll_next_unpin(cx) {
                Poll::Ready(Some(wake)) => return Poll::Ready(Some(wake)),
                Poll::Ready(None) => self.wakes = None,
                Poll::Pending => {}
            }
        }
        if self.shared.poll_news(cx).is_ready() || self.timer.poll_until(next, cx).is_ready() {
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}

/// Sends what waits in a line: as much as a call takes.
fn start_call(shared: &Arc<Shared>, lane: Lane, shard: Shard, now: Instant) -> Option<Call> {
    let engine = shared.engine.clone();
    let (_, most, _) = lane.limits(shared);
    let line = (lane, shard, now);
    match lane {
        Lane::Claims => {
            let most_of_one = engine.capability().resource_batch_max;
            let (sent, claims) = shared.ledger().take_claims(now, shard, most, most_of_one);
            let resources: Vec<Name> = claims.iter().map(|claim| claim.resource.clone()).collect();
            let answers = async move { engine.claim(claims).await };
            Call::new(shared, line, sent, answers, move |shared, answered| {
                shared.with_ledger(|ledger, now| {
                    answered.for_each(|(sent, answer)| ledger.on_claim(now, sent, answer));
                    ledger.end_claiming(&resources);
                });
            })
        }
        Lane::Renewals | Lane::Heartbeats | Lane::Deliveries => {
            let (sent, renewals) = shared.ledger().take_renewals(now, lane, shard, most);
            let answers = async move {
                match lane {
                    Lane::Deliveries => engine.queues().expect(HAS_QUEUES).renew(renewals).await,
                    _ => engine.renew(renewals).await,
                }
            };
            Call::new(shared, line, sent, answers, to_ledger(Ledger::on_renew))
        }
        Lane::Releases => {
            let (sent, releases) = shared.ledger().take_releases(now, shard, most);
            let answers = async move { engine.release(releases).await };
            Call::new(shared, line, sent, answers, to_ledger(Ledger::on_release))
        }
        Lane::Settlements => {
            let settling = shared.ledger().take_settlements(shard, most);
            let settlements = settling.iter().map(|settling| settling.settle.clone()).collect();
            let answers = async move { engine.queues().expect(HAS_QUEUES).settle(settlements).await };
            Call::new(shared, line, settling, answers, |shared, answered| {
                answered.for_each(|(settling, answer)| shared.on_settled(settling, answer));
            })
        }
        Lane::Pushes => {
            let pushing = shared.ledger().take_pushes(shard, most).into_iter();
            let (waiters, pushes): (Vec<_>, Vec<_>) = pushing.map(|one| (one.waiter, one.push)).unzip();
            let answers = async move { engine.queues().expect(HAS_QUEUES).push(pushes).await };
            Call::new(shared, line, waiters, answers, |_, answered| {
                // The receiver may have been dropped.
                answered.for_each(|(waiter, answer)| drop(waiter.send(answer)));
            })
        }
    }
}

/// Gives the ledger answers, all of a call at once.
fn to_ledger<A: 'static>(
    take_in: fn(&mut Ledger, &Now<'_>, Sent, Result<A>),
) -> impl FnOnce(&Arc<Shared>, Answered<Sent, A>) + Send {
    move |shared, answered| {
        shared.with_ledger(|ledger, now| {
            answered.for_each(|(sent, answer)| take_in(ledger, now, sent, answer));
        });
    }
}
