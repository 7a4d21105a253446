//! The engine: one script call per batch and slot, on the server in charge.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::BoxStream;
use redis::{Cmd, Value};
use tenure_core::claim::{Claim, ClaimId, ClientId, Keep, Name};
use tenure_core::clock::Timestamp;
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, Engine, Finding, Incarnation, Reach, ReleaseAnswer, ReleaseRequest,
    RenewAnswer, RenewRequest, Wake, claim_answer, release_answer, renew_answer,
};
use tenure_core::inspect::View;
use tenure_core::step::Outcome;
use tenure_core::token::Token;
use tenure_core::{Error, ErrorKind, Result};

use crate::answer::{self, Answers, Unexpected, in_millis};
use crate::config::Config;
use crate::keys::{Key, Keys};
use crate::script::{self, Script};
use crate::topology::Servers;
use crate::wake::Switchboard;
use crate::{check, inspect, observe};

/// The one word for this engine.
pub(crate) const ENGINE: &str = "redis";
/// The most claims, renewals or releases in one script call: it blocks the server for 0.2 ms at most, and more
/// gains nothing.
const BATCH_MAX: usize = 128;

/// The engine on a single Redis server, on what Sentinel keeps alive, or on a cluster.
pub struct Redis {
    pub(crate) store: Arc<Store>,
    capability: Capability,
}

/// What the engine's parts share.
pub(crate) struct Store {
    pub(crate) client: ClientId,
    pub(crate) servers: Servers,
    pub(crate) keys: Keys,
    pub(crate) switchboard: Switchboard,
    replicas: u8,
}

/// A request on its way: which it is, of which resource, and what it adds to the call.
struct Part {
    at: usize,
    key: Key,
    arguments: Vec<String>,
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
        let switchboard = Switchboard::start(news);
        let store = Arc::new(Store { client, servers, keys, switchboard, replicas: config.replicas });
        if !store.servers.is_cluster() {
            // On Cluster each slot's server is subscribed to when something waits there.
            store.listen("connect", 0).await?;
        }
        let mut capability = Capability::of_step();
        capability.reach = Reach::Network;
        capability.needs_floor = true;
        capability.remembers_ends = false;
        capability.batch_max = BATCH_MAX;
        Ok(Redis { store, capability })
    }

    async fn submit<R, A>(
        &self,
        operation: &'static str,
        script: &'static Script,
        requests: &[R],
        name: fn(&R) -> &Name,
        arguments: fn(&R) -> Vec<String>,
        answer: impl Fn(&R, Timestamp, Value, Incarnation) -> Result<A>,
    ) -> Vec<Result<A>> {
        let mut answers: Vec<Option<Result<A>>> = requests.iter().map(|_| None).collect();
        let mut slots: BTreeMap<u16, Vec<Part>> = BTreeMap::new();
        for (at, request) in requests.iter().enumerate() {
            match self.store.keys.of(name(request)) {
                Ok(key) => {
                    slots.entry(key.slot).or_default().push(Part { at, key, arguments: arguments(request) })
                }
                Err(error) => answers[at] = Some(Err(error)),
            }
        }
        let calls =
            slots.iter().map(async |(slot, parts)| self.store.run(operation, script, *slot, parts).await);
        for ((_, parts), outcome) in slots.iter().zip(join_all(calls).await) {
            let (now, items, incarnation) = match outcome {
                Ok(done) => done,
                Err(error) => {
                    for part in parts {
                        answers[part.at] = Some(Err(error.clone().with_resource(name(&requests[part.at]))));
                    }
                    continue;
                }
            };
            for (part, item) in parts.iter().zip(items) {
                let request = &requests[part.at];
                answers[part.at] = Some(
                    answer(request, now, item, incarnation)
                        .map_err(|error| error.with_engine(ENGINE).with_resource(name(request))),
                );
            }
        }
        let missing = || Error::new(ErrorKind::Internal, operation, "the script left out an answer");
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
        let (answers, _) = called.map_err(failed)?;
        match answers.items[..] {
            [Value::Int(number)] => Ok(number),
            _ => Err(failed(internal(operation, &Unexpected("not one number".to_owned())))),
        }
    }
}

impl Store {
    /// Subscribes to the inbox of a slot. Free if that is done.
    async fn listen(&self, operation: &'static str, slot: u16) -> Result<()> {
        let inbox = self.keys.inbox(slot, self.client);
        let subscribed = self.servers.subscribe(slot, inbox.as_bytes()).await;
        subscribed.map_err(|fault| fault.to_error(operation))
    }

    /// Runs a script for the requests of one slot.
    async fn run(
        &self,
        operation: &'static str,
        script: &Script,
        slot: u16,
        parts: &[Part],
    ) -> Result<(Timestamp, Vec<Value>, Incarnation)> {
        let keys: Vec<Key> = parts.iter().map(|part| part.key.clone()).collect();
        let build = |cmd: &mut Cmd| {
            for argument in parts.iter().flat_map(|part| &part.arguments) {
                cmd.arg(argument);
            }
        };
        let (Answers { now, items }, incarnation) = self.call(operation, script, slot, &keys, build).await?;
        Ok((now, items, incarnation))
    }

