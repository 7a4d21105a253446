//! Queues: push, take, settle. What is taken is the client's for a ttl, by the id of its claim, through whatever instance it reaches.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use futures_util::future::join_all;
use hyper::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_core::engine::queue::SettleAnswer;
use tenure_core::{ClaimId, Delivery, Name, Queue};
use tokio::time::Instant;

use crate::access::Caller;
use crate::access::rules::Verb;
use crate::answer::{empty, json, noted};
use crate::app::App;
use crate::body::{bytes, claim_id, read, shown};
use crate::drain::Stage;
use crate::limits::{POLL_DEFAULT, POLL_MAX, PUSHES_MAX, RETRY_DEFAULT, TAKES_MAX};
use crate::millis::{left, millis};
use crate::problem::{INVALID, NOT_FOUND, Problem};

fn invalid<T>(detail: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::new(INVALID, detail))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PushBody {
    queue: String,
    items: Vec<ItemBody>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ItemBody {
    payload: Option<String>,
    payload_base64: Option<String>,
    group: Option<String>,
    #[serde(default)]
    delay_ms: u64,
    dedup: Option<String>,
    context: Option<String>,
}

/// `POST /v1/queue/push`: an answer for each item, in their order. Nothing is pushed of a request in which one is not understood.
pub(crate) async fn push(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let PushBody { queue: name, items } = read(request).await?;
    let name = Name::new(&name)?;
    caller.may(Verb::Push, &name)?;
    if items.is_empty() || items.len() > PUSHES_MAX {
        return invalid(format!("{} items, and 1 to {PUSHES_MAX} are allowed", items.len()));
    }
    let queue = app.tenure.queue(name.as_str());
    // In their order: each joins the line of calls when it is polled first.
    let pushes: Vec<_> = items.into_iter().map(|item| item.push(&queue)).collect::<Result<_, _>>()?;
    let pushed =
        app.call(async { Ok(join_all(pushes.into_iter().map(IntoFuture::into_future)).await) }).await?;
    let mut answers: Vec<Value> = Vec::with_capacity(pushed.len());
    let mut failed: Option<Problem> = None;
    for answer in pushed {
        answers.push(match app.health.heard(answer) {
            Ok(pushed) => json!({"item": pushed.item.0, "is_duplicate": pushed.is_duplicate}),
            Err(error) => {
                let problem = Problem::from(error);
                let brief = problem.brief();
                failed.get_or_insert(problem);
                json!({"problem": brief})
            }
        });
    }
    let has_pushed = answers.iter().any(|answer| answer.get("item").is_some());
    match failed {
        Some(problem) if !has_pushed => Err(problem),
        // Whoever repeats it all would push again what is in line.
        _ => Ok(noted(json(200, &answers), &name, 0)),
    }
}

impl ItemBody {
    fn push(self, queue: &Queue) -> Result<tenure_core::Push, Problem> {
        let payload = bytes(self.payload, self.payload_base64, "payload")?;
        let mut push = queue.push(payload).delay(Duration::from_millis(self.delay_ms));
        if let Some(group) = &self.group {
            push = push.group(group);
        }
        if let Some(id) = &self.dedup {
            push = push.dedup(id);
        }
        if let Some(context) = &self.context {
            push = push.context(context);
        }
        Ok(push)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TakeBody {
    queue: String,
    max: Option<usize>,
    poll_ms: Option<u64>,
    ttl_ms: Option<u64>,
    interval_ms: Option<u64>,
    #[serde(default)]
    interval_of: IntervalOf,
    attempts_max: Option<u32>,
}

/// What rests between two items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum IntervalOf {
    #[default]
    Queue,
    Group,
}

impl TakeBody {
    fn queue(&self, app: &App, caller: &Caller, name: &Name) -> Result<Queue, Problem> {
        let mut queue = app.tenure.queue(name.as_str());
        if let Some(ttl) = self.ttl_ms {
            queue = queue.ttl(Duration::from_millis(ttl));
        }
        match (self.interval_ms.map(Duration::from_millis), self.interval_of) {
            (Some(interval), IntervalOf::Queue) => queue = queue.interval(interval),
            (Some(interval), IntervalOf::Group) => queue = queue.group_interval(interval),
            (None, IntervalOf::Group) => return invalid("`interval_of` says nothing without `interval_ms`"),
            (None, IntervalOf::Queue) => {}
        }
        if let Some(attempts) = self.attempts_max {
            queue = queue.max_attempts(attempts);
        }
        Ok(queue.label(caller.name().unwrap_or_default()))
    }
}

/// `POST /v1/queue/take`: waits for an item, and takes what else is ready with it.
///
/// What is on its way to a client that goes away is put back, and its attempt does not count. If the answer itself is lost, the
/// item comes again after its ttl.
pub(crate) async fn take(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let body: TakeBody = read(request).await?;
    let name = Name::new(&body.queue)?;
    caller.may(Verb::Take, &name)?;
    let most = body.max.unwrap_or(1);
    if !(1..=TAKES_MAX).contains(&most) {
        return invalid(format!("`max` is 1 to {TAKES_MAX}"));
    }
    let poll = body.poll_ms.map_or(POLL_DEFAULT, Duration::from_millis);
    if poll > POLL_MAX {
        return invalid(format!("`poll_ms` is at most {}", POLL_MAX.as_millis()));
    }
    let queue = body.queue(&app, &caller, &name)?;
    let began = Instant::now();
    let first = if poll.is_zero() {
        app.call(queue.try_next()).await?
    } else {
        let _place = app.waiting.enter(&caller)?;
        tokio::select! {
            biased;
            taken = queue.next_within(poll) => app.health.heard(taken)?,
            problem = caller.revoked(Verb::Take, &name) => return Err(problem),
            () = app.drain.reached(Stage::Leaving) => None,
        }
    };
    let waited_ms = if poll.is_zero() { 0 } else { millis(began.elapsed()) };
    let mut deliveries: Vec<Delivery> = first.into_iter().collect();
    if !deliveries.is_empty() && most > 1 {
        // They share a round trip. What fails now is not the failure of what is here.
        let more = join_all((1..most).map(|_| queue.try_next()));
        let more = app.call(async { Ok(more.await) }).await.unwrap_or_default();
        deliveries.extend(more.into_iter().filter_map(|taken| app.health.heard(taken).ok().flatten()));
    }
    let items: Vec<Value> = deliveries.into_iter().filter_map(handed_over).collect();
    if items.is_empty() {
        return Ok(noted(empty(), &name, waited_ms));
    }
    Ok(noted(json(200, &items), &name, waited_ms))
}

/// A delivery as its client has it, who renews and settles it from now on. `None`: it was lost on its way here.
fn handed_over(delivery: Delivery) -> Option<Value> {
    let (expires_in_ms, renew_in_ms) = left(delivery.lease().deadline());
    let (field, payload) = shown(delivery.payload(), "payload");
    let mut value = json!({
        "claim": delivery.claim().to_string(),
        "item": delivery.item().0,
        "group": delivery.group(),
        "attempt": delivery.attempt(),
        "token": delivery.token().get(),
        "context": delivery.context(),
        "age_ms": millis(delivery.age()),
        "retry_in_ms": millis(delivery.retry_delay()),
        "expires_in_ms": expires_in_ms,
        "renew_in_ms": renew_in_ms,
    });
    value[field] = json!(payload);
    delivery.detach().ok().map(|_| value)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleBody {
    queue: String,
    after_ms: Option<u64>,
    reason: Option<String>,
    attempts_max: Option<u32>,
}

/// What is done with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Renew,
    Ack,
    Retry,
    Fail,
    Return,
}

impl Act {
    fn parse(text: &str) -> Result<Act, Problem> {
        Ok(match text {
            "renew" => Act::Renew,
            "ack" => Act::Ack,
            "retry" => Act::Retry,
            "fail" => Act::Fail,
            "return" => Act::Return,
            _ => {
                let hint = "a delivery is renewed or settled: renew, ack, retry, fail, return";
                return Err(Problem::new(NOT_FOUND, "there is no such path").with_hint(hint));
            }
        })
    }

    /// Refuses fields that mean nothing here: one who sends them believes that they do.
    fn check(self, body: &SettleBody) -> Result<(), Problem> {
        let is_retry = self == Act::Retry;
        let given = [
            ("after_ms", body.after_ms.is_some(), is_retry),
            ("attempts_max", body.attempts_max.is_some(), is_retry),
            ("reason", body.reason.is_some(), is_retry || self == Act::Fail),
        ];
        match given.iter().find(|(_, is_given, is_known)| *is_given && !is_known) {
            Some((field, ..)) => invalid(format!("`{field}` means nothing here")),
            None => Ok(()),
        }
    }
}

/// `POST /v1/deliveries/{claim}/{act}`.
pub(crate) async fn settle(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path((id, act)): Path<(String, String)>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (id, act) = (claim_id(&id)?, Act::parse(&act)?);
    let body: SettleBody = read(request).await?;
    let name = Name::new(&body.queue)?;
    caller.may(Verb::Take, &name)?;
    act.check(&body)?;
    let queue = app.tenure.queue(name.as_str());
    if act == Act::Renew {
        return renew(&app, &queue, &name, id).await;
    }
    let deliveries = queue.max_attempts(body.attempts_max.unwrap_or_default()).detached();
    let reason = body.reason.as_deref().unwrap_or_default();
    let settled = async {
        let mut answers = match act {
            Act::Ack | Act::Renew => deliveries.ack(vec![id]).await,
            Act::Retry => {
                let after = body.after_ms.map_or(RETRY_DEFAULT, Duration::from_millis);
                deliveries.retry(vec![id], after, reason).await
            }
            Act::Fail => deliveries.fail(vec![id], reason).await,
            Act::Return => deliveries.put_back(vec![id]).await,
        };
        answers.pop().unwrap_or(Ok(SettleAnswer::Lost))
    };
    let state = match app.call(settled).await? {
        SettleAnswer::Settled => "settled",
        SettleAnswer::Buried => "buried",
        _ => return Err(Problem::lost(name.as_str())),
    };
    Ok(noted(json(200, &json!({"state": state})), &name, 0))
}

async fn renew(app: &App, queue: &Queue, name: &Name, id: ClaimId) -> Result<Response, Problem> {
    let renewed = async {
        let mut answers = queue.detached().renew(vec![id]).await;
        answers.pop().unwrap_or(Ok(None))
    };
    let Some(deadline) = app.call(renewed).await? else { return Err(Problem::lost(name.as_str())) };
    let (expires_in_ms, renew_in_ms) = left(deadline);
    let value = json!({"state": "held", "expires_in_ms": expires_in_ms, "renew_in_ms": renew_in_ms});
    Ok(noted(json(200, &value), name, 0))
}
