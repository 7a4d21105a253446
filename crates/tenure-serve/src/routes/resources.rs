//! What is held and waited for, who leads, and what operators do about it.

use std::sync::Arc;
use std::time::Duration;

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
use crate::audit::audit;
use crate::body::{limited, query, read, shown};
use crate::holder::holder;
use crate::millis::millis;
use crate::problem::{INVALID, NOT_FOUND, Problem};

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
        Some(view) => Ok(noted(json(200, &value(&view, &caller)), &name, 0)),
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

/// By what a list is ordered: what is unusual first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Sort {
    #[default]
    Name,
    Held,
    Waiting,
    Ends,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourcesQuery {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    sort: Sort,
    held_longer_ms: Option<u64>,
    after: Option<String>,
    limit: Option<usize>,
}

/// How long the longest of its holds has been held; what rests is held by nobody.
fn held_for(view: &View) -> Option<Duration> {
    view.holds.iter().filter(|hold| hold.claim.is_some()).map(|hold| hold.held_for).max()
}

fn ends_in(view: &View) -> Duration {
    view.holds.iter().map(|hold| hold.ends_in).min().unwrap_or(Duration::MAX)
}

fn order(sort: Sort, views: &mut [&View]) {
    match sort {
        // As the survey has them.
        Sort::Name => {}
        Sort::Held => views.sort_by_key(|view| std::cmp::Reverse(held_for(view))),
        Sort::Waiting => views.sort_by_key(|view| std::cmp::Reverse(view.waiting)),
        Sort::Ends => views.sort_by_key(|view| ends_in(view)),
    }
}

/// `GET /v1/resources`: from a survey that many readers share; those that the caller may read.
pub(crate) async fn resources(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let ResourcesQuery { prefix, sort, held_longer_ms, after, limit } = query(&parts)?;
    let limit = limited(limit)?;
    if after.is_some() && sort != Sort::Name {
        return Err(Problem::new(INVALID, "`after` is for lists by name"));
    }
    caller.may_some(Verb::Read, &prefix)?;
    let survey = app.call(app.surveyor.latest()).await?;
    let is_asked = |name: &Name| {
        name.as_str().starts_with(&prefix)
            && after.as_deref().is_none_or(|after| name.as_str() > after)
            && caller.allows(Verb::Read, name)
    };
    let asked = survey.locks.iter().filter(|(name, _)| is_asked(name));
    let unreadable: Vec<&str> =
        asked.clone().filter(|(_, view)| view.is_err()).map(|(name, _)| name.as_str()).take(limit).collect();
    let is_long = |view: &&View| {
        held_longer_ms.is_none_or(|ms| held_for(view).is_some_and(|held| held > Duration::from_millis(ms)))
    };
    let mut views: Vec<&View> = asked.filter_map(|(_, view)| view.as_ref().ok()).filter(is_long).collect();
    order(sort, &mut views);
    let resources: Vec<Value> = views.iter().take(limit).map(|view| value(view, &caller)).collect();
    let age = millis(SystemClock.now().since(survey.at));
    let body = json!({
        "resources": resources,
        "count": views.len(),
        "unreadable": unreadable,
        "age_ms": age,
        "is_whole": survey.is_whole,
    });
    Ok(json(200, &body))
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
    audit(&caller, "break", &name, &format!("token {token}, now {}", body.now), answer.is_ok());
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
    audit(&caller, "resize", &name, &format!("to {}", body.capacity), answer.is_ok());
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

#[cfg(test)]
mod tests {
    use tenure_core::model::claim::Kind;
    use tenure_core::{ClaimId, Label};

    use super::*;

    fn view(name: &str, waiting: u32, holds: &[(u64, u64, bool)]) -> View {
        let mut view = View::new(Name::new(name).expect("a name"), Kind::Mutex, 1);
        view.waiting = waiting;
        view.holds = holds
            .iter()
            .map(|&(held, ends, rests)| {
                let mut hold = HoldView::new(Token::new(1), Label::new("h", 1, "p", ""), 1);
                hold.claim = (!rests).then_some(ClaimId::new(1));
                (hold.held_for, hold.ends_in) = (Duration::from_secs(held), Duration::from_secs(ends));
                hold
            })
            .collect();
        view
    }

    #[test]
    fn what_is_unusual_is_first() {
        let views =
            [view("a", 3, &[(1, 9, false)]), view("b", 9, &[(5, 2, false)]), view("c", 0, &[(99, 5, true)])];
        let sorted = |sort| {
            let mut views: Vec<&View> = views.iter().collect();
            order(sort, &mut views);
            views.iter().map(|view| view.resource.as_str()).collect::<String>()
        };
        // What rests is held by nobody, however long ago it was granted.
        let orders = [Sort::Name, Sort::Held, Sort::Waiting, Sort::Ends].map(sorted);
        assert_eq!(orders, ["abc", "bac", "bac", "bca"]);
    }
}
