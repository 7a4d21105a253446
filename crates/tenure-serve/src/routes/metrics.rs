//! `GET /metrics`: the page for Prometheus, for who has the verb.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::HeaderMap;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use tenure_metrics::Format;

use crate::access::Caller;
use crate::access::rules::Verb;
use crate::app::App;
use crate::problem::Problem;

pub(crate) async fn metrics(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    caller.may_for_all(Verb::Metrics)?;
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    let mut response = Response::new(Body::from(app.page(format).await));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    Ok(response)
}
