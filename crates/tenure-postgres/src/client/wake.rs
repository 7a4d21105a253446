//! How waiters hear of a release: NOTIFY behind each commit that wakes a client, heard by a connection of its own.
//!
//! A notification is a doorbell, and says nothing that is believed: every role may NOTIFY, and every role that may
//! read the tables knows which claim waits on which channel. So it only makes its client ask, and the answer says
//! what is so: a waiter that has been granted something confirms that in one trip before it begins.

use std::fmt::Write as _;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{poll_fn, select};
use tenure_core::model::claim::{ClaimId, Name};
use tenure_sql::{Fault, Inbox, Notification, push_hex};
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage};

use crate::config::Config;
use crate::error::fault;

/// Before the next attempt to listen.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
];

/// Whether this client hears.
#[derive(Debug, Default)]
pub(crate) struct WakeListener {
    pub(crate) hears: AtomicBool,
    /// What was said to oneself has come back.
    pub(crate) heard: Notify,
    /// The client is gone: the listener is to leave nothing behind.
    pub(crate) over: Notify,
    /// The first connection listens, or the server has no room for it.
    pub(crate) tried: Notify,
    /// What the server said when it had no room for the listener.
    full: OnceLock<String>,
    echo: OnceLock<String>,
}

impl WakeListener {
    /// What comes back is this.
    pub(crate) fn expects(&self, echo: &str) {
        // It is said once in a life.
        self.echo.get_or_init(|| echo.to_owned());
    }

    /// What the server said, if it had no room for the listener.
    pub(crate) fn full(&self) -> Option<Fault> {
        self.full.get().map(|said| Fault::Full(format!("cannot listen: {said}")))
    }
}

/// What one says to oneself.
pub(crate) fn echo(number: u64) -> String {
    format!("? {number:x}")
}

pub(crate) fn own_channel(prefix: &str, client: tenure_core::model::claim::ClientId) -> String {
    format!("{prefix}{client}")
}

pub(crate) fn changes_channel(prefix: &str) -> String {
    format!("{prefix}changes")
}

/// The statement that notifies clients. Payloads are digits, letters and spaces.
pub(crate) fn notify_statement(prefix: &str, notifications: &[Notification]) -> String {
    let mut text = String::from("SELECT ");
    for (at, notification) in notifications.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        // A text takes any number of bytes.
        let _ = match notification {
            Notification::Granted { to, claim, .. } | Notification::Look { to, claim } => {
                write!(text, "{comma}pg_notify('{}', 'L {claim}')", own_channel(prefix, *to))
            }
            Notification::Changed { resource } => {
                let mut name = String::new();
                push_hex(&mut name, resource.as_str().as_bytes());
                write!(text, "{comma}pg_notify('{}', '{name}')", changes_channel(prefix))
            }
        };
    }
    text
}

/// Reads which claim was rung. Older clients say after `G` what was granted.
fn read(payload: &str) -> Option<ClaimId> {
    let mut words = payload.split(' ');
    words.next().filter(|kind| ["L", "G"].contains(kind))?;
    words.next()?.parse().ok()
}

fn read_name(payload: &str) -> Option<Name> {
    let bytes: Option<Vec<u8>> = (0..payload.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(payload.get(at..at + 2)?, 16).ok())
        .collect();
    Name::new(std::str::from_utf8(&bytes?).ok()?).ok()
}

/// Listens for as long as it is polled, on one connection after the other.
pub(crate) async fn listen(config: Config, channels: [String; 2], inbox: Arc<Inbox>, ear: Arc<WakeListener>) {
    let mut attempt = 0;
    loop {
        match listen_once(&config, &channels, &inbox, &ear, &mut attempt).await {
            Ok(End::Over) => return,
            Ok(End::Closed) => {}
            Err(error) => {
                if let Fault::Full(said) = fault(&error) {
                    ear.full.get_or_init(|| said);
                    ear.tried.notify_one();
                }
                tracing::debug!(engine = "postgres", %error, attempt, "cannot listen any more");
            }
        }
        tenure_sql::pause(PAUSES[attempt.min(PAUSES.len() - 1)]).await;
        attempt += 1;
    }
}

/// Why one connection listens no more.
enum End {
    Closed,
    Over,
}

/// How often a pooler is asked for the connection that listens, until it is that one.
const UNLISTEN_TRIES: usize = 200;
/// How many of them follow each other at once, before others are held.
const UNLISTEN_AT_ONCE: usize = 10;
/// How many of the pooler's connections are held at most, to be given another one.
const UNLISTEN_HELD_MAX: usize = 16;
/// How long is waited for another one.
const UNLISTEN_HELD_WAIT: Duration = Duration::from_millis(200);
/// How long after each of the last tries, which are for when the pooler's other clients use the connection.
const UNLISTEN_PAUSE: Duration = Duration::from_millis(5);

