//! The engine: one script call per batch and slot, on the server in charge.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::{BoxFuture, join, join_all};
use futures_util::stream::BoxStream;
use redis::{Cmd, Value};
use tenure_core::clock::{Clock, SystemClock, Timestamp};
use tenure_core::engine::queue::QueueEngine;
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, Engine, Finding, Incarnation, Reach, ReleaseAnswer, ReleaseRequest,
    RenewAnswer, RenewRequest, Shard, Wake, claim_answer, release_answer, renew_answer,
};
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Keep, Name};
use tenure_core::model::inspect::View;
use tenure_core::model::step::Outcome;
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, Result};

use crate::answer::{self, Answers, Unexpected, in_millis};
use crate::config::Config;
use crate::drift::{Drift, Step};
use crate::error::Fault;
use crate::keys::{Key, Keys};
use crate::queue::Queues;
use crate::script::{self, Arguments, Form, LIBRARY, Script};
use crate::topology::Servers;
use crate::wake::Switchboard;
use crate::{check, inspect, observe};

/// The one word for this engine.
pub(crate) const ENGINE: &str = "redis";
/// The most claims, renewals or releases in one script call, and more gains nothing: so many free mutexes block the
/// server for some 0.4 ms, so many waiters for some 2 ms.
const BATCH_MAX: usize = 128;
/// The most claims in one call that a published value may answer, each with 256 KiB: to copy the values of a whole batch would
/// block the server for tens of milliseconds.
const CALL_VALUES_MAX: usize = 8;
/// How many calls of a verb are under way at a time. A connection keeps their order.
const CALLS_MAX: usize = 2;

/// The engine on a single Redis server, on what Sentinel keeps alive, or on a cluster.
pub struct Redis {
    pub(crate) store: Arc<Store>,
    capability: Capability,
    queues: Queues,
}

/// What the engine's parts share.
pub(crate) struct Store {
    pub(crate) client: ClientId,
    pub(crate) servers: Servers,
    pub(crate) keys: Keys,
    pub(crate) switchboard: Switchboard,
    pub(crate) replicas: u8,
    /// Renewals during which too few replicas acknowledged.
    pub(crate) unacknowledged: AtomicU64,
    is_looking: AtomicBool,
    /// The user's rights do not reach so far: scripts are called in their place.
    pub(crate) may_not_call_functions: AtomicBool,
    drift: Drift,
}

/// A request on its way.
struct Part<'a, R> {
    at: usize,
    key: Key,
    request: &'a R,
}

/// How a call is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// What a slot that moves refuses for now is sent again for a while.
    Patient,
    /// It is answered at once: what goes out with it, or stands behind it, cannot wait. The client repeats it.
    Urgent,
    /// Replicas should acknowledge it.
    Replicated,
}

/// What the requests of a batch have in common.
struct Verb<R> {
    operation: &'static str,
    script: &'static Script,
    name: fn(&R) -> &Name,
    arguments: Arguments<R>,
    /// Whether the request may be queued, and so be told of its grant.
    may_wait: fn(&R) -> bool,
    /// Whether a published value may answer the request.
    may_answer_value: fn(&R) -> bool,
    sending: Sending,
}

/// What a call answered beside its items.
pub(crate) struct Context {
    pub(crate) now: Timestamp,
    pub(crate) incarnation: Incarnation,
    /// How many replicas have what was written. None: it was not asked for.
    acknowledged: Option<u32>,
}

impl Redis {
    /// Connects a client. It must be called on a tokio runtime, which serves the client from then on.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if no server answers in time; [`ErrorKind::Invalid`] if it refuses the user or
    /// the password; [`ErrorKind::Unsupported`] if it is too old or not allowed to run scripts.
    pub async fn connect(config: Config, client: ClientId) -> Result<Redis> {
        let (tell, news) = tokio::sync::mpsc::unbounded_channel();
        let servers = Servers::connect(&config, tell)?;
        let keys = Keys::new(&config.prefix, servers.is_cluster());
        // A grant that replicas must acknowledge is used only when the renewal that confirms it says so.
        let switchboard = Switchboard::start(news, config.replicas == 0);
        let (replicas, unacknowledged) = (config.replicas, AtomicU64::new(0));
        let store = Arc::new(Store {
            client,
            servers,
            keys,
            switchboard,
            replicas,
            unacknowledged,
            is_looking: AtomicBool::new(false),
            may_not_call_functions: AtomicBool::new(false),
            drift: Drift::default(),
        });
        // Inboxes are subscribed to when something first waits: a client that never does needs no connection for them.
        store.servers.up(0).await.map_err(|fault| fault.to_error("connect"))?;
        let mut capability = Capability::of_step();
        capability.reach = Reach::Network;
        capability.needs_floor = true;
        capability.remembers_ends = false;
        capability.batch_max = BATCH_MAX;
        capability.calls_max = CALLS_MAX;
        let queues = Queues::new(store.clone());
        Ok(Redis { store, capability, queues })
    }

