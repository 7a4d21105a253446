//! The thread `tenure-io`: moves what the ledger wants sent to the engine, and what comes back to the ledger.
//!
//! One lane for each verb, and in it calls for each shard: a server that hangs delays only what is on it, and the renewal of
//! a lease stands behind nothing but other renewals. What arrives while a call is under way becomes the next batch (group
//! commit). Where the engine says so, a second call goes out behind the first as soon as a few have gathered: neither side
//! waits for the other. A call that is not answered in time is dropped and counts as unavailable; the ledger
//! repeats it with the same claim ids.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use crate::client::connection::Shared;
use crate::client::ledger::{Lane, Sent};
use crate::clock::{Clock, Instant, Timer};
use crate::engine::{ClaimAnswer, Connect, DynEngine, ReleaseAnswer, RenewAnswer, RenewRequest, Shard, Wake};
use crate::error::{Error, ErrorKind, Result};
use crate::model::claim::ClientId;

/// The answers of one call, in the order of what was sent.
enum Answers {
    Claims(Vec<Result<ClaimAnswer>>),
    Renewals(Vec<Result<RenewAnswer>>),
    Releases(Vec<Result<ReleaseAnswer>>),
}

/// A call under way.
struct Call {
    shard: Shard,
    sent: Vec<Sent>,
    answers: BoxFuture<'static, Answers>,
    times_out_at: Instant,
}

/// What happened while the thread waited.
enum News {
    /// Time has come for something, or users have put something into a lane.
    Due,
    Answered(Vec<Sent>, Answers),
    Woken(Wake),
}

/// Starts the thread and connects on it. `ready` gets the result.
pub(crate) fn start(
    clock: Arc<dyn Clock>,
    connect: Connect,
    client: ClientId,
    make_shared: impl FnOnce(Arc<dyn DynEngine>, tokio::runtime::Handle) -> Arc<Shared> + Send + 'static,
    ready: tokio::sync::oneshot::Sender<Result<Arc<Shared>>>,
) -> Result<()> {
    let thread = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return drop(ready.send(Err(failed("cannot start an event loop", error)))),
        };
        runtime.block_on(serve(clock, connect, client, make_shared, ready));
    };
    let started = std::thread::Builder::new().name("tenure-io".to_owned()).spawn(thread);
    started.map(drop).map_err(|error| {
        Error::new(ErrorKind::Unsupported, "connect", "cannot start a thread").with_source(error)
    })
}

