//! What is in queues, and what operators do about it.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_core::Name;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::queue::{ItemId, ItemState, ItemView};
use tenure_core::survey::SurveyedQueue;

use crate::access::Caller;
use crate::access::rules::Verb;
use crate::answer::{json, noted};
use crate::app::App;
use crate::body::{limited, query, read, shown};
use crate::holder::holder;
use crate::millis::millis;
use crate::problem::{INVALID, Problem};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueuesQuery {
    #[serde(default)]
    prefix: String,
    after: Option<String>,
    limit: Option<usize>,
}

/// `GET /v1/queues`: by name, from a survey that many readers share; those that the caller may read.
pub(crate) async fn queues(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let QueuesQuery { prefix, after, limit } = query(&parts)?;
    let limit = limited(limit)?;
    caller.may_some(Verb::Read, &prefix)?;
    let survey = app.call(app.surveyor.latest()).await?;
    let is_asked = |name: &Name| {
        name.as_str().starts_with(&prefix)
            && after.as_deref().is_none_or(|after| name.as_str() > after)
            && caller.allows(Verb::Read, name)
    };
    let queues: Vec<Value> =
        survey.queues.iter().filter(|queue| is_asked(&queue.name)).take(limit).map(listed).collect();
    let age = SystemClock.now().since(survey.at);
    Ok(json(200, &json!({"queues": queues, "age_ms": millis(age), "is_whole": survey.is_whole})))
}

fn listed(queue: &SurveyedQueue) -> Value {
    let name = queue.name.as_str();
    match &queue.stats {
        Ok(stats) => json!({
            "queue": name,
            "waiting": stats.waiting,
            "in_flight": stats.in_flight,
            "dead": stats.dead,
            "oldest_waiting_ms": queue.oldest_waiting.map(millis),
            "oldest_dead_ms": queue.oldest_dead.map(millis),
        }),
        Err(error) => json!({"queue": name, "problem": Problem::from(error.clone()).brief()}),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Which {
    #[default]
    Live,
    Dead,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ItemsQuery {
    queue: String,
    #[serde(default)]
    which: Which,
    after: Option<u64>,
    limit: Option<usize>,
    /// Whether the payloads are wanted of who may see them.
    payloads: Option<bool>,
}

/// `GET /v1/queue/items`: payloads only for who may see them.
pub(crate) async fn items(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let ItemsQuery { queue: name, which, after, limit, payloads } = query(&parts)?;
    let (name, limit) = (Name::new(&name)?, limited(limit)?);
    caller.may(Verb::Read, &name)?;
    let (queue, after) = (app.tenure.queue(name.as_str()), after.map(ItemId));
    let items = match which {
        Which::Live => app.call(queue.items(after, limit)).await?,
        Which::Dead => app.call(queue.dead_letters(after, limit)).await?,
    };
    let shows_payloads = payloads.unwrap_or(true) && caller.allows(Verb::Payload, &name);
    let items: Vec<Value> = items.iter().map(|item| value(item, shows_payloads)).collect();
    Ok(noted(json(200, &json!({"items": items})), &name, 0))
}

fn value(view: &ItemView, shows_payload: bool) -> Value {
    let mut value = json!({
        "item": view.item.0,
        "group": view.group.as_ref().map(Name::as_str),
        "attempts": view.attempts,
        "age_ms": millis(view.age),
        "context": view.context.as_ref().map(|context| context.as_str()),
        "bytes": view.payload.len(),
    });
    match &view.state {
        ItemState::Waiting { ready_in } => {
            value["state"] = json!("waiting");
            value["ready_in_ms"] = json!(millis(*ready_in));
        }
        ItemState::Behind => value["state"] = json!("behind"),
        ItemState::InFlight { label, ends_in } => {
            value["state"] = json!("in_flight");
            value["holder"] = holder(label);
            value["ends_in_ms"] = json!(millis(*ends_in));
        }
        ItemState::Dead { reason, since } => {
            value["state"] = json!("dead");
            value["reason"] = json!(reason);
            value["dead_ms"] = json!(millis(*since));
        }
    }
    if shows_payload {
        let (field, payload) = shown(&view.payload, "payload");
        value[field] = json!(payload);
    }
    value
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OperateBody {
    queue: String,
    item: Option<u64>,
    #[serde(default)]
    all: bool,
    which: Option<Which>,
}

impl OperateBody {
    /// One, or all of them, which must be said: nobody removes everything by leaving a field out.
    fn item(&self) -> Result<Option<ItemId>, Problem> {
        match (self.item, self.all) {
            (Some(item), false) => Ok(Some(ItemId(item))),
            (None, true) => Ok(None),
            _ => Err(Problem::new(INVALID, "give either `item` or `\"all\": true`")),
        }
    }
}

/// `POST /v1/queue/replay`: dead letters go back into the line.
pub(crate) async fn replay(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let body: OperateBody = read(request).await?;
    let name = Name::new(&body.queue)?;
    caller.may(Verb::Operate, &name)?;
    if body.which.is_some() {
        return Err(Problem::new(INVALID, "`which` means nothing here: only dead letters are replayed"));
    }
    let (queue, item) = (app.tenure.queue(name.as_str()), body.item()?);
    let count = app.call(queue.replay(item)).await;
    app.audit.tell(&caller, ("replay", &name), &meant(item), &count);
    Ok(noted(json(200, &json!({"count": count?})), &name, 0))
}

/// `POST /v1/queue/purge`: items, or dead letters, are removed for good.
pub(crate) async fn purge(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let body: OperateBody = read(request).await?;
    let name = Name::new(&body.queue)?;
    caller.may(Verb::Operate, &name)?;
    let (queue, item) = (app.tenure.queue(name.as_str()), body.item()?);
    let (count, act) = match body.which {
        Some(Which::Live) => (app.call(queue.purge(item)).await, "purge"),
        Some(Which::Dead) => (app.call(queue.purge_dead(item)).await, "purge of dead letters"),
        None => return Err(Problem::new(INVALID, "say `which`: \"live\" or \"dead\"")),
    };
    app.audit.tell(&caller, (act, &name), &meant(item), &count);
    Ok(noted(json(200, &json!({"count": count?})), &name, 0))
}

fn meant(item: Option<ItemId>) -> String {
    item.map_or_else(|| "all".to_owned(), |item| format!("item {item}"))
}
