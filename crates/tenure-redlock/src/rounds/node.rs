//! One server of a quorum, and calls to all of them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tenure_core::clock::Instant as Moment;
use tenure_core::engine::Incarnation;
use tenure_core::model::claim::ClaimId;
use tenure_core::mutant;
use tenure_redis::server::{Fault, Form, Script, Unexpected, hex, number};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use super::Quorum;
use super::own::{Copies, Copy};
use super::pending::Pending;
use super::server_clock::ServerClock;
use super::wire::Wire;
use crate::library::LIBRARY;

/// One server.
pub(crate) struct Node {
    pub(crate) wire: Box<dyn Wire>,
    /// How errors and findings name it.
    pub(crate) name: String,
    /// It has turned out not to count, or may have come to that.
    pub(crate) doubt: Arc<Notify>,
    /// The longest ttl of the quorum, in ms, as it is taken for: a server whose marker says otherwise does not count.
    longest: AtomicU64,
    /// What the server's marker says, where that is less than this client's `max_ttl`; else 0.
    falls_short: AtomicU64,
    /// The user's rights do not reach so far: scripts are called in their place.
    may_not_call_functions: AtomicBool,
    /// The life of the server that has this link's vote; 0: not known yet.
    incarnation: AtomicU64,
    /// The link that has this server's vote already, counted from 1; 0: none.
    twin: AtomicUsize,
    clock: ServerClock,
    /// What is still to be sent to it.
    pub(crate) pending: Arc<Pending>,
}

/// A call: the same for all servers.
///
/// A batch has all ids in one text, and says once what neighbours ask for alike: what a server reads and an allocation for each costs as
/// much as what it does.
pub(crate) struct Request {
    script: &'static Script,
    keys: Vec<String>,
    ids: Vec<u8>,
    /// How many ask alike, and what for.
    runs: Vec<(usize, Vec<String>)>,
    arguments: Vec<Vec<u8>>,
    /// Since when its periods are counted: the server is told last, by its own clock.
    since: Option<Moment>,
    /// Where it is noted what becomes of each copy.
    copies: Option<Arc<Copies>>,
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Said {
    /// Its clock, in microseconds, and this client's then, or a little later.
    pub(crate) now: u64,
    pub(crate) at: Moment,
    /// Whether it counts. If not, it has done nothing, unless the operation needs no say in it.
    pub(crate) counts: bool,
    /// The answers for each resource.
    pub(crate) items: Vec<Value>,
    pub(crate) incarnation: Incarnation,
}

impl Request {
    pub(crate) fn new(script: &'static Script) -> Request {
        Request {
            script,
            keys: Vec::new(),
            ids: Vec::new(),
            runs: Vec::new(),
            arguments: Vec::new(),
            since: None,
            copies: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_of(&self, script: &Script) -> bool {
        std::ptr::eq(self.script, script)
    }

    /// Has it noted what becomes of each copy.
    #[must_use]
    pub(crate) fn noted_in(mut self, copies: Arc<Copies>) -> Request {
        self.copies = Some(copies);
        self
    }

    /// Adds a claim to the batch, and what is asked for it.
    pub(crate) fn ask(&mut self, key: String, id: ClaimId, words: Vec<String>) {
        let is_alike = self.runs.last().is_some_and(|(_, last)| *last == words);
        if !is_alike {
            self.runs.push((0, words));
        }
        self.ask_alike(key, id);
    }

    /// Adds a claim to the batch, for which the same is asked as for the one before.
    pub(crate) fn ask_alike(&mut self, key: String, id: ClaimId) {
        self.keys.push(key);
        self.ids.extend_from_slice(&hex(id));
        if let Some((count, _)) = self.runs.last_mut() {
            *count += 1;
        }
    }

    /// Adds a resource.
    #[must_use]
    pub(crate) fn key(mut self, key: impl Into<String>) -> Request {
        self.keys.push(key.into());
        self
    }

    /// Adds an argument.
    #[must_use]
    pub(crate) fn arg(mut self, argument: impl AsRef<[u8]>) -> Request {
        self.arguments.push(argument.as_ref().to_vec());
        self
    }

    /// Has its periods counted from then on, also by a server that carries it out late.
    #[must_use]
    pub(crate) fn since(mut self, since: Moment) -> Request {
        self.since = Some(since);
        self
    }

    /// `since`: what its periods are counted from, in ms by the server's clock.
    pub(crate) fn command(
        &self,
        form: Form,
        shared: &[String; 4],
        incarnation: Incarnation,
        longest: u64,
        since: Option<u64>,
    ) -> Cmd {
        let mut cmd = self.script.begin(form, self.keys.len() + shared.len());
        for key in shared.iter().chain(&self.keys) {
            cmd.arg(key);
        }
        cmd.arg(format!("{} {longest}", incarnation.0));
        if !self.ids.is_empty() {
            cmd.arg(self.ids.as_slice());
        }
        for (count, words) in &self.runs {
            cmd.arg(*count);
            for word in words {
                cmd.arg(word);
            }
        }
        for argument in &self.arguments {
            cmd.arg(argument.as_slice());
        }
        if let Some(since) = since {
            cmd.arg(since);
        }
        cmd
    }
}

impl Node {
    /// `longest` is the client's `max_ttl`, in ms.
    pub(crate) fn new(wire: Box<dyn Wire>, name: String, longest: u64) -> Node {
        Node {
            wire,
            name,
            doubt: Arc::new(Notify::new()),
            longest: AtomicU64::new(longest),
            falls_short: AtomicU64::new(0),
            may_not_call_functions: AtomicBool::new(false),
            incarnation: AtomicU64::new(0),
            twin: AtomicUsize::new(0),
            clock: ServerClock::default(),
            pending: Arc::default(),
        }
    }

    /// The life of the server that has this link's vote; 0: not known yet.
    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Relaxed))
    }

