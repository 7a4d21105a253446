//! Answers as JSON.

use axum::body::Body;
use axum::response::Response;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use tenure_core::engine::Adopts;
use tenure_core::{ClaimId, Name, Token};

use crate::app::App;
use crate::millis::left;

/// The headers that `tenure-tower` checks.
const TOKEN: HeaderName = HeaderName::from_static("tenure-token");
const CLAIM: HeaderName = HeaderName::from_static("tenure-claim");

/// Makes a response of JSON, with an end of line for who reads it with curl.
pub(crate) fn json(status: u16, value: &impl Serialize) -> Response {
    let mut text = serde_json::to_string(value).unwrap_or_default();
    text.push('\n');
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Makes a response that says nothing but that it is so.
pub(crate) fn empty() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// A hold as it is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) claim: ClaimId,
    pub(crate) token: Token,
    pub(crate) slot: Option<u32>,
    pub(crate) deadline: tenure_core::clock::Instant,
}

impl Hold {
    /// Its fields. `state` says since when: `granted` by this request, or `held`.
    pub(crate) fn value(&self, app: &App, state: &str, name: &Name) -> Value {
        let (expires_in_ms, renew_in_ms) = left(self.deadline);
        let mut value = json!({
            "state": state,
            "name": name.as_str(),
            "claim": self.claim.to_string(),
            "token": self.token.get(),
            "slot": self.slot,
            "expires_in_ms": expires_in_ms,
            "renew_in_ms": renew_in_ms,
        });
        if app.tenure.capability().adopts == Adopts::SameClient {
            value["bound_to"] = json!("this instance");
        }
        value
    }

    /// Adds the headers under which it works.
    pub(crate) fn put_headers(&self, headers: &mut HeaderMap) {
        headers.insert(TOKEN, HeaderValue::from(self.token.get()));
        if let Ok(claim) = HeaderValue::from_str(&self.claim.to_string()) {
            headers.insert(CLAIM, claim);
        }
    }
}

/// What the log says of a request, beside what everybody can see of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    pub(crate) resource: Option<String>,
    pub(crate) waited_ms: u64,
}

/// Notes what a request was about.
pub(crate) fn noted(mut response: Response, name: &Name, waited_ms: u64) -> Response {
    let resource = Some(name.as_str().to_owned());
    response.extensions_mut().insert(Noted { resource, waited_ms });
    response
}