    async fn submit<R: Sync, A>(
        &self,
        verb: Verb<R>,
        requests: &[R],
        answer: impl Fn(&R, &Context, Value) -> Result<A>,
    ) -> Vec<Result<A>> {
        let mut answers: Vec<Option<Result<A>>> = requests.iter().map(|_| None).collect();
        let mut slots: BTreeMap<(u16, usize), Vec<Part<'_, R>>> = BTreeMap::new();
        let mut values: BTreeMap<u16, usize> = BTreeMap::new();
        for (at, request) in requests.iter().enumerate() {
            match self.store.keys.of((verb.name)(request)) {
                Ok(key) => {
                    let values = values.entry(key.slot).or_default();
                    let call = (key.slot, *values / CALL_VALUES_MAX);
                    *values += usize::from((verb.may_answer_value)(request));
                    slots.entry(call).or_default().push(Part { at, key, request });
                }
                Err(error) => answers[at] = Some(Err(error)),
            }
        }
        let calls = slots.iter().map(async |((slot, _), parts)| self.store.run(&verb, *slot, parts).await);
        let outcomes = join_all(calls).await;
        for (parts, outcome) in slots.values().zip(outcomes) {
            let told =
                |request: &R, error: Error| error.with_engine(ENGINE).with_resource((verb.name)(request));
            match outcome {
                Ok((items, context)) => {
                    for (part, item) in parts.iter().zip(items) {
                        let answered = answer(part.request, &context, item);
                        answers[part.at] = Some(answered.map_err(|error| told(part.request, error)));
                    }
                }
                Err(error) => {
                    for part in parts {
                        answers[part.at] = Some(Err(told(part.request, error.clone())));
                    }
                }
            }
        }
        let missing = || Error::new(ErrorKind::Internal, verb.operation, "the script left out an answer");
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(missing()))).collect()
    }

    /// Does one operation of one resource, and returns the one number that it answers.
    async fn submit_one(
        &self,
        operation: &'static str,
        script: &'static Script,
        resource: &Name,
        arguments: &[&[u8]],
    ) -> Result<i64> {
        let failed = |error: Error| error.with_engine(ENGINE).with_resource(resource);
        let key = self.store.keys.of(resource).map_err(failed)?;
        let build = |cmd: &mut Cmd| {
            for argument in arguments {
                cmd.arg(*argument);
            }
        };
        let called = self.store.call(operation, script, key.slot, std::slice::from_ref(&key), build).await;
        let (items, _) = called.map_err(failed)?;
        match items[..] {
            [Value::Int(number)] => Ok(number),
            _ => Err(failed(internal(operation, &Unexpected("not one number".to_owned())))),
        }
    }
}

impl Store {
    /// Subscribes to the inbox of a slot. Free if that is done.
    pub(crate) async fn listen(&self, operation: &'static str, slot: u16) -> Result<()> {
        let inbox = self.keys.inbox(slot, self.client);
        // What comes next needs the connection for commands: to make both takes no longer than to make one.
        let (subscribed, _) =
            join(self.servers.subscribe(slot, inbox.as_bytes()), self.servers.up(slot)).await;
        subscribed.map_err(|fault| fault.to_error(operation))
    }

