//! What this instance does, for operators: how near it is to its limits, who uses it, what operators did.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use tenure_core::clock::{Clock, SystemClock};

use crate::access::Caller;
use crate::access::rules::Verb;
use crate::answer::json;
use crate::app::App;
use crate::millis::millis;
use crate::problem::Problem;

/// `GET /v1/server`: this instance, and not the others.
pub(crate) async fn server(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    caller.may_for_all(Verb::Operate)?;
    let (connections, connections_max) = app.places.used();
    let (waiting, waiting_max) = app.waiting.used();
    let (streams, streams_max) = app.streams.used();
    let body = json!({
        "up_ms": millis(SystemClock.now().since(app.began)),
        "limits": [
            {"what": "connections", "used": connections, "most": connections_max},
            {"what": "requests that wait", "used": waiting, "most": waiting_max},
            {"what": "streams of events", "used": streams, "most": streams_max},
        ],
        "requests": requests(&app),
        "lost": app.counting.lost(),
        "tokens": tokens(&app),
        "acts": app.audit.last(),
    });
    Ok(json(200, &body))
}

/// How many answers had each status, since this instance began.
fn requests(app: &App) -> Vec<Value> {
    let statuses = app.counting.statuses();
    statuses.iter().map(|(status, count)| json!({"status": status, "count": count})).collect()
}

/// The entries of the file of tokens, by name, with their last use: without their hashes.
fn tokens(app: &App) -> Vec<Value> {
    let (table, uses) = app.access.table();
    let mut entries: Vec<_> = table.entries().collect();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let shown = entries.into_iter().map(|entry| {
        let used = uses.of(&entry.name);
        json!({
            "name": entry.name,
            "allow": entry.rules.lines(),
            "expires_in_ms": entry.expires.map(|expires| millis(expires.since(SystemClock.time_of_day()))),
            "used_ago_ms": used.map(|used| millis(used.last.elapsed())),
            "requests": used.map_or(0, |used| used.requests),
            "waiting": app.waiting.of_token(&entry.name),
        })
    });
    shown.collect()
}
