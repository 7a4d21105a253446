//! How waiters hear of a release: NOTIFY behind each commit that wakes somebody, heard by a connection of its own.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::future::{poll_fn, select};
use tenure_core::claim::{ClaimId, Grant, Name};
use tenure_core::engine::{Incarnation, Wake};
use tenure_core::token::Token;
use tenure_sql::{Inbox, Letter, push_hex};
use tokio::sync::Notify;
use tokio_postgres::AsyncMessage;

use crate::config::Config;

/// Before the next attempt to listen.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
];

/// Whether this client hears.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    pub(crate) hears: AtomicBool,
    /// What was said to oneself has come back.
    pub(crate) heard: Notify,
}

pub(crate) fn own_channel(prefix: &str, client: tenure_core::claim::ClientId) -> String {
    format!("{prefix}{client}")
}

pub(crate) fn changes_channel(prefix: &str) -> String {
    format!("{prefix}changes")
}

/// The statement that tells clients. Payloads are digits, letters and spaces.
pub(crate) fn tell(prefix: &str, letters: &[Letter], incarnation: Incarnation) -> String {
    let mut text = String::from("SELECT ");
    for (at, letter) in letters.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        // A text takes any number of bytes.
        let _ = match letter {
            Letter::Granted { to, claim, grant } => {
                let Grant { token, slot, ends_in } = grant;
                let slot = slot.map_or(-1, i64::from);
                write!(
                    text,
                    "{comma}pg_notify('{}', 'G {claim} {token} {slot} {} {}')",
                    own_channel(prefix, *to),
                    ends_in.as_micros(),
                    incarnation.0
                )
            }
            Letter::Look { to, claim } => {
                write!(text, "{comma}pg_notify('{}', 'L {claim}')", own_channel(prefix, *to))
            }
            Letter::Changed { resource } => {
                let mut name = String::new();
                push_hex(&mut name, resource.as_str().as_bytes());
                write!(text, "{comma}pg_notify('{}', '{name}')", changes_channel(prefix))
            }
        };
    }
    text
}

/// Reads what was told to a client.
fn read(payload: &str) -> Option<Wake> {
    let mut words = payload.split(' ');
    let kind = words.next()?;
    let claim: ClaimId = words.next()?.parse().ok()?;
    match kind {
        "L" => Some(Wake::Look(claim)),
        "G" => {
            let token = Token::new(words.next()?.parse().ok()?);
            let slot = words.next()?.parse::<i64>().ok()?.try_into().ok();
            let ends_in = Duration::from_micros(words.next()?.parse().ok()?);
            let incarnation = Incarnation(words.next()?.parse().ok()?);
            Some(Wake::Granted { claim, grant: Grant { token, slot, ends_in }, incarnation })
        }
        _ => None,
    }
}

fn read_name(payload: &str) -> Option<Name> {
    let bytes: Option<Vec<u8>> = (0..payload.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(payload.get(at..at + 2)?, 16).ok())
        .collect();
    Name::new(std::str::from_utf8(&bytes?).ok()?).ok()
}

/// Listens for as long as it is polled, on one connection after the other.
pub(crate) async fn listen(config: Config, channels: [String; 2], inbox: Arc<Inbox>, ear: Arc<Ear>) {
    let mut attempt = 0;
    loop {
        if let Err(error) = listen_once(&config, &channels, &inbox, &ear, &mut attempt).await {
            tracing::debug!(engine = "postgres", %error, attempt, "cannot listen any more");
        }
        tenure_sql::pause(PAUSES[attempt.min(PAUSES.len() - 1)]).await;
        attempt += 1;
    }
}

async fn listen_once(
    config: &Config,
    channels: &[String; 2],
    inbox: &Inbox,
    ear: &Ear,
    attempt: &mut usize,
) -> Result<(), tokio_postgres::Error> {
    crate::engine::with_tls!(config, |server, tls| {
        let (client, mut connection) = server.connect(tls).await?;
        let heard = poll_fn(|cx| {
            loop {
                match std::task::ready!(connection.poll_message(cx)) {
                    Some(Ok(AsyncMessage::Notification(said))) => {
                        if said.payload() == "?" {
                            ear.heard.notify_waiters();
                        } else if said.channel() == channels[1] {
                            read_name(said.payload()).iter().for_each(|name| inbox.changed(name));
                        } else if let Some(called) = said.payload().strip_prefix("Q ") {
                            read_name(called).into_iter().for_each(|queue| inbox.called(queue));
                        } else if let Some(watched) = said.payload().strip_prefix("W ") {
                            read_name(watched).into_iter().for_each(|queue| inbox.watches(queue));
                        } else {
                            read(said.payload()).into_iter().for_each(|wake| inbox.put(wake));
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return std::task::Poll::Ready(Err(error)),
                    None => return std::task::Poll::Ready(Ok(())),
                }
            }
        });
        let [own, changes] = channels;
        let begin = async {
            client.batch_execute(&format!("LISTEN \"{own}\"; LISTEN \"{changes}\"")).await?;
            *attempt = 0;
            // Whatever was said while nobody listened is lost.
            inbox.missed();
            std::future::pending::<Result<(), tokio_postgres::Error>>().await
        };
        let (heard, begin) = (std::pin::pin!(heard), std::pin::pin!(begin));
        select(heard, begin).await.factor_first().0
    })
}
