//! One server behind one connection, which is made anew whenever it breaks.
//!
//! A task of the link connects, watches, gives up, and connects again. Callers wait for it, each within a deadline
//! of its own that covers everything. What is never done here is to send a command twice: one that was sent and
//! not answered may have been executed, and only the client above knows that its claim id makes a copy harmless.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::{Cmd, Value};
use tenure_core::engine::Incarnation;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::Fault;
use crate::net::address::Address;
use crate::net::dial::Dialer;
use crate::net::pause;
use crate::net::sentinel::Sentinels;
use crate::net::wire::{Listeners, Manner, News, SILENCE_MAX, Wire, lock};

/// How often a connection is checked: whether the server answers, and is still the master.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// A connection that has lived this long was a good one, so the next attempt comes soon after it breaks.
const GOOD_AFTER: Duration = Duration::from_secs(1);

/// How a command is made, for the server that will execute it.
pub(crate) type Build<'a> = &'a (dyn Fn(Incarnation) -> Cmd + Send + Sync);

/// An answer, and the server that gave it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) incarnation: Incarnation,
    /// How many replicas acknowledged, where they were waited for.
    pub(crate) acknowledged: u32,
}

/// One server. Cheap to clone; the connection ends with the last clone.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
    _supervision: Arc<Supervision>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

struct Shared {
    dialer: Dialer,
    listeners: Listeners,
    state: watch::Sender<State>,
    /// All channels that the connection should have.
    channels: Mutex<BTreeSet<Vec<u8>>>,
}

#[derive(Clone)]
enum State {
    Up(Wire),
    /// With why the last attempt failed.
    Down(Option<Fault>),
}

/// Ends the task with the link.
struct Supervision(AbortHandle);

impl Drop for Supervision {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Link {
    /// Begins to connect with a server that stays where it is. It must be called on a tokio runtime.
    pub fn to(dialer: Dialer, address: Address, listeners: Listeners) -> Link {
        Link::start(dialer, Place::Fixed(address), listeners, false)
    }

    /// Begins to connect. It must be called on a tokio runtime. `is_successor` says that another server was in
    /// charge before.
    pub(crate) fn start(dialer: Dialer, place: Place, listeners: Listeners, is_successor: bool) -> Link {
        let shared = Arc::new(Shared {
            dialer,
            listeners,
            state: watch::Sender::new(State::Down(None)),
            channels: Mutex::new(BTreeSet::new()),
        });
        let task = tokio::spawn(supervise(shared.clone(), place, is_successor));
        Link { shared, _supervision: Arc::new(Supervision(task.abort_handle())) }
    }

    /// Sends a command as soon as there is a connection, and returns the answer and whose it is.
    ///
    /// It repeats nothing that may have been executed. What a replica refused was not.
    pub async fn call(&self, deadline: Instant, build: Build<'_>) -> Result<(Value, Incarnation), Fault> {
        let answer = self.execute(deadline, build, Manner::default()).await?;
        Ok((answer.value, answer.incarnation))
    }

