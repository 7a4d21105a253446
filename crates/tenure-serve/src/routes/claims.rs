//! `PUT /v1/claims/{claim}`: claims, waits, and comes again.
//!
//! The client makes the id and repeats the same request until the answer is final. So no answer is kept here: the store knows what became of
//! an id. What is answered is true when it is answered: a grant that was handed over is confirmed before, since a client that gets it late
//! must not believe in a hold that the store has passed on.

mod stream;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use hyper::Request;
use serde_json::json;
use tenure_core::model::step::waiter_life;
use tenure_core::{ClaimId, ErrorKind, Kept, Lease, LoadTurn, Name};
use tokio::time::Instant;

use crate::access::rules::Verb;
use crate::access::{Caller, Peer};
use crate::answer::{Hold, json, noted};
use crate::app::App;
use crate::body::{claim_id, read, shown};
use crate::drain::Stage;
use crate::millis::millis;
use crate::open_claims::OpenClaim;
use crate::pause::pause;
use crate::problem::{INVALID, Problem};
use crate::routes::claims::stream::Mode;
use crate::routes::wanted::{Asking, ClaimBody, Wanted};

/// How a request ended that waited.
enum Ended {
    Decided(tenure_core::Result<LoadTurn>),
    /// Its time is over, or the server's.
    Over,
    /// Another request has the claim.
    Superseded,
    Revoked(Problem),
}

pub(crate) async fn claim(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let began = Instant::now();
    let id = claim_id(&id)?;
    let (parts, body) = request.into_parts();
    let (mode, peer) = (Mode::of(&parts)?, parts.extensions.get::<Peer>().cloned().unwrap_or_default());
    let wanted = read::<ClaimBody>(Request::from_parts(parts, body)).await?.check()?;
    caller.may(Verb::Claim, &wanted.name)?;
    if mode.is_stream && wanted.is_unless_fresh() {
        return Err(Problem::new(INVALID, "`unless_fresh` is not for streams"));
    }
    let place = match wanted.poll {
        _ if mode.is_stream => Some(app.streams.enter(&caller)?),
        Some(_) => Some(app.waiting.enter(&caller)?),
        None => None,
    };
    let open = app.open_claims.enter(id).await;
    let open = open.map_err(|_| Problem::finished(wanted.name.as_str()))?;
    let mut request = Claiming {
        asking: Some(wanted.ask(&app.tenure, id, app.label(&caller, &wanted.label))),
        open: Some(open),
        app,
        wanted,
        id,
    };
    let first = request.first_answer().await;
    let name = request.wanted.name.clone();
    if mode.is_stream
        && let Some(place) = place
    {
        // Larger than all else here: who waits without a stream does not pay for that.
        let answered = Box::pin(stream::begin(request, first, (caller, place), (mode, peer))).await;
        return answered.map(|response| noted(response, &name, 0));
    }
    let (ended, was_queued) = match first {
        Some(decided) => (Ended::Decided(decided), false),
        None => (request.wait(&caller).await, true),
    };
    let waited_ms = if was_queued { millis(began.elapsed()) } else { 0 };
    let answered = Box::pin(request.answer(ended, waited_ms)).await;
    request.is_answered();
    match answered {
        Ok(response) => Ok(noted(response, &name, waited_ms)),
        Err(problem) => Err(problem.after(waited_ms)),
    }
}

/// A claim under way. Dropped before its answer, its client has gone away.
struct Claiming {
    app: Arc<App>,
    wanted: Wanted,
    id: ClaimId,
    asking: Option<Asking>,
    open: Option<OpenClaim>,
}

impl Claiming {
    /// Waits for what the store says first, which comes within the answer timeout. `None`: the claim is in the queue.
    async fn first_answer(&mut self) -> Option<tenure_core::Result<LoadTurn>> {
        self.asking.as_mut()?.answered().await
    }

    /// Waits in the queue.
    async fn wait(&mut self, caller: &Caller) -> Ended {
        let (Some(asking), Some(open)) = (&mut self.asking, &mut self.open) else { return Ended::Over };
        let poll = self.wanted.poll.unwrap_or_default();
        tokio::select! {
            biased;
            decided = asking.decided() => Ended::Decided(decided),
            () = open.superseded() => Ended::Superseded,
            problem = caller.revoked(Verb::Claim, &self.wanted.name) => Ended::Revoked(problem),
            () = self.app.drain.reached(Stage::Leaving) => Ended::Over,
            () = pause(poll) => Ended::Over,
        }
    }

    async fn answer(&mut self, ended: Ended, waited_ms: u64) -> Result<Response, Problem> {
        match ended {
            Ended::Decided(decided) => {
                self.asking = None;
                let decided = match self.app.health.heard(decided) {
                    Err(error) if error.kind() == ErrorKind::Finished => return self.finished().await,
                    decided => decided?,
                };
                match decided {
                    LoadTurn::Load(lease) => Ok(self.held(&self.confirmed(lease).await?, waited_ms)),
                    LoadTurn::Fresh(value) => Ok(self.fresh(&value)),
                }
            }
            Ended::Over => {
                self.let_go();
                self.come_again(waited_ms).await
            }
            Ended::Superseded => {
                self.let_go();
                Ok(self.waiting(None))
            }
            Ended::Revoked(problem) => {
                self.let_go();
                Err(problem)
            }
        }
    }

