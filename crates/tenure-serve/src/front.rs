//! What is done with every request: whence it comes, who sends it, its id, its log line.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue};
use hyper::{Method, Request};
use tokio::time::Instant;
use tower_service::Service;

use crate::access::{Caller, Peer, origin};
use crate::answer::Noted;
use crate::app::App;
use crate::drain::Stage;
use crate::millis::millis;
use crate::problem::{INTERNAL, INVALID, Problem};
use crate::routes::{self, Routes};

const REQUEST_ID: HeaderName = HeaderName::from_static("tenure-request-id");

/// Answers requests.
pub(crate) struct Front {
    pub(crate) app: Arc<App>,
    routes: Routes,
    hosts: Vec<String>,
}

impl Front {
    pub(crate) fn new(app: Arc<App>, hosts: Vec<String>, has_dashboard: bool) -> Front {
        Front { routes: routes::routes(app.clone(), has_dashboard), app, hosts }
    }

    /// Answers one.
    pub(crate) async fn respond(&self, request: Request<Incoming>, peer: &Peer) -> Response {
        let began = Instant::now();
        let id = format!("{:016x}", fastrand::u64(..));
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let mut who = None;
        let answered = self.answer(request.map(Body::new), peer, &mut who).await;
        let mut response = answered.unwrap_or_else(IntoResponse::into_response);
        self.finish(&mut response, &id);
        let waited = response.extensions().get::<Noted>().map_or(0, |noted| noted.waited_ms);
        let took = began.elapsed().saturating_sub(std::time::Duration::from_millis(waited));
        self.app.counting.answered(self.routes.pattern(&path), &method, response.status().as_u16(), took);
        self.log(&response, Logged { id: &id, method: &method, path: &path, who: who.as_ref(), began });
        response
    }

    async fn answer(
        &self,
        request: Request<Body>,
        peer: &Peer,
        who: &mut Option<Caller>,
    ) -> Result<Response, Problem> {
        let (mut parts, body) = request.into_parts();
        let is_page = routes::is_page(&parts.method, parts.uri.path());
        origin::check(&parts.headers, &self.hosts, peer.address.is_some(), is_page)?;
        parts.extensions.insert(peer.clone());
        if !routes::is_public(&parts.method, parts.uri.path()) {
            let caller = self.app.access.caller(&parts, peer)?;
            parts.extensions.insert(caller.clone());
            *who = Some(caller);
        }
        let request = Request::from_parts(parts, body);
        // A router is always ready, and never fails.
        let Ok(response) = self.routes.router.clone().call(request).await;
        Ok(response)
    }

    /// Adds what every answer has.
    fn finish(&self, response: &mut Response, id: &str) {
        let status = response.status();
        if status.is_client_error() || status.is_server_error() {
            let problem = response.extensions_mut().remove::<Problem>();
            let is_ours = problem.is_some()
                || response.headers().get("content-type").is_some_and(|kind| kind == "application/json");
            if !is_ours {
                // What axum itself refuses: a path that is no text, say.
                let kind = if status.is_client_error() { INVALID } else { INTERNAL };
                *response = Problem::new(kind, "the request is not understood").into_response();
            }
            if let Some(problem) = problem.or_else(|| response.extensions_mut().remove::<Problem>()) {
                *response.body_mut() = Body::from(problem.text(id) + "\n");
                // That of the empty body, by axum.
                response.headers_mut().remove(CONTENT_LENGTH);
                if problem.kind.name == "lost" {
                    self.app.counting.told_lost();
                }
                if let Some(reason) = problem.refusal() {
                    self.app.counting.refused(reason);
                }
                let resource = problem.resource().map(str::to_owned);
                response.extensions_mut().insert(Noted { resource, waited_ms: problem.waited_ms() });
            }
        }
        let headers = response.headers_mut();
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.insert(REQUEST_ID, id);
        }
        if self.app.drain.stage() == Stage::Leaving {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// One line for each request. No query and no body, ever: what they hold is somebody's.
    fn log(&self, response: &Response, logged: Logged<'_>) {
        let noted = response.extensions().get::<Noted>();
        let waited_ms = noted.map_or(0, |noted| noted.waited_ms);
        tracing::info!(
            target: "tenure::http",
            request_id = logged.id,
            token = logged.who.and_then(Caller::name),
            method = %logged.method,
            path = logged.path,
            resource = noted.and_then(|noted| noted.resource.as_deref()),
            status = response.status().as_u16(),
            took_ms = millis(logged.began.elapsed()),
            waited_ms,
            "answered"
        );
    }
}

struct Logged<'a> {
    id: &'a str,
    method: &'a Method,
    path: &'a str,
    who: Option<&'a Caller>,
    began: Instant,
}
