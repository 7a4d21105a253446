//! `GET /v1/openapi.json`: what can be asked, for programs that make clients and tests of it.
//!
//! The document is written by hand: what is answered is made of values, so types would have to be written for it alone, and would say
//! nothing of what goes together. `tests/it/openapi.rs` compares it with the routes and with the fields that they take, and has a server
//! asked by it at random.

use axum::body::Body;
use axum::response::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};

/// `docs/operating/openapi.json` is the same.
const DOCUMENT: &str = include_str!("../openapi.json");

pub(crate) async fn document() -> Response {
    let mut response = Response::new(Body::from(DOCUMENT));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
