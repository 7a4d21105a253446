//! One connection with one server, from the moment it can be used until it breaks.
//!
//! redis-rs matches answers to commands by their order alone, and has a hole there: a `sunsubscribe` that the
//! server sends by itself (a hash slot moved away) counts as the answer to the oldest command under way, and from
//! then on *every command gets the answer of the one before it*. For locks that is the worst that can happen: a claim
//! gets the grant of another one. So the connection's own task breaks the connection when it hears such a push,
//! before anything behind it is delivered; and an answer counts only if the connection is still whole when its
//! command reads it. Breaking costs a reconnect, which takes milliseconds.

use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, PushInfo, PushKind, RedisResult, Value};
use tenure_core::engine::Incarnation;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::Fault;
use crate::net::address::Address;
use crate::net::dial::{Dialer, identify};
use crate::net::replicated::Line;

/// A connection that has sent nothing for this long, while a command waits for an answer, is given up: a hung
/// server's connections must not linger, and a live one accepts a new connection at once.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(1);
/// How long a server may take for each of the steps in which a connection is made.
const STEP_MAX: Duration = Duration::from_secs(1);

/// What a link reports to its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Commands go through again.
    Up {
        /// The server that answers now.
        incarnation: Incarnation,
        /// Whether that is another one than before, which may have forgotten what the other one knew.
        is_new: bool,
    },
    /// Messages go through again. Some may have been missed meanwhile.
    Listening {
        /// Whether another server than before publishes them, which may have forgotten what the other one knew.
        is_new: bool,
    },
    /// A message came.
    Message {
        /// Its channel.
        channel: Vec<u8>,
        /// What it says.
        payload: Vec<u8>,
        /// Whose it is.
        incarnation: Incarnation,
    },
}

/// The receivers of what a connection brings unasked.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    /// Messages and comings-up.
    pub(crate) news: Option<UnboundedSender<News>>,
    /// The keeper of a cluster's table, whose channels are sharded.
    pub(crate) table: Option<TableListeners>,
    /// Whether the connection is there for messages.
    pub(crate) is_inbox: bool,
}

/// What makes a table of hash slots doubtful.
#[derive(Clone, Debug)]
pub(crate) struct TableListeners {
    /// Channels that the server does not serve any more.
    pub(crate) strays: UnboundedSender<Vec<u8>>,
    /// A connection broke, or could not be made.
    pub(crate) trouble: Arc<Notify>,
}

/// What is sent around a command, in one piece with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manner {
    /// The hash slot is on its way to this server, which takes a command for it only behind `ASKING`.
    pub(crate) is_asking: bool,
    /// How many replicas should acknowledge; 0: none is waited for.
    pub(crate) replicas: u8,
}

impl Listeners {
    /// Hears messages and comings-up.
    pub fn new(news: UnboundedSender<News>) -> Listeners {
        Listeners { news: Some(news), ..Listeners::default() }
    }

    /// The same for a connection that is there for messages.
    pub fn of_inbox(&self) -> Listeners {
        Listeners { is_inbox: true, ..self.clone() }
    }

    pub(crate) fn send(&self, news: News) {
        if let Some(sender) = &self.news {
            // The receiver was dropped: the client is being closed.
            drop(sender.send(news));
        }
    }

    fn report_stray(&self, channel: &[u8]) {
        if let Some(table) = &self.table {
            drop(table.strays.send(channel.to_vec()));
        }
    }

    pub(crate) fn report_trouble(&self) {
        if let Some(table) = &self.table {
            table.trouble.notify_one();
        }
    }

    fn is_sharded(&self) -> bool {
        self.table.is_some()
    }
}

/// Takes a step to a connection: one to three round trips. A server that is far away answers each in time; one that hangs does not, and the
/// next attempt may reach another one within the 2 s after which the client gives a call up.
async fn in_time<T>(server: &str, step: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let late = |_| {
        let why = format!("no answer within {STEP_MAX:?}");
        Err(Fault::Refused { server: server.to_owned(), why })
    };
    timeout(STEP_MAX, step).await.unwrap_or_else(late)
}

/// A connection that is, or was, up.
#[derive(Clone)]
pub(crate) struct Wire(Arc<Inner>);

struct Inner {
    connection: MultiplexedConnection,
    address: Address,
    incarnation: Incarnation,
    health: Arc<Health>,
    subscribed: Mutex<HashSet<Vec<u8>>>,
    /// For commands that replicas should acknowledge.
    line: Line,
}

/// What the connection's own task knows. It must not own the connection, whose end is the end of the task.
struct Health {
    server: String,
    listeners: Listeners,
    incarnation: OnceLock<Incarnation>,
    /// Why the connection is broken. Written once.
    fault: OnceLock<Fault>,
    broken: Notify,
    /// Counts what came from the server.
    received: AtomicU64,
    /// Channels that are being left, so that a `sunsubscribe` for them is an answer.
    leaving: Mutex<Vec<Vec<u8>>>,
}