    /// As [`Link::call`], in a manner.
    pub(crate) async fn execute(
        &self,
        deadline: Instant,
        build: Build<'_>,
        manner: Manner,
    ) -> Result<Answer, Fault> {
        loop {
            let wire = self.up(deadline).await?;
            let incarnation = wire.incarnation();
            match wire.execute(deadline, build(incarnation), manner).await {
                Ok((value, acknowledged)) => return Ok(Answer { value, incarnation, acknowledged }),
                Err(fault) if leaves(&wire, &fault) => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Waits until there is a connection.
    ///
    /// # Errors
    /// [`Fault::Down`] if there is none in time.
    pub async fn ready(&self, deadline: Instant) -> Result<(), Fault> {
        self.up(deadline).await.map(drop)
    }

    /// Returns which life of the server the connection is with, if there is one.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.wire().map(|wire| wire.incarnation())
    }

    /// Waits for a connection.
    pub(crate) async fn up(&self, deadline: Instant) -> Result<Wire, Fault> {
        let mut states = self.shared.state.subscribe();
        let mut last = None;
        loop {
            match &*states.borrow_and_update() {
                State::Up(wire) if !wire.is_broken() => return Ok(wire.clone()),
                State::Up(_) => {}
                State::Down(fault) => last = fault.clone().or(last),
            }
            if let Some(fault) = last.as_ref().filter(|fault| fault.is_permanent()) {
                return Err(Fault::Down { last: Box::new(fault.clone()) });
            }
            // The sender lives as long as this link.
            if !matches!(timeout_at(deadline, states.changed()).await, Ok(Ok(()))) {
                let last = last.unwrap_or_else(|| Fault::Nobody { why: "no connection in time".to_owned() });
                return Err(Fault::Down { last: Box::new(last) });
            }
        }
    }

    /// Returns the connection, if there is one.
    pub(crate) fn wire(&self) -> Option<Wire> {
        match &*self.shared.state.borrow() {
            State::Up(wire) if !wire.is_broken() => Some(wire.clone()),
            _ => None,
        }
    }

    /// Whether there is no connection, and the last attempt to make one has failed.
    pub fn is_down(&self) -> bool {
        match &*self.shared.state.borrow() {
            State::Up(wire) => wire.is_broken(),
            State::Down(fault) => fault.is_some(),
        }
    }

    /// Makes every later connection subscribe to a channel.
    pub fn want(&self, channel: &[u8]) {
        lock(&self.shared.channels).insert(channel.to_vec());
    }

    /// Subscribes to a channel, now and on every later connection.
    pub async fn subscribe(&self, deadline: Instant, channel: &[u8]) -> Result<(), Fault> {
        self.want(channel);
        loop {
            let wire = self.up(deadline).await?;
            if wire.is_subscribed(channel) {
                return Ok(());
            }
            match wire.subscribe(deadline, vec![channel.to_vec()]).await {
                Ok(mut refused) => match refused.pop() {
                    None => return Ok(()),
                    Some((_, fault)) => {
                        // Else no later connection could come up.
                        lock(&self.shared.channels).remove(channel);
                        return Err(fault);
                    }
                },
                // Subscribing twice does no harm. The deadline ends this.
                Err(fault) if fault.is_outcome_unknown() && Instant::now() < deadline => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Leaves a channel, now and on every later connection.
    pub async fn unsubscribe(&self, deadline: Instant, channel: &[u8]) {
        lock(&self.shared.channels).remove(channel);
        if let Some(wire) = self.wire() {
            // A channel that is still there on a connection that fails is gone with the connection.
            drop(wire.unsubscribe(deadline, channel).await);
        }
    }

    /// Does not subscribe to the channel on later connections: another server has it now.
    pub(crate) fn forget(&self, channel: &[u8]) {
        lock(&self.shared.channels).remove(channel);
    }
}

/// Leaves a server that turns out to be a replica, and returns whether it was one.
pub(crate) fn leaves(wire: &Wire, fault: &Fault) -> bool {
    let is_replica = matches!(fault.code(), Some("READONLY" | "MASTERDOWN"));
    if is_replica {
        wire.break_with(fault.clone());
    }
    is_replica
}

/// Where the server is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// There.
    Fixed(Address),
    /// Where the Sentinels say.
    Named(Sentinels),
}

impl Place {
    async fn find(&mut self) -> Result<Address, Fault> {
        match self {
            Place::Fixed(address) => Ok(address.clone()),
            Place::Named(sentinels) => sentinels.find().await,
        }
    }

    /// Waits until the server is elsewhere than it was found.
    async fn moved(&mut self) {
        match self {
            Place::Fixed(_) => std::future::pending().await,
            Place::Named(sentinels) => sentinels.moved().await,
        }
    }

    /// Whether the server is asked for its role even while it is busy answering: after a failover that was asked
    /// for, the old master goes on answering for seconds, and forgets what it answered.
    fn is_watched(&self) -> bool {
        matches!(self, Place::Named(_))
    }
}

async fn supervise(shared: Arc<Shared>, mut place: Place, is_successor: bool) {
    let mut last: Option<Incarnation> = None;
    let mut attempt = 0;
    loop {
        let fault = match connect(&shared, &mut place).await {
            Ok(wire) => {
                let (last, incarnation) = (last.replace(wire.incarnation()), wire.incarnation());
                let is_inbox = shared.listeners.is_inbox;
                // The connection for commands reports that the server has forgotten, or all would be renewed twice.
                let is_new = last.map_or(is_successor, |last| !is_inbox && last != incarnation);
                let came_up = Instant::now();
                shared.state.send_replace(State::Up(wire.clone()));
                // What was wanted while this connection was being made; from here on, later subscribers find it up.
                let wanted = lock(&shared.channels).iter().cloned().collect();
                let fault = match wire.subscribe_to_all(wanted).await {
                    Ok(()) => {
                        tracing::info!(
                            engine = "redis",
                            server = wire.server(),
                            is_inbox,
                            is_new,
                            "connected"
                        );
                        shared.listeners.send(if is_inbox {
                            News::Listening { is_new }
                        } else {
                            News::Up { incarnation, is_new }
                        });
                        watch(&wire, &mut place).await
                    }
                    Err(fault) => fault,
                };
                wire.break_with(fault.clone());
                if came_up.elapsed() >= GOOD_AFTER {
                    attempt = 0;
                }
                tracing::info!(engine = "redis", server = wire.server(), %fault, "disconnected");
                fault
            }
            Err(fault) => {
                tracing::debug!(engine = "redis", %fault, attempt, "cannot connect");
                fault
            }
        };
        shared.listeners.report_trouble();
        // The connection is closed by this, unless a call is just handling its failure.
        shared.state.send_replace(State::Down(Some(fault)));
        // A new master need not be waited for.
        let (pause, moved) = (pin!(pause::before(attempt)), pin!(place.moved()));
        attempt = match select(pause, moved).await {
            Either::Left(_) => attempt.saturating_add(1),
            Either::Right(_) => 0,
        };
    }
}

async fn connect(shared: &Shared, place: &mut Place) -> Result<Wire, Fault> {
    let address = place.find().await?;
    let channels = lock(&shared.channels).iter().cloned().collect();
    let opening = Wire::open(&shared.dialer, &address, &shared.listeners, channels);
    // A hung server takes connections and says nothing. When another one is named, no command waits for it.
    match select(pin!(opening), pin!(place.moved())).await {
        Either::Left((opened, _)) => opened,
        Either::Right(_) => Err(elsewhere(&address.to_string())),
    }
}

/// Watches a connection until it is broken or must be left, and returns why.
async fn watch(wire: &Wire, place: &mut Place) -> Fault {
    let mut received = wire.received();
    let is_watched = place.is_watched();
    let mut moved = pin!(place.moved());
    loop {
        let broken = pin!(wire.broken());
        match timeout(CHECK_EVERY, select(broken, moved.as_mut())).await {
            Ok(Either::Left((fault, _))) => return fault,
            Ok(Either::Right(_)) => return elsewhere(wire.server()),
            Err(_) if is_watched || wire.received() == received => {
                let check = pin!(check_role(wire));
                match select(check, moved.as_mut()).await {
                    Either::Left((Ok(()), _)) => {}
                    Either::Left((Err(fault), _)) => return fault,
                    Either::Right(_) => return elsewhere(wire.server()),
                }
            }
            Err(_) => {}
        }
        received = wire.received();
    }
}

/// Asks a server whether it is still there, and the master.
async fn check_role(wire: &Wire) -> Result<(), Fault> {
    match wire.send(Instant::now() + SILENCE_MAX, &redis::cmd("ROLE")).await {
        Ok(Value::Array(answer)) => match answer.into_iter().next() {
            Some(Value::BulkString(role)) if role != b"master" => {
                let role = String::from_utf8_lossy(&role).into_owned();
                Err(Fault::NotMaster { server: wire.server().to_owned(), role })
            }
            _ => Ok(()),
        },
        // Slow: other answers have come meanwhile, or the connection would be broken.
        Err(fault) if wire.is_broken() => Err(fault),
        _ => Ok(()),
    }
}

fn elsewhere(server: &str) -> Fault {
    let why = "another server is the master now".to_owned();
    Fault::Cut { server: server.to_owned(), why }
}
