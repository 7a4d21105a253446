//! The connections between clients and servers: messages take time, and get lost with their connection or on the way back.
//!
//! What was sent on one connection arrives in the order in which it was sent, and only in the life of the server with which the
//! connection was made. What was sent on a connection that the client has given up may still arrive, behind what it sends on the next one.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use redis::{Cmd, Value};
use tenure_core::engine::{Finding, Incarnation};
use tenure_redis::server::{Fault, News};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::World;
use super::time::ClientClock;
use crate::rounds::wire::{Build, Called, Wire};

/// How long a message takes, in microseconds: mostly, and where the network is slow.
const DELAYS: [std::ops::Range<u64>; 2] = [200..3_000, 2_000..120_000];
/// After how long a client gives up a connection on which nothing comes.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// A client's way to the server of one name.
pub(crate) struct Way {
    world: Arc<World>,
    clock: Arc<ClientClock>,
    /// Which server the name leads to.
    server: Mutex<usize>,
    /// Not a channel of tokio's: those wake in an order that no seed repeats.
    state: Mutex<State>,
    is_changed: Notify,
    news: UnboundedSender<News>,
    /// Nothing that the client sends goes anywhere any more.
    is_dead: Mutex<bool>,
}

enum State {
    Up(Arc<Connection>),
    Down { has_failed: bool },
}

/// One connection with one life of a server.
pub(crate) struct Connection {
    server: usize,
    incarnation: u64,
    is_over: Mutex<bool>,
    ends: Notify,
    /// When the last message of each direction arrives.
    arrivals: Mutex<[u64; 2]>,
    /// What the client sends, or what it is answered, is lost from now on.
    losses: Mutex<[bool; 2]>,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    fn break_up(&self) {
        *lock(&self.is_over) = true;
        self.ends.notify_waiters();
    }

    async fn over(&self) {
        let ends = self.ends.notified();
        if !*lock(&self.is_over) {
            ends.await;
        }
    }

    fn loses(&self, direction: usize) -> bool {
        lock(&self.losses)[direction]
    }
}

impl Way {
    /// Makes one, and begins to connect.
    pub(crate) fn start(
        world: &Arc<World>,
        clock: &Arc<ClientClock>,
        server: usize,
        news: UnboundedSender<News>,
    ) -> Arc<Way> {
        let way = Arc::new(Way {
            world: world.clone(),
            clock: clock.clone(),
            server: Mutex::new(server),
            state: Mutex::new(State::Down { has_failed: false }),
            is_changed: Notify::new(),
            news,
            is_dead: Mutex::new(false),
        });
        tokio::spawn(keep_connected(way.clone()));
        way
    }

    /// The client is gone.
    pub(crate) fn die(&self) {
        *lock(&self.is_dead) = true;
        self.cut();
    }

    fn is_dead(&self) -> bool {
        *lock(&self.is_dead)
    }

    fn connection(&self) -> Option<Arc<Connection>> {
        match &*lock(&self.state) {
            State::Up(connection) => Some(connection.clone()),
            State::Down { .. } => None,
        }
    }

    fn set(&self, state: State) {
        *lock(&self.state) = state;
        self.is_changed.notify_waiters();
    }

    /// The connection breaks, and the client notices.
    pub(crate) fn cut(&self) {
        self.connection().into_iter().for_each(|connection| connection.break_up());
    }

    /// The connection breaks if it is one with this server.
    pub(crate) fn cut_from(&self, server: usize) {
        self.connection()
            .into_iter()
            .filter(|connection| connection.server == server)
            .for_each(|it| it.break_up());
    }

    /// From now on requests (0) or answers (1) are lost on the present connection, until the client gives it up.
    pub(crate) fn lose(&self, direction: usize) {
        let Some(connection) = self.connection() else { return };
        lock(&connection.losses)[direction] = true;
        let within = self.world.draw(|random| random.u64(20..SILENCE_MAX.as_millis() as u64));
        let time = self.clock.time;
        tokio::spawn(async move {
            time.sleep(Duration::from_millis(within)).await;
            connection.break_up();
        });
    }

    /// The name leads to another server from now on.
    pub(crate) fn lead_to(&self, server: usize) {
        if std::mem::replace(&mut *lock(&self.server), server) != server {
            self.cut();
        }
    }

    /// When a message arrives that is sent now: behind those before it.
    fn arrival(&self, connection: &Connection, direction: usize) -> u64 {
        let is_slow = self.world.is_slow();
        let delay = self.world.draw(|random| random.u64(DELAYS[usize::from(is_slow)].clone()));
        let mut arrivals = lock(&connection.arrivals);
        let at = (self.clock.time.now() + delay * 1000).max(arrivals[direction]);
        arrivals[direction] = at;
        at
    }

    async fn up(&self, deadline: Instant) -> Result<Arc<Connection>, Fault> {
        loop {
            let changed = self.is_changed.notified();
            if let Some(connection) = self.connection() {
                return Ok(connection);
            }
            if timeout_at(deadline, changed).await.is_err() {
                let last = Box::new(Fault::Nobody { why: "no connection in time".to_owned() });
                return Err(Fault::Down { last });
            }
        }
    }

