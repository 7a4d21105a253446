//! What a client does with a claim that it has: renew, release, publish. By the id and the name alone, through whatever instance it reaches.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use hyper::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_core::model::claim::Keep;
use tenure_core::{ClaimId, Kept, Name, ReleaseAnswer};

use crate::access::Caller;
use crate::access::rules::Verb;
use crate::answer::{Hold, empty, json, noted};
use crate::app::App;
use crate::body::{bytes, claim_id, query, read};
use crate::limits::RENEWALS_MAX;
use crate::problem::{INVALID, Problem};
use crate::routes::claims::renew_one;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameBody {
    name: String,
}

/// `POST /v1/claims/{claim}/renew`. A claim that has ended is never made again.
pub(crate) async fn renew(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let id = claim_id(&id)?;
    let name = Name::new(&read::<NameBody>(request).await?.name)?;
    caller.may(Verb::Claim, &name)?;
    comes_back(&app, &name, id)?;
    let Some(kept) = renew_one(&app, &name, id).await? else { return Err(Problem::lost(name.as_str())) };
    let (status, value) = shown(&app, &name, id, kept);
    let mut response = json(status, &value);
    if let Kept::Held { token, slot, deadline } = kept {
        Hold { claim: id, token, slot, deadline }.put_headers(response.headers_mut());
    }
    Ok(noted(response, &name, 0))
}

/// Whoever uses a claim has not gone away, whatever became of the connection on which it waited.
fn comes_back(app: &App, name: &Name, id: ClaimId) -> Result<(), Problem> {
    app.open_claims.comes_back(id).map_err(|_| Problem::lost(name.as_str()))
}

/// What was kept, and the status that says so.
fn shown(app: &App, name: &Name, claim: ClaimId, kept: Kept) -> (u16, Value) {
    match kept {
        Kept::Held { token, slot, deadline } => {
            (200, Hold { claim, token, slot, deadline }.value(app, "held", name))
        }
        kept => {
            let position = if let Kept::Waiting { position } = kept { Some(position) } else { None };
            let claim = claim.to_string();
            (202, json!({"state": "waiting", "name": name.as_str(), "claim": claim, "position": position}))
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RenewBody {
    claims: Vec<NamedClaim>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedClaim {
    name: String,
    claim: String,
}

/// `POST /v1/claims/renew`: an answer for each, in their order. One that fails does not fail the others.
pub(crate) async fn renew_many(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let asked = read::<RenewBody>(request).await?.claims;
    if asked.len() > RENEWALS_MAX {
        return Err(Problem::new(INVALID, format!("{} claims, and {RENEWALS_MAX} are allowed", asked.len())));
    }
    let checked: Vec<Result<(Name, ClaimId), Problem>> = asked
        .iter()
        .map(|asked| {
            let (name, id) = (Name::new(&asked.name)?, claim_id(&asked.claim)?);
            caller.may(Verb::Claim, &name)?;
            comes_back(&app, &name, id)?;
            Ok((name, id))
        })
        .collect();
    let good = checked.iter().flatten().cloned().collect();
    let renewed = async { Ok(app.tenure.detached().renew(good).await) };
    let mut answers = app.call(renewed).await?.into_iter();
    let shown = |(asked, checked): (&NamedClaim, Result<(Name, ClaimId), Problem>)| {
        let answer = checked.and_then(|(name, id)| {
            let kept = answers.next().unwrap_or(Ok(None));
            match app.health.heard(kept)? {
                Some(kept) => Ok(shown(&app, &name, id, kept).1),
                None => Err(Problem::lost(name.as_str())),
            }
        });
        answer.unwrap_or_else(|problem| {
            let is_lost = problem.kind.name == "lost";
            if is_lost {
                app.counting.told_lost();
            }
            let state = if is_lost { "lost" } else { "failed" };
            json!({"state": state, "name": asked.name, "claim": asked.claim, "problem": problem.brief()})
        })
    };
    let claims: Vec<Value> = asked.iter().zip(checked).map(shown).collect();
    Ok(json(200, &json!({"claims": claims})))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameQuery {
    name: String,
}

/// `DELETE /v1/claims/{claim}?name=`: ends a hold, or withdraws a claim that waits.
pub(crate) async fn release(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let id = claim_id(&id)?;
    let (parts, _) = request.into_parts();
    let name = Name::new(&query::<NameQuery>(&parts)?.name)?;
    caller.may(Verb::Claim, &name)?;
    // A request that still waits under it lets go first. One that is being withdrawn already is released as well.
    let _open = app.open_claims.enter(id).await.ok();
    let released = async {
        let mut answers = app.tenure.detached().release(vec![(name.clone(), id)]).await;
        answers.pop().unwrap_or(Ok(ReleaseAnswer::AlreadyLost))
    };
    let answer = app.call(released).await?;
    let response = json(200, &json!({"released": answer == ReleaseAnswer::Released}));
    Ok(noted(response, &name, 0))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ValueBody {
    name: String,
    value: Option<String>,
    value_base64: Option<String>,
    fresh_ms: Option<u64>,
    stale_ms: Option<u64>,
}

/// `PUT /v1/claims/{claim}/value`: what everybody can read of the resource, as long as it is held or for a while.
pub(crate) async fn publish(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let id = claim_id(&id)?;
    let body: ValueBody = read(request).await?;
    let name = Name::new(&body.name)?;
    caller.may(Verb::Claim, &name)?;
    let value = bytes(body.value, body.value_base64, "value")?;
    comes_back(&app, &name, id)?;
    let keep = match (body.fresh_ms, body.stale_ms) {
        (None, None) => Keep::WhileHeld,
        (fresh, stale) => {
            let period = |ms: Option<u64>| Duration::from_millis(ms.unwrap_or_default());
            Keep::For { fresh: checked(period(fresh))?, stale: checked(period(stale))? }
        }
    };
    let claims = app.tenure.detached();
    let published = claims.publish(name.clone(), id, value.into(), keep);
    match app.call(published).await? {
        true => Ok(noted(empty(), &name, 0)),
        false => Err(Problem::lost(name.as_str())),
    }
}

/// Refuses a period that no store counts.
fn checked(period: Duration) -> Result<Duration, Problem> {
    match period > tenure_core::model::claim::PERIOD_MAX {
        true => Err(Problem::new(INVALID, "a value is kept for ten years at most")),
        false => Ok(period),
    }
}
