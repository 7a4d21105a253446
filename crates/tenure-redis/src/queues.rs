//! The queues: one call of a function for each queue of a batch, which does all that the batch asks of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{BoxStream, Stream, StreamExt, TryStreamExt};
use redis::{Cmd, Value};
use tenure_core::clock::Timestamp;
use tenure_core::engine::queue::{
    Interval, ItemContext, ItemId, ItemView, Push, Pushed, QueueCapability, QueueEngine, QueueLine,
    QueueStats, REASON_BYTES_MAX, Settle, SettleAnswer, Settlement, Take, Taken, Which,
};
use tenure_core::engine::{RenewAnswer, RenewRequest};
use tenure_core::model::claim::Name;
use tenure_core::{Error, ErrorKind, Result};

use crate::keys::{Key, Keys};
use crate::locks::inspect;
use crate::lua::answer::{Unexpected, number};
use crate::lua::{Form, Script};
use crate::store::{Context, Sending, Store, internal};
use library::{LIBRARY, Library};

pub(crate) mod answer;
mod library;
#[cfg(test)]
mod tests;

/// The most pushes, takes, renewals or settlements in one call.
const BATCH_MAX: usize = 128;
/// After how many bytes of payload the rest of a batch goes into another call, so that none blocks the server for long.
const CALL_BYTES_MAX: usize = 1024 * 1024;
/// How many dead letters one call puts in line, and how many items one reads to remove them.
const STEP_MAX: usize = 256;
/// The longest period that is counted: a hundred years. What the server counts in are doubles.
const PERIOD_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The queues of a client.
pub(crate) struct Queues {
    store: Arc<Store>,
    library: &'static Library,
    capability: QueueCapability,
}

/// What the requests of a batch have in common.
struct Verb<R, A> {
    operation: &'static str,
    script: &'static Script,
    name: fn(&R) -> &Name,
    /// How many bytes a request adds to a call.
    bytes: fn(&R) -> usize,
    push: fn(&mut Cmd, &R),
    answer: fn(&R, Timestamp, Value) -> std::result::Result<A, Unexpected>,
    /// Whether the client is to be woken for what comes later.
    may_idle: bool,
    sending: Sending,
}

impl Queues {
    pub(crate) fn new(store: Arc<Store>) -> Queues {
        let mut capability = QueueCapability::of_step();
        capability.is_durable = false;
        capability.survives_failover = false;
        capability.batch_max = BATCH_MAX;
        Queues { store, library: &LIBRARY, capability }
    }

    async fn submit<R: Sync, A>(&self, verb: Verb<R, A>, requests: &[R]) -> Vec<Result<A>> {
        let mut answers: Vec<Option<Result<A>>> = requests.iter().map(|_| None).collect();
        let mut queues: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
        for (at, request) in requests.iter().enumerate() {
            queues.entry((verb.name)(request)).or_default().push(at);
        }
        let calls = queues.iter().map(async |(name, at)| {
            let requests: Vec<&R> = at.iter().map(|at| &requests[*at]).collect();
            self.of_one_queue(&verb, name, &requests).await
        });
        let answered = join_all(calls).await;
        for (at, answered) in queues.values().zip(answered) {
            for (at, answer) in at.iter().zip(answered) {
                answers[*at] = Some(answer);
            }
        }
        let missing = || Error::new(ErrorKind::Internal, verb.operation, "the script left out an answer");
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(missing()))).collect()
    }

    /// Answers the requests of a batch that are about one queue, in their order.
    async fn of_one_queue<R: Sync, A>(
        &self,
        verb: &Verb<R, A>,
        queue: &Name,
        requests: &[&R],
    ) -> Vec<Result<A>> {
        let mut answers = Vec::with_capacity(requests.len());
        let mut rest = requests;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(BATCH_MAX).take_while(|request| {
                let is_first = bytes == 0;
                bytes += (verb.bytes)(request);
                is_first || bytes <= CALL_BYTES_MAX
            });
            let (some, others) = rest.split_at(fits.count().max(1));
            match self.once(verb, queue, some).await {
                Ok((items, context)) => {
                    let is_acknowledged = if verb.sending == Sending::Replicated {
                        self.store.check_replicas(verb.operation, verb.operation, &context)
                    } else {
                        Ok(())
                    };
                    for (request, item) in some.iter().zip(items) {
                        let answer = (verb.answer)(request, context.now, item)
                            .map_err(|what| internal(verb.operation, &what));
                        let answer = is_acknowledged.clone().and(answer);
                        answers.push(answer);
                    }
                }
                Err(error) => {
                    // What comes behind must not overtake it.
                    answers.extend(rest.iter().map(|_| Err(error.clone())));
                    break;
                }
            }
            rest = others;
        }
        answers
    }

    async fn once<R: Sync, A>(
        &self,
        verb: &Verb<R, A>,
        queue: &Name,
        requests: &[&R],
    ) -> Result<(Vec<Value>, Context)> {
        let key = self.store.keys.of(queue)?;
        if verb.may_idle {
            // Before the take, or what comes later could be published without a subscriber.
            self.store.listen(verb.operation, key.slot).await?;
        }
        let arguments = |cmd: &mut Cmd| {
            for request in requests {
                (verb.push)(cmd, request);
            }
        };
        self.run_script(verb.operation, verb.script, queue, &key, verb.sending, arguments).await
    }

    async fn run_script(
        &self,
        operation: &'static str,
        script: &Script,
        queue: &Name,
        key: &Key,
        sending: Sending,
        arguments: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<(Vec<Value>, Context)> {
        let store = &self.store;
        let (keys, inboxes) = (store.keys.of_queue(key), store.keys.inboxes(key.slot));
        let publish = if store.servers.is_cluster() { "SPUBLISH" } else { "PUBLISH" };
        let build = |form: Form, _| {
            let mut cmd = library::begin(script, form, &keys, queue, &inboxes, publish);
            arguments(&mut cmd);
            cmd
        };
        store.call_built(operation, key.slot, sending, || self.library.load(), build).await
    }

    /// Does what an operator asks of one queue.
    async fn one(
        &self,
        operation: &'static str,
        script: &Script,
        queue: &Name,
        arguments: &[&str],
    ) -> Result<(Vec<Value>, Context)> {
        let key = self.store.keys.of(queue)?;
        let push = |cmd: &mut Cmd| {
            for argument in arguments {
                cmd.arg(*argument);
            }
        };
        self.run_script(operation, script, queue, &key, Sending::Patient, push).await
    }

    async fn read_stats(&self, queue: &Name) -> Result<QueueStats> {
        let (items, _) = self.one("look at", &self.library.stats, queue, &[]).await?;
        answer::stats(&items).map_err(|what| internal("look at", &what))
    }

    fn scan(&self, prefix: String) -> impl Stream<Item = Result<Vec<Name>>> + Send + '_ {
        let pattern = self.store.keys.pattern_of_queues(&prefix);
        inspect::scan(&self.store, pattern, Keys::name_of, prefix)
    }
}