    /// Takes in what the marker says is the longest ttl, beside the client's own, in ms. A client with a shorter one goes by the marker's: it
    /// asks for no more than its own. One with a longer one must not: a server that has forgotten its holds would be let in too early.
    pub(crate) fn learn(&self, marked: u64, own: u64) {
        self.longest.store(marked.max(own), Ordering::Relaxed);
        self.falls_short.store(if marked < own { marked } else { 0 }, Ordering::Relaxed);
    }

    /// Returns the longest ttl that the server's marker allows, in ms, if that is less than this client's.
    pub(crate) fn falls_short(&self) -> Option<u64> {
        Some(self.falls_short.load(Ordering::Relaxed)).filter(|longest| *longest > 0)
    }

    /// Whether it can be asked now, or perhaps in a moment: the first connection is being made.
    pub(crate) fn is_up(&self) -> bool {
        !self.wire.is_down()
    }

    /// Calls an operation, in the best form that the server takes. It repeats nothing that may have been executed.
    pub(crate) async fn call(
        &self,
        deadline: Instant,
        shared: &[String; 4],
        request: &Request,
    ) -> Result<Said, Fault> {
        let mut form =
            if self.may_not_call_functions.load(Ordering::Relaxed) { Form::Known } else { Form::Function };
        let mut is_loaded = false;
        let (value, incarnation) = loop {
            let longest = self.longest.load(Ordering::Relaxed);
            let since = request.since.map(|since| self.clock.at(since));
            let build = |incarnation: Incarnation| request.command(form, shared, incarnation, longest, since);
            form = match (self.wire.call(deadline, &build).await, form) {
                (Err(fault), Form::Function) if fault.is_no_function() && !is_loaded => {
                    is_loaded = true;
                    if self.load(deadline).await { Form::Function } else { Form::Known }
                }
                (Err(fault), Form::Function) if fault.is_no_function() || self.are_refused(&fault) => {
                    Form::Known
                }
                (Err(fault), Form::Known) if fault.is_no_script() => Form::Text,
                (answer, _) => break answer?,
            };
        };
        let said = said(value, incarnation, request.keys.len()).map_err(|Unexpected(what)| Fault::Cut {
            server: self.name.clone(),
            why: format!("it answered {what}"),
        })?;
        if !said.counts {
            self.doubt.notify_one();
        }
        Ok(said)
    }

    async fn load(&self, deadline: Instant) -> bool {
        match self.wire.call(deadline, &|_| LIBRARY.load()).await {
            Ok(_) => true,
            // Another client was faster.
            Err(fault) if fault.is_loaded_already() => true,
            Err(fault) => {
                self.are_refused(&fault);
                tracing::debug!(%fault, "cannot load functions: scripts are used");
                false
            }
        }
    }

    fn are_refused(&self, fault: &Fault) -> bool {
        let are_refused = fault.refuses_functions();
        if are_refused {
            self.may_not_call_functions.store(true, Ordering::Relaxed);
        }
        are_refused
    }
}

