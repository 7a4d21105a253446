//! The same with `Accept: text/event-stream`: the claim waits, holds, and is renewed for as long as its client reads.
//!
//! When the connection ends, or what was written is not acknowledged for a third of the ttl, nobody renews any more, and nothing is
//! released: behind a proxy this end learns late or never what became of the other one, which believes in its hold until the time that the
//! last `kept` said. A socket of the file system tells the truth about the other end, and there a client may ask to be released by it.

use axum::response::Response;
use futures_util::stream;
use hyper::body::Bytes;
use hyper::header::ACCEPT;
use hyper::http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::{Kept, LoadTurn};

use super::{Claiming, renew_one};
use crate::access::rules::Verb;
use crate::access::{Caller, Peer};
use crate::answer::Hold;
use crate::body::query;
use crate::drain::Stage;
use crate::events::frame::{COMMENT, push};
use crate::events::stream::events;
use crate::limits::{COMMENT_EVERY, RENEW_AGAIN};
use crate::millis::left;
use crate::pause::pause;
use crate::problem::{INVALID, Problem};
use crate::waiting::WaitingPlace;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnDisconnect {
    Release,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimQuery {
    on_disconnect: Option<OnDisconnect>,
}

/// Whether a client wants a stream, and whether its end releases the claim.
pub(super) struct Mode {
    pub(super) is_stream: bool,
    releases: bool,
}

impl Mode {
    pub(super) fn of(parts: &Parts) -> Result<Mode, Problem> {
        let is_asked =
            |accept: &str| accept.split(',').any(|kind| kind.trim().starts_with("text/event-stream"));
        let accept = parts.headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let is_stream = accept.is_some_and(is_asked);
        let releases = query::<ClaimQuery>(parts)?.on_disconnect == Some(OnDisconnect::Release);
        if releases && !is_stream {
            return Err(Problem::new(INVALID, "`on_disconnect` is for streams")
                .with_hint("send Accept: text/event-stream"));
        }
        let is_unix = parts.extensions.get::<Peer>().is_some_and(|peer| peer.address.is_none());
        if releases && !is_unix {
            return Err(Problem::new(INVALID, "`on_disconnect=release` is for a Unix socket only")
                .with_hint("elsewhere a connection may seem to have ended whose client still works"));
        }
        Ok(Mode { is_stream, releases })
    }
}

/// A stream of one claim.
struct Held {
    claiming: Claiming,
    caller: Caller,
    /// Until when it holds; none while it waits.
    deadline: Option<Instant>,
    /// When it is renewed.
    renew_at: tokio::time::Instant,
    releases: bool,
    _place: WaitingPlace,
}

/// Answers with a stream, once the store has said that the claim holds or waits.
pub(super) async fn begin(
    claiming: Claiming,
    first: Option<tenure_core::Result<LoadTurn>>,
    (caller, place): (Caller, WaitingPlace),
    (mode, peer): (Mode, Peer),
) -> Result<Response, Problem> {
    peer.pace.give_up_after(claiming.wanted.ttl / 3);
    let renew_at = tokio::time::Instant::now();
    let mut held =
        Held { claiming, caller, deadline: None, renew_at, releases: mode.releases, _place: place };
    let mut frames = Vec::new();
    match first {
        Some(decided) => match held.claiming.hold_of(decided).await {
            Ok(hold) => held.holds(&mut frames, "granted", &hold),
            Err(problem) => {
                held.claiming.is_answered();
                return Err(problem);
            }
        },
        None => {
            let Claiming { id, wanted, .. } = &held.claiming;
            let waiting = json!({"state": "waiting", "name": wanted.name.as_str(), "claim": id.to_string()});
            push(&mut frames, "waiting", &waiting);
        }
    }
    let first = (Some(held), Some(Bytes::from(frames)));
    Ok(events(stream::unfold(first, async |(held, first)| {
        let mut held = held?;
        if let Some(first) = first {
            return Some((first, (Some(held), None)));
        }
        match held.next().await {
            Next::More(frames) => Some((frames, (Some(held), None))),
            Next::Last(frames) => {
                held.releases = false;
                Some((frames, (None, None)))
            }
        }
    })))
}

enum Next {
    More(Bytes),
    Last(Bytes),
}

/// Why it goes on or ends.
enum Woken {
    Decided(tenure_core::Result<LoadTurn>),
    Superseded,
    Revoked,
    Ending,
    Renew,
    Quiet,
}

impl Held {
    async fn next(&mut self) -> Next {
        let woken = self.woken().await;
        let mut frames = Vec::new();
        match woken {
            Woken::Quiet => return Next::More(COMMENT),
            Woken::Renew => return self.renew().await,
            Woken::Decided(decided) => match self.claiming.hold_of(decided).await {
                Ok(hold) => {
                    self.holds(&mut frames, "granted", &hold);
                    return Next::More(frames.into());
                }
                Err(problem) => {
                    self.claiming.is_answered();
                    push(&mut frames, "bye", &json!({"why": "failed", "problem": problem.brief()}));
                }
            },
            Woken::Superseded => push(&mut frames, "bye", &json!({"why": "superseded"})),
            Woken::Revoked => push(&mut frames, "bye", &json!({"why": "revoked"})),
            Woken::Ending => push(&mut frames, "bye", &json!({"why": "ending"})),
        }
        // Its place and its hold stay in the store.
        self.claiming.let_go();
        self.claiming.is_answered();
        Next::Last(frames.into())
    }

    async fn woken(&mut self) -> Woken {
        let Held { claiming, caller, deadline, renew_at, .. } = self;
        let Claiming { app, wanted, asking, open, .. } = claiming;
        let decided = async {
            match asking {
                Some(asking) => asking.decided().await,
                None => std::future::pending().await,
            }
        };
        let superseded = async {
            match open {
                Some(open) => open.superseded().await,
                None => std::future::pending().await,
            }
        };
        let renew = async {
            match deadline {
                Some(_) => tokio::time::timeout_at(*renew_at, std::future::pending::<()>()).await.ok(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            decided = decided => Woken::Decided(decided),
            () = superseded => Woken::Superseded,
            _ = caller.revoked(Verb::Claim, &wanted.name) => Woken::Revoked,
            () = app.drain.reached(Stage::Leaving) => Woken::Ending,
            _ = renew => Woken::Renew,
            () = pause(COMMENT_EVERY) => Woken::Quiet,
        }
    }

    /// Says that it holds, and until when.
    fn holds(&mut self, frames: &mut Vec<u8>, event: &str, hold: &Hold) {
        let (_, renew_in_ms) = left(hold.deadline);
        self.renew_at = tokio::time::Instant::now() + std::time::Duration::from_millis(renew_in_ms);
        self.deadline = Some(hold.deadline);
        self.claiming.asking = None;
        let state = if event == "granted" { "granted" } else { "held" };
        push(frames, event, &hold.value(&self.claiming.app, state, &self.claiming.wanted.name));
    }

    async fn renew(&mut self) -> Next {
        let Claiming { app, wanted, id, .. } = &self.claiming;
        let renewed = renew_one(app, &wanted.name, *id).await;
        let mut frames = Vec::new();
        match renewed {
            Ok(Some(Kept::Held { token, slot, deadline })) => {
                let hold = Hold { claim: *id, token, slot, deadline };
                self.holds(&mut frames, "kept", &hold);
                return Next::More(frames.into());
            }
            // Nobody knows. It asks again, as long as it may hold.
            Err(_) if self.deadline.is_some_and(|deadline| SystemClock.now() < deadline) => {
                self.renew_at = tokio::time::Instant::now() + RENEW_AGAIN.min(wanted.ttl / 6);
                return Next::More(COMMENT);
            }
            Ok(_) => self.lost(&mut frames, json!("the claim holds no more")),
            Err(problem) => self.lost(&mut frames, problem.brief()["detail"].clone()),
        }
        self.claiming.is_answered();
        self.releases = false;
        Next::Last(frames.into())
    }

    fn lost(&self, frames: &mut Vec<u8>, detail: Value) {
        let Claiming { app, id, wanted, .. } = &self.claiming;
        app.counting.told_lost();
        push(
            frames,
            "lost",
            &json!({"name": wanted.name.as_str(), "claim": id.to_string(), "detail": detail}),
        );
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.deadline.is_none() {
            // It waits: what it is made of lets go, and its place stays for a while.
            return;
        }
        self.claiming.is_answered();
        if self.releases {
            self.claiming.release();
        }
    }
}
