//! The engine: one script call per batch and slot, on the server in charge.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use redis::{Cmd, Value};
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, DynQueueEngine, Engine, Finding, Reach, ReleaseAnswer,
    ReleaseRequest, RenewAnswer, RenewRequest, Shard, Wake, WithdrawAnswer, WithdrawRequest, claim_answer,
    renew_answer,
};
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Keep, Name};
use tenure_core::model::inspect::View;
use tenure_core::model::step::{Claimed, Renewed};
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, Result};

use crate::config::Config;
use crate::doctor;
use crate::keys::{Key, Keys};
use crate::locks::{inspect, observe};
use crate::lua::answer::{self, Unexpected, in_millis};
use crate::lua::{self, Arguments, LIBRARY, Script};
use crate::net::drift::Drift;
use crate::net::topology::Servers;
use crate::queues::Queues;
use crate::store::{Context, ENGINE, Sending, Store, internal};
use crate::wake::Switchboard;

/// The most claims, renewals or releases in one script call, and more gains nothing: so many free mutexes block the
/// server for some 0.4 ms, so many waiters for some 2 ms.
const BATCH_MAX: usize = 128;
/// The most claims in one call that a published value may answer, each with 256 KiB: to copy the values of a whole batch would
/// block the server for tens of milliseconds.
const CALL_VALUES_MAX: usize = 8;
/// How many calls of a verb are under way at a time. A connection keeps their order.
const CALLS_MAX: usize = 2;

/// The engine on a single Redis server, on what Sentinel keeps alive, or on a cluster.
///
/// No example: it comes from `Config`, and is used by the client that connects with it.
pub struct Redis {
    pub(crate) store: Arc<Store>,
    capability: Capability,
    queues: Queues,
}

/// A request on its way.
struct Part<'a, R> {
    at: usize,
    key: Key,
    request: &'a R,
}