/// A period in whole microseconds, never shorter than asked for.
fn micros(period: Duration) -> u64 {
    u64::try_from(period.min(PERIOD_MAX).as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

fn push_push(cmd: &mut Cmd, push: &Push) {
    let text = |name: &Option<Name>| name.as_ref().map_or(String::new(), Name::to_string);
    let context = push.context.as_ref().map_or("", ItemContext::as_str);
    cmd.arg(text(&push.group)).arg(micros(push.delay)).arg(text(&push.dedup));
    cmd.arg(context).arg(&*push.payload);
}

fn push_take(cmd: &mut Cmd, take: &Take) {
    let rules = &take.rules;
    let (interval, period) = match rules.interval {
        Interval::Off => ("-", Duration::ZERO),
        Interval::Queue(period) => ("q", period),
        Interval::Group(period) => ("g", period),
    };
    cmd.arg(take.client.to_string()).arg(micros(rules.ttl)).arg(interval).arg(micros(period));
    cmd.arg(rules.attempts_max).arg(take.floor.get()).arg(rules.label.as_str()).arg(take.claims.len());
    for claim in &take.claims {
        cmd.arg(claim.to_string());
    }
}

fn push_settle(cmd: &mut Cmd, settle: &Settle) {
    cmd.arg(settle.claim.to_string());
    match &settle.settlement {
        Settlement::Ack => cmd.arg("a"),
        Settlement::Return => cmd.arg("b"),
        Settlement::Fail { reason } => cmd.arg("f").arg(cut(reason)),
        Settlement::Retry { after, attempts_max, reason } => {
            cmd.arg("r").arg(micros(*after)).arg(attempts_max).arg(cut(reason))
        }
    };
}

/// A reason, as long as one may be.
fn cut(reason: &str) -> &str {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

impl QueueEngine for Queues {
    fn capability(&self) -> &QueueCapability {
        &self.capability
    }

    async fn push(&self, pushes: Vec<Push>) -> Vec<Result<Pushed>> {
        let verb = Verb {
            operation: "push",
            script: &self.library.push,
            name: |push: &Push| &push.queue,
            bytes: |push| push.payload.len(),
            push: push_push,
            answer: |_, _, item| answer::pushed(&item),
            may_idle: false,
            sending: Sending::Replicated,
        };
        self.submit(verb, &pushes).await
    }

    async fn take(&self, takes: Vec<Take>) -> Vec<Result<Taken>> {
        let verb = Verb {
            operation: "take",
            script: &self.library.take,
            name: |take: &Take| &take.queue,
            bytes: |_| 0,
            push: push_take,
            answer: answer::taken,
            may_idle: true,
            sending: Sending::Patient,
        };
        let answers = self.submit(verb, &takes).await;
        let refuse = || {
            let why = "the tokens are used up: a floor or the store's clock was very wrong";
            Error::new(ErrorKind::Invalid, "take", why)
        };
        answers.into_iter().map(|answer| answer?.ok_or_else(refuse)).collect()
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        let verb = Verb {
            operation: "renew",
            script: &self.library.renew,
            name: |renewal: &RenewRequest| &renewal.resource,
            bytes: |_| 0,
            push: |cmd, renewal| {
                cmd.arg(renewal.claim.to_string());
            },
            answer: |_, _, item| match number(&item)? {
                0 => Ok(RenewAnswer::Lost),
                micros => Ok(RenewAnswer::Renewed { ends_in: Duration::from_micros(micros) }),
            },
            may_idle: false,
            sending: Sending::Urgent,
        };
        self.submit(verb, &renewals).await
    }

    async fn settle(&self, settlements: Vec<Settle>) -> Vec<Result<SettleAnswer>> {
        let verb = Verb {
            operation: "settle",
            script: &self.library.settle,
            name: |settle: &Settle| &settle.queue,
            bytes: |_| 0,
            push: push_settle,
            answer: |_, _, item| match number(&item)? {
                0 => Ok(SettleAnswer::Lost),
                1 => Ok(SettleAnswer::Settled),
                _ => Ok(SettleAnswer::Buried),
            },
            may_idle: false,
            sending: Sending::Patient,
        };
        self.submit(verb, &settlements).await
    }

    async fn queues(
        &self,
        prefix: String,
        after: Option<Name>,
        most: usize,
    ) -> Result<Vec<(Name, QueueStats)>> {
        let most = most.min(inspect::PAGE_MAX);
        let names = inspect::first(self.scan(prefix), after.as_ref(), most).await?;
        let all_stats = join_all(names.iter().map(|name| self.read_stats(name))).await;
        let named = |(name, stats): (Name, Result<QueueStats>)| {
            let stats = stats.map_err(|error| error.with_resource(&name))?;
            Ok((name, stats))
        };
        names.into_iter().zip(all_stats).map(named).collect()
    }

    fn queues_all(&self, prefix: String) -> BoxStream<'_, Result<Vec<QueueLine>>> {
        let lines = self.scan(prefix).and_then(async |names| {
            let all_stats = join_all(names.iter().map(|name| self.read_stats(name))).await;
            Ok(names.into_iter().zip(all_stats).collect())
        });
        lines.boxed()
    }

    async fn stats(&self, queue: Name) -> Result<QueueStats> {
        self.read_stats(&queue).await
    }

    async fn items(
        &self,
        queue: Name,
        which: Which,
        after: Option<ItemId>,
        most: usize,
    ) -> Result<Vec<ItemView>> {
        let after = after.map_or("-1".to_owned(), |after| after.to_string());
        let most = most.min(inspect::PAGE_MAX).to_string();
        let arguments = [letter(which), &after, &most];
        let (items, context) = self.one("look at", &self.library.items, &queue, &arguments).await?;
        let views = items.into_iter().map(|item| answer::view(which, context.now, item));
        let views: std::result::Result<Vec<ItemView>, Unexpected> = views.collect();
        views.map_err(|what| internal("look at", &what))
    }

    async fn replay(&self, queue: Name, item: Option<ItemId>, most: usize) -> Result<usize> {
        let (mut count, one) = (0, item.map_or(String::new(), answer::padded));
        while count < most {
            let step = (most - count).min(STEP_MAX);
            let arguments = [one.as_str(), &step.to_string()];
            let (items, _) = self.one("replay", &self.library.replay, &queue, &arguments).await?;
            let (some, _) = answer::count(&items).map_err(|what| internal("replay", &what))?;
            count += some;
            if item.is_some() || some < step {
                break;
            }
        }
        Ok(count)
    }

    async fn purge(&self, queue: Name, which: Which, item: Option<ItemId>, most: usize) -> Result<usize> {
        let mut after = item.map_or("-1".to_owned(), |item| item.0.saturating_sub(1).to_string());
        let last = item.map_or("+inf".to_owned(), |item| item.to_string());
        let mut count = 0;
        while count < most {
            let (rest, step) = ((most - count).to_string(), STEP_MAX.to_string());
            let arguments = [letter(which), &after, &last, &rest, &step];
            let (items, _) = self.one("purge", &self.library.purge, &queue, &arguments).await?;
            let (some, seen) = answer::count(&items).map_err(|what| internal("purge", &what))?;
            count += some;
            match seen {
                Some(seen) => after = seen,
                None => break,
            }
        }
        Ok(count)
    }
}

fn letter(which: Which) -> &'static str {
    match which {
        Which::Live => "l",
        Which::Dead => "d",
    }
}