    /// Leaves the claim where it is, in the store.
    fn let_go(&mut self) {
        self.asking.take().and_then(Asking::detach);
    }

    /// What a decision has granted, where nothing but a grant is asked for.
    async fn hold_of(&self, decided: tenure_core::Result<LoadTurn>) -> Result<Hold, Problem> {
        match self.app.health.heard(decided)? {
            LoadTurn::Load(lease) => self.confirmed(lease).await,
            LoadTurn::Fresh(_) => Err(Problem::finished(self.wanted.name.as_str())),
        }
    }

    /// A grant that its client may believe in, and renews from now on.
    async fn confirmed(&self, lease: Lease) -> Result<Hold, Problem> {
        let is_confirmed = lease.is_confirmed();
        let (token, slot, deadline) = (lease.token(), lease.slot(), lease.deadline());
        // Its client renews it from now on.
        lease.detach()?;
        if is_confirmed {
            return Ok(Hold { claim: self.id, token, slot, deadline });
        }
        match self.kept().await? {
            Some(Kept::Held { token, slot, deadline }) => Ok(Hold { claim: self.id, token, slot, deadline }),
            _ => Err(Problem::finished(self.wanted.name.as_str())),
        }
    }

    /// A value that was published has ended the claims that waited for it: they are answered by it.
    async fn finished(&self) -> Result<Response, Problem> {
        let Some(look) = self.wanted.look(&self.app.tenure) else {
            return Err(Problem::finished(self.wanted.name.as_str()));
        };
        match self.app.call(look).await {
            Ok(LoadTurn::Fresh(value)) => Ok(self.fresh(&value)),
            // What the look was granted goes back: it is not under the id of the client.
            _ => Err(Problem::finished(self.wanted.name.as_str())),
        }
    }

    /// Tells its client to ask again, and until when it has its place; or that it was granted at the last moment.
    async fn come_again(&self, waited_ms: u64) -> Result<Response, Problem> {
        match self.kept().await? {
            Some(Kept::Held { token, slot, deadline }) => {
                Ok(self.held(&Hold { claim: self.id, token, slot, deadline }, waited_ms))
            }
            Some(Kept::Waiting { position }) => Ok(self.waiting(Some(position))),
            _ => self.finished().await,
        }
    }

    /// Has the store hear of the claim once more.
    async fn kept(&self) -> Result<Option<Kept>, Problem> {
        renew_one(&self.app, &self.wanted.name, self.id).await
    }

    fn held(&self, hold: &Hold, waited_ms: u64) -> Response {
        let mut value = hold.value(&self.app, "granted", &self.wanted.name);
        value["waited_ms"] = json!(waited_ms);
        let mut response = json(200, &value);
        hold.put_headers(response.headers_mut());
        response
    }

    fn waiting(&self, position: Option<u32>) -> Response {
        let kept = waiter_life(self.wanted.ttl);
        json(
            202,
            &json!({
                "state": "waiting",
                "name": self.wanted.name.as_str(),
                "claim": self.id.to_string(),
                "position": position,
                "place_kept_ms": millis(kept),
                "repeat_in_ms": 0,
            }),
        )
    }

    fn fresh(&self, value: &tenure_core::model::claim::Published) -> Response {
        let (field, text) = shown(&value.bytes, "value");
        let mut body = json!({
            "state": "fresh",
            "name": self.wanted.name.as_str(),
            "claim": self.id.to_string(),
            "token": value.token.get(),
            "fresh_ms": millis(value.fresh_for),
        });
        body[field] = json!(text);
        json(200, &body)
    }

    /// Ends the claim, in the background.
    fn release(&self) {
        let (tenure, name, id) = (self.app.tenure.clone(), self.wanted.name.clone(), self.id);
        self.app.pages.runtime.spawn(async move {
            for answer in tenure.detached().release(vec![(name, id)]).await {
                if let Err(error) = answer {
                    tracing::debug!(%error, claim = %id, "what a client has left ends at its ttl");
                }
            }
        });
    }

    /// Nothing is left to do when this is dropped.
    fn is_answered(&mut self) {
        self.open = None;
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        self.let_go();
        open.linger(&self.app.tenure, self.wanted.name.clone(), self.wanted.linger);
    }
}

/// Renews one claim by its id.
pub(crate) async fn renew_one(app: &App, name: &Name, id: ClaimId) -> Result<Option<Kept>, Problem> {
    let renewed = async {
        let mut answers = app.tenure.detached().renew(vec![(name.clone(), id)]).await;
        answers.pop().unwrap_or(Ok(None))
    };
    app.call(renewed).await
}