/// What the requests of a batch have in common.
struct Verb<R> {
    operation: &'static str,
    script: &'static Script,
    name: fn(&R) -> &Name,
    arguments: Arguments<R>,
    /// Whether the request may be queued, and so be woken by its grant.
    may_wait: fn(&R) -> bool,
    /// Whether a published value may answer the request.
    may_answer_value: fn(&R) -> bool,
    sending: Sending,
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
            inbox: keys.inbox(0, client),
            keys,
            switchboard,
            replicas,
            unacknowledged,
            is_probing: AtomicBool::new(false),
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
        let calls = slots.iter().map(async |((slot, _), parts)| self.run(&verb, *slot, parts).await);
        let outcomes = join_all(calls).await;
        for (parts, outcome) in slots.values().zip(outcomes) {
            match outcome {
                Ok((items, context)) => {
                    for (part, item) in parts.iter().zip(items) {
                        answers[part.at] = Some(answer(part.request, &context, item));
                    }
                }
                Err(error) => {
                    for part in parts {
                        answers[part.at] = Some(Err(error.clone()));
                    }
                }
            }
        }
        let missing = || Error::new(ErrorKind::Internal, verb.operation, "the script left out an answer");
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(missing()))).collect()
    }

    /// Runs a verb's script for the requests of one slot.
    async fn run<R: Sync>(
        &self,
        verb: &Verb<R>,
        slot: u16,
        parts: &[Part<'_, R>],
    ) -> Result<(Vec<Value>, Context)> {
        if parts.iter().any(|part| (verb.may_wait)(part.request)) {
            // Before the claim, or its grant could be published without a subscriber.
            self.store.listen(verb.operation, slot).await?;
        }
        let keys: Vec<&Key> = parts.iter().map(|part| &part.key).collect();
        let requests: Vec<&R> = parts.iter().map(|part| part.request).collect();
        let build = |cmd: &mut Cmd| verb.arguments.push(cmd, &requests);
        self.store.call_as(verb.operation, verb.script, slot, &keys, verb.sending, build).await
    }

    /// Does one operation of one resource, and returns the one number that it answers.
    async fn submit_one(
        &self,
        operation: &'static str,
        script: &'static Script,
        resource: &Name,
        arguments: &[&[u8]],
    ) -> Result<i64> {
        let key = self.store.keys.of(resource)?;
        let build = |cmd: &mut Cmd| {
            for argument in arguments {
                cmd.arg(*argument);
            }
        };
        let called =
            self.store.run_script(operation, script, key.slot, std::slice::from_ref(&key), build).await;
        let (items, _) = called?;
        match items[..] {
            [Value::Int(number)] => Ok(number),
            _ => Err(internal(operation, &Unexpected("not one number".to_owned()))),
        }
    }
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

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        let verb = Verb {
            operation: "claim",
            script: &LIBRARY.claim,
            name: |claim: &Claim| &claim.resource,
            arguments: lua::CLAIM_ARGUMENTS,
            may_wait: |claim| claim.wait,
            may_answer_value: |claim| claim.terms.unless_fresh,
            sending: Sending::Replicated,
        };
        self.submit(verb, &claims, |claim, context, item| {
            if let Some(what) = answer::foreign(&item) {
                let key = self.store.keys.of(&claim.resource)?.text;
                let message = format!("the Redis key {key} is a {what} that tenure did not make");
                let error = Error::new(ErrorKind::Invalid, "claim", message);
                return Err(error.with_hint("use another name, or `?prefix=`").with_no_effect());
            }
            let claimed = answer::claimed(claim, context.now, item);
            let claimed = claimed.map_err(|what| internal("claim", &what))?;
            if matches!(claimed, Ok(Claimed::Granted(_))) {
                self.store.check_replicas("claim", "grant", context)?;
            }
            claim_answer(claim, claimed, context.incarnation)
        })
        .await
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        // What confirms a waiter's grant waits for replicas, as a claim does. What extends a lease must not: its deadline would
        // pass while replicas are away. So a client asks for either in calls of their own.
        let waits = renewals.iter().any(|renewal| renewal.is_waiter) && self.store.replicas > 0;
        let sending = if waits { Sending::Replicated } else { Sending::Urgent };
        let verb = Verb {
            operation: "renew",
            script: &LIBRARY.renew,
            name: |renewal: &RenewRequest| &renewal.resource,
            arguments: lua::RENEW_ARGUMENTS,
            may_wait: |_| false,
            may_answer_value: |_| false,
            sending,
        };
        let answers = self.submit(verb, &renewals, |renewal, context, item| {
            let renewed = answer::renewed(item).map_err(|what| internal("renew", &what))?;
            if matches!(renewed, Renewed::Held(_)) {
                self.store.check_replicas("renew", "grant", context)?;
            }
            Ok(renew_answer(renewal, renewed, context.incarnation))
        });
        let answers = answers.await;
        if let Some(held) = renewals.first()
            && self.store.replicas > 0
            && !waits
        {
            self.store.probe_replicas(&held.resource, renewals.len() as u64);
        }
        answers
    }

    async fn release(&self, releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        let verb = Verb {
            operation: "release",
            script: &LIBRARY.release,
            name: |request: &ReleaseRequest| &request.resource,
            arguments: lua::RELEASE_ARGUMENTS,
            may_wait: |_| false,
            may_answer_value: |_| false,
            sending: Sending::Patient,
        };
        self.submit(verb, &releases, |_, _, item| {
            answer::released(item).map_err(|what| internal("release", &what))
        })
        .await
    }

    async fn withdraw(&self, withdrawals: Vec<WithdrawRequest>) -> Vec<Result<WithdrawAnswer>> {
        let verb = Verb {
            operation: "withdraw",
            script: &LIBRARY.withdraw,
            name: |request: &WithdrawRequest| &request.resource,
            arguments: lua::WITHDRAW_ARGUMENTS,
            may_wait: |_| false,
            may_answer_value: |_| false,
            sending: Sending::Patient,
        };
        self.submit(verb, &withdrawals, |_, _, item| {
            answer::withdrawn(item).map_err(|what| internal("withdraw", &what))
        })
        .await
    }

    async fn publish(&self, resource: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool> {
        let (fresh, stale) = match keep {
            Keep::WhileHeld => (String::new(), String::new()),
            Keep::For { fresh, stale } => (in_millis(fresh).to_string(), in_millis(stale).to_string()),
        };
        let claim = claim.to_string();
        let arguments: [&[u8]; 4] = [claim.as_bytes(), &bytes, fresh.as_bytes(), stale.as_bytes()];
        Ok(self.submit_one("publish", &LIBRARY.publish, &resource, &arguments).await? == 1)
    }

    async fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> Result<Vec<View>> {
        inspect::inspect(&self.store, prefix, after, most).await
    }

    fn inspect_all(&self, prefix: String) -> BoxStream<'_, Result<Vec<Result<View>>>> {
        inspect::inspect_all(&self.store, prefix)
    }

    async fn view(&self, resource: Name) -> Result<Option<View>> {
        // Without the scan that a list of names takes.
        Ok(inspect::read_views(&self.store, &[resource]).await?.pop().flatten())
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        observe::observe(self.store.clone(), resource)
    }

    async fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        let (token, at_once) = (token.to_string(), u8::from(at_once).to_string());
        let arguments = [token.as_bytes(), at_once.as_bytes()];
        let free_in = self.submit_one("break", &LIBRARY.break_hold, &resource, &arguments).await?;
        let millis = |millis: i64| std::time::Duration::from_millis(millis.unsigned_abs());
        Ok(match free_in {
            0.. => BreakAnswer::Broken { free_in: millis(free_in) },
            -1 => BreakAnswer::NotHeld,
            _ => BreakAnswer::Resting { free_in: millis(-2 - free_in) },
        })
    }

    async fn resize(&self, resource: Name, capacity: u32) -> Result<()> {
        let capacity = capacity.to_string();
        let done = self.submit_one("resize", &LIBRARY.resize, &resource, &[capacity.as_bytes()]).await?;
        if done == 1 {
            return Ok(());
        }
        let why = "only semaphores and slot pools have a capacity to change";
        Err(Error::new(ErrorKind::Invalid, "resize", why))
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        Some(&self.queues)
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        self.store.switchboard.wakes()
    }

    async fn check(&self) -> Vec<Finding> {
        let probe = inspect::probe(&self.store);
        doctor::check(&self.store.servers, &self.store.keys, probe).await
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("client", &self.store.client).finish_non_exhaustive()
    }
}