impl Wire {
    /// Connects with a master and subscribes. A channel that the server does not serve is a stray.
    pub(crate) async fn open(
        dialer: &Dialer,
        address: &Address,
        listeners: &Listeners,
        channels: Vec<Vec<u8>>,
    ) -> Result<Wire, Fault> {
        let server = address.to_string();
        let health = Arc::new(Health {
            server: server.clone(),
            listeners: listeners.clone(),
            incarnation: OnceLock::new(),
            fault: OnceLock::new(),
            broken: Notify::new(),
            received: AtomicU64::new(0),
            leaving: Mutex::new(Vec::new()),
        });
        let on_push = {
            let health = health.clone();
            move |push| {
                health.on_push(push);
                Ok(())
            }
        };
        let mut connection = in_time(&server, dialer.dial(address, on_push)).await?;
        let identity = in_time(&server, identify(&mut connection, address)).await?;
        if identity.role != "master" {
            return Err(Fault::NotMaster { server, role: identity.role });
        }
        if identity.is_loading {
            return Err(Fault::server(&server, "LOADING", None));
        }
        health.incarnation.get_or_init(|| identity.incarnation);
        let subscribed = Mutex::new(HashSet::new());
        let (incarnation, address) = (identity.incarnation, address.clone());
        let wire = Wire(Arc::new(Inner {
            connection,
            address,
            incarnation,
            health,
            subscribed,
            line: Line::default(),
        }));
        in_time(wire.server(), wire.subscribe_to_all(channels)).await?;
        Ok(wire)
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.0.incarnation
    }

    pub(crate) fn address(&self) -> &Address {
        &self.0.address
    }

    /// The server, as errors name it.
    pub(crate) fn server(&self) -> &str {
        &self.0.health.server
    }

    /// Returns how much has come from the server.
    pub(crate) fn received(&self) -> u64 {
        self.0.health.received.load(Ordering::Relaxed)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.0.health.fault.get().is_some()
    }

    /// Waits until the connection is broken.
    pub(crate) async fn broken(&self) -> Fault {
        self.0.health.broken().await
    }

    /// Gives the connection up. Every command under way fails at once.
    pub(crate) fn break_with(&self, fault: Fault) {
        self.0.health.break_with(fault);
    }

    /// Sends a command. An answer that is an error is a fault.
    pub(crate) async fn send(&self, deadline: Instant, command: &Cmd) -> Result<Value, Fault> {
        let mut connection = self.0.connection.clone();
        let answer = self.exchange(deadline, connection.send_packed_command(command)).await?;
        self.checked(answer)
    }

    /// Sends a command in a [`Manner`], and returns the answer and how many replicas acknowledged.
    ///
    /// Waiting for replicas blocks the connection for all others, so it must be one that is there for that.
    pub(crate) async fn execute(
        &self,
        deadline: Instant,
        command: Cmd,
        manner: Manner,
    ) -> Result<(Value, u32), Fault> {
        let Manner { is_asking, replicas } = manner;
        if replicas > 0 {
            return self.0.line.execute(self, deadline, command, is_asking, replicas).await;
        }
        if !is_asking {
            return Ok((self.send(deadline, &command).await?, 0));
        }
        let mut commands = Pipeline::with_capacity(2);
        commands.cmd("ASKING").add_command(command);
        let answer = self.send_all(deadline, &commands, 1).await?.pop();
        Ok((self.checked(answer.unwrap_or_default())?, 0))
    }

    /// The commands that wait for replicas.
    pub(crate) fn line(&self) -> &Line {
        &self.0.line
    }

    /// Sends commands one behind the other, with no other command in between, and returns the answers from
    /// number `skip` on. Answers that are errors are among them.
    pub(crate) async fn send_all(
        &self,
        deadline: Instant,
        commands: &Pipeline,
        skip: usize,
    ) -> Result<Vec<Value>, Fault> {
        let mut connection = self.0.connection.clone();
        let count = commands.len() - skip;
        self.exchange(deadline, connection.send_packed_commands(commands, skip, count)).await
    }

    /// Makes a fault of an answer that is an error.
    pub(crate) fn checked(&self, answer: Value) -> Result<Value, Fault> {
        match answer {
            Value::ServerError(error) => Err(Fault::server(self.server(), error.code(), error.details())),
            answer => Ok(answer),
        }
    }