    /// Runs a verb's script for the requests of one slot.
    async fn run<R: Sync>(
        &self,
        verb: &Verb<R>,
        slot: u16,
        parts: &[Part<'_, R>],
    ) -> Result<(Vec<Value>, Context)> {
        if parts.iter().any(|part| (verb.may_wait)(part.request)) {
            // Before the claim, or its grant could be told to nobody.
            self.listen(verb.operation, slot).await?;
        }
        let keys: Vec<&Key> = parts.iter().map(|part| &part.key).collect();
        let requests: Vec<&R> = parts.iter().map(|part| part.request).collect();
        let build = |cmd: &mut Cmd| verb.arguments.push(cmd, &requests);
        self.call_as(verb.operation, verb.script, slot, &keys, verb.sending, build).await
    }

    /// Calls a script.
    pub(crate) async fn call(
        &self,
        operation: &'static str,
        script: &Script,
        slot: u16,
        keys: &[Key],
        arguments: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<(Vec<Value>, Context)> {
        let keys: Vec<&Key> = keys.iter().collect();
        self.call_as(operation, script, slot, &keys, Sending::Patient, arguments).await
    }

    async fn call_as(
        &self,
        operation: &'static str,
        script: &Script,
        slot: u16,
        keys: &[&Key],
        sending: Sending,
        arguments: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<(Vec<Value>, Context)> {
        let build = |form: Form, incarnation: Incarnation| {
            let mut cmd = script.call(&self.keys, slot, keys.len(), form);
            for key in keys {
                cmd.arg(&key.text);
            }
            script::push_header(&mut cmd, &self.keys, slot, incarnation, self.servers.is_cluster());
            arguments(&mut cmd);
            cmd
        };
        self.call_built(operation, slot, sending, || LIBRARY.load(), build).await
    }

    /// Calls an operation of a library, in the best form that the server takes.
    pub(crate) async fn call_built(
        &self,
        operation: &'static str,
        slot: u16,
        sending: Sending,
        load: impl Fn() -> Cmd + Send + Sync,
        build: impl Fn(Form, Incarnation) -> Cmd + Send + Sync,
    ) -> Result<(Vec<Value>, Context)> {
        let send = async |form: Form| {
            let sent_at = SystemClock.now();
            let build = |incarnation| build(form, incarnation);
            let (value, incarnation, acknowledged) = match sending {
                Sending::Replicated if self.replicas > 0 => {
                    let sent = self.servers.with_replicas(slot, build).await?;
                    (sent.0, sent.1, Some(sent.2))
                }
                Sending::Urgent => {
                    let (value, incarnation) = self.servers.call_at_once(slot, build).await?;
                    (value, incarnation, None)
                }
                Sending::Patient | Sending::Replicated => {
                    let (value, incarnation) = self.servers.call(slot, build).await?;
                    (value, incarnation, None)
                }
            };
            Ok::<_, Fault>((value, incarnation, acknowledged, sent_at))
        };
        let mut form =
            if self.may_not_call_functions.load(Ordering::Relaxed) { Form::Known } else { Form::Function };
        let mut is_loaded = false;
        let (value, incarnation, acknowledged, sent_at) = loop {
            // Where another form is tried, this one was not executed.
            form = match (send(form).await, form) {
                (Err(fault), Form::Function) if fault.is_no_function() && !is_loaded => {
                    is_loaded = true;
                    if self.load_functions(slot, &load).await { Form::Function } else { Form::Known }
                }
                (Err(fault), Form::Function)
                    if fault.is_no_function() || self.are_functions_refused(&fault) =>
                {
                    Form::Known
                }
                (Err(fault), Form::Known) if fault.is_no_script() => Form::Text,
                (sent, _) => break sent.map_err(|fault| fault.to_error(operation))?,
            };
        };
        let Answers { now, items } = answer::answers(value).map_err(|what| internal(operation, &what))?;
        if let Some(step) = self.drift.note(incarnation, sent_at, SystemClock.now(), now) {
            self.note_step(step);
        }
        Ok((items, Context { now, incarnation, acknowledged }))
    }

    /// Loads the library on the server of a slot: it is new there, or somebody has flushed it. Returns whether it is
    /// there now.
    async fn load_functions(&self, slot: u16, load: impl Fn() -> Cmd + Send + Sync) -> bool {
        match self.servers.call(slot, |_| load()).await {
            Ok(_) => true,
            // Another client was faster.
            Err(fault) if fault.is_loaded_already() => true,
            Err(fault) => {
                self.are_functions_refused(&fault);
                tracing::debug!(%fault, "cannot load functions: scripts are used");
                false
            }
        }
    }

    /// Returns whether the user may not use functions, and remembers it.
    fn are_functions_refused(&self, fault: &Fault) -> bool {
        let are_refused = fault.refuses_functions();
        if are_refused {
            self.may_not_call_functions.store(true, Ordering::Relaxed);
        }
        are_refused
    }

    fn note_step(&self, step: Step) {
        match step {
            Step::Forward(by) => {
                tracing::warn!(
                    ?by,
                    "the server's clock was set forward: holds may have ended before their time"
                );
                self.switchboard.tell(Wake::RenewAll);
            }
            Step::Back(by) => {
                tracing::warn!(?by, "the server's clock was set back: holds that nobody renews live longer");
            }
        }
    }

    /// Looks whether the replicas keep up, beside `renewals` that do not wait for them. Once at a time.
    fn look_at_replicas(self: &Arc<Self>, resource: &Name, renewals: u64) {
        let Ok(key) = self.keys.of(resource) else { return };
        if self.is_looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let store = self.clone();
        tokio::spawn(async move {
            let looked = store.servers.with_replicas(key.slot, |_| redis::cmd("PING")).await;
            store.is_looking.store(false, Ordering::Relaxed);
            // If nobody answers, the renewals say so.
            let Ok((_, _, count)) = looked else { return };
            if count < u32::from(store.replicas) {
                let before = store.unacknowledged.fetch_add(renewals, Ordering::Relaxed);
                let (wanted, unacknowledged) = (store.replicas, before + renewals);
                tracing::warn!(count, wanted, unacknowledged, "replicas do not acknowledge renewals");
            }
        });
    }

    /// Refuses to pass on a grant that too few replicas have. The claim is repeated, and with it the wait.
    pub(crate) fn check_replicas(
        &self,
        operation: &'static str,
        what: &str,
        context: &Context,
    ) -> Result<()> {
        let wanted = u32::from(self.replicas);
        match context.acknowledged {
            Some(count) if count < wanted => {
                let message = format!("{count} of {wanted} replicas have acknowledged the {what}");
                let hint = "are the replicas up and connected? else lower `replicas`, and rely on the token";
                Err(Error::new(ErrorKind::Unavailable, operation, message).with_hint(hint))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn internal(operation: &'static str, Unexpected(what): &Unexpected) -> Error {
    Error::new(ErrorKind::Internal, operation, format!("the server answered {what}")).with_engine(ENGINE)
}

impl Engine for Redis {
    fn name(&self) -> &'static str {
        ENGINE
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn shard(&self, resource: &Name) -> Shard {
        if !self.store.servers.is_cluster() {
            return Shard::default();
        }
        // What can have no key is refused before anything is sent.
        self.store.keys.of(resource).map_or(Shard::default(), |key| self.store.servers.shard(key.slot))
    }

    fn claim(&self, claims: Vec<Claim>) -> BoxFuture<'_, Vec<Result<ClaimAnswer>>> {
        let verb = Verb {
            operation: "claim",
            script: &LIBRARY.claim,
            name: |claim: &Claim| &claim.resource,
            arguments: script::CLAIM_ARGUMENTS,
            may_wait: |claim| claim.wait,
            may_answer_value: |claim| claim.terms.unless_fresh,
            sending: Sending::Replicated,
        };
        Box::pin(async move {
            self.submit(verb, &claims, |claim, context, item| {
                if let Some(what) = answer::foreign(&item) {
                    let key = self.store.keys.of(&claim.resource)?.text;
                    let message = format!("the Redis key {key} is a {what} that tenure did not make");
                    let error = Error::new(ErrorKind::Invalid, "claim", message);
                    return Err(error.with_hint("use another name, or `?prefix=`").with_no_effect());
                }
                let outcome = answer::claimed(claim, context.now, item);
                let outcome = outcome.map_err(|what| internal("claim", &what))?;
                if matches!(outcome, Outcome::Granted(_)) {
                    self.store.check_replicas("claim", "grant", context)?;
                }
                claim_answer(claim, outcome, context.incarnation)
            })
            .await
        })
    }

    fn renew(&self, renewals: Vec<RenewRequest>) -> BoxFuture<'_, Vec<Result<RenewAnswer>>> {
        // What confirms a waiter's grant waits for replicas, as a claim does. What extends a lease must not: its deadline would
        // pass while replicas are away. So a client asks for either in calls of their own.
        let waits = renewals.iter().any(|renewal| renewal.is_waiter) && self.store.replicas > 0;
        let sending = if waits { Sending::Replicated } else { Sending::Urgent };
        let verb = Verb {
            operation: "renew",
            script: &LIBRARY.renew,
            name: |renewal: &RenewRequest| &renewal.resource,
            arguments: script::RENEW_ARGUMENTS,
            may_wait: |_| false,
            may_answer_value: |_| false,
            sending,
        };
        Box::pin(async move {
            let answers = self.submit(verb, &renewals, |renewal, context, item| {
                let outcome = answer::renewed(item).map_err(|what| internal("renew", &what))?;
                if matches!(outcome, Outcome::Renewed(_)) {
                    self.store.check_replicas("renew", "grant", context)?;
                }
                Ok(renew_answer(renewal, outcome, context.incarnation))
            });
            let answers = answers.await;
            if let Some(held) = renewals.first()
                && self.store.replicas > 0
                && !waits
            {
                self.store.look_at_replicas(&held.resource, renewals.len() as u64);
            }
            answers
        })
    }

    fn release(&self, releases: Vec<ReleaseRequest>) -> BoxFuture<'_, Vec<Result<ReleaseAnswer>>> {
        let verb = Verb {
            operation: "release",
            script: &LIBRARY.release,
            name: |request: &ReleaseRequest| &request.resource,
            arguments: script::RELEASE_ARGUMENTS,
            may_wait: |_| false,
            may_answer_value: |_| false,
            sending: Sending::Patient,
        };
        Box::pin(async move {
            self.submit(verb, &releases, |_, _, item| {
                let is_released = answer::released(item).map_err(|what| internal("release", &what))?;
                Ok(release_answer(&if is_released { Outcome::Released } else { Outcome::AlreadyLost }))
            })
            .await
        })
    }

    fn publish(
        &self,
        resource: Name,
        claim: ClaimId,
        bytes: Arc<[u8]>,
        keep: Keep,
    ) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let (fresh, stale) = match keep {
                Keep::WhileHeld => (String::new(), String::new()),
                Keep::For { fresh, stale } => (in_millis(fresh).to_string(), in_millis(stale).to_string()),
            };
            let claim = claim.to_string();
            let arguments: [&[u8]; 4] = [claim.as_bytes(), &bytes, fresh.as_bytes(), stale.as_bytes()];
            Ok(self.submit_one("publish", &LIBRARY.publish, &resource, &arguments).await? == 1)
        })
    }

    fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> BoxFuture<'_, Result<Vec<View>>> {
        Box::pin(inspect::inspect(&self.store, prefix, after, most))
    }

