//! What a database must give.

use std::future::Future;

use tenure_core::engine::{Capability, Finding};

use crate::fault::Fault;
use crate::locks::plain::Plain;
use crate::room::Purpose;
use crate::schema::Tables;
use crate::text::Dialect;
use crate::wake::{Inbox, Notification};

/// The columns of a row as text; none for NULL.
pub type Row = Vec<Option<String>>;

/// What the last text has left on a connection, and so what is done with one that is dropped.
#[derive(Debug)]
pub enum Left {
    /// Whatever it was at: it is closed, so that the database gives that up.
    Unknown,
    /// The database has given it up ([`Fault::Locked`], [`Fault::GivenUp`]): it is rolled back and kept.
    Transaction,
    /// Nothing, as on one that nothing was sent on: it is kept.
    Nothing,
}

/// A connection for one transaction at a time.
pub trait Connection: Send {
    /// Sends statements in one piece, outside of a transaction or to begin one, and returns the rows of each, in order.
    /// The database gives them their surroundings in the same piece: nothing that others may set decides where names are
    /// looked up, and nothing waits on the server for much longer than the client does.
    ///
    /// # Errors
    /// The first statement's that fails; those behind it were not executed.
    fn run(&mut self, script: String) -> impl Future<Output = Result<Vec<Vec<Row>>, Fault>> + Send;

    /// The same in the transaction that [`run`](Connection::run) has begun.
    ///
    /// # Errors
    /// As those of `run`.
    fn go_on(&mut self, script: String) -> impl Future<Output = Result<Vec<Vec<Row>>, Fault>> + Send {
        self.run(script)
    }

    /// Keeps the connection for others: it is in no transaction. What becomes of one that is only dropped is for [`Left`] to say. Closed, it would be dialed anew, for which a crowd of clients has no time, and on a full server another would have its
    /// place: the one that ends a hold would not come to it.
    fn keep(self);
}

/// A database: how to reach it, and in which dialect.
pub trait Database: Send + Sync + 'static {
    /// How its texts differ.
    type Dialect: Dialect;
    /// A connection.
    type Connection: Connection;

    /// The engine's one word.
    const ENGINE: &'static str;

    /// Returns a connection, within a second or so; see [`Room`](crate::Room).
    fn lend(&self, want: Purpose) -> impl Future<Output = Result<Self::Connection, Fault>> + Send;

    /// Returns a connection for whatever can wait.
    fn connection(&self) -> impl Future<Output = Result<Self::Connection, Fault>> + Send {
        self.lend(Purpose::Any)
    }

    /// Carries out the short path in the database's own way, and returns its rows. `None` if it is to be sent as the text of the dialect, if
    /// there is one.
    ///
    /// # Errors
    /// [`Fault::Locked`] or [`Fault::GivenUp`] if nothing was executed since others have rows locked.
    fn run_plain(&self, work: Plain<'_>) -> impl Future<Output = Option<Result<Vec<Row>, Fault>>> + Send {
        let _ = work;
        async { None }
    }

    /// The names of the tables.
    fn tables(&self) -> &Tables;

    /// What it can do.
    fn capability(&self) -> &Capability;

    /// News for this client.
    fn inbox(&self) -> &Inbox;

    /// Returns the statement that notifies clients, to be sent behind a commit. `None` if clients cannot hear. Where
    /// others may write to what clients hear, it only makes them ask: [`Inbox::ring`].
    fn tell(&self, notifications: &[Notification]) -> Option<String>;

    /// Whether this client hears the notifications of others.
    fn hears(&self) -> bool;

    /// Takes leave of the server, as far as that needs no waiting. No connection is asked for afterwards.
    fn close(&self) {}

    /// Looks whether the database can be trusted.
    fn check(&self) -> impl Future<Output = Vec<Finding>> + Send;

    /// Makes the tables if they are not there, and says which there are.
    fn migrate(&self) -> impl Future<Output = Result<Option<String>, Fault>> + Send {
        async { Ok(None) }
    }
}