    async fn exchange<T>(
        &self,
        deadline: Instant,
        request: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, Fault> {
        let health = &self.0.health;
        let received = self.received();
        let sent_at = Instant::now();
        let (broken, request) = (pin!(health.broken()), pin!(request));
        match timeout_at(deadline, select(broken, request)).await {
            Err(_) => {
                let after = sent_at.elapsed();
                let fault = Fault::Silent { server: health.server.clone(), after };
                if self.received() == received && after >= SILENCE_MAX {
                    health.break_with(fault.clone());
                }
                Err(fault)
            }
            Ok(Either::Left((fault, _))) => Err(fault),
            Ok(Either::Right((answer, _))) => {
                // An answer may have been delivered behind an unasked `sunsubscribe`: then it is another command's.
                if let Some(fault) = health.fault.get() {
                    return Err(fault.clone());
                }
                health.received.fetch_add(1, Ordering::Relaxed);
                answer.map_err(|error| {
                    let fault = Fault::of_command(&error, &health.server);
                    if fault.is_outcome_unknown() {
                        health.break_with(fault.clone());
                    }
                    fault
                })
            }
        }
    }

    pub(crate) fn is_subscribed(&self, channel: &[u8]) -> bool {
        lock(&self.0.subscribed).contains(channel)
    }

    /// Subscribes to what it is not subscribed to yet. A channel that the server does not serve is a stray.
    pub(crate) async fn subscribe_to_all(&self, mut channels: Vec<Vec<u8>>) -> Result<(), Fault> {
        channels.retain(|channel| !self.is_subscribed(channel));
        for (channel, fault) in self.subscribe(Instant::now() + SILENCE_MAX, channels).await? {
            match fault.code() {
                Some("MOVED") => self.0.health.listeners.report_stray(&channel),
                _ => return Err(fault),
            }
        }
        Ok(())
    }

    /// Subscribes to channels, and returns those that the server refused.
    pub(crate) async fn subscribe(
        &self,
        deadline: Instant,
        channels: Vec<Vec<u8>>,
    ) -> Result<Vec<(Vec<u8>, Fault)>, Fault> {
        if channels.is_empty() {
            return Ok(Vec::new());
        }
        let verb = if self.0.health.listeners.is_sharded() { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        let mut commands = Pipeline::with_capacity(channels.len());
        for channel in &channels {
            // One channel for each command: then each has one answer, which is what redis-rs counts on.
            commands.cmd(verb).arg(channel.as_slice());
        }
        let answers = self.send_all(deadline, &commands, 0).await?;
        let mut refused = Vec::new();
        for (channel, answer) in channels.into_iter().zip(answers) {
            match self.checked(answer) {
                Ok(_) => drop(lock(&self.0.subscribed).insert(channel)),
                Err(fault) => refused.push((channel, fault)),
            }
        }
        Ok(refused)
    }

    /// Leaves a channel.
    pub(crate) async fn unsubscribe(&self, deadline: Instant, channel: &[u8]) -> Result<(), Fault> {
        if !lock(&self.0.subscribed).remove(channel) {
            return Ok(());
        }
        let health = &self.0.health;
        let verb = if health.listeners.is_sharded() { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" };
        lock(&health.leaving).push(channel.to_vec());
        let answer = self.send(deadline, redis::cmd(verb).arg(channel)).await;
        // The answer took it away already; a refusal did not.
        health.has_left(channel);
        answer.map(drop)
    }
}

impl Health {
    fn on_push(&self, push: PushInfo) {
        self.received.fetch_add(1, Ordering::Relaxed);
        let mut data = push.data.into_iter();
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                if let (
                    Some(Value::BulkString(channel)),
                    Some(Value::BulkString(payload)),
                    Some(incarnation),
                ) = (data.next(), data.next(), self.incarnation.get())
                {
                    self.listeners.send(News::Message { channel, payload, incarnation: *incarnation });
                }
            }
            PushKind::SUnsubscribe | PushKind::Unsubscribe => {
                let channel = match data.next() {
                    Some(Value::BulkString(channel)) => channel,
                    _ => Vec::new(),
                };
                if !self.has_left(&channel) {
                    self.listeners.report_stray(&channel);
                    self.cut("the server took a channel away");
                }
            }
            PushKind::Disconnection => self.cut("the server closed it"),
            _ => {}
        }
    }

    /// Notes that a channel has been left, and returns whether it was being left.
    fn has_left(&self, channel: &[u8]) -> bool {
        let mut leaving = lock(&self.leaving);
        let at = leaving.iter().position(|leaving| leaving == channel);
        at.map(|at| leaving.swap_remove(at)).is_some()
    }

    fn cut(&self, why: &str) {
        self.break_with(Fault::Cut { server: self.server.clone(), why: why.to_owned() });
    }

    fn break_with(&self, fault: Fault) {
        self.fault.get_or_init(|| fault);
        self.broken.notify_waiters();
    }

    async fn broken(&self) -> Fault {
        loop {
            // Made before the check, so that a break in between is not missed.
            let broken = self.broken.notified();
            if let Some(fault) = self.fault.get() {
                return fault.clone();
            }
            broken.await;
        }
    }
}

/// A panic elsewhere cannot leave these lists and sets half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