    fn inspect_all(&self, prefix: String) -> BoxStream<'_, Result<Vec<Result<View>>>> {
        inspect::inspect_all(&self.store, prefix)
    }

    fn view(&self, resource: Name) -> BoxFuture<'_, Result<Option<View>>> {
        // Without the scan that a list of names takes.
        Box::pin(async move { Ok(inspect::look(&self.store, &[resource]).await?.pop().flatten()) })
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        observe::observe(self.store.clone(), resource)
    }

    fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> BoxFuture<'_, Result<BreakAnswer>> {
        Box::pin(async move {
            let (token, at_once) = (token.to_string(), u8::from(at_once).to_string());
            let arguments = [token.as_bytes(), at_once.as_bytes()];
            let free_in = self.submit_one("break", &LIBRARY.break_hold, &resource, &arguments).await?;
            let millis = |millis: i64| std::time::Duration::from_millis(millis.unsigned_abs());
            Ok(match free_in {
                0.. => BreakAnswer::Broken { free_in: millis(free_in) },
                -1 => BreakAnswer::NotHeld,
                _ => BreakAnswer::Resting { free_in: millis(-2 - free_in) },
            })
        })
    }

    fn resize(&self, resource: Name, capacity: u32) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let capacity = capacity.to_string();
            let done = self.submit_one("resize", &LIBRARY.resize, &resource, &[capacity.as_bytes()]).await?;
            if done == 1 {
                return Ok(());
            }
            let why = "only semaphores and slot pools have a capacity to change";
            Err(Error::new(ErrorKind::Invalid, "resize", why).with_engine(ENGINE).with_resource(&resource))
        })
    }

    fn queues(&self) -> Option<&dyn QueueEngine> {
        Some(&self.queues)
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        self.store.switchboard.wakes()
    }

    fn check(&self) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(check::check(&self.store))
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("client", &self.store.client).finish_non_exhaustive()
    }
}