/// Connects, sends the result to `ready`, and moves requests and answers until the last user is gone. All of the
/// thread's work, on the runtime of the task that polls it.
pub(crate) async fn serve(
    clock: Arc<dyn Clock>,
    connect: Connect,
    client: ClientId,
    make_shared: impl FnOnce(Arc<dyn DynEngine>, tokio::runtime::Handle) -> Arc<Shared>,
    ready: tokio::sync::oneshot::Sender<Result<Arc<Shared>>>,
) {
    let timer = match clock.timer() {
        Ok(timer) => timer,
        Err(error) => return drop(ready.send(Err(failed("cannot make a timer", error)))),
    };
    let engine = match connect.open(client).await {
        Ok(engine) => engine,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let shared = make_shared(engine, tokio::runtime::Handle::current());
    let _closing = CloseOnExit(shared.clone());
    let wakes = shared.engine.wakes();
    // The receiver may have been dropped; then the last user is gone too, and `run` returns.
    drop(ready.send(Ok(shared.clone())));
    let engine = shared.engine.clone();
    Loop { shared, timer, wakes: Some(wakes), calls: Default::default() }.run().await;
    engine.close();
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
    /// What is under way in each lane, the oldest first.
    calls: [VecDeque<Call>; Lane::ALL.len()],
}

impl Loop {
    async fn run(mut self) {
        let mut close_by = Instant::NEVER;
        loop {
            let now = self.shared.clock.now();
            if self.shared.is_closing() {
                close_by = close_by.min(now + self.shared.settings.answer_timeout);
                let is_quiet = self.shared.queue_client.is_quiet() && !self.shared.ledger().has_releases();
                if now >= close_by || is_quiet {
                    return;
                }
            }
            let next = self.do_what_is_due(now).min(close_by);
            match poll_fn(|cx| self.poll_news(cx, next)).await {
                News::Due => {}
                News::Answered(sent, answers) => self.answer(sent, answers),
                News::Woken(wake) => {
                    self.shared.queue_client.on_wake(&wake);
                    self.shared.with_ledger(|ledger, now| ledger.on_wake(now, wake));
                }
            }
        }
    }

    /// Times out calls, does what is due, starts calls, and returns by when it must be called again.
    fn do_what_is_due(&mut self, now: Instant) -> Instant {
        for lane in Lane::ALL {
            while self.calls[lane as usize].front().is_some_and(|call| now >= call.times_out_at)
                && let Some(call) = self.calls[lane as usize].pop_front()
            {
                let answers = unanswered(lane, &call.sent, self.shared.settings.answer_timeout);
                self.answer(call.sent, answers);
            }
        }
        let shared = self.shared.clone();
        let is_more = shared.with_ledger(|ledger, now| ledger.on_due(now));
        let lines = self.shared.ledger().lines();
        for (lane, shard) in lines {
            while self.may_call(lane, shard)
                && let Some(call) = self.start_call(lane, shard, now)
            {
                self.calls[lane as usize].push_back(call);
            }
        }
        // Something may have gone over to a line that was passed already.
        if is_more || self.shared.ledger().take_news() {
            return now;
        }
        let next = shared.note_sleep();
        self.calls.iter().filter_map(VecDeque::front).map(|call| call.times_out_at).fold(next, Instant::min)
    }

    /// Whether a call may go out in a lane to a shard, if there is anything to send.
    fn may_call(&self, lane: Lane, shard: Shard) -> bool {
        let under_way = self.calls[lane as usize].iter().filter(|call| call.shard == shard).count();
        under_way == 0
            || under_way < self.shared.engine.capability().calls_max
                && self.shared.ledger().has_enough(lane, shard)
    }

    fn start_call(&self, lane: Lane, shard: Shard, now: Instant) -> Option<Call> {
        let engine = self.shared.engine.clone();
        let most = engine.capability().batch_max;
        let mut ledger = self.shared.ledger();
        let (sent, answers): (Vec<Sent>, BoxFuture<'static, Answers>) = match lane {
            Lane::Claims => {
                let most_of_one = engine.capability().resource_batch_max;
                let (sent, claims) = ledger.take_claims(now, shard, most, most_of_one);
                (sent, Box::pin(async move { Answers::Claims(engine.claim(claims).await) }))
            }
            Lane::Renewals | Lane::Heartbeats => {
                let (sent, renewals) = ledger.take_renewals(now, lane, shard, most);
                (sent, Box::pin(async move { Answers::Renewals(engine.renew(renewals).await) }))
            }
            Lane::Deliveries => {
                let most = engine.queues().map_or(most, |queues| queues.capability().batch_max);
                let (sent, renewals) = ledger.take_renewals(now, lane, shard, most);
                (sent, Box::pin(async move { Answers::Renewals(renew_deliveries(&*engine, renewals).await) }))
            }
            Lane::Releases => {
                let (sent, releases) = ledger.take_releases(now, shard, most);
                (sent, Box::pin(async move { Answers::Releases(engine.release(releases).await) }))
            }
        };
        let times_out_at = now + self.shared.settings.answer_timeout;
        (!sent.is_empty()).then_some(Call { shard, sent, answers, times_out_at })
    }

    fn poll_news(&mut self, cx: &mut Context<'_>, next: Instant) -> Poll<News> {
        for calls in &mut self.calls {
            for at in 0..calls.len() {
                if let Poll::Ready(answers) = calls[at].answers.as_mut().poll(cx) {
                    let sent = calls.remove(at).map(|call| call.sent).unwrap_or_default();
                    return Poll::Ready(News::Answered(sent, answers));
                }
            }
        }
        if let Some(wakes) = &mut self.wakes {
            match wakes.poll_next_unpin(cx) {
                Poll::Ready(Some(wake)) => return Poll::Ready(News::Woken(wake)),
                Poll::Ready(None) => self.wakes = None,
                Poll::Pending => {}
            }
        }
        if self.shared.poll_news(cx).is_ready() || self.timer.poll_until(next, cx).is_ready() {
            return Poll::Ready(News::Due);
        }
        Poll::Pending
    }

    fn answer(&self, sent: Vec<Sent>, answers: Answers) {
        self.shared.with_ledger(|ledger, now| match answers {
            Answers::Claims(answers) => {
                debug_assert_eq!(sent.len(), answers.len(), "an answer for each claim");
                sent.into_iter().zip(answers).for_each(|(sent, answer)| ledger.on_claim(now, sent, answer));
            }
            Answers::Renewals(answers) => {
                debug_assert_eq!(sent.len(), answers.len(), "an answer for each renewal");
                sent.into_iter().zip(answers).for_each(|(sent, answer)| ledger.on_renew(now, sent, answer));
            }
            Answers::Releases(answers) => {
                debug_assert_eq!(sent.len(), answers.len(), "an answer for each release");
                sent.into_iter().zip(answers).for_each(|(sent, answer)| ledger.on_release(now, sent, answer));
            }
        });
    }
}

/// Renews what was taken from queues.
async fn renew_deliveries(engine: &dyn DynEngine, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
    match engine.queues() {
        Some(queues) => queues.renew(renewals).await,
        None => vec![Ok(RenewAnswer::Lost); renewals.len()],
    }
}

/// What a call that is given up counts as.
fn unanswered(lane: Lane, sent: &[Sent], after: std::time::Duration) -> Answers {
    fn all<T>(sent: &[Sent], operation: &'static str, after: std::time::Duration) -> Vec<Result<T>> {
        let error = Error::new(ErrorKind::Unavailable, operation, format!("no answer within {after:?}"))
            .with_hint("is the store running and reachable? try `tenure doctor`");
        sent.iter().map(|_| Err(error.clone())).collect()
    }
    match lane {
        Lane::Claims => Answers::Claims(all(sent, "claim", after)),
        Lane::Renewals | Lane::Deliveries | Lane::Heartbeats => Answers::Renewals(all(sent, "renew", after)),
        Lane::Releases => Answers::Releases(all(sent, "release", after)),
    }
}