pub(crate) fn said(value: Value, incarnation: Incarnation, asked: usize) -> Result<Said, Unexpected> {
    let Value::Array(mut items) = value else { return Err(Unexpected(format!("{value:?}"))) };
    if items.is_empty() {
        return Err(Unexpected("nothing".to_owned()));
    }
    let now = number(&items.remove(0))?;
    let mut counts = true;
    match &items[..] {
        [Value::BulkString(text)] if text == b"Q" => counts = false,
        [Value::BulkString(text), Value::Int(same)] if text == b"S" => items = vec![Value::Int(*same); asked],
        _ => {}
    }
    Ok(Said { now, at: Moment::from_nanos(0), counts, items, incarnation })
}

impl Quorum {
    /// Calls one server. Unless the call is `patient`, a server without a connection is not waited for.
    pub(crate) async fn ask(
        &self,
        node: usize,
        within: Duration,
        is_patient: bool,
        request: &Request,
    ) -> Result<Said, Fault> {
        let at = node;
        let node = &self.nodes[at];
        let answer = if is_patient || node.is_up() {
            node.call(Instant::now() + within, &self.shared_keys, request).await
        } else {
            Err(Fault::Nobody { why: format!("{} is away", node.name) })
        };
        if let Some(copies) = &request.copies {
            let copy = match &answer {
                Ok(_) | Err(Fault::Server { .. }) => Copy::Answered,
                Err(fault) if fault.is_outcome_unknown() => Copy::Lost,
                Err(_) => Copy::Unsent,
            };
            copies.note(at, copy);
        }
        let mut said = answer?;
        said.at = node.clock.note(said.now, self.clock.now());
        self.count_once(at, said.incarnation)?;
        Ok(said)
    }

    /// Makes sure that no server has two votes, however many names lead to it: the link that came first has its vote.
    pub(crate) fn count_once(&self, node: usize, incarnation: Incarnation) -> Result<(), Fault> {
        let this = &self.nodes[node];
        if this.incarnation() == incarnation {
            return Ok(());
        }
        if mutant!("redlock-counts-a-server-twice") {
            this.incarnation.store(incarnation.0, Ordering::Relaxed);
            return Ok(());
        }
        let _one_at_a_time = self.counted_once.lock().unwrap_or_else(PoisonError::into_inner);
        let is_twin =
            |(at, other): (usize, &Node)| (at != node && other.incarnation() == incarnation).then_some(at);
        let twin = self.nodes.iter().enumerate().find_map(is_twin);
        this.twin.store(twin.map_or(0, |twin| twin + 1), Ordering::Relaxed);
        let Some(_) = twin else {
            this.incarnation.store(incarnation.0, Ordering::Relaxed);
            return Ok(());
        };
        // What it was before has no vote by this link any more.
        this.incarnation.store(0, Ordering::Relaxed);
        Err(Fault::Nobody { why: self.twin_of(node).unwrap_or_default() })
    }

    /// Says whose vote a link would count again, if it would.
    pub(crate) fn twin_of(&self, node: usize) -> Option<String> {
        let twin = self.nodes[node].twin.load(Ordering::Relaxed).checked_sub(1)?;
        Some(format!("{} is the same server as {}", self.nodes[node].name, self.nodes[twin].name))
    }

    /// Calls all servers side by side. Their answers come in as they do; then the stream ends.
    pub(crate) fn ask_all(
        self: &Arc<Self>,
        within: Duration,
        request: Request,
    ) -> UnboundedReceiver<(usize, Result<Said, Fault>)> {
        let (sender, answers) = unbounded_channel();
        let request = Arc::new(request);
        for node in 0..self.nodes.len() {
            let (quorum, request, sender) = (self.clone(), request.clone(), sender.clone());
            tokio::spawn(async move {
                let answer = quorum.ask(node, within, false, &request).await;
                // The receiver was dropped: the others were enough.
                drop(sender.send((node, answer)));
            });
        }
        answers
    }

    /// Calls all servers, and waits for all of them.
    pub(crate) async fn hear_all(
        self: &Arc<Self>,
        within: Duration,
        request: Request,
    ) -> Vec<Result<Said, Fault>> {
        let mut answers: Vec<_> = self
            .nodes
            .iter()
            .map(|node| Err(Fault::Nobody { why: format!("{} has not answered", node.name) }))
            .collect();
        let mut heard = self.ask_all(within, request);
        while let Some((node, answer)) = heard.recv().await {
            answers[node] = answer;
        }
        answers
    }
}
