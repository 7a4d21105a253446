//! What the engine's parts share: the servers, and how a script is called there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::join;
use redis::{Cmd, Value};
use tenure_core::clock::{Clock, SystemClock, Timestamp};
use tenure_core::engine::{Incarnation, Wake};
use tenure_core::model::claim::{ClientId, Name};
use tenure_core::{Error, ErrorKind, Result};

use crate::error::Fault;
use crate::keys::{Key, Keys};
use crate::lua::answer::{self, Answers, Unexpected};
use crate::lua::{self, Form, LIBRARY, Script};
use crate::net::drift::{Drift, Step};
use crate::net::topology::Servers;
use crate::wake::Switchboard;

/// The one word for this engine.
pub(crate) const ENGINE: &str = "redis";
/// The connected servers, and what is known of them.
pub(crate) struct Store {
    pub(crate) client: ClientId,
    pub(crate) servers: Servers,
    pub(crate) keys: Keys,
    /// The channel on which the client hears of grants, where there are no slots.
    pub(crate) inbox: String,
    pub(crate) switchboard: Switchboard,
    pub(crate) replicas: u8,
    /// Renewals during which too few replicas acknowledged.
    pub(crate) unacknowledged: AtomicU64,
    pub(crate) is_probing: AtomicBool,
    /// The user's rights do not reach so far: scripts are called in their place.
    pub(crate) may_not_call_functions: AtomicBool,
    pub(crate) drift: Drift,
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

/// What a call answered beside its items.
pub(crate) struct Context {
    pub(crate) now: Timestamp,
    pub(crate) incarnation: Incarnation,
    /// How many replicas have what was written. `None`: it was not asked for.
    acknowledged: Option<u32>,
}

impl Store {
    /// Subscribes to the inbox of a slot. Free if that is done.
    pub(crate) async fn listen(&self, operation: &'static str, slot: u16) -> Result<()> {
        // Every batch of claims asks, and nearly always it is done.
        if self.servers.is_subscribed(self.inbox.as_bytes()) {
            return Ok(());
        }
        let inbox = self.keys.inbox(slot, self.client);
        // What comes next needs the connection for commands: to make both takes no longer than to make one.
        let (subscribed, _) =
            join(self.servers.subscribe(slot, inbox.as_bytes()), self.servers.up(slot)).await;
        subscribed.map_err(|fault| fault.to_error(operation))
    }

    /// Calls a script.
    pub(crate) async fn run_script(
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

    pub(crate) async fn call_as(
        &self,
        operation: &'static str,
        script: &Script,
        slot: u16,
        keys: &[&Key],
        sending: Sending,
        arguments: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<(Vec<Value>, Context)> {
        let build = |form: Form, incarnation: Incarnation| {
            let mut cmd = script.command(&self.keys, slot, keys.len(), form);
            for key in keys {
                cmd.arg(&key.text);
            }
            lua::push_header(&mut cmd, &self.keys, slot, incarnation, self.servers.is_cluster());
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

    /// Loads the library on the server of a slot: it is new there, or it was flushed. Returns whether it is there
    /// now.
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
                self.switchboard.send(Wake::RenewAll);
            }
            Step::Back(by) => {
                tracing::warn!(?by, "the server's clock was set back: holds that nobody renews live longer");
            }
        }
    }

    /// Looks whether the replicas keep up, beside `renewals` that do not wait for them. Once at a time.
    pub(crate) fn probe_replicas(self: &Arc<Self>, resource: &Name, renewals: u64) {
        let Ok(key) = self.keys.of(resource) else { return };
        if self.is_probing.swap(true, Ordering::Relaxed) {
            return;
        }
        let store = self.clone();
        tokio::spawn(async move {
            let looked = store.servers.with_replicas(key.slot, |_| redis::cmd("PING")).await;
            store.is_probing.store(false, Ordering::Relaxed);
            // If no replica answers, the renewals say so.
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
    Error::new(ErrorKind::Internal, operation, format!("the server answered {what}"))
}
