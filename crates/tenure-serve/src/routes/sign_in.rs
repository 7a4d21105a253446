//! Signing in to the dashboard: the token once, for a cookie.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::Request;
use hyper::header::{HeaderValue, SET_COOKIE};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::access::cookie::Way;
use crate::access::rules::Rules;
use crate::access::{Caller, Peer};
use crate::answer::{empty, json};
use crate::app::App;
use crate::body::read;
use crate::problem::{INTERNAL, Problem};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignInBody {
    token: String,
}

/// `POST /v1/sign-in`: a cookie for a token.
pub(crate) async fn sign_in(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let headers = request.headers().clone();
    let SignInBody { token } = read(request).await?;
    if app.access.is_open() {
        return Ok(json(200, &shown(&app, None)));
    }
    let (cookie, caller) = app.access.sign_in(token.trim(), &headers, &peer)?;
    let mut response = json(200, &shown(&app, Some(&caller)));
    set(&mut response, &cookie)?;
    Ok(response)
}

/// `DELETE /v1/sign-in`: the browser forgets the cookie.
pub(crate) async fn sign_out(
    Extension(peer): Extension<Peer>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let mut response = empty();
    if let Some(way) = Way::of(request.headers(), peer.is_tls) {
        set(&mut response, &way.set(None))?;
    }
    Ok(response)
}

/// `GET /v1/sign-in`: who somebody is, and may do what.
pub(crate) async fn who(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    json(200, &shown(&app, Some(&caller)))
}

fn shown(app: &App, caller: Option<&Caller>) -> Value {
    json!({
        "name": caller.and_then(Caller::name),
        // Without tokens everybody may do everything.
        "allow": caller.and_then(Caller::rules).map(Rules::lines),
        "is_read_only": app.access.is_read_only(),
        "engine": app.tenure.engine(),
        "version": env!("CARGO_PKG_VERSION"),
    })
}

fn set(response: &mut Response, cookie: &str) -> Result<(), Problem> {
    let value = HeaderValue::from_str(cookie);
    let value = value.map_err(|_| Problem::new(INTERNAL, "the cookie is no header"))?;
    response.headers_mut().insert(SET_COOKIE, value);
    Ok(())
}
