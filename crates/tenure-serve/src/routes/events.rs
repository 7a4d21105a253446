//! `GET /v1/events`: what happens to a lock, or to all whose names begin with a prefix.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::Request;
use serde::Deserialize;
use tenure_core::Name;

use crate::access::rules::Verb;
use crate::access::{Caller, Peer};
use crate::answer::noted;
use crate::app::App;
use crate::body::query;
use crate::events::stream::{Followed, follow};
use crate::limits::STALL_MAX;
use crate::problem::{INVALID, Problem};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    name: Option<String>,
    prefix: Option<String>,
}

pub(crate) async fn events(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    if let Some(peer) = parts.extensions.get::<Peer>() {
        peer.pace.give_up_after(STALL_MAX);
    }
    match query::<EventsQuery>(&parts)? {
        EventsQuery { name: Some(name), prefix: None } => {
            let name = Name::new(&name)?;
            caller.may(Verb::Read, &name)?;
            let place = app.streams.enter(&caller)?;
            let followed = Followed::Name(app.events.names.follow(&name));
            Ok(noted(follow(&app, caller, place, followed), &name, 0))
        }
        EventsQuery { name: None, prefix: Some(prefix) } => {
            caller.may_some(Verb::Read, &prefix)?;
            let place = app.streams.enter(&caller)?;
            let followed = Followed::Prefix(app.events.surveys.follow(&prefix, &caller));
            Ok(follow(&app, caller, place, followed))
        }
        _ => Err(Problem::new(INVALID, "give either `name` or `prefix`")),
    }
}
