//! What is held and waited for, who leads, and what operators do about it.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::model::inspect::{HoldView, View, WaiterView};
use tenure_core::model::step::BreakAnswer;
use tenure_core::{Name, Token};

use crate::access::Caller;
use crate::access::rules::Verb;
use crate::answer::{empty, json, noted};
use crate::app::App;
use crate::body::{query, read, shown};
use crate::holder::holder;
use crate::millis::millis;
use crate::problem::{NOT_FOUND, Problem};
use crate::routes::list::ListQuery;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameQuery {
    name: String,
}

/// `GET /v1/resource`: one, as the store has it now.
pub(crate) async fn resource(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let name = Name::new(&query::<NameQuery>(&parts)?.name)?;
    caller.may(Verb::Read, &name)?;
    match app.call(app.tenure.view(name.as_str())).await? {
        Some(view) => {
            let mut body = value(&view, &caller);
            if let Some(bytes) = &view.value {
                let (field, text) = shown(bytes, "value");
                body[field] = json!(text);
            }
            Ok(noted(json(200, &body), &name, 0))
        }
        None => Err(Problem::new(NOT_FOUND, "nobody holds it or waits for it").about(name.as_str())),
    }
}

/// A resource, in the fields of `tenure status --json`. The ids of claims are for operators: whoever has one can renew and release.
fn value(view: &View, caller: &Caller) -> Value {
    let shows_ids = caller.allows(Verb::Operate, &view.resource);
    let hold = |hold: &HoldView| {
        json!({
            "claim": hold.claim.filter(|_| shows_ids).map(|claim| claim.to_string()),
            "is_resting": hold.claim.is_none(),
            "holder": holder(&hold.label),
            "token": hold.token.get(),
            "slot": hold.slot,
            "weight": hold.weight,
            "held_ms": millis(hold.held_for),
            "ends_in_ms": millis(hold.ends_in),
        })
    };
    let waiter = |waiter: &WaiterView| {
        json!({
            "claim": shows_ids.then(|| waiter.claim.to_string()),
            "holder": holder(&waiter.label),
            "weight": waiter.weight,
        })
    };
    json!({
        "resource": view.resource.as_str(),
        "kind": view.kind.as_str(),
        "capacity": view.capacity,
        "used": view.used,
        "last_token": view.last_token.get(),
        "holds": view.holds.iter().map(hold).collect::<Vec<_>>(),
        "waiting": view.waiting,
        "waiters": view.waiters.iter().map(waiter).collect::<Vec<_>>(),
    })
}

/// `GET /v1/resources`: from a survey that many readers share; those that the caller may read.
pub(crate) async fn resources(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let asked: ListQuery = query(&parts)?;
    asked.check()?;
    caller.may_some(Verb::Read, &asked.prefix)?;
    let survey = app.call(app.surveyor.latest()).await?;
    let listed = asked.select(&survey.locks, |name| caller.allows(Verb::Read, name));
    let mut resources: Vec<Value> = listed.page.iter().map(|view| value(view, &caller)).collect();
    if asked.brief {
        resources.iter_mut().for_each(cut);
    }
    let body = json!({
        "resources": resources,
        "count": listed.count,
        "held": listed.held,
        "resting": listed.resting,
        "waiting": listed.waiting,
        "unreadable": listed.unreadable,
        "age_ms": millis(SystemClock.now().since(survey.at)),
        "is_whole": survey.is_whole,
    });
    Ok(json(200, &body))
}

/// Leaves the oldest hold, the number of all, and of the waiters their number.
fn cut(resource: &mut Value) {
    let Some(holds) = resource["holds"].as_array_mut() else { return };
    let count = holds.len();
    let age = |hold: &Value| (!hold["is_resting"].as_bool().unwrap_or_default(), hold["held_ms"].as_u64());
    let oldest = holds.iter().max_by_key(|hold| age(hold)).cloned();
    *holds = oldest.into_iter().collect();
    resource["hold_count"] = json!(count);
    resource["waiters"] = json!([]);
}

/// `GET /v1/leader`: who leads an election, and what was published.
pub(crate) async fn leader(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let name = Name::new(&query::<NameQuery>(&parts)?.name)?;
    caller.may(Verb::Read, &name)?;
    let Some(leader) = app.call(app.tenure.election(name.as_str()).leader()).await? else {
        return Err(Problem::new(NOT_FOUND, "nobody leads").about(name.as_str()));
    };
    let mut body =
        json!({"name": name.as_str(), "leader": holder(&leader.label), "token": leader.token.get()});
    if let Some(bytes) = &leader.value {
        let (field, text) = shown(bytes, "value");
        body[field] = json!(text);
    }
    Ok(noted(json(200, &body), &name, 0))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BreakBody {
    name: String,
    token: u64,
    #[serde(default)]
    now: bool,
}

/// `POST /v1/resource/break`: ends a hold. Its units rest until it would have ended, so that its work can stop; with `now` they are
/// free at once, and two may work.
pub(crate) async fn break_hold(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let body: BreakBody = read(request).await?;
    let name = Name::new(&body.name)?;
    caller.may(Verb::Operate, &name)?;
    let token = Token::new(body.token);
    let answer = app.call(app.tenure.break_hold(name.as_str(), token, body.now)).await;
    app.audit.tell(&caller, ("break", &name), &format!("token {token}, now {}", body.now), &answer);
    let (state, free_in) = match answer? {
        BreakAnswer::Broken { free_in } => ("broken", free_in),
        BreakAnswer::Resting { free_in } => ("resting", free_in),
        _ => {
            let detail = format!("no hold has the token {token}");
            return Err(Problem::new(NOT_FOUND, detail).about(name.as_str()));
        }
    };
    Ok(noted(json(200, &json!({"state": state, "free_in_ms": millis(free_in)})), &name, 0))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResizeBody {
    name: String,
    capacity: u32,
}

/// `POST /v1/resource/resize`: another capacity for a semaphore or a slot pool that is in use.
pub(crate) async fn resize(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let body: ResizeBody = read(request).await?;
    let name = Name::new(&body.name)?;
    caller.may(Verb::Operate, &name)?;
    let answer = app.call(app.tenure.resize(name.as_str(), body.capacity)).await;
    app.audit.tell(&caller, ("resize", &name), &format!("to {}", body.capacity), &answer);
    answer?;
    Ok(noted(empty(), &name, 0))
}

/// `GET /v1/doctor`: whether the store can be trusted. The look of the last seconds is shown to all who ask.
pub(crate) async fn doctor(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    caller.may_for_all(Verb::Operate)?;
    let findings = app.findings().await?;
    let findings: Vec<Value> = findings
        .iter()
        .map(|finding| {
            let severity = format!("{:?}", finding.severity).to_lowercase();
            json!({"severity": severity, "what": finding.what, "found": finding.found, "hint": finding.hint})
        })
        .collect();
    Ok(json(200, &json!({"findings": findings})))
}