    /// Sends a command. Its answer comes, or nothing ever does.
    fn send(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        cmd: Cmd,
    ) -> oneshot::Receiver<Result<Value, String>> {
        let (sender, answer) = oneshot::channel();
        let cmd = Arc::new(cmd);
        if self.world.chance(self.world.weather.doubled) {
            let (way, connection, cmd) = (self.clone(), connection.clone(), cmd.clone());
            tokio::spawn(async move {
                let late = way.world.draw(|random| random.u64(0..3_000));
                way.clock.time.sleep(Duration::from_millis(late)).await;
                way.world.carry_out(connection.server, connection.incarnation, &cmd);
            });
        }
        if self.world.chance(self.world.weather.lost) {
            self.lose(self.world.draw(|random| random.usize(..2)));
        }
        let (way, connection) = (self.clone(), connection.clone());
        let at = self.arrival(&connection, 0);
        tokio::spawn(async move {
            let (world, time) = (way.world.clone(), way.clock.time);
            time.until(at).await;
            while world.hung_until(connection.server) > time.now() {
                time.until(world.hung_until(connection.server)).await;
            }
            if way.is_dead() || connection.loses(0) {
                return;
            }
            let Some(answer) = world.carry_out(connection.server, connection.incarnation, &cmd) else {
                return;
            };
            let at = way.arrival(&connection, 1);
            time.until(at).await;
            while way.clock.paused_until() > time.now() {
                time.until(way.clock.paused_until()).await;
            }
            if !connection.loses(1) {
                // The caller may have given up.
                sender.send(answer).ok();
            }
        });
        answer
    }

    /// Brings a message that a server has published, if the client is connected with it.
    pub(crate) fn bring(self: &Arc<Self>, server: usize, channel: Vec<u8>, payload: Vec<u8>) {
        let Some(connection) = self.connection().filter(|connection| connection.server == server) else {
            return;
        };
        let (way, at) = (self.clone(), self.arrival(&connection, 1));
        tokio::spawn(async move {
            way.clock.time.until(at.max(way.clock.paused_until())).await;
            if !connection.loses(1) && !way.is_dead() {
                let incarnation = Incarnation(connection.incarnation);
                // The client may have ended.
                way.news.send(News::Message { channel, payload, incarnation }).ok();
            }
        });
    }
}

/// Connects, and connects again whenever the connection breaks.
async fn keep_connected(way: Arc<Way>) {
    let (world, time) = (way.world.clone(), way.clock.time);
    let mut last = None;
    while !way.is_dead() {
        let pause = world.draw(|random| random.u64(1..50));
        time.sleep(Duration::from_millis(pause)).await;
        let server = *lock(&way.server);
        let Some(incarnation) = world.life_of(server).filter(|_| world.hung_until(server) <= time.now())
        else {
            way.set(State::Down { has_failed: true });
            continue;
        };
        let connection = Arc::new(Connection {
            server,
            incarnation,
            is_over: Mutex::new(false),
            ends: Notify::new(),
            arrivals: Mutex::default(),
            losses: Mutex::default(),
        });
        way.set(State::Up(connection.clone()));
        let is_new = last.replace(incarnation).is_some_and(|last| last != incarnation);
        for news in
            [News::Up { incarnation: Incarnation(incarnation), is_new }, News::Listening { is_new: false }]
        {
            // The client may have ended.
            way.news.send(news).ok();
        }
        connection.over().await;
        way.set(State::Down { has_failed: true });
    }
}

/// What a client of a world has in place of its connections with one server.
pub(crate) struct Simulated(pub(crate) Arc<Way>);

impl Wire for Simulated {
    fn call<'a>(&'a self, deadline: Instant, build: Build<'a>) -> BoxFuture<'a, Called> {
        Box::pin(async move {
            let name = || "simulated".to_owned();
            let connection = self.0.up(deadline).await?;
            let incarnation = Incarnation(connection.incarnation);
            let answer = self.0.send(&connection, build(incarnation));
            let answered = async {
                match answer.await {
                    Ok(answer) => answer,
                    Err(_) => std::future::pending().await,
                }
            };
            let over = connection.over();
            match timeout_at(deadline, select(pin!(answered), pin!(over))).await {
                Ok(Either::Left((Ok(value), _))) => Ok((value, incarnation)),
                Ok(Either::Left((Err(detail), _))) => {
                    Err(Fault::Server { server: name(), code: "ERR".to_owned(), detail })
                }
                Ok(Either::Right(_)) => Err(Fault::Cut { server: name(), why: "it was cut".to_owned() }),
                Err(_) => Err(Fault::Silent { server: name(), after: Duration::ZERO }),
            }
        })
    }

    fn ready(&self, deadline: Instant) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move { self.0.up(deadline).await.map(drop) })
    }

    fn is_down(&self) -> bool {
        matches!(*lock(&self.0.state), State::Down { has_failed: true })
    }

    fn incarnation(&self) -> Option<Incarnation> {
        self.0.connection().map(|connection| Incarnation(connection.incarnation))
    }

    fn subscribe<'a>(&'a self, _: Instant, _: &'a [u8]) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async { Ok(()) })
    }

    fn unsubscribe<'a>(&'a self, _: Instant, _: &'a [u8]) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn findings(&self) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(async { Vec::new() })
    }
}
