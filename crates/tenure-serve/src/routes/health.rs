//! `/healthz` and `/readyz`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::answer::json;
use crate::app::App;
use crate::drain::Stage;

/// The resource that is looked at where nobody has asked the store anything of late. Nobody needs to hold it.
const LOOKED_AT: &str = "tenure/readyz";

/// Whether this process turns.
pub(crate) async fn healthz(State(app): State<Arc<App>>) -> Response {
    match &app.health.standing()[..] {
        [] => json(200, &json!({"state": "turning"})),
        why => json(503, &json!({"state": "standing", "why": why})),
    }
}

/// Whether requests should be sent here.
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response {
    let mut why: Vec<String> = Vec::new();
    if app.drain.stage() > Stage::Serving {
        why.push("it is about to end".to_owned());
    } else if !app.health.has_store()
        && let Err(problem) = app.call(app.tenure.view(LOOKED_AT)).await
    {
        why.push(problem.brief()["detail"].as_str().unwrap_or_default().to_owned());
    }
    let state = if why.is_empty() { "ready" } else { "not ready" };
    let mut body = json!({"state": state, "engine": app.tenure.engine()});
    if !why.is_empty() {
        body["why"] = json!(why);
    }
    if let Some(wrong) = app.health.wrong_tokens() {
        // It goes on with the tokens it has.
        body["tokens"] = Value::String(wrong);
    }
    json(if why.is_empty() { 200 } else { 503 }, &body)
}
