//! How one server is reached: what rounds ask of its connections, so that a simulation can stand in their place.

use futures_util::future::BoxFuture;
use redis::{Cmd, Value};
use tenure_core::engine::{Finding, Incarnation};
use tenure_redis::server::{Fault, Link, of_quorum};
use tokio::time::Instant;

/// How a command is made, for the life of the server that will execute it.
pub(crate) type Build<'a> = &'a (dyn Fn(Incarnation) -> Cmd + Send + Sync);

/// What a command has come to: the answer, and the life of the server that gave it.
pub(crate) type Called = Result<(Value, Incarnation), Fault>;

/// The connections with one server.
pub(crate) trait Wire: Send + Sync {
    /// Sends a command as soon as there is a connection. It repeats nothing that may have been executed.
    fn call<'a>(&'a self, deadline: Instant, build: Build<'a>) -> BoxFuture<'a, Called>;

    /// Waits until there is a connection.
    fn ready(&self, deadline: Instant) -> BoxFuture<'_, Result<(), Fault>>;

    /// Whether there is no connection, and the last attempt to make one has failed.
    fn is_down(&self) -> bool;

    /// The life of the server that the connection is with, if there is one.
    fn incarnation(&self) -> Option<Incarnation>;

    /// Hears a channel, now and on every later connection.
    fn subscribe<'a>(&'a self, deadline: Instant, channel: &'a [u8]) -> BoxFuture<'a, Result<(), Fault>>;

    /// Hears a channel no more.
    fn unsubscribe<'a>(&'a self, deadline: Instant, channel: &'a [u8]) -> BoxFuture<'a, ()>;

    /// What the server says of itself that an operator should know.
    fn findings(&self) -> BoxFuture<'_, Vec<Finding>>;
}

/// Connections with a Redis server: large answers on one that has subscriptions would cost it (see `topology.rs` of
/// `tenure-redis`), so messages come on another.
pub(crate) struct Links {
    pub(crate) commands: Link,
    pub(crate) messages: Link,
}

impl Wire for Links {
    fn call<'a>(&'a self, deadline: Instant, build: Build<'a>) -> BoxFuture<'a, Called> {
        Box::pin(self.commands.call(deadline, build))
    }

    fn ready(&self, deadline: Instant) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(self.commands.ready(deadline))
    }

    fn is_down(&self) -> bool {
        self.commands.is_down()
    }

    fn incarnation(&self) -> Option<Incarnation> {
        self.commands.incarnation()
    }

    fn subscribe<'a>(&'a self, deadline: Instant, channel: &'a [u8]) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.messages.subscribe(deadline, channel))
    }

    fn unsubscribe<'a>(&'a self, deadline: Instant, channel: &'a [u8]) -> BoxFuture<'a, ()> {
        Box::pin(self.messages.unsubscribe(deadline, channel))
    }

    fn findings(&self) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(of_quorum(&self.commands))
    }
}