/// Sends a statement, and returns which process of the server has carried it out.
async fn process_of(client: &Client, statement: &str) -> Result<Option<String>, tokio_postgres::Error> {
    let said = client.simple_query(&format!("{statement}; SELECT pg_catalog.pg_backend_pid()")).await?;
    let row =
        |said| if let SimpleQueryMessage::Row(row) = said { row.get(0).map(str::to_owned) } else { None };
    Ok(said.into_iter().find_map(row))
}

/// Has the connection of the server that listens, which is a pooler's, listen no more.
///
/// Each transaction may be given another of the pooler's connections. Most poolers give the one that was used last, and then
/// always that one: so those that are not it are held for a moment, until the one that listens is the only one left.
async fn unlisten(
    config: &Config,
    client: &Client,
    process: Option<&str>,
    channels: &[String; 2],
) -> Result<(), tokio_postgres::Error> {
    let [own, changes] = channels;
    let unlisten = format!("UNLISTEN \"{own}\"; UNLISTEN \"{changes}\"");
    for _ in 0..UNLISTEN_AT_ONCE {
        if process_of(client, &unlisten).await?.as_deref() == process {
            return Ok(());
        }
    }
    let (mut held, mut is_found) = (Vec::new(), false);
    let held_unlisten = format!("BEGIN; {unlisten}");
    while !is_found && held.len() < UNLISTEN_HELD_MAX {
        let next = connect(config).await?;
        // A pool that is used up answers nothing until one of its connections is free.
        let asked = process_of(&next, &held_unlisten);
        let Ok(asked) = tokio::time::timeout(UNLISTEN_HELD_WAIT, asked).await else { break };
        is_found = asked?.as_deref() == process;
        held.push(next);
    }
    // A transaction that is left open would cost the pooler its connection.
    for next in held {
        next.simple_query("COMMIT").await?;
    }
    let mut tried = 0;
    while !is_found && tried < UNLISTEN_TRIES {
        tenure_sql::pause(UNLISTEN_PAUSE).await;
        is_found = process_of(client, &unlisten).await?.as_deref() == process;
        tried += 1;
    }
    Ok(())
}

/// Makes another connection, which ends with its client.
async fn connect(config: &Config) -> Result<Client, tokio_postgres::Error> {
    crate::client::tls::with_tls!(config, |server, tls| {
        let (client, connection) = server.connect(tls).await?;
        tokio::spawn(async move {
            // Its client is told of what goes wrong.
            connection.await.ok();
        });
        Ok(client)
    })
}

async fn listen_once(
    config: &Config,
    channels: &[String; 2],
    inbox: &Inbox,
    ear: &WakeListener,
    attempt: &mut usize,
) -> Result<End, tokio_postgres::Error> {
    crate::client::tls::with_tls!(config, |server, tls| {
        let (client, mut connection) = server.connect(tls).await?;
        let heard = poll_fn(|cx| {
            loop {
                match std::task::ready!(connection.poll_message(cx)) {
                    Some(Ok(AsyncMessage::Notification(said))) => {
                        if said.payload().starts_with('?') {
                            if ear.echo.get().is_some_and(|echo| echo == said.payload()) {
                                ear.heard.notify_waiters();
                            }
                        } else if said.channel() == channels[1] {
                            read_name(said.payload()).iter().for_each(|name| inbox.changed(name));
                        } else if let Some(called) = said.payload().strip_prefix("Q ") {
                            read_name(called).into_iter().for_each(|queue| inbox.called(queue));
                        } else if let Some(watched) = said.payload().strip_prefix("W ") {
                            read_name(watched).into_iter().for_each(|queue| inbox.watches(queue));
                        } else {
                            read(said.payload()).into_iter().for_each(|claim| inbox.ring(claim));
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return std::task::Poll::Ready(Err(error)),
                    None => return std::task::Poll::Ready(Ok(End::Closed)),
                }
            }
        });
        let [own, changes] = channels;
        let begin = async {
            let process = process_of(&client, &format!("LISTEN \"{own}\"; LISTEN \"{changes}\"")).await?;
            *attempt = 0;
            ear.tried.notify_one();
            // What was sent while no connection listened is lost.
            inbox.missed();
            ear.over.notified().await;
            unlisten(config, &client, process.as_deref(), channels).await?;
            Ok(End::Over)
        };
        let (heard, begin) = (std::pin::pin!(heard), std::pin::pin!(begin));
        select(heard, begin).await.factor_first().0
    })
}