    /// Calls a script. A server that does not know it is sent its text.
    pub(crate) async fn call(
        &self,
        operation: &'static str,
        script: &Script,
        slot: u16,
        keys: &[Key],
        arguments: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<(Answers, Incarnation)> {
        let build = |is_known: bool, incarnation: Incarnation| {
            let mut cmd = script.call(&self.keys, slot, keys.len(), is_known);
            for key in keys {
                cmd.arg(&key.text);
            }
            script::push_header(&mut cmd, &self.keys, slot, incarnation, self.servers.is_cluster());
            arguments(&mut cmd);
            cmd
        };
        let mut called = self.servers.call(slot, |incarnation| build(true, incarnation)).await;
        if called.as_ref().is_err_and(|fault| fault.is_no_script()) {
            // It was not executed: a restart, a failover or SCRIPT FLUSH has emptied the server's cache.
            called = self.servers.call(slot, |incarnation| build(false, incarnation)).await;
        }
        let (value, incarnation) = called.map_err(|fault| fault.to_error(operation))?;
        let answers = answer::answers(value).map_err(|what| internal(operation, &what))?;
        Ok((answers, incarnation))
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

    fn claim(&self, claims: Vec<Claim>) -> BoxFuture<'_, Vec<Result<ClaimAnswer>>> {
        Box::pin(async move {
            self.submit(
                "claim",
                &script::CLAIM,
                &claims,
                |claim| &claim.resource,
                |claim| {
                    vec![
                        claim.id.to_string(),
                        answer::options(claim),
                        claim.floor.to_string(),
                        answer::terms(claim),
                        answer::plain_life(claim).to_string(),
                    ]
                },
                |claim, now, item, incarnation| {
                    let outcome = answer::claimed(claim, now, item);
                    let outcome = outcome.map_err(|what| internal("claim", &what))?;
                    claim_answer(claim, outcome, incarnation)
                },
            )
            .await
        })
    }

    fn renew(&self, renewals: Vec<RenewRequest>) -> BoxFuture<'_, Vec<Result<RenewAnswer>>> {
        Box::pin(async move {
            self.submit(
                "renew",
                &script::RENEW,
                &renewals,
                |renewal| &renewal.resource,
                |renewal| vec![renewal.claim.to_string(), u8::from(renewal.is_waiter).to_string()],
                |renewal, _, item, incarnation| {
                    let outcome = answer::renewed(item).map_err(|what| internal("renew", &what))?;
                    Ok(renew_answer(renewal, outcome, incarnation))
                },
            )
            .await
        })
    }

    fn release(&self, releases: Vec<ReleaseRequest>) -> BoxFuture<'_, Vec<Result<ReleaseAnswer>>> {
        Box::pin(async move {
            self.submit(
                "release",
                &script::RELEASE,
                &releases,
                |release| &release.resource,
                |request| {
                    let release = &request.release;
                    vec![
                        release.claim.to_string(),
                        u8::from(release.maybe_in_flight).to_string(),
                        u8::from(release.is_unused).to_string(),
                    ]
                },
                |_, _, item, _| {
                    let is_released = answer::number(&item).map_err(|what| internal("release", &what))? == 1;
                    Ok(release_answer(&if is_released { Outcome::Released } else { Outcome::AlreadyLost }))
                },
            )
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
            Ok(self.submit_one("publish", &script::PUBLISH, &resource, &arguments).await? == 1)
        })
    }

    fn inspect(&self, prefix: String, after: Option<Name>, most: usize) -> BoxFuture<'_, Result<Vec<View>>> {
        Box::pin(inspect::inspect(&self.store, prefix, after, most))
    }

    fn observe(&self, resource: Name) -> BoxStream<'static, Result<Option<View>>> {
        observe::observe(self.store.clone(), resource)
    }

    fn break_hold(&self, resource: Name, token: Token, at_once: bool) -> BoxFuture<'_, Result<BreakAnswer>> {
        Box::pin(async move {
            let (token, at_once) = (token.to_string(), u8::from(at_once).to_string());
            let arguments = [token.as_bytes(), at_once.as_bytes()];
            let free_in = self.submit_one("break", &script::BREAK, &resource, &arguments).await?;
            Ok(match u64::try_from(free_in) {
                Ok(millis) => BreakAnswer::Broken { free_in: std::time::Duration::from_millis(millis) },
                Err(_) => BreakAnswer::NotHeld,
            })
        })
    }

    fn resize(&self, resource: Name, capacity: u32) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let capacity = capacity.to_string();
            let done = self.submit_one("resize", &script::RESIZE, &resource, &[capacity.as_bytes()]).await?;
            if done == 1 {
                return Ok(());
            }
            let why = "only semaphores and slot pools have a capacity to change";
            Err(Error::new(ErrorKind::Invalid, "resize", why).with_engine(ENGINE).with_resource(&resource))
        })
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
